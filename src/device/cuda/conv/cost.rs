//! Predicted times of convolution candidates. Each is the time to move what the method stages, plus
//! the time that the sizes take at the chip's rates, times a factor for the method on such sizes. The
//! factors are fitted to measurements (`fit`); on another chip the rates scale them.

use super::super::Cuda;
use super::super::cublas::Product;
use super::super::rates::{LAUNCH, Rates};
use super::fit::{FEATURES, factors};
use super::{Question, library, product};
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

/// How a method cuts a problem, and what it moves beside it.
#[derive(Clone, Copy)]
struct Work {
    /// Samples at a time.
    chunk: usize,
    /// Taps at a time.
    taps: usize,
    /// Bytes read and written by staging, for all samples.
    moved: f64,
    /// Launches a chunk.
    launches: f64,
}

fn log2(value: usize) -> f64 {
    (value.max(1) as f64).log2()
}

/// 1 where it holds: for factors that are there or not.
fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

impl Cost {
    pub(super) fn new(cuda: &Cuda, question: &Question<'_>) -> Cost {
        let properties = &cuda.gpu().properties;
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

    /// What the factor of a method may depend on, for one chunk.
    fn features(&self, rate: f64, chunk: usize, taps: usize) -> [f64; FEATURES] {
        let g = &self.geometry;
        let (c, m) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let positions = chunk * g.out_length;
        let (lc, lm, lp) = (log2(c), log2(m), log2(positions));
        let (lk, ll) = (log2(taps), log2(g.out_length));
        let tiles = |rows: usize, columns: usize| {
            let tiles = rows.div_ceil(128) as f64 * columns.div_ceil(128) as f64;
            (tiles * g.groups as f64 / self.multiprocessors).log2()
        };
        let filled = match self.pass {
            ConvPass::Forward => tiles(m, positions),
            ConvPass::InputGradient => tiles(c, positions),
            ConvPass::WeightGradient => tiles(m, c * taps),
        };
        let [x, y, w] = self.bytes(chunk, taps);
        let arithmetic = self.operations(chunk, taps) / rate;
        let balance = (arithmetic / ((x + y + w) / self.rates.bytes)).log2().clamp(-8.0, 8.0);
        // Results of a tile of 32 that are not lost to its taps.
        let useful = (33.0 - taps as f64).max(1.0);
        let fft_tiles = (g.out_length as f64 / useful).ceil() * 32.0 / g.out_length as f64;
        [
            1.0,
            lm,
            lm.min(5.0),
            lm.min(7.0),
            lc,
            lc.min(5.0),
            lc.min(7.0),
            lp,
            lp.min(10.0),
            lp.min(14.0),
            lp.min(18.0),
            lk,
            lk.min(2.0),
            log2(g.groups),
            flag(g.groups > 1),
            ll,
            ll.min(5.0),
            ll.min(9.0),
            filled.clamp(-10.0, 0.0),
            filled.clamp(0.0, 2.0),
            balance.min(0.0),
            balance.max(0.0),
            flag(g.stride > 1),
            flag(g.dilation > 1),
            flag(c % 8 != 0),
            flag(m % 8 != 0),
            flag(!g.out_length.is_multiple_of(8)),
            fft_tiles.log2(),
        ]
    }

    /// Whether a method computes on tensor cores, where this number type may.
    fn on_tensor_cores(&self, method: &str) -> bool {
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        if method.contains("cuBLAS") || method.contains("tensor cores") {
            return half || self.tf32;
        }
        self.tf32 && (method.contains("precomputed") || method.contains("algorithm 1"))
    }

    /// Under which name the factors of a method are kept.
    fn class(&self, method: &str) -> String {
        let kind = match self.dtype {
            DType::F16 | DType::BF16 => "half",
            DType::F32 if self.on_tensor_cores(method) => "tf32",
            _ => "f32",
        };
        format!("{} | {method} | {kind}", self.pass.name())
    }

    fn seconds(&self, method: &str, work: Work) -> f64 {
        let g = &self.geometry;
        let chunks = g.batch as f64 / work.chunk as f64;
        let blocks = g.kernel as f64 / work.taps as f64;
        let rate = match self.dtype {
            DType::F64 => self.rates.f64,
            _ if self.on_tensor_cores(method) => self.rates.arithmetic(self.dtype, self.tf32),
            _ => self.rates.f32,
        };
        let [x, y, w] = self.bytes(work.chunk, work.taps);
        let arithmetic = self.operations(work.chunk, work.taps) / rate;
        let core = LAUNCH + arithmetic.max((x + y + w) / self.rates.bytes);
        let features = self.features(rate, work.chunk, work.taps);
        let factor: f64 = match factors(&self.class(method)) {
            Some(factors) => factors.iter().zip(features).map(|(&a, b)| f64::from(a) * b).sum(),
            None => 1.0,
        };
        let staged = work.moved / self.rates.bytes + chunks * work.launches * LAUNCH;
        staged + chunks * blocks * core * factor.clamp(-3.0, 8.0).exp()
    }

    /// Our implicit product on the plain units.
    pub(super) fn direct(&self, pieces: usize) -> f64 {
        let (chunk, taps) = (self.geometry.batch, self.geometry.kernel);
        let name = if pieces > 1 { "direct in pieces" } else { "direct" };
        self.seconds(name, Work { chunk, taps, moved: 0.0, launches: 1.0 })
    }

    pub(super) fn depthwise(&self) -> f64 {
        let (chunk, taps) = (self.geometry.batch, self.geometry.kernel);
        self.seconds("depthwise", Work { chunk, taps, moved: 0.0, launches: 1.0 })
    }

    /// Whether a product has too few tiles for the chip and sums that can be cut.
    pub(super) fn few_tiles(&self, product: &Product) -> bool {
        let tiles = product.batch as f64
            * (product.m as f64 / 128.0).ceil()
            * (product.n as f64 / 128.0).ceil();
        tiles < self.multiprocessors && product.k >= 4096
    }

    pub(super) fn product(&self, name: &str, method: &product::Method, calls: usize) -> f64 {
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
        let launches = calls as f64 + 2.0;
        let work = Work { chunk: method.chunk, taps: g.kernel, moved, launches };
        self.seconds(name, work)
    }

    pub(super) fn library(&self, name: &str, method: &library::Method, pads: bool) -> f64 {
        let g = &self.geometry;
        let [x, y, w] = self.bytes(g.batch, g.kernel);
        let (moved, launches) = match (method.channels_last, pads) {
            (true, _) => (2.0 * (x + y + w), 3.0),
            (false, true) => (2.0 * x, 2.0),
            (false, false) => (0.0, 1.0),
        };
        self.seconds(name, Work { chunk: method.chunk, taps: method.taps, moved, launches })
    }
}
