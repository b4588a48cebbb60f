//! What is called: one file a family of operations, with its argument checks, its forward pass and
//! its gradient rule. All are methods of [`Var`](crate::Var), but for those of a list of values. A
//! wrong argument is refused before anything is allocated or launched, and a rule saves the least
//! that its gradient can be taken from.

mod activation;
mod binary;
mod broadcast;
mod compare;
mod conv1d;
mod conv_transpose1d;
mod conv_uniform;
mod convert;
mod cross_entropy;
mod dropout;
mod index;
mod join;
mod layer_norm;
mod loss;
mod matmul;
mod narrow;
mod permute;
mod pool1d;
mod reduce;
mod scalar;
mod select;
mod shape;
mod softmax;
pub(crate) mod sparse;
mod unary;

use crate::error::Result;
use crate::tape::{Backward, Rule, Var};
use crate::tensor::Tensor;

pub use conv_transpose1d::ConvTranspose1dOptions;
pub use conv1d::{Conv1dOptions, Padding};
pub use cross_entropy::CrossEntropyOptions;
pub use join::{cat, stack};
pub use loss::Reduction;

/// A result that has no gradient, on the tape that its operands are on: parameters that meet it
/// later are recorded there.
fn constant(op: &'static str, output: Tensor, inputs: &[&Var]) -> Result<Var> {
    let detached: Vec<Var> = inputs.iter().map(|input| input.detach()).collect();
    let detached: Vec<&Var> = detached.iter().collect();
    Var::record(op, output, &detached, |_| Constant(op))
}

/// Never recorded, since detached inputs need no gradient.
struct Constant(&'static str);

impl Rule for Constant {
    fn name(&self) -> &'static str {
        self.0
    }

    fn backward(&mut self, _: Tensor, _: &mut Backward<'_>) -> Result<()> {
        Ok(())
    }
}
