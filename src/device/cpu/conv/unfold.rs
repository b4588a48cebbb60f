//! The unfolded input of a convolution as an operand of a product, gathered while its panels are
//! packed and never held in memory.

use crate::device::cpu::gemm::{Source, clear_tail, interleave, widen_row, widened};
use crate::dtype::Float;
use std::ops::Range;

/// Which element of a row meets an output position and a tap: `position·step + tap·tap_step +
/// offset`, and zero where that is outside the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Along the row for one output position.
    pub(super) step: usize,
    /// Along the row for one tap; negative in the input gradient.
    pub(super) tap_step: isize,
    /// Where position 0 meets tap 0.
    pub(super) offset: isize,
    /// Taps.
    pub(super) taps: usize,
    /// Length of a row.
    pub(super) length: usize,
}

impl Window {
    /// Where a position meets tap 0.
    pub(super) fn start(&self, position: usize) -> isize {
        (position * self.step) as isize + self.offset
    }

    /// The positions within `range` that meet `tap` inside the row.
    #[inline]
    pub(super) fn inside(&self, tap: usize, range: Range<usize>) -> Range<usize> {
        let shift = self.offset + tap as isize * self.tap_step;
        let room = (self.length as isize - shift).max(0);
        let (mut low, mut high) = ((-shift).max(0), room);
        if self.step > 1 {
            let step = self.step as isize;
            (low, high) = ((low + step - 1) / step, (room + step - 1) / step);
        }
        let low = (low as usize).clamp(range.start, range.end);
        low..(high as usize).clamp(low, range.end)
    }
}

/// Rows of samples, `[batch, channels, length]`, with the channels of one group.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    /// The elements.
    pub(super) data: &'a [T],
    /// From one sample to the next.
    pub(super) sample: usize,
    /// From one group to the next.
    pub(super) group: usize,
    /// From one channel to the next.
    pub(super) channel: usize,
}

/// Columns (sample, position), summed over (channel, tap): the right operand of the forward pass
/// and of the input gradient.
pub(super) struct Columns<'a, T> {
    /// The rows that are unfolded.
    pub(super) rows: Rows<'a, T>,
    /// How.
    pub(super) window: Window,
    /// Positions of one sample.
    pub(super) positions: usize,
}

impl<T: Float> Columns<'_, T> {
    fn pack_width<const W: usize>(
        &self,
        group: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        let Rows { data, sample, channel, .. } = self.rows;
        let Window { step, tap_step, taps, length, .. } = self.window;
        let base = group * self.rows.group;
        let count = lines.len();
        let (mut n, mut q) = (lines.start / self.positions, lines.start % self.positions);
        let one_sample = q + count <= self.positions;
        let (first_sample, mut origins, mut starts) = (base + n * sample, [0; W], [0; W]);
        for (origin, start) in origins.iter_mut().zip(&mut starts).take(count) {
            (*origin, *start) = (base + n * sample, self.window.start(q));
            q += 1;
            if q == self.positions {
                (n, q) = (n + 1, 0);
            }
        }
        let reach = (taps as isize - 1) * tap_step;
        let lowest = starts[..count].iter().min().map_or(0, |s| s + reach.min(0));
        let highest = starts[..count].iter().max().map_or(0, |s| s + reach.max(0));
        let inside = lowest >= 0 && highest < length as isize;
        let (mut c, mut tap) = (ks.start / taps, ks.start % taps);
        let mut places = [0; W];
        if inside {
            for ((place, origin), start) in places.iter_mut().zip(&origins).zip(&starts).take(count)
            {
                *place = origin + *start as usize;
            }
        }
        if inside && !one_sample && step == 1 && self.pack_runs::<W>(&places[..count], &ks, dst) {
            if count < W {
                clear_tail(dst, W, count);
            }
            return;
        }
        for to in dst.chunks_exact_mut(W) {
            let shift = tap as isize * tap_step;
            let row = c * channel;
            if one_sample && step == 1 && count == W {
                let at = starts[0] + shift;
                let from = &data[first_sample + row..][..length];
                if at >= 0 && at as usize + W <= length {
                    widen_row(&from[at as usize..][..W], to);
                } else {
                    for (i, to) in to.iter_mut().enumerate() {
                        let at = at + i as isize;
                        let value = usize::try_from(at).ok().and_then(|at| from.get(at));
                        *to = value.map_or_else(T::Sum::default, |v| v.widen());
                    }
                }
            } else if inside {
                for (to, place) in to.iter_mut().zip(&places).take(count) {
                    *to = data[place.wrapping_add_signed(shift) + row].widen();
                }
            } else {
                for ((to, origin), start) in to.iter_mut().zip(&origins).zip(&starts).take(count) {
                    let at = start + shift;
                    *to = if at >= 0 && (at as usize) < length {
                        data[origin + row + at as usize].widen()
                    } else {
                        T::Sum::default()
                    };
                }
            }
            tap += 1;
            if tap == taps {
                (c, tap) = (c + 1, 0);
            }
        }
        if count < W {
            clear_tail(dst, W, count);
        }
    }
}

