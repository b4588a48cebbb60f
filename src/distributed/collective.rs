//! What ranks do together, and the handle of what is under way.

use crate::error::Result;
use crate::tensor::Tensor;
use std::fmt;

/// How elements of several ranks become one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ReduceOp {
    /// Their sum.
    #[default]
    Sum,
    /// Their mean; of floats only.
    Mean,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        })
    }
}

/// One collective operation, as a rank takes part in it. Operands are written out (not uniform); results
/// have been allocated.
pub(crate) enum Collective {
    /// In place.
    AllReduce { x: Tensor, by: ReduceOp },
    /// In place: everybody gets what the root has.
    Broadcast { x: Tensor, root: usize },
    /// `out` is all ranks' `x`, in the order of the ranks.
    AllGather { x: Tensor, out: Tensor },
    /// `x` is a part for each rank; `out` is this rank's part, reduced.
    ReduceScatter { x: Tensor, out: Tensor, by: ReduceOp },
}

impl Collective {
    /// The tensor that it reads, and the one that it writes.
    pub(crate) fn tensors(&self) -> [&Tensor; 2] {
        match self {
            Collective::AllReduce { x, .. } | Collective::Broadcast { x, .. } => [x, x],
            Collective::AllGather { x, out } | Collective::ReduceScatter { x, out, .. } => [x, out],
        }
    }
}

/// Collectives under way.
pub(crate) trait Ongoing: Send {
    /// Waits until they are done, at most as long as the communicator waits for its peers.
    fn wait(&mut self) -> Result<()>;
}

/// What moves data between ranks. A failure ends it: what is asked afterwards fails too.
pub(crate) trait Transport: Send + Sync {
    fn rank(&self) -> usize;
    fn world_size(&self) -> usize;
    /// What it is, for people.
    fn description(&self) -> String;
    /// Enqueues collectives as one, after what their tensors' device was asked to do so far; what that is
    /// asked from now on runs beside them, unless it uses their tensors.
    fn start(&self, op: &'static str, work: Vec<Collective>) -> Result<Box<dyn Ongoing>>;
    /// Every number becomes its sum over the ranks; apart from what devices compute.
    fn sum(&self, op: &'static str, numbers: &mut [f64]) -> Result<()>;
}

/// A result that ranks are working on, beside what the device computes meanwhile.
///
/// ```
/// use capgrad::{Communicator, Device, ReduceOp, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let alone = Communicator::in_process(1)?.remove(0);
/// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &Device::cpu())?;
/// let sum = alone.all_reduce(&x, ReduceOp::Sum)?;
/// // … other work …
/// assert_eq!(sum.wait()?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(()) }
/// ```
#[must_use = "a collective's errors come out of `wait`"]
pub struct Pending<T> {
    ongoing: Option<Box<dyn Ongoing>>,
    value: Option<T>,
}

impl<T> Pending<T> {
    pub(crate) fn new(ongoing: Box<dyn Ongoing>, value: T) -> Pending<T> {
        Pending { ongoing: Some(ongoing), value: Some(value) }
    }

    /// The result, once it is there.
    ///
    /// # Errors
    /// [`Error::Communication`](crate::Error::Communication) where a peer has died, has failed, or did not
    /// come within the communicator's time-out.
    pub fn wait(mut self) -> Result<T> {
        if let Some(mut ongoing) = self.ongoing.take() {
            ongoing.wait()?;
        }
        Ok(self.value.take().expect("taken here only, with `self`"))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Some(mut ongoing) = self.ongoing.take() {
            // Nobody asked for the result; what it works on must not be given back before it is done.
            let _ = ongoing.wait();
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
