//! Products with a sparse matrix: candidates for `A·X`, `Aᵀ·G` and the sampled product in each of
//! the forms, and how each runs.
//!
//! A product either *gathers* (a row's sum over its entries) or *scatters* (a row's entries, each to
//! its column). `Aᵀ·G` scatters, or gathers with the rows of a stored transpose. `job` says what a
//! candidate consists of, `offer` which ones there are, `cost` how long they should take; `gather`,
//! `scatter` and `sampled` run them, `stream` brings in the chunks of a matrix that stays on the host.

mod cost;
mod gather;
mod job;
mod library;
mod matrix;
mod offer;
mod sampled;
mod scatter;
mod stream;
mod strips;
#[cfg(test)]
mod tests;

use super::Cuda;
use super::memory::{pointer, workspace};
use crate::device::backend::Terms;
use crate::device::spec::{SparseProduct, SparseSpec};
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use job::{Job, Problem};
use matrix::Operands;

pub(super) fn candidates(
    cuda: &Cuda,
    spec: &SparseSpec,
    dtype: DType,
    terms: Terms,
) -> Vec<Candidate> {
    if !dtype.is_float() {
        return Vec::new();
    }
    offer::offer(cuda, spec, dtype, terms.cap)
}

/// Runs one of them. Operands as `Query` says.
pub(super) fn run(
    cuda: &Cuda,
    spec: &SparseSpec,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    storage: Option<&Storage>,
) -> Result<()> {
    let job = Job::decode(candidate);
    let problem = Problem::new(spec, out.dtype(), job.stored_transpose);
    let (own, rest) = Operands::split(&spec.stored, operands);
    let (matrix, dense) = match &spec.transpose {
        Some(transpose) => {
            let (copy, rest) = Operands::split(transpose, rest);
            (if job.stored_transpose { copy } else { own }, rest)
        }
        None => (own, rest),
    };
    let space = job.space(&problem, workspace(storage));
    let out = pointer(out);
    match spec.product {
        SparseProduct::Sampled => {
            let (g, x) = (pointer(dense[0]), pointer(dense[1]));
            sampled::run(cuda, &problem, &job, &matrix, g, x, out, &space)
        }
        _ if problem.scatters => {
            scatter::run(cuda, &problem, &job, &matrix, pointer(dense[0]), out, &space)
        }
        _ => gather::run(cuda, &problem, &job, &matrix, pointer(dense[0]), out, &space),
    }
}
