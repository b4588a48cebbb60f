//! Every candidate of every pass, forced in turn, against the CPU in f64. Each is run into poisoned
//! memory, in a workspace that is poisoned too.

use super::strips::Precision;
use super::{Question, code, gather, weight};
use crate::device::cuda::testing::gpu;
use crate::device::{ConvGeometry, ConvPass, Query, Terms};
use crate::memory::{Purpose, Taker};
use crate::plan::{Candidate, PlannedCall};
use crate::{DType, Device, Tensor};

/// batch, channels, length, kernel, [stride, dilation], groups, padding.
type Sizes = (usize, [usize; 2], usize, usize, [usize; 2], usize, [usize; 2]);

fn geometry(&(batch, channels, in_length, kernel, steps, groups, pads): &Sizes) -> ConvGeometry {
    let ([in_channels, out_channels], [stride, dilation], [pad_left, pad_right]) =
        (channels, steps, pads);
    let out_length = (in_length + pad_left + pad_right - dilation * (kernel - 1) - 1) / stride + 1;
    ConvGeometry {
        batch,
        in_channels,
        out_channels,
        in_length,
        out_length,
        kernel,
        stride,
        dilation,
        groups,
        pad_left,
        pad_right,
    }
}

const SIZES: &[Sizes] = &[
    (7, [24, 40], 11, 1, [1, 1], 1, [0, 0]),
    (33, [64, 48], 64, 1, [1, 1], 4, [0, 0]),
    (5, [16, 24], 50, 1, [2, 1], 1, [1, 0]),
    (6, [32, 64], 64, 3, [1, 1], 1, [1, 1]),
    (9, [30, 21], 37, 4, [1, 1], 3, [1, 2]),
    (4, [64, 64], 128, 5, [1, 1], 1, [2, 2]),
    (3, [48, 32], 96, 31, [1, 1], 1, [15, 15]),
    (2, [8, 16], 200, 25, [4, 1], 1, [12, 12]),
    (5, [16, 16], 120, 9, [1, 2], 2, [8, 8]),
    (4, [12, 20], 77, 7, [3, 2], 4, [9, 3]),
    (8, [40, 40], 64, 7, [1, 1], 40, [3, 3]),
    (3, [10, 30], 90, 5, [2, 2], 10, [4, 5]),
    (1, [128, 128], 512, 3, [1, 1], 1, [1, 1]),
    (300, [3, 5], 9, 3, [1, 1], 1, [1, 1]),
    (2, [1, 64], 3000, 25, [4, 1], 1, [12, 12]),
    // Rows of the slide: many taps, few positions, more than one stretch.
    (5, [12, 12], 100, 31, [1, 1], 12, [15, 15]),
    (70, [6, 12], 15, 3, [1, 1], 6, [2, 0]),
    (2, [4, 4], 5000, 9, [1, 1], 4, [4, 4]),
    // Rows that wide loads can read: causal, several results of a channel, many taps, a short row.
    (3, [4, 12], 68, 31, [1, 1], 4, [30, 0]),
    (2, [2, 2], 2048, 41, [1, 1], 2, [20, 20]),
    (70, [5, 5], 8, 3, [1, 1], 5, [1, 1]),
    // Narrow groups: samples shorter than a product, taps far apart, more rows than one tile.
    (40, [36, 64], 64, 3, [1, 1], 4, [1, 1]),
    (3, [6, 10], 50, 3, [1, 4], 2, [4, 4]),
    (300, [8, 40], 5, 3, [1, 1], 2, [1, 1]),
    // Strips: whole samples, odd lengths, more channels than a chunk and a tile have, strided gradients.
    (40, [112, 300], 11, 1, [1, 1], 1, [0, 0]),
    (90, [48, 40], 7, 1, [3, 1], 1, [0, 0]),
    (3, [40, 40], 35, 5, [1, 1], 1, [2, 2]),
    (2, [600, 40], 48, 3, [1, 1], 1, [1, 1]),
    (2, [70, 260], 66, 3, [3, 1], 1, [1, 1]),
    (3, [18, 36], 64, 6, [2, 3], 2, [7, 2]),
    (1, [3, 20], 4000, 41, [8, 1], 1, [20, 20]),
    // Enough for the large tiles in all passes.
    (17, [128, 128], 1000, 3, [1, 1], 1, [1, 1]),
];

