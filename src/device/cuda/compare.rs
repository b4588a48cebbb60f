//! Comparisons, and choosing between two operands.

use super::elementwise::pass;
use super::layout::Axes;
use super::{Cuda, kernels};
use crate::device::spec::Comparison;
use crate::error::Result;
use crate::tensor::Tensor;

/// The comparison's number in compare.cu.
fn comparison_code(f: Comparison) -> i32 {
    match f {
        Comparison::Equal => 0,
        Comparison::NotEqual => 1,
        Comparison::Less => 2,
        Comparison::LessOrEqual => 3,
        Comparison::Greater => 4,
        Comparison::GreaterOrEqual => 5,
    }
}

pub(super) fn compare(
    cuda: &Cuda,
    f: Comparison,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let axes = Axes::over(out.shape(), [a, b]);
    let kernel = (kernels::COMPARE, a.dtype().name());
    pass(cuda, kernel, &axes, [a, b], out, |args| args.value(comparison_code(f)))
}

pub(super) fn select(
    cuda: &Cuda,
    mask: &Tensor,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let axes = Axes::over(out.shape(), [mask, a, b]);
    let kernel = (kernels::SELECT, Cuda::raw(out.dtype().size()));
    pass(cuda, kernel, &axes, [mask, a, b], out, |args| args)
}
