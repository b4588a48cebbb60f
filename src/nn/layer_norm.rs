//! Layer normalisation with a trained scale and shift.

use super::weights::{check_sizes, named};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::tape::{Parameter, Var};
use crate::tensor::Tensor;

/// Layer normalisation over the last axis (Ba, Kiros and Hinton 2016), with `weight` (ones at the
/// start) and `bias` (zeros) of that extent, and ε = 10⁻⁵.
///
/// ```
/// use capgrad::{DType, Device, LayerNorm, Tensor, Var};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::cpu();
/// let norm = LayerNorm::new("norm", 2, DType::F64, &device)?;
/// let x = Var::from(Tensor::from_vec(vec![1.0, 3.0], [1, 2], &device)?);
/// let y = norm.forward(&x)?.tensor().to_vec::<f64>()?;
/// assert!((y[0] + 1.0).abs() < 1e-5 && (y[1] - 1.0).abs() < 1e-5);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Parameter,
    bias: Parameter,
    epsilon: f64,
}

impl LayerNorm {
    /// A layer for `features` features, with parameters `name.weight` and `name.bias`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for 0 features; [`Error::DType`](crate::Error::DType) for integers; [`Error::MemoryLimit`](crate::Error::MemoryLimit).
    pub fn new(prefix: &str, features: usize, dtype: DType, device: &Device) -> Result<LayerNorm> {
        check_sizes("layer_norm", &[("features", features)])?;
        Ok(LayerNorm {
            weight: Parameter::new(
                named(prefix, "weight"),
                Tensor::ones([features], dtype, device)?,
            )?,
            bias: Parameter::new(named(prefix, "bias"), Tensor::zeros([features], dtype, device)?)?,
            epsilon: 1e-5,
        })
    }

    /// Another ε, which is added to the variance.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f64) -> LayerNorm {
        LayerNorm { epsilon, ..self }
    }

    /// Applies the layer to `x [.., features]`.
    ///
    /// # Errors
    /// As [`Var::layer_norm`].
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let (weight, bias) = (x.with_parameter(&self.weight), x.with_parameter(&self.bias));
        x.layer_norm(Some(&weight), Some(&bias), self.epsilon)
    }

    /// `[features]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// `[features]`.
    pub fn bias(&self) -> &Parameter {
        &self.bias
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        vec![self.weight.clone(), self.bias.clone()]
    }
}
