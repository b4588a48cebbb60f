//! A tensor that may have a place on a tape.

use super::backward::{self, Arrivals};
use super::gradients::Gradients;
use super::no_grad::recording;
use super::node::{Node, Rule, TapeInner};
use super::parameter::Parameter;
use crate::device::Device;
use crate::device::philox::Stream;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::{Tensor, require_same};
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A tensor that may have a place on a tape. All operations are methods of this type. Cheap to
/// clone; clones share the value and the place.
///
/// Without a tape (`Var::from(tensor)`) it is a constant, and operations on it record nothing.
///
/// ```
/// use capgrad::{DType, Device, Tape, Tensor, Var};
/// # fn main() -> capgrad::Result<()> {
/// let x = Tensor::ones([2, 2], DType::F32, &Device::cpu())?;
/// let constant = Var::from(x.clone()).relu()?;
/// assert!(!constant.requires_grad());
/// let tape = Tape::new();
/// assert!(tape.variable(x)?.relu()?.requires_grad());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Var {
    tensor: Tensor,
    node: Option<Arc<Node>>,
    tape: Weak<TapeInner>,
}

impl Var {
    pub(super) fn new(tensor: Tensor, node: Option<Arc<Node>>, tape: Weak<TapeInner>) -> Var {
        Var { tensor, node, tape }
    }

    /// The value.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The value, and the place on the tape given up.
    pub fn into_tensor(self) -> Tensor {
        self.tensor
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        self.tensor.shape()
    }

    /// The extents, as a slice.
    pub fn dims(&self) -> &[usize] {
        self.tensor.dims()
    }

    /// The elements' type.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// The device that holds the value.
    pub fn device(&self) -> &Device {
        self.tensor.device()
    }

    /// The only element.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is not exactly one.
    pub fn item(&self) -> Result<f64> {
        self.tensor.item()
    }

    /// Whether gradients flow through this value.
    pub fn requires_grad(&self) -> bool {
        self.live_node().is_some()
    }

    /// The same value without its place on the tape: a constant.
    pub fn detach(&self) -> Var {
        Var { node: None, ..self.clone() }
    }

    /// Asks `backward` to report this value's gradient too, though it is not a leaf.
    pub fn keep_gradient(&self) {
        if let Some(node) = &self.node {
            node.keep_gradient.store(true, Ordering::Relaxed);
        }
    }

    /// Gradients of this single number with respect to every variable and parameter behind it. The
    /// recorded graph is taken: what it saved is freed as the pass goes.
    ///
    /// # Errors
    /// [`Error::Shape`] where this is not one number; [`Error::NotRecorded`] where nothing behind
    /// it wants a gradient; [`Error::GraphTaken`]; and those of the operations' gradients. After an
    /// error, run the forward pass again.
    pub fn backward(self) -> Result<Gradients> {
        let dy = self.seed(1.0)?;
        self.backward_with(dy)
    }

    /// Like [`Var::backward`] for a value of any shape, whose own gradient is given.
    ///
    /// # Errors
    /// As [`Var::backward`], and [`Error::Shape`], [`Error::DTypeMismatch`] or
    /// [`Error::DeviceMismatch`] where `gradient` is unlike the value.
    pub fn backward_with(self, gradient: Tensor) -> Result<Gradients> {
        self.run_backward(gradient, false, None)
    }

    /// Like [`Var::backward`], but the graph is kept for another backward.
    ///
    /// # Errors
    /// As [`Var::backward`].
    pub fn backward_retained(&self) -> Result<Gradients> {
        self.clone().run_backward(self.seed(1.0)?, true, None)
    }

    /// [`Var::backward`] of `weight` times this number, whose parameters' gradients go to `arrivals`.
    pub(crate) fn backward_into(
        self,
        weight: f64,
        arrivals: &mut Arrivals<'_>,
    ) -> Result<Gradients> {
        let dy = self.seed(weight)?;
        self.run_backward(dy, false, Some(arrivals))
    }

