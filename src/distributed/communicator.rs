//! The ranks of a run, and what they do together.

use super::collective::{Collective, Pending, ReduceOp, Transport};
use super::environment::{Rendezvous, TIMEOUT};
use super::in_process::InProcess;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One rank's end of what joins the ranks of a run. A handle: clones are the same end.
///
/// All ranks call the same collectives, with tensors of the same dtype and shape, in the same order.
/// Collectives run beside what the device computes; [`Pending::wait`] gives the result, or the error
/// where a peer died or did not come in time. After such an error the communicator is of no more use;
/// every later call says so.
///
/// Between processes, one for each GPU, NCCL moves the data ([`Communicator::connect`], feature `nccl`).
/// Ranks that are threads of one process ([`Communicator::in_process`]) meet in its memory: slower, on any
/// device, for tests.
///
/// ```
/// use capgrad::{Communicator, Device, ReduceOp, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let ranks = Communicator::in_process(3)?;
/// std::thread::scope(|scope| {
///     for own in &ranks {
///         scope.spawn(move || of_rank(own).unwrap());
///     }
/// });
/// # Ok(()) }
/// fn of_rank(own: &Communicator) -> capgrad::Result<()> {
///     let x = Tensor::from_vec(vec![own.rank() as f64], [1], &Device::cpu())?;
///     let sum = own.all_reduce(&x, ReduceOp::Sum)?.wait()?;
///     assert_eq!(sum.to_vec::<f64>()?, [3.0]);
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Communicator(Arc<dyn Transport>);

impl Communicator {
    /// Joins the processes that meet at `rendezvous`, with the GPU of `device`; NCCL moves the data. What
    /// NCCL takes of the GPU's memory is measured, and counted on the device's meter as *other*.
    ///
    /// # Errors
    /// [`Error::Communication`] where not all come within the time-out, two come as the same rank, the
    /// address leads nowhere, `device` is no GPU, or NCCL is not there or fails;
    /// [`Error::MemoryLimit`] where NCCL's memory is over the device's limit.
    pub fn connect(rendezvous: &Rendezvous, device: &Device) -> Result<Communicator> {
        Ok(Communicator(device.join_ranks(rendezvous)?))
    }

    /// [`Communicator::connect`] with [`Rendezvous::from_env`].
    ///
    /// # Errors
    /// Theirs.
    pub fn from_env(device: &Device) -> Result<Communicator> {
        Communicator::connect(&Rendezvous::from_env()?, device)
    }

    /// Ranks that are threads of this process, one for each of what is returned, with a time-out of 60
    /// seconds. Tensors may be on any device; everything goes by way of the host's memory.
    ///
    /// # Errors
    /// [`Error::Argument`] for none.
    pub fn in_process(ranks: usize) -> Result<Vec<Communicator>> {
        Communicator::in_process_with_timeout(ranks, TIMEOUT)
    }

    /// [`Communicator::in_process`] with another time-out.
    ///
    /// # Errors
    /// [`Error::Argument`] for no ranks.
    pub fn in_process_with_timeout(ranks: usize, timeout: Duration) -> Result<Vec<Communicator>> {
        if ranks == 0 {
            let reason = "somebody must be there";
            return Err(Error::argument("in_process", "ranks", 0, reason));
        }
        let all = InProcess::all(ranks, timeout);
        Ok(all.into_iter().map(|rank| Communicator(Arc::new(rank))).collect())
    }

