//! The largest batch that fits a memory limit, by dry runs.
//!
//! Whether a step fits does not depend on workspaces: an operation whose workspace does not fit what the limit
//! leaves is planned again with that, there is always an algorithm without any, and it is given back before
//! anything else is taken. So the search plans nothing, since to ask a library for a workspace can take a
//! millisecond. The peak does depend on them: the run that is reported plans every operation whose workspace
//! could be part of it.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::{Purpose, Report, Reservation, Taker, format_bytes};
use std::fmt;
use std::ops::RangeInclusive;

/// Sizes below the one found that are tried as well: the form of a matrix, or what a step does, can change
/// with the batch, so that a smaller one takes more.
const LOOKED_AT: usize = 16;

/// What a search found; from [`Device::max_batch`]. Prints as a few lines.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fit {
    /// The largest batch that fits; `None` where the smallest one does not.
    pub largest: Option<usize>,
    /// The dry run with that batch, recorded. Its peak is exact (unless its `bounds` say otherwise); workspaces that could not be part of it
    /// were left out.
    pub report: Option<Report>,
    /// The next larger batch with the error that refused it; `None` where the whole range fits.
    pub refused: Option<(usize, Error)>,
    /// Every batch that was tried with its peak in bytes without workspaces, in the order in which they
    /// were; `None` where it was refused.
    pub tried: Vec<(usize, Option<u64>)>,
}

/// A search under way.
struct Search<'a, F> {
    device: &'a Device,
    /// Live on the device already, beside what it holds for itself.
    live: u64,
    step: F,
    tried: Vec<(usize, Option<u64>)>,
    /// The smallest batch that was refused, and why.
    refused: Option<(usize, Error)>,
}

impl<F: FnMut(&Device, usize) -> Result<()>> Search<'_, F> {
    /// Whether a batch fits. Only a refusal for want of memory is an answer; others are errors.
    fn fits(&mut self, batch: usize) -> Result<bool> {
        if let Some(&(_, peak)) = self.tried.iter().find(|&&(tried, _)| tried == batch) {
            return Ok(peak.is_some());
        }
        let dry = self.device.dry();
        dry.plan_over(u64::MAX);
        let _live = match held(&dry, self.live) {
            Ok(held) => held,
            Err(error) => return self.refuse(batch, error),
        };
        match (self.step)(&dry, batch) {
            Ok(()) => {
                self.tried.push((batch, Some(dry.report().peak)));
                Ok(true)
            }
            Err(error @ (Error::MemoryLimit { .. } | Error::TooLarge { .. })) => {
                self.refuse(batch, error)
            }
            Err(error) => Err(error),
        }
    }

    fn refuse(&mut self, batch: usize, error: Error) -> Result<bool> {
        self.tried.push((batch, None));
        if self.refused.as_ref().is_none_or(|&(smallest, _)| batch < smallest) {
            self.refused = Some((batch, error));
        }
        Ok(false)
    }

    /// The last that fits between one that does and one that does not.
    fn between(&mut self, mut fits: usize, mut refused: usize) -> Result<usize> {
        while refused - fits > 1 {
            let middle = fits + (refused - fits) / 2;
            if self.fits(middle)? {
                fits = middle;
            } else {
                refused = middle;
            }
        }
        Ok(fits)
    }

    fn largest(&mut self, first: usize, last: usize) -> Result<Option<usize>> {
        if !self.fits(first)? {
            return Ok(None);
        }
        // Twice as large each time, so that few runs are of batches that are far too large.
        let (mut fits, mut next) = (first, first.saturating_mul(2).max(1).min(last));
        while next > fits && self.fits(next)? {
            (fits, next) = (next, next.saturating_mul(2).min(last));
        }
        if next > fits {
            fits = self.between(fits, next)?;
        }
        // The first that is refused may lie below.
        for i in 0..LOOKED_AT {
            let lower = first + ((fits - first) as u128 * i as u128 / LOOKED_AT as u128) as usize;
            if !self.fits(lower)? {
                return self.between(first, lower).map(Some);
            }
        }
        Ok(Some(fits))
    }
}

