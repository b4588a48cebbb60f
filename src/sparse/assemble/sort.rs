//! The general way to canonical CSR: a counting sort by row, in parallel over runs of rows, then a stable sort
//! by column within each row that needs it, adding up duplicates, in parallel over disjoint runs of rows.

use super::arrays::{CsrArrays, Entries, EntryMap, Offsets};
use super::{Built, Index};
use crate::dtype::Float;

/// Rows are sorted on one thread below this many entries.
const GRAIN: usize = 1 << 15;

/// Row offsets of entries in any order.
pub(super) fn count(rows: usize, entries: &impl Entries) -> Offsets {
    let starts = starts(rows, entries);
    Offsets::collect(entries.nnz(), starts.into_iter())
}

fn starts(rows: usize, entries: &impl Entries) -> Vec<usize> {
    let mut starts = vec![0; rows + 1];
    entries.for_each(|_, row, _| starts[row + 1] += 1);
    for r in 0..rows {
        starts[r + 1] += starts[r];
    }
    starts
}

/// Builds canonical CSR from checked entries in any order.
pub(super) fn build<T: Float>(
    rows: usize,
    entries: &(impl Entries + Sync),
    given: &[T],
    with_entry_map: bool,
) -> Built<T> {
    let nnz = entries.nnz();
    let mut next = starts(rows, entries);
    let mut cols = vec![0i32; nnz];
    let mut values = vec![T::default(); nnz];
    let mut map = with_entry_map.then(|| EntryMap::zeros(nnz));
    match &mut map {
        Some(map) => entries.for_each(|entry, row, col| {
            let slot = next[row];
            next[row] += 1;
            cols[slot] = col;
            values[slot] = given[entry];
            map.set(entry, slot);
        }),
        None => {
            let parts = if nnz > GRAIN { rayon::current_num_threads() } else { 1 };
            let share = Share { first: 0, base: 0, parts };
            share.entries(entries, given, &mut next[..rows], nnz, &mut cols, &mut values);
        }
    }
    // Each row's cursor has come to the row's end, which is the next row's start.
    let mut ends = next;
    ends.truncate(rows);
    let mut ranks = vec![0u32; if with_entry_map { nnz } else { 0 }];
    // Sorted rows keep their place; what duplicates leave unused is closed up below.
    let mut kept = vec![0i32; rows];
    sort_rows(
        0,
        &ends,
        &mut cols,
        &mut values,
        with_entry_map.then_some(&mut ranks[..]),
        &mut kept,
    );
    let stored: usize = kept.iter().map(|k| k.as_usize()).sum();
    if stored < nnz {
        let (mut from, mut to) = (0, 0);
        for (end, kept) in ends.iter_mut().zip(&kept) {
            let kept = kept.as_usize();
            cols.copy_within(from..from + kept, to);
            values.copy_within(from..from + kept, to);
            from = *end;
            to += kept;
            *end = to;
        }
        cols.truncate(stored);
        values.truncate(stored);
        cols.shrink_to_fit();
        values.shrink_to_fit();
    }
    if let Some(map) = &mut map {
        entries.for_each(|entry, row, _| {
            let start = if row == 0 { 0 } else { ends[row - 1] };
            let rank = ranks[map.get(entry)];
            map.set(entry, start + rank as usize);
        });
    }
    Built {
        csr: CsrArrays {
            row_offsets: Offsets::collect(stored, std::iter::once(0).chain(ends)),
            col_indices: cols,
            values,
        },
        entry_map: map,
    }
}

/// Rows from `first` on whose entries go to slices that begin at entry `base`, by so many threads.
#[derive(Clone, Copy)]
struct Share {
    first: usize,
    base: usize,
    parts: usize,
}

impl Share {
    /// Puts entries into their rows, in the order given. Every thread goes through all entries and
    /// takes those of its rows: reading them in order costs little beside writing here and there.
    /// `next` is where each row's next entry goes, and `end` where the last row's end.
    fn entries<T: Float>(
        self,
        entries: &(impl Entries + Sync),
        given: &[T],
        next: &mut [usize],
        end: usize,
        cols: &mut [i32],
        values: &mut [T],
    ) {
        let Share { first, base, parts } = self;
        if parts > 1 && next.len() > 1 {
            let (left, right) = (parts / 2, parts - parts / 2);
            let half = base + (end - base) / parts * left;
            let mid = next.partition_point(|&start| start < half).clamp(1, next.len() - 1);
            let cut = next[mid];
            let (n0, n1) = next.split_at_mut(mid);
            let (c0, c1) = cols.split_at_mut(cut - base);
            let (v0, v1) = values.split_at_mut(cut - base);
            let (before, after) = (
                Share { first, base, parts: left },
                Share { first: first + mid, base: cut, parts: right },
            );
            rayon::join(
                || before.entries(entries, given, n0, cut, c0, v0),
                || after.entries(entries, given, n1, end, c1, v1),
            );
            return;
        }
        entries.for_each(|entry, row, col| {
            if let Some(next) = row.checked_sub(first).and_then(|row| next.get_mut(row)) {
                let slot = *next - base;
                *next += 1;
                cols[slot] = col;
                values[slot] = given[entry];
            }
        });
    }
}

