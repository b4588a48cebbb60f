//! The tiled form: where every entry of a matrix lies when its columns are cut into strips.
//!
//! Strip s holds columns `s·strip .. (s+1)·strip` as compressed rows of its own. The entries of one
//! row in one strip are a *piece*; pieces lie strip by strip and in a strip row by row. An entry's
//! column is a 16-bit number, counted from the strip's first. A piece begins at a multiple of
//! [`ALIGN`] entries, so that they are read four at a time; what is left of its last four has the
//! column `strip`, which is one past the strip's last, and the value 0.

use super::assemble::CsrArrays;
use crate::dtype::Float;
use rayon::prelude::*;
use std::ops::Range;

/// Entries that a piece's length is rounded up to.
pub(crate) const ALIGN: usize = 4;
/// Bits of a piece's mark that say where it begins, in steps of [`ALIGN`] entries; the two above
/// them say how many entries its end is padded with.
const START_BITS: u32 = 30;
/// The widest strip: its columns and the one past them are 16-bit numbers.
pub(crate) const WIDEST: usize = u16::MAX as usize;

/// Where all pieces of a matrix begin and how many entries each has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pub(crate) rows: usize,
    pub(crate) strip: usize,
    pub(crate) strips: usize,
    /// One for each piece, strip by strip, and the end.
    marks: Vec<u32>,
}

/// How many entries each piece has, taken in by ranges of rows.
pub(crate) struct Counter {
    rows: usize,
    strip: usize,
    strips: usize,
    /// By row, then by strip.
    counts: Vec<u32>,
}

/// Strips of so many columns that a matrix has.
pub(crate) fn strips(cols: usize, strip: usize) -> usize {
    cols.div_ceil(strip.max(1)).max(1)
}

impl Counter {
    pub(crate) fn new(rows: usize, cols: usize, strip: usize) -> Counter {
        let strips = strips(cols, strip);
        Counter { rows, strip, strips, counts: Vec::with_capacity(rows * strips) }
    }

    /// The next rows: `offsets` (one more than rows, the first 0) and their columns, ascending.
    pub(crate) fn add(&mut self, offsets: &[usize], columns: &[i32]) {
        let (strip, strips) = (self.strip, self.strips);
        let begin = self.counts.len();
        self.counts.resize(begin + (offsets.len() - 1) * strips, 0);
        let rows = self.counts[begin..].par_chunks_mut(strips).zip(offsets.par_windows(2));
        rows.for_each(|(counts, bounds)| {
            for &column in &columns[bounds[0]..bounds[1]] {
                counts[column as usize / strip] += 1;
            }
        });
    }

    /// `None` where there are more entries than the marks can count.
    pub(crate) fn finish(self) -> Option<Pieces> {
        let (rows, strip, strips) = (self.rows, self.strip, self.strips);
        let mut marks = Vec::with_capacity(rows * strips + 1);
        let mut start = 0u64;
        for s in 0..strips {
            for r in 0..rows {
                let length = self.counts[r * strips + s];
                let steps = length.div_ceil(ALIGN as u32);
                let padding = steps * ALIGN as u32 - length;
                marks.push((start as u32) | padding << START_BITS);
                start += u64::from(steps);
                if start >= 1 << START_BITS {
                    return None;
                }
            }
        }
        marks.push(start as u32);
        Some(Pieces { rows, strip, strips, marks })
    }
}

impl Pieces {
    /// From marks that were read back.
    pub(crate) fn from_marks(rows: usize, cols: usize, strip: usize, marks: Vec<u32>) -> Pieces {
        Pieces { rows, strip, strips: strips(cols, strip), marks }
    }

    pub(crate) fn marks(&self) -> &[u32] {
        &self.marks
    }

    fn start(&self, piece: usize) -> usize {
        (self.marks[piece] & ((1 << START_BITS) - 1)) as usize * ALIGN
    }

    /// The entries of a row in a strip, without the padding.
    fn piece(&self, strip: usize, row: usize) -> Range<usize> {
        let piece = strip * self.rows + row;
        let padding = (self.marks[piece] >> START_BITS) as usize;
        self.start(piece)..self.start(piece + 1) - padding
    }

    /// Entries of all pieces, padding included.
    pub(crate) fn entries(&self) -> usize {
        self.start(self.rows * self.strips)
    }

    /// The entries of some rows in a strip, with the padding: what lies together.
    pub(crate) fn region(&self, strip: usize, rows: &Range<usize>) -> Range<usize> {
        let first = strip * self.rows;
        self.start(first + rows.start)..self.start(first + rows.end)
    }

    /// Writes the region of `rows` in a strip. `offsets` count from the first of the rows.
    pub(crate) fn fill<T: Float>(
        &self,
        strip: usize,
        rows: &Range<usize>,
        (offsets, columns, values): (&[usize], &[i32], &[T]),
        out: (&mut [u16], &mut [T]),
    ) {
        let begin = self.region(strip, rows).start;
        let first = strip * self.strip;
        let one = |row: usize, (out_columns, out_values): (&mut [u16], &mut [T])| {
            let (from, to) = (offsets[row - rows.start], offsets[row - rows.start + 1]);
            let skip = columns[from..to].partition_point(|&column| (column as usize) < first);
            let length = self.piece(strip, row).len();
            let entries = from + skip..from + skip + length;
            for (out, &column) in out_columns.iter_mut().zip(&columns[entries.clone()]) {
                *out = (column as usize - first) as u16;
            }
            out_columns[length..].fill(self.strip as u16);
            out_values[..length].copy_from_slice(&values[entries]);
            out_values[length..].fill(T::default());
        };
        // Halved until few entries are left, so that threads share the rows by their lengths.
        fn divide<T: Send>(
            pieces: &Pieces,
            strip: usize,
            rows: Range<usize>,
            begin: usize,
            out: (&mut [u16], &mut [T]),
            one: &(impl Fn(usize, (&mut [u16], &mut [T])) + Sync),
        ) {
            const FEW: usize = 1 << 14;
            if rows.len() == 1 {
                return one(rows.start, out);
            }
            if rows.is_empty() {
                return;
            }
            let middle = rows.start + rows.len() / 2;
            let cut = pieces.region(strip, &(middle..middle)).start - begin;
            let many = out.0.len() > FEW;
            let (left, right) = (out.0.split_at_mut(cut), out.1.split_at_mut(cut));
            let ((c0, c1), (v0, v1)) = (left, right);
            let mut first = || divide(pieces, strip, rows.start..middle, begin, (c0, v0), one);
            let mut second = || divide(pieces, strip, middle..rows.end, begin + cut, (c1, v1), one);
            if many {
                rayon::join(first, second);
            } else {
                first();
                second();
            }
        }
        divide(self, strip, rows.clone(), begin, out, &one);
    }

    /// The inverse of [`Pieces::fill`]: adds a region's entries to the rows that `next` counts (where
    /// the next entry of each row goes). Strips must come in order.
    pub(crate) fn unfill<T: Float>(
        &self,
        strip: usize,
        rows: &Range<usize>,
        (columns, values): (&[u16], &[T]),
        next: &mut [usize],
        out: &mut CsrArrays<T>,
    ) {
        let begin = self.region(strip, rows).start;
        for row in rows.clone() {
            let at = &mut next[row - rows.start];
            for entry in self.piece(strip, row) {
                let column = strip * self.strip + usize::from(columns[entry - begin]);
                out.col_indices[*at] = column as i32;
                out.values[*at] = values[entry - begin];
                *at += 1;
            }
        }
    }
}
