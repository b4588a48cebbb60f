//! Turns COO, CSR and CSC arrays into canonical CSR: columns sorted within each row, duplicates
//! added up, every index checked once. Pure functions on slices; they know nothing of devices.
//!
//! Time is O(nnz + rows) plus a sort within the rows that need one. Arrays that are canonical
//! already are taken over (owned) or copied once (borrowed).
//!
//! Memory at the peak, beside input and result: 12 bytes a row, and for each thread that sorts, at
//! most 8 + `size_of::<T>()` bytes (16 + … beyond 2³² entries) an entry of the longest unsorted row.
//! An entry map costs 4 bytes an entry while it is made, beside itself.

mod arrays;
mod error;
mod sort;
#[cfg(test)]
mod tests;

pub use arrays::{CsrArrays, EntryMap, Index, Offsets};
pub use error::BuildError;

use crate::dtype::Float;
use arrays::{Coo, Lines, MAX_SIDE};
use std::borrow::Cow;

/// A canonical matrix, and where each given entry went.
#[derive(Clone, Debug, PartialEq)]
pub struct Built<T> {
    /// The matrix.
    pub csr: CsrArrays<T>,
    /// For each given entry the stored entry that it was added to; `None` when not asked for.
    pub entry_map: Option<EntryMap>,
}

/// Builds from coordinates in any order; duplicates add up in the order given, zeros are kept.
///
/// # Errors
/// Arrays of different lengths, an index outside the shape, a shape that is too large.
pub fn from_coo<'v, T: Float, I: Index, J: Index>(
    rows: usize,
    cols: usize,
    row_indices: &[I],
    col_indices: &[J],
    values: impl Into<Cow<'v, [T]>>,
    with_entry_map: bool,
) -> Result<Built<T>, BuildError> {
    let values = values.into();
    check_shape(rows, cols)?;
    let expected = values.len();
    for (what, got) in [("row_indices", row_indices.len()), ("col_indices", col_indices.len())] {
        if got != expected {
            return Err(BuildError::LengthMismatch { what, expected, got });
        }
    }
    let mut canonical = true;
    let mut last = None;
    for (entry, (&i, &j)) in row_indices.iter().zip(col_indices).enumerate() {
        let here = (arrays::checked_row(i, entry, rows)?, arrays::checked_col(j, entry, cols)?);
        canonical &= last < Some(here);
        last = Some(here);
    }
    let coo = Coo { row_indices, col_indices };
    Ok(if canonical {
        Built {
            csr: CsrArrays {
                row_offsets: sort::count(rows, &coo),
                col_indices: col_indices.iter().map(|j| j.as_col()).collect(),
                values: values.into_owned(),
            },
            entry_map: with_entry_map.then_some(EntryMap::Identity),
        }
    } else {
        sort::build(rows, &coo, &values, with_entry_map)
    })
}

/// Builds from compressed rows whose columns may be in any order and repeat. Entries beyond the
/// last offset are not read.
///
/// # Errors
/// Offsets that are not one longer than `rows`, start elsewhere than at 0, decrease or end beyond
/// the arrays; an index outside the shape; a shape that is too large.
pub fn from_csr<'v, T: Float, O: Index, J: Index>(
    rows: usize,
    cols: usize,
    row_offsets: &[O],
    col_indices: &[J],
    values: impl Into<Cow<'v, [T]>>,
    with_entry_map: bool,
) -> Result<Built<T>, BuildError> {
    let values = values.into();
    check_shape(rows, cols)?;
    let nnz = arrays::check_offsets(rows, row_offsets, col_indices.len(), values.len())?;
    let lines = Lines::<O, J, false> { offsets: row_offsets, indices: &col_indices[..nnz] };
    if !check_columns(cols, &lines)? {
        return Ok(sort::build(rows, &lines, &values[..nnz], with_entry_map));
    }
    Ok(Built {
        csr: CsrArrays {
            row_offsets: Offsets::collect(nnz, row_offsets.iter().map(|o| o.as_usize())),
            col_indices: lines.indices.iter().map(|j| j.as_col()).collect(),
            values: own_prefix(values, nnz),
        },
        entry_map: with_entry_map.then_some(EntryMap::Identity),
    })
}

