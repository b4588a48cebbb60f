//! Convolutions by cuDNN: every algorithm that it offers for a pass, channels first, and channels last
//! with the transposes counted; over the cap also in chunks of samples; and the tiled FFT in blocks of
//! taps, since its time grows faster than the kernel.
//!
//! The library pads both sides alike. Where a convolution does not, `x` is copied into the workspace
//! with its zeros (or its gradient copied out of there without them).

mod run;

pub(super) use run::run;

use super::cost::Cost;
use super::{MOST_HALF_CHUNKS, Question, chunks, code, fitting_chunk};
use crate::device::cuda::Cuda;
use crate::device::cuda::cudnn::{Cudnn, Lines, Math, Offer, Problem, algorithm_name};
use crate::device::spec::ConvPass;
use crate::dtype::DType;
use crate::plan::Candidate;

/// How an algorithm is run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Method {
    pub(super) algorithm: u32,
    pub(super) math: Math,
    pub(super) channels_last: bool,
    /// Samples at a time.
    pub(super) chunk: usize,
    /// Taps at a time.
    pub(super) taps: usize,
}

/// The tiled FFT works on tiles of 32, of which the taps leave fewer and fewer as results: past this
/// many, blocks of taps are offered too.
const TAPS_A_TILE: usize = 11;

/// Where the parts of a workspace begin, and what they are for.
#[derive(Clone, Copy, Default)]
struct Staging {
    /// A chunk of `x`, padded or channels last.
    x: Option<u64>,
    /// A chunk of `y`, channels last.
    y: Option<u64>,
    /// The weights, channels last, or one block of taps.
    w: Option<u64>,
    /// Bytes of these, after which the library's own workspace begins.
    bytes: u64,
}

impl Method {
    fn pack(&self) -> [usize; 4] {
        let math = match self.math {
            Math::Default => 0,
            Math::TensorOp => 1,
            Math::Fma => 2,
        };
        let packed = self.algorithm as usize | math << 8 | usize::from(self.channels_last) << 16;
        [packed, self.chunk, self.taps, 0]
    }

    fn unpack(params: [usize; 4]) -> Method {
        let math = [Math::Default, Math::TensorOp, Math::Fma];
        Method {
            algorithm: (params[0] & 0xff) as u32,
            math: math[(params[0] >> 8 & 0xff).min(2)],
            channels_last: params[0] >> 16 == 1,
            chunk: params[1],
            taps: params[2],
        }
    }

    /// Whether the taps are done in more than one block.
    fn in_blocks(&self, question: &Question<'_>) -> bool {
        self.taps < question.geometry.kernel
    }

    /// Whether `x` passes through the workspace with its padding written out.
    fn pads(&self, question: &Question<'_>) -> bool {
        let g = question.geometry;
        self.in_blocks(question) || g.pad_left != g.pad_right
    }

    /// Length of `x` as the library sees it.
    fn staged_length(&self, question: &Question<'_>) -> usize {
        let g = question.geometry;
        if self.pads(question) { g.in_length + g.pad_left + g.pad_right } else { g.in_length }
    }

    fn staging(&self, question: &Question<'_>) -> Option<Staging> {
        let g = question.geometry;
        let mut staging = Staging::default();
        let mut take = |elements: usize| {
            let start = staging.bytes;
            staging.bytes = start.checked_add(question.bytes(elements))?;
            Some(start)
        };
        let samples = |each: usize| self.chunk.checked_mul(each);
        let (mut x, mut y, mut w) = (None, None, None);
        if self.channels_last || self.pads(question) {
            let each = g.in_channels.checked_mul(self.staged_length(question))?;
            x = Some(take(samples(each)?)?);
        }
        if self.channels_last {
            y = Some(take(samples(question.y_sample())?)?);
            w = Some(take(question.w_elements())?);
        } else if self.in_blocks(question) {
            w = Some(take(question.w_elements() / g.kernel * self.taps)?);
        }
        Some(Staging { x, y, w, ..staging })
    }

    /// The problem that the library is given for `batch` samples and `taps` taps.
    fn problem(&self, question: &Question<'_>, batch: usize, taps: usize) -> Problem {
        let g = question.geometry;
        let length = self.staged_length(question);
        let (x, y) = if self.channels_last {
            (Lines::last(g.in_channels, length), Lines::last(g.out_channels, g.out_length))
        } else {
            (Lines::first(g.in_channels, length), Lines::first(g.out_channels, g.out_length))
        };
        // A block of taps sees the part of the padded input that it touches.
        let x = if self.in_blocks(question) {
            let touched = (g.out_length - 1) * g.stride + (taps - 1) * g.dilation + 1;
            Lines { length: touched, ..x }
        } else {
            x
        };
        Problem {
            pass: question.pass,
            dtype: question.dtype,
            math: self.math,
            channels_last: self.channels_last,
            batch,
            x,
            y,
            kernel: taps,
            stride: g.stride,
            dilation: g.dilation,
            padding: if self.pads(question) { 0 } else { g.pad_left },
            groups: g.groups,
        }
    }

    /// Workspace in bytes, the library's and ours; `None` where the library refuses.
    fn workspace(&self, question: &Question<'_>, cudnn: &mut Cudnn) -> Option<u64> {
        let staging = self.staging(question)?;
        let mut most = 0;
        for taps in self.blocks(question) {
            let whole = self.problem(question, self.chunk, taps);
            most = most.max(cudnn.workspace(&whole, self.algorithm)?);
            // The last chunk is shorter, and an algorithm may need more for less.
            let rest = question.geometry.batch % self.chunk;
            if rest > 0 {
                let last = self.problem(question, rest, taps);
                most = most.max(cudnn.workspace(&last, self.algorithm)?);
            }
        }
        staging.bytes.checked_add(most)
    }

