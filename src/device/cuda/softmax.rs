//! Softmax along an axis, its logarithm, and their gradients.

use super::Cuda;
use super::kernels::{self, Kernel};
use super::launch::Args;
use super::rows::{Rows, columns};
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn softmax(cuda: &Cuda, log: bool, x: &Tensor, axis: usize, out: &Tensor) -> Result<()> {
    let rows = [kernels::SOFTMAX_SHORT, kernels::SOFTMAX_ROW, kernels::SOFTMAX_LONG];
    along(cuda, rows, kernels::SOFTMAX_COLUMNS, log, &[x, out], axis)
}

pub(super) fn softmax_gradient(
    cuda: &Cuda,
    log: bool,
    y: &Tensor,
    dy: &Tensor,
    axis: usize,
    out: &Tensor,
) -> Result<()> {
    let rows = [
        kernels::SOFTMAX_GRADIENT_SHORT,
        kernels::SOFTMAX_GRADIENT_ROW,
        kernels::SOFTMAX_GRADIENT_LONG,
    ];
    along(cuda, rows, kernels::SOFTMAX_GRADIENT_COLUMNS, log, &[y, dy, out], axis)
}

/// Launches the kernel for rows or the one for columns on tensors of one shape.
fn along(
    cuda: &Cuda,
    rows: [Kernel; 3],
    by_column: Kernel,
    log: bool,
    tensors: &[&Tensor],
    axis: usize,
) -> Result<()> {
    let x = tensors[0];
    if x.elements() == 0 {
        return Ok(());
    }
    let n = x.dims()[axis];
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let outer = x.elements() / (n * inner);
    let args = tensors.iter().fold(Args::new(), |args, x| args.tensor(x));
    if inner == 1 {
        let plan = Rows::new(cuda, outer, n, usize::MAX, tensors);
        let args = plan.tell(args).value(u32::from(log));
        return cuda.launch(plan.kernel(rows), x.dtype(), plan.grid, args);
    }
    let (grid, width) = columns(cuda, outer * inner, n);
    let args = args.value(outer as u64).value(n as u64).value(inner as u64);
    cuda.launch(by_column, x.dtype(), grid, args.value(width).value(u32::from(log)))
}
