//! Faults that a test asks for: the n-th piece of memory or the n-th algorithm fails.

use crate::error::{Error, Result};

/// What is to fail, once; from [`Device::inject_fault`](crate::Device::inject_fault).
///
/// ```
/// use capgrad::{CpuOptions, DType, Device, Error, Fault, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::new_cpu(CpuOptions::default())?;
/// device.inject_fault(Some(Fault::Allocation(2)));
/// let x = Tensor::zeros([4], DType::F32, &device)?;
/// let error = Tensor::zeros([4], DType::F32, &device).unwrap_err();
/// assert!(matches!(error, Error::Injected { .. }));
/// // Once.
/// assert!(Tensor::zeros([4], DType::F32, &device).is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The n-th piece of memory from now on, counted from 1.
    Allocation(u64),
    /// The n-th run of an algorithm that was planned, counted from 1.
    Candidate(u64),
}

/// Countdowns; 0 is none.
#[derive(Default)]
pub(super) struct Faults {
    allocation: u64,
    candidate: u64,
}

impl Faults {
    pub(super) fn of(fault: Option<Fault>) -> Faults {
        match fault {
            None => Faults::default(),
            Some(Fault::Allocation(n)) => Faults { allocation: n, candidate: 0 },
            Some(Fault::Candidate(n)) => Faults { allocation: 0, candidate: n },
        }
    }

    pub(super) fn allocation(&mut self, device: &str, op: &'static str) -> Result<()> {
        count_down(&mut self.allocation, device, op, "a piece of memory")
    }

    pub(super) fn candidate(&mut self, device: &str, op: &'static str) -> Result<()> {
        count_down(&mut self.candidate, device, op, "an algorithm")
    }
}

fn count_down(left: &mut u64, device: &str, op: &'static str, what: &'static str) -> Result<()> {
    match *left {
        0 => Ok(()),
        1 => {
            *left = 0;
            Err(Error::Injected { device: device.to_owned(), op, what })
        }
        _ => {
            *left -= 1;
            Ok(())
        }
    }
}