/// [`from_csr`] for arrays that are given away: canonical ones are checked and kept as they are,
/// without a copy.
///
/// # Errors
/// As [`from_csr`].
pub fn from_csr_owned<T: Float>(
    rows: usize,
    cols: usize,
    row_offsets: Offsets,
    mut col_indices: Vec<i32>,
    values: Vec<T>,
    with_entry_map: bool,
) -> Result<Built<T>, BuildError> {
    check_shape(rows, cols)?;
    let (items, vals) = (col_indices.len(), values.len());
    let (nnz, canonical) = match &row_offsets {
        Offsets::I32(o) => {
            let nnz = arrays::check_offsets(rows, o, items, vals)?;
            (nnz, check_owned(cols, o, &col_indices[..nnz])?)
        }
        Offsets::I64(o) => {
            let nnz = arrays::check_offsets(rows, o, items, vals)?;
            (nnz, check_owned(cols, o, &col_indices[..nnz])?)
        }
    };
    if !canonical {
        return match &row_offsets {
            Offsets::I32(o) => from_csr(rows, cols, o, &col_indices, values, with_entry_map),
            Offsets::I64(o) => from_csr(rows, cols, o, &col_indices, values, with_entry_map),
        };
    }
    col_indices.truncate(nnz);
    Ok(Built {
        csr: CsrArrays {
            row_offsets: row_offsets.narrowed(nnz),
            col_indices,
            values: own_prefix(Cow::Owned(values), nnz),
        },
        entry_map: with_entry_map.then_some(EntryMap::Identity),
    })
}

/// Builds from compressed columns; the counterpart of [`from_csr`].
///
/// # Errors
/// As [`from_csr`], of columns.
pub fn from_csc<'v, T: Float, O: Index, I: Index>(
    rows: usize,
    cols: usize,
    col_offsets: &[O],
    row_indices: &[I],
    values: impl Into<Cow<'v, [T]>>,
    with_entry_map: bool,
) -> Result<Built<T>, BuildError> {
    let values = values.into();
    check_shape(rows, cols)?;
    let nnz = arrays::check_offsets(cols, col_offsets, row_indices.len(), values.len())?;
    let lines = Lines::<O, I, true> { offsets: col_offsets, indices: &row_indices[..nnz] };
    for (entry, &i) in lines.indices.iter().enumerate() {
        arrays::checked_row(i, entry, rows)?;
    }
    Ok(sort::build(rows, &lines, &values[..nnz], with_entry_map))
}

/// Checks that arrays are canonical CSR: what the kernels trust, held by tests.
///
/// # Errors
/// As [`from_csr`]; [`BuildError::NotCanonical`] where columns do not strictly increase in a row,
/// [`BuildError::LengthMismatch`] where arrays go on beyond the last offset.
#[cfg(test)]
pub fn check_canonical<O: Index>(
    rows: usize,
    cols: usize,
    row_offsets: &[O],
    col_indices: &[i32],
    values: usize,
) -> Result<(), BuildError> {
    check_shape(rows, cols)?;
    let expected = arrays::check_offsets(rows, row_offsets, col_indices.len(), values)?;
    for (what, got) in [("col_indices", col_indices.len()), ("values", values)] {
        if got != expected {
            return Err(BuildError::LengthMismatch { what, expected, got });
        }
    }
    check_owned(cols, row_offsets, col_indices)?;
    for bounds in row_offsets.windows(2) {
        let from = bounds[0].as_usize();
        let row = &col_indices[from..bounds[1].as_usize()];
        if let Some(k) = row.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(BuildError::NotCanonical { entry: from + k + 1, col: row[k + 1].into() });
        }
    }
    Ok(())
}

/// The transpose of a canonical matrix (canonical too), by counting: O(nnz + rows + cols). With a
/// map, entry `e` of `csr` is entry `map.get(e)` of the result.
pub fn transpose_csr<T: Float>(cols: usize, csr: &CsrArrays<T>, with_entry_map: bool) -> Built<T> {
    // Compressed rows of A are compressed columns of its transpose.
    match &csr.row_offsets {
        Offsets::I32(o) => transpose_with(cols, o, csr, with_entry_map),
        Offsets::I64(o) => transpose_with(cols, o, csr, with_entry_map),
    }
}

