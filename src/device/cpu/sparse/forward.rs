//! `A·X`, row by row: each output element is one sum in registers, so there is no workspace. Tasks
//! are cut by nonzeros, and a row that is longer than a task is summed in pieces of fixed length.
//! Serves `Aᵀ·G` too, where the transpose is stored.

use super::dense::{Dense, Target};
use super::lanes::{
    STRETCH, Total, add_lanes, dispatched, fma, for_blocks, prefetch_ahead, prefetch_lanes, widen,
    zeros,
};
use super::{Csr, interleave, numbers};
use crate::dtype::Float;
use rayon::prelude::*;
use std::ops::Range;

/// Multiply-adds in one task.
const GRAIN: usize = 1 << 15;
/// Rows longer than this are summed in pieces, at most `PIECES`; no task of several rows holds one.
const LONG: usize = GRAIN;
const PIECES: usize = 32;
/// Vectors are split between tasks at multiples of this.
const LANES: usize = 32;

/// Writes or adds `A·X` for vectors `lanes`, with no workspace.
pub(super) fn rows<T: Float>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    out: Target<'_, T>,
    lanes: Range<usize>,
) {
    if csr.rows > 0 && !lanes.is_empty() {
        split(csr, x, out, 0..csr.rows, lanes);
    }
}

/// The same for vectors that lie one after the other, by bringing a block of them side by side
/// in the workspace first: one cache line an entry instead of one a vector.
pub(super) fn interleaved<T: Float>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    out: Target<'_, T>,
    n: usize,
    block: usize,
    workspace: &mut [u8],
) {
    let buffer: &mut [T] = numbers(workspace, csr.cols * block.min(n));
    for j in (0..n).step_by(block) {
        let width = block.min(n - j);
        let buffer = &mut buffer[..csr.cols * width];
        interleave::interleave(x, j, width, buffer);
        let side = Dense::side_by_side(buffer, width);
        rows(csr, side, out.lanes_from(j), 0..width);
    }
}

fn split<T: Float>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    out: Target<'_, T>,
    rows: Range<usize>,
    lanes: Range<usize>,
) {
    let nnz = csr.offset(rows.end) - csr.offset(rows.start);
    let work = (nnz + rows.len()).saturating_mul(lanes.len());
    if work > GRAIN && rows.len() > 1 {
        let mid = csr.halve(rows.start, rows.end);
        rayon::join(
            || split(csr, x, out, rows.start..mid, lanes.clone()),
            || split(csr, x, out, mid..rows.end, lanes.clone()),
        );
    } else if work > GRAIN && lanes.len() > LANES {
        let blocks = lanes.len().div_ceil(LANES);
        let mid = lanes.start + blocks / 2 * LANES;
        rayon::join(
            || split(csr, x, out, rows.clone(), lanes.start..mid),
            || split(csr, x, out, rows.clone(), mid..lanes.end),
        );
    } else if nnz > LONG {
        // Work is over the grain, so this is a single row.
        long_row(csr, x, out, rows.start, lanes);
    } else {
        // SAFETY: rows and lanes are inside the operands, and no other task has this pair of ranges.
        unsafe { leaf(csr, x, out, rows, lanes) };
    }
}

/// One row in pieces whose number and length follow from its own length only.
fn long_row<T: Float>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    out: Target<'_, T>,
    row: usize,
    lanes: Range<usize>,
) {
    let (from, to) = (csr.offset(row), csr.offset(row + 1));
    let piece = (to - from).div_ceil(PIECES).max(GRAIN / 4);
    let mut sums = [[<T::Sum as num_traits::Zero>::zero(); LANES]; PIECES];
    let used = (to - from).div_ceil(piece).min(PIECES);
    sums[..used].par_iter_mut().enumerate().for_each(|(p, sums)| {
        let from = from + p * piece;
        let entries = from..to.min(from + piece);
        // SAFETY: the entries are the row's, the lanes (at most `LANES`) are inside the operand.
        unsafe { partial(csr, x, entries, lanes.clone(), sums) };
    });
    for (k, j) in lanes.enumerate() {
        let sum = sums[..used].iter().map(|s| s[k]).sum();
        // SAFETY: the row and the lane are inside the output, and this task's own.
        unsafe { out.put(row, j, &[sum]) };
    }
}

dispatched! {
    /// # Safety
    /// Rows and lanes must be inside the operands, and theirs in `out` nobody else's.
    unsafe fn leaf = leaf_body(
        csr: &Csr<'_, T>,
        x: Dense<'_, T>,
        out: Target<'_, T>,
        rows: Range<usize>,
        lanes: Range<usize>,
    )
}

#[inline(always)]
unsafe fn leaf_body<T: Float, const FMA: bool>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    out: Target<'_, T>,
    rows: Range<usize>,
    lanes: Range<usize>,
) {
    let mut from = csr.offset(rows.start);
    for r in rows {
        let entries = from..csr.offset(r + 1);
        from = entries.end;
        // SAFETY: the entries are a row's, so they and their columns exist; the lanes are inside
        // `x`, and (r, lane) is inside `out` and this task's own.
        unsafe {
            each_block::<T, FMA>(csr, x, entries, lanes.clone(), |j, sums| out.put(r, j, sums));
        }
    }
}

