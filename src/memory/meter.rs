//! The meter: live and peak bytes by purpose, and the limit that is asked before any allocation.

use super::fault::{Fault, Faults};
use super::purpose::{ByPurpose, Purpose};
use super::recorder::{Recorder, Taker};
use super::report::Report;
use super::scope::{Scope, ScopeReport, ScopeState};
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Counts what one device holds. Cheap to clone; clones count together.
#[derive(Clone)]
pub(crate) struct Meter(Arc<Inner>);

struct Inner {
    device: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    limit: Option<u64>,
    /// Limits of stretches of code, over the device's own: number, bytes.
    limits: Vec<(u64, u64)>,
    live: ByPurpose,
    live_total: u64,
    peak: u64,
    at_peak: ByPurpose,
    peaks: ByPurpose,
    allocations: u64,
    scopes: ScopeState,
    recorder: Option<Box<Recorder>>,
    /// Of reservations and guards.
    numbers: u64,
    faults: Faults,
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The tightest limit in force.
    fn limit(&self) -> Option<u64> {
        self.limits.iter().map(|&(_, bytes)| bytes).chain(self.limit).min()
    }

    fn new_recorder(&self) -> Box<Recorder> {
        Box::new(Recorder::new(self.live, self.scopes.open_paths()))
    }

    fn note_peak(&mut self, purpose: Purpose) {
        let live = self.live[purpose];
        let highest = &mut self.peaks[purpose];
        *highest = (*highest).max(live);
        if self.live_total > self.peak {
            self.peak = self.live_total;
            self.at_peak = self.live;
        }
        self.scopes.note(self.live_total, &self.live);
    }
}

impl Meter {
    pub(crate) fn new(device: String) -> Self {
        Meter(Arc::new(Inner { device, state: Mutex::default() }))
    }

    /// Counts `bytes` for `purpose`, or refuses where that would go over the limit.
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        purpose: Purpose,
        taker: Taker<'_>,
    ) -> Result<Reservation> {
        let mut state = self.0.state.lock();
        if bytes > 0 {
            state.faults.allocation(&self.0.device, taker.op)?;
        }
        let total = state.live_total.checked_add(bytes);
        let limit = state.limit().unwrap_or(u64::MAX);
        let Some(total) = total.filter(|&total| total <= limit || bytes == 0) else {
            return Err(Error::MemoryLimit {
                device: self.0.device.clone(),
                op: taker.op,
                purpose,
                requested: bytes,
                live: state.live_total,
                alive: Box::new(state.live),
                limit,
            });
        };
        state.live_total = total;
        state.live[purpose] += bytes;
        state.allocations += 1;
        state.note_peak(purpose);
        let number = state.next_number();
        let state = &mut *state;
        if let Some(recorder) = &mut state.recorder {
            recorder.taken(number, bytes, purpose, taker, state.scopes.innermost());
        }
        Ok(Reservation {
            meter: self.clone(),
            bytes,
            number,
            purpose: AtomicU8::new(purpose as u8),
        })
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.0.state.lock().limit = limit;
    }

    /// The tightest limit in force.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.0.state.lock().limit()
    }

    /// A limit over the others until it is taken back by its number.
    pub(super) fn push_limit(&self, bytes: u64) -> u64 {
        let mut state = self.0.state.lock();
        let number = state.next_number();
        state.limits.push((number, bytes));
        number
    }

    pub(super) fn take_back_limit(&self, number: u64) {
        self.0.state.lock().limits.retain(|&(own, _)| own != number);
    }

    /// What may still be taken under the limit.
    pub(crate) fn left(&self) -> Option<u64> {
        let state = self.0.state.lock();
        state.limit().map(|limit| limit.saturating_sub(state.live_total))
    }

    pub(crate) fn live(&self) -> u64 {
        self.0.state.lock().live_total
    }

    /// Peaks start again from what is live now; ended scopes and what was recorded are forgotten.
    pub(crate) fn reset_peak(&self) {
        let mut state = self.0.state.lock();
        state.peak = state.live_total;
        state.at_peak = state.live;
        state.peaks = state.live;
        state.allocations = 0;
        state.scopes.forget_ended();
        let recording = state.recorder.as_ref().is_some_and(|recorder| recorder.open);
        state.recorder = recording.then(|| state.new_recorder());
    }

    /// Begins a recording, or ends the one that is under way; what it has seen is kept.
    pub(crate) fn set_recording(&self, on: bool) {
        let mut state = self.0.state.lock();
        let open = state.recorder.as_ref().is_some_and(|recorder| recorder.open);
        if on && !open {
            state.recorder = Some(state.new_recorder());
        } else if let (false, Some(recorder)) = (on, &mut state.recorder) {
            recorder.open = false;
        }
    }

    pub(crate) fn inject(&self, fault: Option<Fault>) {
        self.0.state.lock().faults = Faults::of(fault);
    }

    /// Counts a candidate that is about to run.
    pub(crate) fn candidate_runs(&self, op: &'static str) -> Result<()> {
        self.0.state.lock().faults.candidate(&self.0.device, op)
    }

    pub(crate) fn enter_scope(&self, name: &str) -> Scope {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let id = state.scopes.enter(name, state.live_total, state.live);
        if let (Some(recorder), Some(path)) = (&mut state.recorder, state.scopes.path(id)) {
            recorder.scope_began(path);
        }
        Scope::new(self.clone(), id)
    }

    pub(crate) fn leave_scope(&self, id: u64) -> Option<ScopeReport> {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let report = state.scopes.leave(id, state.live_total);
        if let (Some(recorder), Some(report)) = (&mut state.recorder, &report) {
            recorder.scope_ended(&report.path);
        }
        report
    }

    pub(crate) fn scope_so_far(&self, id: u64) -> Option<ScopeReport> {
        let state = self.0.state.lock();
        state.scopes.so_far(id, state.live_total)
    }

    /// What the meter has seen; `cap` is printed beside it.
    pub(crate) fn report(&self, cap: Option<u64>) -> Report {
        let state = self.0.state.lock();
        let recorded = state.recorder.as_ref().map(|recorder| {
            let mut recorded = recorder.recorded();
            recorded.timeline.device.clone_from(&self.0.device);
            (recorded.timeline.workspace_cap, recorded.timeline.limit) = (cap, state.limit());
            recorded
        });
        Report {
            device: self.0.device.clone(),
            dry: false,
            bounds: Vec::new(),
            workspace_cap: cap,
            limit: state.limit(),
            live: state.live,
            peak: state.peak,
            at_peak: state.at_peak,
            peaks: state.peaks,
            allocations: state.allocations,
            driver: None,
            scopes: state.scopes.ended(),
            recorded,
        }
    }

    fn move_purpose(&self, number: u64, bytes: u64, from: Purpose, to: Purpose) {
        let mut state = self.0.state.lock();
        state.live[from] -= bytes;
        state.live[to] += bytes;
        // The total has not changed, so neither has its peak; only the purpose's own may have.
        let live = state.live[to];
        let highest = &mut state.peaks[to];
        *highest = (*highest).max(live);
        if let Some(recorder) = &mut state.recorder {
            recorder.moved(number, bytes, from, to);
        }
    }
}

