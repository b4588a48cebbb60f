//! The arrays that go into a sparse matrix and the ones that come out: index types, row offsets of
//! either width, the entry map, and one way to walk COO, CSR and CSC alike.

use super::BuildError;

/// The most rows or columns there can be: column indices are 32-bit.
pub(super) const MAX_SIDE: usize = i32::MAX as usize;

mod sealed {
    pub trait Sealed {}
}

/// An integer that indices and offsets may be given in. Sealed: `i32`, `i64`, `u32`, `usize`.
pub trait Index: Copy + Send + Sync + sealed::Sealed {
    /// The number as given, for messages and checks.
    fn as_i128(self) -> i128;
    /// The number as a `usize`; only for one that was checked.
    fn as_usize(self) -> usize;
    /// The number as a stored column index; only for one that was checked.
    fn as_col(self) -> i32;
}

macro_rules! index {
    ($($t:ty),*) => {$(
        impl sealed::Sealed for $t {}
        impl Index for $t {
            #[inline(always)]
            fn as_i128(self) -> i128 { self as i128 }
            #[inline(always)]
            fn as_usize(self) -> usize { self as usize }
            #[inline(always)]
            fn as_col(self) -> i32 { self as i32 }
        }
    )*};
}
index!(i32, i64, u32, usize);

/// Row offsets: 32-bit unless there are more than `i32::MAX` entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// At most `i32::MAX` entries.
    I32(Vec<i32>),
    /// More than that.
    I64(Vec<i64>),
}

impl Offsets {
    /// How many offsets there are: rows + 1.
    #[allow(clippy::len_without_is_empty)] // there is always at least one offset
    pub fn len(&self) -> usize {
        match self {
            Offsets::I32(o) => o.len(),
            Offsets::I64(o) => o.len(),
        }
    }

    /// Offset `i`.
    #[inline]
    pub fn get(&self, i: usize) -> usize {
        match self {
            Offsets::I32(o) => o[i].as_usize(),
            Offsets::I64(o) => o[i].as_usize(),
        }
    }

    /// Offsets in the width that `nnz` entries need.
    pub(super) fn collect(nnz: usize, offsets: impl Iterator<Item = usize>) -> Self {
        if nnz <= MAX_SIDE {
            Offsets::I32(offsets.map(|o| o as i32).collect())
        } else {
            Offsets::I64(offsets.map(|o| o as i64).collect())
        }
    }

    /// The same offsets in 32 bits where `nnz` allows it; untouched when they are so already.
    pub(super) fn narrowed(self, nnz: usize) -> Self {
        match self {
            Offsets::I64(o) if nnz <= MAX_SIDE => {
                Offsets::I32(o.into_iter().map(|o| o as i32).collect())
            }
            kept => kept,
        }
    }
}

impl From<Vec<i32>> for Offsets {
    fn from(offsets: Vec<i32>) -> Self {
        Offsets::I32(offsets)
    }
}

impl From<Vec<i64>> for Offsets {
    fn from(offsets: Vec<i64>) -> Self {
        Offsets::I64(offsets)
    }
}

/// A canonical CSR matrix: columns strictly increase within each row.
#[derive(Clone, Debug, PartialEq)]
pub struct CsrArrays<T> {
    /// Where each row starts, and at last the number of entries.
    pub row_offsets: Offsets,
    /// The column of each entry.
    pub col_indices: Vec<i32>,
    /// The value of each entry.
    pub values: Vec<T>,
}

/// For each given entry, the stored entry that it was added to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryMap {
    /// Entry `i` is stored entry `i`.
    Identity,
    /// At most `u32::MAX` entries were given.
    U32(Vec<u32>),
    /// More than that.
    U64(Vec<u64>),
}

impl EntryMap {
    pub(super) fn zeros(nnz: usize) -> Self {
        if u32::try_from(nnz).is_ok() {
            EntryMap::U32(vec![0; nnz])
        } else {
            EntryMap::U64(vec![0; nnz])
        }
    }

    /// Where given entry `i` is stored.
    #[inline]
    pub fn get(&self, i: usize) -> usize {
        match self {
            EntryMap::Identity => i,
            EntryMap::U32(m) => m[i] as usize,
            EntryMap::U64(m) => m[i] as usize,
        }
    }

