//! Layers: parameters with the field's usual initialisation, and the operation that uses them.
//!
//! Weights and biases start uniform on ±1/√fan_in, where fan_in is the number of inputs that one
//! output sums over (LeCun, Bottou, Orr and Müller 1998; what PyTorch does for these layers).

mod conv1d;
mod conv_transpose1d;
mod layer_norm;
mod linear;

pub use conv_transpose1d::{ConvTranspose1d, ConvTranspose1dBuilder};
pub use conv1d::{Conv1d, Conv1dBuilder};
pub use layer_norm::LayerNorm;
pub use linear::Linear;

use crate::device::Device;
use crate::device::spec::Distribution;
use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::tape::Parameter;
use crate::tensor::Tensor;

/// `prefix.name`, or the name alone.
fn name(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// A parameter that starts uniform on ±1/√fan_in.
fn uniform(
    op: &'static str,
    name: String,
    shape: impl Into<Shape>,
    fan_in: usize,
    dtype: DType,
    device: &Device,
) -> Result<Parameter> {
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    let distribution = Distribution::Uniform(-bound, bound);
    Parameter::new(name, Tensor::random(op, shape, distribution, dtype, device)?)
}
