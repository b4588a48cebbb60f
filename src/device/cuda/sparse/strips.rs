//! How wide strips of columns are, and how the kernels that have one in shared memory share out the
//! work: see `kernels/sparse_strips.cu`.

use super::job::{Problem, sum_size};
use crate::device::cuda::Cuda;
use crate::device::cuda::launch::Grid;
use crate::device::spec::Form;
use crate::dtype::DType;
use crate::sparse::tiled;

/// Threads of a block of the kernels that have many warps for a strip.
pub(super) const THREADS: usize = 512;
/// Blocks of those that a multiprocessor has registers for.
const BLOCKS: usize = 2;
/// Shared memory that a block takes beside its strip.
const BESIDE: usize = 1 << 10;
/// Bytes of shared memory that a strip should have, so that as many blocks fit a multiprocessor as its
/// registers allow.
const STRIP: usize = 112 << 10;
/// The widest strip: its columns and the one past them are 16-bit numbers.
const WIDEST: usize = u16::MAX as usize;
/// Entries that a piece should at least have on average: shorter ones are mostly overhead.
const PIECE: usize = 32;

/// Columns of a strip for a matrix of so many columns whose rows have `mean` entries; strips are all
/// alike. `None` where there are no columns, or no room for any.
pub(in crate::device::cuda) fn width(
    cuda: &Cuda,
    dtype: DType,
    cols: usize,
    mean: usize,
) -> Option<usize> {
    let all = cuda.shared_per_block();
    let even = |strips_at_once: usize| {
        let room = (all / strips_at_once).checked_sub(BESIDE)? / sum_size(dtype);
        // One more holds the zero that padding reads.
        let widest = room.checked_sub(1)?.min(WIDEST) & !3;
        if widest == 0 || cols == 0 {
            return None;
        }
        let even = cols.div_ceil(cols.div_ceil(widest)).next_multiple_of(4);
        Some(even.min(widest))
    };
    // As many at once as is best, or fewer and wider ones for short rows.
    let mut at_once = ((all + STRIP / 2) / STRIP).max(1);
    while at_once > 1 {
        match even(at_once) {
            Some(strip) if mean / tiled::strips(cols, strip) >= PIECE => return Some(strip),
            _ => at_once /= 2,
        }
    }
    even(1)
}

/// Bytes of shared memory for a strip.
pub(super) fn bytes(problem: &Problem) -> usize {
    match problem.stored.form {
        Form::Tiled { strip } => ((strip + 1) * sum_size(problem.dtype)).next_multiple_of(16),
        _ => 0,
    }
}

/// Blocks with a strip each that are at work at a time.
pub(super) fn blocks_at_once(cuda: &Cuda, problem: &Problem, threads: usize) -> usize {
    let most = if threads == THREADS { BLOCKS } else { 32 };
    let fit = (cuda.shared_per_block() + BESIDE) / (bytes(problem) + BESIDE);
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