fn transpose_with<T: Float, O: Index>(
    cols: usize,
    offsets: &[O],
    csr: &CsrArrays<T>,
    with_entry_map: bool,
) -> Built<T> {
    let lines = Lines::<O, i32, true> { offsets, indices: &csr.col_indices };
    sort::build(cols, &lines, &csr.values, with_entry_map)
}

/// The entries of a row-major dense matrix that are not zero (NaN is not zero).
///
/// # Errors
/// A shape that is too large, or not that of `dense`.
pub fn from_dense<T: Float>(
    rows: usize,
    cols: usize,
    dense: &[T],
) -> Result<CsrArrays<T>, BuildError> {
    check_shape(rows, cols)?;
    let expected = rows.saturating_mul(cols);
    if dense.len() != expected {
        return Err(BuildError::LengthMismatch { what: "dense", expected, got: dense.len() });
    }
    let stored = |v: &&T| **v != T::default();
    let nnz = dense.iter().filter(stored).count();
    let mut ends = Vec::with_capacity(rows + 1);
    let mut col_indices = Vec::with_capacity(nnz);
    let mut values = Vec::with_capacity(nnz);
    ends.push(0);
    for r in 0..rows {
        let row = &dense[r * cols..(r + 1) * cols];
        for (c, v) in row.iter().enumerate().filter(|(_, v)| stored(v)) {
            col_indices.push(c.as_col());
            values.push(*v);
        }
        ends.push(values.len());
    }
    Ok(CsrArrays { row_offsets: Offsets::collect(nnz, ends.into_iter()), col_indices, values })
}

/// The matrix as a row-major dense one.
///
/// # Errors
/// [`BuildError::OutOfMemory`].
pub fn to_dense<T: Float>(cols: usize, csr: &CsrArrays<T>) -> Result<Vec<T>, BuildError> {
    let rows = csr.row_offsets.len().saturating_sub(1);
    let elements = rows.saturating_mul(cols);
    require_memory(elements.saturating_mul(size_of::<T>()))?;
    let mut dense = vec![T::default(); elements];
    for r in 0..rows {
        for e in csr.row_offsets.get(r)..csr.row_offsets.get(r + 1) {
            dense[r * cols + csr.col_indices[e].as_usize()] = csr.values[e];
        }
    }
    Ok(dense)
}

/// Asks the system for this much memory and gives it back, so that a size that cannot be had is an
/// error and not the end of the process.
fn require_memory(bytes: usize) -> Result<(), BuildError> {
    let asked = Vec::<u8>::new().try_reserve_exact(bytes);
    asked.map_err(|_| BuildError::OutOfMemory { bytes })
}

fn check_shape(rows: usize, cols: usize) -> Result<(), BuildError> {
    for (what, size) in [("rows", rows), ("columns", cols)] {
        if size > MAX_SIDE {
            return Err(BuildError::TooLarge { what, size, limit: MAX_SIDE });
        }
    }
    // Offsets, and what is counted a row.
    require_memory(rows.saturating_add(1).saturating_mul(16))
}

/// Checks every column index; whether the rows are strictly sorted.
fn check_columns<O: Index, J: Index>(
    cols: usize,
    lines: &Lines<'_, O, J, false>,
) -> Result<bool, BuildError> {
    let mut canonical = true;
    for bounds in lines.offsets.windows(2) {
        let from = bounds[0].as_usize();
        let mut last = None;
        for (k, &j) in lines.indices[from..bounds[1].as_usize()].iter().enumerate() {
            let col = Some(arrays::checked_col(j, from + k, cols)?);
            canonical &= last < col;
            last = col;
        }
    }
    Ok(canonical)
}

fn check_owned<O: Index>(cols: usize, offsets: &[O], indices: &[i32]) -> Result<bool, BuildError> {
    check_columns(cols, &Lines::<O, i32, false> { offsets, indices })
}

/// The first `nnz` values, without a copy where they are owned.
fn own_prefix<T: Float>(values: Cow<'_, [T]>, nnz: usize) -> Vec<T> {
    match values {
        Cow::Borrowed(v) => v[..nnz].to_vec(),
        Cow::Owned(mut v) => {
            v.truncate(nnz);
            v
        }
    }
}
