//! The report: what the meter saw.

use super::purpose::ByPurpose;
use super::recorded::Recorded;
use super::scope::ScopeReport;

/// What one device's meter saw since it was made, or since
/// [`Device::reset_peak`](crate::Device::reset_peak). All figures are bytes. Prints as tables of at most
/// 100 columns; with the feature `serde` it serialises, to JSON for example.
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
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// Whether it is of a dry run: nothing was computed, and values that were read back were NaN.
    pub dry: bool,
    /// Why figures of a dry run are bounds, or may differ; empty where they are exact.
    pub bounds: Vec<String>,
    /// The workspace cap in force when the report was made; `None` is no cap.
    pub workspace_cap: Option<u64>,
    /// The memory limit, the tightest in force; `None` is no limit.
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
    /// What was recorded, where [`Device::set_recording`](crate::Device::set_recording) asked for it.
    pub recorded: Option<Recorded>,
}

/// A GPU driver's own figures, beside the meter's. All are bytes.
///
/// *Used* is what the pool has handed out, each request rounded up to the driver's granularity;
/// *reserved* is what it holds of the GPU, freed blocks that it keeps included, until
/// [`Device::trim`](crate::Device::trim). The context, kernels and libraries' code are in neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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