/// Numbers on [-1, 1), or on [low, 1).
fn numbers(shape: [usize; 3], low: f64, dtype: DType, seed: u64) -> [Tensor; 2] {
    let cpu = Device::cpu();
    let stream = crate::device::philox::Stream { seed, stream: 1 };
    let n = shape.iter().product::<usize>() as u64;
    let data: Vec<f64> = (0..n).map(|i| low + (1.0 - low) * stream.uniform(i)).collect();
    let rounded = Tensor::from_vec(data, shape, &cpu).unwrap().to_dtype(dtype).unwrap();
    let exact = rounded.to_dtype(DType::F64).unwrap();
    [rounded, exact]
}

struct Case {
    geometry: ConvGeometry,
    dtype: DType,
    tf32: bool,
    low: f64,
}

impl Case {
    /// Operands (rounded, and the same in f64) and the result's shape.
    fn operands(&self, pass: ConvPass) -> ([[Tensor; 2]; 2], [usize; 3]) {
        let g = &self.geometry;
        let x = [g.batch, g.in_channels, g.in_length];
        let w = [g.out_channels, g.in_channels / g.groups, g.kernel];
        let y = [g.batch, g.out_channels, g.out_length];
        let (first, second, out) = match pass {
            ConvPass::Forward => (x, w, y),
            ConvPass::InputGradient => (y, w, x),
            ConvPass::WeightGradient => (x, y, w),
        };
        let make = |shape, seed| numbers(shape, self.low, self.dtype, seed);
        ([make(first, 1), make(second, 2)], out)
    }

    /// Of the forward pass: rounded, and the same in f64.
    fn bias(&self, pass: ConvPass) -> Option<[Tensor; 2]> {
        let channels = self.geometry.out_channels;
        let forward = pass == ConvPass::Forward;
        forward.then(|| {
            let made = numbers([1, 1, channels], self.low, self.dtype, 3);
            made.map(|bias| bias.reshape([channels]).unwrap())
        })
    }

    fn reference(&self, pass: ConvPass) -> Vec<f64> {
        let ([first, second], shape) = self.operands(pass);
        let out = Tensor::empty("test", shape, DType::F64, &Device::cpu()).unwrap();
        let (query, bias) = (Query::Conv(pass, self.geometry, DType::F64), self.bias(pass));
        let mut operands = vec![&first[1], &second[1]];
        operands.extend(bias.as_ref().map(|bias| &bias[1]));
        PlannedCall { op: "test", query, cap: None, operands: &operands, out: &out }.run().unwrap();
        out.to_f64_vec().unwrap()
    }

    fn tolerance(&self) -> f64 {
        match self.dtype {
            DType::F64 => 1e-12,
            DType::F32 if self.tf32 => 2e-3,
            DType::F32 => 1e-5,
            DType::F16 => 3e-3,
            _ => 1.5e-2,
        }
    }

    /// A candidate, and where it is one of several kinds of kernel the others that could have been it.
    fn kinds(&self, offer: Candidate) -> Vec<Candidate> {
        let (dtype, tf32) = (self.dtype, self.tf32);
        let question = Question { pass: ConvPass::Forward, geometry: &self.geometry, dtype, tf32 };
        let others: Vec<usize> = match (offer.code, Precision::of(&question)) {
            (code::GATHER, Some(precision)) => gather::kinds(precision).collect(),
            (code::GRADIENT, Some(precision)) => weight::kinds(precision).collect(),
            _ => Vec::new(),
        };
        let other = |number: usize| {
            let mut other = offer.clone();
            other.params[1] = number;
            if offer.code == code::GATHER {
                // Each holds its weights in tiles of its own size.
                (other.params[0], other.workspace) = (usize::MAX >> 1, 256 << 20);
            }
            other
        };
        std::iter::once(offer.clone()).chain(others.into_iter().map(other)).collect()
    }

