//! Predicted times of sparse products: bytes of the matrix over the memory's rate, or accesses to the
//! dense side over the rate of the cache or of atomics, whichever takes longer; and what one long row
//! takes where it is one warp's. The constants were measured on an H200 and go with its memory rate.

use super::job::{Job, Method, Problem, lanes, sum_size};
use crate::device::cuda::Cuda;
use crate::device::cuda::rates::{LAUNCH, Rates};
use crate::device::spec::{DenseLayout, Form};

/// Bytes a second between the host and the device.
const LINK: f64 = 50e9;
/// Bytes that an access to the dense side brings at least.
const SECTOR: f64 = 32.0;
/// Entries a second that one warp goes through.
const WARP: f64 = 1.5e9;
/// Seconds of an access to the dense side in the cache, and of a byte of it.
const ACCESS: f64 = 4.3e-12;
const ACCESS_BYTE: f64 = 0.072e-12;
/// How much longer one takes that comes from memory.
const MISS: f64 = 2.5;
/// Seconds of an entry that is scattered, and of each atomic that it takes, of four bytes or of
/// several neighbours.
const SCATTERED: f64 = 8e-12;
const ATOMIC: f64 = 3.2e-12;
/// Seconds of an atomic in shared memory.
const SHARED_ATOMIC: f64 = 4.1e-12;
/// Seconds that a multiprocessor takes for a piece that is gathered, and a warp for one in order.
const PIECE_GATHERED: f64 = 15e-9;
const PIECE_ORDERED: f64 = 45e-9;
/// Seconds that a warp takes to find where a range begins in a row, and for 32 entries there.
const SEARCH: f64 = 0.2e-6;
const TURN: f64 = 0.75e-6;

pub(super) struct Cost {
    problem: Problem,
    /// Bytes a second of the memory.
    memory: f64,
    cache_bytes: f64,
    multiprocessors: f64,
    /// Strips that fit a multiprocessor's shared memory.
    strips_at_once: f64,
    /// The device's memory rate over that of the one that was measured.
    scale: f64,
}

impl Cost {
    pub(super) fn new(cuda: &Cuda, problem: Problem) -> Cost {
        let properties = &cuda.gpu().properties;
        let memory = Rates::of(properties).bytes;
        let scale = memory / 4.24e12;
        Cost {
            problem,
            memory,
            cache_bytes: properties.cache_bytes as f64,
            multiprocessors: properties.multiprocessors as f64,
            strips_at_once: (cuda.shared_per_block() / super::strips::bytes(&problem).max(1))
                .clamp(1, 32) as f64,
            scale,
        }
    }

    /// Bytes of the matrix that a product reads.
    pub(super) fn matrix_bytes(&self) -> f64 {
        let p = &self.problem;
        let offset = if p.nnz > i32::MAX as usize { 8.0 } else { 4.0 };
        let entry = match p.stored.form {
            Form::Tiled { .. } => 2.0,
            _ => 4.0,
        };
        let pieces = (p.strips() * p.rows) as f64;
        let padding = pieces.min(p.nnz as f64) * 1.5;
        let size = p.dtype.size() as f64;
        p.rows as f64 * offset + pieces * 4.0 + (p.nnz as f64 + padding) * (entry + size)
    }

    /// Seconds of accesses of `bytes` bytes each, one an entry, to a dense side of `all` bytes.
    fn accesses(&self, bytes: f64, all: f64) -> f64 {
        let sectors = (bytes / SECTOR).ceil() * SECTOR;
        // What does not fit the cache comes from memory.
        let hit = (0.8 * self.cache_bytes / all.max(1.0)).min(1.0);
        let each = (ACCESS + ACCESS_BYTE * sectors) * (hit + (1.0 - hit) * MISS);
        self.problem.nnz as f64 * each / self.scale
    }

    pub(super) fn seconds(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let width = p.width.max(1) as f64;
        let size = p.dtype.size() as f64;
        let streamed = p.stored.form == Form::Streamed;
        // Of a streamed matrix the link decides; chunks overlap with the products.
        let (matrix, link) = match (streamed, job.chunk) {
            (false, _) => (self.matrix_bytes() / self.memory, 0.0),
            (true, 0) => (0.0, self.matrix_bytes() / (0.6 * LINK)),
            (true, chunk) => {
                let chunks = (self.matrix_bytes() / chunk as f64).max(1.0);
                (0.0, self.matrix_bytes() / LINK + chunks * 4.0 * LAUNCH + chunk as f64 / LINK)
            }
        };
        let block = if job.block > 0 { job.block.min(p.width) } else { p.width } as f64;
        let blocks = (width / block).ceil();
        // Bringing vectors side by side, or results to their place.
        let moved = if job.block > 0 {
            let length = match job.method {
                Method::Library(_) => p.from() + p.to(),
                _ => p.cols,
            };
            width * length as f64 * 2.0 * size / (0.6 * self.memory) + blocks * 2.0 * LAUNCH
        } else {
            0.0
        };
        let once = match job.method {
            Method::Library(index) => self.library(index, block, blocks, job.block > 0),
            Method::Sampled => self.sampled(matrix),
            _ if p.scatters => self.scatter(job, matrix, block, blocks),
            _ => self.gather(job, matrix, block, blocks),
        };
        LAUNCH + link.max(once) + moved
    }

