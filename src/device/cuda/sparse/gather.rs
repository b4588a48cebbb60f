//! Products that add up a row's entries: see `kernels/sparse_rows.cu` and `sparse_strips.cu`.

use super::job::{Job, Method, Problem, Side, Space, THREADS, by_width, lanes};
use super::library;
use super::matrix::{Matrix, Operands};
use super::stream;
use super::strips;
use crate::device::cuda::Cuda;
use crate::device::cuda::conv::to_last;
use crate::device::cuda::kernels;
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::Form;
use crate::error::Result;

pub(super) fn run(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    operands: &Operands<'_>,
    x: u64,
    out: u64,
    space: &Space,
) -> Result<()> {
    if let Method::Library(index) = job.method {
        return library::run(cuda, problem, job, index, operands, x, out, space);
    }
    if problem.stored.form == Form::Streamed {
        if !problem.accumulate {
            zero(cuda, problem, out, problem.width)?;
        }
        let added = Problem { accumulate: true, ..*problem };
        return stream::each_chunk(cuda, problem, job, operands, space.chunks, true, |matrix| {
            rows(cuda, &added, job, matrix, x, out, space)
        });
    }
    let matrix = operands.matrix(problem);
    if job.method == Method::Strips {
        return strips(cuda, problem, job, &matrix, x, out, space);
    }
    rows(cuda, problem, job, &matrix, x, out, space)
}

/// Sets the result of `vectors` vectors to zero.
pub(super) fn zero(cuda: &Cuda, problem: &Problem, out: u64, vectors: usize) -> Result<()> {
    let bytes = problem.to() * vectors * problem.dtype.size();
    cuda.stream.fill_bytes(out, 0, bytes)
}

/// By the rows, of the part of a matrix that is here.
fn rows(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    matrix: &Matrix,
    x: u64,
    out: u64,
    space: &Space,
) -> Result<()> {
    let (from, to) = (problem.side(problem.cols), problem.side(problem.rows));
    if job.method == Method::RowsOne {
        return one(cuda, problem, matrix, (x, from), (out, to));
    }
    if job.block == 0 {
        let width = problem.width;
        return side_by_side(cuda, problem, job, matrix, (x, width), (out, to), width, space);
    }
    let size = problem.dtype.size();
    for first in (0..problem.width).step_by(job.block) {
        let vectors = job.block.min(problem.width - first);
        let source = x + (first * problem.cols * size) as u64;
        // Vectors of `cols` elements become rows of `vectors`.
        to_last(cuda, problem.dtype, 1, vectors, problem.cols, (0, 0), source, space.moved)?;
        let target = out + (first * problem.rows * size) as u64;
        let x = (space.moved, vectors);
        side_by_side(cuda, problem, job, matrix, x, (target, to), vectors, space)?;
    }
    Ok(())
}

/// Lanes that share a row. Each has several of its entries, so that it waits for many loads at once.
pub(super) fn lanes_of_row(problem: &Problem) -> usize {
    let mean = problem.nnz / problem.stored.filled.max(1);
    (mean / 8).clamp(1, 32).next_power_of_two()
}

fn one(
    cuda: &Cuda,
    problem: &Problem,
    matrix: &Matrix,
    (x, from): (u64, Side),
    (out, to): (u64, Side),
) -> Result<()> {
    let kernel = match problem.stored.form {
        Form::Tiled { .. } if problem.apart => kernels::ROWS_ONE_APART,
        Form::Tiled { .. } => kernels::ROWS_ONE_TILED,
        _ => kernels::ROWS_ONE_CSR,
    };
    let lanes = lanes_of_row(problem);
    let rows = (matrix.row_end - matrix.row_begin) as usize;
    let grid = Grid::new(rows.div_ceil(THREADS / lanes), THREADS).across(problem.width, 1);
    let args = Args::new().value(*matrix).value(x).value(from).value(out).value(to);
    let args = args.value(problem.width as u64).value(lanes as u32);
    cuda.launch(kernel, problem.dtype, grid, args.value(u32::from(problem.accumulate)))
}