    /// Every candidate's error, in order.
    fn errors(&self, device: &Device, pass: ConvPass, caps: &[u64]) -> Vec<(Candidate, f64)> {
        let reference = self.reference(pass);
        let ([first, second], shape) = self.operands(pass);
        let bias = self.bias(pass);
        let rounded = [&first[0], &second[0]].into_iter().chain(bias.as_ref().map(|bias| &bias[0]));
        let operands: Vec<Tensor> = rounded.map(|x| x.to(device).unwrap()).collect();
        let query = Query::Conv(pass, self.geometry, self.dtype);
        let mut seen: Vec<(Candidate, f64)> = Vec::new();
        for &cap in caps {
            let terms = Terms { cap, allow_tf32: self.tf32 };
            let offered = device.backend().candidates(&query, terms);
            for candidate in offered.into_iter().flat_map(|offer| self.kinds(offer)) {
                if candidate.workspace > 4 << 30 || seen.iter().any(|(c, _)| *c == candidate) {
                    continue;
                }
                let workspace = (candidate.workspace > 0).then(|| {
                    device
                        .allocate(
                            candidate.workspace as usize,
                            Purpose::Workspace,
                            Taker::of("test"),
                        )
                        .unwrap()
                });
                let out = Tensor::empty("test", shape, self.dtype, device).unwrap();
                let operands: Vec<&Tensor> = operands.iter().collect();
                let run =
                    device.backend().run(&query, &candidate, &operands, &out, workspace.as_ref());
                run.unwrap_or_else(|error| panic!("{candidate:?} of {query}: {error}"));
                seen.push((candidate, distance(&out.to_f64_vec().unwrap(), &reference)));
            }
        }
        seen
    }
}

/// ‖out - reference‖ / ‖reference‖; infinite where there is NaN.
fn distance(out: &[f64], reference: &[f64]) -> f64 {
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let error = square(&mut out.iter().zip(reference).map(|(a, b)| a - b));
    let relative = error / square(&mut reference.iter().copied());
    if relative.is_nan() { f64::INFINITY } else { relative }
}

#[test]
fn every_candidate_agrees_with_the_cpu_in_f64() {
    let Some(device) = gpu() else { return };
    let types = [
        (DType::F32, false),
        (DType::F32, true),
        (DType::F64, false),
        (DType::F16, false),
        (DType::BF16, false),
    ];
    for sizes in SIZES {
        for (dtype, tf32) in types {
            let case = Case { geometry: geometry(sizes), dtype, tf32, low: -1.0 };
            for pass in ConvPass::ALL {
                for (candidate, error) in case.errors(&device, pass, &[u64::MAX, 1 << 20, 1 << 14])
                {
                    assert!(
                        error <= case.tolerance(),
                        "{} {dtype}, TF32 {tf32}, {sizes:?}, {candidate:?}: {error:e}",
                        pass.name()
                    );
                }
            }
        }
    }
}

