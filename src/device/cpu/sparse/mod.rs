//! Sparse × dense products on the CPU: `A·X`, `Aᵀ·G` and the sampled product (the gradient for the
//! values), in both layouts of the dense side, as candidates of known workspace.
//!
//! Every result is bitwise independent of the number of threads: each output element is summed in
//! an order that the shape fixes, whatever task happens to do it.

mod candidates;
mod cost;
mod csr;
mod dense;
mod forward;
mod interleave;
mod lanes;
mod private;
mod sampled;
mod scatter;
#[cfg(test)]
mod tests;
mod transposed;
mod walk;

pub(super) use candidates::candidates;
pub(super) use csr::{Csr, OffsetsRef};

use crate::device::spec::{SparseProduct, SparseSpec};
use crate::dtype::Float;
use crate::plan::Candidate;
use dense::{Dense, Target};

/// Which algorithm a [`Candidate`] is: its `code`.
mod code {
    pub(super) const ROWS: u32 = 1;
    pub(super) const ROWS_INTERLEAVED: u32 = 2;
    pub(super) const STORED: u32 = 3;
    pub(super) const STORED_INTERLEAVED: u32 = 4;
    pub(super) const COLUMN_RANGES: u32 = 5;
    pub(super) const COLUMN_STRIPS: u32 = 6;
    pub(super) const COLUMNS_BUFFERED: u32 = 7;
    pub(super) const PRIVATE: u32 = 8;
    pub(super) const SAMPLED: u32 = 9;
    pub(super) const SAMPLED_INTERLEAVED: u32 = 10;
}

/// Runs `A·X` or `Aᵀ·G` with one of its [`candidates`], on the rayon pool it is called in, and
/// writes every element of `out`, or adds to it where the specification says so. The workspace holds
/// what the candidate asked for, aligned to 64 bytes; `stored_transpose` is there where the
/// specification says so.
///
/// # Panics
/// Operands, workspace or candidate that do not fit the specification, which the operation and the
/// planner have made sure of.
#[allow(clippy::too_many_arguments)]
pub(super) fn run<T: Float>(
    spec: &SparseSpec,
    candidate: &Candidate,
    csr: &Csr<'_, T>,
    stored_transpose: Option<&Csr<'_, T>>,
    x: &[T],
    out: &mut [T],
    workspace: &mut [u8],
) {
    check_matrix(spec, csr);
    let (from, to) = match spec.product {
        SparseProduct::Forward => (spec.cols, spec.rows),
        _ => (spec.rows, spec.cols),
    };
    let n = spec.width;
    let x = Dense::new(x, from, n, spec.layout);
    let out = Target::new(out, to, n, spec.layout).adding(spec.accumulate);
    // By rows of whichever matrix has the result's rows as its own.
    let by_rows = match candidate.code {
        code::STORED | code::STORED_INTERLEAVED => {
            let transpose = stored_transpose.expect("the specification says that there is one");
            assert_eq!((transpose.rows, transpose.cols), (csr.cols, csr.rows));
            transpose
        }
        _ => csr,
    };
    let params = &candidate.params;
    match (spec.product, candidate.code) {
        (SparseProduct::Forward, code::ROWS) | (SparseProduct::Transposed, code::STORED) => {
            forward::rows(by_rows, x, out, 0..n);
        }
        (SparseProduct::Forward, code::ROWS_INTERLEAVED)
        | (SparseProduct::Transposed, code::STORED_INTERLEAVED) => {
            forward::interleaved(by_rows, x, out, n, params[0], workspace);
        }
        (SparseProduct::Transposed, code::COLUMN_RANGES) => transposed::direct(csr, x, out, n),
        (SparseProduct::Transposed, code::COLUMN_STRIPS) => transposed::strips(csr, x, out, n),
        (SparseProduct::Transposed, code::COLUMNS_BUFFERED) => {
            transposed::buffered(csr, x, out, n, params[0], workspace);
        }
        (SparseProduct::Transposed, code::PRIVATE) => {
            private::run(csr, x, out, n, params[0], params[1], workspace);
        }
        _ => unreachable!("{candidate:?} is not one for {spec:?}"),
    }
}

/// Runs the sampled product with one of its [`candidates`]: `out[e] = Σ_j row_side[row e, j] ·
/// col_side[col e, j]` over the pattern of `csr`, or `+=` where the specification says so. For
/// `Y = A·X`, `row_side` is dY and `col_side` X; for `Y = Aᵀ·G` they are G and dY.
///
/// # Panics
/// As [`run`].
pub(super) fn run_sampled<T: Float>(
    spec: &SparseSpec,
    candidate: &Candidate,
    csr: &Csr<'_, T>,
    row_side: &[T],
    col_side: &[T],
    out: &mut [T],
    workspace: &mut [u8],
) {
    check_matrix(spec, csr);
    assert_eq!(out.len(), spec.nnz, "there is one product for each entry");
    let (n, add) = (spec.width, spec.accumulate);
    let row_side = Dense::new(row_side, spec.rows, n, spec.layout);
    let col_side = Dense::new(col_side, spec.cols, n, spec.layout);
    match (spec.product, candidate.code) {
        (SparseProduct::Sampled, code::SAMPLED) => {
            sampled::entries(csr, row_side, col_side, n, out, add);
        }
        (SparseProduct::Sampled, code::SAMPLED_INTERLEAVED) => {
            let block = candidate.params[0];
            sampled::interleaved(csr, row_side, col_side, n, out, add, block, workspace);
        }
        _ => unreachable!("{candidate:?} is not one for {spec:?}"),
    }
}

fn check_matrix<T: Float>(spec: &SparseSpec, csr: &Csr<'_, T>) {
    let (is, said) = ((csr.rows, csr.cols, csr.nnz()), (spec.rows, spec.cols, spec.nnz));
    assert_eq!(is, said, "the matrix is the specification's");
}

/// The first `len` numbers of the workspace; an empty one need not be aligned.
fn numbers<S: Float>(workspace: &mut [u8], len: usize) -> &mut [S] {
    if len == 0 {
        return &mut [];
    }
    bytemuck::cast_slice_mut(&mut workspace[..len * size_of::<S>()])
}