    /// The different numbers of taps that its blocks have.
    fn blocks(&self, question: &Question<'_>) -> Vec<usize> {
        let mut taps: Vec<usize> =
            chunks(question.geometry.kernel, self.taps).map(|(_, taps)| taps).collect();
        taps.dedup();
        taps
    }
}

/// Whether the library's 32-bit numbers hold one chunk.
fn fits(question: &Question<'_>, chunk: usize) -> bool {
    let g = question.geometry;
    let most = i32::MAX as usize;
    let small = |value: usize| value <= most;
    let padded = g.in_length.saturating_add(g.pad_left).saturating_add(g.pad_right);
    let x = g.in_channels.saturating_mul(padded).saturating_mul(chunk);
    let y = question.y_sample().saturating_mul(chunk);
    [x, y, question.w_elements(), g.stride, g.dilation, g.kernel, g.pad_left, chunk]
        .into_iter()
        .all(small)
}

pub(super) fn candidates(
    cuda: &Cuda,
    question: &Question<'_>,
    cost: &Cost,
    cap: u64,
) -> Vec<Candidate> {
    let Some(cudnn) = cuda.cudnn() else { return Vec::new() };
    let mut cudnn = cudnn.lock();
    let Ok(_entered) = cuda.gpu().enter() else { return Vec::new() };
    let g = question.geometry;
    // As many samples as the library can number.
    let mut most = g.batch;
    while most > 1 && !fits(question, most) {
        most = most.div_ceil(2);
    }
    if !fits(question, most) {
        return Vec::new();
    }
    let strict = question.dtype == DType::F32 && !question.tf32;
    // For halves the default is the plain units; for f32 it is TF32.
    let math = match question.dtype {
        _ if strict => Math::Fma,
        DType::F16 | DType::BF16 => Math::TensorOp,
        _ => Math::Default,
    };
    let mut all = Vec::new();
    for channels_last in [false, true] {
        let method = Method { algorithm: 0, math, channels_last, chunk: most, taps: g.kernel };
        let problem = method.problem(question, most, g.kernel);
        for offer in cudnn.offers(&problem).unwrap_or_default() {
            // A query may name what it was not asked for.
            if strict && offer.math != Math::Fma {
                continue;
            }
            let method = Method { algorithm: offer.algorithm, math: offer.math, ..method };
            offer_chunks(question, cost, cap, &mut cudnn, method, &offer, &mut all);
            let fft = algorithm_name(question.pass, offer.algorithm) == "tiled fft";
            let blocks = g.kernel.div_ceil(TAPS_A_TILE);
            if fft && blocks > 1 && question.pass != ConvPass::WeightGradient {
                let method = Method { taps: g.kernel.div_ceil(blocks), ..method };
                offer_chunks(question, cost, cap, &mut cudnn, method, &offer, &mut all);
            }
        }
    }
    all
}

/// Adds a method, and where it is over the cap also in chunks that are not.
fn offer_chunks(
    question: &Question<'_>,
    cost: &Cost,
    cap: u64,
    cudnn: &mut Cudnn,
    whole: Method,
    offer: &Offer,
    all: &mut Vec<Candidate>,
) {
    let batch = question.geometry.batch;
    let Some(workspace) = whole.workspace(question, cudnn) else { return };
    all.push(candidate(question, cost, whole, offer, workspace));
    if workspace <= cap {
        return;
    }
    let mut found = None;
    fitting_chunk(whole.chunk, cap, |chunk| {
        let method = Method { chunk, ..whole };
        let workspace = method.workspace(question, cudnn)?;
        if workspace <= cap {
            found = Some((method, workspace));
        }
        Some(workspace)
    });
    let Some((method, workspace)) = found else { return };
    let halves = question.dtype.size() == 2 && question.pass == ConvPass::WeightGradient;
    if halves && batch.div_ceil(method.chunk) > MOST_HALF_CHUNKS {
        return;
    }
    all.push(candidate(question, cost, method, offer, workspace));
}

fn candidate(
    question: &Question<'_>,
    cost: &Cost,
    method: Method,
    offer: &Offer,
    workspace: u64,
) -> Candidate {
    let g = question.geometry;
    let order = if method.channels_last { ", channels last" } else { "" };
    let math = if method.math == Math::TensorOp { ", tensor cores" } else { "" };
    let name = format!("cuDNN {}{math}{order}", algorithm_name(question.pass, offer.algorithm));
    let mut split = Vec::new();
    if method.chunk < g.batch {
        split.push(format!("{} samples", method.chunk));
    }
    if method.taps < g.kernel {
        split.push(format!("{} taps", method.taps));
    }
    let split = if split.is_empty() { String::new() } else { split.join(", ") + " at a time" };
    let staged = method.staging(question).unwrap_or_default().bytes;
    let seconds =
        cost.cudnn(&name, &method, method.pads(question), workspace.saturating_sub(staged));
    Candidate {
        name: name.into(),
        split,
        workspace,
        seconds,
        deterministic: offer.deterministic,
        code: code::CUDNN,
        params: method.pack(),
    }
}
