//! Stretches of code in which nothing is recorded.

use crate::context;
use std::marker::PhantomData;

/// While this lives, nothing is recorded on this thread.
///
/// ```
/// use capgrad::{DType, Device, NoGrad, Tape, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let tape = Tape::new();
/// let x = tape.variable(Tensor::ones([2], DType::F32, &Device::cpu())?)?;
/// let guard = NoGrad::new();
/// assert!(!x.square()?.requires_grad());
/// drop(guard);
/// assert!(x.square()?.requires_grad());
/// # Ok(()) }
/// ```
#[must_use = "recording starts again when this is dropped"]
pub struct NoGrad(PhantomData<*const ()>);

impl NoGrad {
    /// Stops recording on this thread.
    #[allow(clippy::new_without_default)] // A guard made by default would surprise.
    pub fn new() -> NoGrad {
        context::with(|context| context.no_grad += 1);
        NoGrad(PhantomData)
    }
}

impl Drop for NoGrad {
    fn drop(&mut self) {
        context::with(|context| context.no_grad -= 1);
    }
}

/// Runs `f` with nothing recorded: what it computes is a constant to every gradient. A product with
/// a constant sparse matrix does not belong in here: it records nothing of the matrix anyway, and
/// inside `no_grad` the gradient of its dense side is cut.
///
/// ```
/// use capgrad::{DType, Device, Tape, Tensor, no_grad};
/// # fn main() -> capgrad::Result<()> {
/// let tape = Tape::new();
/// let x = tape.variable(Tensor::ones([2], DType::F32, &Device::cpu())?)?;
/// let norm = no_grad(|| x.square()?.sum()?.sqrt())?;
/// assert!(!norm.requires_grad());
/// # Ok(()) }
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    let _guard = NoGrad::new();
    f()
}

pub(super) fn recording() -> bool {
    context::with(|context| context.no_grad == 0)
}

/// Records again inside a `no_grad`, until dropped: a checkpoint replays its segment.
pub(super) struct Recording(u32);

impl Recording {
    pub(super) fn new() -> Recording {
        Recording(context::with(|context| std::mem::take(&mut context.no_grad)))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        context::with(|context| context.no_grad = self.0);
    }
}
