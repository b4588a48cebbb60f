//! Predictions are what `benches/fit_ranking.py` computed where it fitted them.

use super::super::product::{self, Form};
use super::super::{Question, cudnn};
use super::Cost;
use crate::device::cuda::conv::direct::Engine;
use crate::device::cuda::cudnn::Math;
use crate::device::cuda::gpu::Properties;
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;
use serde::Deserialize;

/// A candidate and its predicted time.
#[derive(Deserialize, Debug)]
struct Row {
    pass: String,
    method: String,
    batch: usize,
    #[serde(rename = "in")]
    in_channels: usize,
    out: usize,
    length: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
    dtype: String,
    tf32: bool,
    chunk: usize,
    taps: usize,
    pieces: usize,
    own: u64,
    counted: Option<f64>,
    seconds: f64,
}

fn h200() -> Properties {
    Properties {
        ordinal: 0,
        name: String::new(),
        compute_capability: (9, 0),
        multiprocessors: 132,
        shared_per_block: 232_448,
        cache_bytes: 50 << 20,
        memory_bytes: 141 << 30,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        memory_bus_bits: 6144,
    }
}

impl Row {
    /// Padded as the measured shapes are: the length stays, but for the stride.
    fn geometry(&self) -> ConvGeometry {
        let span = self.dilation * (self.kernel - 1);
        ConvGeometry {
            batch: self.batch,
            in_channels: self.in_channels,
            out_channels: self.out,
            in_length: self.length,
            out_length: (self.length - 1) / self.stride + 1,
            kernel: self.kernel,
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            pad_left: span / 2,
            pad_right: span - span / 2,
        }
    }

    fn predicted(&self) -> f64 {
        let geometry = self.geometry();
        let passes = [ConvPass::Forward, ConvPass::InputGradient, ConvPass::WeightGradient];
        let dtypes = [DType::F32, DType::BF16, DType::F16];
        let question = Question {
            pass: passes.into_iter().find(|pass| pass.name() == self.pass).expect("a pass"),
            geometry: &geometry,
            dtype: dtypes.into_iter().find(|dtype| dtype.name() == self.dtype).expect("a type"),
            tf32: self.tf32,
        };
        let cost = Cost::new(&h200(), &question);
        let name = self.method.as_str();
        if let Some(counted) = self.counted {
            return cost.counted(name, counted, self.pieces);
        }
        if name == "depthwise" {
            return cost.depthwise();
        }
        if name.starts_with("direct") {
            return cost.direct(Engine::Plain, self.pieces);
        }
        if !name.starts_with("cuDNN") {
            let form = match (name.contains("unfold"), name.contains("packed")) {
                (false, false) => Form::PointwiseSamples,
                (false, true) => Form::PointwisePacked,
                (true, false) => Form::UnfoldSamples,
                (true, true) => Form::UnfoldPacked,
            };
            let method = product::Method { form, chunk: self.chunk, library: self.own };
            return cost.product(name, &method, &method.calls(&question, self.chunk));
        }
        let method = cudnn::Method {
            algorithm: 0,
            math: Math::Default,
            channels_last: name.contains("channels last"),
            chunk: self.chunk,
            taps: self.taps,
        };
        let pads = self.taps < self.kernel || geometry.pad_left != geometry.pad_right;
        cost.cudnn(name, &method, pads, self.own)
    }
}

#[test]
fn predictions_are_those_that_were_fitted() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("expected.json")).expect("rows");
    assert!(rows.len() > 30);
    for row in rows {
        let predicted = row.predicted();
        let error = (predicted / row.seconds - 1.0).abs();
        assert!(error < 1e-6, "{row:?}: {predicted:e}");
    }
}

#[test]
fn every_question_has_finite_times() {
    let properties = Properties { compute_capability: (8, 6), multiprocessors: 1, ..h200() };
    let sizes = [0, 1, 3, 1 << 20];
    let shapes = sizes.into_iter().flat_map(|batch| sizes.map(|length| (batch, length)));
    for (batch, in_length) in shapes {
        let geometry = ConvGeometry {
            batch,
            in_channels: 2,
            out_channels: 2,
            in_length,
            out_length: in_length,
            kernel: 1,
            stride: 1,
            dilation: 1,
            groups: 1,
            pad_left: 0,
            pad_right: 0,
        };
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            for pass in [ConvPass::Forward, ConvPass::InputGradient, ConvPass::WeightGradient] {
                let question = Question { pass, geometry: &geometry, dtype, tf32: false };
                let cost = Cost::new(&properties, &question);
                for seconds in [
                    cost.direct(Engine::Plain, 1),
                    cost.direct(Engine::Tensor, 4),
                    cost.depthwise(),
                ] {
                    assert!(seconds.is_finite() && seconds >= 0.0, "{geometry:?}: {seconds}");
                }
            }
        }
    }
}