#[allow(clippy::too_many_arguments)]
fn side_by_side(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    matrix: &Matrix,
    (x, ld): (u64, usize),
    (out, to): (u64, Side),
    vectors: usize,
    space: &Space,
) -> Result<()> {
    use kernels::*;
    let (each, lanes) = lanes(problem.dtype, ld, vectors, &[x]);
    let pick = |kernels| by_width(kernels, each);
    let rows = (matrix.row_end - matrix.row_begin) as usize;
    let (kernel, blocks) = match (job.method, problem.stored.form) {
        (Method::RowsShort, _) => {
            let kernels = [ROWS_SHORT_1, ROWS_SHORT_2, ROWS_SHORT_4];
            (pick(kernels), rows.div_ceil(THREADS / lanes))
        }
        (Method::RowsSplit, _) => {
            let warps = problem.nnz.div_ceil(job.parts);
            (pick([ROWS_SPLIT_1, ROWS_SPLIT_2, ROWS_SPLIT_4]), warps.div_ceil(THREADS / 32))
        }
        (_, Form::Tiled { .. }) if problem.apart => {
            let kernels = [ROWS_WIDE_APART_1, ROWS_WIDE_APART_2, ROWS_WIDE_APART_4];
            (pick(kernels), rows.div_ceil(THREADS / 32))
        }
        (_, Form::Tiled { .. }) => {
            let kernels = [ROWS_WIDE_TILED_1, ROWS_WIDE_TILED_2, ROWS_WIDE_TILED_4];
            (pick(kernels), rows.div_ceil(THREADS / 32))
        }
        _ => {
            let kernels = [ROWS_WIDE_CSR_1, ROWS_WIDE_CSR_2, ROWS_WIDE_CSR_4];
            (pick(kernels), rows.div_ceil(THREADS / 32))
        }
    };
    let add = u32::from(problem.accumulate);
    if job.method == Method::RowsSplit && !problem.accumulate {
        // Rows without entries.
        zero(cuda, problem, out, vectors)?;
    }
    let grid = Grid::new(blocks, THREADS).across(vectors.div_ceil(each * lanes), 1);
    let args = Args::new().value(*matrix).value(x).value(ld as u64).value(out).value(to);
    let args = args.value(vectors as u64).value(lanes as u32).value(add);
    if job.method != Method::RowsSplit {
        return cuda.launch(kernel, problem.dtype, grid, args);
    }
    let chunk = job.parts as u64;
    cuda.launch(kernel, problem.dtype, grid, args.value(chunk).value(space.partial))?;
    let args = Args::new().value(*matrix).value(out).value(to).value(vectors as u64);
    let args = args.value(add).value(chunk).value(space.partial);
    cuda.launch(ROWS_JOIN, problem.dtype, Grid::new(blocks, THREADS), args)
}

fn strips(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    matrix: &Matrix,
    x: u64,
    out: u64,
    space: &Space,
) -> Result<()> {
    let partial = job.has_partial_sums(problem);
    let (from, to) = (problem.side(problem.cols), problem.side(problem.rows));
    let row_parts = strips::row_parts(cuda, problem, job.parts);
    // Partial sums are those of one vector.
    let at_once = if partial { 1 } else { problem.width };
    for first in (0..problem.width).step_by(at_once) {
        let x = problem.vector(from, x, first);
        let out = problem.vector(to, out, first);
        let grid = strips::grid(problem, [row_parts, job.parts, at_once], strips::THREADS);
        let args = Args::new().value(*matrix).value(x).value(from).value(out).value(to);
        let args = args.value(at_once as u64).value(strips::lanes(problem));
        let args = args.value(u32::from(problem.accumulate));
        let args = args.value(if partial { space.partial } else { 0 });
        cuda.launch(kernels::STRIPS_FORWARD, problem.dtype, grid, args)?;
        if partial {
            join(cuda, problem, job.parts, space.partial, out, problem.rows)?;
        }
    }
    Ok(())
}

/// Adds up the partial sums of one vector of the result.
pub(super) fn join(
    cuda: &Cuda,
    problem: &Problem,
    parts: usize,
    partial: u64,
    out: u64,
    length: usize,
) -> Result<()> {
    let args = Args::new().value(partial).value(parts as u64).value(length as u64).value(1u64);
    let side = problem.side(length);
    let args = args.value(out).value(side.step).value(side.apart);
    let args = args.value(u32::from(problem.accumulate));
    cuda.launch(kernels::STRIPS_JOIN, problem.dtype, cuda.linear(length), args)
}
