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

pub use candidates::candidates;
pub use csr::{Csr, OffsetsRef};

use crate::dtype::Float;
use crate::plan::candidate::Candidate;
use dense::{Dense, Target};

/// How the vectors of the dense side lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[k, n]` row-major: the vectors side by side, as `matmul` takes them.
    Columns,
    /// `[b, k]` row-major: one vector after the other, as `apply` takes them.
    BatchFirst,
}

/// Which product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// `A·X`.
    Forward,
    /// `Aᵀ·G`.
    Transposed,
    /// `dv[e] = Σ_j R[row e, j] · C[col e, j]`, the gradient for the values.
    Sampled,
}

/// A product but for its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SparseSpec {
    /// Which product.
    pub product: Product,
    /// How the dense operands, and the result of all but the sampled product, are laid out.
    pub layout: Layout,
    /// How many vectors.
    pub width: usize,
    /// Whether the result is added to what the output holds.
    pub accumulate: bool,
}

/// Why a product could not be run: the caller and the plan do not agree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// An operand of another length than the specification and the matrix give.
    #[error("{what} has {got} elements where {expected} are needed")]
    Length {
        /// Which operand.
        what: &'static str,
        /// The length that is needed.
        expected: usize,
        /// The length it has.
        got: usize,
    },
    /// Less workspace than the candidate asked for, or not aligned.
    #[error(
        "the workspace of {got} bytes is smaller than the candidate's {expected}, or unaligned"
    )]
    Workspace {
        /// The candidate's workspace.
        expected: u64,
        /// What was given.
        got: usize,
    },
    /// A candidate that needs a stored transpose, of this shape, without one.
    #[error("the candidate needs a stored transpose of the matrix")]
    NoTranspose,
    /// A candidate that is not for this product.
    #[error("algorithm {code} is not one for this product")]
    Unknown {
        /// Its number.
        code: u32,
    },
}

/// Which algorithm a [`Candidate`] is: its `code`.
pub(crate) mod code {
    pub const ROWS: u32 = 1;
    pub const ROWS_INTERLEAVED: u32 = 2;
    pub const STORED: u32 = 3;
    pub const STORED_INTERLEAVED: u32 = 4;
    pub const COLUMN_RANGES: u32 = 5;
    pub const COLUMN_STRIPS: u32 = 6;
    pub const COLUMNS_BUFFERED: u32 = 7;
    pub const PRIVATE: u32 = 8;
    pub const SAMPLED: u32 = 9;
    pub const SAMPLED_INTERLEAVED: u32 = 10;
}

/// Runs `A·X` or `Aᵀ·G` with one of its [`candidates`], on the rayon pool it is called in. Every
/// element of `out` is written (added to, with `accumulate`). The workspace holds what the
/// candidate asked for, aligned to 64 bytes.
///
/// # Errors
/// Operands, workspace or candidate that do not fit the specification; nothing is written then.
#[allow(clippy::too_many_arguments)]
pub fn run<T: Float>(
    spec: &SparseSpec,
    candidate: &Candidate,
    csr: &Csr<'_, T>,
    stored_transpose: Option<&Csr<'_, T>>,
    x: &[T],
    out: &mut [T],
    workspace: &mut [u8],
) -> Result<(), RunError> {
    let (from, to) = match spec.product {
        Product::Forward => (csr.cols, csr.rows),
        Product::Transposed => (csr.rows, csr.cols),
        Product::Sampled => return Err(unknown(candidate)),
    };
    let n = spec.width;
    let x = Dense::new("the dense operand", x, from, n, spec.layout)?;
    let out = Target::new("the output", out, to, n, spec.layout)?;
    let workspace = bounded(candidate, workspace)?;
    let transpose = || {
        stored_transpose
            .filter(|t| t.rows == csr.cols && t.cols == csr.rows)
            .ok_or(RunError::NoTranspose)
    };
    match (spec.product, candidate.code) {
        (Product::Forward, code::ROWS) => {
            forward::rows(csr, x, out, 0..n, spec.accumulate);
            Ok(())
        }
        (Product::Forward, code::ROWS_INTERLEAVED) => {
            forward::interleaved(csr, x, out, n, spec.accumulate, candidate, workspace)
        }
        (Product::Transposed, code::STORED) => {
            forward::rows(transpose()?, x, out, 0..n, spec.accumulate);
            Ok(())
        }
        (Product::Transposed, code::STORED_INTERLEAVED) => forward::interleaved(
            transpose()?,
            x,
            out,
            n,
            spec.accumulate,
            candidate,
            workspace,
        ),
        (Product::Transposed, code::COLUMN_RANGES) => {
            transposed::direct(csr, x, out, n, spec.accumulate).ok_or_else(|| unknown(candidate))
        }
        (Product::Transposed, code::COLUMN_STRIPS) => {
            transposed::strips(csr, x, out, n, spec.accumulate);
            Ok(())
        }
        (Product::Transposed, code::COLUMNS_BUFFERED) => {
            transposed::buffered(csr, x, out, n, spec.accumulate, candidate, workspace)
        }
        (Product::Transposed, code::PRIVATE) => {
            private::run(csr, x, out, n, spec.accumulate, candidate, workspace)
        }
        _ => Err(unknown(candidate)),
    }
}

