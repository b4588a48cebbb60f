//! The sampled product: for each stored entry, the dot product of a row of one dense side with a
//! row of the other. It is the gradient for the values, and takes O(nnz) memory, never rows × cols.

use super::dense::Dense;
use super::lanes::{
    STRETCH, Total, add_lanes, dispatched, fma, prefetch_ahead, prefetch_lanes, widen, zeros,
};
use super::{Csr, interleave, numbers};
use crate::dtype::Float;
use num_traits::Zero;
use rayon::prelude::*;

/// Multiply-adds in one task.
const GRAIN: usize = 1 << 16;

/// Writes the products (or adds them: to what the result holds, or for the later of several blocks of
/// vectors), with no workspace.
pub(super) fn entries<T: Float>(
    csr: &Csr<'_, T>,
    row_side: Dense<'_, T>,
    col_side: Dense<'_, T>,
    n: usize,
    out: &mut [T],
    add: bool,
) {
    let chunk = (GRAIN / n.max(1)).max(1);
    out.par_chunks_mut(chunk).enumerate().for_each(|(t, out)| {
        // SAFETY: there is one output for each entry, and both sides were compared with the
        // matrix and the width.
        unsafe { leaf(csr, row_side, col_side, n, t * chunk, out, add) }
    });
}

/// The same after bringing both sides' vectors side by side in the workspace, `block` at a time.
#[allow(clippy::too_many_arguments)]
pub(super) fn interleaved<T: Float>(
    csr: &Csr<'_, T>,
    row_side: Dense<'_, T>,
    col_side: Dense<'_, T>,
    n: usize,
    out: &mut [T],
    add: bool,
    block: usize,
    workspace: &mut [u8],
) {
    let buffer: &mut [T] = numbers(workspace, (csr.rows + csr.cols) * block);
    for j in (0..n).step_by(block) {
        let width = block.min(n - j);
        let (row_buffer, rest) = buffer.split_at_mut(csr.rows * width);
        let col_buffer = &mut rest[..csr.cols * width];
        interleave::interleave(row_side, j, width, row_buffer);
        interleave::interleave(col_side, j, width, col_buffer);
        let row_side = Dense::side_by_side(row_buffer, width);
        let col_side = Dense::side_by_side(col_buffer, width);
        entries(csr, row_side, col_side, width, out, add || j > 0);
    }
}

dispatched! {
    /// # Safety
    /// `first..first + out.len()` must be entries; the sides must fit the matrix and `n`.
    unsafe fn leaf = leaf_body(
        csr: &Csr<'_, T>,
        row_side: Dense<'_, T>,
        col_side: Dense<'_, T>,
        n: usize,
        first: usize,
        out: &mut [T],
        add: bool,
    )
}

#[inline(always)]
unsafe fn leaf_body<T: Float, const FMA: bool>(
    csr: &Csr<'_, T>,
    row_side: Dense<'_, T>,
    col_side: Dense<'_, T>,
    n: usize,
    first: usize,
    out: &mut [T],
    add: bool,
) {
    let mut row = csr.row_of(first);
    if n == 1 {
        let last = first + out.len();
        let mut e = first;
        while e < last {
            // SAFETY: `row` holds entry `e`, so it is inside the row side; so are the columns of
            // `e..to` in the column side, by the promise of `Csr`.
            unsafe {
                let to = csr.offset(row + 1).min(last);
                let r = widen(*row_side.vector(0).add(row));
                let from = col_side.vector(0);
                for (k, out) in (e..to).zip(&mut out[e - first..]) {
                    if k % 8 == 0 {
                        prefetch_ahead(csr.col_indices, csr.values, k);
                    }
                    let c = widen(*from.add(*csr.col_indices.get_unchecked(k) as usize));
                    *out = finished(r * c, *out, add);
                }
                e = to;
            }
            row += 1;
        }
        return;
    }
    for (e, out) in (first..).zip(out) {
        while csr.offset(row + 1) <= e {
            row += 1;
        }
        // SAFETY: the entry exists; its row and column are inside the sides.
        let sum = unsafe {
            let a = row_side.vector(0).add(row * row_side.row);
            let b =
                col_side.vector(0).add(*csr.col_indices.get_unchecked(e) as usize * col_side.row);
            if row_side.lane == 1 && col_side.lane == 1 {
                let (base, step) = (col_side.vector(0), col_side.row);
                if n <= 16 {
                    prefetch_lanes::<T, 16>(base, step, csr.col_indices, e);
                } else {
                    prefetch_lanes::<T, 64>(base, step, csr.col_indices, e);
                }
                beside::<T, FMA>(a, b, n)
            } else {
                strided::<T, FMA>(a, row_side.lane, b, col_side.lane, n)
            }
        };
        *out = finished(sum, *out, add);
    }
}

/// A finished sum as it is stored.
#[inline(always)]
fn finished<T: Float>(sum: T::Sum, before: T, add: bool) -> T {
    T::narrow(if add { widen(before) + sum } else { sum })
}

/// A dot product of `n` numbers that lie side by side.
///
/// # Safety
/// Both must exist.
#[inline(always)]
unsafe fn beside<T: Float, const FMA: bool>(a: *const T, b: *const T, n: usize) -> T::Sum {
    let mut j = 0;
    macro_rules! block {
        ($sums:ident) => {
            for (w, sum) in $sums.iter_mut().enumerate() {
                // SAFETY: `j + w` is below `n`.
                *sum = unsafe { fma::<_, FMA>(widen(*a.add(j + w)), widen(*b.add(j + w)), *sum) };
            }
            j += $sums.len();
        };
    }
    let mut wide = zeros::<T::Sum, 16>();
    if n > STRETCH * 16 {
        let mut total = Total::new();
        while j + 16 <= n {
            let end = n.min(j + STRETCH * 16);
            let mut stretch = zeros::<T::Sum, 16>();
            while j + 16 <= end {
                block!(stretch);
            }
            total.add(stretch);
        }
        wide = total.finish();
    }
    while j + 16 <= n {
        block!(wide);
    }
    let mut half = zeros::<T::Sum, 8>();
    if j + 8 <= n {
        block!(half);
    }
    let mut one = zeros::<T::Sum, 1>();
    while j < n {
        block!(one);
    }
    let low: [T::Sum; 8] = std::array::from_fn(|k| wide[k] + wide[k + 8]);
    let eight = add_lanes(low, half);
    let four: [T::Sum; 4] = std::array::from_fn(|k| eight[k] + eight[k + 4]);
    (four[0] + four[2]) + (four[1] + four[3]) + one[0]
}

/// A dot product of `n` numbers at a distance, in four chains.
///
/// # Safety
/// Both must exist.
#[inline(always)]
unsafe fn strided<T: Float, const FMA: bool>(
    a: *const T,
    a_step: usize,
    b: *const T,
    b_step: usize,
    n: usize,
) -> T::Sum {
    // SAFETY: `j` is below `n`.
    let term = |j: usize, sum| unsafe {
        fma::<_, FMA>(widen(*a.add(j * a_step)), widen(*b.add(j * b_step)), sum)
    };
    let mut total = Total::<_, 4>::new();
    let fours = n / 4 * 4;
    for from in (0..fours).step_by(STRETCH * 4) {
        let mut sums = zeros::<T::Sum, 4>();
        for j in (from..fours.min(from + STRETCH * 4)).step_by(4) {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = term(j + k, *sum);
            }
        }
        total.add(sums);
    }
    let total = total.finish();
    let mut tail = T::Sum::zero();
    for j in fours..n {
        tail = term(j, tail);
    }
    (total[0] + total[2]) + (total[1] + total[3]) + tail
}