impl<T: Float> Columns<'_, T> {
    /// A panel over a few samples whose taps are all inside the rows, column i of the first row and
    /// tap at `places[i]`: whole vectors, each of which may write past its run, as the next run and
    /// the next step overwrite that. False where that does not pay or the types differ.
    fn pack_runs<const W: usize>(
        &self,
        places: &[usize],
        ks: &Range<usize>,
        dst: &mut [T::Sum],
    ) -> bool {
        const SPAN: usize = 8;
        const MOST: usize = 4;
        if T::DTYPE.size() != size_of::<T::Sum>() {
            return false;
        }
        // First place, first column and length of each run.
        let mut runs = [(0, 0, 0); MOST];
        let mut used = 0;
        for (i, &place) in places.iter().enumerate() {
            if i > 0 && place == places[i - 1] + 1 {
                runs[used - 1].2 += 1;
                continue;
            }
            if used == MOST {
                return false;
            }
            runs[used] = (place, i, 1);
            used += 1;
        }
        let data: &[T::Sum] = bytemuck::cast_slice(self.rows.data);
        let (taps, tap_step) = (self.window.taps, self.window.tap_step);
        let (mut row, mut tap) = (ks.start / taps * self.rows.channel, ks.start % taps);
        for step in 0..ks.len() {
            let shift = tap as isize * tap_step;
            for &(place, column, len) in &runs[..used] {
                let from = &data[place.wrapping_add_signed(shift) + row..];
                let to = &mut dst[step * W + column..];
                if from.len() >= 2 * SPAN && to.len() >= 2 * SPAN && step + 1 < ks.len() {
                    to[..SPAN].copy_from_slice(&from[..SPAN]);
                    if len > SPAN {
                        to[SPAN..2 * SPAN].copy_from_slice(&from[SPAN..2 * SPAN]);
                    }
                } else {
                    to[..len].copy_from_slice(&from[..len]);
                }
            }
            tap += 1;
            if tap == taps {
                (row, tap) = (row + self.rows.channel, 0);
            }
        }
        true
    }
}

impl<T: Float> Source<T::Sum> for Columns<'_, T> {
    fn pack(
        &self,
        group: usize,
        width: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        for (panel, dst) in dst.chunks_exact_mut(width * ks.len()).enumerate() {
            let first = lines.start + panel * width;
            let lines = first..lines.end.min(first + width);
            match width {
                8 => self.pack_width::<8>(group, lines, ks.clone(), dst),
                _ => self.pack_width::<16>(group, lines, ks.clone(), dst),
            }
        }
    }
}

/// Columns (channel, tap), summed over (sample, position): the right operand of the weight
/// gradient.
pub(super) struct Taps<'a, T> {
    /// The rows that are unfolded.
    pub(super) rows: Rows<'a, T>,
    /// How.
    pub(super) window: Window,
    /// Positions of one sample.
    pub(super) positions: usize,
}

