//! The planner: filters candidates by the cap, ranks what is left, and keeps the answer by shape.

use super::candidate::Candidate;
use super::measured::{Outcome, Times, question};
use crate::device::{Query, Ranking};
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Among candidates this close to the fastest, the one with the least workspace is taken.
const CLOSE_ENOUGH: f64 = 1.05;
/// A candidate that is predicted to take this many times as long as the fastest one so far was predicted
/// to is not timed. On an H200, of 4,254 convolutions that were, none took less than 1.5 times as long as
/// the fastest; timing all takes three times as long.
const NO_HOPE: f64 = 8.0;

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// It runs.
    Taken,
    /// It fits, but another was faster, or as fast with less workspace.
    Slower,
    /// Its workspace is over the cap.
    OverCap,
    /// Its results are not bitwise repeatable, and the device was told that they must be.
    NotDeterministic,
    /// It failed while it was being timed, with this error.
    Failed(String),
}

/// A candidate with what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighed {
    /// The algorithm.
    pub candidate: Candidate,
    /// Measured seconds, where it was measured. With [`Ranking::Measured`] that is every candidate
    /// within the cap but those that are predicted to be slower by far.
    pub measured: Option<f64>,
    /// What became of it.
    pub verdict: Verdict,
}

/// The algorithm chosen for one operation on one shape, and every one that was not, with the
/// reason. Prints as a table.
///
/// ```
/// use capgrad::{Conv1d, Device, MIB};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::cpu();
/// device.set_workspace_cap(64 * MIB);
/// let conv = Conv1d::builder(6, 10, 1).build(&device)?;
/// for plan in conv.plan([40, 6, 11])? {
///     assert!(plan.taken().workspace <= 64 * MIB);
///     println!("{plan}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) operation: String,
    pub(super) device: String,
    pub(super) cap: Option<u64>,
    pub(super) ranking: Ranking,
    pub(super) weighed: Vec<Weighed>,
    pub(super) taken: usize,
}

impl Plan {
    /// The operation and its sizes.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// The cap under which it was planned, in bytes; `None` is no cap.
    pub fn cap(&self) -> Option<u64> {
        self.cap
    }

    /// The algorithm that runs.
    pub fn taken(&self) -> &Candidate {
        &self.weighed[self.taken].candidate
    }

    /// Every candidate with what became of it, fastest first.
    pub fn weighed(&self) -> &[Weighed] {
        &self.weighed
    }

    /// The rejected candidate with the largest workspace over the cap.
    pub fn largest_over_cap(&self) -> Option<&Candidate> {
        self.weighed
            .iter()
            .filter(|weighed| weighed.verdict == Verdict::OverCap)
            .map(|weighed| &weighed.candidate)
            .max_by_key(|candidate| candidate.workspace)
    }
}

/// Everything that decides a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PlanKey {
    pub(crate) query: Query,
    pub(crate) cap: Option<u64>,
    pub(crate) ranking: Ranking,
    pub(crate) deterministic: bool,
    pub(crate) allow_tf32: bool,
}

/// One device's plans.
#[derive(Default)]
pub(crate) struct Planner {
    plans: Mutex<HashMap<PlanKey, Arc<Plan>>>,
    /// Measured elsewhere.
    known: Mutex<Times>,
}

/// Plans that are kept; past that all are forgotten, so that ever-changing shapes do not grow it.
const KEPT: usize = 16_384;

impl Planner {
    pub(crate) fn cached(&self, key: &PlanKey) -> Option<Arc<Plan>> {
        self.plans.lock().get(key).cloned()
    }

    pub(crate) fn keep(&self, key: PlanKey, plan: Plan) -> Arc<Plan> {
        let mut plans = self.plans.lock();
        if plans.len() >= KEPT {
            plans.clear();
        }
        let plan = Arc::new(plan);
        plans.insert(key, plan.clone());
        plan
    }

    pub(crate) fn plans(&self) -> Vec<Arc<Plan>> {
        self.plans.lock().values().cloned().collect()
    }

    /// Takes over what another planner has measured.
    pub(crate) fn adopt_measured(&self, other: &Planner) {
        let measured = |key: &PlanKey| key.ranking == Ranking::Measured;
        let plans = other.plans.lock();
        let found = plans.iter().filter(|(key, _)| measured(key));
        self.plans.lock().extend(found.map(|(key, plan)| (*key, plan.clone())));
        self.know(&other.known.lock());
    }

    /// Takes over what was measured elsewhere.
    pub(super) fn know(&self, times: &Times) {
        self.known.lock().extend(times);
    }

