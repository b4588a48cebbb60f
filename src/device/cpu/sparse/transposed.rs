//! `Aᵀ·G` from the one CSR copy, by column ranges: each task owns a range of the result and takes
//! only its own segment of every row, found by binary search. The matrix is read about once in all,
//! nothing is shared, and every element is summed in row order, wherever the ranges are cut.
//!
//! Three homes for the sums: the result itself (f32 and f64, no workspace), a strip on the stack
//! (halves without a workspace), a buffer in the workspace (halves, and vectors that lie one after
//! the other).

use super::dense::{Dense, Target};
use super::interleave::flush;
use super::scatter::{clear, scatter};
use super::{Csr, numbers};
use crate::dtype::Float;
use num_traits::Zero;
use rayon::prelude::*;
use std::ops::Range;

/// Most column ranges there are.
const MOST: usize = 256;
/// Products with fewer multiply-adds are one task.
const SMALL: usize = 1 << 15;
/// Vectors are split between tasks at multiples of this.
const LANES: usize = 32;
/// Sums in a strip on the stack: 32 KiB of f32, the size of a first-level cache.
const STRIP: usize = 8192;

/// Sums straight into the result, which must be of the type of its sums: from zero, or from what it
/// holds where the product is added.
pub(super) fn direct<T: Float>(csr: &Csr<'_, T>, g: Dense<'_, T>, out: Target<'_, T>, n: usize) {
    let sums = out.same::<T::Sum>();
    let (threads, work) = (rayon::current_num_threads(), csr.nnz().saturating_mul(n));
    let (parts, chunks) = if work < SMALL.max(csr.cols) {
        (1, n.div_ceil(1 << 15))
    } else {
        let tasks = if n == 1 { threads } else { 4 * threads };
        let chunks = (n / 256).clamp(1, tasks);
        (tasks.div_ceil(chunks), chunks)
    };
    let ranges = Ranges::new(csr, parts);
    let chunk = n.div_ceil(chunks.max(1)).next_multiple_of(LANES);
    let chunks = n.div_ceil(chunk.max(1));
    (0..ranges.parts * chunks).into_par_iter().for_each(|t| {
        let cols = ranges.get(t % ranges.parts);
        let from = t / ranges.parts * chunk;
        let lanes = from..n.min(from + chunk);
        // SAFETY: the ranges of columns are disjoint and inside the result, and so are those of
        // lanes: each task owns its elements.
        unsafe {
            if !sums.add {
                clear(sums, cols.clone(), lanes.clone());
            }
            scatter(csr, g, sums, 0..csr.rows, 0..csr.nnz(), cols, lanes);
        }
    });
}

/// Sums in a strip on the stack, then to the result: no workspace, and sums are never rounded.
pub(super) fn strips<T: Float>(csr: &Csr<'_, T>, g: Dense<'_, T>, out: Target<'_, T>, n: usize) {
    if n == 0 {
        return;
    }
    let block = n.min(LANES);
    let width = STRIP / block;
    let parts = csr.cols.div_ceil(width);
    let tasks = parts.saturating_mul(n.div_ceil(block));
    (0..tasks).into_par_iter().for_each(|t| {
        let (c, j) = (t % parts * width, t / parts * block);
        let cols = c..csr.cols.min(c + width);
        let lanes = j..n.min(j + block);
        let count = lanes.len();
        let mut strip = [T::Sum::zero(); STRIP];
        let sums = Target::side_by_side(&mut strip, count).starting_at(c).starting_at_lane(j);
        // SAFETY: the strip has room for `cols` × `lanes`, and is this task's alone; so are these
        // elements of the result.
        unsafe {
            scatter(csr, g, sums, 0..csr.rows, 0..csr.nnz(), cols.clone(), lanes);
            flush(&strip[..cols.len() * count], cols, out, j, count);
        }
    });
}

/// Sums in a buffer for all columns and a block of vectors at a time.
pub(super) fn buffered<T: Float>(
    csr: &Csr<'_, T>,
    g: Dense<'_, T>,
    out: Target<'_, T>,
    n: usize,
    block: usize,
    workspace: &mut [u8],
) {
    let buffer: &mut [T::Sum] = numbers(workspace, csr.cols * block.min(n));
    let threads = rayon::current_num_threads();
    for j in (0..n).step_by(block) {
        let lanes = j..n.min(j + block);
        let count = lanes.len();
        let parts = match csr.nnz().saturating_mul(count) {
            work if work < SMALL.max(csr.cols) => 1,
            _ if count == 1 => threads,
            _ => 2 * threads,
        };
        let ranges = Ranges::new(csr, parts);
        let sums = Target::side_by_side(&mut *buffer, count).starting_at_lane(j);
        (0..ranges.parts).into_par_iter().for_each(|t| {
            let cols = ranges.get(t);
            // SAFETY: column ranges are disjoint: each task owns its rows of the buffer (which has
            // one of `count` sums for each column) and its elements of the result.
            unsafe {
                clear(sums, cols.clone(), lanes.clone());
                scatter(csr, g, sums, 0..csr.rows, 0..csr.nnz(), cols.clone(), lanes.clone());
                let own = std::slice::from_raw_parts(sums.at(cols.start, j), cols.len() * count);
                flush(own, cols, out, j, count);
            }
        });
    }
}

/// Column ranges of about equally many entries; on the stack, because they are no workspace.
struct Ranges {
    ends: [usize; MOST],
    parts: usize,
}

impl Ranges {
    /// Cuts the columns where a sample of the entries says. The cuts have no part in the result.
    fn new<T: Float>(csr: &Csr<'_, T>, parts: usize) -> Self {
        const SAMPLES: usize = 2048;
        let parts = parts.clamp(1, MOST).min(csr.cols.max(1));
        let mut ends = [csr.cols; MOST];
        if parts > 1 && csr.nnz() >= SAMPLES {
            let mut sample = [0i32; SAMPLES];
            for (k, s) in sample.iter_mut().enumerate() {
                // An odd step, so that rows of even length do not show one column only.
                let e = (csr.nnz() as u128 * (2 * k + 1) as u128 / (2 * SAMPLES) as u128) as usize;
                *s = csr.col_indices[(e ^ (k & 1)).min(csr.nnz() - 1)];
            }
            sample.sort_unstable();
            for (p, end) in ends[..parts - 1].iter_mut().enumerate() {
                *end = sample[(p + 1) * SAMPLES / parts] as usize;
            }
        } else {
            for (p, end) in ends[..parts - 1].iter_mut().enumerate() {
                *end = (csr.cols as u128 * (p + 1) as u128 / parts as u128) as usize;
            }
        }
        Ranges { ends, parts }
    }

    fn get(&self, part: usize) -> Range<usize> {
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        start..self.ends[part]
    }
}
