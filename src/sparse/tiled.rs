//! The tiled form: where every entry of a matrix lies when its columns are cut into strips.
//!
//! Strip s holds columns `s·strip .. (s+1)·strip` as compressed rows of its own. The entries of one
//! row in one strip are a *piece*; pieces lie strip by strip and in a strip row by row. An entry's
//! column is a 16-bit number, counted from the strip's first. A piece begins at a multiple of
//! [`ALIGN`] entries, so that they are read four at a time; what is left of its last four has the
//! column `strip`, which is one past the strip's last, and the value 0.

use super::assemble::CsrArrays;
use crate::device::Device;
use crate::device::spec::Form;
use crate::dtype::{DType, Float};
use rayon::prelude::*;
use std::ops::Range;

/// Entries that a piece's length is rounded up to.
pub(crate) const ALIGN: usize = 4;
/// Bits of a piece's mark that say where it begins, in steps of [`ALIGN`] entries; the two above
/// them say how many entries its end is padded with.
const START_BITS: u32 = 30;

/// Places beyond a strip in a block's shared memory: the first holds the zero that padding reads; where
/// padding is added to, each lane has one.
pub(crate) const BEYOND: usize = 32;
/// Shared memory that a block takes beside its strip.
pub(crate) const BESIDE: usize = 1 << 10;
/// Bytes of shared memory that a strip should have, so that as many blocks fit a multiprocessor as its
/// registers allow.
const STRIP: usize = 112 << 10;
/// The widest strip: its columns and the one past them are 16-bit numbers.
const WIDEST: usize = u16::MAX as usize;
/// Entries that a piece should at least have on average: shorter ones are mostly overhead.
const PIECE: usize = 32;

/// Columns of a strip for a matrix of so many columns whose rows have `mean` entries, on a device with
/// `shared` bytes of shared memory a block; strips are all alike. `None` where there are no columns, or no
/// room for any.
pub(crate) fn strip_width(shared: usize, dtype: DType, cols: usize, mean: usize) -> Option<usize> {
    let sum_size = dtype.size().max(4);
    let even = |strips_at_once: usize| {
        let room = (shared / strips_at_once).checked_sub(BESIDE)? / sum_size;
        let widest = room.checked_sub(BEYOND)?.min(WIDEST) & !3;
        if widest == 0 || cols == 0 {
            return None;
        }
        let even = cols.div_ceil(cols.div_ceil(widest)).next_multiple_of(4);
        Some(even.min(widest))
    };
    // As many at once as is best, or fewer and wider ones for short rows.
    let mut at_once = ((shared + STRIP / 2) / STRIP).max(1);
    while at_once > 1 {
        match even(at_once) {
            Some(strip) if mean / strips(cols, strip) >= PIECE => return Some(strip),
            _ => at_once /= 2,
        }
    }
    even(1)
}

/// [`strip_width`] on a device; `None` where it has no tiled form.
pub(crate) fn strip_on(device: &Device, dtype: DType, cols: usize, mean: usize) -> Option<usize> {
    strip_width(device.backend().shared_per_block()?, dtype, cols, mean)
}

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

impl Form {
    /// Bytes of a matrix in this form. What pads the pieces of the tiled one is estimated, as if all
    /// lengths were as likely.
    pub(crate) fn bytes(self, rows: usize, cols: usize, nnz: usize, dtype: DType) -> u64 {
        let (size, offset) = (dtype.size() as u64, if nnz > i32::MAX as usize { 8 } else { 4 });
        let (rows, nnz) = (rows as u64, nnz as u64);
        let offsets = (rows + 1) * offset;
        match self {
            Form::Csr | Form::Streamed => offsets.saturating_add(nnz.saturating_mul(4 + size)),
            Form::Tiled { strip } => {
                let pieces = (strips(cols, strip) as u64).saturating_mul(rows);
                let padding = pieces.min(nnz).saturating_mul(ALIGN as u64 - 1) / 2;
                let entries = nnz.saturating_add(padding).saturating_mul(2 + size);
                offsets.saturating_add(pieces.saturating_mul(4)).saturating_add(entries)
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::assemble::Offsets;

    /// Rows with columns 0 3 4 9, none, and 5 6 7 8 9, in strips of 4.
    const OFFSETS: [usize; 4] = [0, 4, 4, 9];
    const COLUMNS: [i32; 9] = [0, 3, 4, 9, 5, 6, 7, 8, 9];

    fn pieces() -> Pieces {
        let mut counter = Counter::new(3, 10, 4);
        counter.add(&OFFSETS[..3], &COLUMNS[..4]);
        counter.add(&[0, 5], &COLUMNS[4..]);
        counter.finish().unwrap()
    }

    #[test]
    fn pieces_lie_strip_by_strip_and_are_padded_to_four() {
        let pieces = pieces();
        assert_eq!((pieces.strips, pieces.entries()), (3, 20));
        // Starts in steps of four, and the padding two bits above them.
        let mark = |start: u32, padding: u32| start | padding << 30;
        let expected = [
            [mark(0, 2), mark(1, 0), mark(1, 0)],
            [mark(1, 3), mark(2, 0), mark(2, 1)],
            [mark(3, 3), mark(4, 0), mark(4, 2)],
        ];
        assert_eq!(pieces.marks(), [expected.concat(), vec![mark(5, 0)]].concat());
        assert_eq!(pieces.region(1, &(0..3)), 4..12);
        assert_eq!(pieces.piece(1, 2), 8..11);
        assert_eq!(Pieces::from_marks(3, 10, 4, pieces.marks().to_vec()), pieces);
    }

    #[test]
    fn entries_go_to_their_pieces_and_back() {
        let pieces = pieces();
        let values: Vec<f32> = (1..=9u8).map(f32::from).collect();
        let mut next = vec![0, 4, 4];
        let mut back = CsrArrays {
            row_offsets: Offsets::I32(vec![0, 4, 4, 9]),
            col_indices: vec![-1; 9],
            values: vec![0.0; 9],
        };
        let mut all = (Vec::new(), Vec::new());
        for strip in 0..3 {
            let length = pieces.region(strip, &(0..3)).len();
            let (mut columns, mut out) = (vec![77u16; length], vec![f32::NAN; length]);
            let entries = (&OFFSETS[..], &COLUMNS[..], &values[..]);
            pieces.fill(strip, &(0..3), entries, (&mut columns, &mut out));
            pieces.unfill(strip, &(0..3), (&columns, &out), &mut next, &mut back);
            all.0.extend(columns);
            all.1.extend(out);
        }
        // Padding is one past a strip's last column, with a zero.
        assert_eq!(all.0, [0, 3, 4, 4, 0, 4, 4, 4, 1, 2, 3, 4, 1, 4, 4, 4, 0, 1, 4, 4]);
        let zero = 0.0;
        assert_eq!(all.1[..8], [1.0, 2.0, zero, zero, 3.0, zero, zero, zero]);
        assert_eq!(all.1[8..], [5.0, 6.0, 7.0, zero, 4.0, zero, zero, zero, 8.0, 9.0, zero, zero]);
        assert_eq!((back.col_indices, back.values), (COLUMNS.to_vec(), values));
    }

    #[test]
    fn more_entries_than_marks_can_count_have_no_pieces() {
        // The entries of two long rows, only counted.
        let mut counter = Counter::new(2, 4, 4);
        counter.counts.extend([i32::MAX as u32; 2]);
        assert_eq!(counter.finish(), None);
    }
}
