//! One step's gradients on their way: which bucket each belongs to, when a bucket leaves, and how a rank
//! that has nothing to bring takes part all the same. Every rank starts the same collectives in the same
//! order, whatever happens to it.

use super::collective::{Collective, Pending, ReduceOp};
use super::data_parallel::DataParallel;
use crate::error::{Error, Result};
use crate::tape::{Gradients, Parameter, ParameterId, add_gradients, backward_guards};
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::ops::Range;

const OP: &str = "data parallel";

/// Bytes of a gradient that are averaged by one call.
pub(super) const PIECE: usize = 4 << 20;

/// The gradients of one step.
pub(super) struct Round<'a> {
    of: &'a DataParallel,
    /// Trainable parameters, the last first.
    parameters: Vec<&'a Parameter>,
    places: HashMap<ParameterId, usize>,
    gradients: Vec<Slot>,
    /// Of places, in the order in which they leave.
    buckets: Vec<Range<usize>>,
    /// How many buckets have left.
    left: usize,
    pending: Vec<Pending<()>>,
    /// Why this rank has nothing to bring any more.
    failed: Option<Error>,
}

#[derive(Default)]
struct Slot {
    gradient: Option<Tensor>,
    /// Whether this rank's own pass has given one.
    used: bool,
    /// What came in for it after it had left.
    late: Option<Tensor>,
    gone: bool,
}

