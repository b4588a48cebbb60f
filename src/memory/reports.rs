//! The reports of several devices, side by side.

use super::bytes::format_bytes;
use super::purpose::Purpose;
use super::report::Report;
use crate::device::Device;
use std::fmt;

/// What the meters of several devices saw: a graph may span some. Prints as a line a device; each
/// one's own [`Report`] is in `devices`.
///
/// ```
/// use capgrad::{DType, Device, Reports, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let (one, two) = (Device::new_cpu(Default::default())?, Device::new_cpu(Default::default())?);
/// let x = Tensor::zeros([256], DType::F32, &one)?;
/// let y = x.to(&two)?;
/// let reports = Reports::of([&one, &two]);
/// assert_eq!((reports.devices[1].peak, reports.live()), (1024, 2048));
/// println!("{reports}");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Reports {
    /// Each device once, in the order in which they were given.
    pub devices: Vec<Report>,
}

impl Reports {
    /// Those of `devices`; one that is named twice counts once.
    pub fn of<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Reports {
        let mut seen: Vec<&Device> = Vec::new();
        for device in devices {
            if !seen.contains(&device) {
                seen.push(device);
            }
        }
        Reports { devices: seen.into_iter().map(Device::report).collect() }
    }

    /// Live bytes of all devices together.
    pub fn live(&self) -> u64 {
        self.devices.iter().map(|report| report.live.total()).sum()
    }
}

impl fmt::Display for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<16} {:>14} {:>14} {:>14} {:>14} {:>14}",
            "device", "live", "peak", "mostly", "workspace cap", "limit"
        )?;
        let or_none = |bytes: Option<u64>| bytes.map_or("none".to_owned(), format_bytes);
        for report in &self.devices {
            writeln!(
                f,
                "{:<16} {:>14} {:>14} {:>14} {:>14} {:>14}",
                report.device,
                format_bytes(report.live.total()),
                format_bytes(report.peak),
                most(report),
                or_none(report.workspace_cap),
                or_none(report.limit),
            )?;
        }
        Ok(())
    }
}

/// The purpose that most of the peak was for.
fn most(report: &Report) -> &'static str {
    let held = Purpose::ALL.into_iter().filter(|&purpose| report.at_peak[purpose] > 0);
    held.max_by_key(|&purpose| report.at_peak[purpose]).map_or("", Purpose::name)
}