/// Runs the sampled product with one of its [`candidates`]: `out[e] = Σ_j row_side[row e, j] ·
/// col_side[col e, j]` over the pattern of `csr`. For `Y = A·X`, `row_side` is dY and `col_side` X;
/// for `Y = Aᵀ·G` they are G and dY.
///
/// # Errors
/// As [`run`].
pub fn run_sampled<T: Float>(
    spec: &SparseSpec,
    candidate: &Candidate,
    csr: &Csr<'_, T>,
    row_side: &[T],
    col_side: &[T],
    out: &mut [T],
    workspace: &mut [u8],
) -> Result<(), RunError> {
    let n = spec.width;
    let row_side = Dense::new("the row side", row_side, csr.rows, n, spec.layout)?;
    let col_side = Dense::new("the column side", col_side, csr.cols, n, spec.layout)?;
    check_length("the output", csr.nnz(), out.len())?;
    let workspace = bounded(candidate, workspace)?;
    match (spec.product, candidate.code) {
        (Product::Sampled, code::SAMPLED) => {
            sampled::entries(csr, row_side, col_side, n, out, spec.accumulate);
            Ok(())
        }
        (Product::Sampled, code::SAMPLED_INTERLEAVED) => sampled::interleaved(
            csr,
            row_side,
            col_side,
            n,
            out,
            spec.accumulate,
            candidate,
            workspace,
        ),
        _ => Err(unknown(candidate)),
    }
}

fn unknown(candidate: &Candidate) -> RunError {
    RunError::Unknown {
        code: candidate.code,
    }
}

fn check_length(what: &'static str, expected: usize, got: usize) -> Result<(), RunError> {
    if expected == got {
        Ok(())
    } else {
        Err(RunError::Length {
            what,
            expected,
            got,
        })
    }
}

/// The candidate's part of the workspace.
fn bounded<'w>(candidate: &Candidate, workspace: &'w mut [u8]) -> Result<&'w mut [u8], RunError> {
    let got = workspace.len();
    usize::try_from(candidate.workspace)
        .ok()
        .and_then(|bytes| workspace.get_mut(..bytes))
        .ok_or(RunError::Workspace {
            expected: candidate.workspace,
            got,
        })
}

/// The candidate's part of the workspace as `len` numbers.
fn numbers<'w, S: Float>(
    candidate: &Candidate,
    workspace: &'w mut [u8],
    len: usize,
) -> Result<&'w mut [S], RunError> {
    let got = workspace.len();
    len.checked_mul(size_of::<S>())
        .and_then(|bytes| workspace.get_mut(..bytes))
        .and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok())
        .ok_or(RunError::Workspace {
            expected: candidate.workspace,
            got,
        })
}
