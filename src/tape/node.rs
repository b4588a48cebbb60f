//! The tape and its nodes.

use super::backward::Backward;
use super::parameter::{Parameter, ParameterId};
use super::var::Var;
use crate::device::philox::Stream;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, require_float};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// How the gradient of one recorded operation is taken.
pub(crate) trait Rule: Send {
    /// The operation's name, for errors.
    fn name(&self) -> &'static str;

    /// Hands the gradient of each input that needs one to `cx`, from the gradient of the output.
    /// Unless `cx.retained()`, this is the last call, and what has been used may be let go early.
    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()>;
}

/// A tensor that a gradient rule keeps, which notices when it has been changed since.
pub(crate) struct Saved {
    tensor: Option<Tensor>,
    changes: u64,
    op: &'static str,
}

impl Saved {
    pub(crate) fn new(op: &'static str, tensor: &Tensor) -> Saved {
        Saved { tensor: Some(tensor.clone()), changes: tensor.changes(), op }
    }

    /// The tensor, as it was saved; kept here only if the graph is to be used again.
    pub(crate) fn take(&mut self, cx: &Backward<'_>) -> Result<Tensor> {
        let tensor = if cx.retained() { self.tensor.clone() } else { self.tensor.take() };
        let tensor = tensor.ok_or(Error::GraphTaken { op: self.op })?;
        if tensor.changes() != self.changes {
            return Err(Error::SavedValueChanged { op: self.op });
        }
        Ok(tensor)
    }
}

/// What a node is, and what it holds on to.
pub(super) enum Origin {
    /// A value that the caller wants the gradient of.
    Leaf,
    /// A parameter.
    Parameter(ParameterId),
    /// The result of an operation.
    Recorded { rule: Box<dyn Rule>, inputs: SmallVec<[Option<Arc<Node>>; 2]> },
    /// The result of an operation that an earlier backward has taken, or whose tape is gone.
    Taken(&'static str),
}

/// One recorded value.
pub(crate) struct Node {
    pub(super) id: u64,
    tape: Weak<TapeInner>,
    pub(super) keep_gradient: AtomicBool,
    pub(super) origin: Mutex<Origin>,
}

impl Node {
    /// Whether the node's tape is still there. A value whose graph an earlier backward has taken
    /// counts too: what is made of it is recorded, so that another backward through it is refused
    /// and does not silently leave gradients out.
    pub(super) fn is_live(&self) -> bool {
        self.tape.strong_count() > 0
    }

    /// Takes what the node holds on to.
    pub(super) fn take(&self) -> Origin {
        let mut origin = self.origin.lock();
        let op = match &*origin {
            Origin::Recorded { rule, .. } => rule.name(),
            Origin::Taken(op) => op,
            Origin::Leaf | Origin::Parameter(_) => "a leaf",
        };
        std::mem::replace(&mut *origin, Origin::Taken(op))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(tape) = self.tape.upgrade() {
            tape.nodes.lock().remove(&self.id);
        }
        // A chain of a million nodes would overflow the stack if each dropped the next, so what
        // this node is the last owner of is unlinked in a loop.
        let mut orphans = inputs_of(self.origin.get_mut());
        while let Some(node) = orphans.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                orphans.extend(inputs_of(node.origin.get_mut()));
            }
        }
    }
}

fn inputs_of(origin: &mut Origin) -> Vec<Arc<Node>> {
    match origin {
        Origin::Recorded { inputs, .. } => inputs.drain(..).flatten().collect(),
        _ => Vec::new(),
    }
}

pub(crate) struct TapeInner {
    seed: u64,
    step: u64,
    /// Random operations so far: which mask is whose.
    draws: AtomicU64,
    nodes: Mutex<HashMap<u64, Weak<Node>>>,
    parameters: Mutex<HashMap<ParameterId, Weak<Node>>>,
}

/// Node ids grow over the whole process: a node's inputs have smaller ids than it has.
static NEXT_NODE: AtomicU64 = AtomicU64::new(1);

