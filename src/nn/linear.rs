//! The linear layer.

use super::{name, uniform};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tape::{Parameter, Var};

/// `x·weightᵀ + bias`, with `weight [out, in]` and `bias [out]`.
///
/// ```
/// use capgrad::{DType, Device, Linear, Tensor, Var};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::cpu();
/// let layer = Linear::new("head", 6, 2, true, DType::F32, &device)?;
/// let x = Var::from(Tensor::rand([3, 5, 6], DType::F32, &device)?);
/// assert_eq!(layer.forward(&x)?.dims(), [3, 5, 2]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features, with parameters `name.weight` and `name.bias`
    /// drawn from the device's seed.
    ///
    /// # Errors
    /// [`Error::Argument`] for sizes of 0; [`Error::DType`] for integers; [`Error::MemoryLimit`].
    pub fn new(
        prefix: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
        dtype: DType,
        device: &Device,
    ) -> Result<Linear> {
        for (argument, value) in [("inputs", inputs), ("outputs", outputs)] {
            if value == 0 {
                return Err(Error::argument("linear", argument, value, "must be at least 1"));
            }
        }
        let shape = [outputs, inputs];
        let weight = uniform("linear", name(prefix, "weight"), shape, inputs, dtype, device)?;
        let bias = if bias {
            Some(uniform("linear", name(prefix, "bias"), [outputs], inputs, dtype, device)?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    /// Applies the layer to `x [.., in]`.
    ///
    /// # Errors
    /// As [`Var::linear`].
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let weight = x.with_parameter(&self.weight);
        let bias = self.bias.as_ref().map(|bias| x.with_parameter(bias));
        x.linear(&weight, bias.as_ref())
    }

    /// `[out, in]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}
