//! What candidates took, as it is saved and loaded: times of the same device with the same driver and
//! libraries need not be measured again.

#[cfg(feature = "serde")]
use super::planner::{Plan, Verdict};
use crate::device::Query;
use std::collections::{BTreeMap, HashMap};

/// Seconds of a candidate, or why it failed.
pub(super) type Outcome = Result<f64, String>;

/// By question, and then by candidate.
#[derive(Clone, Default)]
pub(super) struct Times(HashMap<String, BTreeMap<String, Outcome>>);

/// A question as it is saved: how it prints for developers, with every size. It is only compared. A
/// candidate's time does not depend on the cap that it is under.
pub(super) fn question(query: &Query, allow_tf32: bool) -> String {
    format!("{query:?} {allow_tf32}")
}

/// A candidate as it is saved. Another version of a library that needs another workspace is another one.
fn candidate(candidate: &super::Candidate) -> String {
    format!("{candidate}: {}", candidate.workspace)
}

impl Times {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What is known of the candidates of a question.
    pub(super) fn of(&self, question: &str) -> Option<&BTreeMap<String, Outcome>> {
        self.0.get(question)
    }

    pub(super) fn extend(&mut self, other: &Times) {
        for (question, times) in &other.0 {
            let own = self.0.entry(question.clone()).or_default();
            own.extend(times.iter().map(|(name, outcome)| (name.clone(), outcome.clone())));
        }
    }

    /// Notes what a plan's candidates took.
    #[cfg(feature = "serde")]
    pub(super) fn note(&mut self, question: String, plan: &Plan) {
        let times = self.0.entry(question).or_default();
        for weighed in &plan.weighed {
            let outcome = match (&weighed.verdict, weighed.measured) {
                (Verdict::Failed(why), _) => Err(why.clone()),
                (_, Some(seconds)) => Ok(seconds),
                _ => continue,
            };
            times.insert(candidate(&weighed.candidate), outcome);
        }
    }
}

/// What is known of one candidate.
pub(super) fn lookup<'a>(
    times: &'a BTreeMap<String, Outcome>,
    of: &super::Candidate,
) -> Option<&'a Outcome> {
    times.get(&candidate(of))
}

#[cfg(feature = "serde")]
mod text {
    use super::*;
    use crate::device::Device;
    use crate::error::{Error, Result};
    use serde::{Deserialize, Serialize};

    /// The layout of the text; another one is refused.
    const VERSION: u32 = 1;

    #[derive(Serialize, Deserialize)]
    struct Saved {
        version: u32,
        /// Of this crate, whose kernels are measured as well.
        capgrad: String,
        /// The device with its driver and libraries.
        device: String,
        times: BTreeMap<String, BTreeMap<String, Outcome>>,
    }

    impl Device {
        /// What was measured on this device under [`Ranking::Measured`](crate::Ranking::Measured), as JSON (feature `serde`): each
        /// candidate's seconds, with the versions of the device's driver and libraries and of this crate.
        /// Another process with the same ones takes it over by [`Device::use_measurements`] and measures
        /// none of that again. What was taken over here is in it, too.
        ///
        /// ```
        /// use capgrad::{Conv1d, DType, Device, Ranking, Tensor, Var};
        /// # fn main() -> capgrad::Result<()> {
        /// let forward = |device: &Device| -> capgrad::Result<()> {
        ///     device.set_ranking(Ranking::Measured);
        ///     let conv = Conv1d::builder(8, 16, 3).build(device)?;
        ///     conv.forward(&Var::from(Tensor::rand([4, 8, 100], DType::F32, device)?))?;
        ///     Ok(())
        /// };
        /// let device = Device::new_cpu(Default::default())?;
        /// forward(&device)?;
        /// let saved = device.measurements()?; // write it to a file
        ///
        /// let later = Device::new_cpu(Default::default())?;
        /// assert_eq!(later.use_measurements(&saved)?, 1);
        /// forward(&later)?; // as fast as any later step
        /// # Ok(()) }
        /// ```
        ///
        /// # Errors
        /// [`Error::Argument`] where it cannot be written.
        pub fn measurements(&self) -> Result<String> {
            let saved = Saved {
                version: VERSION,
                capgrad: env!("CARGO_PKG_VERSION").into(),
                device: self.identity(),
                times: self.planner().measured().0.into_iter().collect(),
            };
            serde_json::to_string(&saved)
                .map_err(|error| Error::argument("measurements", "self", self, error.to_string()))
        }

        /// Takes over what [`Device::measurements`] gave (feature `serde`), and says how many operations it
        /// is of. Their plans are made from these times, under any cap, and candidates that are not among
        /// them are timed when they come up. Plans that were made before stay.
        ///
        /// # Errors
        /// [`Error::Argument`] for another text, and for times of another device, driver, library or
        /// version of this crate, which say nothing about this one; nothing is taken over then.
        pub fn use_measurements(&self, text: &str) -> Result<usize> {
            let refused = |reason: String| {
                let text: String = text.chars().take(40).collect();
                Error::argument("use_measurements", "text", text, reason)
            };
            let saved: Saved = serde_json::from_str(text).map_err(|error| {
                refused(format!("expected the text of `Device::measurements`: {error}"))
            })?;
            if saved.version != VERSION {
                let version = saved.version;
                return Err(refused(format!(
                    "version {version}; this is {VERSION}: measure again"
                )));
            }
            let own = (env!("CARGO_PKG_VERSION").to_owned(), self.identity());
            if (&saved.capgrad, &saved.device) != (&own.0, &own.1) {
                return Err(refused(format!(
                    "measured with capgrad {} on {}; this is capgrad {} on {}: measure again",
                    saved.capgrad, saved.device, own.0, own.1
                )));
            }
            let number = saved.times.len();
            self.planner().know(&Times(saved.times.into_iter().collect()));
            Ok(number)
        }
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    /// A last digit that is read as another makes a time another.
    #[test]
    fn times_are_read_as_they_were_written() {
        let one_digit_apart = [2.6133380952380954e-5, 2.613338095238095e-5];
        let many = (1..2000).map(|i| 1.0 / f64::from(i * 7919));
        for time in many.chain(one_digit_apart) {
            let text = serde_json::to_string(&time).unwrap();
            assert_eq!(
                serde_json::from_str::<f64>(&text).unwrap().to_bits(),
                f64::to_bits(time),
                "{text}"
            );
        }
    }
}
