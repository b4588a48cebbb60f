//! One matrix in the memory of one device, in one of the forms, and its way from one form to
//! another: by ranges of rows, so that no second copy of it is ever whole.

use super::assemble::{CsrArrays, Offsets};
use super::tiled::{Counter, Pieces};
use crate::device::Device;
use crate::device::spec::{DenseLayout, Form, SparseProduct, SparseSpec, StoredSpec};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::memory::{Purpose, PurposeGuard};
use crate::tensor::Tensor;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::ops::Range;

/// Entries that are in host memory at a time on their way (or those of one row, if it has more).
const CHUNK: usize = 4 << 20;

/// The arrays of a matrix, and what the planner knows of it.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) nnz: usize,
    pub(crate) spec: StoredSpec,
    /// Of a matrix without entries: a strip's columns, and how many entries the tiled form then has.
    pub(super) padded: Option<(usize, usize)>,
    /// Offsets of the rows, in entries without padding.
    pub(super) row_offsets: Tensor,
    /// Of the tiled form: where pieces begin, as `tiled::Pieces` marks them (u32 in an i32 tensor).
    pub(super) pieces: Option<Tensor>,
    /// i32, or of the tiled form two 16-bit numbers in one i32.
    pub(super) columns: Tensor,
    /// Of the tiled form with its padding, in its order.
    pub(crate) values: Tensor,
}

impl Stored {
    /// Compressed rows on a CPU, where vectors are taken over.
    pub(crate) fn from_arrays<T: Float>(
        rows: usize,
        cols: usize,
        arrays: CsrArrays<T>,
    ) -> Result<Stored> {
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        let device = Device::cpu();
        let nnz = arrays.values.len();
        let spec = statistics(&arrays.row_offsets, &arrays.col_indices, Form::Csr);
        let (columns, values) = (arrays.col_indices, arrays.values);
        Ok(Stored {
            rows,
            cols,
            nnz,
            spec,
            padded: None,
            row_offsets: offsets_tensor(arrays.row_offsets, &device)?,
            pieces: None,
            columns: Tensor::from_vec(columns, [nnz], &device)?,
            values: Tensor::from_vec(values, [nnz], &device)?,
        })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.values.dtype()
    }

    pub(crate) fn device(&self) -> &Device {
        self.values.device()
    }

    /// With offsets of 64 bits, as a matrix of very many entries has them.
    #[cfg(test)]
    pub(crate) fn widened(mut self) -> Stored {
        let offsets = to_vec::<i32>(&self.row_offsets).unwrap();
        let wide: Vec<i64> = offsets.into_iter().map(i64::from).collect();
        self.row_offsets = Tensor::from_vec(wide, [self.rows + 1], self.device()).unwrap();
        self
    }

    /// Bytes of all arrays, wherever they are.
    pub(crate) fn bytes(&self) -> usize {
        self.arrays(&self.values).iter().map(|array| array.bytes()).sum()
    }

