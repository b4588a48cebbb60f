//! `Aᵀ·G` with an accumulator for each piece of the entries, added up in a fixed order. The number
//! of pieces is part of the candidate and not of the machine, so the result is the same on any
//! number of threads. Cuts go through rows, so neither a dense row nor a dense column serialises.

use super::dense::{Dense, Target};
use super::interleave::flush;
use super::scatter::{clear, scatter};
use super::{Csr, numbers};
use crate::dtype::Float;
use rayon::prelude::*;

/// Sums in one task of the reduction.
const TILE: usize = 4096;

/// Runs it with so many pieces, and `block` vectors (at most `n`) at a time. The matrix has entries.
pub(super) fn run<T: Float>(
    csr: &Csr<'_, T>,
    g: Dense<'_, T>,
    out: Target<'_, T>,
    n: usize,
    pieces: usize,
    block: usize,
    workspace: &mut [u8],
) {
    let buffer: &mut [T::Sum] = numbers(workspace, csr.cols * block * pieces);
    for j in (0..n).step_by(block) {
        let count = block.min(n - j);
        let size = csr.cols * count;
        let buffer = &mut buffer[..size * pieces];
        buffer.par_chunks_exact_mut(size).enumerate().for_each(|(p, own)| {
            let cut = |p: usize| (csr.nnz() as u128 * p as u128 / pieces as u128) as usize;
            let entries = cut(p)..cut(p + 1);
            let sums = Target::side_by_side(own, count).starting_at_lane(j);
            let (cols, lanes) = (0..csr.cols, j..j + count);
            // SAFETY: `own` has `count` sums for each column and is this task's alone.
            unsafe {
                clear(sums, cols.clone(), lanes.clone());
                if !entries.is_empty() {
                    let rows = csr.row_of(entries.start)..csr.row_of(entries.end - 1) + 1;
                    scatter(csr, g, sums, rows, entries, cols, lanes);
                }
            }
        });
        let (total, others) = buffer.split_at_mut(size);
        let tile = (TILE / count).max(1);
        total.par_chunks_mut(tile * count).enumerate().for_each(|(t, total)| {
            let from = t * tile * count;
            for other in others.chunks_exact(size) {
                for (a, b) in total.iter_mut().zip(&other[from..]) {
                    *a += *b;
                }
            }
            let rows = t * tile..t * tile + total.len() / count;
            // SAFETY: each task owns its columns of the result.
            unsafe { flush(total, rows, out, j, count) };
        });
    }
}
