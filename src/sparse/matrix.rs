//! The matrix as callers hold it: its entries on one device, a free transposed view, and a stored
//! transpose where one was asked for.

use super::assemble::{self, Built, EntryMap, Index, Offsets};
use super::layout::{SparseForm, SparseLayout, SparseOptions, StoredTranspose};
use super::stored::Stored;
use crate::device::Device;
use crate::device::spec::{DenseLayout, Form, SparseProduct, SparseSpec};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::memory::{Purpose, Taker};
use crate::tensor::{Tensor, require_float};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

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
    stored: Stored,
    transpose: Option<Stored>,
    /// How the form was chosen.
    layout: Option<SparseLayout>,
    symmetric: bool,
    /// In-place changes of the values when the two above were found: after another one (an
    /// optimiser that trains the values, say) they no longer hold.
    changes: u64,
}

impl SparseMatrix {
    fn new(stored: Stored) -> SparseMatrix {
        let changes = stored.values.changes();
        let shared = Shared { stored, transpose: None, layout: None, symmetric: false, changes };
        SparseMatrix { shared: Arc::new(shared), transposed: false }
    }

    fn built<T: Float>(rows: usize, cols: usize, built: Built<T>) -> Result<SparseMatrix> {
        Ok(SparseMatrix::new(Stored::from_arrays(rows, cols, built.csr)?))
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
        if device.is_dry() {
            device.note_bound("no element of a dense matrix is known to be 0");
            let nnz = dense.elements();
            let outline = SparseMatrix::outline(rows, cols, nnz, dense.dtype(), device)?;
            return outline.to(device);
        }
        let stored = by_dtype!(dense.dtype(), T => {
            Stored::from_arrays(rows, cols, assemble::from_dense(rows, cols, &dense.to_vec::<T>()?)?)?
        });
        SparseMatrix::new(stored).to(device)
    }

