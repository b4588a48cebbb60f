//! How rows of neighbouring numbers are shared out among threads, and columns where the axis is not
//! the last: what the kernels of `kernels/rows.cuh` are told.

use super::Cuda;
use super::kernels::Kernel;
use super::launch::{Args, Grid};
use super::memory::pointer;
use crate::tensor::Tensor;

/// Numbers of a row that a thread holds, and threads of the largest block that holds one.
const HELD: usize = 16;
const HOLDERS: usize = 512;
/// Threads of a block that streams a row.
const STREAMERS: usize = 1024;
/// Threads of all other blocks.
pub(super) const THREADS: usize = 256;

/// What works on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Lanes(u32),
    Block,
    Stream,
}

/// A plan for rows of one length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    group: Group,
    pub(super) grid: Grid,
    rows: usize,
    n: usize,
    wide: bool,
}

/// Whether accesses of 16 bytes at rows of `n` elements are aligned in all of the tensors.
pub(super) fn aligned(n: usize, tensors: &[&Tensor]) -> bool {
    tensors
        .iter()
        .all(|x| pointer(x).is_multiple_of(16) && (n * x.dtype().size()).is_multiple_of(16))
}

impl Rows {
    /// For `rows` rows of `n` elements in each of the tensors; at most `most` blocks.
    pub(super) fn new(cuda: &Cuda, rows: usize, n: usize, most: usize, all: &[&Tensor]) -> Rows {
        let most = most.min(cuda.gpu().properties.multiprocessors * 64).max(1);
        let (group, grid) = if n <= 32 * HELD {
            let lanes = n.div_ceil(HELD / 2).next_power_of_two().clamp(1, 32);
            let blocks = rows.div_ceil(THREADS / lanes).min(most);
            (Group::Lanes(lanes as u32), Grid::new(blocks, THREADS))
        } else if n <= HOLDERS * HELD {
            let threads = n.div_ceil(HELD).next_multiple_of(32);
            (Group::Block, Grid::new(rows.min(most), threads))
        } else {
            (Group::Stream, Grid::new(rows.min(most), STREAMERS))
        };
        Rows { group, grid, rows, n, wide: aligned(n, all) }
    }

    /// Of the kernels for lanes, for a block that holds a row, and for one that streams it.
    pub(super) fn kernel(&self, [lanes, block, stream]: [Kernel; 3]) -> Kernel {
        match self.group {
            Group::Lanes(_) => lanes,
            Group::Block => block,
            Group::Stream => stream,
        }
    }

    /// Adds what the kernel is told of the rows.
    pub(super) fn tell(&self, args: Args) -> Args {
        let args = args.value(self.rows as u64);
        let lanes = match self.group {
            Group::Lanes(lanes) => lanes,
            Group::Block => self.grid.threads,
            Group::Stream => return args.value(self.n as u64),
        };
        args.value(self.n as u32).value(lanes).value(u32::from(self.wide))
    }
}

/// Blocks of [`THREADS`] threads for `columns` columns of length `n`, and how many columns a block
/// takes side by side; each is walked down by the threads that are left.
pub(super) fn columns(cuda: &Cuda, columns: usize, n: usize) -> (Grid, u32) {
    let multiprocessors = cuda.gpu().properties.multiprocessors;
    let mut width = THREADS;
    while width > 8
        && columns.div_ceil(width) < 4 * multiprocessors
        && THREADS / (width / 2) * 4 <= n
    {
        width /= 2;
    }
    let blocks = columns.div_ceil(width).min(64 * multiprocessors);
    (Grid::new(blocks, THREADS), width as u32)
}
