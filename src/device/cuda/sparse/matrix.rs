//! A stored matrix as kernels take it.

use super::job::Problem;
use crate::device::cuda::memory::pointer;
use crate::device::cuda::pinned::pinned;
use crate::device::spec::{Form, StoredSpec};
use crate::dtype::DType;
use crate::tensor::Tensor;

/// `Matrix` of `kernels/sparse.cuh`, where the fields are described.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Matrix {
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) row_begin: u64,
    pub(super) row_end: u64,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) strip: u64,
    pub(super) strips: u64,
    pub(super) offsets: u64,
    pub(super) pieces: u64,
    pub(super) columns: u64,
    pub(super) values: u64,
    pub(super) wide: u64,
}

/// The arrays of a stored matrix.
pub(super) struct Operands<'a> {
    pub(super) offsets: &'a Tensor,
    pieces: Option<&'a Tensor>,
    pub(super) columns: &'a Tensor,
    pub(super) values: &'a Tensor,
}

impl<'a> Operands<'a> {
    /// Those at the front, and the rest.
    pub(super) fn split<'b>(
        stored: &StoredSpec,
        operands: &'b [&'a Tensor],
    ) -> (Operands<'a>, &'b [&'a Tensor]) {
        match stored.form {
            Form::Tiled { .. } => {
                let (offsets, pieces) = (operands[0], Some(operands[1]));
                let (columns, values) = (operands[2], operands[3]);
                (Operands { offsets, pieces, columns, values }, &operands[4..])
            }
            _ => {
                let (offsets, columns, values) = (operands[0], operands[1], operands[2]);
                (Operands { offsets, pieces: None, columns, values }, &operands[3..])
            }
        }
    }

    /// Whether the offsets are 64-bit.
    pub(super) fn wide(&self) -> bool {
        self.offsets.dtype() == DType::I64
    }

    /// All of it, where it lies.
    pub(super) fn matrix(&self, problem: &Problem) -> Matrix {
        let strip = match problem.stored.form {
            Form::Tiled { strip } => strip as u64,
            _ => 0,
        };
        // The columns of the tiled form are half as wide as the tensor's elements.
        let entries = if strip > 0 { self.columns.elements() * 2 } else { problem.nnz };
        Matrix {
            rows: problem.rows as u64,
            cols: problem.cols as u64,
            row_begin: 0,
            row_end: problem.rows as u64,
            first: 0,
            last: entries as u64,
            strip,
            strips: problem.strips() as u64,
            offsets: pointer(self.offsets),
            pieces: self.pieces.map_or(0, pointer),
            columns: pointer(self.columns),
            values: pointer(self.values),
            wide: u64::from(self.wide()),
        }
    }

    /// Whether the values are the host's, too.
    pub(super) fn values_on_host(&self) -> bool {
        pinned(self.values).is_some()
    }
}
