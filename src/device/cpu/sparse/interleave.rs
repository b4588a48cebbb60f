//! Brings vectors that lie one after the other side by side, a block at a time, and sums that lie
//! side by side out to where the result wants them.

use super::dense::{Dense, Target};
use crate::dtype::Float;
use rayon::prelude::*;
use std::ops::Range;

/// Elements of one task; a block of this many stays in the first-level cache.
const TILE: usize = 4096;

/// Fills `buffer` (`side × width`) with vectors `first..first + width` of `x`, side by side.
pub(super) fn interleave<T: Float>(x: Dense<'_, T>, first: usize, width: usize, buffer: &mut [T]) {
    let tile = (TILE / width.max(1)).max(16);
    buffer.par_chunks_mut(tile * width.max(1)).enumerate().for_each(|(t, chunk)| {
        let row = t * tile;
        for k in 0..width {
            let from = x.vector(first + k).wrapping_add(row * x.row);
            for (i, to) in chunk.iter_mut().skip(k).step_by(width).enumerate() {
                // SAFETY: `buffer` has one row for each of `x`, and the vector is inside it.
                *to = unsafe { *from.add(i * x.row) };
            }
        }
    });
}

/// Writes sums (`rows.len() × width`, side by side) to `rows` of `out`, vectors `first..`, or adds
/// them there.
///
/// # Safety
/// The elements of `out` must exist and be the caller's to write.
pub(super) unsafe fn flush<T: Float>(
    sums: &[T::Sum],
    rows: Range<usize>,
    out: Target<'_, T>,
    first: usize,
    width: usize,
) {
    if out.lane == 1 {
        for (sums, r) in sums.chunks_exact(width).zip(rows) {
            // SAFETY: the caller's promise.
            unsafe { out.put(r, first, sums) };
        }
    } else {
        for k in 0..width {
            for (sum, r) in sums.iter().skip(k).step_by(width).zip(rows.clone()) {
                // SAFETY: the caller's promise.
                unsafe { out.put(r, first + k, std::slice::from_ref(sum)) };
            }
        }
    }
}