    /// What is known of an operation's candidates, if anything is.
    pub(super) fn known(&self, key: &PlanKey) -> Option<BTreeMap<String, Outcome>> {
        let known = self.known.lock();
        let question = (!known.is_empty()).then(|| question(&key.query, key.allow_tf32))?;
        known.of(&question).cloned()
    }

    /// Everything that was measured, here and elsewhere.
    #[cfg(feature = "serde")]
    pub(super) fn measured(&self) -> Times {
        let mut times = self.known.lock().clone();
        for (key, plan) in self.plans.lock().iter() {
            if plan.ranking == Ranking::Measured {
                times.note(question(&key.query, key.allow_tf32), plan);
            }
        }
        times
    }

    pub(crate) fn forget(&self) {
        self.plans.lock().clear();
        self.known.lock().clear();
    }
}

/// Says how many seconds a candidate takes, by running it unless that is known; with `true` it is
/// predicted to be slower by far, and `None` says that it was not run for that.
pub(crate) type Stopwatch<'a> = &'a mut dyn FnMut(&Candidate, bool) -> Result<Option<f64>>;

/// Weighs candidates: filter by cap and determinism, time each if `measure` is given, rank.
pub(crate) fn weigh(
    op: &'static str,
    key: &PlanKey,
    device: &str,
    operation: String,
    candidates: Vec<Candidate>,
    mut measure: Option<Stopwatch<'_>>,
) -> Result<Plan> {
    let smallest = candidates.iter().map(|candidate| candidate.workspace).min().unwrap_or(0);
    let mut last_failure = None;
    let mut candidates = candidates;
    let timed = measure.is_some();
    if timed {
        // The likely ones first: what is slow beside them is found out sooner.
        candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    }
    // Of the fastest so far, what was measured and what had been predicted.
    let mut best: Option<(f64, f64)> = None;
    let mut weighed: Vec<Weighed> = candidates
        .into_iter()
        .map(|candidate| {
            let mut measured = None;
            let verdict = if key.cap.is_some_and(|cap| candidate.workspace > cap) {
                Verdict::OverCap
            } else if key.deterministic && !candidate.deterministic {
                Verdict::NotDeterministic
            } else {
                let hopeless = |(_, predicted)| candidate.seconds > NO_HOPE * predicted;
                let hopeless = best.is_some_and(hopeless);
                match measure.as_mut().map(|measure| measure(&candidate, hopeless)) {
                    Some(Err(error)) => {
                        last_failure = Some(error.to_string());
                        Verdict::Failed(error.to_string())
                    }
                    Some(Ok(Some(seconds))) => {
                        measured = Some(seconds);
                        if best.is_none_or(|(fastest, _)| seconds < fastest) {
                            best = Some((seconds, candidate.seconds));
                        }
                        Verdict::Slower
                    }
                    Some(Ok(None)) | None => Verdict::Slower,
                }
            };
            Weighed { candidate, measured, verdict }
        })
        .collect();
    // A time that is not a number ranks last, and never makes the order inconsistent.
    // So does one without hope among measured ones.
    let number = |seconds: f64| if seconds.is_nan() { f64::INFINITY } else { seconds };
    let seconds = |w: &Weighed| match w.measured {
        Some(seconds) => number(seconds),
        None if timed => f64::INFINITY,
        None => number(w.candidate.seconds),
    };
    weighed.sort_by(|a, b| {
        let predicted = |w: &Weighed| number(w.candidate.seconds);
        seconds(a)
            .total_cmp(&seconds(b))
            .then(predicted(a).total_cmp(&predicted(b)))
            .then(a.candidate.workspace.cmp(&b.candidate.workspace))
    });
    let fits = |w: &&Weighed| w.verdict == Verdict::Slower && (w.measured.is_some() || !timed);
    let Some(fastest) = weighed.iter().find(fits).map(seconds) else {
        return Err(match last_failure {
            Some(last) => Error::NoCandidate { op, last },
            None => Error::WorkspaceCap { op, cap: key.cap.unwrap_or(u64::MAX), smallest },
        });
    };
    let taken = (0..weighed.len())
        .filter(|&i| fits(&&weighed[i]) && seconds(&weighed[i]) <= fastest * CLOSE_ENOUGH)
        .min_by_key(|&i| weighed[i].candidate.workspace)
        .unwrap_or(0);
    weighed[taken].verdict = Verdict::Taken;
    Ok(Plan {
        operation,
        device: device.to_owned(),
        cap: key.cap,
        ranking: key.ranking,
        weighed,
        taken,
    })
}

#[cfg(test)]
mod tests;