    fn gather(&self, job: &Job, matrix: f64, block: f64, blocks: f64) -> f64 {
        let p = &self.problem;
        let (width, size) = (p.width.max(1) as f64, p.dtype.size() as f64);
        let mean = p.nnz as f64 / p.stored.filled.max(1) as f64;
        match job.method {
            Method::RowsOne => {
                let side_by_side = p.layout == DenseLayout::Columns && p.width > 1;
                let all = p.cols as f64 * size * if side_by_side { width } else { 1.0 };
                width * (matrix.max(self.accesses(size, all)) + self.long_row(1.0))
            }
            Method::Strips => {
                let turns = self.pieces() * PIECE_GATHERED / (self.multiprocessors * self.scale);
                width * ((matrix / 0.85).max(turns) + LAUNCH) + self.joins(job)
            }
            method => {
                let (_, lanes) = lanes(p.dtype, block as usize, block as usize, &[]);
                let lanes = lanes as f64;
                let all = p.cols as f64 * block * size;
                let even = matrix.max(self.accesses(block * size, all));
                // A warp's groups of lanes share a row's entries.
                let groups = 32.0 / lanes;
                let each = match method {
                    Method::RowsWide => even * (1.0 + 0.5 * groups / mean) + self.long_row(groups),
                    Method::RowsShort => even * (0.8 + 1.25 / lanes) + self.long_row(0.125),
                    _ => even * (1.25 + 0.5 * groups / mean) + 2.0 * LAUNCH,
                };
                blocks * each
            }
        }
    }

    fn scatter(&self, job: &Job, matrix: f64, block: f64, blocks: f64) -> f64 {
        let p = &self.problem;
        let (nnz, width) = (p.nnz as f64, p.width.max(1) as f64);
        match job.method {
            Method::Scatter => {
                let apart = p.layout == DenseLayout::Rows && job.block == 0;
                let atomics = match apart {
                    true => 1.0,
                    false => block / lanes(p.dtype, block as usize, block as usize, &[]).0 as f64,
                };
                let turns = if apart { width } else { blocks };
                let wide = sum_size(p.dtype) as f64 / 4.0;
                let all = p.cols as f64 * sum_size(p.dtype) as f64 * block;
                let hit = (0.8 * self.cache_bytes / all.max(1.0)).min(1.0);
                let each = (SCATTERED + ATOMIC * wide * atomics) * (hit + (1.0 - hit) * MISS);
                turns * (matrix.max(nnz * each / self.scale) + LAUNCH)
            }
            Method::StripsScatter => {
                width * (matrix.max(nnz * SHARED_ATOMIC / self.scale) + LAUNCH) + self.joins(job)
            }
            Method::StripsOrdered => {
                // A warp a strip, of which several share a multiprocessor.
                let warps = (job.parts * p.strips()) as f64;
                let room = self.strips_at_once * self.multiprocessors;
                let rows = self.pieces() * (1.0 + super::strips::mean_piece(p) / 128.0);
                let turns = rows * PIECE_ORDERED / warps.min(room).max(1.0);
                width * ((matrix / 0.85).max(turns) + LAUNCH) + self.joins(job)
            }
            _ => {
                let range = super::scatter::range(p) as f64;
                let ranges = (p.cols as f64 / range).ceil().max(1.0);
                let warps = (job.parts as f64 * ranges).min(self.multiprocessors * 8.0);
                let visits = ranges * p.rows as f64;
                // Rows that have entries in a range, and the turns that they take.
                let filled = (ranges * p.stored.filled as f64).min(nnz).max(nnz / 32.0);
                let turns = visits * SEARCH + filled * TURN;
                width * (turns / warps.max(1.0) + LAUNCH) + self.joins(job)
            }
        }
    }

    fn sampled(&self, matrix: f64) -> f64 {
        let p = &self.problem;
        let (width, size) = (p.width.max(1) as f64, p.dtype.size() as f64);
        let sides = (p.rows + p.cols) as f64 * width * size;
        let reads = match p.layout {
            DenseLayout::Columns => self.accesses(width * size, sides),
            DenseLayout::Rows => width * self.accesses(size, sides),
        };
        matrix.max(reads) + p.nnz as f64 * size / self.memory
    }

    fn pieces(&self) -> f64 {
        (self.problem.strips() * self.problem.rows) as f64
    }

    /// What the longest row takes where a warp (or a part of one) has it alone.
    fn long_row(&self, groups: f64) -> f64 {
        let longest = self.problem.stored.longest as f64;
        longest / (WARP * groups.min(4.0) / 4.0)
    }

    /// Adding up partial sums.
    fn joins(&self, job: &Job) -> f64 {
        let p = &self.problem;
        if job.has_partial_sums(p) {
            let bytes = (job.parts * p.to() * sum_size(p.dtype) * 2) as f64;
            p.width as f64 * (LAUNCH + bytes / self.memory)
        } else {
            0.0
        }
    }

    /// cuSPARSE, as measured with 1,100 entries a row.
    fn library(&self, index: u8, vectors: f64, blocks: f64, side_by_side: bool) -> f64 {
        let p = &self.problem;
        let entries = p.nnz as f64 / 295.68e6;
        let apart = p.layout == DenseLayout::Rows && !side_by_side;
        let milliseconds = match (p.scatters, p.width == 1, index) {
            (false, true, _) => 2.0,
            (true, true, _) => 3.2,
            (false, false, _) if p.is_half() && !apart => 2.0 + 0.06 * vectors,
            (false, false, 0) => vectors * if apart { 2.1 } else { 0.87 },
            (false, false, 1) => {
                if apart {
                    3.5 * vectors
                } else {
                    13.0 + 0.13 * vectors
                }
            }
            (false, false, _) => {
                if apart {
                    2.0 * vectors
                } else {
                    2.0 + 0.06 * vectors
                }
            }
            (true, false, 0) => 2.75 * vectors,
            (true, false, _) => {
                if apart {
                    3.0 * vectors
                } else {
                    11.2 + 0.364 * vectors
                }
            }
        };
        blocks * (entries * milliseconds * 1e-3 / self.scale + 2.0 * LAUNCH)
    }
}
