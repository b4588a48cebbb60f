//! Checkpoints: a segment's intermediate values are computed again in the backward pass instead of
//! being kept (Chen, Xu, Zhang and Guestrin 2016).

use super::backward::Backward;
use super::no_grad::{NoGrad, Recording, recording};
use super::node::{Rule, Saved, TapeInner};
use super::var::Var;
use crate::error::{Error, Result};
use crate::memory::{Pass, PassGuard, Purpose, PurposeGuard};
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::sync::{Arc, Weak};

/// Runs `segment` on `inputs` and keeps only the inputs; the backward pass runs it again. Random
/// operations draw the same numbers both times, and everything that the segment uses gets its
/// gradient: the inputs, values that it captured, and parameters, also where no input needs one.
///
/// ```
/// use capgrad::{Device, Tape, Tensor, checkpoint};
/// # fn main() -> capgrad::Result<()> {
/// let tape = Tape::new();
/// let x = tape.variable(Tensor::from_vec(vec![0.5f64, -0.5], [2], &Device::cpu())?)?;
/// let y = checkpoint(&[&x], |inputs| inputs[0].exp()?.square())?;
/// let grads = y.sum()?.backward()?;
/// let expected = [2.0 * 1f64.exp(), 2.0 * (-1f64).exp()];
/// for (got, expected) in grads.get(&x).unwrap().to_vec::<f64>()?.iter().zip(expected) {
///     assert!((got - expected).abs() < 1e-12);
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of the segment; in the backward pass [`Error::Shape`] where it gives another shape then.
pub fn checkpoint(
    inputs: &[&Var],
    segment: impl Fn(&[Var]) -> Result<Var> + Send + 'static,
) -> Result<Var> {
    let owner = inputs.iter().find_map(|input| Some((input.tape(), input.tape().upgrade()?)));
    let detached: Vec<Var> = inputs.iter().map(|input| input.detach()).collect();
    let Some((weak, tape)) = owner else {
        // Without a tape there is nothing to keep, and so nothing to run again.
        return segment(&detached);
    };
    let first_draw = tape.draws();
    let output = {
        let _guard = NoGrad::new();
        segment(&detached)?.into_tensor()
    };
    if !recording() {
        return Ok(Var::new(output, None, weak.clone()));
    }
    // Recorded even if no input needs a gradient: the segment may use parameters.
    let rule = Checkpoint {
        segment: Box::new(segment),
        inputs: inputs.iter().map(|input| Saved::new("checkpoint", input.tensor())).collect(),
        tape: Arc::downgrade(&tape),
        first_draw,
        shape: output.shape().clone(),
    };
    let nodes = inputs.iter().map(|input| input.live_node().cloned()).collect();
    let node = tape.record(Box::new(rule), nodes);
    Ok(Var::new(output, Some(node), weak.clone()))
}

type Segment = dyn Fn(&[Var]) -> Result<Var> + Send;

struct Checkpoint {
    segment: Box<Segment>,
    inputs: Vec<Saved>,
    tape: Weak<TapeInner>,
    first_draw: u64,
    /// Of the output, which the second run must give again.
    shape: Shape,
}

impl Rule for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let tape = self.tape.upgrade().ok_or(Error::NotRecorded { op: "checkpoint" })?;
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (i, saved) in self.inputs.iter_mut().enumerate() {
            inputs.push(cx.input(i, saved.take(cx)?, &self.tape));
        }
        let output = {
            let _recording = Recording::new();
            let _purpose = PurposeGuard::new(Purpose::Activation);
            let _pass = PassGuard::new(Pass::Recompute);
            let draws = tape.set_draws(self.first_draw);
            let output = (self.segment)(&inputs);
            tape.set_draws(draws);
            output?
        };
        drop(inputs);
        if output.shape() != &self.shape {
            let reason = "the segment gave another shape when it was run again";
            return Err(Error::shape("checkpoint", &[&self.shape, output.shape()], reason));
        }
        // What was recorded just now has the largest ids of all, so the pass goes through it next
        // and then on to the inputs.
        cx.continue_from(&output, dy)
    }
}
