//! The planned operations of the CPU: which algorithms there are for a product or a convolution,
//! and how a question's operands reach the one that was chosen. Operands are locked before the
//! device's threads are entered, as in all of its kernels.

use super::super::backend::Query;
use super::host::{read, workspace, write};
use super::sparse::{Csr, OffsetsRef};
use super::{Cpu, conv, gemm, sparse};
use crate::device::spec::{SparseProduct, SparseSpec};
use crate::dtype::{DType, Float};
use crate::error::Result;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};

/// The algorithms for a question; `threads` decides block sizes, never results.
pub(super) fn candidates(threads: usize, query: &Query, cap: u64) -> Vec<Candidate> {
    match query {
        Query::Gemm(spec, dtype) => gemm::gemm_candidates(spec, *dtype, threads, cap),
        Query::Conv(pass, geometry, dtype) => {
            conv::candidates(*pass, geometry, *dtype, threads, cap)
        }
        Query::Sparse(spec, dtype) => sparse::candidates(spec, *dtype, threads, cap),
    }
}

/// Runs the chosen one. Operands as [`Query`] says.
pub(super) fn run(
    cpu: &Cpu,
    query: &Query,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    storage: Option<&Storage>,
) -> Result<()> {
    let mut held = storage.map(workspace);
    let workspace: &mut [u8] = match &mut held {
        Some(bytes) => &mut bytes[..],
        None => &mut [],
    };
    float!(out.dtype(), T => run_as::<T>(cpu, query, candidate, operands, out, workspace));
    Ok(())
}

fn run_as<T: Float>(
    cpu: &Cpu,
    query: &Query,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    workspace: &mut [u8],
) {
    if let Query::Sparse(spec, _) = query {
        return run_sparse::<T>(cpu, spec, candidate, operands, out, workspace);
    }
    let (a, b) = (read::<T>(operands[0]), read::<T>(operands[1]));
    let bias = operands.get(2).map(|bias| read::<T>(bias));
    let bias = bias.as_deref();
    let mut out = write::<T>(out);
    let (a, b, out, threads) = (&a[..], &b[..], &mut out[..], cpu.threads());
    cpu.install(|| match query {
        Query::Conv(pass, geometry, _) => {
            conv::run(*pass, geometry, candidate, a, b, bias, out, workspace, threads);
        }
        Query::Gemm(spec, _) => {
            gemm::gemm_run(spec, candidate, a, b, bias, false, out, workspace, threads);
        }
        Query::Sparse(..) => {}
    });
}

fn run_sparse<T: Float>(
    cpu: &Cpu,
    spec: &SparseSpec,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    workspace: &mut [u8],
) {
    let mut out = write::<T>(out);
    let out = &mut out[..];
    let size = (spec.rows, spec.cols);
    let (matrix, rest) = operands.split_at(3);
    with_csr(size, matrix, |csr| match (spec.product, spec.transpose.is_some()) {
        (SparseProduct::Sampled, _) => {
            let (by_row, by_col) = (read::<T>(rest[0]), read::<T>(rest[1]));
            let (by_row, by_col) = (&by_row[..], &by_col[..]);
            cpu.install(|| {
                sparse::run_sampled(spec, candidate, &csr, by_row, by_col, out, workspace);
            });
        }
        (_, true) => with_csr((size.1, size.0), &rest[..3], |transpose| {
            let x = read::<T>(rest[3]);
            let x = &x[..];
            cpu.install(|| sparse::run(spec, candidate, &csr, Some(&transpose), x, out, workspace));
        }),
        (_, false) => {
            let x = read::<T>(rest[0]);
            let x = &x[..];
            cpu.install(|| sparse::run(spec, candidate, &csr, None, x, out, workspace));
        }
    });
}

/// Calls `f` with the matrix that `arrays` (offsets, column indices, values) hold.
fn with_csr<T: Float>(
    (rows, cols): (usize, usize),
    arrays: &[&Tensor],
    f: impl FnOnce(Csr<'_, T>),
) {
    let (col_indices, values) = (read::<i32>(arrays[1]), read::<T>(arrays[2]));
    let wide;
    let narrow;
    let offsets = if arrays[0].dtype() == DType::I64 {
        wide = read::<i64>(arrays[0]);
        OffsetsRef::I64(&wide)
    } else {
        narrow = read::<i32>(arrays[0]);
        OffsetsRef::I32(&narrow)
    };
    // SAFETY: offsets and indices were checked when the matrix was built, and nothing can change
    // them: a `SparseMatrix` gives out its values only, and as many of those as it has.
    f(unsafe { Csr::new_unchecked(rows, cols, offsets, &col_indices, &values) })
}