impl<'a> Round<'a> {
    pub(super) fn new(of: &'a DataParallel) -> Round<'a> {
        let parameters: Vec<&Parameter> =
            of.parameters.iter().rev().filter(|parameter| parameter.trainable()).collect();
        let places = parameters.iter().enumerate().map(|(at, p)| (p.id(), at)).collect();
        let mut buckets = Vec::new();
        let (mut start, mut bytes) = (0, 0);
        for (at, parameter) in parameters.iter().enumerate() {
            bytes += parameter.tensor().bytes();
            if bytes >= of.bucket_bytes || at + 1 == parameters.len() {
                buckets.push(start..at + 1);
                (start, bytes) = (at + 1, 0);
            }
        }
        let gradients = parameters.iter().map(|_| Slot::default()).collect();
        let (pending, failed) = (Vec::new(), None);
        Round { of, parameters, places, gradients, buckets, left: 0, pending, failed }
    }

    /// Takes a parameter's gradient, and sends the buckets that are full then.
    pub(super) fn arrived(&mut self, id: ParameterId, gradient: Tensor) -> Result<Option<Tensor>> {
        let Some(&place) = self.places.get(&id) else { return Ok(Some(gradient)) };
        let slot = &mut self.gradients[place];
        slot.used = true;
        let held = if slot.gone { &mut slot.late } else { &mut slot.gradient };
        *held = Some(match held.take() {
            Some(sum) => add_gradients(&sum, &gradient)?,
            None => gradient,
        });
        while let Some(bucket) = self.buckets.get(self.left) {
            if self.gradients[bucket.clone()].iter().any(|slot| slot.gradient.is_none()) {
                break;
            }
            self.send(bucket.clone())?;
        }
        Ok(None)
    }

    /// Starts to average a bucket, with zeros for what this rank has not got.
    fn send(&mut self, bucket: Range<usize>) -> Result<()> {
        let mut work = Vec::new();
        for place in bucket {
            let gradient = self.gradients[place].gradient.take();
            let gradient = self.own(place, gradient);
            self.add_pieces(place, gradient.as_ref(), &mut work);
            self.gradients[place].gradient = gradient;
            self.gradients[place].gone = true;
        }
        self.left += 1;
        self.pending.push(self.of.communicator.start(OP, work, ())?);
        Ok(())
    }

    /// A gradient that may be written over: `gradient`, a copy where others hold it, zeros where there is
    /// none. `None` where this rank has failed.
    fn own(&mut self, place: usize, gradient: Option<Tensor>) -> Option<Tensor> {
        if self.failed.is_some() {
            return None;
        }
        let x = self.parameters[place].tensor();
        let _guards = backward_guards();
        let made = match gradient {
            Some(gradient) if gradient.is_unshared() => Ok(gradient),
            Some(gradient) => Tensor::result(OP, x.shape().clone(), x.dtype(), x.device())
                .and_then(|copy| copy.copy_from(&gradient).map(|()| copy)),
            None => Tensor::zeros(x.shape().clone(), x.dtype(), x.device()),
        };
        made.map_err(|error| self.failed = Some(error)).ok()
    }

    /// The calls that average one gradient; the spare piece stands in for what is not there.
    fn add_pieces(&self, place: usize, gradient: Option<&Tensor>, work: &mut Vec<Collective>) {
        let x = self.parameters[place].tensor();
        let spare = self.of.spare.iter().find(|piece| piece.dtype() == x.dtype());
        let flat = gradient.map(|gradient| gradient.flat());
        let most = PIECE / x.dtype().size();
        for start in (0..x.elements()).step_by(most) {
            let length = most.min(x.elements() - start);
            let piece = match (&flat, spare) {
                (Some(flat), _) => flat.rows(start, length),
                (None, Some(spare)) => spare.rows(0, length),
                (None, None) => continue,
            };
            work.push(Collective::AllReduce { x: piece, by: ReduceOp::Sum });
        }
    }

    /// Sends what has not left, waits for everything, and gives the loss and the gradients. `own` is what
    /// this rank's pass gave: its other gradients, and its part of the loss.
    pub(super) fn finish(mut self, own: Result<(Gradients, f64)>) -> Result<(f64, Gradients)> {
        let own = own.map_err(|error| self.failed = Some(error)).unwrap_or_default();
        let (mut gradients, loss) = own;
        while let Some(bucket) = self.buckets.get(self.left).cloned() {
            self.send(bucket)?;
        }
        let flag = |set: bool| f64::from(u8::from(set));
        let used = self.gradients.iter().map(|slot| flag(slot.used));
        let late = self.gradients.iter().map(|slot| flag(slot.late.is_some()));
        let numbers: Vec<f64> = std::iter::once(loss).chain(used).chain(late).collect();
        let numbers = self.agree(&numbers)?;
        let (used, late) = numbers[1..].split_at(self.gradients.len());
        if late.iter().any(|&ranks| ranks > 0.0) {
            self.send_late(late)?;
        }
        let _guards = backward_guards();
        for (place, slot) in self.gradients.iter_mut().enumerate() {
            // A parameter that no rank has used has no gradient, as in one process.
            if let Some(gradient) = slot.gradient.take().filter(|_| used[place] > 0.0) {
                gradients.add_parameter(self.parameters[place].id(), gradient)?;
            }
        }
        Ok((numbers[0], gradients))
    }

    /// Adds up numbers over the ranks, if none of them has failed; in any case, what was under way is over
    /// then, so that the next step begins alike on all.
    fn agree(&mut self, numbers: &[f64]) -> Result<Vec<f64>> {
        let own = self.failed.take().map_or(Ok(()), Err);
        let agreed = self.of.communicator.agree(OP, own, numbers);
        let over = std::mem::take(&mut self.pending).into_iter().try_for_each(Pending::wait);
        let ((), numbers) = agreed?;
        over?;
        Ok(numbers)
    }

    /// Averages what came after its bucket had left, on whichever rank, and adds it.
    fn send_late(&mut self, late: &[f64]) -> Result<()> {
        let mut work = Vec::new();
        let mut sums = Vec::new();
        for place in (0..late.len()).filter(|&place| late[place] > 0.0) {
            let sum = self.gradients[place].late.take();
            let sum = self.own(place, sum);
            self.add_pieces(place, sum.as_ref(), &mut work);
            sums.push((place, sum));
        }
        self.pending.push(self.of.communicator.start(OP, work, ())?);
        self.agree(&[])?;
        let _guards = backward_guards();
        for (place, sum) in sums {
            let slot = &mut self.gradients[place];
            let held = slot.gradient.take();
            slot.gradient = match (held, sum) {
                (Some(held), Some(sum)) => Some(add_gradients(&held, &sum)?),
                (held, sum) => held.or(sum),
            };
        }
        Ok(())
    }
}
