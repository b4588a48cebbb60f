//! Operations of the user's own, with their own gradients.

use super::backward::Backward;
use super::node::{Rule, Saved};
use super::var::Var;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::sync::Arc;

/// What a [`Function`] wants to see again in its backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Saves {
    /// The inputs.
    pub inputs: bool,
    /// The output.
    pub output: bool,
}

/// An operation of the user's own with its own gradient: a matrix-free linear operator, say. See
/// the example `matrix_free`.
///
/// ```
/// use capgrad::{Device, Function, Result, Saves, Tape, Tensor, Var};
///
/// /// Reverses a vector. Its transpose is itself, so nothing is saved.
/// struct Reverse;
///
/// impl Function for Reverse {
///     fn name(&self) -> &'static str { "reverse" }
///     fn saves(&self) -> Saves { Saves::default() }
///     fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor> {
///         let mut data = inputs[0].to_vec::<f64>()?;
///         data.reverse();
///         Tensor::from_vec(data, inputs[0].shape(), inputs[0].device())
///     }
///     fn backward(
///         &self, dy: &Tensor, _: &[Tensor], _: Option<&Tensor>, _: &[bool],
///     ) -> Result<Vec<Option<Tensor>>> {
///         Ok(vec![Some(self.forward(&[dy])?)])
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let tape = Tape::new();
/// let x = tape.variable(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?)?;
/// let w = Tensor::from_vec(vec![10.0, 20.0], [2], &Device::cpu())?;
/// let y = Var::apply(Reverse, &[&x])?.mul(&w.into())?.sum()?;
/// assert_eq!(y.backward()?.get(&x).unwrap().to_vec::<f64>()?, [20.0, 10.0]);
/// # Ok(()) }
/// ```
pub trait Function: Send + Sync + 'static {
    /// The name that errors print.
    fn name(&self) -> &'static str;

    /// What the backward pass needs to see again; everything else is freed as usual.
    fn saves(&self) -> Saves {
        Saves { inputs: true, output: false }
    }

    /// The result.
    ///
    /// # Errors
    /// Whatever the operation refuses; [`Error::custom`] makes one.
    fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor>;

    /// The gradient of each input for which `needs` is true (others may be `None`), from that of
    /// the output. `inputs` is empty and `output` is `None` where [`Function::saves`] did not ask.
    ///
    /// # Errors
    /// Whatever the operation refuses.
    fn backward(
        &self,
        dy: &Tensor,
        inputs: &[Tensor],
        output: Option<&Tensor>,
        needs: &[bool],
    ) -> Result<Vec<Option<Tensor>>>;
}

impl Var {
    /// Applies a user's own operation.
    ///
    /// # Errors
    /// Those of its [`Function::forward`], and [`Error::TapeMismatch`].
    pub fn apply(function: impl Function, inputs: &[&Var]) -> Result<Var> {
        let tensors: SmallVec<[&Tensor; 2]> = inputs.iter().map(|input| input.tensor()).collect();
        let output = function.forward(&tensors)?;
        let op = function.name();
        Var::record(op, output, inputs, |output| {
            let saves = function.saves();
            let inputs = inputs.iter().map(|input| Saved::new(op, input.tensor()));
            Custom {
                like: tensors.iter().map(|tensor| (*tensor).clone()).map(Like::of).collect(),
                inputs: if saves.inputs { inputs.collect() } else { SmallVec::new() },
                output: saves.output.then(|| Saved::new(op, output)),
                function: Arc::new(function),
            }
        })
    }
}

/// What a gradient must look like; holds no elements.
struct Like {
    shape: crate::shape::Shape,
    dtype: crate::dtype::DType,
    device: crate::device::Device,
}

impl Like {
    fn of(tensor: Tensor) -> Like {
        Like {
            shape: tensor.shape().clone(),
            dtype: tensor.dtype(),
            device: tensor.device().clone(),
        }
    }

    fn check(&self, op: &'static str, gradient: &Tensor) -> Result<()> {
        if gradient.shape() != &self.shape {
            let reason = "a gradient must have its input's shape";
            return Err(Error::shape(op, &[gradient.shape(), &self.shape], reason));
        }
        if gradient.dtype() != self.dtype {
            return Err(Error::DTypeMismatch { op, left: gradient.dtype(), right: self.dtype });
        }
        if gradient.device() != &self.device {
            return Err(Error::DeviceMismatch {
                op,
                left: gradient.device().name().into(),
                right: self.device.name().into(),
            });
        }
        Ok(())
    }
}

struct Custom {
    function: Arc<dyn Function>,
    like: SmallVec<[Like; 2]>,
    inputs: SmallVec<[Saved; 2]>,
    output: Option<Saved>,
}

impl Rule for Custom {
    fn name(&self) -> &'static str {
        self.function.name()
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let op = self.name();
        let needs: SmallVec<[bool; 4]> = (0..self.like.len()).map(|i| cx.needs(i)).collect();
        let inputs =
            self.inputs.iter_mut().map(|saved| saved.take(cx)).collect::<Result<Vec<_>>>()?;
        let output = self.output.as_mut().map(|saved| saved.take(cx)).transpose()?;
        let gradients = self.function.backward(&dy.dense()?, &inputs, output.as_ref(), &needs)?;
        if gradients.len() != self.like.len() {
            let reason = format!("backward must return {} entries, one an input", self.like.len());
            return Err(Error::argument(op, "gradients", gradients.len(), reason));
        }
        for (i, gradient) in gradients.into_iter().enumerate() {
            if let Some(gradient) = gradient.filter(|_| needs[i]) {
                self.like[i].check(op, &gradient)?;
                cx.give(i, gradient)?;
            }
        }
        Ok(())
    }
}
