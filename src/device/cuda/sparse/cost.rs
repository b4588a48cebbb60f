//! Predicted times of sparse products: a sum of what a method does (passes, bytes, accesses to the dense
//! side, rows, atomics, …), each counted and times what one takes. The factors were fitted to every
//! candidate's time on eight kinds of matrices on an H200 (`cargo bench --bench sparse_step --
//! --products`), and go with a device's memory rate.

use super::job::{Job, Method, Problem, lanes, sum_size};
use super::strips;
use crate::device::cuda::Cuda;
use crate::device::cuda::rates::{LAUNCH, Rates};
use crate::device::spec::Form;

/// Bytes a second between the host and the device.
const LINK: f64 = 50e9;
/// Bytes that an access to the dense side brings at least.
const SECTOR: f64 = 32.0;

/// What is counted, over all passes through the matrix: passes; bytes of the matrix; accesses to
/// sectors of the dense side that are not in the first cache, and of those the ones that the second
/// does not hold; entries; rows in units of a warp; entries of the longest row; atomics; bytes that are
/// moved to lie side by side; entries over the lanes that share one; rows times the groups of lanes of
/// a warp; atomics to few addresses; entries of the longest row over the lanes that share it; turns of
/// warps whose lanes have rows of their own.
type Counts = [f64; 14];

/// Seconds of one of each.
type Factors = [f64; 14];

const ROWS: Factors = [
    5e-6, 2.1e-13, 3.66e-12, 0.0, 1.6e-13, 2.36e-10, 1.2e-8, 7.4e-13, 0.0, 0.0, 0.0, 0.0, 4.2e-8,
    2.6e-13,
];
const WIDE: Factors = [
    5e-6, 0.0, 1.76e-12, 0.0, 1.2e-12, 3.67e-10, 3.14e-8, 8.1e-13, 9.5e-13, 3.7e-12, 1.4e-12, 0.0,
    0.0, 0.0,
];
const SHORT: Factors =
    [2.5e-5, 0.0, 0.0, 0.0, 6.5e-12, 3.3e-12, 1.33e-7, 0.0, 0.0, 1.1e-12, 0.0, 0.0, 0.0, 2.6e-11];
