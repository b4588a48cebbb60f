//! How a report prints: tables of at most 100 columns.

use super::bytes::format_bytes;
use super::purpose::Purpose;
use super::recorded::{Allocations, Recorded};
use super::report::Report;
use std::fmt;

/// Lines of each list of what was recorded; the rest is in the fields.
const LINES: usize = 12;
/// Scopes that are printed.
const SCOPES: usize = 60;

/// `text` in at most `width` columns: its end, where paths and sizes differ, stays.
fn fit(text: &str, width: usize) -> String {
    // A line of a table is one line.
    let visible = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let count = text.chars().count();
    if count <= width {
        return visible.collect();
    }
    let end: String = visible.skip(count + 1 - width).collect();
    format!("…{end}")
}

/// A change, with its sign.
fn change(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", format_bytes(bytes.unsigned_abs()))
}

fn or_none(bytes: Option<u64>) -> String {
    bytes.map_or("none".to_owned(), format_bytes)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: peak {}, live {}, workspace cap {}, limit {}",
            self.device,
            format_bytes(self.peak),
            format_bytes(self.live.total()),
            or_none(self.workspace_cap),
            or_none(self.limit),
        )?;
        for why in &self.bounds {
            writeln!(f, "a bound: {}", fit(why, 91))?;
        }
        self.purposes(f)?;
        self.driver(f)?;
        self.scopes(f)?;
        match &self.recorded {
            Some(recorded) => write!(f, "{recorded}"),
            None => Ok(()),
        }
    }
}

impl Report {
    fn purposes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:>16} {:>16} {:>16}", "purpose", "live", "at the peak", "own peak")?;
        for purpose in Purpose::ALL.into_iter().filter(|&purpose| self.peaks[purpose] > 0) {
            writeln!(
                f,
                "{:<12} {:>16} {:>16} {:>16}",
                purpose.name(),
                format_bytes(self.live[purpose]),
                format_bytes(self.at_peak[purpose]),
                format_bytes(self.peaks[purpose]),
            )?;
        }
        Ok(())
    }

    /// What is allocated, beside what is reserved for it.
    fn driver(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(driver) = &self.driver else { return Ok(()) };
        writeln!(f, "{:<12} {:>16} {:>16} {:>16}", "driver", "now", "", "peak")?;
        let line = |f: &mut fmt::Formatter<'_>, name, now, peak| {
            let (now, peak) = (format_bytes(now), format_bytes(peak));
            writeln!(f, "{name:<12} {now:>16} {:>16} {peak:>16}", "")
        };
        line(f, "allocated", driver.pool_used, driver.pool_used_peak)?;
        line(f, "reserved", driver.pool_reserved, driver.pool_reserved_peak)?;
        let (free, total) = (format_bytes(driver.free), format_bytes(driver.total));
        writeln!(f, "GPU: {free} free of {total}")
    }

    /// Each scope as a line of a step.
    fn scopes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scopes.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{:<34} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "scope", "before", "peak", "work at peak", "after", "change"
        )?;
        for scope in self.scopes.iter().take(SCOPES) {
            writeln!(
                f,
                "{:<34} {:>12} {:>12} {:>12} {:>12} {:>12}",
                fit(&scope.path, 34),
                format_bytes(scope.live_before),
                format_bytes(scope.peak),
                format_bytes(scope.at_peak[Purpose::Workspace]),
                format_bytes(scope.live_after),
                change(scope.change()),
            )?;
        }
        rest(f, self.scopes.len(), SCOPES)
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.complete {
            writeln!(f, "the recording was cut short: more than 1,048,576 events")?;
        }
        writeln!(f, "alive at the recorded peak of {}", format_bytes(self.peak))?;
        allocations(f, &self.alive_at_peak)?;
        writeln!(f, "largest")?;
        allocations(f, &self.largest)?;
        writeln!(
            f,
            "{:<32} {:<10} {:>8} {:>14} {:>14} {:>14}",
            "operation", "pass", "times", "taken", "own peak", "workspace"
        )?;
        for operation in self.operations.iter().take(LINES) {
            writeln!(
                f,
                "{:<32} {:<10} {:>8} {:>14} {:>14} {:>14}",
                fit(&operation.op, 32),
                operation.pass,
                operation.allocations,
                format_bytes(operation.taken),
                format_bytes(operation.own_peak),
                format_bytes(operation.workspace),
            )?;
        }
        rest(f, self.operations.len(), LINES)?;
        if !self.workspaces.is_empty() {
            writeln!(f, "{:>12} {:>6}  workspace of", "bytes", "times")?;
        }
        for workspace in self.workspaces.iter().take(LINES) {
            let of = format!("{}: {}", workspace.operation, workspace.algorithm);
            let bytes = format_bytes(workspace.bytes);
            writeln!(f, "{bytes:>12} {:>6}  {}", workspace.count, fit(&of, 79))?;
        }
        rest(f, self.workspaces.len(), LINES)
    }
}

fn allocations(f: &mut fmt::Formatter<'_>, list: &[Allocations]) -> fmt::Result {
    writeln!(
        f,
        "{:>12} {:>6}  {:<11} {:<10} {:<24} scope",
        "bytes each", "pieces", "purpose", "pass", "operation"
    )?;
    for held in list.iter().take(LINES) {
        writeln!(
            f,
            "{:>12} {:>6}  {:<11} {:<10} {:<24} {}",
            format_bytes(held.bytes),
            held.count,
            held.purpose,
            held.pass.map_or("", |pass| pass.name()),
            fit(&held.op, 24),
            fit(&held.scope, 29),
        )?;
    }
    rest(f, list.len(), LINES)
}

fn rest(f: &mut fmt::Formatter<'_>, lines: usize, printed: usize) -> fmt::Result {
    match lines.checked_sub(printed) {
        Some(more) if more > 0 => writeln!(f, "{:>12} more", more),
        _ => Ok(()),
    }
}
