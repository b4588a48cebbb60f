//! Products that add a row's entries to their columns: see `kernels/sparse_scatter.cu` and
//! `sparse_strips.cu`.

use super::gather::{join, zero};
use super::job::{Job, Method, Problem, Side, Space, THREADS, by_width, lanes, sum_size};
use super::library;
use super::matrix::{Matrix, Operands};
use super::stream;
use super::strips;
use crate::device::cuda::Cuda;
use crate::device::cuda::kernels;
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::Form;
use crate::error::Result;

/// What becomes of sums: as `sparse_strips.cu` numbers it.
const DIRECT: u32 = 0;
const ATOMIC: u32 = 1;
const PARTIAL: u32 = 2;

/// Entries of a warp: enough warps to fill the chip several times, and enough entries that finding
/// the first row is nothing.
pub(super) fn share_of_warp(cuda: &Cuda, entries: u64) -> u64 {
    let warps = cuda.gpu().properties.multiprocessors as u64 * 64 * 4;
    entries.div_ceil(warps).next_multiple_of(128).clamp(128, 4096)
}

pub(super) fn run(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    operands: &Operands<'_>,
    g: u64,
    out: u64,
    space: &Space,
) -> Result<()> {
    if let Method::Library(index) = job.method {
        return library::run(cuda, problem, job, index, operands, g, out, space);
    }
    // Vectors whose sums are kept apart at a time; all, where sums go to the result.
    let at_once = if job.block > 0 { job.block } else { problem.width };
    for first in (0..problem.width).step_by(at_once.max(1)) {
        let vectors = at_once.min(problem.width - first);
        block(cuda, problem, job, operands, g, out, space, first, vectors)?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)]
fn block(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    operands: &Operands<'_>,
    g: u64,
    out: u64,
    space: &Space,
    first: usize,
    vectors: usize,
) -> Result<()> {
    let (from, to) = (problem.side(problem.rows), problem.side(problem.cols));
    let (g, out) = (problem.vector(from, g, first), problem.vector(to, out, first));
    // Sums in the workspace lie side by side.
    let apart = job.block > 0;
    let (sums, of_sums) = match apart {
        true => (space.sums, Side { step: vectors as u64, apart: 1 }),
        false => (out, to),
    };
    let streamed = problem.stored.form == Form::Streamed;
    let adds_up = match job.method {
        Method::Scatter => true,
        Method::StripsScatter => job.parts > 1 && !job.has_partial_sums(problem),
        _ => streamed,
    };
    if apart {
        let bytes = problem.cols * vectors * sum_size(problem.dtype);
        cuda.stream.fill_bytes(sums, 0, bytes)?;
    } else if adds_up && !problem.accumulate {
        // All vectors at once.
        zero(cuda, problem, out, problem.width)?;
    }
    let call = Call { cuda, problem, job, g, from, sums, of_sums, vectors, apart, adds_up };
    if streamed {
        stream::each_chunk(cuda, problem, job, operands, space.chunks, true, |matrix| {
            call.run(matrix, space.partial)
        })?;
    } else {
        call.run(&operands.matrix(problem), space.partial)?;
    }
    if !apart {
        return Ok(());
    }
    let args = Args::new().value(sums).value(problem.cols as u64).value(vectors as u64);
    let args = args.value(vectors as u64).value(out).value(to.step).value(to.apart);
    let tiles = problem.cols.div_ceil(32).saturating_mul(vectors.div_ceil(32));
    let grid = Grid::new(tiles, THREADS);
    cuda.launch(
        kernels::SUMS_FINISH,
        problem.dtype,
        grid,
        args.value(u32::from(problem.accumulate)),
    )
}

/// Vectors that are scattered together, and where their sums go.
struct Call<'a> {
    cuda: &'a Cuda,
    problem: &'a Problem,
    job: &'a Job,
    g: u64,
    from: Side,
    sums: u64,
    of_sums: Side,
    vectors: usize,
    /// Whether the sums are in the workspace, in the type of sums.
    apart: bool,
    /// Whether sums are added to what is there.
    adds_up: bool,
}