dispatched! {
    /// # Safety
    /// Entries and lanes must be inside the operands, and at most `LANES` lanes.
    unsafe fn partial = partial_body(
        csr: &Csr<'_, T>,
        x: Dense<'_, T>,
        entries: Range<usize>,
        lanes: Range<usize>,
        sums: &mut [T::Sum; LANES],
    )
}

#[inline(always)]
unsafe fn partial_body<T: Float, const FMA: bool>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    entries: Range<usize>,
    lanes: Range<usize>,
    sums: &mut [T::Sum; LANES],
) {
    let first = lanes.start;
    // SAFETY: the caller's promise.
    unsafe {
        each_block::<T, FMA>(csr, x, entries, lanes, |j, block| {
            sums[j - first..][..block.len()].copy_from_slice(block);
        });
    }
}

/// Calls `done(lane, sums)` for each block of lanes from `lane` on, with their sums over the entries.
///
/// # Safety
/// Entries and lanes must be inside the operands.
#[inline(always)]
unsafe fn each_block<T: Float, const FMA: bool>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    entries: Range<usize>,
    lanes: Range<usize>,
    mut done: impl FnMut(usize, &[T::Sum]),
) {
    macro_rules! block {
        ($w:ident, $unroll:expr, $beside:literal, $j:ident) => {{
            // SAFETY: lanes $j..$j + $w are inside the operand; the entries are the caller's promise.
            let sums = unsafe {
                dot::<T, $w, { $unroll }, $beside, FMA>(csr, x, $j, entries.clone())
            };
            done($j, &sums);
        }};
    }
    if x.row == 1 && x.lane == 1 {
        for_blocks!(lanes.start, lanes.end, [1], |j, W| block!(W, 8, true, j));
    } else if x.lane == 1 {
        for_blocks!(lanes.start, lanes.end, [32, 16, 8, 4, 2, 1], |j, W| block!(
            W,
            // Enough chains of additions to hide their latency, in few enough registers.
            if W >= 32 {
                1
            } else if W == 16 {
                2
            } else {
                4
            },
            true,
            j
        ));
    } else {
        for_blocks!(lanes.start, lanes.end, [8, 4, 2, 1], |j, W| block!(
            W,
            if W >= 4 { 1 } else { 4 },
            false,
            j
        ));
    }
}

/// `W` vectors' sums over the entries, in `U` chains. `BESIDE`: the vectors lie side by side.
///
/// # Safety
/// Entries must exist, and lanes `j..j + W` be inside `x`, whose rows are the matrix's columns.
#[inline(always)]
unsafe fn dot<T: Float, const W: usize, const U: usize, const BESIDE: bool, const FMA: bool>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    j: usize,
    entries: Range<usize>,
) -> [T::Sum; W] {
    if entries.len() <= STRETCH * U {
        // SAFETY: the caller's promise.
        return unsafe { chains::<T, W, U, BESIDE, FMA>(csr, x, j, entries) };
    }
    let mut total = Total::new();
    for from in entries.clone().step_by(STRETCH * U) {
        let stretch = from..entries.end.min(from + STRETCH * U);
        // SAFETY: as above.
        total.add(unsafe { chains::<T, W, U, BESIDE, FMA>(csr, x, j, stretch) });
    }
    total.finish()
}

/// [`dot`] of one stretch.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
unsafe fn chains<T: Float, const W: usize, const U: usize, const BESIDE: bool, const FMA: bool>(
    csr: &Csr<'_, T>,
    x: Dense<'_, T>,
    j: usize,
    entries: Range<usize>,
) -> [T::Sum; W] {
    let (cols, values) = (csr.col_indices, csr.values);
    let base = x.vector(j);
    let lane = if BESIDE { 1 } else { x.lane };
    let mut sums = [zeros::<T::Sum, W>(); U];
    let mut e = entries.start;
    macro_rules! add {
        ($e:expr, $sum:expr) => {{
            // SAFETY: the entry exists, its column is inside the matrix (a promise of `Csr`), and
            // so are the lanes.
            unsafe {
                let v = widen(*values.get_unchecked($e));
                let from = base.add(*cols.get_unchecked($e) as usize * x.row);
                for w in 0..W {
                    $sum[w] = fma::<_, FMA>(v, widen(*from.add(w * lane)), $sum[w]);
                }
            }
        }};
    }
    while e + U <= entries.end {
        if W == 1 {
            prefetch_ahead(cols, values, e);
        } else if BESIDE {
            for u in 0..U {
                prefetch_lanes::<T, W>(base, x.row, cols, e + u);
            }
        }
        for (u, sum) in sums.iter_mut().enumerate() {
            add!(e + u, sum);
        }
        e += U;
    }
    while e < entries.end {
        add!(e, sums[0]);
        e += 1;
    }
    let mut width = U;
    while width > 1 {
        width /= 2;
        for k in 0..width {
            sums[k] = add_lanes(sums[k], sums[k + width]);
        }
    }
    sums[0]
}