    /// The arrays as products take them, with other values.
    pub(crate) fn arrays<'a>(&'a self, values: &'a Tensor) -> SmallVec<[&'a Tensor; 4]> {
        let mut arrays: SmallVec<[&Tensor; 4]> = smallvec::smallvec![&self.row_offsets];
        arrays.extend(&self.pieces);
        arrays.extend([&self.columns, values]);
        arrays
    }

    /// The sizes of a product with it.
    pub(crate) fn product(
        &self,
        product: SparseProduct,
        layout: DenseLayout,
        width: usize,
        transpose: Option<StoredSpec>,
    ) -> SparseSpec {
        SparseSpec {
            product,
            layout,
            width,
            rows: self.rows,
            cols: self.cols,
            nnz: self.nnz,
            stored: self.spec,
            transpose,
            values_apart: false,
            accumulate: false,
        }
    }

    /// Compressed rows with their values in another dtype; the indices are shared.
    pub(crate) fn in_dtype(&self, dtype: DType) -> Result<Stored> {
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        Ok(Stored { values: self.values.to_dtype(dtype)?, ..self.clone() })
    }

    /// The same matrix on `device` in another form; what is there already is shared.
    pub(crate) fn on(&self, device: &Device, form: Form) -> Result<Stored> {
        if self.device() == device && self.spec.form == form {
            return Ok(self.clone());
        }
        if self.device().is_dry() {
            return self.outlined(device, form);
        }
        by_dtype!(self.dtype(), T => self.converted::<T>(device, form))
    }

    fn converted<T: Float>(&self, device: &Device, form: Form) -> Result<Stored> {
        let _purpose = PurposeGuard::new(Purpose::Sparse);
        let reader = Reader::new(self)?;
        let pieces = match form {
            Form::Tiled { strip } => Some(reader.pieces::<T>(strip)?),
            _ => None,
        };
        let entries = pieces.as_ref().map_or(self.nnz, Pieces::entries);
        let array = |elements: usize, dtype| match form {
            Form::Streamed => Tensor::in_host_memory("to", [elements], dtype, device),
            _ => Tensor::empty("to", [elements], dtype, device),
        };
        // Before the large arrays, so that a limit is met before anything is copied.
        let columns = array(if pieces.is_some() { entries / 2 } else { entries }, DType::I32)?;
        let values = array(entries, T::DTYPE)?;
        let row_offsets = match form {
            Form::Streamed => {
                let offsets = offsets_tensor(reader.offsets.clone(), &Device::cpu())?;
                let pinned = array(self.rows + 1, offsets.dtype())?;
                let mut bytes = vec![0; offsets.bytes()];
                read(&offsets, 0, &mut bytes)?;
                pinned.device().backend().write(&pinned, &bytes)?;
                pinned
            }
            _ => offsets_tensor(reader.offsets.clone(), device)?,
        };
        let marks = match &pieces {
            Some(pieces) => {
                let marks: &[i32] = bytemuck::cast_slice(pieces.marks());
                Some(Tensor::from_slice(marks, [marks.len()], device)?)
            }
            None => None,
        };
        let mut scratch = (Vec::new(), Vec::new());
        reader.each_chunk::<T>(true, |rows, offsets, chunk_columns, chunk_values| {
            let Some(pieces) = &pieces else {
                let begin = reader.offset(rows.start);
                write(&columns, begin, chunk_columns)?;
                return write(&values, begin, chunk_values);
            };
            for strip in 0..pieces.strips {
                let region = pieces.region(strip, &rows);
                scratch.0.resize(region.len(), 0u16);
                scratch.1.resize(region.len(), T::default());
                let out = (&mut scratch.0[..], &mut scratch.1[..]);
                pieces.fill(strip, &rows, (offsets, chunk_columns, chunk_values), out);
                // A region begins and ends at multiples of four entries.
                write(&columns, region.start / 2, &scratch.0)?;
                write(&values, region.start, &scratch.1)?;
            }
            Ok(())
        })?;
        let spec = StoredSpec { form, ..self.spec };
        let (rows, cols, nnz) = (self.rows, self.cols, self.nnz);
        let padded = None;
        Ok(Stored { rows, cols, nnz, spec, padded, row_offsets, pieces: marks, columns, values })
    }

    /// Entries of the tiled form with strips of so many columns, padding included.
    pub(crate) fn padded_entries(&self, strip: usize) -> Result<usize> {
        if self.spec.form == (Form::Tiled { strip }) {
            return Ok(self.values.elements());
        }
        let reader = Reader::new(self)?;
        by_dtype!(self.dtype(), T => Ok(reader.pieces::<T>(strip)?.entries()))
    }

    pub(crate) fn offset_dtype(&self) -> DType {
        self.row_offsets.dtype()
    }

    /// The matrix as arrays in host memory.
    pub(crate) fn to_arrays<T: Float>(&self) -> Result<CsrArrays<T>> {
        let reader = Reader::new(self)?;
        let mut col_indices = Vec::with_capacity(self.nnz);
        let mut values = Vec::with_capacity(self.nnz);
        reader.each_chunk::<T>(true, |_, _, chunk_columns, chunk_values| {
            col_indices.extend_from_slice(chunk_columns);
            values.extend_from_slice(chunk_values);
            Ok(())
        })?;
        Ok(CsrArrays { row_offsets: reader.offsets, col_indices, values })
    }

    /// The values row by row, columns ascending: shared where they lie so, else a copy.
    pub(crate) fn values_by_row(&self) -> Result<Tensor> {
        if self.spec.form == Form::Csr {
            return Ok(self.values.clone());
        }
        if self.device().is_dry() {
            return Tensor::empty("values", [self.nnz], self.dtype(), self.device());
        }
        by_dtype!(self.dtype(), T => self.gathered::<T>())
    }

    fn gathered<T: Float>(&self) -> Result<Tensor> {
        let reader = Reader::new(self)?;
        let out = Tensor::empty("values", [self.nnz], T::DTYPE, self.device())?;
        reader.each_chunk::<T>(true, |rows, _, _, chunk_values| {
            write(&out, reader.offset(rows.start), chunk_values)
        })?;
        Ok(out)
    }
}

