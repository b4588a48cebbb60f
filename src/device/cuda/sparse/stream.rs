//! A matrix that stays in the host's memory: its rows come in chunks, one of which is copied while the
//! one before it is computed with. Without a workspace kernels read the host's memory themselves.

use super::job::{Job, Problem};
use super::matrix::{Matrix, Operands};
use crate::device::cuda::Cuda;
use crate::device::cuda::pinned::host_slice;
use crate::device::spec::Form;
use crate::dtype::DType;
use crate::error::{Error, Result};
use std::ops::Range;

/// Parts of a chunk begin at multiples of this.
const ALIGN: usize = 64;

/// Row offsets in the host's memory.
enum Offsets<'a> {
    Narrow(&'a [i32]),
    Wide(&'a [i64]),
}

impl Offsets<'_> {
    fn of<'a>(operands: &Operands<'a>) -> Option<Offsets<'a>> {
        match operands.offsets.dtype() {
            DType::I64 => host_slice(operands.offsets).map(Offsets::Wide),
            _ => host_slice(operands.offsets).map(Offsets::Narrow),
        }
    }

    fn get(&self, row: usize) -> usize {
        match self {
            Offsets::Narrow(offsets) => offsets[row] as usize,
            Offsets::Wide(offsets) => offsets[row] as usize,
        }
    }

    /// The row of `rows` that holds an entry.
    fn row_of(&self, entry: usize, rows: Range<usize>) -> usize {
        let (mut low, mut high) = (rows.start, rows.end);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.get(middle) <= entry {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// How many entries and rows a chunk may have, so that both fit its bytes.
struct Room {
    entries: usize,
    rows: usize,
    /// Bytes of an offset, a column and a value (0 where values are not copied).
    sizes: [usize; 3],
}

impl Room {
    fn new(problem: &Problem, chunk: usize, sizes: [usize; 3]) -> Room {
        let [offset, column, value] = sizes;
        let usable = chunk.saturating_sub(3 * ALIGN + 2 * offset) as f64;
        let rows_an_entry = problem.rows as f64 / problem.nnz.max(1) as f64;
        let entry = (column + value) as f64;
        // A quarter more rows than on average; what they leave is for entries.
        let entries = (usable / (entry + offset as f64 * rows_an_entry * 1.25)).max(1.0) as usize;
        let rows = ((usable - entries as f64 * entry) / offset as f64).max(1.0) as usize;
        Room { entries, rows, sizes }
    }

    /// Where columns and values begin in a chunk.
    fn starts(&self) -> [usize; 2] {
        let columns = ((self.rows + 1) * self.sizes[0]).next_multiple_of(ALIGN);
        [columns, columns + (self.entries * self.sizes[1]).next_multiple_of(ALIGN)]
    }
}

/// Calls `f` with the whole matrix, or with its chunks in turn: what `f` enqueues runs when the chunk
/// is there.
pub(super) fn each_chunk(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    operands: &Operands<'_>,
    chunks: u64,
    with_values: bool,
    mut f: impl FnMut(&Matrix) -> Result<()>,
) -> Result<()> {
    let whole = operands.matrix(problem);
    if problem.stored.form != Form::Streamed || job.chunk == 0 {
        return f(&whole);
    }
    let Some(offsets) = Offsets::of(operands) else {
        return Err(Error::driver("sparse product", "the matrix is not in the host's memory"));
    };
    // Values that are given apart lie on the device already.
    let with_values = with_values && operands.values_on_host();
    let sizes = [
        operands.offsets.dtype().size(),
        size_of::<i32>(),
        if with_values { problem.dtype.size() } else { 0 },
    ];
    let room = Room::new(problem, job.chunk, sizes);
    let [columns_at, values_at] = room.starts();
    let copies = cuda.copies()?;
    let mut copies = copies.lock();
    copies.begin(cuda.stream())?;
    let mut run = || {
        let (mut entry, mut turn) = (0, 0);
        while entry < problem.nnz {
            let row = offsets.row_of(entry, 0..problem.rows);
            let most = (entry + room.entries).min(problem.nnz);
            let mut row_end = offsets.row_of(most - 1, row..problem.rows) + 1;
            let mut end = most;
            if row_end - row > room.rows {
                row_end = row + room.rows;
                end = offsets.get(row_end).min(most);
            }
            let buffer = chunks + ((turn % 2) * job.chunk) as u64;
            let [offset, column, value] = sizes;
            let pieces = [
                (buffer, whole.offsets, row * offset, (row_end + 1 - row) * offset),
                (buffer + columns_at as u64, whole.columns, entry * column, (end - entry) * column),
                (buffer + values_at as u64, whole.values, entry * value, (end - entry) * value),
            ];
            copies.copy(turn % 2, &pieces, cuda.stream())?;
            // Shifted, so that rows and entries keep their numbers.
            let shifted =
                |(at, _, skipped, _): (u64, u64, usize, usize)| at.wrapping_sub(skipped as u64);
            let matrix = Matrix {
                row_begin: row as u64,
                row_end: row_end as u64,
                first: entry as u64,
                last: end as u64,
                offsets: shifted(pieces[0]),
                columns: shifted(pieces[1]),
                values: if with_values { shifted(pieces[2]) } else { whole.values },
                ..whole
            };
            f(&matrix)?;
            copies.release(turn % 2, cuda.stream())?;
            entry = end;
            turn += 1;
        }
        Ok(())
    };
    let result = run();
    if result.is_err() {
        // The workspace must not be given back while a copy to it is under way.
        copies.synchronize();
    }
    result
}
