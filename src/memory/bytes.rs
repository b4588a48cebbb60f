//! Numbers of bytes as people write them.

use crate::error::{Error, Result};

/// One kibibyte, 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte, 1024² bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, 1024³ bytes.
pub const GIB: u64 = 1 << 30;

/// Bytes for people: the exact number up to 9,999, else two decimals and a binary unit.
///
/// ```
/// use capgrad::format_bytes;
/// assert_eq!(format_bytes(512), "512 B");
/// assert_eq!(format_bytes(101_376_000), "96.68 MiB");
/// ```
pub fn format_bytes(bytes: u64) -> String {
    if bytes < 10_000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        // What would be printed as 1024.00 belongs to the next unit.
        if value < 1023.995 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.2} {unit}")
}

/// Reads a number of bytes: `4096`, `64MiB`, `1.5 GiB`. Decimal units (`kB`, `MB`, `GB`) are powers
/// of 1000; a bare letter is refused, since nobody agrees on what it means.
///
/// ```
/// use capgrad::{MIB, parse_bytes};
/// assert_eq!(parse_bytes("64MiB").unwrap(), 64 * MIB);
/// assert_eq!(parse_bytes("2 GB").unwrap(), 2_000_000_000);
/// assert!(parse_bytes("64M").is_err());
/// ```
///
/// # Errors
/// [`Error::Argument`] for anything else.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => GIB,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => 0,
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => number
            .parse::<f64>()
            .ok()
            .map(|number| number * factor as f64)
            .filter(|bytes| *bytes < u64::MAX as f64)
            .map(|bytes| bytes.round() as u64),
    };
    bytes.filter(|_| factor > 0).ok_or_else(|| {
        let reason = "expected a number of bytes such as 4096, 64MiB or 1.5GiB";
        Error::argument("parse_bytes", "bytes", format!("{text:?}"), reason)
    })
}
