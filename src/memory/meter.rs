//! The meter: live and peak bytes by purpose, and the limit that is asked before any allocation.

use super::purpose::{ByPurpose, Purpose};
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
    live: ByPurpose,
    live_total: u64,
    peak: u64,
    at_peak: ByPurpose,
    peaks: ByPurpose,
    allocations: u64,
    scopes: ScopeState,
}

impl State {
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
    pub(crate) fn reserve(&self, bytes: u64, purpose: Purpose) -> Result<Reservation> {
        let mut state = self.0.state.lock();
        let total = state.live_total.saturating_add(bytes);
        if let Some(limit) = state.limit.filter(|&limit| total > limit && bytes > 0) {
            return Err(Error::MemoryLimit {
                device: self.0.device.clone(),
                purpose,
                requested: bytes,
                live: state.live_total,
                limit,
            });
        }
        state.live_total = total;
        state.live[purpose] += bytes;
        state.allocations += 1;
        state.note_peak(purpose);
        drop(state);
        Ok(Reservation { meter: self.clone(), bytes, purpose: AtomicU8::new(purpose as u8) })
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.0.state.lock().limit = limit;
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.0.state.lock().limit
    }

    /// What may still be taken under the limit.
    pub(crate) fn left(&self) -> Option<u64> {
        let state = self.0.state.lock();
        state.limit.map(|limit| limit.saturating_sub(state.live_total))
    }

    pub(crate) fn live(&self) -> u64 {
        self.0.state.lock().live_total
    }

    /// Peaks start again from what is live now; ended scopes are forgotten.
    pub(crate) fn reset_peak(&self) {
        let mut state = self.0.state.lock();
        state.peak = state.live_total;
        state.at_peak = state.live;
        state.peaks = state.live;
        state.allocations = 0;
        state.scopes.forget_ended();
    }

    pub(crate) fn enter_scope(&self, name: &str) -> Scope {
        let mut state = self.0.state.lock();
        let (total, live) = (state.live_total, state.live);
        let id = state.scopes.enter(name, total, live);
        Scope::new(self.clone(), id)
    }

    pub(crate) fn leave_scope(&self, id: u64) -> Option<ScopeReport> {
        let mut state = self.0.state.lock();
        let total = state.live_total;
        state.scopes.leave(id, total)
    }

    pub(crate) fn scope_so_far(&self, id: u64) -> Option<ScopeReport> {
        let state = self.0.state.lock();
        state.scopes.so_far(id, state.live_total)
    }

    /// What the meter has seen; `cap` is printed beside it.
    pub(crate) fn report(&self, cap: Option<u64>) -> Report {
        let state = self.0.state.lock();
        Report {
            device: self.0.device.clone(),
            workspace_cap: cap,
            limit: state.limit,
            live: state.live,
            peak: state.peak,
            at_peak: state.at_peak,
            peaks: state.peaks,
            allocations: state.allocations,
            driver: None,
            scopes: state.scopes.ended(),
        }
    }

    fn move_purpose(&self, bytes: u64, from: Purpose, to: Purpose) {
        let mut state = self.0.state.lock();
        state.live[from] -= bytes;
        state.live[to] += bytes;
        // The total has not changed, so neither has its peak; only the purpose's own may have.
        let live = state.live[to];
        let highest = &mut state.peaks[to];
        *highest = (*highest).max(live);
    }
}

/// Bytes counted by a meter until this is dropped.
pub(crate) struct Reservation {
    meter: Meter,
    bytes: u64,
    purpose: AtomicU8,
}

impl Reservation {
    fn purpose(&self) -> Purpose {
        Purpose::ALL[self.purpose.load(Ordering::Relaxed) as usize]
    }

    /// Counts the same bytes for another purpose from now on.
    pub(crate) fn set_purpose(&self, purpose: Purpose) {
        let before = self.purpose.swap(purpose as u8, Ordering::Relaxed);
        let before = Purpose::ALL[before as usize];
        if before != purpose {
            self.meter.move_purpose(self.bytes, before, purpose);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let purpose = self.purpose();
        let mut state = self.meter.0.state.lock();
        state.live_total -= self.bytes;
        state.live[purpose] -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_remembers_what_was_live_at_its_moment() {
        let meter = Meter::new("cpu".into());
        let a = meter.reserve(100, Purpose::Activation).unwrap();
        let w = meter.reserve(50, Purpose::Workspace).unwrap();
        drop(w);
        let g = meter.reserve(20, Purpose::Gradient).unwrap();
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
        let _a = meter.reserve(60, Purpose::Other).unwrap();
        let before = meter.report(None).live;
        let error = meter.reserve(41, Purpose::Gradient).map(|_| ()).unwrap_err();
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
        assert!(meter.reserve(40, Purpose::Gradient).is_ok());
    }

    #[test]
    fn a_scope_sees_its_own_peak_and_its_parents_path() {
        let meter = Meter::new("cpu".into());
        let _before = meter.reserve(10, Purpose::Other).unwrap();
        let outer = meter.enter_scope("step");
        let inner = meter.enter_scope("forward");
        let x = meter.reserve(100, Purpose::Activation).unwrap();
        drop(x);
        let inner = inner.end();
        let y = meter.reserve(5, Purpose::Activation).unwrap();
        let outer = outer.end();
        assert_eq!((inner.path.as_str(), inner.peak, inner.live_after), ("step/forward", 110, 10));
        assert_eq!((outer.path.as_str(), outer.peak, outer.live_after), ("step", 110, 15));
        drop(y);
    }

    #[test]
    fn retagging_moves_live_bytes_between_purposes() {
        let meter = Meter::new("cpu".into());
        let a = meter.reserve(8, Purpose::Other).unwrap();
        a.set_purpose(Purpose::Parameter);
        let live = meter.report(None).live;
        assert_eq!((live[Purpose::Other], live[Purpose::Parameter]), (0, 8));
        drop(a);
        assert_eq!(meter.report(None).live.total(), 0);
    }
}
