//! `Aᵀ·g` for one vector in a range of columns, where rows have many entries, by blocks: every row
//! of a block is taken as far as the end of a strip of columns before any goes on to the next strip,
//! so the sums of a strip stay near for the whole block. Where each row's own range begins is found
//! for the whole block at once, near where it would be if columns were even.
//!
//! Each sum still takes its entries in the order of the rows: the same bits as without blocks.
//!
//! `A·x` gains less than a tenth from such blocks: there the matrix, read a piece at a time, comes
//! from memory so much slower that it takes up what the nearer operand saves.

use super::Csr;
use super::dense::{Dense, Target};
use super::lanes::{dispatched, fma, prefetch, widen};
use super::scatter::lower_bound;
use crate::dtype::Float;
use std::ops::Range;

/// Rows of a block: as many as make bringing a strip in cheap; their positions are on the stack.
const ROWS: usize = 256;
/// Bytes of sums in a strip. Shorter strips stay in the first-level cache, but then the pieces of a
/// row are so short that going from one to the next costs more than that saves.
const STRIP: usize = 128 << 10;
/// Entries that a row has in a strip on average where strips pay: with 130 they save a quarter of
/// the time of `Aᵀ·g` in two column ranges, with 12 they cost half as much again.
const LEAST: usize = 48;
/// Column indices in a cache line.
const LINE: usize = 16;
/// How many rows ahead a row's next piece is asked for.
const AHEAD: usize = 16;

/// Columns of a strip of sums of `size` bytes each.
const fn strip(size: usize) -> usize {
    STRIP / size
}

/// Whether, in a range of `own` columns, rows have entries enough for strips to pay.
pub(super) fn pays(rows: usize, cols: usize, nnz: usize, own: usize, size: usize) -> bool {
    let area = rows as u128 * cols as u128;
    nnz as u128 * own.min(strip(size)) as u128 >= area * LEAST as u128
}

dispatched! {
    /// Adds `Aᵀ·g` to `sums` of one vector, restricted to `rows`, `entries` and `cols`.
    ///
    /// # Safety
    /// As `scatter`, with one lane and sums that lie side by side.
    pub(super) unsafe fn walk = walk_body(
        csr: &Csr<'_, T>,
        g: Dense<'_, T>,
        sums: Target<'_, T::Sum>,
        rows: Range<usize>,
        entries: Range<usize>,
        cols: Range<usize>,
        lane: usize,
    )
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn walk_body<T: Float, const FMA: bool>(
    csr: &Csr<'_, T>,
    g: Dense<'_, T>,
    sums: Target<'_, T::Sum>,
    rows: Range<usize>,
    entries: Range<usize>,
    cols: Range<usize>,
    lane: usize,
) {
    let base = sums.at(0, lane);
    let (col_indices, values) = (csr.col_indices, csr.values);
    let strip = strip(size_of::<T::Sum>());
    let piece = csr.nnz() as f64 / csr.rows as f64 * strip.min(cols.len()) as f64 / csr.cols as f64;
    // A piece begins and ends inside a line.
    let lines = (piece / LINE as f64).min(16.0) as usize + 2;
    let share = cols.start as f64 / csr.cols as f64;
    let mut at = [(0usize, 0usize); ROWS];
    let mut first = rows.start;
    while first < rows.end {
        let block = &mut at[..ROWS.min(rows.end - first)];
        for (r, at) in (first..).zip(block.iter_mut()) {
            let from = csr.offset(r).max(entries.start);
            *at = (from, csr.offset(r + 1).min(entries.end).max(from));
            if cols.start > 0 {
                let guess = from + ((at.1 - from) as f64 * share) as usize;
                for line in 0..3 {
                    prefetch(
                        col_indices.as_ptr().wrapping_add(guess + LINE * line).wrapping_sub(LINE),
                    );
                }
            }
        }
        if cols.start > 0 {
            for at in block.iter_mut() {
                // SAFETY: the entries are a row's.
                at.0 = unsafe { near_bound(col_indices, at.0, at.1, cols.start, share) };
            }
        }
        let mut to = cols.start;
        while to < cols.end {
            to = cols.end.min(to + strip);
            for k in 0..block.len() {
                if let Some(next) = block.get(k + AHEAD) {
                    for line in 0..lines {
                        prefetch(col_indices.as_ptr().wrapping_add(next.0 + LINE * line));
                        prefetch(values.as_ptr().wrapping_add(next.0 + LINE * line));
                    }
                }
                let (mut e, end) = block[k];
                // SAFETY: `e` up to `end` are entries of row `first + k`, their columns are in
                // `cols`, which with this lane are the caller's.
                unsafe {
                    let gr = widen(*g.vector(lane).add((first + k) * g.row));
                    macro_rules! add {
                        ($e:expr) => {{
                            let v = widen(*values.get_unchecked($e));
                            let to = base.wrapping_add(*col_indices.get_unchecked($e) as usize);
                            *to = fma::<_, FMA>(v, gr, *to);
                        }};
                    }
                    let below = |e: usize| (*col_indices.get_unchecked(e) as usize) < to;
                    while e + 8 <= end && below(e + 7) {
                        for u in 0..8 {
                            add!(e + u);
                        }
                        e += 8;
                    }
                    while e < end && below(e) {
                        add!(e);
                        e += 1;
                    }
                }
                block[k].0 = e;
            }
        }
        first += block.len();
    }
}

/// [`lower_bound`], which tries first where it would be if the columns of the row were even.
///
/// # Safety
/// The entries must exist.
#[inline(always)]
unsafe fn near_bound(cols: &[i32], from: usize, to: usize, col: usize, share: f64) -> usize {
    const REACH: usize = 32;
    let guess = from + ((to - from) as f64 * share) as usize;
    let (low, high) = (guess.saturating_sub(REACH).max(from), (guess + REACH).min(to));
    // SAFETY: `low` and `high - 1` are inside where they are looked at.
    unsafe {
        let below = |e: usize| (*cols.get_unchecked(e) as usize) < col;
        let low = if low > from && below(low) { low } else { from };
        let high = if high < to && !below(high) { high } else { to };
        lower_bound(cols, low, high, col)
    }
}