/// What is live on a device, counted on its twin.
fn held(dry: &Device, live: u64) -> Result<Reservation> {
    dry.meter().reserve(live, Purpose::Other, Taker::of("live on the device"))
}

impl Device {
    /// The largest batch in `batches` with which `step` fits this device's memory limit, and the first
    /// that does not, by dry runs of each size that is tried. Takes about 2·log₂ of the answer runs, and 16
    /// more at sizes below it. The peak of the answer is exact.
    ///
    /// `step` is given a [dry twin](Device::dry) and a batch; it makes model, optimiser and data there and
    /// runs whatever is to fit. What is live on this device already counts, too, as *other*. Errors other
    /// than [`Error::MemoryLimit`] and [`Error::TooLarge`] end the search; a step that swallows those seems
    /// to fit.
    ///
    /// ```
    /// use capgrad::{Conv1d, DType, Device, MIB, Tape, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::new_cpu(Default::default())?;
    /// device.set_memory_limit(Some(16 * MIB))?;
    /// let fit = device.max_batch(1..=4096, |dry, batch| {
    ///     let conv = Conv1d::builder(64, 64, 1).build(dry)?;
    ///     let tape = Tape::new();
    ///     let x = tape.constant(Tensor::rand([batch, 64, 100], DType::F32, dry)?);
    ///     conv.forward(&x)?.square()?.mean()?.backward()?;
    ///     Ok(())
    /// })?;
    /// println!("{fit}");
    /// assert!(fit.largest.unwrap() > 100 && fit.refused.unwrap().0 == fit.largest.unwrap() + 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] without a limit and for an empty range; those of `step`.
    pub fn max_batch(
        &self,
        batches: RangeInclusive<usize>,
        step: impl FnMut(&Device, usize) -> Result<()>,
    ) -> Result<Fit> {
        let (first, last) = batches.into_inner();
        if self.memory_limit().is_none() {
            let reason = "there is nothing to fit; set one with `set_memory_limit`";
            return Err(Error::argument("max_batch", "memory_limit", "none", reason));
        }
        if first > last {
            let value = format!("{first}..={last}");
            return Err(Error::argument("max_batch", "batches", value, "the range is empty"));
        }
        let live = self.live_bytes().saturating_sub(self.0.backend.charged());
        let mut search = Search { device: self, live, step, tried: Vec::new(), refused: None };
        let largest = search.largest(first, last)?;
        let report = match largest {
            Some(batch) => {
                let without = search.tried.iter().find(|&&(tried, _)| tried == batch);
                let dry = self.dry();
                dry.plan_over(without.and_then(|&(_, peak)| peak).unwrap_or(0));
                let _live = held(&dry, live)?;
                dry.set_recording(true);
                (search.step)(&dry, batch)?;
                Some(dry.report())
            }
            None => None,
        };
        Ok(Fit { largest, report, refused: search.refused, tried: search.tried })
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.largest, &self.report) {
            (Some(batch), Some(report)) => {
                let peak = report.peak;
                let of = report.limit.map_or(String::new(), |l| format!(" of {}", format_bytes(l)));
                writeln!(
                    f,
                    "{}: the largest batch that fits is {batch}: peak {}{of}",
                    report.device,
                    format_bytes(peak),
                )?;
                for why in &report.bounds {
                    writeln!(f, "  a bound: {why}")?;
                }
                for purpose in Purpose::ALL.into_iter().filter(|&p| report.at_peak[p] > 0) {
                    let bytes = report.at_peak[purpose];
                    let share = 100.0 * bytes as f64 / peak.max(1) as f64;
                    writeln!(f, "  {purpose:<12} {:>14} {share:>5.1} %", format_bytes(bytes))?;
                }
                let most = report.recorded.as_ref().and_then(|r| r.alive_at_peak.first());
                if let Some(most) = most {
                    writeln!(
                        f,
                        "  most of it: {} × {} of {} for {}",
                        most.count,
                        format_bytes(most.bytes),
                        most.purpose,
                        most.op
                    )?;
                }
            }
            _ => writeln!(f, "no batch of the range fits")?,
        }
        match &self.refused {
            Some((batch, error)) => writeln!(f, "  a batch of {batch} is refused: {error}"),
            None => writeln!(f, "  the whole range fits"),
        }
    }
}
