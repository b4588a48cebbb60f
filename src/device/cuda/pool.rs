//! Pooling along the last axis, and its gradient.

use super::Cuda;
use super::kernels;
use super::launch::Args;
use crate::device::spec::{Pool, PoolGeometry};
use crate::error::Result;
use crate::tensor::Tensor;

/// `Geometry` of the kernels.
fn geometry(g: &PoolGeometry) -> [u64; 6] {
    [g.rows, g.in_length, g.out_length, g.kernel, g.stride, g.padding].map(|size| size as u64)
}

pub(super) fn pool(
    cuda: &Cuda,
    pool: Pool,
    g: &PoolGeometry,
    x: &Tensor,
    out: &Tensor,
    indices: Option<&Tensor>,
) -> Result<()> {
    if out.elements() == 0 {
        return Ok(());
    }
    let args = Args::new().value(geometry(g)).tensor(x).tensor(out);
    let grid = cuda.linear(out.elements());
    match pool {
        Pool::Max => cuda.launch(kernels::POOL_MAX, x.dtype(), grid, args.optional(indices)),
        Pool::Average => cuda.launch(kernels::POOL_AVERAGE, x.dtype(), grid, args),
    }
}

pub(super) fn pool_gradient(
    cuda: &Cuda,
    pool: Pool,
    g: &PoolGeometry,
    dy: &Tensor,
    indices: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    if out.elements() == 0 {
        return Ok(());
    }
    let args = Args::new().value(geometry(g)).tensor(dy);
    let grid = cuda.linear(out.elements());
    match (pool, indices) {
        (Pool::Max, Some(indices)) => {
            let args = args.tensor(indices).tensor(out);
            cuda.launch(kernels::POOL_MAX_GRADIENT, dy.dtype(), grid, args)
        }
        _ => cuda.launch(kernels::POOL_AVERAGE_GRADIENT, dy.dtype(), grid, args.tensor(out)),
    }
}