impl<T: Float> Taps<'_, T> {
    fn pack_width<const W: usize>(
        &self,
        group: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        // Short enough for what is written to stay in the first-level cache.
        const STRETCH: usize = 64;
        let Window { step, tap_step, taps, .. } = self.window;
        let mut k = ks.start;
        while k < ks.end {
            let (n, q) = (k / self.positions, k % self.positions);
            let run = (self.positions - q).min(ks.end - k).min(STRETCH);
            let dst = &mut dst[(k - ks.start) * W..][..run * W];
            if step == 1 && lines.len() == W && self.interleave::<W>(group, lines.start, k, dst) {
                k += run;
                continue;
            }
            for (i, line) in lines.clone().enumerate() {
                let (c, tap) = (line / taps, line % taps);
                let Rows { data, sample, channel, .. } = self.rows;
                let row = n * sample + group * self.rows.group + c * channel;
                let inside = self.window.inside(tap, q..q + run);
                if inside.len() < run {
                    for to in dst.chunks_exact_mut(W) {
                        to[i] = T::Sum::default();
                    }
                }
                if inside.is_empty() {
                    continue;
                }
                let at = self.window.start(inside.start) + tap as isize * tap_step;
                let from = &data[row + at as usize..];
                let dst = &mut dst[(inside.start - q) * W..][..inside.len() * W];
                if step == 1 {
                    let mut wide = [T::Sum::default(); STRETCH];
                    let from = widened(&from[..inside.len()], &mut wide);
                    for (to, from) in dst.chunks_exact_mut(W).zip(from) {
                        to[i] = *from;
                    }
                } else {
                    for (to, from) in dst.chunks_exact_mut(W).zip(from.iter().step_by(step)) {
                        to[i] = from.widen();
                    }
                }
            }
            k += run;
        }
        if lines.len() < W {
            clear_tail(dst, W, lines.len());
        }
    }
}

impl<T: Float> Taps<'_, T> {
    /// A whole panel of columns from `line` on, over a stretch of one sample that starts at `k` and
    /// in which every tap is inside its row. False where one is not, or the types differ.
    fn interleave<const W: usize>(
        &self,
        group: usize,
        line: usize,
        k: usize,
        dst: &mut [T::Sum],
    ) -> bool {
        if T::DTYPE.size() != size_of::<T::Sum>() {
            return false;
        }
        let Rows { data, sample, channel, .. } = self.rows;
        let Window { tap_step, taps, .. } = self.window;
        let (n, q, run) = (k / self.positions, k % self.positions, dst.len() / W);
        let (mut c, mut tap) = (line / taps, line % taps);
        let mut rows = [&data[..0]; W];
        for row in &mut rows {
            if self.window.inside(tap, q..q + run).len() < run {
                return false;
            }
            let at = (self.window.start(q) + tap as isize * tap_step) as usize;
            let start = n * sample + group * self.rows.group + c * channel + at;
            *row = &data[start..][..run];
            tap += 1;
            if tap == taps {
                (c, tap) = (c + 1, 0);
            }
        }
        interleave::<T::Sum, W>(rows.map(|row| bytemuck::cast_slice(row)), dst);
        true
    }
}

impl<T: Float> Source<T::Sum> for Taps<'_, T> {
    fn pack(
        &self,
        group: usize,
        width: usize,
        lines: Range<usize>,
        ks: Range<usize>,
        dst: &mut [T::Sum],
    ) {
        for (panel, dst) in dst.chunks_exact_mut(width * ks.len()).enumerate() {
            let first = lines.start + panel * width;
            let lines = first..lines.end.min(first + width);
            match width {
                8 => self.pack_width::<8>(group, lines, ks.clone(), dst),
                _ => self.pack_width::<16>(group, lines, ks.clone(), dst),
            }
        }
    }
}