    /// The sizes of a matrix without its entries, for a dry run: on the host's part of a dry device, from
    /// where it moves as a real one does. `device` is dry. In compressed rows its bytes are exact; in the
    /// tiled form they depend on the entries, so that they are a bound, which the report says; and a form
    /// that is chosen by predicted times is chosen for entries anywhere.
    ///
    /// ```
    /// use capgrad::{DType, Device, SparseMatrix};
    /// # fn main() -> capgrad::Result<()> {
    /// let dry = Device::cpu().dry();
    /// let a = SparseMatrix::outline(268_800, 268_800, 295_680_000, DType::F32, &dry)?.to(&dry)?;
    /// assert_eq!(a.bytes(), 8 * 295_680_000 + 4 * 268_801);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where the device is not dry, and for more columns or entries than a matrix can
    /// have; [`Error::DType`] for integers; [`Error::MemoryLimit`].
    pub fn outline(
        rows: usize,
        cols: usize,
        nnz: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<SparseMatrix> {
        let refused = |argument, value: String, reason| {
            Err(Error::argument("outline", argument, value, reason))
        };
        require_float("outline", dtype)?;
        require_dry("outline", device)?;
        if rows.max(cols) > i32::MAX as usize {
            return refused("rows, cols", format!("{rows}×{cols}"), "a side is at most 2³¹ - 1");
        }
        if nnz as u128 > rows as u128 * cols as u128 {
            return refused("nnz", nnz.to_string(), "more than the matrix has places");
        }
        Ok(SparseMatrix::new(Stored::outline(rows, cols, nnz, dtype, &device.host())?))
    }

    /// The sizes of this matrix (and of its stored transpose, if it has one) without the entries, for a dry
    /// run, with what plans depend on: moved to the dry device `device` its bytes are exact in every form.
    /// The entries are gone through once.
    ///
    /// ```
    /// use capgrad::{Device, SparseMatrix};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f32, 3.0])?;
    /// let dry = Device::cpu().dry();
    /// assert_eq!(a.outlined(&dry)?.to(&dry)?.bytes(), a.bytes());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where the device is not dry; [`Error::MemoryLimit`].
    pub fn outlined(&self, device: &Device) -> Result<SparseMatrix> {
        require_dry("outlined", device)?;
        let stored = self.shared.stored.outline_of(device)?;
        let transpose = match self.stored_transpose() {
            Some(transpose) => Some(transpose.outline_of(device)?),
            None => None,
        };
        let changes = stored.values.changes();
        let symmetric = self.is_symmetric();
        let shared = Shared { stored, transpose, layout: None, symmetric, changes };
        Ok(SparseMatrix { shared: Arc::new(shared), transposed: self.transposed })
    }

    /// The matrix written out, `[rows, cols]`, on its device.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::MemoryLimit`].
    pub fn to_dense(&self) -> Result<Tensor> {
        let (rows, cols) = (self.shared.stored.rows, self.shared.stored.cols);
        let bytes = crate::Shape::from([rows, cols]).bytes(self.dtype(), "to_dense")?;
        // The limit and the system are asked before the host makes the array.
        drop(self.device().allocate(bytes, Purpose::Other, Taker::of("to_dense"))?);
        let dense = by_dtype!(self.dtype(), T => {
            let dense = assemble::to_dense(cols, &self.shared.stored.to_arrays::<T>()?)?;
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
        if self.device() == device {
            return Ok(self.clone());
        }
        self.to_with(device, SparseOptions::default())
    }

    /// A copy on another device, laid out as `options` say. What is there already in the wanted form
    /// is shared; a transposed copy is added or dropped.
    ///
    /// While it is made, host memory of at most 32 Mi entries' size is in use beside the two copies;
    /// to make a transposed copy, two more of the matrix.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`], [`Error::OutOfMemory`]; [`Error::Argument`] where a form is asked for
    /// that cannot hold the matrix.
    pub fn to_with(&self, device: &Device, options: SparseOptions) -> Result<SparseMatrix> {
        let (stored, symmetric) = (&self.shared.stored, self.is_symmetric());
        let layout = SparseLayout::choose(stored, device, options, symmetric);
        let moved = stored.on(device, layout.form)?;
        let transpose = match (self.stored_transpose(), layout.transpose) {
            (_, None) => None,
            (Some(transpose), Some(form)) => Some(transpose.on(device, form)?),
            (None, Some(form)) if stored.device().is_dry() => {
                let (rows, cols) = (stored.cols, stored.rows);
                let host = stored.device().host();
                device.note_bound(
                    "the rows of a stored transpose without entries are taken to be alike",
                );
                let transpose = Stored::outline(rows, cols, stored.nnz, stored.dtype(), &host)?;
                Some(transpose.on(device, form)?)
            }
            (None, Some(form)) => Some(by_dtype!(self.dtype(), T => {
                let arrays = stored.to_arrays::<T>()?;
                let transpose = assemble::transpose_csr(stored.cols, &arrays, false).csr;
                drop(arrays);
                Stored::from_arrays(stored.cols, stored.rows, transpose)?.on(device, form)?
            })),
        };
        let changes = moved.values.changes();
        let layout = Some(layout);
        let shared = Shared { stored: moved, transpose, layout, symmetric, changes };
        Ok(SparseMatrix { shared: Arc::new(shared), transposed: self.transposed })
    }

    /// The matrix with its values in another dtype (or the same matrix, if it has that already), on the same
    /// device and in the same form; a stored transpose is made again. Compressed rows share their indices.
    ///
    /// ```
    /// use capgrad::{DType, SparseMatrix};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f64, 3.0])?;
    /// assert_eq!(a.to_dtype(DType::F32)?.values()?.to_vec::<f32>()?, [2.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for integers; [`Error::MemoryLimit`], [`Error::OutOfMemory`].
    pub fn to_dtype(&self, dtype: DType) -> Result<SparseMatrix> {
        require_float("to_dtype", dtype)?;
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let stored = &self.shared.stored;
        // The tiled and the streamed form keep values in their own order and places.
        let rows = match stored.spec.form {
            Form::Csr => stored.clone(),
            _ => stored.on(&self.device().host(), Form::Csr)?,
        };
        let rows = rows.in_dtype(dtype)?;
        let changes = rows.values.changes();
        let symmetric = self.is_symmetric();
        let shared = Shared { stored: rows, transpose: None, layout: None, symmetric, changes };
        let cast = SparseMatrix { shared: Arc::new(shared), transposed: self.transposed };
        if stored.spec.form == Form::Csr && !self.has_stored_transpose() {
            return Ok(cast);
        }
        let stored_transpose = match self.has_stored_transpose() {
            true => StoredTranspose::Always,
            false => StoredTranspose::Never,
        };
        let options =
            SparseOptions { stored_transpose, form: self.form(), ..SparseOptions::default() };
        cast.to_with(self.device(), options)
    }

    /// How the entries are kept.
    pub fn form(&self) -> SparseForm {
        SparseForm::of(self.shared.stored.spec.form)
    }

    /// How the form was chosen when the matrix moved to its device, for people; `None` for one that
    /// has not moved.
    ///
    /// ```
    /// use capgrad::{Device, SparseMatrix, SparseOptions};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = SparseMatrix::from_coo(2, 2, &[0, 1], &[1, 0], &[2.0f32, 3.0])?;
    /// let a = a.to_with(&Device::cpu(), SparseOptions::default())?;
    /// println!("{}", a.layout().unwrap());
    /// # Ok(()) }
    /// ```
    pub fn layout(&self) -> Option<&SparseLayout> {
        self.shared.layout.as_ref()
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
        let stored = &self.shared.stored;
        let equal = stored.rows == stored.cols
            && (stored.device().is_dry()
                || by_dtype!(self.dtype(), T => {
                    let arrays = stored.to_arrays::<T>()?;
                    assemble::transpose_csr(stored.cols, &arrays, false).csr == arrays
                }));
        if !equal {
            let value = format!("{}×{} matrix", self.rows(), self.cols());
            let reason = match stored.rows == stored.cols {
                true => "it differs from its transpose",
                false => "it is not square",
            };
            return Err(Error::argument("symmetric", "self", value, reason));
        }
        let (stored, changes) = (stored.clone(), stored.values.changes());
        let layout = self.shared.layout.clone();
        let shared = Shared { stored, transpose: None, layout, symmetric: true, changes };
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
        self.shared.stored.values.changes() == self.shared.changes
    }

    /// Rows of the matrix (of the transpose, for a transposed view).
    pub fn rows(&self) -> usize {
        if self.transposed { self.shared.stored.cols } else { self.shared.stored.rows }
    }

    /// Columns of the matrix (of the transpose, for a transposed view).
    pub fn cols(&self) -> usize {
        if self.transposed { self.shared.stored.rows } else { self.shared.stored.cols }
    }

    /// Stored entries.
    pub fn nnz(&self) -> usize {
        self.shared.stored.nnz
    }

    /// Bytes of all that is kept: offsets, indices and values, and those of a stored transpose (also of one
    /// that is no longer used, since the values were changed in place; `to_with` makes it anew). They
    /// are in the device's memory, or in the host's where the form is [`SparseForm::Streamed`].
    pub fn bytes(&self) -> usize {
        self.shared.stored.bytes() + self.shared.transpose.as_ref().map_or(0, Stored::bytes)
    }

    /// The values' type.
    pub fn dtype(&self) -> DType {
        self.shared.stored.dtype()
    }

    /// The device that holds the matrix.
    pub fn device(&self) -> &Device {
        self.shared.stored.device()
    }

    /// The stored values `[nnz]`, row by row (of the matrix that a transposed view is of), columns
    /// ascending. In compressed rows they are shared, and changing them changes the matrix; in
    /// another form they are a copy.
    ///
    /// # Errors
    /// For a copy [`Error::MemoryLimit`] and [`Error::OutOfMemory`].
    pub fn values(&self) -> Result<Tensor> {
        self.shared.stored.values_by_row()
    }

    pub(crate) fn stored(&self) -> &Stored {
        &self.shared.stored
    }

    pub(crate) fn stored_transpose(&self) -> Option<&Stored> {
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
    ) -> SparseSpec {
        let transpose = self.stored_transpose().map(|stored| stored.spec);
        self.stored().product(product, layout, width, transpose)
    }
}

fn require_dry(op: &'static str, device: &Device) -> Result<()> {
    if device.is_dry() {
        return Ok(());
    }
    let reason = "only a dry device computes without entries; see `Device::dry`";
    Err(Error::argument(op, "device", device, reason))
}

impl fmt::Debug for SparseMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, cols, nnz) = (self.rows(), self.cols(), self.nnz());
        write!(f, "SparseMatrix({} {rows}×{cols}, nnz {nnz}, on {})", self.dtype(), self.device())
    }
}
