//! Which candidates there are for a product, with their workspace and predicted time. One without
//! workspace is always among them, and one without workspace whose runs repeat bitwise.

use super::cost::Cost;
use super::job::{Job, Method, Problem};
use super::scatter::range;
use super::{library, strips};
use crate::device::cuda::Cuda;
use crate::device::spec::{DenseLayout, Form, SparseProduct, SparseSpec};
use crate::dtype::DType;
use crate::plan::Candidate;
use std::borrow::Cow;

/// Vectors that are brought side by side at a time: more gains nothing.
const BLOCK: usize = 128;
/// Entries of a warp where work is shared by entries.
const SPLIT: usize = 1024;
/// Bytes of a chunk of a streamed matrix: large enough that starting a copy is nothing.
const CHUNK: usize = 32 << 20;
/// The smallest chunk that is worth a copy.
const SMALLEST_CHUNK: usize = 64 << 10;

struct Offer<'a> {
    cuda: &'a Cuda,
    problem: Problem,
    cost: Cost<'a>,
    cap: u64,
    stored_transpose: bool,
    list: &'a mut Vec<Candidate>,
}

pub(super) fn offer(cuda: &Cuda, spec: &SparseSpec, dtype: DType, cap: u64) -> Vec<Candidate> {
    let mut list = Vec::new();
    for stored_transpose in [false, true] {
        if stored_transpose
            && (spec.transpose.is_none() || spec.product != SparseProduct::Transposed)
        {
            continue;
        }
        let problem = Problem::new(spec, dtype, stored_transpose);
        let cost = Cost::new(cuda, problem);
        let mut offer = Offer { cuda, problem, cost, cap, stored_transpose, list: &mut list };
        if spec.product == SparseProduct::Sampled {
            offer.streams(Job::new(Method::Sampled));
        } else if problem.scatters {
            offer.scatters();
        } else {
            offer.gathers();
        }
    }
    list
}

