//! The kernel below every form of `Aᵀ·G`: adds rows, or their segments in a range of columns, to
//! sums in memory.

use super::dense::{Dense, Target};
use super::lanes::{dispatched, fma, for_blocks, prefetch, prefetch_ahead, widen};
use super::{Csr, walk};
use crate::dtype::Float;
use std::ops::Range;

/// Writes zeros.
///
/// # Safety
/// Rows and lanes must be inside `sums`, and the caller's to write.
pub(super) unsafe fn clear<S: Float>(sums: Target<'_, S>, rows: Range<usize>, lanes: Range<usize>) {
    if sums.lane == 1 && sums.row == lanes.len() {
        // SAFETY: the caller's promise; whole rows lie one after the other.
        unsafe {
            std::ptr::write_bytes(sums.at(rows.start, lanes.start), 0, rows.len() * sums.row)
        };
    } else if sums.lane == 1 {
        for r in rows {
            // SAFETY: the caller's promise; the lanes of a row lie side by side.
            unsafe { std::ptr::write_bytes(sums.at(r, lanes.start), 0, lanes.len()) };
        }
    } else {
        for j in lanes {
            // SAFETY: the caller's promise; the rows of a vector lie side by side (`Dense`).
            unsafe { std::ptr::write_bytes(sums.at(rows.start, j), 0, rows.len()) };
        }
    }
}

