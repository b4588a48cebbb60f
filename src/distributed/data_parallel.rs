//! One model on several ranks, each with a share of the batch: gradients are averaged while the backward
//! pass goes on.

use super::buckets::Round;
use super::collective::Collective;
use super::communicator::Communicator;
use crate::error::{Error, Result};
use crate::tape::{Gradients, Parameter, Var};
use crate::tensor::Tensor;
use std::hash::{DefaultHasher, Hash, Hasher};

const OP: &str = "data parallel";

/// Bytes of gradients that are averaged together, unless told otherwise.
const BUCKET: usize = 25 << 20;

/// The same model on every rank. Each step, a rank computes the loss of its share of the batch, and gets the
/// gradients of the whole batch's mean, to rounding what one process would have computed; the same
/// optimiser step then keeps all ranks' parameters equal.
///
/// Gradients are averaged in place, in buckets of about [`DataParallel::with_bucket_bytes`], in the reverse
/// order of the parameters, while the backward pass computes the next ones. That takes no memory but for
/// one piece of at most 4 MiB, held for a rank that fails: it goes on taking part, so that the step is an
/// error on every rank and can be tried again on all.
///
/// ```
/// use capgrad::{Communicator, DType, DataParallel, Device, Linear, Tape, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let ranks = Communicator::in_process(2)?;
/// std::thread::scope(|scope| {
///     for own in &ranks {
///         scope.spawn(move || of_rank(own).unwrap());
///     }
/// });
/// # Ok(()) }
/// fn of_rank(own: &Communicator) -> capgrad::Result<()> {
///     let device = Device::new_cpu(Default::default())?;
///     let model = Linear::new("linear", 3, 1, true, DType::F32, &device)?;
///     let parallel = DataParallel::new(own, model.parameters())?;
///     let samples = 4 + own.rank(); // uneven shares are weighted
///     let tape = Tape::new();
///     let step = parallel.step(samples, || {
///         let x = Tensor::rand([samples, 3], DType::F32, &device)?;
///         model.forward(&tape.constant(x))?.square()?.mean()
///     })?;
///     assert!(step.gradients.parameter(&model.parameters()[0]).is_some());
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct DataParallel {
    pub(super) communicator: Communicator,
    pub(super) parameters: Vec<Parameter>,
    pub(super) bucket_bytes: usize,
    /// What a rank without gradients of its own takes part with: one for each dtype.
    pub(super) spare: Vec<Tensor>,
}

/// What a step of all ranks gave.
#[derive(Debug)]
#[non_exhaustive]
pub struct ParallelStep {
    /// The mean of the loss over the whole batch.
    pub loss: f64,
    /// Its gradients. Those of variables, and of parameters that are not shared, are this rank's own.
    pub gradients: Gradients,
}

impl DataParallel {
    /// Takes the parameters of this rank's model, which must be the same on all ranks, on one device, and
    /// sets them to those of rank 0.
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`] where the parameters are on several devices;
    /// [`Error::Communication`] where the ranks have different ones, in name, shape or dtype;
    /// [`Error::MemoryLimit`] where the spare piece does not fit.
    pub fn new(
        communicator: &Communicator,
        parameters: impl IntoIterator<Item = Parameter>,
    ) -> Result<DataParallel> {
        let parameters: Vec<Parameter> = parameters.into_iter().collect();
        let mut spare: Vec<Tensor> = Vec::new();
        for parameter in &parameters {
            let x = parameter.tensor();
            if let Some(first) =
                parameters.first().filter(|first| first.tensor().device() != x.device())
            {
                let (left, right) = (first.tensor().device().name(), x.device().name());
                return Err(Error::DeviceMismatch {
                    op: OP,
                    left: left.into(),
                    right: right.into(),
                });
            }
            if spare.iter().all(|piece| piece.dtype() != x.dtype()) {
                let alike =
                    parameters.iter().map(Parameter::tensor).filter(|y| y.dtype() == x.dtype());
                let most = super::buckets::PIECE / x.dtype().size();
                let length = alike.map(Tensor::elements).max().unwrap_or(0).min(most);
                spare.push(Tensor::zeros([length], x.dtype(), x.device())?);
            }
        }
        let own = fingerprint(&parameters);
        let mut all = vec![0.0; communicator.world_size()];
        all[communicator.rank()] = own;
        let all = communicator.sum(&all)?;
        if let Some(other) = all.iter().position(|&other| other != all[0]) {
            let reason = format!(
                "rank {other} has other parameters than rank 0; all need the same names, shapes and dtypes in \
                 the same order"
            );
            return Err(communicator.failed(OP, reason));
        }
        let work = parameters
            .iter()
            .map(|parameter| Collective::Broadcast { x: parameter.tensor().clone(), root: 0 });
        communicator.start(OP, work.collect(), ())?.wait()?;
        parameters.iter().for_each(|parameter| parameter.tensor().note_change());
        let communicator = communicator.clone();
        Ok(DataParallel { communicator, parameters, bucket_bytes: BUCKET, spare })
    }

    /// The same, with buckets of about so many bytes (25 MiB at first; the same on all ranks). Smaller ones
    /// are on their way earlier, larger ones use the link better.
    pub fn with_bucket_bytes(self, bytes: usize) -> DataParallel {
        DataParallel { bucket_bytes: bytes.max(1), ..self }
    }

    /// One step of all ranks: `forward` gives the mean loss over this rank's `samples`, and the gradients of
    /// the mean over all ranks' samples come back. A rank whose share is empty says 0, and `forward` is not
    /// run there.
    ///
    /// # Errors
    /// What `forward` or the backward pass said, on that rank; [`Error::Communication`] on the others, after
    /// which the step can be tried again on all, and where a peer has died or did not come in time, after
    /// which it cannot. [`Error::Argument`] where no rank has samples.
    pub fn step(
        &self,
        samples: usize,
        forward: impl FnOnce() -> Result<Var>,
    ) -> Result<ParallelStep> {
        let total = self.communicator.sum(&[samples as f64])?[0];
        if total == 0.0 {
            return Err(Error::argument(
                OP,
                "samples",
                0,
                "some rank must have a share of the batch",
            ));
        }
        let weight = samples as f64 / total;
        let mut round = Round::new(self);
        let mut loss = None;
        let own = if samples == 0 {
            Ok(Gradients::default())
        } else {
            forward().and_then(|value| {
                loss = Some(value.tensor().clone());
                value.backward_into(weight, &mut |id, gradient| round.arrived(id, gradient))
            })
        };
        let own = own.and_then(|gradients| {
            let loss = loss.map_or(Ok(0.0), |loss| loss.item())?;
            Ok((gradients, loss * weight))
        });
        let (loss, gradients) = round.finish(own)?;
        Ok(ParallelStep { loss, gradients })
    }
}

/// Which parameters they are, as a number that f64 holds.
fn fingerprint(parameters: &[Parameter]) -> f64 {
    let mut hasher = DefaultHasher::new();
    for parameter in parameters {
        let x = parameter.tensor();
        (parameter.name(), x.dims(), x.dtype().name()).hash(&mut hasher);
    }
    (hasher.finish() >> 12) as f64
}
