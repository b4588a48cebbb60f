//! Where finished tiles go: a row-major matrix, a batch of them, or the scattered columns of a
//! convolution, with a bias and with narrowing to the stored type on the way.

use super::kernel::{MAX_NR, MR};
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

    /// `N` sums with what is to be added to them.
    ///
    /// # Safety
    /// The `N` elements from `at` on are within `data`, and no other thread is there.
    #[inline(always)]
    unsafe fn total<const N: usize>(&self, at: usize, sums: &[T::Sum], keep: bool) -> [T::Sum; N] {
        let mut total = [T::Sum::default(); N];
        total.copy_from_slice(&sums[..N]);
        if keep {
            // SAFETY: the caller vouches for these elements.
            let row: &[T; N] = unsafe { &*self.data.add(at).cast() };
            let mut old = [T::Sum::default(); N];
            widen_row(row, &mut old);
            for (total, old) in total.iter_mut().zip(old) {
                *total += old;
            }
        }
        total
    }

    /// Stores `N` sums.
    ///
    /// # Safety
    /// As for [`Self::total`].
    #[inline(always)]
    unsafe fn store<const N: usize>(&self, at: usize, total: &[T::Sum; N]) {
        // SAFETY: the caller vouches for these elements.
        let row: &mut [T; N] = unsafe { &mut *self.data.add(at).cast() };
        narrow_row(total, row);
    }

    /// Neighbours of any number from `N` to `2·N`, as two vectors that may overlap. Nothing past
    /// the run is touched, as that belongs to other tasks.
    ///
    /// # Safety
    /// As for [`Self::total`], with as many elements as there are sums.
    #[inline(always)]
    unsafe fn put_ends<const N: usize>(&self, at: usize, sums: &[T::Sum], keep: bool) {
        let tail = sums.len() - N;
        // SAFETY: both vectors lie within the run. Both are read before either is written, so that
        // nothing is added twice where they overlap.
        unsafe {
            let head = self.total::<N>(at, sums, keep);
            let end = self.total::<N>(at + tail, &sums[tail..], keep);
            self.store(at, &head);
            self.store(at + tail, &end);
        }
    }

    /// One run of a row of a tile.
    ///
    /// # Safety
    /// As for [`Self::put_ends`].
    #[inline(always)]
    unsafe fn put_run(&self, at: usize, sums: &[T::Sum], keep: bool) {
        // SAFETY: the caller vouches for as many elements as there are sums.
        unsafe {
            match sums.len() {
                16 => self.store(at, &self.total::<16>(at, sums, keep)),
                8 => self.store(at, &self.total::<8>(at, sums, keep)),
                9..16 => self.put_ends::<8>(at, sums, keep),
                4..8 => self.put_ends::<4>(at, sums, keep),
                _ => {
                    for j in 0..sums.len() {
                        self.store(at + j, &self.total::<1>(at + j, &sums[j..], keep));
                    }
                }
            }
        }
    }

    /// The columns of a tile as runs of neighbours in memory: offset, first column, length.
    fn runs(&self, place: Place, runs: &mut [(usize, usize, usize); MAX_NR]) -> usize {
        let Layout { period, sample, column, .. } = self.layout;
        let (mut s, mut c) = (place.column / period, place.column % period);
        let (mut count, mut j) = (0, 0);
        while j < place.columns {
            let room = if column == 1 { period - c } else { 1 };
            let len = room.min(place.columns - j);
            runs[count] = (s * sample + c * column, j, len);
            count += 1;
            (j, c) = (j + len, c + len);
            if c == period {
                (s, c) = (s + 1, 0);
            }
        }
        count
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
        let Layout { first: origin, batch, row, .. } = self.layout;
        let mut runs = [(0, 0, 0); MAX_NR];
        let count = self.runs(place, &mut runs);
        let runs = &runs[..count];
        let (offset, _, len) = runs[count - 1];
        let start = origin + place.batch * batch + place.row * row;
        let end = start + (place.rows - 1) * row + (offset + len - 1).max(runs[0].0);
        assert!(end < self.len, "tile {place:?} outside its output");
        let keep = !first || self.accumulate;
        let mut biased = [T::Sum::default(); MR * MAX_NR];
        let tile = match self.bias {
            Some((bias, axis, step)) if first => {
                for r in 0..place.rows {
                    let sums = &tile[r * width..][..place.columns];
                    let biased = &mut biased[r * width..][..place.columns];
                    for (j, (to, &sum)) in biased.iter_mut().zip(sums).enumerate() {
                        let at = match axis {
                            BiasAxis::Row => place.row + r,
                            BiasAxis::Column => place.column + j,
                        };
                        *to = sum + bias[place.batch * step + at].widen();
                    }
                }
                &biased
            }
            _ => tile,
        };
        for &(offset, j, len) in runs {
            for r in 0..place.rows {
                let sums = &tile[r * width + j..][..len];
                // SAFETY: offsets grow with the column, so the end of the last run in the last row,
                // checked above, bounds them all; the places of different tasks are disjoint.
                unsafe { self.put_run(start + r * row + offset, sums, keep) };
            }
        }
    }
}
