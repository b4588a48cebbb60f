//! Where finished tiles go: a row-major matrix, a batch of them, or the scattered columns of a
//! convolution, with a bias and with narrowing to the stored type on the way.

use super::kernel::MAX_NR;
use super::source::{narrow_row, widen_row};
use crate::dtype::Float;
use std::marker::PhantomData;

/// The place of one tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Matrix of the batch.
    pub(crate) batch: usize,
    /// First row.
    pub(crate) row: usize,
    /// First column.
    pub(crate) column: usize,
    /// Rows that exist.
    pub(crate) rows: usize,
    /// Columns that exist.
    pub(crate) columns: usize,
}

/// Takes tiles. Each place is given by one task only, once for each block of the summed index.
pub(crate) trait Sink<S>: Sync {
    /// Stores a tile (row-major, `width` a row) at its place; adds it to what is there unless it is
    /// the `first` for the place.
    fn put(&self, place: Place, tile: &[S], width: usize, first: bool);

    /// Asks for the cache lines of a place that is put next.
    fn prefetch(&self, place: Place);
}

/// Along which side of the product a bias runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BiasAxis {
    /// One value a row.
    Row,
    /// One value a column.
    Column,
}

/// Strides of an output: element (batch, row, column) lies at
/// `first + batch·B + row·R + (column / period)·S + (column % period)·C`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Offset of the first element.
    pub(crate) first: usize,
    /// From one matrix of the batch to the next, B.
    pub(crate) batch: usize,
    /// From one row to the next, R.
    pub(crate) row: usize,
    /// Columns of one sample; all of them where there are no samples.
    pub(crate) period: usize,
    /// From one sample to the next, S.
    pub(crate) sample: usize,
    /// From one column to the next, C.
    pub(crate) column: usize,
}

/// An output in memory.
pub(crate) struct Output<'a, T> {
    data: *mut T,
    len: usize,
    layout: Layout,
    accumulate: bool,
    /// The bias, its axis, and its stride from one matrix of the batch to the next.
    bias: Option<(&'a [T], BiasAxis, usize)>,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow that lives as long as the `Output`; the engine
// gives each place to one task only, so that no two threads touch the same element.
unsafe impl<T: Send + Sync> Sync for Output<'_, T> {}

impl<'a, T: Float> Output<'a, T> {
    /// An output over `data`.
    pub(crate) fn new(data: &'a mut [T], layout: Layout) -> Self {
        let (len, data) = (data.len(), data.as_mut_ptr());
        Output { data, len, layout, accumulate: false, bias: None, owner: PhantomData }
    }

    /// Adds to what `data` holds instead of replacing it.
    pub(crate) fn accumulate(mut self, accumulate: bool) -> Self {
        self.accumulate = accumulate;
        self
    }

    /// Adds a bias.
    pub(crate) fn bias(mut self, bias: Option<&'a [T]>, axis: BiasAxis, batch: usize) -> Self {
        self.bias = bias.map(|bias| (bias, axis, batch));
        self
    }

    /// One row of a tile into elements that the caller has checked.
    ///
    /// # Safety
    /// `start + offset` is within `data` for each of the offsets, and no other thread is there.
    #[inline(always)]
    unsafe fn put_row<const N: usize>(
        &self,
        start: usize,
        offsets: &[usize],
        contiguous: bool,
        sums: &[T::Sum],
        keep: bool,
    ) {
        if contiguous && N != 0 {
            // SAFETY: the caller vouches for start + offsets, which are N neighbours here.
            let row: &mut [T; N] = unsafe { &mut *self.data.add(start + offsets[0]).cast() };
            let mut total = [T::Sum::default(); N];
            total.copy_from_slice(&sums[..N]);
            if keep {
                let mut old = [T::Sum::default(); N];
                widen_row(row, &mut old);
                for (total, old) in total.iter_mut().zip(old) {
                    *total += old;
                }
            }
            narrow_row(&total, row);
        } else {
            for (&offset, &sum) in offsets.iter().zip(sums) {
                // SAFETY: the caller vouches for start + offset.
                let to = unsafe { &mut *self.data.add(start + offset) };
                *to = T::narrow(if keep { to.widen() + sum } else { sum });
            }
        }
    }
}

impl<T: Float> Sink<T::Sum> for Output<'_, T> {
    fn prefetch(&self, place: Place) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let Layout { first, batch, row, period, sample, column } = self.layout;
            let at = |c: usize| c / period * sample + c % period * column;
            let ends = [at(place.column), at(place.column + place.columns - 1)];
            let start = first + place.batch * batch + place.row * row;
            for r in 0..place.rows {
                for end in ends {
                    let to = self.data.wrapping_add(start + r * row + end);
                    // SAFETY: a hint; it neither reads nor faults, wherever it points.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(to.cast()) };
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }

    fn put(&self, place: Place, tile: &[T::Sum], width: usize, first: bool) {
        let Layout { first: origin, batch, row, period, sample, column } = self.layout;
        let mut offsets = [0; MAX_NR];
        let offsets = &mut offsets[..place.columns];
        let (mut s, mut c) = (place.column / period, place.column % period);
        for offset in offsets.iter_mut() {
            *offset = s * sample + c * column;
            c += 1;
            if c == period {
                (s, c) = (s + 1, 0);
            }
        }
        let last = offsets[place.columns - 1];
        let contiguous = last.wrapping_sub(offsets[0]) == place.columns - 1;
        let contiguous = contiguous && (column == 1 || place.columns == 1);
        let start = origin + place.batch * batch + place.row * row;
        let end = start + (place.rows - 1) * row + last.max(offsets[0]);
        assert!(end < self.len, "tile {place:?} outside its output");
        let keep = !first || self.accumulate;
        for r in 0..place.rows {
            let sums = &tile[r * width..][..place.columns];
            let mut biased = [T::Sum::default(); MAX_NR];
            let sums = match self.bias {
                Some((bias, axis, step)) if first => {
                    for (j, (to, &sum)) in biased.iter_mut().zip(sums).enumerate() {
                        let at = match axis {
                            BiasAxis::Row => place.row + r,
                            BiasAxis::Column => place.column + j,
                        };
                        *to = sum + bias[place.batch * step + at].widen();
                    }
                    &biased[..place.columns]
                }
                _ => sums,
            };
            let start = start + r * row;
            // SAFETY: offsets grow with the column, so the last one of the last row, checked above,
            // bounds them all; the places of different tasks are disjoint.
            unsafe {
                match place.columns {
                    16 => self.put_row::<16>(start, offsets, contiguous, sums, keep),
                    8 => self.put_row::<8>(start, offsets, contiguous, sums, keep),
                    _ => self.put_row::<0>(start, offsets, contiguous, sums, keep),
                }
            }
        }
    }
}