const SPLIT: Factors = [
    2e-5, 0.0, 1.05e-12, 0.0, 3.9e-12, 1.9e-11, 1.6e-9, 1.6e-12, 3e-12, 0.0, 8.8e-12, 0.0, 0.0, 0.0,
];
const SCATTER: Factors = [
    2e-5, 0.0, 8e-12, 2.2e-11, 2.6e-12, 0.0, 0.0, 2.4e-13, 7.3e-12, 0.0, 3.4e-12, 3.7e-11, 0.0, 0.0,
];
const SPMV_1: Factors =
    [3.7e-5, 1.8e-13, 4.5e-12, 0.0, 1e-13, 2.9e-12, 2e-10, 4.4e-13, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
const SPMV_2: Factors =
    [4.1e-5, 3.5e-13, 3.3e-12, 0.0, 0.0, 1.8e-12, 3e-10, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
/// Of halves, which it does not read in less time.
const SPMV_2_HALF: Factors =
    [4.1e-5, 3.5e-13, 3.3e-12, 0.0, 7e-13, 1.8e-12, 3e-10, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
const SPMV_TRANSPOSED: Factors = [
    6.1e-5, 7.8e-14, 7.7e-12, 0.0, 3.2e-13, 0.0, 1.9e-10, 1.4e-12, 0.0, 0.0, 0.0, 8.3e-11, 0.0, 0.0,
];
const SPMM_1: Factors =
    [2e-5, 0.0, 3.5e-12, 0.0, 7.6e-12, 0.0, 4.9e-10, 6.3e-12, 1.05e-12, 0.0, 0.0, 0.0, 0.0, 0.0];
const SPMM_2: Factors = [
    5e-6, 3.2e-13, 0.0, 0.0, 6.8e-12, 1.8e-11, 1.8e-10, 1.7e-11, 1.8e-12, 9.3e-12, 5.8e-12, 0.0,
    0.0, 0.0,
];
const SPMM_3: Factors = [
    5e-5, 1.5e-13, 0.0, 0.0, 8.1e-12, 9.5e-11, 2.4e-9, 5.1e-13, 6.9e-13, 6.8e-13, 0.0, 0.0, 0.0,
    0.0,
];
const SPMM_1_APART: Factors =
    [5e-6, 8.6e-13, 5.2e-12, 1.3e-11, 0.0, 5.9e-12, 3e-10, 0.0, 0.0, 2e-11, 0.0, 0.0, 0.0, 0.0];
const SPMM_2_APART: Factors = [
    5e-6, 1.4e-12, 3.3e-12, 1.6e-11, 3.2e-12, 5.9e-11, 3e-10, 1.8e-13, 0.0, 3.8e-11, 0.0, 0.0, 0.0,
    0.0,
];
const SPMM_3_APART: Factors =
    [5e-6, 5.4e-13, 4e-12, 9.8e-12, 0.0, 1.04e-10, 2.7e-9, 3e-12, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
const SPMM_TRANSPOSED_1: Factors =
    [2.4e-5, 0.0, 0.0, 0.0, 7.9e-12, 0.0, 2.3e-10, 2.2e-11, 0.0, 0.0, 0.0, 3e-11, 0.0, 0.0];
const SPMM_TRANSPOSED_2: Factors = [
    5e-6, 0.0, 0.0, 0.0, 1.2e-11, 3.3e-11, 0.0, 1.2e-11, 3.2e-12, 1.7e-11, 1.1e-11, 3e-11, 0.0, 0.0,
];
const SPMM_TRANSPOSED_1_APART: Factors =
    [5e-6, 0.0, 6.9e-12, 9.7e-12, 0.0, 0.0, 1e-10, 0.0, 0.0, 4.5e-11, 0.0, 7.6e-11, 0.0, 0.0];
const SPMM_TRANSPOSED_2_APART: Factors =
    [5e-6, 0.0, 0.0, 5.3e-11, 8.7e-12, 0.0, 3e-10, 0.0, 0.0, 2.9e-11, 0.0, 6.3e-11, 0.0, 0.0];

/// Seconds that a piece of a row in a strip takes beside its entries: where a few lanes go through all
/// of a row's, where a warp does, and in the kernels of the strips.
const PIECE: f64 = 1.4e-12;
const PIECE_OF_WARP: f64 = 5e-11;
const PIECE_OF_STRIP: f64 = 1e-11;
/// The same on the way back.
const PIECE_OF_STRIP_BACK: f64 = 3e-11;
/// How many times longer halves take where a block has strip after strip, whose sums it adds in memory.
const HALVES_ADDED: f64 = 1.45;
/// Seconds of a byte that the kernels of the strips read.
const STRIP_BYTE: f64 = 3.1e-13;
/// Seconds of an atomic in shared memory.
const SHARED_ATOMIC: f64 = 3.4e-12;
/// Seconds that a warp takes for a piece in order.
const PIECE_IN_ORDER: f64 = 1.5e-7;
/// Seconds that a warp takes to find where a range begins in a row, and for 32 entries there.
const SEARCH: f64 = 0.2e-6;
const TURN: f64 = 0.75e-6;

pub(super) struct Cost<'a> {
    cuda: &'a Cuda,
    problem: Problem,
    /// Bytes a second of the memory.
    memory: f64,
    /// The device's memory rate over that of the one that was measured.
    scale: f64,
}

impl<'a> Cost<'a> {
    pub(super) fn new(cuda: &'a Cuda, problem: Problem) -> Cost<'a> {
        let memory = Rates::of(&cuda.gpu().properties).bytes;
        Cost { cuda, problem, memory, scale: memory / 4.24e12 }
    }

    /// Bytes of the matrix that a product reads.
    pub(super) fn matrix_bytes(&self) -> f64 {
        let p = &self.problem;
        p.stored.form.bytes(p.rows, p.cols, p.nnz, p.dtype) as f64
    }

    /// Blocks of `threads` threads with a strip each that are at work at a time.
    fn strips_at_once(&self, threads: usize) -> f64 {
        strips::blocks_at_once(self.cuda, &self.problem, threads) as f64
    }

    fn pieces(&self) -> f64 {
        self.problem.strips() as f64 * self.problem.rows as f64
    }

    pub(super) fn seconds(&self, job: &Job) -> f64 {
        let link = match (self.problem.stored.form, job.chunk) {
            (Form::Streamed, 0) => self.matrix_bytes() / (0.6 * LINK),
            // Chunks overlap with the products, but for the first.
            (Form::Streamed, chunk) => {
                let chunks = (self.matrix_bytes() / chunk as f64).max(1.0);
                self.matrix_bytes() / LINK + chunks * 4.0 * LAUNCH + chunk as f64 / LINK
            }
            _ => 0.0,
        };
        let once = match job.method {
            Method::Strips => self.strips(job),
            Method::StripsScatter => self.strips_scatter(job),
            Method::StripsOrdered => self.strips_ordered(job),
            Method::RowsOrdered => self.ranges(job),
            _ => self.counted(job),
        };
        LAUNCH + link.max(once / self.scale)
    }

    fn counted(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let (factors, piece) = match job.method {
            Method::RowsOne => (&ROWS, PIECE),
            Method::RowsWide => (&WIDE, PIECE_OF_WARP),
            Method::RowsShort => (&SHORT, 0.0),
            Method::RowsSplit => (&SPLIT, 0.0),
            Method::Library(index) => (self.library(index, job.block > 0), 0.0),
            _ => (&SCATTER, PIECE_OF_WARP),
        };
        let counts = self.counts(job);
        let sum: f64 = std::iter::zip(factors, counts).map(|(factor, count)| factor * count).sum();
        sum + counts[0] * self.pieces() * piece + p.width as f64 * 1e-12
    }

    fn counts(&self, job: &Job) -> Counts {
        let p = &self.problem;
        let (nnz, rows, width) = (p.nnz as f64, p.rows as f64, p.width.max(1));
        let library = matches!(job.method, Method::Library(_));
        // Vectors of a pass, and whether the library takes them where they lie apart.
        let side_by_side = job.block > 0 || !p.vectors_apart();
        let apart = library && !side_by_side;
        let block = match job.block {
            0 if side_by_side || library => width,
            0 => 1,
            block => block.min(width),
        };
        let block = if job.method == Method::RowsOne { 1 } else { block };
        let passes = width.div_ceil(block) as f64;
        let element = if p.scatters { sum_size(p.dtype) } else { p.dtype.size() } as f64;
        let (each, lanes) = lanes(p.dtype, block, block, &[]);
        let (lanes, atomics) = (lanes as f64, block as f64 / each as f64);
        let fresh = |share: u16| f64::from(share) / f64::from(u16::MAX) * nnz;
        let accesses = if apart {
            fresh(p.stored.fresh_groups) * width as f64
        } else if block == 1 {
            fresh(p.stored.fresh_groups)
        } else {
            fresh(p.stored.fresh_columns) * (block as f64 * element / SECTOR).ceil()
        };
        let all = p.cols as f64 * block as f64 * element;
        let cache = self.cuda.gpu().properties.cache_bytes as f64;
        let miss = (1.0 - 0.8 * cache / all.max(1.0)).max(0.0);
        let filled = p.stored.filled.max(1) as f64;
        let mean = (nnz / filled).max(1.0);
        // Rows of a warp and the turns that one takes, where lanes have rows of their own.
        let of_row = super::gather::lanes_of_row(p) as f64;
        let (shared, of_warp, turns) = match job.method {
            Method::RowsOne => (of_row, 32.0 / of_row, mean / of_row),
            Method::RowsShort => (lanes, 32.0 / lanes, mean),
            _ => (lanes, 1.0, 0.0),
        };
        let some = 1.0 - (1.0 - (filled / rows.max(1.0)).min(1.0)).powf(of_warp);
        let warps = if job.method == Method::RowsOne { of_row / 32.0 } else { 1.0 };
        let moved = if job.block > 0 {
            let length = p.cols + if library { p.rows } else { 0 };
            2.0 * width as f64 * length as f64 * p.dtype.size() as f64
        } else {
            0.0
        };
        let few = if p.scatters { (4096.0 / p.cols.max(1) as f64).min(1.0) } else { 0.0 };
        let longest = p.stored.longest as f64;
        let one_pass = [
            1.0,
            self.matrix_bytes(),
            accesses,
            accesses * miss,
            nnz * if apart { width as f64 } else { 1.0 },
            rows * warps,
            longest,
            nnz * atomics,
            moved / passes,
            nnz / lanes,
            filled * 32.0 / lanes,
            nnz * atomics * few,
            longest / shared,
            rows / of_warp * some * turns,
        ];
        let mut counts = one_pass.map(|count| count * passes);
        if job.method == Method::RowsOne {
            // Vectors are at work together, so that the longest row is waited for once.
            (counts[6], counts[12]) = (one_pass[6], one_pass[12]);
        }
        counts
    }

    /// cuSPARSE's algorithm of this index for the product.
    fn library(&self, index: u8, side_by_side: bool) -> &'static Factors {
        let p = &self.problem;
        // Side by side, and apart.
        let (near, apart) = match (p.scatters, p.width == 1, index) {
            (false, true, 0) => return &SPMV_1,
            (false, true, _) if p.is_half() => return &SPMV_2_HALF,
            (false, true, _) => return &SPMV_2,
            (true, true, _) => return &SPMV_TRANSPOSED,
            (false, false, 0) if !p.is_half() => (&SPMM_1, &SPMM_1_APART),
            (false, false, 1) => (&SPMM_2, &SPMM_2_APART),
            (false, false, _) => (&SPMM_3, &SPMM_3_APART),
            (true, false, 0) => (&SPMM_TRANSPOSED_1, &SPMM_TRANSPOSED_1_APART),
            (true, false, _) => (&SPMM_TRANSPOSED_2, &SPMM_TRANSPOSED_2_APART),
        };
        if p.vectors_apart() && !side_by_side { apart } else { near }
    }

    fn strips(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let blocks = (strips::row_parts(self.cuda, p, job.parts) * job.parts) as f64;
        let busy = (blocks / self.strips_at_once(strips::THREADS)).min(1.0);
        let work = self.matrix_bytes() * STRIP_BYTE + self.pieces() * PIECE_OF_STRIP;
        let adds = p.is_half() && job.parts == 1 && p.strips() > 1;
        let work = if adds { work * HALVES_ADDED } else { work };
        // A long row is that of a few lanes.
        let longest = p.stored.longest as f64 / p.strips().max(1) as f64 * 1e-8;
        p.width as f64 * (work / busy + longest + LAUNCH) + self.joins(job)
    }

    fn strips_scatter(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let blocks = (job.parts * p.strips()) as f64;
        let busy = (blocks / self.strips_at_once(strips::THREADS)).min(1.0);
        let wide = if sum_size(p.dtype) == 8 { 1.35 } else { 1.0 };
        let work = p.nnz as f64 * SHARED_ATOMIC * wide + self.pieces() * PIECE_OF_STRIP_BACK;
        p.width as f64 * (work / busy.max(1e-3) + LAUNCH) + self.joins(job)
    }

    fn strips_ordered(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let warps = ((job.parts * p.strips()) as f64).clamp(1.0, self.strips_at_once(32));
        let rounds = 1.0 + strips::mean_piece(p) / 128.0;
        let turns = self.pieces() * rounds * PIECE_IN_ORDER / warps;
        let work = (self.matrix_bytes() * STRIP_BYTE).max(turns);
        p.width as f64 * (work + LAUNCH) + self.joins(job)
    }

    fn ranges(&self, job: &Job) -> f64 {
        let p = &self.problem;
        let range = super::scatter::range(p) as f64;
        let ranges = (p.cols as f64 / range).ceil().max(1.0);
        let multiprocessors = self.cuda.gpu().properties.multiprocessors as f64;
        let warps = (job.parts as f64 * ranges).clamp(1.0, multiprocessors * 8.0);
        let visits = ranges * p.rows as f64;
        // Rows that have entries in a range, and the turns that they take.
        let (nnz, filled) = (p.nnz as f64, ranges * p.stored.filled as f64);
        let turns = visits * SEARCH + filled.min(nnz).max(nnz / 32.0) * TURN;
        p.width as f64 * (turns / warps + LAUNCH) + self.joins(job)
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
}
