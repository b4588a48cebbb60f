//! Where the packed panels come from: anything that can write a few of its lines, over a stretch of
//! the summed index, in the order in which a micro-kernel reads them.

use super::kernel::MR;
use crate::dtype::{DType, Float, Real};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// One operand of a product, seen as lines (rows of the left operand, columns of the right one)
/// that run along the summed index k. Asked once a panel, so dynamic dispatch costs nothing.
pub(crate) trait Source<S>: Sync {
    /// Writes panels of `width` lines one after another; within each,
    /// `panel[(k - ks.start)·width + i]` is element k of its line i, and zero past the last line.
    /// `dst` is exactly as long as the panels, and neither `lines` nor `ks` is empty.
    fn pack(
        &self,
        batch: usize,
        width: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [S],
    );
}

/// A matrix in memory. Its summed index may consist of two, the inner one running faster:
/// element (line i, k) lies at `i·line + (k / inner)·outer_step + (k % inner)·inner_step`.
pub(crate) struct Matrix<'a, T> {
    /// The elements, from the first of the first matrix on.
    pub(crate) data: &'a [T],
    /// From one matrix of a batch to the next.
    pub(crate) batch: usize,
    /// From one line to the next.
    pub(crate) line: usize,
    /// Length of the inner part of the summed index.
    pub(crate) inner: usize,
    /// From one step of the outer part to the next.
    pub(crate) outer_step: usize,
    /// From one step of the inner part to the next.
    pub(crate) inner_step: usize,
}

impl<'a, T: Float> Matrix<'a, T> {
    /// A matrix with one stride along the summed index.
    pub(crate) fn plain(data: &'a [T], batch: usize, line: usize, step: usize) -> Self {
        Matrix { data, batch, line, inner: usize::MAX, outer_step: 0, inner_step: step }
    }

    /// A matrix with a summed index of two parts.
    pub(crate) fn nested(
        data: &'a [T],
        strides: [usize; 2],
        inner: usize,
        steps: [usize; 2],
    ) -> Self {
        let [batch, line] = strides;
        let [outer_step, inner_step] = steps;
        if inner == 1 {
            // One long run instead of many of length one.
            return Matrix::plain(data, batch, line, outer_step);
        }
        Matrix { data, batch, line, inner: inner.max(1), outer_step, inner_step }
    }

    /// One panel, for the stretch of k that starts at `start` and lies within one outer step.
    fn pack_run<const W: usize>(&self, start: usize, lines: usize, dst: &mut [T::Sum]) {
        if self.inner_step == 1 && dst.len() >= 4 * W {
            return self.transpose::<W>(start, lines, dst);
        }
        for (step, to) in dst.chunks_exact_mut(W).enumerate() {
            let start = start + step * self.inner_step;
            for (i, to) in to.iter_mut().take(lines).enumerate() {
                *to = self.data[start + i * self.line].widen();
            }
        }
    }

    /// Whole panels of neighbouring elements, a few panels at a time: steps along k may be a page
    /// apart, so that each visit should take more than one cache line.
    fn pack_rows<const W: usize>(
        &self,
        (base, panels, area): (usize, usize, usize),
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        const TOGETHER: usize = 4;
        for first in (0..panels).step_by(TOGETHER) {
            let together = TOGETHER.min(panels - first);
            let dst = &mut dst[first * area..][..together * area];
            for (start, run) in self.runs(ks.clone()) {
                for (step, k) in run.enumerate() {
                    let start = base + first * W + start + step * self.inner_step;
                    let from = &self.data[start..][..together * W];
                    let at = (k - ks.start) * W;
                    for (p, from) in from.chunks_exact(W).enumerate() {
                        let to = &mut dst[p * area + at..][..W];
                        if T::DTYPE.size() == size_of::<T::Sum>() {
                            // One or two vectors, which the loop over six would not become.
                            to.copy_from_slice(bytemuck::cast_slice(from));
                        } else {
                            widen_row(from, to);
                        }
                    }
                }
            }
        }
    }

