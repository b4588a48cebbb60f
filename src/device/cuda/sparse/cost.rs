//! Predicted times of sparse products: bytes of the matrix over the memory's rate, or accesses to the
//! dense side over the rate of the cache or of atomics, whichever takes longer; and what one long row
//! takes where it is one warp's. The constants were measured on an H200 and go with its memory rate.

use super::job::{Job, Method, Problem, lanes, sum_size};
use crate::device::cuda::gpu::Properties;
use crate::device::cuda::rates::{LAUNCH, Rates};
use crate::device::spec::{DenseLayout, Form};

/// Bytes a second between the host and the device.
const LINK: f64 = 50e9;
/// Bytes that an access to the dense side brings at least.
const SECTOR: f64 = 32.0;
/// Entries a second that one warp goes through.
const WARP: f64 = 1.5e9;

pub(super) struct Cost {
    problem: Problem,
    /// Bytes a second of the memory, and of the second-level cache in sectors.
    memory: f64,
    cache: f64,
    cache_bytes: f64,
    multiprocessors: f64,
    /// The device's memory rate over that of the one that was measured.
    scale: f64,
}

impl Cost {
    pub(super) fn new(properties: &Properties, problem: Problem) -> Cost {
        let memory = Rates::of(properties).bytes;
        let scale = memory / 4.24e12;
        Cost {
            problem,
            memory,
            cache: 4.7e12 * scale,
            cache_bytes: properties.cache_bytes as f64,
            multiprocessors: properties.multiprocessors as f64,
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
        // What does not fit the cache comes from memory, by its own sectors.
        let hit = (0.7 * self.cache_bytes / all.max(1.0)).min(1.0);
        let rate = 1.0 / (hit / self.cache + (1.0 - hit) / (0.5 * self.memory));
        self.problem.nnz as f64 * sectors / rate
    }

    pub(super) fn seconds(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let (nnz, width) = (p.nnz as f64, p.width.max(1) as f64);
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
            Method::RowsOne => {
                let all = p.cols as f64 * size;
                let side_by_side = p.layout == DenseLayout::Columns && p.width > 1;
                let all = if side_by_side { all * width } else { all };
                let one = matrix.max(self.accesses(size, all)) + self.long_row(1.0);
                one * width
            }
            Method::RowsWide | Method::RowsShort | Method::RowsSplit => {
                let (_, lanes) = lanes(p.dtype, block as usize, block as usize, &[]);
                let all = p.cols as f64 * block * size;
                let mean = nnz / p.stored.filled.max(1) as f64;
                let even = matrix.max(self.accesses(block * size, all));
                // A warp's groups of lanes share a row's entries.
                let groups = 32.0 / lanes as f64;
                blocks
                    * match job.method {
                        Method::RowsWide => {
                            even * (1.0 + 0.5 * groups / mean) + self.long_row(groups)
                        }
                        Method::RowsShort => even * (1.0 + mean / 64.0) + self.long_row(1.0 / 8.0),
                        _ => even * (1.1 + 0.5 * groups / mean) + 2.0 * LAUNCH,
                    }
            }
            Method::Strips => {
                let pieces = (p.strips() * p.rows) as f64;
                let by_pieces = pieces * 30e-9 / self.multiprocessors;
                width * (matrix / 0.8).max(by_pieces) + self.joins(job)
            }
            Method::Scatter => {
                let (each, _) = match p.layout {
                    DenseLayout::Rows if job.block == 0 => (1, 1),
                    _ => lanes(p.dtype, block as usize, block as usize, &[]),
                };
                // Atomics a second, by how many neighbours each takes.
                let rate = match each {
                    4 => 150e9,
                    2 => 290e9,
                    _ => 95e9,
                } * self.scale;
                blocks * matrix.max(nnz * (block / each as f64) / rate) + LAUNCH
            }
            Method::StripsScatter => {
                width * matrix.max(nnz / (330e9 * self.scale)) + self.joins(job)
            }
            Method::StripsOrdered => {
                let pieces = (p.strips() * p.rows) as f64;
                let busy = (job.parts * p.strips()) as f64 / self.multiprocessors;
                let by_pieces = pieces * 60e-9 / self.multiprocessors / busy.min(1.0);
                width * (matrix / 0.5).max(by_pieces) + self.joins(job)
            }
            Method::RowsOrdered => {
                let range = super::scatter::range(p) as f64;
                let ranges = (p.cols as f64 / range).ceil();
                let warps = (job.parts as f64 * ranges).min(self.multiprocessors * 8.0);
                let rows = ranges * p.rows as f64;
                width * (rows * 60e-9 + nnz * 3e-9) / warps.max(1.0) + self.joins(job)
            }
            Method::Sampled => {
                let sides = (p.rows + p.cols) as f64 * width * size;
                let reads = match p.layout {
                    DenseLayout::Columns => self.accesses(width * size, sides),
                    DenseLayout::Rows => width * self.accesses(size, sides),
                };
                matrix.max(reads) + nnz * size / self.memory
            }
            Method::Library(index) => {
                blocks * self.library(index, block, job.block > 0) / self.scale
            }
        };
        LAUNCH + link.max(once) + moved
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
    fn library(&self, index: u8, vectors: f64, side_by_side: bool) -> f64 {
        let p = &self.problem;
        let entries = p.nnz as f64 / 295.68e6;
        let apart = p.layout == DenseLayout::Rows && !side_by_side && p.width > 1;
        let milliseconds = match (p.scatters, p.width == 1, index) {
            (false, true, _) => 2.15,
            (true, true, _) => 3.25,
            (false, false, 0) if p.is_half() => 2.2 + 0.101 * vectors,
            (false, false, 0) => 1.4 * vectors,
            (false, false, 1) => 13.0 + 0.13 * vectors,
            (false, false, _) => 2.2 + 0.101 * vectors,
            (true, false, 0) => 2.85 * vectors,
            (true, false, _) => 11.2 + 0.364 * vectors,
        };
        let slower = if apart { 4.0 } else { 1.0 };
        entries * milliseconds * 1e-3 * slower + 2.0 * LAUNCH
    }
}