/// Sorts rows that end at `ends`, the first of which starts at `base`; the slices hold these rows
/// and nothing else.
fn sort_rows<T: Float>(
    base: usize,
    ends: &[usize],
    cols: &mut [i32],
    values: &mut [T],
    ranks: Option<&mut [u32]>,
    kept: &mut [i32],
) {
    if ends.len() > 1 && cols.len() > GRAIN {
        let half = base + cols.len() / 2;
        let mid = ends.partition_point(|&e| e <= half).clamp(1, ends.len() - 1);
        let at = ends[mid - 1] - base;
        let (c0, c1) = cols.split_at_mut(at);
        let (v0, v1) = values.split_at_mut(at);
        let (k0, k1) = kept.split_at_mut(mid);
        let (r0, r1) = match ranks {
            Some(r) => {
                let (r0, r1) = r.split_at_mut(at);
                (Some(r0), Some(r1))
            }
            None => (None, None),
        };
        rayon::join(
            || sort_rows(base, &ends[..mid], c0, v0, r0, k0),
            || sort_rows(base + at, &ends[mid..], c1, v1, r1, k1),
        );
        return;
    }
    let mut ranks = ranks;
    let mut short = Scratch::default();
    let mut long = Scratch::default();
    let mut from = 0;
    for (&end, kept) in ends.iter().zip(kept) {
        let row = from..end - base;
        from = row.end;
        let cols = &mut cols[row.clone()];
        let values = &mut values[row.clone()];
        let ranks = ranks.as_deref_mut().map(|r| &mut r[row.clone()]);
        *kept = if u32::try_from(row.len()).is_ok() {
            sort_row::<T, u32>(cols, values, ranks, &mut short)
        } else {
            sort_row::<T, u64>(cols, values, ranks, &mut long)
        };
    }
}

/// What one thread needs to sort a row: columns with the place they came from, and the values.
struct Scratch<T, P> {
    order: Vec<(i32, P)>,
    values: Vec<T>,
}

impl<T, P> Default for Scratch<T, P> {
    fn default() -> Self {
        Scratch { order: Vec::new(), values: Vec::new() }
    }
}

/// A place within a row, in the narrowest type that holds it.
trait Place: Copy + Ord {
    fn from_usize(i: usize) -> Self;
    fn to_usize(self) -> usize;
}

impl Place for u32 {
    fn from_usize(i: usize) -> Self {
        i as u32
    }
    fn to_usize(self) -> usize {
        self as usize
    }
}

impl Place for u64 {
    fn from_usize(i: usize) -> Self {
        i as u64
    }
    fn to_usize(self) -> usize {
        self as usize
    }
}

/// Sorts one row by column and adds up its duplicates in the order given; how many entries are
/// left (at most the number of columns, so it fits).
fn sort_row<T: Float, P: Place>(
    cols: &mut [i32],
    values: &mut [T],
    mut ranks: Option<&mut [u32]>,
    scratch: &mut Scratch<T, P>,
) -> i32 {
    if cols.windows(2).all(|pair| pair[0] < pair[1]) {
        if let Some(ranks) = ranks {
            for (rank, r) in (0..).zip(ranks) {
                *r = rank;
            }
        }
        return cols.len().as_col();
    }
    let Scratch { order, values: given } = scratch;
    given.clear();
    given.extend_from_slice(values);
    order.clear();
    order.extend((0..).zip(cols.iter()).map(|(i, &c)| (c, P::from_usize(i))));
    // No two pairs are equal, so this is stable although it does not look it.
    order.sort_unstable();
    let mut kept = 0;
    for same in order.chunk_by(|a, b| a.0 == b.0) {
        let first = given[same[0].1.to_usize()];
        cols[kept] = same[0].0;
        values[kept] = if same.len() == 1 {
            first
        } else {
            // In f64 any number of equal entries keeps its digits.
            T::from_f64(same.iter().map(|&(_, place)| given[place.to_usize()].to_f64()).sum())
        };
        if let Some(ranks) = ranks.as_deref_mut() {
            for &(_, place) in same {
                ranks[place.to_usize()] = kept as u32;
            }
        }
        kept += 1;
    }
    kept.as_col()
}