impl TapeInner {
    fn add(self: &Arc<Self>, origin: Origin) -> Arc<Node> {
        let node = Arc::new(Node {
            id: NEXT_NODE.fetch_add(1, Ordering::Relaxed),
            tape: Arc::downgrade(self),
            keep_gradient: AtomicBool::new(false),
            origin: Mutex::new(origin),
        });
        self.nodes.lock().insert(node.id, Arc::downgrade(&node));
        node
    }

    pub(super) fn record(
        self: &Arc<Self>,
        rule: Box<dyn Rule>,
        inputs: SmallVec<[Option<Arc<Node>>; 2]>,
    ) -> Arc<Node> {
        self.add(Origin::Recorded { rule, inputs })
    }

    /// The parameter's node: one a tape, however often it is used.
    pub(super) fn parameter(self: &Arc<Self>, parameter: &Parameter) -> Arc<Node> {
        let mut known = self.parameters.lock();
        if let Some(node) = known.get(&parameter.id()).and_then(Weak::upgrade) {
            return node;
        }
        let node = self.add(Origin::Parameter(parameter.id()));
        known.insert(parameter.id(), Arc::downgrade(&node));
        node
    }

    /// The stream of the next random operation of this step.
    pub(super) fn next_stream(&self) -> Stream {
        let draw = self.draws.fetch_add(1, Ordering::Relaxed);
        // Steps and draws share the 63 bits that tapes have: 2³¹ draws a step.
        Stream { seed: self.seed, stream: (self.step << 31 | (draw & 0x7fff_ffff)) & !(1 << 63) }
    }

    pub(super) fn draws(&self) -> u64 {
        self.draws.load(Ordering::Relaxed)
    }

    /// Goes back (or forward) to a draw, and says where it was.
    pub(super) fn set_draws(&self, draws: u64) -> u64 {
        self.draws.swap(draws, Ordering::Relaxed)
    }
}

/// The record of one step. Make one a step: dropping it lets go of everything recorded on it, so a
/// loss that is kept, or summed over steps, holds a number and not a graph.
///
/// ```
/// use capgrad::{Device, Tape, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let tape = Tape::new();
/// let x = tape.variable(Tensor::from_vec(vec![1.0f64, 2.0, 3.0], [3], &Device::cpu())?)?;
/// let grads = x.square()?.sum()?.backward()?;
/// assert_eq!(grads.get(&x).unwrap().to_vec::<f64>()?, [2.0, 4.0, 6.0]);
/// # Ok(()) }
/// ```
pub struct Tape(Arc<TapeInner>);

impl Default for Tape {
    fn default() -> Self {
        Tape::new()
    }
}

impl Tape {
    /// A new tape, with seed 0 and step 0 for its random operations.
    pub fn new() -> Tape {
        Tape::for_step(0, 0)
    }

    /// A tape whose random operations (dropout) draw from `(seed, step, operation)`: the same step
    /// run again has the same masks, and another step has others.
    pub fn for_step(seed: u64, step: u64) -> Tape {
        Tape(Arc::new(TapeInner {
            seed,
            step,
            draws: AtomicU64::new(0),
            nodes: Mutex::default(),
            parameters: Mutex::default(),
        }))
    }

    /// A value whose gradient is wanted.
    ///
    /// # Errors
    /// [`Error::DType`] for integers.
    pub fn variable(&self, tensor: Tensor) -> Result<Var> {
        require_float("variable", tensor.dtype())?;
        let node = self.0.add(Origin::Leaf);
        Ok(Var::new(tensor, Some(node), Arc::downgrade(&self.0)))
    }

    /// A value without gradient: data, labels. What parameters make of it is recorded here.
    pub fn constant(&self, tensor: Tensor) -> Var {
        Var::new(tensor, None, Arc::downgrade(&self.0))
    }

    /// A parameter's value, recorded here.
    pub fn parameter(&self, parameter: &Parameter) -> Var {
        parameter.on(&Arc::downgrade(&self.0))
    }

    /// How many recorded values are alive.
    pub fn live_nodes(&self) -> usize {
        self.0.nodes.lock().len()
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        let nodes: Vec<Weak<Node>> = self.0.nodes.lock().drain().map(|(_, node)| node).collect();
        for node in nodes.iter().filter_map(Weak::upgrade) {
            drop(node.take());
        }
    }
}