impl Call<'_> {
    fn run(&self, matrix: &Matrix, partial: u64) -> Result<()> {
        match self.job.method {
            Method::Scatter => self.atomics(matrix),
            Method::RowsOrdered => self.ranges(matrix, partial),
            _ => self.strips(matrix, partial),
        }
    }

    fn atomics(&self, matrix: &Matrix) -> Result<()> {
        use kernels::*;
        let (cuda, problem, vectors) = (self.cuda, self.problem, self.vectors);
        // Only where vectors lie side by side can a lane take several.
        let (each, lanes) = match self.of_sums.apart {
            1 => lanes(problem.dtype, self.of_sums.step as usize, vectors, &[self.sums]),
            _ => (1, 1),
        };
        let pick = |kernels| by_width(kernels, each);
        let kernel = match problem.stored.form {
            Form::Tiled { .. } if problem.apart => {
                pick([SCATTER_APART_1, SCATTER_APART_2, SCATTER_APART_4])
            }
            Form::Tiled { .. } => pick([SCATTER_TILED_1, SCATTER_TILED_2, SCATTER_TILED_4]),
            _ => pick([SCATTER_CSR_1, SCATTER_CSR_2, SCATTER_CSR_4]),
        };
        let entries = matrix.last - matrix.first;
        let chunk = share_of_warp(cuda, entries);
        let warps = entries.div_ceil(chunk) as usize;
        let grid = Grid::new(warps.div_ceil(THREADS / 32), THREADS);
        let grid = grid.across(vectors.div_ceil(each * lanes), 1);
        let args = Args::new().value(*matrix).value(self.g).value(self.from).value(self.sums);
        let args = args.value(self.of_sums).value(vectors as u64).value(lanes as u32).value(chunk);
        cuda.launch(kernel, problem.dtype, grid, args)
    }

    /// What the ordered kernels and those of the strips do with their sums.
    fn how(&self) -> (u32, u32) {
        let add = u32::from(self.problem.accumulate);
        match self.job.method {
            _ if self.job.has_partial_sums(self.problem) => (PARTIAL, add),
            Method::StripsScatter if self.adds_up => (ATOMIC, 1),
            // To sums of their own type, from chunk to chunk.
            Method::RowsOrdered if self.apart => (ATOMIC, 1),
            Method::RowsOrdered if self.adds_up => (DIRECT, 1),
            _ => (DIRECT, add),
        }
    }

    fn strips(&self, matrix: &Matrix, partial: u64) -> Result<()> {
        let (cuda, problem, job) = (self.cuda, self.problem, self.job);
        let many = job.method == Method::StripsScatter;
        let (kernel, threads) = match many {
            true => (kernels::STRIPS_TRANSPOSED, strips::THREADS),
            false if problem.apart => (kernels::STRIPS_ORDERED_APART, 32),
            false => (kernels::STRIPS_ORDERED_TILED, 32),
        };
        let (how, add) = self.how();
        let at_once = if how == PARTIAL { 1 } else { self.vectors };
        for first in (0..self.vectors).step_by(at_once) {
            let g = problem.vector(self.from, self.g, first);
            let out = problem.vector(self.of_sums, self.sums, first);
            let grid = strips::grid(problem, [job.parts, problem.strips(), at_once], threads);
            let target = if how == PARTIAL { partial } else { out };
            let args = Args::new().value(*matrix).value(g).value(self.from).value(target);
            let args = args.value(self.of_sums).value(at_once as u64);
            let args = if many { args.value(strips::lanes(problem)) } else { args };
            cuda.launch(kernel, problem.dtype, grid, args.value(how).value(add))?;
            if how == PARTIAL {
                join(cuda, problem, job.parts, partial, out, problem.cols)?;
            }
        }
        Ok(())
    }

    fn ranges(&self, matrix: &Matrix, partial: u64) -> Result<()> {
        let (cuda, problem, job) = (self.cuda, self.problem, self.job);
        let range = range(problem);
        let (how, add) = self.how();
        let at_once = if how == PARTIAL { 1 } else { self.vectors };
        for first in (0..self.vectors).step_by(at_once) {
            let g = problem.vector(self.from, self.g, first);
            let out = match self.apart {
                true => self.sums + (first * sum_size(problem.dtype)) as u64,
                false => problem.vector(self.of_sums, self.sums, first),
            };
            let grid = Grid::new(job.parts, 32)
                .across(problem.cols.div_ceil(range), at_once)
                .with_shared(range * sum_size(problem.dtype));
            let target = if how == PARTIAL { partial } else { out };
            let args = Args::new().value(*matrix).value(g).value(self.from.apart);
            let args = args.value(self.from.step).value(target).value(self.of_sums.apart);
            let args = args.value(self.of_sums.step).value(at_once as u64).value(range as u64);
            let args = args.value(how).value(add);
            cuda.launch(kernels::ROWS_ORDERED, problem.dtype, grid, args)?;
            if how == PARTIAL {
                join(cuda, problem, job.parts, partial, out, problem.cols)?;
            }
        }
        Ok(())
    }
}

/// Bytes of shared memory for a range of columns: several such blocks fit a multiprocessor.
const RANGE_BYTES: usize = 24 << 10;

/// Columns of a range of the ordered kernel.
pub(super) fn range(problem: &Problem) -> usize {
    let most = RANGE_BYTES / sum_size(problem.dtype);
    problem.cols.div_ceil(problem.cols.div_ceil(most).max(1)).max(1)
}