    /// `ks` cut where the outer part of the index changes, each with the offset of its first step.
    fn runs(&self, ks: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a, T> {
        let (inner, outer_step, inner_step) = (self.inner, self.outer_step, self.inner_step);
        let mut next = ks.start;
        std::iter::from_fn(move || {
            let k = next;
            let (o, i) = (k / inner, k % inner);
            next = (k + (inner - i).min(ks.end - k)).min(ks.end);
            (k < next).then_some((o * outer_step + i * inner_step, k..next))
        })
    }

    fn pack_width<const W: usize>(
        &self,
        batch: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        let base = batch * self.batch + lines.start * self.line;
        let area = W * ks.len();
        let whole = if self.line == 1 { lines.len() / W } else { 0 };
        self.pack_rows::<W>((base, whole, area), ks.clone(), dst);
        for (panel, dst) in dst.chunks_exact_mut(area).enumerate().skip(whole) {
            let count = W.min(lines.len() - panel * W);
            let base = base + panel * W * self.line;
            for (start, run) in self.runs(ks.clone()) {
                let dst = &mut dst[(run.start - ks.start) * W..][..run.len() * W];
                self.pack_run::<W>(base + start, count, dst);
            }
            if count < W {
                clear_tail(dst, W, count);
            }
        }
    }

    /// Lines that are contiguous along k, a stretch of each at a time so that what is being written
    /// stays in the first-level cache.
    fn transpose<const W: usize>(&self, start: usize, lines: usize, dst: &mut [T::Sum]) {
        const STRETCH: usize = 64;
        if lines == W && T::DTYPE.size() == size_of::<T::Sum>() {
            let run = dst.len() / W;
            let line = |i| bytemuck::cast_slice(&self.data[start + i * self.line..][..run]);
            return interleave::<T::Sum, W>(std::array::from_fn(line), dst);
        }
        for (block, dst) in dst.chunks_mut(STRETCH * W).enumerate() {
            let run = dst.len() / W;
            for i in 0..lines {
                let from = &self.data[start + i * self.line + block * STRETCH..][..run];
                let mut wide = [T::Sum::default(); STRETCH];
                for (to, from) in dst.chunks_exact_mut(W).zip(widened(from, &mut wide)) {
                    to[i] = *from;
                }
            }
        }
    }
}

/// A whole panel of lines that are contiguous along k: `dst[k·W + i] = lines[i][k]`.
#[inline(always)]
pub(crate) fn interleave<S: Real, const W: usize>(lines: [&[S]; W], dst: &mut [S]) {
    debug_assert!(lines.iter().all(|line| line.len() * W >= dst.len()));
    #[cfg(target_arch = "x86_64")]
    if S::DTYPE == DType::F32 && W >= 4 && dst.len() >= 4 * W {
        let lines = lines.map(|line| bytemuck::cast_slice(line));
        return interleave_f32::<W>(lines, bytemuck::cast_slice_mut(dst));
    }
    for (k, to) in dst.chunks_exact_mut(W).enumerate() {
        for (to, from) in to.iter_mut().zip(&lines) {
            *to = from[k];
        }
    }
}

/// The same for four steps or more, in squares of four lines by four steps. The last square of a
/// side is moved back where four do not divide it, and writes some elements once more.
#[cfg(target_arch = "x86_64")]
fn interleave_f32<const W: usize>(lines: [&[f32]; W], dst: &mut [f32]) {
    use std::arch::x86_64::*;
    let steps = dst.len() / W;
    assert!(W >= 4 && steps >= 4 && lines.iter().all(|line| line.len() >= steps));
    for k in (0..steps).step_by(4) {
        let k = k.min(steps - 4);
        for i in (0..W).step_by(4) {
            let i = i.min(W - 4);
            // SAFETY: SSE is part of x86-64. Line i + 3 is the last one at most and step k + 3 the
            // last step, which every line and `dst` have.
            unsafe {
                let load = |j: usize| _mm_loadu_ps(lines.get_unchecked(i + j).as_ptr().add(k));
                let (a, b, c, d) = (load(0), load(1), load(2), load(3));
                let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
                let (ab2, cd2) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
                let to = dst.as_mut_ptr().add(k * W + i);
                _mm_storeu_ps(to, _mm_movelh_ps(ab, cd));
                _mm_storeu_ps(to.add(W), _mm_movehl_ps(cd, ab));
                _mm_storeu_ps(to.add(2 * W), _mm_movelh_ps(ab2, cd2));
                _mm_storeu_ps(to.add(3 * W), _mm_movehl_ps(cd2, ab2));
            }
        }
    }
}

/// `to = from`, in the type of the sums; f16 goes through the machine's vector conversion.
#[inline(always)]
pub(crate) fn widen_row<T: Float>(from: &[T], to: &mut [T::Sum]) {
    if T::DTYPE == DType::F16 {
        let from: &[f16] = bytemuck::cast_slice(from);
        return from.convert_to_f32_slice(bytemuck::cast_slice_mut(&mut to[..from.len()]));
    }
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.widen();
    }
}

/// `to = from`, rounded to the stored type; f16 goes through the machine's vector conversion.
#[inline(always)]
pub(crate) fn narrow_row<T: Float>(from: &[T::Sum], to: &mut [T]) {
    if T::DTYPE == DType::F16 {
        let to: &mut [f16] = bytemuck::cast_slice_mut(to);
        return to.convert_from_f32_slice(bytemuck::cast_slice(&from[..to.len()]));
    }
    for (to, from) in to.iter_mut().zip(from) {
        *to = T::narrow(*from);
    }
}

/// The elements in the type of the sums: in place where they already are, else in `buffer`.
#[inline(always)]
pub(crate) fn widened<'a, T: Float>(row: &'a [T], buffer: &'a mut [T::Sum]) -> &'a [T::Sum] {
    if T::DTYPE.size() == size_of::<T::Sum>() {
        return bytemuck::cast_slice(row);
    }
    let buffer = &mut buffer[..row.len()];
    widen_row(row, buffer);
    buffer
}

/// Zeros for the lines past the last one.
pub(crate) fn clear_tail<S: Default>(dst: &mut [S], width: usize, lines: usize) {
    for to in dst.chunks_exact_mut(width) {
        to[lines..].fill_with(S::default);
    }
}

impl<T: Float> Source<T::Sum> for Matrix<'_, T> {
    fn pack(
        &self,
        batch: usize,
        width: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        match width {
            MR => self.pack_width::<MR>(batch, lines, ks, dst),
            8 => self.pack_width::<8>(batch, lines, ks, dst),
            _ => self.pack_width::<16>(batch, lines, ks, dst),
        }
    }
}
