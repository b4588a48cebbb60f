//! Products by cuSPARSE, on compressed rows.

use super::job::{Job, Problem, Space};
use super::matrix::Operands;
use crate::device::cuda::Cuda;
use crate::device::cuda::conv::{from_last, to_last};
use crate::device::cuda::cusparse::{Algorithm, SparseCall, SparseOffer, SparseOperands};
use crate::device::spec::DenseLayout;
use crate::error::{Error, Result};

/// The library's call for `vectors` vectors, side by side or each contiguous.
fn call(problem: &Problem, vectors: usize, side_by_side: bool, algorithm: Algorithm) -> SparseCall {
    SparseCall {
        transposed: problem.scatters,
        rows: problem.rows,
        cols: problem.cols,
        nnz: problem.nnz,
        wide_offsets: problem.nnz > i32::MAX as usize,
        width: vectors,
        by_rows: !side_by_side,
        dtype: problem.dtype,
        accumulate: problem.accumulate && side_by_side_in_place(problem, vectors, side_by_side),
        algorithm,
    }
}

/// Whether the library writes to the result itself: what it leaves in the workspace is brought to its
/// place, or added there, by another kernel.
fn side_by_side_in_place(problem: &Problem, vectors: usize, side_by_side: bool) -> bool {
    !side_by_side || vectors == 1 || problem.layout == DenseLayout::Columns
}

/// An algorithm that takes the product, and its buffer.
pub(super) struct Taken {
    pub(super) index: u8,
    pub(super) offer: SparseOffer,
    pub(super) buffer: usize,
}

/// The algorithms that take `vectors` vectors of the product. A buffer that the library does not
/// tell is an algorithm that it does not have.
pub(super) fn algorithms(
    cuda: &Cuda,
    problem: &Problem,
    vectors: usize,
    side_by_side: bool,
) -> Vec<Taken> {
    if cuda.cusparse().is_none() || problem.apart {
        return Vec::new();
    }
    let any = call(problem, vectors, side_by_side, Algorithm::SpmmCsr1);
    if !any.fits() {
        return Vec::new();
    }
    let offers = any.algorithms().iter().enumerate();
    offers
        .filter_map(|(index, &offer)| {
            let call = SparseCall { algorithm: offer.algorithm, ..any };
            let buffer = cuda.sparse_buffer(&call).ok()?;
            Some(Taken { index: index as u8, offer, buffer })
        })
        .collect()
}

#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    index: u8,
    operands: &Operands<'_>,
    x: u64,
    out: u64,
    space: &Space,
) -> Result<()> {
    let matrix = operands.matrix(problem);
    let product = |x: u64, out: u64, vectors: usize, side_by_side: bool| {
        let any = call(problem, vectors, side_by_side, Algorithm::SpmmCsr1);
        let Some(offer) = any.algorithms().get(usize::from(index)) else {
            return Err(Error::driver("cuSPARSE", "an algorithm that it does not have"));
        };
        let call = SparseCall { algorithm: offer.algorithm, ..any };
        let (offsets, columns, values) = (matrix.offsets, matrix.columns, matrix.values);
        let operands = SparseOperands { offsets, columns, values, x, out };
        cuda.sparse_call(&call, &operands, (space.partial, job.parts))
    };
    if job.block == 0 {
        return product(x, out, problem.width, problem.layout == DenseLayout::Columns);
    }
    let (dtype, size) = (problem.dtype, problem.dtype.size());
    let (from, to) = (problem.from(), problem.to());
    let vectors = job.block;
    for first in (0..problem.width).step_by(vectors) {
        // The last block begins earlier where it would be smaller: other numbers of vectors have
        // other algorithms and buffers.
        let first = first.min(problem.width - vectors);
        to_last(
            cuda,
            dtype,
            1,
            vectors,
            from,
            (0, 0),
            x + (first * from * size) as u64,
            space.moved,
        )?;
        product(space.moved, space.sums, vectors, true)?;
        let target = out + (first * to * size) as u64;
        from_last(cuda, dtype, 1, vectors, to, space.sums, target, 0)?;
    }
    Ok(())
}