/// Writes bytes from element `start` on; `data` may be of smaller elements.
fn write<T: bytemuck::NoUninit>(out: &Tensor, start: usize, data: &[T]) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let elements = std::mem::size_of_val(data) / out.dtype().size();
    out.device().backend().write(&out.rows(start, elements), bytemuck::cast_slice(data))
}

/// Reads as many elements as `data` has.
fn read<T: bytemuck::Pod>(x: &Tensor, start: usize, data: &mut [T]) -> Result<()> {
    if data.is_empty() {
        return Ok(());
    }
    let elements = std::mem::size_of_val(data) / x.dtype().size();
    x.device().backend().read(&x.rows(start, elements), bytemuck::cast_slice_mut(data))
}

fn offsets_tensor(offsets: Offsets, device: &Device) -> Result<Tensor> {
    let rows = offsets.len();
    match offsets {
        Offsets::I32(offsets) => Tensor::from_vec(offsets, [rows], device),
        Offsets::I64(offsets) => Tensor::from_vec(offsets, [rows], device),
    }
}

fn statistics(offsets: &Offsets, columns: &[i32], form: Form) -> StoredSpec {
    let length = |row: usize| offsets.get(row + 1) - offsets.get(row);
    let rows = (0..offsets.len() - 1).into_par_iter().with_min_len(1024);
    let (longest, filled) = rows
        .map(|row| (length(row), usize::from(length(row) > 0)))
        .reduce(|| (0, 0), |a, b| (a.0.max(b.0), a.1 + b.1));
    let (fresh_groups, fresh_columns) = (fresh(columns, 8), fresh(columns, 1));
    StoredSpec { form, longest, filled, fresh_groups, fresh_columns }
}

/// The share (of 65,535) of different groups of `size` neighbouring columns in stretches of entries, as
/// found in some of them.
fn fresh(columns: &[i32], size: i32) -> u16 {
    const STRETCH: usize = 4096;
    const LOOKED_AT: usize = 64;
    let stretches = columns.len().div_ceil(STRETCH);
    let (mut different, mut all) = (0, 0);
    let mut groups = Vec::with_capacity(STRETCH);
    for stretch in (0..stretches).step_by(stretches.div_ceil(LOOKED_AT).max(1)) {
        let begin = stretch * STRETCH;
        let entries = &columns[begin..columns.len().min(begin + STRETCH)];
        groups.clear();
        groups.extend(entries.iter().map(|column| column / size));
        groups.sort_unstable();
        groups.dedup();
        different += groups.len();
        all += entries.len();
    }
    (different * usize::from(u16::MAX) / all.max(1)) as u16
}

