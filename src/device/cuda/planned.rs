//! The planned operations: which algorithms there are for a product or a convolution, and how a
//! question's operands reach the one that was chosen.

use super::{Cuda, conv, gemm, sparse};
use crate::device::backend::{Query, Terms};
use crate::error::Result;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};

pub(super) fn candidates(cuda: &Cuda, query: &Query, terms: Terms) -> Vec<Candidate> {
    match query {
        Query::Gemm(spec, dtype) => gemm::candidates(cuda, spec, *dtype, terms),
        Query::Conv(pass, geometry, dtype) => {
            conv::candidates(cuda, *pass, geometry, *dtype, terms)
        }
        Query::Sparse(spec, dtype) => sparse::candidates(cuda, spec, *dtype, terms),
    }
}

/// Runs the chosen one. Operands as [`Query`] says.
pub(super) fn run(
    cuda: &Cuda,
    query: &Query,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    workspace: Option<&Storage>,
) -> Result<()> {
    match query {
        Query::Gemm(spec, _) => gemm::run(cuda, spec, candidate, operands, out, workspace),
        Query::Conv(pass, geometry, _) => {
            conv::run(cuda, *pass, geometry, candidate, operands, out, workspace)
        }
        Query::Sparse(spec, _) => sparse::run(cuda, spec, candidate, operands, out, workspace),
    }
}
