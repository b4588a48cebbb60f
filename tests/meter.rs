//! The meter is exact: for the first workload, a large pointwise convolution, what it counts is the
//! sum of the tensors to the byte, proportional to the samples, with the workspace within its cap.

mod support;

use capgrad::{Conv1d, DType, MIB, Purpose, ScopeReport, Tape, Tensor, format_bytes};
use support::{Kind, kinds};

const IN: u64 = 576;
const OUT: u64 = 1024;
const LENGTH: u64 = 11;
const F32: u64 = 4;
/// A few scalars: the loss, its gradient, the sum of a uniform bias gradient.
const SCALARS: u64 = 64;

/// Forward and backward of `conv.forward(x).mean()`, no input gradient: what each scope saw, less
/// what the device held from the first.
fn run(kind: Kind, samples: u64) -> (ScopeReport, ScopeReport) {
    let device = kind.plain();
    let base = device.report().live;
    let without_base = |mut scope: ScopeReport| {
        scope.live_before -= base.total();
        scope.live_after -= base.total();
        scope.peak -= base.total();
        Purpose::ALL.into_iter().for_each(|p| scope.at_peak[p] -= base[p]);
        scope
    };
    let conv = Conv1d::builder(IN as usize, OUT as usize, 1).build(&device).unwrap();
    let shape = [samples as usize, IN as usize, LENGTH as usize];
    let x = Tensor::full(shape, 0.5, DType::F32, &device).unwrap();
    let tape = Tape::new();
    device.reset_peak();
    let scope = device.scope("forward");
    let loss = conv.forward(&tape.constant(x.clone())).unwrap().mean().unwrap();
    let forward = without_base(scope.end());
    let scope = device.scope("backward");
    let gradients = loss.backward().unwrap();
    let backward = without_base(scope.end());
    let dw = gradients.parameter(conv.weight()).unwrap();
    // Every weight sees samples · length values of 0.5, each times 1 / elements of y.
    let expected = 0.5 / OUT as f64;
    let got = dw.to_f64_vec().unwrap();
    assert!(got.iter().all(|value| (value - expected).abs() < 1e-5 * expected));
    assert!(device.report().peaks[Purpose::Workspace] <= 64 * MIB);
    (forward, backward)
}

fn x_bytes(samples: u64) -> u64 {
    samples * IN * LENGTH * F32
}

fn y_bytes(samples: u64) -> u64 {
    samples * OUT * LENGTH * F32
}

const W: u64 = IN * OUT * F32;
const B: u64 = OUT * F32;

/// The peak less the workspace in use at that moment.
fn without_workspace(scope: &ScopeReport) -> u64 {
    assert_eq!(scope.peak, scope.at_peak.total());
    scope.peak - scope.at_peak[Purpose::Workspace]
}

#[track_caller]
fn check(samples: u64, forward: &ScopeReport, backward: &ScopeReport) -> (u64, u64) {
    let (seen, expected) =
        (without_workspace(forward), x_bytes(samples) + W + B + y_bytes(samples));
    assert!((expected..=expected + SCALARS).contains(&seen), "forward: {seen}, not {expected}");
    // The bias gradient is one number until somebody reads it.
    let (seen, expected) = (without_workspace(backward), x_bytes(samples) + 2 * W + B);
    let whole = expected + B + SCALARS;
    assert!((expected..=whole).contains(&seen), "backward: {seen}, not {expected} to {whole}");
    let excess = (seen - expected) % B;
    assert!(excess <= SCALARS, "backward: {seen} is neither {expected} nor {}", expected + B);
    (without_workspace(forward), without_workspace(backward))
}

