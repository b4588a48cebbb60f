//! The axes: bytes at powers of two, events at round decimal numbers.

use crate::memory::format_bytes;

/// From bytes to pixels.
pub(super) struct Scale {
    /// Bytes at the top edge.
    top: f64,
    /// Bytes between ticks.
    step: u128,
    bottom_y: f64,
    height: f64,
}

impl Scale {
    /// A scale on which `most` bytes are `headroom` pixels below the top edge, with ticks at least
    /// `apart` pixels apart.
    pub(super) fn new(most: u128, top_y: f64, bottom_y: f64, headroom: f64, apart: f64) -> Scale {
        let height = bottom_y - top_y;
        // Where nothing is ever live the axis goes to 1 KiB.
        let most = if most == 0 { 1024.0 } else { most as f64 };
        let top = most * height / (height - headroom).max(1.0);
        let mut step = 1_u128;
        while step as f64 / top * height < apart {
            step *= 2;
        }
        Scale { top, step, bottom_y, height }
    }

    pub(super) fn holds(&self, bytes: u64) -> bool {
        bytes as f64 <= self.top
    }

    pub(super) fn y(&self, bytes: u128) -> f64 {
        (self.bottom_y - bytes as f64 / self.top * self.height).round()
    }

    /// Where ticks are, with their labels, the lowest first.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let count = (self.top / self.step as f64) as u128;
        let highest = self.step * count;
        // The highest tick's unit, unless the others would be odd fractions of it.
        let unit = [highest, self.step]
            .into_iter()
            .map(|bytes| bytes.max(1).ilog2() / 10)
            .find(|&unit| self.step.saturating_mul(4) >= 1 << (10 * unit))
            .unwrap_or(0)
            .min(6);
        let name = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][unit as usize];
        let label = |bytes: u128| match bytes {
            0 => "0".to_owned(),
            _ => format!("{} {name}", bytes as f64 / (1_u128 << (10 * unit)) as f64),
        };
        (0..=count).map(|i| (self.y(self.step * i), label(self.step * i))).collect()
    }
}

/// Round numbers below `end`, at most `most` of them, 0 the first.
pub(super) fn round_numbers(end: usize, most: usize) -> Vec<usize> {
    let mut step = 1_usize;
    for factor in [2, 5, 10].into_iter().cycle() {
        if end / step < most.max(1) {
            break;
        }
        let decade = 10_usize.pow(step.ilog10());
        step = decade.saturating_mul(factor);
    }
    (0..end).step_by(step).collect()
}

/// A number with a comma between thousands.
pub(super) fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes for people, also more than `u64` holds.
pub(super) fn readable(bytes: u128) -> String {
    let exbibytes = || format!("{:.2} EiB", bytes as f64 / (1_u64 << 60) as f64);
    u64::try_from(bytes).map_or_else(|_| exbibytes(), format_bytes)
}
