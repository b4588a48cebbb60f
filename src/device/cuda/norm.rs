//! Layer normalisation and its gradients.

use super::Cuda;
use super::kernels;
use super::launch::{Args, Grid};
use super::memory::pointer;
use super::rows::{Rows, THREADS};
use super::scratch::SCRATCH_BYTES;
use crate::error::Result;
use crate::tensor::Tensor;

#[allow(clippy::too_many_arguments)]
pub(super) fn layer_norm(
    cuda: &Cuda,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    epsilon: f64,
    out: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
) -> Result<()> {
    if x.elements() == 0 {
        for kept in [mean, rstd] {
            let bytes = kept.elements() * kept.dtype().size();
            cuda.stream.fill_bytes(pointer(kept), 0, bytes)?;
        }
        return Ok(());
    }
    let all = [Some(x), weight, bias, Some(out)];
    let all: Vec<&Tensor> = all.into_iter().flatten().collect();
    let plan = Rows::new(cuda, x.dims()[0], x.dims()[1], usize::MAX, &all);
    let args = Args::new().tensor(x).optional(weight).optional(bias).value(epsilon);
    let args = plan.tell(args.tensor(out).tensor(mean).tensor(rstd));
    let which = [kernels::LAYER_NORM_SHORT, kernels::LAYER_NORM_ROW, kernels::LAYER_NORM_LONG];
    cuda.launch(plan.kernel(which), x.dtype(), plan.grid, args)
}

#[allow(clippy::too_many_arguments)]
pub(super) fn layer_norm_gradient(
    cuda: &Cuda,
    x: &Tensor,
    weight: Option<&Tensor>,
    mean: &Tensor,
    rstd: &Tensor,
    dy: &Tensor,
    dx: Option<&Tensor>,
    dweight: Option<&Tensor>,
    dbias: Option<&Tensor>,
) -> Result<()> {
    let (rows, features) = (x.dims()[0], x.dims()[1]);
    if let Some(dx) = dx
        && x.elements() > 0
    {
        let all = [Some(x), weight, Some(dy), Some(dx)];
        let all: Vec<&Tensor> = all.into_iter().flatten().collect();
        let plan = Rows::new(cuda, rows, features, usize::MAX, &all);
        let args = Args::new().tensor(x).optional(weight).tensor(mean).tensor(rstd);
        let args = plan.tell(args.tensor(dy).tensor(dx));
        let which = [
            kernels::LAYER_NORM_GRADIENT_SHORT,
            kernels::LAYER_NORM_GRADIENT_ROW,
            kernels::LAYER_NORM_GRADIENT_LONG,
        ];
        cuda.launch(plan.kernel(which), x.dtype(), plan.grid, args)?;
    }
    if features == 0 || (dweight.is_none() && dbias.is_none()) {
        return Ok(());
    }
    // Columns that a block takes: 128 bytes of a row.
    let width = (128 / x.dtype().size()).clamp(32, 64);
    let tiles = features.div_ceil(width);
    // Chunks of rows: as many as fill the chip, as are worth it, and as the scratch has room for.
    let wanted = (16 * cuda.gpu().properties.multiprocessors).div_ceil(tiles);
    let room = SCRATCH_BYTES / (2 * size_of::<f64>()) / features;
    let chunks = wanted.min(rows.div_ceil(64)).min(room).max(1);
    let chunk_rows = rows.div_ceil(chunks);
    let args = Args::new().tensor(x).tensor(mean).tensor(rstd).tensor(dy);
    let args = args.value(rows as u64).value(features as u64).value(width as u32);
    let scratch = cuda.scratch();
    let args = args.value(chunks as u64).value(chunk_rows as u64).value(scratch.address());
    let args = args.optional(dweight).optional(dbias);
    let grid = Grid::new(tiles * chunks, THREADS);
    cuda.launch(kernels::LAYER_NORM_COLUMNS, x.dtype(), grid, args)?;
    if chunks == 1 {
        return Ok(());
    }
    let args = Args::new().value(scratch.address()).value(chunks as u64).value(features as u64);
    let args = args.optional(dweight).optional(dbias);
    cuda.launch(kernels::LAYER_NORM_FINISH, x.dtype(), cuda.linear(features), args)
}
