//! Which part of a training step is under way on a thread.

use crate::context;
use std::fmt;

/// A part of a training step, as reports tell it apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Pass {
    /// Operations as they are called, and tensors that the caller makes.
    Forward,
    /// Within `backward`.
    Backward,
    /// The second run of a checkpointed segment, within `backward`.
    Recompute,
    /// A step of an optimiser.
    Optimiser,
}

impl Pass {
    /// The name that reports print.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::Recompute => "recompute",
            Pass::Optimiser => "optimiser",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The pass that is under way on this thread.
pub(super) fn current_pass() -> Pass {
    context::with(|context| context.pass)
}

/// Sets the current thread's pass until it is dropped.
pub(crate) struct PassGuard(Pass);

impl PassGuard {
    pub(crate) fn new(pass: Pass) -> Self {
        PassGuard(context::with(|context| std::mem::replace(&mut context.pass, pass)))
    }
}

impl Drop for PassGuard {
    fn drop(&mut self) {
        context::with(|context| context.pass = self.0);
    }
}
