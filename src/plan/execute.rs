//! From a question to a result: plan, take the workspace, run; plan again with what the memory
//! limit leaves where the workspace fits the cap but not the limit.

use super::candidate::Candidate;
use super::planner::{Plan, PlanKey, Stopwatch, weigh};
use crate::device::{Device, Query, Ranking};
use crate::error::{Error, Result};
use crate::memory::Purpose;
use crate::tensor::{Storage, Tensor};
use std::sync::Arc;
use std::time::Instant;

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
        self.run_candidate(plan.taken(), workspace.as_ref())
    }

    fn plan_and_reserve(&self, cap: Option<u64>) -> Result<(Arc<Plan>, Option<Storage>)> {
        let device = self.out.device();
        let mut measure = |candidate: &Candidate| self.time(candidate);
        let plan = plan(device, self.op, self.query, cap, Some(&mut measure))?;
        let workspace = take_workspace(device, plan.taken())?;
        Ok((plan, workspace))
    }

    fn run_candidate(&self, candidate: &Candidate, workspace: Option<&Storage>) -> Result<()> {
        let backend = self.out.device().backend();
        backend.run(&self.query, candidate, self.operands, self.out, workspace)
    }

    /// Seconds of one run: the second, since the first also pays for cold caches.
    fn time(&self, candidate: &Candidate) -> Result<f64> {
        let device = self.out.device();
        let workspace = take_workspace(device, candidate)?;
        self.run_candidate(candidate, workspace.as_ref())?;
        device.synchronize()?;
        let start = Instant::now();
        self.run_candidate(candidate, workspace.as_ref())?;
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
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
    let key =
        PlanKey { query, cap, ranking: device.ranking(), deterministic: device.deterministic() };
    if let Some(plan) = device.planner().cached(&key) {
        return Ok(plan);
    }
    let candidates = device.backend().candidates(&query, cap.unwrap_or(u64::MAX));
    // A candidate that was not timed for want of memory may be timed when there is more, so such a
    // plan is not kept; nor is a preview, which times nothing.
    let mut keep = true;
    let mut timed = measure.filter(|_| key.ranking == Ranking::Measured).map(|measure| {
        |candidate: &Candidate| {
            measure(candidate).inspect_err(|error| {
                keep &= !matches!(error, Error::MemoryLimit { .. } | Error::OutOfMemory { .. });
            })
        }
    });
    let previewed = key.ranking == Ranking::Measured && timed.is_none();
    let measure = timed.as_mut().map(|timed| timed as Stopwatch<'_>);
    let plan = weigh(op, &key, device.name(), query.to_string(), candidates, measure)?;
    if keep && !previewed { Ok(device.planner().keep(key, plan)) } else { Ok(Arc::new(plan)) }
}

fn take_workspace(device: &Device, candidate: &Candidate) -> Result<Option<Storage>> {
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
    device.allocate(bytes, Purpose::Workspace).map(Some)
}