    #[inline]
    pub(super) fn set(&mut self, i: usize, stored: usize) {
        match self {
            EntryMap::Identity => {}
            EntryMap::U32(m) => m[i] = stored as u32,
            EntryMap::U64(m) => m[i] = stored as u64,
        }
    }
}

/// Entries in the order given, whatever the form: called once to count, once to place.
pub(super) trait Entries {
    /// How many entries there are.
    fn nnz(&self) -> usize;
    /// Calls `f(entry, row, column)` for each entry. The indices are checked already.
    fn for_each(&self, f: impl FnMut(usize, usize, i32));
}

/// Coordinates.
pub(super) struct Coo<'a, I, J> {
    pub(super) row_indices: &'a [I],
    pub(super) col_indices: &'a [J],
}

impl<I: Index, J: Index> Entries for Coo<'_, I, J> {
    fn nnz(&self) -> usize {
        self.row_indices.len()
    }

    fn for_each(&self, mut f: impl FnMut(usize, usize, i32)) {
        for (entry, (i, j)) in self.row_indices.iter().zip(self.col_indices).enumerate() {
            f(entry, i.as_usize(), j.as_col());
        }
    }
}

/// Compressed lines: rows, or columns where `CSC` is set.
pub(super) struct Lines<'a, O, J, const CSC: bool> {
    pub(super) offsets: &'a [O],
    pub(super) indices: &'a [J],
}

impl<O: Index, J: Index, const CSC: bool> Entries for Lines<'_, O, J, CSC> {
    fn nnz(&self) -> usize {
        self.indices.len()
    }

    fn for_each(&self, mut f: impl FnMut(usize, usize, i32)) {
        for (line, bounds) in self.offsets.windows(2).enumerate() {
            let from = bounds[0].as_usize();
            for (k, j) in self.indices[from..bounds[1].as_usize()].iter().enumerate() {
                if CSC {
                    f(from + k, j.as_usize(), line.as_col());
                } else {
                    f(from + k, line, j.as_col());
                }
            }
        }
    }
}

/// A row index that lies in the matrix.
#[inline]
pub(super) fn checked_row<I: Index>(i: I, entry: usize, rows: usize) -> Result<usize, BuildError> {
    let row = i.as_i128();
    if row < 0 {
        return Err(BuildError::Negative { what: "row_indices", position: entry, value: row });
    }
    if row >= rows as i128 {
        return Err(BuildError::RowOutOfRange { entry, row, rows });
    }
    Ok(i.as_usize())
}

/// A column index that lies in the matrix.
#[inline]
pub(super) fn checked_col<J: Index>(j: J, entry: usize, cols: usize) -> Result<usize, BuildError> {
    let col = j.as_i128();
    if col < 0 {
        return Err(BuildError::Negative { what: "col_indices", position: entry, value: col });
    }
    if col >= cols as i128 {
        return Err(BuildError::ColumnOutOfRange { entry, col, cols });
    }
    Ok(j.as_usize())
}

/// Checks the offsets of `lines` rows (or columns) over arrays of the given lengths; the number of
/// entries that they name.
pub(super) fn check_offsets<O: Index>(
    lines: usize,
    offsets: &[O],
    indices: usize,
    values: usize,
) -> Result<usize, BuildError> {
    // `lines` was checked against `MAX_SIDE`.
    let expected = lines + 1;
    if offsets.len() != expected {
        return Err(BuildError::OffsetsLength { expected, got: offsets.len() });
    }
    for (position, o) in offsets.iter().enumerate() {
        if o.as_i128() < 0 {
            return Err(BuildError::Negative { what: "offsets", position, value: o.as_i128() });
        }
    }
    if offsets[0].as_i128() != 0 {
        return Err(BuildError::FirstOffsetNotZero { got: offsets[0].as_i128() });
    }
    for (line, bounds) in offsets.windows(2).enumerate() {
        let (from, to) = (bounds[0].as_i128(), bounds[1].as_i128());
        if to < from {
            return Err(BuildError::OffsetsDecrease { line, from, to });
        }
    }
    let last = offsets[lines].as_i128();
    for (what, len) in [("the index array", indices), ("the values array", values)] {
        if last > len as i128 {
            return Err(BuildError::LastOffset { last, what, len });
        }
    }
    Ok(offsets[lines].as_usize())
}
