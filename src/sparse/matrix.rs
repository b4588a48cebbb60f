//! The matrix as callers hold it: compressed rows on one device, a free transposed view, and a
//! stored transpose where one was asked for.

use super::assemble::{self, Built, CsrArrays, EntryMap, Index, Offsets};
use crate::device::spec::{DenseLayout, SparseProduct, SparseSpec};
use crate::device::{Device, Query, Terms};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::memory::{Purpose, PurposeGuard};
use crate::tensor::{Tensor, require_float};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Compressed sparse rows on a device.
#[derive(Clone)]
pub(crate) struct Csr {
    pub(crate) row_offsets: Tensor,
    pub(crate) col_indices: Tensor,
    pub(crate) values: Tensor,
}

impl Csr {
    fn bytes(&self) -> usize {
        self.row_offsets.bytes() + self.col_indices.bytes() + self.values.bytes()
    }

    fn on(&self, device: &Device) -> Result<Csr> {
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        Ok(Csr {
            row_offsets: self.row_offsets.to(device)?,
            col_indices: self.col_indices.to(device)?,
            values: self.values.to(device)?,
        })
    }

    fn from_arrays<T: Float>(arrays: CsrArrays<T>, device: &Device) -> Result<Csr> {
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        let (rows, nnz) = (arrays.row_offsets.len(), arrays.values.len());
        Ok(Csr {
            row_offsets: match arrays.row_offsets {
                Offsets::I32(offsets) => Tensor::from_vec(offsets, [rows], device)?,
                Offsets::I64(offsets) => Tensor::from_vec(offsets, [rows], device)?,
            },
            col_indices: Tensor::from_vec(arrays.col_indices, [nnz], device)?,
            values: Tensor::from_vec(arrays.values, [nnz], device)?,
        })
    }

    fn to_arrays<T: Float>(&self) -> Result<CsrArrays<T>> {
        Ok(CsrArrays {
            row_offsets: match self.row_offsets.dtype() {
                DType::I64 => Offsets::I64(self.row_offsets.to_vec()?),
                _ => Offsets::I32(self.row_offsets.to_vec()?),
            },
            col_indices: self.col_indices.to_vec()?,
            values: self.values.to_vec()?,
        })
    }
}

/// Bytes of a matrix in compressed rows: offsets of 4 bytes (8 from 2³¹ entries on), column indices
/// of 4, and the values.
fn required_bytes(rows: usize, nnz: usize, dtype: DType) -> Option<u64> {
    let offset = if nnz > i32::MAX as usize { 8u64 } else { 4 };
    (rows as u64)
        .checked_add(1)?
        .checked_mul(offset)?
        .checked_add((nnz as u64).checked_mul(4 + dtype.size() as u64)?)
}

/// Whether a second, transposed copy of the matrix is kept for the transposed product.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoredTranspose {
    /// Where the device has a memory limit that leaves room for it, and it is predicted to be
    /// faster. Without a limit there is one copy.
    #[default]
    Auto,
    /// One copy, always.
    Never,
    /// Two copies.
    Always,
}

/// How a matrix is laid out when it moves to a device.
///
/// ```
/// use capgrad::{Device, SparseMatrix, SparseOptions, StoredTranspose};
/// # fn main() -> capgrad::Result<()> {
/// let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f32, 3.0])?;
/// let options = SparseOptions { stored_transpose: StoredTranspose::Always, ..Default::default() };
/// assert_eq!(a.to_with(&Device::cpu(), options)?.bytes(), 2 * a.bytes());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SparseOptions {
    /// Whether a transposed copy is kept.
    pub stored_transpose: StoredTranspose,
    /// The number of dense vectors that products are expected to have.
    pub width: usize,
}

impl Default for SparseOptions {
    fn default() -> Self {
        SparseOptions { stored_transpose: StoredTranspose::Auto, width: 1 }
    }
}

/// A sparse matrix on one device. Cheap to clone; clones share the entries, and so does the
/// [transposed](SparseMatrix::transpose) view.
///
/// ```
/// use capgrad::{SparseMatrix, Tape, Tensor, Device};
/// # fn main() -> capgrad::Result<()> {
/// // [[0, 2], [3, 0]], entries in any order.
/// let a = SparseMatrix::from_coo(2, 2, &[1, 0], &[0, 1], &[3.0f32, 2.0])?;
/// let tape = Tape::new();
/// let x = tape.variable(Tensor::from_vec(vec![1.0f32, 10.0], [1, 2], &Device::cpu())?)?;
/// let y = a.apply(&x)?;
/// assert_eq!(y.tensor().to_vec::<f32>()?, [20.0, 3.0]);
/// let grads = y.sum()?.backward()?;
/// assert_eq!(grads.get(&x).unwrap().to_vec::<f32>()?, [3.0, 2.0]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SparseMatrix {
    shared: Arc<Shared>,
    /// A view of the transpose.
    transposed: bool,
}

