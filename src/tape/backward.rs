//! The backward pass: takes the tape's nodes from the last to the first, and hands each gradient on
//! as soon as it is there.

use super::gradients::Gradients;
use super::node::{Node, Origin, TapeInner};
use super::parameter::ParameterId;
use super::var::Var;
use crate::device::spec::Binary;
use crate::error::{Error, Result};
use crate::memory::{Pass, PassGuard, Purpose, PurposeGuard};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// What is allocated during a backward pass is a gradient, unless a rule says otherwise.
pub(crate) fn guards() -> (PurposeGuard, PassGuard) {
    (PurposeGuard::new(Purpose::Gradient), PassGuard::new(Pass::Backward))
}

/// A backward pass under way, as a gradient rule sees it.
pub(crate) struct Backward<'a> {
    pending: &'a mut Pending,
    inputs: SmallVec<[Option<Arc<Node>>; 2]>,
    retain: bool,
}

/// Nodes with gradients that have come in, by id: the last one is the next to be taken, since every
/// node that could still add to it has a larger id.
type Pending = BTreeMap<u64, (Arc<Node>, Tensor)>;

impl Backward<'_> {
    /// Whether input `i` needs a gradient.
    pub(crate) fn needs(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(Option::is_some)
    }

    /// Whether the graph is to be used again, so that the rule must keep what it saved.
    pub(crate) fn retained(&self) -> bool {
        self.retain
    }

    /// Hands on the gradient of input `i`; dropped where it is not needed.
    pub(crate) fn give(&mut self, i: usize, gradient: Tensor) -> Result<()> {
        match self.inputs.get(i).and_then(Option::clone) {
            Some(node) => add_pending(self.pending, node, gradient),
            None => Ok(()),
        }
    }

    /// Takes out what has come in so far of input `i`'s gradient, for a rule that adds its own share
    /// to it in place and gives back the sum: no memory for the share alone. `None` where nothing
    /// has come in, where somebody else holds it, and where it is not `like` in dtype and device.
    ///
    /// A rule that fails afterwards fails the whole pass, which drops what has come in; so nobody
    /// sees a gradient that is half added to.
    pub(crate) fn take_sum(&mut self, i: usize, shape: &[usize], like: &Tensor) -> Option<Tensor> {
        let id = self.inputs.get(i)?.as_ref()?.id;
        let (_, sum) = self.pending.get(&id)?;
        // A sum that a gradient that is kept, another node or a caller holds too is shared.
        let fits = sum.is_unshared()
            && !sum.is_uniform()
            && sum.dims() == shape
            && sum.dtype() == like.dtype()
            && sum.device() == like.device();
        if fits { self.pending.remove(&id).map(|(_, sum)| sum) } else { None }
    }

    /// Goes on from a value that has been recorded during this pass.
    pub(super) fn continue_from(&mut self, value: &Var, gradient: Tensor) -> Result<()> {
        match value.live_node() {
            Some(node) => add_pending(self.pending, node.clone(), gradient),
            None => Ok(()),
        }
    }

    /// Input `i` as a value: `tensor` with the input's own place on its tape.
    pub(super) fn input(&self, i: usize, tensor: Tensor, tape: &Weak<TapeInner>) -> Var {
        Var::new(tensor, self.inputs.get(i).and_then(Option::clone), tape.clone())
    }
}

fn add_pending(pending: &mut Pending, node: Arc<Node>, gradient: Tensor) -> Result<()> {
    let gradient = match pending.remove(&node.id) {
        None => gradient,
        Some((_, sum)) => add(&sum, &gradient)?,
    };
    pending.insert(node.id, (node, gradient));
    Ok(())
}

/// The sum of two gradients, in place where one of them is nobody else's.
pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let device = a.device().clone();
    if a.is_uniform() && b.is_uniform() {
        let (x, y) = (a.stored(), b.stored());
        let out = Tensor::result("add", x.shape(), x.dtype(), &device)?;
        device.backend().binary(Binary::Add, &x, &y, &out)?;
        return Ok(Tensor::uniform(&out, a.shape().clone()));
    }
    for (target, other) in [(a, b), (b, a)] {
        if target.is_unshared() && !target.is_uniform() {
            device.backend().accumulate(target, other)?;
            return Ok(target.clone());
        }
    }
    let out = Tensor::result("add", a.shape(), a.dtype(), &device)?;
    device.backend().binary(Binary::Add, a, b, &out)?;
    Ok(out)
}

/// Somebody who takes parameters' gradients as they come in, or gives them back. A parameter whose uses are
/// recorded apart (in several checkpoints) may come more than once; its gradient is the sum.
pub(crate) type Arrivals<'a> = dyn FnMut(ParameterId, Tensor) -> Result<Option<Tensor>> + 'a;

pub(super) fn run(
    root: Arc<Node>,
    gradient: Tensor,
    retain: bool,
    mut arrivals: Option<&mut Arrivals<'_>>,
) -> Result<Gradients> {
    let mut gradients = Gradients::default();
    let mut pending = Pending::new();
    pending.insert(root.id, (root, gradient));
    while let Some((id, (node, dy))) = pending.pop_last() {
        if node.keep_gradient.load(Ordering::Relaxed) {
            gradients.insert(id, dy.dense()?);
        }
        let mut origin = node.origin.lock();
        match &mut *origin {
            // Callers may compute with what they get, so it is written out.
            Origin::Leaf => gradients.insert(id, dy.dense()?),
            Origin::Parameter(parameter) => {
                let gradient = dy.dense()?;
                // Nobody else's now, unless another node has it.
                drop(dy);
                let left = match &mut arrivals {
                    Some(arrivals) => arrivals(*parameter, gradient)?,
                    None => Some(gradient),
                };
                if let Some(gradient) = left {
                    gradients.add_parameter(*parameter, gradient)?;
                }
            }
            Origin::Taken(op) => return Err(Error::GraphTaken { op }),
            Origin::Recorded { rule, inputs } if retain => {
                let inputs = inputs.clone();
                rule.backward(dy, &mut Backward { pending: &mut pending, inputs, retain })?;
            }
            Origin::Recorded { .. } => {
                drop(origin);
                let Origin::Recorded { mut rule, inputs } = node.take() else {
                    return Err(Error::GraphTaken { op: "another thread's backward" });
                };
                // Nobody needs this node any more, unless a caller holds its value.
                drop(node);
                rule.backward(dy, &mut Backward { pending: &mut pending, inputs, retain })?;
            }
        }
    }
    gradients.write_out()?;
    Ok(gradients)
}
