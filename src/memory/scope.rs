//! Scopes: named stretches of a step, nested, each with its own peak.

use super::meter::Meter;
use super::purpose::ByPurpose;
use crate::context;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// A named stretch of a step, from [`Device::scope`](crate::Device::scope) until it is ended or
/// dropped. Scopes nest on the thread that opens them, and see what every thread allocates.
///
/// ```
/// use capgrad::{DType, Device, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::new_cpu(Default::default())?;
/// let scope = device.scope("loading");
/// let data = Tensor::zeros([256], DType::F64, &device)?;
/// assert_eq!(scope.end().peak, 2048);
/// # Ok(()) }
/// ```
#[must_use = "a scope that is dropped at once sees nothing"]
pub struct Scope {
    meter: Meter,
    id: u64,
    open: bool,
}

impl Scope {
    pub(super) fn new(meter: Meter, id: u64) -> Self {
        context::with(|context| context.scopes.push(id));
        Scope { meter, id, open: true }
    }

    /// What the scope has seen until now.
    pub fn so_far(&self) -> ScopeReport {
        self.meter.scope_so_far(self.id).unwrap_or_default()
    }

    /// Ends the scope and says what it has seen.
    pub fn end(mut self) -> ScopeReport {
        self.close().unwrap_or_default()
    }

    fn close(&mut self) -> Option<ScopeReport> {
        self.open = false;
        context::with(|context| context.scopes.retain(|&id| id != self.id));
        self.meter.leave_scope(self.id)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.open {
            self.close();
        }
    }
}

/// What one scope has seen, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ScopeReport {
    /// Names from the outermost scope inwards, joined by `/`.
    pub path: String,
    /// Live bytes when it began.
    pub live_before: u64,
    /// Live bytes when it ended (or now).
    pub live_after: u64,
    /// Most live bytes at one moment within it.
    pub peak: u64,
    /// What was live at that moment.
    pub at_peak: ByPurpose,
}

impl ScopeReport {
    /// What is live at its end beyond what was live when it began.
    pub fn change(&self) -> i64 {
        self.live_after as i64 - self.live_before as i64
    }
}

/// Ended scopes that are kept; older ones are forgotten, so that a long run does not grow.
const KEPT: usize = 4096;

/// The scopes of one meter.
#[derive(Default)]
pub(super) struct ScopeState {
    open: Vec<(u64, ScopeReport)>,
    ended: VecDeque<ScopeReport>,
}

impl ScopeState {
    pub(super) fn enter(&mut self, name: &str, total: u64, live: ByPurpose) -> u64 {
        // One counter for the whole process: a thread's open scopes may be those of several meters,
        // and each must find only its own.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = match self.innermost() {
            Some(parent) => format!("{parent}/{name}"),
            None => name.to_owned(),
        };
        let report =
            ScopeReport { path, live_before: total, live_after: total, peak: total, at_peak: live };
        self.open.push((id, report));
        id
    }

    /// The path of this thread's innermost open scope.
    pub(super) fn innermost(&self) -> Option<&str> {
        context::with(|context| context.scopes.iter().rev().find_map(|&id| self.path(id)))
    }

    pub(super) fn open_paths(&self) -> impl Iterator<Item = &str> {
        self.open.iter().map(|(_, scope)| scope.path.as_str())
    }

    pub(super) fn path(&self, id: u64) -> Option<&str> {
        let (_, scope) = self.open.iter().find(|(open, _)| *open == id)?;
        Some(&scope.path)
    }

    pub(super) fn note(&mut self, total: u64, live: &ByPurpose) {
        for (_, scope) in &mut self.open {
            if total > scope.peak {
                scope.peak = total;
                scope.at_peak = *live;
            }
        }
    }

    pub(super) fn so_far(&self, id: u64, total: u64) -> Option<ScopeReport> {
        let (_, scope) = self.open.iter().find(|(open, _)| *open == id)?;
        Some(ScopeReport { live_after: total, ..scope.clone() })
    }

    pub(super) fn leave(&mut self, id: u64, total: u64) -> Option<ScopeReport> {
        let position = self.open.iter().position(|(open, _)| *open == id)?;
        let (_, mut scope) = self.open.remove(position);
        scope.live_after = total;
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(scope.clone());
        Some(scope)
    }

    pub(super) fn ended(&self) -> Vec<ScopeReport> {
        self.ended.iter().cloned().collect()
    }

    pub(super) fn forget_ended(&mut self) {
        self.ended.clear();
    }
}
