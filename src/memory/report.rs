//! The report: what the meter saw, and how it prints.

use super::bytes::format_bytes;
use super::purpose::{ByPurpose, Purpose};
use super::scope::ScopeReport;
use std::fmt;

/// What one device's meter saw since it was made, or since
/// [`Device::reset_peak`](crate::Device::reset_peak). All figures are bytes.
///
/// ```
/// use capgrad::{DType, Device, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::new_cpu(Default::default())?;
/// drop(Tensor::zeros([1024], DType::F32, &device)?);
/// let report = device.report();
/// assert_eq!((report.peak, report.live.total()), (4096, 0));
/// println!("{report}");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// The workspace cap in force when the report was made; `None` is no cap.
    pub workspace_cap: Option<u64>,
    /// The memory limit; `None` is no limit.
    pub limit: Option<u64>,
    /// Live bytes by purpose.
    pub live: ByPurpose,
    /// Most live bytes at one moment.
    pub peak: u64,
    /// What was live at that moment, by purpose.
    pub at_peak: ByPurpose,
    /// The highest that each purpose was, each at its own moment.
    pub peaks: ByPurpose,
    /// How many times memory was taken.
    pub allocations: u64,
    /// What the driver says of the device's memory, where there is a driver.
    pub driver: Option<DriverMemory>,
    /// The scopes that have ended, in the order in which they did.
    pub scopes: Vec<ScopeReport>,
}

/// A GPU driver's own figures, beside the meter's. All are bytes.
///
/// *Used* is what the pool has handed out, each request rounded up to the driver's granularity;
/// *reserved* is what it holds of the GPU, freed blocks that it keeps included, until
/// [`Device::trim`](crate::Device::trim). The context, kernels and libraries' code are in neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverMemory {
    /// Handed out by the device's pool now.
    pub pool_used: u64,
    /// The most that it has handed out at one moment.
    pub pool_used_peak: u64,
    /// Held by the device's pool now.
    pub pool_reserved: u64,
    /// The most that it has held.
    pub pool_reserved_peak: u64,
    /// Free on the GPU, whoever uses the rest.
    pub free: u64,
    /// Memory of the GPU.
    pub total: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |bytes: Option<u64>| bytes.map_or("none".to_owned(), format_bytes);
        writeln!(
            f,
            "{}: peak {}, live {}, workspace cap {}, limit {}",
            self.device,
            format_bytes(self.peak),
            format_bytes(self.live.total()),
            or_none(self.workspace_cap),
            or_none(self.limit),
        )?;
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
        if let Some(driver) = &self.driver {
            writeln!(
                f,
                "driver: pool used {} (peak {}), reserved {} (peak {}), GPU free {} of {}",
                format_bytes(driver.pool_used),
                format_bytes(driver.pool_used_peak),
                format_bytes(driver.pool_reserved),
                format_bytes(driver.pool_reserved_peak),
                format_bytes(driver.free),
                format_bytes(driver.total),
            )?;
        }
        if self.scopes.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "{:<32} {:>14} {:>14} {:>14} {:>14}",
            "scope", "before", "peak", "of it workspace", "after"
        )?;
        for scope in &self.scopes {
            writeln!(
                f,
                "{:<32} {:>14} {:>14} {:>15} {:>14}",
                scope.path,
                format_bytes(scope.live_before),
                format_bytes(scope.peak),
                format_bytes(scope.at_peak[Purpose::Workspace]),
                format_bytes(scope.live_after),
            )?;
        }
        Ok(())
    }
}
