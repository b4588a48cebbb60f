//! Predicted times of convolution candidates. Each is the time to move what the method stages, plus
//! the time that the sizes take at the chip's rates, times a factor for the method on such sizes. The
//! factors come from a model fitted to measurements (`fit`); on another chip the rates scale them.

mod features;
#[cfg(test)]
mod tests;

use super::super::cublas::Product;
use super::super::gpu::Properties;
use super::super::rates::{LAUNCH, Rates};
use super::direct::Engine;
use super::fit::{Model, model};
use super::product::{self, Calls};
use super::{Question, cudnn};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;

/// What the predictions of one question start from.
pub(super) struct Cost {
    pass: ConvPass,
    geometry: ConvGeometry,
    rates: Rates,
    multiprocessors: f64,
    dtype: DType,
    tf32: bool,
}

/// How a candidate cuts a problem, and what it moves beside it.
#[derive(Clone, Copy)]
struct Work<'a> {
    /// The name that the model knows it by.
    method: &'a str,
    /// Samples at a time.
    chunk: usize,
    /// Taps at a time.
    taps: usize,
    /// Bytes read and written by staging, for all samples.
    moved: f64,
    /// Launches a chunk.
    launches: f64,
    /// Calls of cuBLAS a chunk.
    calls: usize,
    /// Pieces that the sums are cut into.
    pieces: usize,
    /// Bytes of the library's own workspace.
    own: u64,
    /// Rows, columns, terms and number of the products of a chunk, explicit or not.
    product: [usize; 4],
    /// Seconds, where a method counts them itself from what its kernels take.
    counted: Option<f64>,
}

/// Seconds, and how they come about.
struct Modelled {
    /// Of a chunk and a block of taps.
    arithmetic: f64,
    /// Of the same.
    memory: f64,
    chunks: f64,
    /// Chunks times blocks of taps.
    repeated: f64,
    staged: f64,
    seconds: f64,
}

/// Logarithm of the factor of a method that was never measured: more than most have.
const UNMEASURED: f64 = 1.0;

impl Cost {
    pub(super) fn new(properties: &Properties, question: &Question<'_>) -> Cost {
        Cost {
            pass: question.pass,
            geometry: *question.geometry,
            rates: Rates::of(properties),
            multiprocessors: properties.multiprocessors as f64,
            dtype: question.dtype,
            tf32: question.tf32,
        }
    }

    /// Bytes of x, y and w for `chunk` samples and `taps` taps.
    fn bytes(&self, chunk: usize, taps: usize) -> [f64; 3] {
        let (g, size) = (&self.geometry, self.dtype.size() as f64);
        let x = chunk as f64 * (g.in_channels * g.in_length) as f64;
        let y = chunk as f64 * (g.out_channels * g.out_length) as f64;
        let w = (g.out_channels * (g.in_channels / g.groups)) as f64 * taps as f64;
        [x * size, y * size, w * size]
    }

    fn operations(&self, chunk: usize, taps: usize) -> f64 {
        let g = &self.geometry;
        let outputs = chunk as f64 * (g.out_channels * g.out_length) as f64;
        2.0 * outputs * (g.in_channels / g.groups) as f64 * taps as f64
    }

    /// Whether a method computes on tensor cores, where this number type may.
    fn on_tensor_cores(&self, method: &str) -> bool {
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        if method.contains("cuBLAS") || method.contains("tensor cores") {
            return half || self.tf32;
        }
        self.tf32 && (method.contains("precomputed") || method.contains("algorithm 1"))
    }

    /// The time before it is corrected, of parts that are in proportion to the chip's rates.
    fn modelled(&self, work: &Work<'_>) -> Modelled {
        let g = &self.geometry;
        let rate = match self.dtype {
            DType::F64 => self.rates.f64,
            _ if self.on_tensor_cores(work.method) => self.rates.arithmetic(self.dtype, self.tf32),
            _ => self.rates.f32,
        };
        let [x, y, w] = self.bytes(work.chunk, work.taps);
        let arithmetic = self.operations(work.chunk, work.taps) / rate;
        let memory = (x + y + w) / self.rates.bytes;
        let chunks = g.batch as f64 / work.chunk.max(1) as f64;
        let repeated = chunks * (g.kernel as f64 / work.taps as f64);
        let staged = work.moved / self.rates.bytes + chunks * work.launches * LAUNCH;
        let seconds = staged + repeated * (LAUNCH + arithmetic.max(memory));
        Modelled { arithmetic, memory, chunks, repeated, staged, seconds }
    }