    fn seed(&self, weight: f64) -> Result<Tensor> {
        if self.tensor.elements() != 1 {
            let reason = "expected one number; take `mean` or `sum`, or use `backward_with`";
            return Err(Error::shape("backward", &[self.shape()], reason));
        }
        let _guards = backward::guards();
        Tensor::filled("backward", self.shape(), weight, self.dtype(), self.device())
    }

    fn run_backward(
        self,
        gradient: Tensor,
        retain: bool,
        arrivals: Option<&mut Arrivals<'_>>,
    ) -> Result<Gradients> {
        let _guards = backward::guards();
        require_same("backward", &self.tensor, &gradient)?;
        let Var { tensor, node, tape } = self;
        // The value itself is not needed, so it is let go before anything is allocated.
        drop(tensor);
        let node = node.ok_or(Error::NotRecorded { op: "backward" })?;
        let Some(_tape) = tape.upgrade() else {
            return Err(Error::NotRecorded { op: "backward" });
        };
        backward::run(node, gradient, retain, arrivals)
    }

    pub(super) fn live_node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref().filter(|node| node.is_live())
    }

    pub(super) fn node_id(&self) -> Option<u64> {
        self.node.as_ref().map(|node| node.id)
    }

    pub(super) fn tape(&self) -> &Weak<TapeInner> {
        &self.tape
    }

    /// A parameter's value on the tape that this value is on.
    pub(crate) fn with_parameter(&self, parameter: &Parameter) -> Var {
        parameter.on(&self.tape)
    }

    /// The stream of random numbers for the next random operation on this value's tape; without a
    /// tape, the device's next one.
    pub(crate) fn next_stream(&self) -> Stream {
        match self.tape.upgrade() {
            Some(tape) => tape.next_stream(),
            None => self.device().next_stream(),
        }
    }

    /// Whether an operation on these inputs is recorded.
    pub(crate) fn records(inputs: &[&Var]) -> bool {
        recording() && inputs.iter().any(|input| input.requires_grad())
    }

    /// The result of an operation: a place on the inputs' tape where one of them has one and
    /// recording is on, else a constant. `rule` is made only if it is needed.
    pub(crate) fn record<R: Rule + 'static>(
        op: &'static str,
        output: Tensor,
        inputs: &[&Var],
        rule: impl FnOnce(&Tensor) -> R,
    ) -> Result<Var> {
        let mut tape: Option<Arc<TapeInner>> = None;
        for input in inputs {
            let Some(own) = input.tape.upgrade() else { continue };
            match &tape {
                Some(tape) if Arc::ptr_eq(tape, &own) => {}
                // A constant of another tape is only a number.
                Some(_) if !input.requires_grad() => {}
                Some(tape) if inputs.iter().any(|other| other.is_recorded_on(tape)) => {
                    return Err(Error::TapeMismatch { op });
                }
                _ => tape = Some(own),
            }
        }
        let Some(tape) = tape else { return Ok(Var::from(output)) };
        let weak = Arc::downgrade(&tape);
        if !Var::records(inputs) {
            return Ok(Var::new(output, None, weak));
        }
        let nodes: SmallVec<[_; 2]> =
            inputs.iter().map(|input| input.live_node().cloned()).collect();
        let node = tape.record(Box::new(rule(&output)), nodes);
        Ok(Var::new(output, Some(node), weak))
    }

    fn is_recorded_on(&self, tape: &Arc<TapeInner>) -> bool {
        self.requires_grad() && std::ptr::eq(self.tape.as_ptr(), Arc::as_ptr(tape))
    }
}

impl From<Tensor> for Var {
    fn from(tensor: Tensor) -> Var {
        Var { tensor, node: None, tape: Weak::new() }
    }
}

impl From<&Tensor> for Var {
    fn from(tensor: &Tensor) -> Var {
        tensor.clone().into()
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.requires_grad() { "recorded" } else { "constant" };
        write!(f, "Var({:?}, {place})", self.tensor)
    }
}
