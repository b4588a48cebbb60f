//! The linear layer.

use super::weights::{Weights, WeightsSpec, check_sizes};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
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
    weights: Weights,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features, with parameters `name.weight` and `name.bias`
    /// drawn from the device's seed.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for sizes of 0; [`Error::DType`](crate::Error::DType) for integers; [`Error::MemoryLimit`](crate::Error::MemoryLimit).
    pub fn new(
        prefix: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
        dtype: DType,
        device: &Device,
    ) -> Result<Linear> {
        check_sizes("linear", &[("inputs", inputs), ("outputs", outputs)])?;
        let spec = WeightsSpec {
            op: "linear",
            prefix,
            shape: [outputs, inputs].into(),
            fan_in: inputs,
            bias: bias.then_some(outputs),
            dtype,
        };
        Ok(Linear { weights: spec.build(device)? })
    }

    /// Applies the layer to `x [.., in]`.
    ///
    /// # Errors
    /// As [`Var::linear`].
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let (weight, bias) = self.weights.on_tape_of(x);
        x.linear(&weight, bias.as_ref())
    }

    /// `[out, in]`.
    pub fn weight(&self) -> &Parameter {
        &self.weights.weight
    }

    /// `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.weights.bias.as_ref()
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.weights.list()
    }
}
