//! Cross-entropy of rows of logits with labels, and its gradient.

use super::Cuda;
use super::kernels;
use super::launch::{Args, Grid};
use super::memory::pointer;
use super::rows::{Rows, THREADS};
use super::scratch::SCRATCH_BYTES;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// `Labels` of the kernels.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Labels {
    address: u64,
    ignore: i64,
    wide: u32,
    ignores: u32,
}

impl Labels {
    fn new(labels: &Tensor, ignore: Option<i64>) -> Labels {
        Labels {
            address: pointer(labels),
            ignore: ignore.unwrap_or(0),
            wide: u32::from(labels.dtype() == DType::I64),
            ignores: u32::from(ignore.is_some()),
        }
    }
}

/// Blocks whose partial sums the scratch is asked to hold; few enough for one block to add up.
const MOST_BLOCKS: usize = 8192;
const _: () = assert!(MOST_BLOCKS * size_of::<f64>() <= SCRATCH_BYTES);

pub(super) fn forward(
    cuda: &Cuda,
    x: &Tensor,
    labels: &Tensor,
    ignore: Option<i64>,
    scale: f64,
    out: &Tensor,
) -> Result<()> {
    let (rows, classes) = (x.dims()[0], x.dims()[1]);
    let scratch = cuda.scratch();
    let mut partials = 0;
    if rows > 0 {
        let plan = Rows::new(cuda, rows, classes, MOST_BLOCKS, &[x]);
        let args = Args::new().tensor(x).value(Labels::new(labels, ignore));
        let args = args.value(scratch.address());
        let which =
            [kernels::CROSS_ENTROPY_SHORT, kernels::CROSS_ENTROPY_ROW, kernels::CROSS_ENTROPY_LONG];
        cuda.launch(plan.kernel(which), x.dtype(), plan.grid, plan.tell(args))?;
        partials = plan.grid.blocks[0];
    }
    let args = Args::new().value(scratch.address()).value(partials).value(scale).tensor(out);
    cuda.launch(kernels::CROSS_ENTROPY_FINISH, x.dtype(), Grid::new(1, THREADS), args)
}

pub(super) fn gradient(
    cuda: &Cuda,
    x: &Tensor,
    labels: &Tensor,
    ignore: Option<i64>,
    scale: f64,
    dy: &Tensor,
    out: &Tensor,
) -> Result<()> {
    if x.elements() == 0 {
        return Ok(());
    }
    let plan = Rows::new(cuda, x.dims()[0], x.dims()[1], usize::MAX, &[x, out]);
    let args = Args::new().tensor(x).value(Labels::new(labels, ignore));
    let args = plan.tell(args.value(scale).tensor(dy).tensor(out));
    let which = [
        kernels::CROSS_ENTROPY_GRADIENT_SHORT,
        kernels::CROSS_ENTROPY_GRADIENT_ROW,
        kernels::CROSS_ENTROPY_GRADIENT_LONG,
    ];
    cuda.launch(plan.kernel(which), x.dtype(), plan.grid, args)
}
