//! The index of the largest element along an axis.

use super::Cuda;
use super::kernels;
use super::launch::{Args, Grid};
use super::memory::pointer;
use super::rows::{THREADS, columns};
use super::scratch::SCRATCH_BYTES;
use crate::error::Result;
use crate::tensor::Tensor;

/// Bytes of a candidate: a value and a position.
const BEST: usize = 16;
/// Longest row that lanes of a warp search, and least elements that are worth a block.
const SHORT: usize = 1024;
const PIECE: usize = 16 << 10;

pub(super) fn argmax(cuda: &Cuda, x: &Tensor, axis: usize, out: &Tensor) -> Result<()> {
    if x.elements() == 0 {
        return cuda.stream.fill_bytes(pointer(out), 0, out.elements() * out.dtype().size());
    }
    let n = x.dims()[axis];
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let outer = x.elements() / (n * inner);
    let args = Args::new().tensor(x).tensor(out).value(outer as u64).value(n as u64);
    if inner > 1 {
        let (grid, width) = columns(cuda, outer * inner, n);
        let args = args.value(inner as u64).value(width);
        return cuda.launch(kernels::ARGMAX_COLUMNS, x.dtype(), grid, args);
    }
    let most = cuda.gpu().properties.multiprocessors * 64;
    if n <= SHORT {
        let lanes = n.div_ceil(8).next_power_of_two().min(32);
        let grid = Grid::new(outer.div_ceil(THREADS / lanes).min(most), THREADS);
        return cuda.launch(kernels::ARGMAX_SHORT, x.dtype(), grid, args.value(lanes as u32));
    }
    // Few long rows are cut, so that all of the chip searches.
    let wanted = (most / 8).div_ceil(outer).min(n.div_ceil(PIECE));
    let pieces = wanted.min(SCRATCH_BYTES / BEST / outer).max(1);
    let grid = Grid::new((outer * pieces).min(most), THREADS);
    let scratch = cuda.scratch();
    let args = args.value(pieces as u64).value(scratch.address());
    cuda.launch(kernels::ARGMAX_LONG, x.dtype(), grid, args)?;
    if pieces == 1 {
        return Ok(());
    }
    let args = Args::new().value(scratch.address()).tensor(out);
    let args = args.value(outer as u64).value(pieces as u64);
    cuda.launch(kernels::ARGMAX_FINISH, x.dtype(), Grid::new(outer.min(most), THREADS), args)
}