struct Shared {
    rows: usize,
    cols: usize,
    csr: Csr,
    transpose: Option<Csr>,
    symmetric: bool,
    /// In-place changes of the values when the two above were found: after another one (an
    /// optimiser that trains the values, say) they no longer hold.
    changes: u64,
}

impl SparseMatrix {
    fn new(rows: usize, cols: usize, csr: Csr) -> SparseMatrix {
        let changes = csr.values.changes();
        let shared = Shared { rows, cols, csr, transpose: None, symmetric: false, changes };
        SparseMatrix { shared: Arc::new(shared), transposed: false }
    }

    fn built<T: Float>(rows: usize, cols: usize, built: Built<T>) -> Result<SparseMatrix> {
        Ok(SparseMatrix::new(rows, cols, Csr::from_arrays(built.csr, &Device::cpu())?))
    }

    /// From coordinates in any order, on the CPU. Entries at the same place add up; explicit zeros
    /// are kept. Indices may be i32, i64, u32 or usize.
    ///
    /// # Errors
    /// [`Error::Sparse`] for arrays of different lengths or an index outside the shape, with its
    /// place; [`Error::MemoryLimit`].
    pub fn from_coo<'v, T: Float, I: Index, J: Index>(
        rows: usize,
        cols: usize,
        row_indices: &[I],
        col_indices: &[J],
        values: impl Into<Cow<'v, [T]>>,
    ) -> Result<SparseMatrix> {
        let built = assemble::from_coo(rows, cols, row_indices, col_indices, values, false)?;
        SparseMatrix::built(rows, cols, built)
    }

    /// Like [`SparseMatrix::from_coo`], with the stored entry that each given entry went to: the
    /// gradient for the values as given is the gradient for [`SparseMatrix::values`] gathered by
    /// it.
    ///
    /// # Errors
    /// As [`SparseMatrix::from_coo`].
    pub fn from_coo_with_map<'v, T: Float, I: Index, J: Index>(
        rows: usize,
        cols: usize,
        row_indices: &[I],
        col_indices: &[J],
        values: impl Into<Cow<'v, [T]>>,
    ) -> Result<(SparseMatrix, EntryMap)> {
        let mut built = assemble::from_coo(rows, cols, row_indices, col_indices, values, true)?;
        let map = built.entry_map.take().unwrap_or(EntryMap::Identity);
        Ok((SparseMatrix::built(rows, cols, built)?, map))
    }

    /// From compressed rows, on the CPU. Columns may be in any order and repeat; arrays longer than
    /// the last offset are read only that far.
    ///
    /// # Errors
    /// [`Error::Sparse`] for offsets that do not start at 0, decrease, or end beyond the arrays,
    /// and for an index outside the shape; [`Error::MemoryLimit`].
    pub fn from_csr<'v, T: Float, O: Index, J: Index>(
        rows: usize,
        cols: usize,
        row_offsets: &[O],
        col_indices: &[J],
        values: impl Into<Cow<'v, [T]>>,
    ) -> Result<SparseMatrix> {
        let built = assemble::from_csr(rows, cols, row_offsets, col_indices, values, false)?;
        SparseMatrix::built(rows, cols, built)
    }

    /// Like [`SparseMatrix::from_csr`], for arrays that are given away: those that are sorted and
    /// free of duplicates are taken over without a copy.
    ///
    /// # Errors
    /// As [`SparseMatrix::from_csr`].
    pub fn from_csr_owned<T: Float>(
        rows: usize,
        cols: usize,
        row_offsets: impl Into<Offsets>,
        col_indices: Vec<i32>,
        values: Vec<T>,
    ) -> Result<SparseMatrix> {
        let offsets = row_offsets.into();
        let built = assemble::from_csr_owned(rows, cols, offsets, col_indices, values, false)?;
        SparseMatrix::built(rows, cols, built)
    }

    /// From compressed columns, on the CPU.
    ///
    /// # Errors
    /// As [`SparseMatrix::from_csr`], of columns.
    pub fn from_csc<'v, T: Float, O: Index, I: Index>(
        rows: usize,
        cols: usize,
        col_offsets: &[O],
        row_indices: &[I],
        values: impl Into<Cow<'v, [T]>>,
    ) -> Result<SparseMatrix> {
        let built = assemble::from_csc(rows, cols, col_offsets, row_indices, values, false)?;
        SparseMatrix::built(rows, cols, built)
    }

    /// The entries of a dense matrix `[rows, cols]` that are not zero, on the tensor's device.
    ///
    /// # Errors
    /// [`Error::Shape`] where the rank is not 2; [`Error::DType`] for integers.
    pub fn from_dense(dense: &Tensor) -> Result<SparseMatrix> {
        let &[rows, cols] = dense.dims() else {
            return Err(Error::shape("from_dense", &[dense.shape()], "expected a matrix"));
        };
        require_float("from_dense", dense.dtype())?;
        let device = dense.device();
        let csr = by_dtype!(dense.dtype(), T => {
            Csr::from_arrays(assemble::from_dense(rows, cols, &dense.to_vec::<T>()?)?, device)?
        });
        Ok(SparseMatrix::new(rows, cols, csr))
    }

    /// The matrix written out, `[rows, cols]`, on its device.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::MemoryLimit`].
    pub fn to_dense(&self) -> Result<Tensor> {
        let (rows, cols) = (self.shared.rows, self.shared.cols);
        let bytes = crate::Shape::from([rows, cols]).bytes(self.dtype(), "to_dense")?;
        // The limit and the system are asked before the host makes the array.
        drop(self.device().allocate(bytes, Purpose::Other)?);
        let dense = by_dtype!(self.dtype(), T => {
            let dense = assemble::to_dense(cols, &self.shared.csr.to_arrays::<T>()?)?;
            Tensor::from_vec(dense, [rows, cols], self.device())?
        });
        if self.transposed {
            Ok(crate::Var::from(dense).transpose(0, 1)?.into_tensor())
        } else {
            Ok(dense)
        }
    }

    /// A copy on another device, laid out by the defaults of [`SparseOptions`]; the same matrix if
    /// it is there already.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`], [`Error::OutOfMemory`].
    pub fn to(&self, device: &Device) -> Result<SparseMatrix> {
        self.to_with(device, SparseOptions::default())
    }

    /// A copy on another device, laid out as `options` say. On the device it is on already, entries
    /// are shared and a transposed copy is added or dropped.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`], [`Error::OutOfMemory`].
    pub fn to_with(&self, device: &Device, options: SparseOptions) -> Result<SparseMatrix> {
        let shared = &self.shared;
        let csr = shared.csr.on(device)?;
        let keep = match options.stored_transpose {
            StoredTranspose::Always => !self.is_symmetric(),
            StoredTranspose::Never => false,
            StoredTranspose::Auto => self.transpose_pays(device, options.width),
        };
        let transpose = match (self.stored_transpose(), keep) {
            (_, false) => None,
            (Some(transpose), true) => Some(transpose.on(device)?),
            (None, true) => Some(by_dtype!(self.dtype(), T => {
                let arrays = shared.csr.to_arrays::<T>()?;
                Csr::from_arrays(assemble::transpose_csr(shared.cols, &arrays, false).csr, device)?
            })),
        };
        let (changes, symmetric) = (csr.values.changes(), self.is_symmetric());
        let shared = Shared { csr, transpose, symmetric, changes, ..**shared };
        Ok(SparseMatrix { shared: Arc::new(shared), transposed: self.transposed })
    }

    /// Whether a limit set by the caller leaves room for a second copy that is predicted to be
    /// faster. As much again stays free for the step itself.
    fn transpose_pays(&self, device: &Device, width: usize) -> bool {
        let bytes = required_bytes(self.shared.cols, self.nnz(), self.dtype());
        let room = device.meter().left().zip(bytes).is_some_and(|(left, bytes)| left / 2 >= bytes);
        if !room || self.is_symmetric() {
            return false;
        }
        let fastest = |stored_transpose| {
            let product = SparseProduct::Transposed;
            let spec = self.spec(product, DenseLayout::Rows, width, stored_transpose);
            let cap = device.workspace_cap().unwrap_or(u64::MAX);
            let terms = Terms { cap, allow_tf32: device.allow_tf32() };
            let query = Query::Sparse(spec, self.dtype());
            let candidates = device.backend().candidates(&query, terms);
            let fits = candidates.iter().filter(|candidate| candidate.workspace <= cap);
            fits.map(|candidate| candidate.seconds).fold(f64::INFINITY, f64::min)
        };
        fastest(true) < fastest(false)
    }

    /// The transpose, as a view: nothing is copied.
    pub fn transpose(&self) -> SparseMatrix {
        SparseMatrix { shared: self.shared.clone(), transposed: !self.transposed }
    }

    /// The same matrix, known to be its own transpose: its transposed product is then its product.
    /// The entries are compared once, with a copy of the matrix in host memory while that lasts.
    ///
    /// # Errors
    /// [`Error::Argument`] where the matrix is not symmetric.
    pub fn symmetric(&self) -> Result<SparseMatrix> {
        let shared = &self.shared;
        let equal = shared.rows == shared.cols
            && by_dtype!(self.dtype(), T => {
                let arrays = shared.csr.to_arrays::<T>()?;
                assemble::transpose_csr(shared.cols, &arrays, false).csr == arrays
            });
        if !equal {
            let value = format!("{}×{} matrix", self.rows(), self.cols());
            let reason = match shared.rows == shared.cols {
                true => "it differs from its transpose",
                false => "it is not square",
            };
            return Err(Error::argument("symmetric", "self", value, reason));
        }
        let (csr, changes) = (shared.csr.clone(), shared.csr.values.changes());
        let shared = Shared { csr, transpose: None, symmetric: true, changes, ..**shared };
        Ok(SparseMatrix { shared: Arc::new(shared), transposed: self.transposed })
    }

    /// Whether the matrix is known to be its own transpose.
    pub fn is_symmetric(&self) -> bool {
        self.shared.symmetric && self.unchanged()
    }

    /// Whether a transposed copy is resident (and still that of the values).
    pub fn has_stored_transpose(&self) -> bool {
        self.stored_transpose().is_some()
    }

    fn unchanged(&self) -> bool {
        self.shared.csr.values.changes() == self.shared.changes
    }

    /// Rows of the matrix (of the transpose, for a transposed view).
    pub fn rows(&self) -> usize {
        if self.transposed { self.shared.cols } else { self.shared.rows }
    }

    /// Columns of the matrix (of the transpose, for a transposed view).
    pub fn cols(&self) -> usize {
        if self.transposed { self.shared.rows } else { self.shared.cols }
    }

    /// Stored entries.
    pub fn nnz(&self) -> usize {
        self.shared.csr.values.elements()
    }

    /// Resident bytes: offsets, indices and values, and those of a stored transpose.
    pub fn bytes(&self) -> usize {
        self.shared.csr.bytes() + self.shared.transpose.as_ref().map_or(0, Csr::bytes)
    }

    /// The values' type.
    pub fn dtype(&self) -> DType {
        self.shared.csr.values.dtype()
    }

    /// The device that holds the matrix.
    pub fn device(&self) -> &Device {
        self.shared.csr.values.device()
    }

    /// The stored values `[nnz]`, row by row (of the matrix that a transposed view is of), columns
    /// ascending. They are shared, not copied.
    pub fn values(&self) -> &Tensor {
        &self.shared.csr.values
    }

    pub(crate) fn csr(&self) -> &Csr {
        &self.shared.csr
    }

    pub(crate) fn stored_transpose(&self) -> Option<&Csr> {
        self.shared.transpose.as_ref().filter(|_| self.unchanged())
    }

    pub(crate) fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// A product's sizes, in terms of the matrix as it is stored.
    pub(crate) fn spec(
        &self,
        product: SparseProduct,
        layout: DenseLayout,
        width: usize,
        stored_transpose: bool,
    ) -> SparseSpec {
        let (rows, cols, nnz) = (self.shared.rows, self.shared.cols, self.nnz());
        SparseSpec { product, layout, width, rows, cols, nnz, stored_transpose }
    }
}

/// Runs an expression with `T` as the Rust type of a float dtype.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $t = f64;
                $body
            }
            DType::F16 => {
                type $t = half::f16;
                $body
            }
            DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
use by_dtype;

impl fmt::Debug for SparseMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, cols, nnz) = (self.rows(), self.cols(), self.nnz());
        write!(f, "SparseMatrix({} {rows}×{cols}, nnz {nnz}, on {})", self.dtype(), self.device())
    }
}