/// Reads a matrix in any form by ranges of rows.
struct Reader<'a> {
    stored: &'a Stored,
    offsets: Offsets,
    pieces: Option<Pieces>,
}

impl Reader<'_> {
    fn new(stored: &Stored) -> Result<Reader<'_>> {
        let offsets = match stored.row_offsets.dtype() {
            DType::I64 => Offsets::I64(to_vec(&stored.row_offsets)?),
            _ => Offsets::I32(to_vec(&stored.row_offsets)?),
        };
        let pieces = match (stored.spec.form, &stored.pieces) {
            (Form::Tiled { strip }, Some(marks)) => {
                let marks = to_vec::<i32>(marks)?.into_iter().map(|mark| mark as u32).collect();
                Some(Pieces::from_marks(stored.rows, stored.cols, strip, marks))
            }
            _ => None,
        };
        Ok(Reader { stored, offsets, pieces })
    }

    fn offset(&self, row: usize) -> usize {
        self.offsets.get(row)
    }

    /// Calls `f` with ranges of rows in turn: their offsets, counted from the first one's, and their
    /// columns and (if asked for) values.
    fn each_chunk<T: Float>(
        &self,
        with_values: bool,
        mut f: impl FnMut(Range<usize>, &[usize], &[i32], &[T]) -> Result<()>,
    ) -> Result<()> {
        let rows = self.stored.rows;
        let mut chunk = CsrArrays {
            row_offsets: Offsets::I32(Vec::new()),
            col_indices: Vec::new(),
            values: Vec::<T>::new(),
        };
        let mut scratch = (Vec::new(), Vec::new());
        let mut offsets = Vec::new();
        let mut start = 0;
        while start < rows {
            let begin = self.offset(start);
            let mut end = start + 1;
            // Rows without entries count too, so that offsets stay few.
            while end < rows && self.offset(end + 1) - begin <= CHUNK && end - start < CHUNK {
                end += 1;
            }
            let range = start..end;
            offsets.clear();
            offsets.extend((start..=end).map(|row| self.offset(row) - begin));
            let entries = self.offset(end) - begin;
            chunk.col_indices.resize(entries, 0);
            // Pieces give out columns and values together.
            let of_values = if with_values || self.pieces.is_some() { entries } else { 0 };
            chunk.values.resize(of_values, T::default());
            match &self.pieces {
                None => {
                    read(&self.stored.columns, begin, &mut chunk.col_indices)?;
                    read(&self.stored.values, begin, &mut chunk.values)?;
                }
                Some(pieces) => {
                    let mut next = offsets.clone();
                    for strip in 0..pieces.strips {
                        let region = pieces.region(strip, &range);
                        scratch.0.resize(region.len(), 0u16);
                        scratch.1.resize(region.len(), T::default());
                        read(&self.stored.columns, region.start / 2, &mut scratch.0)?;
                        read(&self.stored.values, region.start, &mut scratch.1)?;
                        let entries = (&scratch.0[..], &scratch.1[..]);
                        pieces.unfill(strip, &range, entries, &mut next, &mut chunk);
                    }
                }
            }
            f(range, &offsets, &chunk.col_indices, &chunk.values)?;
            start = end;
        }
        Ok(())
    }

    fn pieces<T: Float>(&self, strip: usize) -> Result<Pieces> {
        let (rows, cols) = (self.stored.rows, self.stored.cols);
        let mut counter = Counter::new(rows, cols, strip);
        self.each_chunk::<T>(false, |_, offsets, columns, _| {
            counter.add(offsets, columns);
            Ok(())
        })?;
        counter.finish().ok_or_else(|| {
            let reason = "the tiled form marks at most 2³² entries; keep compressed rows";
            Error::argument("to_with", "form", format!("{} entries", self.stored.nnz), reason)
        })
    }
}

fn to_vec<T: crate::dtype::Element>(x: &Tensor) -> Result<Vec<T>> {
    let mut data = vec![T::default(); x.elements()];
    read(x, 0, &mut data)?;
    Ok(data)
}
