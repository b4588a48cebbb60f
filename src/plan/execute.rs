//! From a question to a result: plan, take the workspace, run; plan again with what the memory
//! limit leaves where the workspace fits the cap but not the limit.

use super::candidate::Candidate;
use super::measured::lookup;
use super::planner::{Plan, PlanKey, Stopwatch, weigh};
use crate::device::{Device, Query, Ranking, Terms};
use crate::error::{Error, Result};
use crate::memory::{Planned, Purpose, Taker};
use crate::tensor::{Storage, Tensor};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

/// A run of this many seconds is timed well enough by one.
const LONG_ENOUGH: f64 = 1e-3;
/// Loading kernels takes no more seconds than this.
const LONGEST_LOADING: f64 = 3.0;
/// A first run this many times slower than the best candidate's decides.
const HOPELESS: f64 = 5.0;

/// One call of an operation that is planned.
pub(crate) struct PlannedCall<'a> {
    /// The operation's name, for errors.
    pub(crate) op: &'static str,
    /// What is to be done.
    pub(crate) query: Query,
    /// A cap for this call alone.
    pub(crate) cap: Option<u64>,
    /// As [`Query`] says.
    pub(crate) operands: &'a [&'a Tensor],
    /// Where the result goes.
    pub(crate) out: &'a Tensor,
}

impl PlannedCall<'_> {
    /// Plans and runs.
    pub(crate) fn run(&self) -> Result<()> {
        let device = self.out.device();
        if self.out.elements() == 0 {
            return Ok(());
        }
        let cap = self.cap.or(device.workspace_cap());
        if !device.must_plan(cap) {
            return Ok(());
        }
        let (plan, workspace) = match self.plan_and_reserve(cap) {
            Err(error @ Error::MemoryLimit { .. }) => {
                let left = device.meter().left().unwrap_or(u64::MAX);
                if cap.is_some_and(|cap| cap <= left) {
                    return Err(error);
                }
                self.plan_and_reserve(Some(left))?
            }
            other => other?,
        };
        device.meter().candidate_runs(self.op)?;
        self.run_candidate(plan.taken(), workspace.as_ref())
    }

    fn plan_and_reserve(&self, cap: Option<u64>) -> Result<(Arc<Plan>, Option<Storage>)> {
        let device = self.out.device();
        let mut best = f64::INFINITY;
        let mut measure = |candidate: &Candidate, hopeless: bool| {
            if hopeless {
                return Ok(None);
            }
            let seconds = self.time(candidate, best)?;
            best = best.min(seconds);
            Ok(Some(seconds))
        };
        // Timing runs a candidate again and again, which must not be added to a result every time.
        let adds = matches!(self.query, Query::Sparse(spec, _) if spec.accumulate);
        let untimed = adds || device.is_dry();
        let measure: Option<Stopwatch<'_>> = if untimed { None } else { Some(&mut measure) };
        let plan = plan(device, self.op, self.query, cap, measure)?;
        let workspace = take_workspace(device, self.op, &self.query, plan.taken())?;
        Ok((plan, workspace))
    }

    fn run_candidate(&self, candidate: &Candidate, workspace: Option<&Storage>) -> Result<()> {
        let backend = self.out.device().backend();
        backend.run(&self.query, candidate, self.operands, self.out, workspace)
    }

    /// Seconds of one run: of those after the first, which also pays for cold caches and for
    /// kernels that are loaded (or compiled by the driver) when they are first used. A candidate
    /// whose first run took far longer than `best` and than any loading is not run again.
    fn time(&self, candidate: &Candidate, best: f64) -> Result<f64> {
        let device = self.out.device();
        let workspace = take_workspace(device, self.op, &self.query, candidate)?;
        device.meter().candidate_runs(self.op)?;
        let run = |times: u32| {
            let start = Instant::now();
            for _ in 0..times {
                self.run_candidate(candidate, workspace.as_ref())?;
            }
            device.synchronize()?;
            Ok(start.elapsed().as_secs_f64() / f64::from(times))
        };
        device.synchronize()?;
        let first = run(1)?;
        if first > HOPELESS * best && first > LONGEST_LOADING {
            return Ok(first);
        }
        let once = run(1)?;
        if once > LONG_ENOUGH || once > HOPELESS * best {
            return Ok(once);
        }
        // The clock and the wait for the device are part of a single short run's time.
        run((LONG_ENOUGH / once.max(1e-6)).ceil().min(50.0) as u32)
    }
}

