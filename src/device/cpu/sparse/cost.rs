//! Predicted times: what an entry costs, from how much dense memory its random access ranges over,
//! and what streams. Calibrated on a Zen 3 at two threads; good for ranking, within about a factor
//! of two for seconds.

use super::walk;

/// Bytes a second that one thread streams, and that all together do at most.
const STREAM: f64 = 15e9;
const STREAM_ALL: f64 = 120e9;
/// Seconds for finding a range of columns in a row, times the square of the number of steps: the
/// longer the row, the farther away are the entries that are looked at.
const SEARCH: f64 = 0.45e-9;
/// Seconds to begin a row.
const ROW: f64 = 1.5e-9;

/// What predictions need to know.
pub(super) struct Cost {
    pub(super) nnz: f64,
    pub(super) width: f64,
    pub(super) size: f64,
    pub(super) threads: f64,
}

impl Cost {
    /// Seconds for one random access to a dense side of `bytes`.
    fn access(&self, bytes: f64) -> f64 {
        // (bytes, nanoseconds), by which cache holds it.
        const STEPS: [(f64, f64); 5] =
            [(24e3, 0.5), (256e3, 0.9), (1.2e6, 1.15), (24e6, 2.5), (200e6, 8.0)];
        let mut last = STEPS[0];
        for step in STEPS {
            if bytes <= step.0 {
                let share = if step.0 == last.0 {
                    0.0
                } else {
                    (bytes.max(last.0) - last.0) / (step.0 - last.0)
                };
                return (last.1 + share * (step.1 - last.1)) * 1e-9;
            }
            last = step;
        }
        last.1 * 1e-9
    }

    /// Seconds for an entry and `width` vectors side by side on `side` rows of them.
    fn entry(&self, side: usize, width: f64, size: f64) -> f64 {
        let bytes = width * size;
        let lines = (bytes / 64.0).ceil().max(1.0);
        let compute = width * size / 32.0 * 0.3e-9;
        self.access(side as f64 * bytes) * (0.4 + 0.6 * lines) + compute
    }

    /// Seconds for an entry and all vectors, apart (one access each) or side by side.
    fn dense(&self, side: usize, apart: bool) -> f64 {
        if apart {
            self.width * self.access(side as f64 * self.size * self.width.min(64.0))
        } else {
            self.entry(side, self.width, self.size)
        }
    }

    fn stream(&self, bytes: f64) -> f64 {
        bytes / (STREAM * self.threads).min(STREAM_ALL)
    }

    fn matrix(&self, rows: usize) -> f64 {
        self.nnz * (4.0 + self.size) + rows as f64 * 4.0
    }

    fn parallel(&self, seconds: f64, tasks: f64) -> f64 {
        seconds / self.threads.min(tasks.max(1.0))
    }

    /// Time that is either computing or streaming, whichever is longer.
    fn overlapped(&self, seconds: f64, tasks: f64, bytes: f64) -> f64 {
        self.parallel(seconds, tasks).max(self.stream(bytes)) + 2e-6
    }

    /// Seconds for beginning every row in one of several ranges of columns.
    fn search(&self, rows: usize, ranges: f64) -> f64 {
        let rows = rows as f64;
        let steps = (self.nnz / rows.max(1.0)).max(1.0).log2();
        rows * if ranges > 1.0 { ROW + SEARCH * steps * steps } else { ROW }
    }

    fn blocks(&self, block: usize) -> f64 {
        (self.width / block.max(1) as f64).ceil().max(1.0)
    }

    fn tasks(&self) -> f64 {
        (self.nnz * self.width / 32768.0).ceil()
    }

    pub(super) fn rows(&self, rows: usize, cols: usize, apart: bool) -> f64 {
        let work = self.nnz * self.dense(cols, apart) + rows as f64 * (ROW + self.width * 0.3e-9);
        self.overlapped(work, self.tasks(), self.matrix(rows))
    }

    pub(super) fn rows_interleaved(&self, rows: usize, cols: usize, block: usize) -> f64 {
        let width = self.width.min(block as f64);
        let work =
            self.nnz * self.entry(cols, width, self.size) + rows as f64 * (ROW + width * 1e-9);
        let copy = cols as f64 * self.width * 1e-9;
        self.blocks(block) * self.overlapped(work, self.tasks(), self.matrix(rows))
            + self.parallel(copy, self.tasks())
    }

    pub(super) fn column_ranges(&self, rows: usize, cols: usize, apart: bool) -> f64 {
        let ranges = self.threads.min(cols as f64);
        let sum = self.size.max(4.0) as usize;
        let own = cols / ranges.max(1.0) as usize;
        let strips = self.width == 1.0
            && ranges > 1.0
            && walk::pays(rows, cols, self.nnz as usize, own, sum);
        // Entries come with a write each; strips save some of what it costs.
        let entry = if strips { 1.5 } else { 1.6 };
        let search = ranges * self.search(rows, ranges);
        let work = entry * self.nnz * self.dense(cols, apart) + search;
        self.overlapped(work, ranges, self.matrix(rows))
            + self.stream(cols as f64 * self.width * self.size)
    }

    pub(super) fn column_strips(&self, rows: usize, cols: usize) -> f64 {
        let width = self.width.clamp(1.0, 32.0);
        let strips = (cols as f64 * width / 8192.0).ceil().max(1.0);
        let entry = self.nnz * 1.6 * self.entry(8192, width, 4.0);
        let work = entry + strips * self.search(rows, strips);
        let blocks = (self.width / 32.0).ceil();
        self.overlapped(work * blocks, strips * blocks, self.matrix(rows) * blocks)
    }

    pub(super) fn columns_buffered(&self, rows: usize, cols: usize, block: usize) -> f64 {
        let width = self.width.min(block as f64);
        let ranges = self.threads.min(cols as f64);
        let search = ranges * self.search(rows, ranges);
        let work = 1.6 * self.nnz * self.entry(cols, width, self.size.max(4.0)) + search;
        let flush = cols as f64 * self.width * 1.5e-9;
        self.blocks(block) * self.overlapped(work, ranges, self.matrix(rows))
            + self.parallel(flush, ranges)
    }

    pub(super) fn private(&self, rows: usize, cols: usize, pieces: usize, block: usize) -> f64 {
        let width = self.width.min(block as f64);
        let sum = self.size.max(4.0);
        // One vector's sums of all columns are near enough; of several vectors, ranges are nearer.
        let entry = if width > 1.0 { 1.9 } else { 1.4 };
        let work = entry * self.nnz * self.entry(cols, width, sum) + rows as f64 * ROW;
        let buffers = pieces as f64 * cols as f64 * width * sum;
        let flush = cols as f64 * self.width * 1.5e-9;
        self.blocks(block)
            * (self.overlapped(work, pieces as f64, self.matrix(rows)) + self.stream(5.0 * buffers))
            + self.parallel(flush, self.threads)
    }

    pub(super) fn sampled(&self, cols: usize, apart: bool) -> f64 {
        let work = self.nnz * 1.3 * self.dense(cols, apart);
        self.overlapped(work, self.tasks(), self.matrix(0) + self.nnz * self.size)
    }

    pub(super) fn sampled_interleaved(&self, rows: usize, cols: usize, block: usize) -> f64 {
        let width = self.width.min(block as f64);
        let work = self.nnz * 1.3 * self.entry(cols, width, self.size);
        let copy = (rows + cols) as f64 * self.width * 1e-9;
        let bytes = self.matrix(0) + self.nnz * self.size;
        self.blocks(block) * self.overlapped(work, self.tasks(), bytes)
            + self.parallel(copy, self.tasks())
    }
}
