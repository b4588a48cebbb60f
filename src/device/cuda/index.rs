//! Reading and adding at indices, and the range of an index tensor.

use super::Cuda;
use super::kernels;
use super::launch::{Args, Grid};
use super::memory::pointer;
use super::rows::THREADS;
use super::scratch::SCRATCH_BYTES;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// Extents along an axis of `x` and of the index, and what lies within one step of the axis.
fn extents(x: &Tensor, axis: usize, index: &Tensor) -> [usize; 3] {
    [x.dims()[axis], index.dims()[axis], x.dims()[axis + 1..].iter().product()]
}

pub(super) fn gather(
    cuda: &Cuda,
    x: &Tensor,
    axis: usize,
    index: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let count = out.elements();
    if count == 0 {
        return Ok(());
    }
    let args = Args::new().tensor(x).tensor(index).value(u32::from(index.dtype() == DType::I64));
    let sizes = extents(x, axis, index).map(|size| size as u64);
    let args = sizes.into_iter().fold(args, Args::value).value(count as u64).tensor(out);
    cuda.launch_as(kernels::GATHER, Cuda::raw(x.dtype().size()), cuda.linear(count), args)
}

/// Longest lines for which each term looks at all others.
const FEW: usize = 8;
/// Targets of a line that a thread keeps sums for: 32 KiB a block.
const HEIGHT: usize = 16;
/// From this many targets on, f32 and f64 are added in place as on the CPU, where there are lines
/// enough to fill the chip with a thread each.
const IN_PLACE: usize = 4096;

pub(super) fn scatter_add(
    cuda: &Cuda,
    dy: &Tensor,
    axis: usize,
    index: &Tensor,
    out: &Tensor,
) -> Result<()> {
    if out.elements() == 0 {
        return Ok(());
    }
    let [n, m, inner] = extents(out, axis, index);
    let lines = out.elements() / n;
    let sizes = [lines / inner, n, m, inner].map(|size| size as u64);
    let wide = u64::from(index.dtype() == DType::I64);
    let described = [sizes[0], sizes[1], sizes[2], sizes[3], pointer(index), wide];
    let args = Args::new().value(described).tensor(dy).tensor(out);
    let multiprocessors = cuda.gpu().properties.multiprocessors;
    let half = dy.dtype().size() == 2;
    if m <= FEW || (!half && n > IN_PLACE && lines >= 512 * multiprocessors) {
        cuda.stream.fill_bytes(pointer(out), 0, out.elements() * out.dtype().size())?;
        let kernel = if m <= FEW { kernels::SCATTER_FEW } else { kernels::SCATTER_IN_PLACE };
        return cuda.launch(kernel, dy.dtype(), cuda.linear(lines), args);
    }
    let height = n.min(HEIGHT);
    let blocks = |parts: usize| (lines * parts).div_ceil(THREADS) * n.div_ceil(height);
    let mut parts = 1;
    while parts < THREADS
        && parts * 8 <= m
        && (blocks(parts) < 8 * multiprocessors || (inner == 1 && parts < 32))
    {
        parts *= 2;
    }
    let grid = Grid::new(blocks(parts).min(64 * multiprocessors), THREADS);
    let grid = grid.with_shared(height * THREADS * size_of::<f64>());
    let args = args.value((THREADS / parts) as u32).value(height as u32);
    cuda.launch(kernels::SCATTER_OWNED, dy.dtype(), grid, args)
}

pub(super) fn range(cuda: &Cuda, index: &Tensor, ignore: Option<i64>) -> Result<(i64, i64)> {
    const PAIR: usize = 2 * size_of::<i64>();
    let count = index.elements();
    let mut range = (i64::MAX, i64::MIN);
    if count == 0 {
        return Ok(range);
    }
    let most = (8 * cuda.gpu().properties.multiprocessors).min(SCRATCH_BYTES / PAIR);
    let blocks = count.div_ceil(4 * THREADS).min(most);
    let args = Args::new().tensor(index).value(count as u64).value(u32::from(ignore.is_some()));
    let scratch = cuda.scratch();
    let args = args.value(ignore.unwrap_or(0)).value(scratch.address());
    cuda.launch(kernels::INDEX_RANGE, index.dtype(), Grid::new(blocks, THREADS), args)?;
    let mut pairs = vec![0i64; 2 * blocks];
    cuda.stream.read(scratch.address(), bytemuck::cast_slice_mut(&mut pairs), 0)?;
    for pair in pairs.chunks_exact(2) {
        range = (range.0.min(pair[0]), range.1.max(pair[1]));
    }
    Ok(range)
}
