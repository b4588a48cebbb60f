//! What a backward pass returns.

use super::backward::add;
use super::parameter::{Parameter, ParameterId};
use super::var::Var;
use crate::error::Result;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::fmt;

/// The gradients of one backward pass, by variable and by parameter. Held only here: dropping this
/// frees them.
///
/// ```
/// use capgrad::{Device, Parameter, Tape, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let p = Parameter::new("scale", Tensor::from_vec(vec![3.0f64], [1], &Device::cpu())?)?;
/// let tape = Tape::new();
/// let grads = tape.parameter(&p).square()?.sum()?.backward()?;
/// assert_eq!(grads.parameter(&p).unwrap().to_vec::<f64>()?, [6.0]);
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct Gradients {
    // In order, so that they are freed in the same order at every run.
    values: BTreeMap<u64, Tensor>,
    parameters: BTreeMap<ParameterId, Tensor>,
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values.values().chain(self.parameters.values())).finish()
    }
}

impl Gradients {
    /// The gradient of a variable (or of a value with
    /// [`keep_gradient`](crate::Var::keep_gradient)); `None` where the result does not depend on
    /// it.
    pub fn get(&self, value: &Var) -> Option<&Tensor> {
        self.values.get(&value.node_id()?)
    }

    /// The gradient of a parameter; `None` where the result does not depend on it.
    pub fn parameter(&self, parameter: &Parameter) -> Option<&Tensor> {
        self.parameters.get(&parameter.id())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len() + self.parameters.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the gradients of another pass, in place where that can be: for a batch that is computed
    /// in pieces.
    ///
    /// # Errors
    /// Those of the additions; gradients already added stay added, the others are as they were.
    pub fn add(&mut self, other: Gradients) -> Result<()> {
        for (id, gradient) in other.values {
            let sum = match self.values.get(&id) {
                Some(own) => add(own, &gradient)?,
                None => gradient,
            };
            self.values.insert(id, sum);
        }
        for (id, gradient) in other.parameters {
            self.add_parameter(id, gradient)?;
        }
        Ok(())
    }

    /// Notes a doubt on the dry devices that hold gradients.
    pub(crate) fn note_bound(&self, why: &str) {
        for gradient in self.parameters.values().filter(|gradient| gradient.device().is_dry()) {
            gradient.device().note_bound(why);
        }
    }

    /// Writes out gradients that are one number everywhere: callers see all elements.
    pub(super) fn write_out(&mut self) -> Result<()> {
        for gradient in self.values.values_mut().chain(self.parameters.values_mut()) {
            *gradient = gradient.dense()?;
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, node: u64, gradient: Tensor) {
        self.values.insert(node, gradient);
    }

    pub(crate) fn add_parameter(&mut self, id: ParameterId, gradient: Tensor) -> Result<()> {
        let sum = match self.parameters.get(&id) {
            Some(own) => add(own, &gradient)?,
            None => gradient,
        };
        self.parameters.insert(id, sum);
        Ok(())
    }
}