/// Bytes counted by a meter until this is dropped.
pub(crate) struct Reservation {
    meter: Meter,
    bytes: u64,
    number: u64,
    purpose: AtomicU8,
}

impl Reservation {
    fn purpose(&self) -> Purpose {
        Purpose::ALL[self.purpose.load(Ordering::Relaxed) as usize]
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts the same bytes for another purpose from now on.
    pub(crate) fn set_purpose(&self, purpose: Purpose) {
        let before = self.purpose.swap(purpose as u8, Ordering::Relaxed);
        let before = Purpose::ALL[before as usize];
        if before != purpose {
            self.meter.move_purpose(self.number, self.bytes, before, purpose);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let purpose = self.purpose();
        let mut state = self.meter.0.state.lock();
        state.live_total -= self.bytes;
        state.live[purpose] -= self.bytes;
        if let Some(recorder) = &mut state.recorder {
            recorder.freed(self.number, self.bytes, purpose);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_remembers_what_was_live_at_its_moment() {
        let meter = Meter::new("cpu".into());
        let a = meter.reserve(100, Purpose::Activation, Taker::of("test")).unwrap();
        let w = meter.reserve(50, Purpose::Workspace, Taker::of("test")).unwrap();
        drop(w);
        let g = meter.reserve(20, Purpose::Gradient, Taker::of("test")).unwrap();
        let report = meter.report(None);
        assert_eq!((report.peak, report.live.total()), (150, 120));
        assert_eq!(report.at_peak[Purpose::Workspace], 50);
        assert_eq!(report.at_peak[Purpose::Gradient], 0);
        drop((a, g));
        assert_eq!(meter.live(), 0);
    }

    #[test]
    fn a_refused_request_changes_nothing() {
        let meter = Meter::new("cpu".into());
        meter.set_limit(Some(100));
        let _a = meter.reserve(60, Purpose::Other, Taker::of("test")).unwrap();
        let before = meter.report(None).live;
        let error =
            meter.reserve(41, Purpose::Gradient, Taker::of("test")).map(|_| ()).unwrap_err();
        assert!(matches!(
            error,
            Error::MemoryLimit {
                requested: 41,
                live: 60,
                limit: 100,
                purpose: Purpose::Gradient,
                ..
            }
        ));
        assert_eq!(meter.report(None).live, before);
        assert!(meter.reserve(40, Purpose::Gradient, Taker::of("test")).is_ok());
    }

    #[test]
    fn a_scope_sees_its_own_peak_and_its_parents_path() {
        let meter = Meter::new("cpu".into());
        let _before = meter.reserve(10, Purpose::Other, Taker::of("test")).unwrap();
        let outer = meter.enter_scope("step");
        let inner = meter.enter_scope("forward");
        let x = meter.reserve(100, Purpose::Activation, Taker::of("test")).unwrap();
        drop(x);
        let inner = inner.end();
        let y = meter.reserve(5, Purpose::Activation, Taker::of("test")).unwrap();
        let outer = outer.end();
        assert_eq!((inner.path.as_str(), inner.peak, inner.live_after), ("step/forward", 110, 10));
        assert_eq!((outer.path.as_str(), outer.peak, outer.live_after), ("step", 110, 15));
        drop(y);
    }

    #[test]
    fn retagging_moves_live_bytes_between_purposes() {
        let meter = Meter::new("cpu".into());
        let a = meter.reserve(8, Purpose::Other, Taker::of("test")).unwrap();
        a.set_purpose(Purpose::Parameter);
        let live = meter.report(None).live;
        assert_eq!((live[Purpose::Other], live[Purpose::Parameter]), (0, 8));
        drop(a);
        assert_eq!(meter.report(None).live.total(), 0);
    }
}