impl Offer<'_> {
    fn push(&mut self, job: Job) {
        self.push_named(job, name(job.method).into(), job.method.repeats());
    }

    fn push_named(&mut self, job: Job, name: Cow<'static, str>, deterministic: bool) {
        let job = Job { stored_transpose: self.stored_transpose, ..job };
        let name = if self.stored_transpose {
            Cow::Owned(format!("stored transpose, {name}"))
        } else {
            name
        };
        let (code, params) = job.encode();
        self.list.push(Candidate {
            name,
            split: self.split(&job),
            workspace: job.workspace(&self.problem),
            seconds: self.cost.seconds(&job),
            deterministic,
            code,
            params,
        });
    }

    fn split(&self, job: &Job) -> String {
        let mut words = Vec::new();
        if job.block > 0 && job.block < self.problem.width {
            words.push(format!("{} vectors at a time", job.block));
        }
        if job.parts > 1 && !matches!(job.method, Method::Library(_) | Method::RowsSplit) {
            words.push(format!("{} parts", job.parts));
        }
        if job.chunk > 0 {
            words.push(format!("chunks of {} KiB", job.chunk >> 10));
        }
        words.join(", ")
    }

    fn fits(&self, job: &Job) -> bool {
        job.workspace(&self.problem) <= self.cap
    }

    /// A job that brings vectors side by side: for all of them (or as many as gain), and where that
    /// is over the cap the most that fit.
    fn blocks(&mut self, job: Job, mut push: impl FnMut(&mut Self, Job)) {
        let width = self.problem.width.max(1);
        // Even blocks, whose vectors can be taken four at a time.
        let even = |most: usize| {
            let block = width.div_ceil(width.div_ceil(most.max(1)));
            if block < width { block.next_multiple_of(4).min(most) } else { block }
        };
        let whole = Job { block: even(BLOCK.min(width)), ..job };
        push(self, whole);
        if self.fits(&whole) {
            return;
        }
        let (mut low, mut high) = (0, whole.block);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.fits(&Job { block: middle, ..job }) {
                low = middle;
            } else {
                high = middle;
            }
        }
        let least = if job.method == Method::Scatter { 1 } else { 2 };
        if low >= least {
            let rounded = if low >= 4 { low & !3 } else { low };
            push(self, Job { block: even(rounded), ..job });
        }
    }

    /// A job as it is; of a streamed matrix by chunks, and by reading the host's memory.
    fn streams(&mut self, job: Job) {
        self.push(job);
        if self.problem.stored.form != Form::Streamed {
            return;
        }
        let beside = job.workspace(&self.problem);
        let room = usize::try_from(self.cap.saturating_sub(beside)).unwrap_or(usize::MAX) / 2;
        let whole = self.cost.matrix_bytes() as usize;
        // No larger than half of what there is, so that copies and products overlap.
        let chunk = CHUNK.min(whole.div_ceil(2).max(SMALLEST_CHUNK)) & !255;
        self.push(Job { chunk, ..job });
        if chunk > room && room >= SMALLEST_CHUNK {
            self.push(Job { chunk: room & !255, ..job });
        }
    }

    fn gathers(&mut self) {
        let problem = self.problem;
        let streamed = problem.stored.form == Form::Streamed;
        self.streams(Job::new(Method::RowsOne));
        let apart = problem.vectors_apart();
        let side_by_side = problem.layout == DenseLayout::Columns && problem.width > 1;
        let mut methods = Vec::new();
        if apart || side_by_side {
            methods.push(Method::RowsWide);
        }
        if problem.stored.form == Form::Csr {
            if apart || side_by_side {
                methods.push(Method::RowsShort);
            }
            methods.push(Method::RowsSplit);
        }
        for method in methods {
            let parts = if method == Method::RowsSplit { SPLIT } else { 1 };
            let job = Job { parts, ..Job::new(method) };
            match (apart, streamed) {
                (false, true) => self.streams(job),
                (false, false) => self.push(job),
                (true, true) => self.blocks(job, |offer, job| offer.streams(job)),
                (true, false) => self.blocks(job, |offer, job| offer.push(job)),
            }
        }
        if self.strips_fit() && !problem.apart {
            let groups = strips::groups(self.cuda, &problem);
            self.push(Job { parts: groups, ..Job::new(Method::Strips) });
            if groups > 1 {
                self.push(Job::new(Method::Strips));
            }
        }
        self.library();
    }

    /// Whether there are strips, no wider than this device takes.
    fn strips_fit(&self) -> bool {
        let bytes = strips::bytes(&self.problem);
        bytes > 0 && bytes <= self.cuda.shared_per_block()
    }

    fn scatters(&mut self) {
        let problem = self.problem;
        let scatter = Job::new(Method::Scatter);
        if !problem.is_half() {
            self.streams(scatter);
        }
        if problem.is_half() || problem.vectors_apart() {
            self.blocks(scatter, |offer, job| offer.streams(job));
        }
        if self.strips_fit() {
            let strips = problem.strips().max(1);
            let most = problem.rows.div_ceil(ROWS_OF_PART).max(1);
            let parts = |threads| {
                let blocks = strips::blocks_at_once(self.cuda, &problem, threads);
                (blocks / strips).clamp(1, most)
            };
            let (many, one) = (parts(strips::THREADS), parts(32));
            if !problem.apart {
                self.parts(Method::StripsScatter, many);
            }
            self.parts(Method::StripsOrdered, one);
        }
        match problem.stored.form {
            Form::Csr => {
                let ranges = problem.cols.div_ceil(range(&problem)).max(1);
                let blocks = self.cuda.gpu().properties.multiprocessors * 8;
                let most = problem.rows.div_ceil(ROWS_OF_PART).max(1);
                let parts = (blocks / ranges).clamp(1, most);
                self.parts(Method::RowsOrdered, parts);
            }
            Form::Streamed => {
                let job = Job::new(Method::RowsOrdered);
                match problem.is_half() {
                    // From chunk to chunk in the type of sums; in one go without a workspace.
                    true => {
                        self.push(job);
                        self.blocks(job, |offer, job| offer.streams(job));
                    }
                    false => self.streams(job),
                }
            }
            Form::Tiled { .. } => {}
        }
        self.library();
    }

    /// In `parts` parts and whole, and where the parts' sums are over the cap in as many as fit.
    fn parts(&mut self, method: Method, parts: usize) {
        let job = Job { parts, ..Job::new(method) };
        self.push(job);
        if parts > 1 {
            self.push(Job { parts: 1, ..job });
            let mut fewer = parts;
            while fewer > 1 && !self.fits(&Job { parts: fewer, ..job }) {
                fewer /= 2;
            }
            if (2..parts).contains(&fewer) {
                self.push(Job { parts: fewer, ..job });
            }
        }
    }

    fn library(&mut self) {
        let problem = self.problem;
        if problem.stored.form != Form::Csr {
            return;
        }
        let (width, in_columns) = (problem.width, problem.layout == DenseLayout::Columns);
        for taken in library::algorithms(self.cuda, &problem, width, in_columns) {
            let method = Method::Library(taken.index);
            let job = Job { parts: taken.buffer, ..Job::new(method) };
            let repeats = taken.offer.deterministic && !problem.scatters;
            self.push_named(job, taken.offer.name.into(), repeats);
        }
        // The library is slow where vectors lie apart; a result to be added to would take another
        // pass.
        if !problem.vectors_apart() || problem.accumulate {
            return;
        }
        let block = width.min(BLOCK);
        for taken in library::algorithms(self.cuda, &problem, block, true) {
            let method = Method::Library(taken.index);
            let job = Job { parts: taken.buffer, ..Job::new(method) };
            let repeats = taken.offer.deterministic && !problem.scatters;
            let name = format!("{}, vectors side by side", taken.offer.name);
            self.blocks(job, |offer, job| {
                offer.push_named(job, name.clone().into(), repeats);
            });
        }
    }
}

/// Rows that a part of a scattering kernel should at least have.
const ROWS_OF_PART: usize = 256;

fn name(method: Method) -> &'static str {
    match method {
        Method::RowsOne => "rows",
        Method::RowsWide => "rows, vectors side by side",
        Method::RowsShort => "short rows, vectors side by side",
        Method::RowsSplit => "equal shares of the entries",
        Method::Strips => "strips in shared memory",
        Method::Scatter => "atomics",
        Method::StripsScatter => "strips in shared memory, atomics",
        Method::StripsOrdered => "strips in shared memory, in order",
        Method::RowsOrdered => "ranges in shared memory, in order",
        Method::Sampled => "sampled",
        Method::Library(_) => "cuSPARSE",
    }
}