dispatched! {
    /// Adds `Aᵀ·G` to `sums`, restricted to `rows`, `entries`, `cols` and `lanes`.
    ///
    /// # Safety
    /// The ranges must be inside the operands; `cols` × `lanes` of `sums` must be the caller's.
    pub(super) unsafe fn scatter = scatter_body(
        csr: &Csr<'_, T>,
        g: Dense<'_, T>,
        sums: Target<'_, T::Sum>,
        rows: Range<usize>,
        entries: Range<usize>,
        cols: Range<usize>,
        lanes: Range<usize>,
    )
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn scatter_body<T: Float, const FMA: bool>(
    csr: &Csr<'_, T>,
    g: Dense<'_, T>,
    sums: Target<'_, T::Sum>,
    rows: Range<usize>,
    entries: Range<usize>,
    cols: Range<usize>,
    lanes: Range<usize>,
) {
    if cols.is_empty() || lanes.is_empty() {
        return;
    }
    let whole = cols.start == 0 && cols.end == csr.cols;
    let one = lanes.len() == 1 && sums.row == 1;
    let size = size_of::<T::Sum>();
    if one && !whole && walk::pays(csr.rows, csr.cols, csr.nnz(), cols.len(), size) {
        // SAFETY: the caller's promise.
        return unsafe { walk::walk(csr, g, sums, rows, entries, cols, lanes.start) };
    }
    // Segments jump over what other tasks take, so the next ones are asked for by estimate.
    let long = csr.nnz() / csr.rows.max(1) >= 32;
    let (near, far) = (cols.start as f32 / csr.cols as f32, cols.end as f32 / csr.cols as f32);
    let mut segments = [(0, 0); ROWS];
    let mut first = rows.start;
    while first < rows.end {
        let count = ROWS.min(rows.end - first);
        // The searches of many rows overlap in the machine only where nothing lies between them.
        for (r, segment) in (first..).zip(&mut segments[..count]) {
            let mut from = csr.offset(r).max(entries.start);
            let mut to = csr.offset(r + 1).min(entries.end).max(from);
            if !whole {
                if long && r + AHEAD_ROWS < rows.end {
                    let next = csr.offset(r + AHEAD_ROWS);
                    let length = (csr.offset(r + AHEAD_ROWS + 1) - next) as f32;
                    let end = next + (length * far) as usize;
                    let mut e = next + (length * near) as usize;
                    while e < end + 15 {
                        prefetch(csr.col_indices.as_ptr().wrapping_add(e));
                        prefetch(csr.values.as_ptr().wrapping_add(e));
                        e += 16;
                    }
                }
                // SAFETY: `from..to` is part of a row, so the entries exist.
                unsafe {
                    from = lower_bound(csr.col_indices, from, to, cols.start);
                    to = lower_bound(csr.col_indices, from, to, cols.end);
                }
            }
            *segment = (from, to);
        }
        for (r, &(from, to)) in (first..).zip(&segments[..count]) {
            if from == to {
                continue;
            }
            macro_rules! block {
            ($w:ident, $beside:literal, $j:ident) => {
                // SAFETY: the entries are a row's, with columns in `cols`; the caller's promise.
                unsafe {
                    row::<T, $w, $beside, FMA>(csr, g, sums, r, from..to, $j, whole);
                }
            };
        }
            if one {
                for_blocks!(lanes.start, lanes.end, [1], |j, W| block!(W, true, j));
            } else if sums.lane == 1 {
                for_blocks!(lanes.start, lanes.end, [32, 16, 8, 4, 2, 1], |j, W| block!(
                    W, true, j
                ));
            } else {
                for_blocks!(lanes.start, lanes.end, [4, 2, 1], |j, W| block!(W, false, j));
            }
        }
        first += count;
    }
}

/// Rows whose segments are found together.
const ROWS: usize = 32;
/// How many rows ahead segments are prefetched.
const AHEAD_ROWS: usize = 8;

/// Adds one row's segment for `W` vectors.
///
/// # Safety
/// As [`scatter`], of row `r`, its `entries` and lanes `j..j + W`.
#[inline(always)]
unsafe fn row<T: Float, const W: usize, const BESIDE: bool, const FMA: bool>(
    csr: &Csr<'_, T>,
    g: Dense<'_, T>,
    sums: Target<'_, T::Sum>,
    r: usize,
    entries: Range<usize>,
    j: usize,
    ahead: bool,
) {
    let (cols, values) = (csr.col_indices, csr.values);
    let lane = if BESIDE { 1 } else { sums.lane };
    let base = sums.at(0, j);
    // SAFETY: row and lanes are inside `g`.
    let gs: [T::Sum; W] =
        std::array::from_fn(|w| unsafe { widen(*g.vector(j + w).add(r * g.row)) });
    macro_rules! add {
        ($e:expr) => {{
            // SAFETY: the entry exists, and its column and the lanes are the caller's in `sums`.
            unsafe {
                let v = widen(*values.get_unchecked($e));
                let to = base.wrapping_add(*cols.get_unchecked($e) as usize * sums.row);
                for w in 0..W {
                    let to = to.add(w * lane);
                    *to = fma::<_, FMA>(v, gs[w], *to);
                }
            }
        }};
    }
    const UNROLL: usize = 8;
    let mut e = entries.start;
    while W == 1 && e + UNROLL <= entries.end {
        if ahead {
            prefetch_ahead(cols, values, e);
        }
        for k in 0..UNROLL {
            add!(e + k);
        }
        e += UNROLL;
    }
    while e < entries.end {
        add!(e);
        e += 1;
    }
}

/// The first of `from..to` whose column is not below `col`. Without branches that depend on the
/// data: they would be guessed wrong half the time.
///
/// # Safety
/// The entries must exist.
#[inline(always)]
pub(super) unsafe fn lower_bound(cols: &[i32], from: usize, to: usize, col: usize) -> usize {
    // The ends are looked at first: a banded matrix has nearly all rows wholly on one side.
    // SAFETY: the entries exist.
    if from == to || (unsafe { *cols.get_unchecked(from) } as usize) >= col {
        return from;
    }
    // SAFETY: as above.
    if (unsafe { *cols.get_unchecked(to - 1) } as usize) < col {
        return to;
    }
    let (mut base, mut len) = (from, to - from);
    while len > 0 {
        let half = len / 2;
        // SAFETY: `base + half` is below `base + len`, which never passes `to`.
        let below = (unsafe { *cols.get_unchecked(base + half) } as usize) < col;
        base = if below { base + half + 1 } else { base };
        len = if below { len - half - 1 } else { half };
    }
    base
}
