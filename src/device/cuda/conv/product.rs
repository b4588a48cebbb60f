//! Convolutions as matrix products through cuBLAS. For one tap and stride 1 the operands are products'
//! operands already; else the columns that each output sees are written out first (*unfold*). Either
//! sample by sample, as one strided batch, or *packed*: the samples of a chunk side by side in one
//! matrix, which is what short lengths need.
//!
//! With `P = W·X` for the packed forms (`X [C_in/g·K, samples·L_out]` for each group): forward is
//! `Y = W·X`, the input gradient `Wᵀ·dY` folded back, the weight gradient `dY·Xᵀ`.

use super::super::Cuda;
use super::super::cublas::{Operand, Product};
use super::super::gemm::LARGE_WORKSPACE;
use super::cost::Cost;
use super::unfold::Held;
use super::{Addresses, MOST_HALF_CHUNKS, Question, chunks, code, fitting_chunk, layout, unfold};
use crate::device::spec::ConvPass;
use crate::error::Result;
use crate::plan::Candidate;

/// How the operands reach the product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// As they are, a product a sample.
    PointwiseSamples,
    /// Samples side by side.
    PointwisePacked,
    /// Columns written out, a product a sample.
    UnfoldSamples,
    /// Columns written out, samples side by side.
    UnfoldPacked,
}

const FORMS: [Form; 4] =
    [Form::PointwiseSamples, Form::PointwisePacked, Form::UnfoldSamples, Form::UnfoldPacked];

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::PointwiseSamples => "cuBLAS pointwise",
            Form::PointwisePacked => "cuBLAS pointwise, packed",
            Form::UnfoldSamples => "unfold + cuBLAS",
            Form::UnfoldPacked => "unfold + cuBLAS, packed",
        }
    }

    pub(super) fn packed(self) -> bool {
        matches!(self, Form::PointwisePacked | Form::UnfoldPacked)
    }

    pub(super) fn unfolds(self) -> bool {
        matches!(self, Form::UnfoldSamples | Form::UnfoldPacked)
    }
}

/// A form with its chunk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Method {
    pub(super) form: Form,
    /// Samples at a time.
    pub(super) chunk: usize,
    /// Bytes that cuBLAS gets beside the device's scratch.
    pub(super) library: u64,
}

/// The products of one chunk: the same one `count` times, moving on by a sample or by a group.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Calls {
    pub(super) product: Product,
    pub(super) count: usize,
    by_sample: bool,
}

/// Calls of the library in one operation, past which their launches would be most of the time.
const MOST_CALLS: usize = 256;

impl Method {
    /// Elements of the columns (or the packed `x`) and of the packed `y` of a chunk.
    fn staged(&self, question: &Question<'_>, samples: usize) -> Option<(usize, usize)> {
        let g = question.geometry;
        let columns = match self.form {
            Form::PointwiseSamples => 0,
            _ => g.in_channels.checked_mul(g.kernel)?.checked_mul(g.out_length)?,
        };
        let results = if self.form.packed() { question.y_sample() } else { 0 };
        Some((columns.checked_mul(samples)?, results.checked_mul(samples)?))
    }

    fn workspace(&self, question: &Question<'_>) -> Option<u64> {
        let (columns, results) = self.staged(question, self.chunk)?;
        let bytes = |elements: usize| {
            elements.checked_mul(question.dtype.size())?;
            Some(question.bytes(elements))
        };
        bytes(columns)?.checked_add(bytes(results)?)?.checked_add(self.library)
    }

    /// The products of one chunk.
    pub(super) fn calls(&self, question: &Question<'_>, samples: usize) -> Calls {
        let g = question.geometry;
        let (rows, depth) = (g.out_channels / g.groups, g.in_channels / g.groups * g.kernel);
        let length = if self.form.packed() { samples * g.out_length } else { g.out_length };
        // One batch runs over whichever there is more of, the groups or the samples.
        let over_groups = self.form.packed() || g.groups > samples || self.sums(question);
        let (batch, count, by_sample) = match (self.form.packed(), over_groups) {
            (true, _) => (g.groups, 1, false),
            (false, true) => (g.groups, samples, true),
            (false, false) => (samples, g.groups, false),
        };
        let w = |rows_by_depth: bool| {
            let stride = if over_groups { rows * depth } else { 0 };
            if rows_by_depth {
                Operand::rows(depth, stride)
            } else {
                Operand::columns(depth, stride)
            }
        };
        let per_call = |lines: usize| if over_groups { lines } else { lines * g.groups } * length;
        let (x, y) = (per_call(depth), per_call(rows));
        let (m, n, k, a, b, c) = match question.pass {
            ConvPass::Forward => {
                (rows, length, depth, w(true), Operand::rows(length, x), Operand::rows(length, y))
            }
            ConvPass::InputGradient => {
                (depth, length, rows, w(false), Operand::rows(length, y), Operand::rows(length, x))
            }
            ConvPass::WeightGradient => (
                rows,
                depth,
                length,
                Operand::rows(length, y),
                Operand::columns(length, x),
                Operand::rows(depth, rows * depth),
            ),
        };
        let (dtype, tf32) = (question.dtype, question.tf32);
        let product = Product { batch, m, n, k, a, b, c, beta: 0.0, dtype, tf32 };
        Calls { product, count, by_sample }
    }

