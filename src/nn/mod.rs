//! Layers: parameters with the field's usual initialisation, and the operation that uses them.
//!
//! Weights and biases start uniform on ±1/√fan_in, where fan_in is the number of inputs that one
//! output sums over (LeCun, Bottou, Orr and Müller 1998; what PyTorch does for these layers).

mod conv1d;
mod conv_transpose1d;
mod layer_norm;
mod linear;
mod weights;

pub use conv_transpose1d::{ConvTranspose1d, ConvTranspose1dBuilder};
pub use conv1d::{Conv1d, Conv1dBuilder};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