/// The plan that a call would run under now, without running it: a measured one where there is
/// one, else by predicted times.
pub(crate) fn preview(
    device: &Device,
    op: &'static str,
    query: Query,
    cap: Option<u64>,
) -> Result<Arc<Plan>> {
    plan(device, op, query, cap.or(device.workspace_cap()), None)
}

fn plan(
    device: &Device,
    op: &'static str,
    query: Query,
    cap: Option<u64>,
    measure: Option<Stopwatch<'_>>,
) -> Result<Arc<Plan>> {
    let (ranking, deterministic) = (device.ranking(), device.deterministic());
    let key = PlanKey { query, cap, ranking, deterministic, allow_tf32: device.allow_tf32() };
    if let Some(plan) = device.planner().cached(&key) {
        return Ok(plan);
    }
    let terms = Terms { cap: cap.unwrap_or(u64::MAX), allow_tf32: key.allow_tf32 };
    let candidates = device.candidates(&query, terms);
    if candidates.is_empty() {
        let last = format!("{} has none; move the operands to a CPU device", device.name());
        return Err(Error::NoCandidate { op, last });
    }
    let known = device.planner().known(&key).filter(|_| key.ranking == Ranking::Measured);
    // A candidate that was not timed for want of memory may be timed when there is more, so such a
    // plan is not kept; nor is a preview, which times nothing.
    let mut keep = true;
    let found = |candidate: &Candidate| {
        let outcome = known.as_ref().and_then(|known| lookup(known, candidate));
        let failed = |why: &String| {
            let prefix = format!("{op}: ");
            Error::custom(op, why.strip_prefix(&prefix).unwrap_or(why))
        };
        outcome.map(|outcome| outcome.as_ref().map(|&seconds| Some(seconds)).map_err(failed))
    };
    let mut timed = measure.filter(|_| key.ranking == Ranking::Measured).map(|measure| {
        |candidate: &Candidate, hopeless: bool| {
            found(candidate).unwrap_or_else(|| measure(candidate, hopeless)).inspect_err(|error| {
                keep &= !matches!(error, Error::MemoryLimit { .. } | Error::OutOfMemory { .. });
            })
        }
    });
    if candidates.iter().any(|candidate| candidate.name == Candidate::UNKNOWN) {
        device.note_bound(match cap {
            Some(_) => {
                "operations not in the profile are taken to need the whole cap; run this size there"
            }
            None => "without a cap, operations not in the profile are taken to need no workspace",
        });
    }
    let previewed = key.ranking == Ranking::Measured && timed.is_none();
    if previewed && known.is_some() {
        // Nothing may run now, and perhaps nothing has to.
        let mut missed = false;
        let mut found = |candidate: &Candidate, hopeless: bool| {
            found(candidate).unwrap_or_else(|| {
                missed |= !hopeless;
                Ok(None)
            })
        };
        let (name, operation) = (device.name(), query.to_string());
        let plan = weigh(op, &key, name, operation, candidates.clone(), Some(&mut found));
        if !missed {
            return Ok(device.planner().keep(key, plan?));
        }
    }
    if previewed && device.is_dry() {
        device.note_bound("plans that are to be measured were predicted: they may differ");
    }
    let measure = timed.as_mut().map(|timed| timed as Stopwatch<'_>);
    let plan = weigh(op, &key, device.name(), query.to_string(), candidates, measure)?;
    if keep && !previewed { Ok(device.planner().keep(key, plan)) } else { Ok(Arc::new(plan)) }
}

fn take_workspace(
    device: &Device,
    op: &'static str,
    query: &Query,
    candidate: &Candidate,
) -> Result<Option<Storage>> {
    if candidate.workspace == 0 {
        return Ok(None);
    }
    // A library may report more than there is memory in the world; nothing is asked for then.
    let bytes = usize::try_from(candidate.workspace)
        .ok()
        .filter(|&bytes| bytes <= isize::MAX as usize - 64)
        .ok_or_else(|| Error::OutOfMemory {
            device: device.name().into(),
            requested: candidate.workspace,
        })?;
    let key = || {
        let mut hasher = DefaultHasher::new();
        // What the text is made of: those of a profile have no codes.
        (query, &candidate.name, &candidate.split).hash(&mut hasher);
        hasher.finish()
    };
    let text = || (query.to_string(), candidate.to_string());
    let taker = Taker { op, plan: Some(Planned { key: &key, text: &text }) };
    device.allocate(bytes, Purpose::Workspace, taker).map(Some)
}