/// Millions of positive terms: a sum kept in one f32 loses the late ones.
#[test]
fn long_sums_of_every_candidate_keep_their_digits() {
    let Some(device) = gpu() else { return };
    let mut bad = Vec::new();
    for sizes in [
        (65_536, [2, 2], 80, 3, [1, 1], 1, [1, 1]),
        (16, [8, 16], 65_536, 3, [1, 1], 1, [1, 1]),
        (4096, [64, 64], 64, 1, [1, 1], 1, [0, 0]),
        (512, [64, 128], 512, 3, [1, 1], 1, [1, 1]),
    ] {
        let case = Case { geometry: geometry(&sizes), dtype: DType::F32, tf32: false, low: 0.25 };
        let pass = ConvPass::WeightGradient;
        for (candidate, error) in case.errors(&device, pass, &[u64::MAX, 1 << 24]) {
            let (name, split) = (&candidate.name, &candidate.split);
            println!("{sizes:?} {name} {split}: {error:e}");
            if error.is_nan() || error > case.tolerance() {
                bad.push(format!("{sizes:?}, {name} {split}: {error:e}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// An operand that begins in the middle of another's memory, where wide loads are not allowed.
#[test]
fn operands_may_begin_anywhere() {
    let Some(device) = gpu() else { return };
    let sizes = [
        (6, [32, 64], 64, 3, [1, 1], 1, [1, 1]),
        (6, [36, 64], 64, 3, [1, 1], 4, [1, 1]),
        (6, [40, 40], 64, 7, [1, 1], 40, [3, 3]),
    ];
    let types = [DType::F32, DType::F16];
    for (sizes, dtype) in sizes.iter().flat_map(|sizes| types.map(|dtype| (sizes, dtype))) {
        let case = Case { geometry: geometry(sizes), dtype, tf32: true, low: -1.0 };
        for pass in ConvPass::ALL {
            let reference = case.reference(pass);
            let ([first, second], shape) = case.operands(pass);
            let shifted = [&first[1], &second[1]].map(|x| {
                let values: Vec<f64> =
                    std::iter::once(9.0).chain(x.to_f64_vec().unwrap()).collect();
                let all = Tensor::from_vec(values, [1 + x.elements()], &Device::cpu()).unwrap();
                let all = all.to_dtype(dtype).unwrap().to(&device).unwrap();
                all.rows(1, x.elements()).reshape(x.shape().clone()).unwrap()
            });
            let bias = case.bias(pass).map(|[bias, _]| bias.to(&device).unwrap());
            let query = Query::Conv(pass, case.geometry, dtype);
            let offered = device.backend().candidates(&query, Terms { cap: 0, allow_tf32: true });
            // What the libraries ask of addresses is theirs.
            let own = |c: &Candidate| c.code < code::PRODUCT && c.workspace == 0;
            for candidate in offered.into_iter().filter(own) {
                let out = Tensor::empty("test", shape, dtype, &device).unwrap();
                let operands: Vec<&Tensor> = shifted.iter().chain(&bias).collect();
                device.backend().run(&query, &candidate, &operands, &out, None).unwrap();
                let error = distance(&out.to_f64_vec().unwrap(), &reference);
                assert!(error <= case.tolerance(), "{pass:?} {dtype}, {candidate:?}: {error:e}");
            }
        }
    }
}

/// What is not finite reaches the results that it meets, as it does on the CPU, and no others.
#[test]
fn what_is_not_finite_stays_where_it_is() {
    let Some(device) = gpu() else { return };
    for sizes in [
        (3, [40, 24], 33, 3, [1, 1], 1, [1, 1]),
        (40, [48, 24], 11, 1, [1, 1], 1, [0, 0]),
        (5, [36, 64], 60, 3, [1, 1], 4, [1, 1]),
        // Rows for wide loads, and others; more taps than there are in registers, and fewer positions.
        (3, [8, 8], 68, 5, [1, 1], 8, [4, 0]),
        (3, [8, 8], 67, 5, [1, 1], 8, [3, 1]),
    ] {
        for (dtype, tf32) in [(DType::F32, false), (DType::F32, true), (DType::F16, false)] {
            let case = Case { geometry: geometry(&sizes), dtype, tf32, low: 0.25 };
            for pass in ConvPass::ALL {
                let ([first, second], shape) = case.operands(pass);
                let mut values = first[1].to_f64_vec().unwrap();
                let n = values.len();
                (values[n / 3], values[n / 2], values[n - 1]) =
                    (f64::INFINITY, f64::NAN, f64::NEG_INFINITY);
                let first = Tensor::from_vec(values, first[1].shape().clone(), &Device::cpu());
                let (first, second) = (first.unwrap(), &second[1]);
                let operands = [&first, second].map(|x| x.to_dtype(dtype).unwrap());
                let expected = Tensor::empty("test", shape, DType::F64, &Device::cpu()).unwrap();
                let query = Query::Conv(pass, case.geometry, DType::F64);
                let (cap, out) = (None, &expected);
                PlannedCall { op: "test", query, cap, operands: &[&first, second], out }
                    .run()
                    .unwrap();
                let expected = expected.to_f64_vec().unwrap();
                let operands = operands.map(|x| x.to(&device).unwrap());
                let query = Query::Conv(pass, case.geometry, dtype);
                let terms = Terms { cap: 0, allow_tf32: tf32 };
                for candidate in device.backend().candidates(&query, terms) {
                    // Libraries transform their operands.
                    if candidate.code >= code::PRODUCT || candidate.workspace > 0 {
                        continue;
                    }
                    let out = Tensor::empty("test", shape, dtype, &device).unwrap();
                    let operands = [&operands[0], &operands[1]];
                    device.backend().run(&query, &candidate, &operands, &out, None).unwrap();
                    for (at, (a, b)) in out.to_f64_vec().unwrap().iter().zip(&expected).enumerate()
                    {
                        let same = (a.is_nan() && b.is_nan())
                            || a == b
                            || (b.is_finite() && (a - b).abs() <= 1e-2 * b.abs().max(1.0));
                        assert!(same, "{pass:?} {dtype} {tf32} {candidate:?}: {a} for {b} at {at}");
                    }
                }
            }
        }
    }
}