    fn seconds(&self, work: &Work<'_>) -> f64 {
        let corrected =
            |model: &Model| model.value(&self.features(work, model.method(work.method)?));
        // What was counted is nearer to the truth than any other unmeasured time.
        let unmeasured = if work.counted.is_some() { 0.0 } else { UNMEASURED };
        let factor = model().and_then(corrected).unwrap_or(unmeasured);
        let seconds = work.counted.unwrap_or_else(|| self.modelled(work).seconds);
        seconds * factor.clamp(-3.0, 8.0).exp()
    }

    /// A method that does all at once, without staging.
    fn whole<'a>(&self, method: &'a str) -> Work<'a> {
        let g = &self.geometry;
        let (c, m) = (g.in_channels / g.groups, g.out_channels / g.groups);
        Work {
            method,
            chunk: g.batch,
            taps: g.kernel,
            moved: 0.0,
            launches: 1.0,
            calls: 1,
            pieces: 1,
            own: 0,
            product: self.implicit(c, m, g.batch, g.kernel),
            counted: None,
        }
    }

    /// The product that a convolution is.
    fn implicit(&self, c: usize, m: usize, chunk: usize, taps: usize) -> [usize; 4] {
        let g = &self.geometry;
        let positions = chunk * g.out_length;
        match self.pass {
            ConvPass::Forward => [m, positions, c * taps, g.groups],
            ConvPass::WeightGradient => [m, c * taps, positions, g.groups],
            ConvPass::InputGradient if g.stride == 1 => [c, positions, m * taps, g.groups],
            ConvPass::InputGradient => [c, chunk * g.in_length, m * taps, g.groups],
        }
    }

    /// Our implicit product.
    pub(super) fn direct(&self, engine: Engine, pieces: usize) -> f64 {
        let name = match (engine, pieces) {
            (Engine::Plain, 0 | 1) => "direct",
            (Engine::Plain, _) => "direct in pieces",
            (Engine::Tensor, _) => {
                // Of what tensor cores could do they reach a ninth in TF32, and a thirtieth in halves.
                let times = if self.dtype == DType::F32 { 9.0 } else { 30.0 };
                return times * self.modelled(&self.whole("direct, tensor cores")).seconds;
            }
        };
        self.seconds(&Work { pieces, ..self.whole(name) })
    }

    /// A method of our own that counted its seconds, in so many launches or pieces of sums.
    pub(super) fn counted(&self, name: &str, seconds: f64, pieces: usize) -> f64 {
        self.seconds(&Work { pieces, counted: Some(seconds), ..self.whole(name) })
    }

    pub(super) fn depthwise(&self) -> f64 {
        self.seconds(&self.whole("depthwise"))
    }

    pub(super) fn product(&self, name: &str, method: &product::Method, calls: &Calls) -> f64 {
        let g = &self.geometry;
        let [x, y, _] = self.bytes(g.batch, g.kernel);
        let mut moved = 0.0;
        if method.form.unfolds() {
            let columns = (g.in_channels * g.kernel * g.out_length) as f64;
            moved += x + g.batch as f64 * columns * self.dtype.size() as f64;
        } else if method.form.packed() {
            moved += 2.0 * x;
        }
        if method.form.packed() {
            moved += 2.0 * y;
        }
        let Product { batch, m, n, k, .. } = calls.product;
        // Those of a chunk that do not wait for each other count together.
        let waits = self.pass == ConvPass::WeightGradient;
        let batch = if waits { batch } else { batch * calls.count };
        self.seconds(&Work {
            chunk: method.chunk,
            moved,
            launches: calls.count as f64 + 2.0,
            calls: calls.count,
            own: method.library,
            product: [m, n, k, batch],
            ..self.whole(name)
        })
    }

    /// `own` are the bytes of the library's own workspace.
    pub(super) fn cudnn(&self, name: &str, method: &cudnn::Method, pads: bool, own: u64) -> f64 {
        let g = &self.geometry;
        let [x, y, w] = self.bytes(g.batch, g.kernel);
        let (moved, launches) = match (method.channels_last, pads) {
            (true, _) => (2.0 * (x + y + w), 3.0),
            (false, true) => (2.0 * x, 2.0),
            (false, false) => (0.0, 1.0),
        };
        let (c, m) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let product = self.implicit(c, m, method.chunk, method.taps);
        let (chunk, taps) = (method.chunk, method.taps);
        self.seconds(&Work { chunk, taps, moved, launches, own, product, ..self.whole(name) })
    }
}