    /// Whether the calls add up in one result.
    fn sums(&self, question: &Question<'_>) -> bool {
        question.pass == ConvPass::WeightGradient
    }

    /// Times that the weight gradient is rounded on its way.
    fn additions(&self, question: &Question<'_>) -> usize {
        let chunks = question.geometry.batch.div_ceil(self.chunk);
        if self.form.packed() { chunks } else { question.geometry.batch }
    }

    fn allowed(&self, question: &Question<'_>) -> bool {
        let g = question.geometry;
        let calls = self.calls(question, self.chunk);
        let summed_in_halves = self.sums(question) && question.dtype.size() == 2;
        calls.product.fits()
            && calls.count.saturating_mul(g.batch.div_ceil(self.chunk)) <= MOST_CALLS
            && (!summed_in_halves || self.additions(question) <= MOST_HALF_CHUNKS)
    }
}

pub(super) fn candidates(
    cuda: &Cuda,
    question: &Question<'_>,
    cost: &Cost,
    cap: u64,
) -> Vec<Candidate> {
    let g = question.geometry;
    let multiprocessors = cuda.gpu().properties.multiprocessors;
    let pointwise = g.kernel == 1 && g.stride == 1 && g.pad_left == 0 && g.pad_right == 0;
    let mut all = Vec::new();
    for form in FORMS.into_iter().filter(|form| form.unfolds() != pointwise) {
        let whole = Method { form, chunk: g.batch, library: 0 };
        let mut offer = |method: Method| {
            let Some(workspace) = method.workspace(question) else { return };
            if method.allowed(question) {
                all.push(candidate(question, cost, method, workspace));
            }
            // Sums cut into pieces need room, and pay where there are few tiles.
            let product = method.calls(question, method.chunk).product;
            let more = Method { library: LARGE_WORKSPACE, ..method };
            let room = workspace.saturating_add(LARGE_WORKSPACE) <= cap;
            if room && product.few_tiles(multiprocessors) && more.allowed(question) {
                all.push(candidate(question, cost, more, workspace + LARGE_WORKSPACE));
            }
        };
        offer(whole);
        if whole.workspace(question).is_none_or(|bytes| bytes > cap) {
            let chunk =
                fitting_chunk(g.batch, cap, |chunk| Method { chunk, ..whole }.workspace(question));
            if let Some(chunk) = chunk.filter(|&chunk| chunk < g.batch) {
                offer(Method { chunk, ..whole });
            }
        }
    }
    all
}

fn candidate(question: &Question<'_>, cost: &Cost, method: Method, workspace: u64) -> Candidate {
    let mut split = match method.chunk < question.geometry.batch {
        true => format!("{} samples at a time", method.chunk),
        false => String::new(),
    };
    let mut class = method.form.name().to_owned();
    if method.library > 0 {
        let comma = if split.is_empty() { "" } else { ", " };
        split += &format!("{comma}{} MiB for cuBLAS", method.library >> 20);
        class += ", large";
    }
    let calls = method.calls(question, method.chunk);
    let form = FORMS.iter().position(|&form| form == method.form).unwrap_or(0);
    Candidate {
        name: method.form.name().into(),
        split,
        workspace,
        seconds: cost.product(&class, &method, &calls),
        deterministic: true,
        code: code::PRODUCT,
        params: [form, method.chunk, method.library as usize, question.rounding()],
    }
}

