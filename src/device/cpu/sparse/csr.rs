//! The view of a canonical CSR matrix that every kernel takes, and trusts.

use crate::dtype::Float;

/// Row offsets in either width.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OffsetsRef<'a> {
    /// At most `i32::MAX` entries.
    I32(&'a [i32]),
    /// More than that.
    I64(&'a [i64]),
}

/// A matrix in canonical CSR: offsets that start at 0, never decrease and end at the number of
/// entries; columns inside the matrix that strictly increase within each row. The kernels rely on
/// it without checking again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Csr<'a, T> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    row_offsets: OffsetsRef<'a>,
    pub(super) col_indices: &'a [i32],
    pub(super) values: &'a [T],
}

impl<'a, T: Float> Csr<'a, T> {
    /// A view of arrays that were checked when they were built.
    ///
    /// # Safety
    /// There must be `rows + 1` offsets that start at 0, never decrease and
    /// end at `col_indices.len() == values.len()`; every column index in `0..cols` and strictly
    /// increasing within its row.
    pub(crate) unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        row_offsets: OffsetsRef<'a>,
        col_indices: &'a [i32],
        values: &'a [T],
    ) -> Self {
        Csr { rows, cols, row_offsets, col_indices, values }
    }

    /// Number of stored entries.
    pub(super) fn nnz(&self) -> usize {
        self.col_indices.len()
    }

    /// Where row `r` starts; `r` may be the row count.
    #[inline(always)]
    pub(super) fn offset(&self, r: usize) -> usize {
        // The branch goes the same way every time, and costs less than kernels made twice.
        match self.row_offsets {
            OffsetsRef::I32(o) => o[r] as usize,
            OffsetsRef::I64(o) => o[r] as usize,
        }
    }

    /// The row at which `rows lo..hi` are best cut in two halves of equal work, where a row costs
    /// as much as an entry. Lies strictly between `lo` and `hi`, which are at least 2 apart.
    pub(super) fn halve(&self, lo: usize, hi: usize) -> usize {
        let cost = |r: usize| self.offset(r) + r;
        let half = cost(lo) + (cost(hi) - cost(lo)) / 2;
        let (mut a, mut b) = (lo + 1, hi - 1);
        while a < b {
            let mid = a + (b - a) / 2;
            if cost(mid) < half {
                a = mid + 1;
            } else {
                b = mid;
            }
        }
        a
    }

    /// The row that holds entry `e`, which exists.
    pub(super) fn row_of(&self, e: usize) -> usize {
        let (mut a, mut b) = (0, self.rows);
        while a < b {
            let mid = a + (b - a) / 2;
            if self.offset(mid + 1) <= e {
                a = mid + 1;
            } else {
                b = mid;
            }
        }
        a
    }
}