#[test]
fn the_first_workload_peaks_at_the_sum_of_its_tensors_to_the_byte() {
    let known = [(4000, 283_963_392, 106_102_784), (5000, 354_363_392, 131_446_784)];
    let each = kinds().flat_map(|kind| known.map(|known| (kind, known)));
    for (kind, (samples, forward_bytes, backward_bytes)) in each {
        assert_eq!(x_bytes(samples) + W + B + y_bytes(samples), forward_bytes);
        assert_eq!(x_bytes(samples) + 2 * W + 2 * B, backward_bytes);
        let (forward, backward) = run(kind, samples);
        check(samples, &forward, &backward);
        assert_eq!(forward.live_before, x_bytes(samples) + W + B);
        // The result of the convolution is gone: `mean` saves a shape.
        assert!(forward.live_after - forward.live_before <= SCALARS);
    }
}

#[test]
fn the_peak_grows_exactly_with_the_samples() {
    for kind in kinds() {
        // With the workspace the moment of the peak moves, and with it which scalars are live.
        let slack = if kind == Kind::Cuda { SCALARS } else { 0 };
        let seen: Vec<(u64, u64, u64)> = (1..=16)
            .map(|i| {
                let samples = 50 * i;
                let (forward, backward) = run(kind, samples);
                let (forward, backward) = check(samples, &forward, &backward);
                (samples, forward, backward)
            })
            .collect();
        let (first, last) = (seen[0], seen[seen.len() - 1]);
        for &(samples, forward, backward) in &seen {
            let steps = (samples - first.0) / 50;
            let each = (last.1 - first.1) / 15;
            assert!(each.abs_diff(x_bytes(50) + y_bytes(50)) <= slack);
            let expected = first.1 + steps * (x_bytes(50) + y_bytes(50));
            assert!(forward.abs_diff(expected) <= slack, "forward at {samples} samples");
            let expected = first.2 + steps * x_bytes(50);
            assert!(backward.abs_diff(expected) <= slack, "backward at {samples} samples");
        }
    }
}

#[test]
fn peaks_are_kept_by_purpose_and_reset() {
    for device in kinds().map(Kind::plain) {
        // Only a GPU's, of its scratch.
        let base = device.live_bytes();
        assert_eq!(device.report().live[Purpose::Other], base);
        let x = Tensor::zeros([1000], DType::F64, &device).unwrap();
        let live = device.report().live;
        let one = base + 8000;
        assert_eq!((live[Purpose::Other], live.total(), device.live_bytes()), (one, one, one));
        let tape = Tape::new();
        let v = tape.variable(x.clone()).unwrap();
        let y = v.square().unwrap();
        assert_eq!(device.report().live[Purpose::Activation], 8000);
        let gradients = y.sum().unwrap().backward().unwrap();
        assert_eq!(device.report().live[Purpose::Gradient], 8000);
        drop((gradients, v, x));
        let report = device.report();
        assert_eq!((report.live.total(), report.peaks[Purpose::Other]), (one, one));
        drop(y);
        assert_eq!(device.live_bytes(), base);
        assert!(device.report().peak - base >= 24_000);
        device.reset_peak();
        let report = device.report();
        assert_eq!((report.peak, report.allocations, report.peaks.total()), (base, 0, base));
        assert!(report.to_string().contains(&format!("peak {}", format_bytes(base))));
    }
}

#[test]
fn scopes_nest_and_see_their_own_peaks() {
    for device in kinds().map(Kind::plain) {
        let base = device.live_bytes();
        let outer = device.scope("step");
        let kept = Tensor::zeros([100], DType::F32, &device).unwrap();
        let inner = device.scope("forward");
        drop(Tensor::zeros([1000], DType::F32, &device).unwrap());
        assert_eq!(inner.so_far().peak - base, 4400);
        let inner = inner.end();
        drop(kept);
        let outer = outer.end();
        assert_eq!(inner.path, "step/forward");
        let seen = |scope: &ScopeReport| {
            [scope.live_before, scope.peak, scope.live_after].map(|bytes| bytes - base)
        };
        assert_eq!(seen(&inner), [400, 4400, 400]);
        assert_eq!(seen(&outer), [0, 4400, 0]);
        let text = device.report().to_string();
        assert!(text.contains("step/forward") && text.contains("workspace"), "{text}");
        assert_eq!(device.report().scopes.len(), 2);
    }
}