pub(super) fn run(
    cuda: &Cuda,
    question: &Question<'_>,
    candidate: &Candidate,
    at: Addresses,
    workspace: u64,
) -> Result<()> {
    let [form, chunk, library, _] = candidate.params;
    let method = Method { form: FORMS[form.min(3)], chunk, library: library as u64 };
    let (columns, results) = method.staged(question, chunk).unwrap_or_default();
    let results_at = workspace + question.bytes(columns);
    let library_at = results_at + question.bytes(results);
    let job = Job {
        cuda,
        question,
        method,
        at,
        columns: workspace,
        results: results_at,
        own: (library_at, library),
    };
    for (start, samples) in chunks(question.geometry.batch, chunk) {
        job.chunk(start, samples)?;
    }
    let g = question.geometry;
    if at.bias != 0 && !method.form.packed() {
        layout::add_bias(
            cuda,
            question.dtype,
            g.batch,
            g.out_channels,
            g.out_length,
            at.bias,
            at.y,
        )?;
    }
    Ok(())
}

/// A candidate on its way: where its operands and the parts of its workspace are.
struct Job<'a> {
    cuda: &'a Cuda,
    question: &'a Question<'a>,
    method: Method,
    at: Addresses,
    columns: u64,
    results: u64,
    own: (u64, usize),
}

impl Job<'_> {
    fn chunk(&self, start: usize, samples: usize) -> Result<()> {
        let (question, g) = (self.question, self.question.geometry);
        let (x, y) = (question.x_at(self.at.x, start), question.y_at(self.at.y, start));
        let form = self.method.form;
        let columns = if form == Form::PointwiseSamples { x } else { self.columns };
        let results = if form.packed() { self.results } else { y };
        if question.pass != ConvPass::InputGradient {
            self.gather(samples, x, columns)?;
        }
        if question.pass != ConvPass::Forward && form.packed() {
            let (channels, length) = (g.out_channels, g.out_length);
            unfold::pack(self.cuda, question.dtype, samples, channels, length, y, results)?;
        }
        self.multiply(start, samples, columns, results)?;
        if question.pass == ConvPass::Forward && form.packed() {
            let (channels, length, bias) = (g.out_channels, g.out_length, self.at.bias);
            unfold::unpack(self.cuda, question.dtype, samples, channels, length, results, bias, y)?;
        }
        if question.pass == ConvPass::InputGradient {
            self.scatter(samples, columns, x)?;
        }
        Ok(())
    }

    /// Where unfolded columns lie.
    fn held(&self, samples: usize) -> Held {
        let g = self.question.geometry;
        if self.method.form.packed() {
            Held::packed(g, samples)
        } else {
            Held::by_sample(g, samples)
        }
    }

    /// `x` to columns.
    fn gather(&self, samples: usize, x: u64, columns: u64) -> Result<()> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        match self.method.form {
            Form::PointwiseSamples => Ok(()),
            Form::PointwisePacked => {
                unfold::pack(self.cuda, dtype, samples, g.in_channels, g.in_length, x, columns)
            }
            Form::UnfoldSamples | Form::UnfoldPacked => {
                unfold::unfold(self.cuda, g, dtype, self.held(samples), x, columns)
            }
        }
    }

    /// Gradients of columns to that of `x`.
    fn scatter(&self, samples: usize, columns: u64, x: u64) -> Result<()> {
        let (g, dtype) = (self.question.geometry, self.question.dtype);
        match self.method.form {
            Form::PointwiseSamples => Ok(()),
            Form::PointwisePacked => {
                unfold::unpack(self.cuda, dtype, samples, g.in_channels, g.in_length, columns, 0, x)
            }
            Form::UnfoldSamples | Form::UnfoldPacked => {
                unfold::fold(self.cuda, g, dtype, self.held(samples), columns, x)
            }
        }
    }

    fn multiply(&self, start: usize, samples: usize, columns: u64, results: u64) -> Result<()> {
        let (question, g) = (self.question, self.question.geometry);
        let Calls { product, count, by_sample } = self.method.calls(question, samples);
        let size = question.dtype.size();
        let depth = g.in_channels / g.groups * g.kernel;
        let rows = g.out_channels / g.groups;
        let length = g.out_length;
        for call in 0..count {
            let step = |lines: usize| {
                let lines = if by_sample { lines * g.groups } else { lines };
                (call * lines * length * size) as u64
            };
            let w = if by_sample { 0 } else { call * rows * depth * size };
            let (x, y) = (columns + step(depth), results + step(rows));
            let w = self.at.w + w as u64;
            match question.pass {
                ConvPass::Forward => self.cuda.product(&product, w, x, y, self.own)?,
                ConvPass::InputGradient => self.cuda.product(&product, w, y, x, self.own)?,
                ConvPass::WeightGradient => {
                    let first = start == 0 && call == 0;
                    let product = Product { beta: if first { 0.0 } else { 1.0 }, ..product };
                    self.cuda.product(&product, y, x, w, self.own)?;
                }
            }
        }
        Ok(())
    }
}
