//! How the kernels that have a strip of columns in shared memory share out the work: see
//! `kernels/sparse_strips.cu`.

use super::job::{Problem, sum_size};
use crate::device::cuda::Cuda;
use crate::device::cuda::launch::Grid;
use crate::device::spec::Form;
use crate::sparse::tiled;

/// Threads of a block of the kernels that have many warps for a strip.
pub(super) const THREADS: usize = 512;
/// Blocks of those that a multiprocessor has registers for.
const BLOCKS: usize = 2;
/// Bytes of shared memory for a strip.
pub(super) fn bytes(problem: &Problem) -> usize {
    match problem.stored.form {
        Form::Tiled { strip } => {
            ((strip + tiled::BEYOND) * sum_size(problem.dtype)).next_multiple_of(16)
        }
        _ => 0,
    }
}

/// Blocks with a strip each that are at work at a time.
pub(super) fn blocks_at_once(cuda: &Cuda, problem: &Problem, threads: usize) -> usize {
    let most = if threads == THREADS { BLOCKS } else { 32 };
    let fit = (cuda.shared_per_block() + tiled::BESIDE) / (bytes(problem) + tiled::BESIDE);
    fit.clamp(1, most) * cuda.gpu().properties.multiprocessors
}

/// Parts of the rows, groups of strips, and vectors, with room for a strip.
pub(super) fn grid(problem: &Problem, [rows, groups, vectors]: [usize; 3], threads: usize) -> Grid {
    Grid::new(rows, threads).across(groups, vectors).with_shared(bytes(problem))
}

/// Groups of strips, none of them empty.
pub(super) fn even_groups(problem: &Problem, groups: usize) -> usize {
    let strips = problem.strips().max(1);
    strips.div_ceil(strips.div_ceil(groups.clamp(1, strips)))
}

/// Groups of strips that have blocks of their own, so that each block has many rows of few strips.
pub(super) fn groups(cuda: &Cuda, problem: &Problem) -> usize {
    const ROWS: usize = 4096;
    let blocks = blocks_at_once(cuda, problem, THREADS);
    even_groups(problem, (blocks * ROWS).div_ceil(problem.rows.max(1)))
}

/// Parts of the rows where the strips are in `groups` groups.
pub(super) fn row_parts(cuda: &Cuda, problem: &Problem, groups: usize) -> usize {
    let parts = blocks_at_once(cuda, problem, THREADS) / groups.max(1);
    parts.clamp(1, problem.rows.div_ceil(THREADS).max(1))
}

/// Entries of a piece on average.
pub(super) fn mean_piece(problem: &Problem) -> f64 {
    problem.nnz as f64 / (problem.stored.filled * problem.strips()).max(1) as f64
}

/// Lanes for a piece, each of which takes four entries at a time.
pub(super) fn lanes(problem: &Problem) -> u32 {
    let units = (mean_piece(problem) / tiled::ALIGN as f64).ceil() as u32;
    units.clamp(4, 32).next_power_of_two()
}