    /// Which rank this is, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.0.world_size()
    }

    /// What moves the data, for people.
    pub fn description(&self) -> String {
        self.0.description()
    }

    /// A new tensor: `x` of all ranks, element by element.
    ///
    /// # Errors
    /// [`Error::DType`] for the mean of integers, [`Error::MemoryLimit`], [`Error::Communication`].
    pub fn all_reduce(&self, x: &Tensor, by: ReduceOp) -> Result<Pending<Tensor>> {
        let op = "all_reduce";
        check(op, x.dtype(), by)?;
        let out = copy(op, x)?;
        self.start(op, vec![Collective::AllReduce { x: out.clone(), by }], out)
    }

    /// A new tensor: `x` of all ranks one after the other, along a first axis that is `world_size` times as
    /// long (a number becomes a vector).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather(&self, x: &Tensor) -> Result<Pending<Tensor>> {
        let op = "all_gather";
        let shape = match x.dims() {
            [] => Shape::from([self.world_size()]),
            [first, ..] => x.shape().with(0, first.saturating_mul(self.world_size())),
        };
        let x = x.dense()?;
        let out = Tensor::result(op, shape, x.dtype(), x.device())?;
        self.start(op, vec![Collective::AllGather { x, out: out.clone() }], out)
    }

    /// A new tensor: this rank's part, of as many as there are ranks along the first axis of `x`, of the
    /// tensor that [`Communicator::all_reduce`] would give.
    ///
    /// # Errors
    /// [`Error::Shape`] where the first axis cannot be cut evenly; else as [`Communicator::all_reduce`].
    pub fn reduce_scatter(&self, x: &Tensor, by: ReduceOp) -> Result<Pending<Tensor>> {
        let op = "reduce_scatter";
        check(op, x.dtype(), by)?;
        let ranks = self.world_size();
        let Some(rows) = x.dims().first().filter(|&rows| rows.is_multiple_of(ranks)) else {
            let reason = format!("the first axis must be a multiple of the {ranks} ranks");
            return Err(Error::shape(op, &[x.shape()], reason));
        };
        let x = x.dense()?;
        let out = Tensor::result(op, x.shape().with(0, rows / ranks), x.dtype(), x.device())?;
        self.start(op, vec![Collective::ReduceScatter { x, out: out.clone(), by }], out)
    }

    /// A new tensor: `x` of the rank `root`. Others say by `x` which shape and dtype they expect.
    ///
    /// # Errors
    /// [`Error::Argument`] for a root outside the world; else as [`Communicator::all_reduce`].
    pub fn broadcast(&self, x: &Tensor, root: usize) -> Result<Pending<Tensor>> {
        let op = "broadcast";
        if root >= self.world_size() {
            let reason = format!("there are {} ranks, from 0 on", self.world_size());
            return Err(Error::argument(op, "root", root, reason));
        }
        let out = copy(op, x)?;
        self.start(op, vec![Collective::Broadcast { x: out.clone(), root }], out)
    }

    /// Returns when every rank has come here.
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn barrier(&self) -> Result<()> {
        self.0.sum("barrier", &mut [0.0])
    }

    /// Each number summed over the ranks, on the host: counts, losses. It waits for no device.
    ///
    /// ```
    /// let alone = capgrad::Communicator::in_process(1)?.remove(0);
    /// assert_eq!(alone.sum(&[3.0, 0.5])?, [3.0, 0.5]);
    /// # Ok::<(), capgrad::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Communication`].
    pub fn sum(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        let mut numbers = numbers.to_vec();
        self.0.sum("sum", &mut numbers)?;
        Ok(numbers)
    }

    pub(super) fn start<T>(
        &self,
        op: &'static str,
        mut work: Vec<Collective>,
        value: T,
    ) -> Result<Pending<T>> {
        // Nothing to move is nothing to move on every rank.
        work.retain(|collective| collective.tensors().iter().any(|tensor| tensor.bytes() > 0));
        Ok(Pending::new(self.0.start(op, work)?, value))
    }

    /// What this rank has made, if every rank has made its own; with it the sums of `numbers` over the
    /// ranks. A rank that failed gives its error, the others one that names it, and all can go on.
    pub(super) fn agree<T>(
        &self,
        op: &'static str,
        own: Result<T>,
        numbers: &[f64],
    ) -> Result<(T, Vec<f64>)> {
        let (ranks, rank) = (self.world_size(), self.rank());
        let mut all = vec![0.0; ranks];
        all[rank] = f64::from(u8::from(own.is_err()));
        all.extend_from_slice(numbers);
        self.0.sum(op, &mut all)?;
        let own = own?;
        if let Some(other) = all[..ranks].iter().position(|&failed| failed > 0.0) {
            let reason = format!("rank {other} has failed; all ranks can try again");
            return Err(self.failed(op, reason));
        }
        Ok((own, all.split_off(ranks)))
    }

    /// An error of this rank's.
    pub(super) fn failed(&self, op: &'static str, reason: impl Into<String>) -> Error {
        Error::communication(op, self.rank(), self.world_size(), reason)
    }
}

fn check(op: &'static str, dtype: DType, by: ReduceOp) -> Result<()> {
    if by == ReduceOp::Mean && !dtype.is_float() {
        return Err(Error::DType { op, got: dtype, expected: "a float dtype for a mean" });
    }
    Ok(())
}

/// A tensor of the same elements that nobody else holds.
fn copy(op: &'static str, x: &Tensor) -> Result<Tensor> {
    let out = Tensor::result(op, x.shape().clone(), x.dtype(), x.device())?;
    out.copy_from(x)?;
    Ok(out)
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}
