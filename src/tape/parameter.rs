//! Named trainable tensors that outlive tapes.

use super::no_grad::recording;
use super::node::TapeInner;
use super::var::Var;
use crate::error::Result;
use crate::memory::Purpose;
use crate::tensor::{Tensor, require_float};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ParameterId(u64);

/// A named trainable tensor. A handle: clones are the same parameter, and optimisers change it in
/// place.
///
/// ```
/// use capgrad::{DType, Device, Parameter, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let weight = Parameter::new("weight", Tensor::zeros([2, 2], DType::F32, &Device::cpu())?)?;
/// assert_eq!((weight.name(), weight.tensor().bytes()), ("weight", 16));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Parameter(Arc<Inner>);

struct Inner {
    id: ParameterId,
    name: String,
    tensor: Tensor,
    trainable: AtomicBool,
}

impl Parameter {
    /// A parameter with this start value, which is metered as one from now on.
    ///
    /// # Errors
    /// [`Error::DType`](crate::Error::DType) for integers.
    pub fn new(name: impl Into<String>, tensor: Tensor) -> Result<Parameter> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        require_float("Parameter::new", tensor.dtype())?;
        tensor.set_purpose(Purpose::Parameter);
        Ok(Parameter(Arc::new(Inner {
            id: ParameterId(NEXT.fetch_add(1, Ordering::Relaxed)),
            name: name.into(),
            tensor,
            trainable: AtomicBool::new(true),
        })))
    }

    /// The name, as given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The value. Optimisers change it in place; [`Tensor::copy_from`] replaces it.
    pub fn tensor(&self) -> &Tensor {
        &self.0.tensor
    }

    /// Whether the parameter gets gradients.
    pub fn trainable(&self) -> bool {
        self.0.trainable.load(Ordering::Relaxed)
    }

    /// Freezes the parameter, or lets it train again, from the next forward pass on.
    pub fn set_trainable(&self, trainable: bool) {
        self.0.trainable.store(trainable, Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> ParameterId {
        self.0.id
    }

    pub(super) fn on(&self, tape: &Weak<TapeInner>) -> Var {
        let node = match tape.upgrade() {
            Some(tape) if self.trainable() && recording() => Some(tape.parameter(self)),
            _ => None,
        };
        Var::new(self.tensor().clone(), node, tape.clone())
    }
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameter({} {:?})", self.name(), self.tensor())
    }
}
