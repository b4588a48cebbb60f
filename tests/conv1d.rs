//! Convolution with generated parameters against a naive f64 reference, all three passes and the
//! bias, through the public API; every algorithm that a cap can single out is run.

mod support;

use capgrad::{Conv1dOptions, DType, Device, Error, Padding, Tape, Tensor, Var};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use support::conv::{Operands, Sizes};
use support::generate::{Case, case};
use support::{Kind, Numbers, assert_close, devices, relative_error, tensor, workspace_peak};

/// What a run gives, and the workspace it took.
struct Outcome {
    results: Vec<(&'static str, Tensor)>,
    workspace: u64,
}

fn run(case: &Case, o: &Operands, cap: Option<u64>, device: &Device) -> Result<Outcome, Error> {
    let options =
        Conv1dOptions { padding: case.padding, workspace_cap: cap, ..case.sizes.options() };
    let tape = Tape::new();
    let x = tape.variable(o.x(device))?;
    let w = tape.variable(o.w(device))?;
    let b = if case.bias { Some(tape.variable(o.b(device))?) } else { None };
    device.reset_peak();
    let y = x.conv1d(&w, b.as_ref(), &options)?;
    let mut results = vec![("y", y.tensor().clone())];
    let gradients = y.backward_with(o.dy(device))?;
    results.push(("dx", gradients.get(&x).unwrap().clone()));
    results.push(("dw", gradients.get(&w).unwrap().clone()));
    if let Some(b) = &b {
        results.push(("db", gradients.get(b).unwrap().clone()));
    }
    Ok(Outcome { results, workspace: workspace_peak(device) })
}

/// The workspaces of every candidate that the device has weighed since it last forgot its plans;
/// the names of those that ran are added to `taken`.
fn workspaces(device: &Device, taken: &mut BTreeSet<String>) -> BTreeSet<u64> {
    let plans = device.plans();
    taken.extend(plans.iter().map(|plan| plan.taken().name.to_string()));
    let all = plans.iter().flat_map(|plan| plan.weighed().iter().map(|w| w.candidate.workspace));
    all.collect()
}

fn check(case: &Case, device: &Device, taken: &mut BTreeSet<String>) {
    let sizes = &case.sizes;
    if case.padding == Padding::Same && sizes.stride != 1 {
        let w = Var::from(Tensor::ones(sizes.w_shape(), case.dtype, device).unwrap());
        let x = Var::from(Tensor::ones(sizes.x_shape(), case.dtype, device).unwrap());
        let options = Conv1dOptions { padding: Padding::Same, ..sizes.options() };
        let error = x.conv1d(&w, None, &options).unwrap_err();
        return assert!(matches!(error, Error::Argument { argument: "stride", .. }), "{error}");
    }
    if !sizes.fits() {
        let w = Var::from(Tensor::ones(sizes.w_shape(), case.dtype, device).unwrap());
        let x = Var::from(Tensor::ones(sizes.x_shape(), case.dtype, device).unwrap());
        let options = Conv1dOptions { padding: case.padding, ..sizes.options() };
        let error = x.conv1d(&w, None, &options).unwrap_err();
        return assert!(matches!(error, Error::KernelTooLong { .. }), "{error}");
    }
    let o = Operands::new(*sizes, case.dtype, case.seed, case.exact);
    let bias = case.bias.then_some(&o.b[..]);
    let expected = [
        sizes.forward(&o.x, &o.w, bias),
        sizes.input_gradient(&o.dy, &o.w),
        sizes.weight_gradient(&o.x, &o.dy),
        sizes.bias_gradient(&o.dy),
    ];
    device.forget_plans();
    device.remove_workspace_cap();
    let mut caps: Vec<Option<u64>> = vec![None, Some(0)];
    let mut seen = BTreeSet::new();
    // Under each workspace that any candidate has, and just below it.
    while let Some(cap) = caps.pop() {
        let outcome = run(case, &o, cap, device).unwrap();
        assert!(
            cap.is_none_or(|cap| outcome.workspace <= cap),
            "{} over {cap:?}",
            outcome.workspace
        );
        for ((name, out), expected) in outcome.results.iter().zip(&expected) {
            assert_close(format!("{name} of {case:?} under {cap:?}"), out, expected);
        }
        for workspace in workspaces(device, taken) {
            if seen.len() < 8 && seen.insert(workspace) {
                caps.extend([Some(workspace), workspace.checked_sub(1)]);
            }
        }
    }
}

#[test]
fn every_pass_agrees_with_the_naive_reference_under_every_workspace() {
    for device in devices() {
        let (base, taken) = (device.live_bytes(), RefCell::new(BTreeSet::new()));
        let cases = Kind::of(&device).share(2_000);
        let config = ProptestConfig { cases, ..ProptestConfig::default() };
        proptest!(config, |(case in case())| check(&case, &device, &mut taken.borrow_mut()));
        assert_eq!(device.live_bytes(), base);
        let taken = taken.into_inner();
        println!("taken on {device}: {taken:?}");
        if Kind::of(&device) == Kind::Cpu {
            for algorithm in ["pointwise gemm", "unfold + gemm", "direct", "depthwise"] {
                assert!(taken.contains(algorithm), "{algorithm} was never taken: {taken:?}");
            }
        }
    }
}

#[test]
fn larger_channel_counts_agree_too() {
    for device in devices() {
        for (i, dtype) in DType::FLOATS.into_iter().enumerate() {
            for (groups, k, stride, dilation) in [
                (1, 1, 1, 1),
                (1, 3, 1, 1),
                (1, 31, 1, 2),
                (2, 4, 3, 2),
                (4, 3, 2, 1),
                (40, 5, 1, 1),
            ] {
                let (c_in, c_out) = (40, 80);
                let (left, right) = if k == 1 { (0, 0) } else { (k / 2, k / 2 + 1) };
                let sizes =
                    Sizes { n: 3, c_in, c_out, l: 97, k, stride, dilation, groups, left, right };
                let padding = Padding::Explicit(left, right);
                let seed = i as u64;
                let case = Case { sizes, padding, dtype, bias: true, seed, exact: false };
                check(&case, &device, &mut BTreeSet::new());
            }
        }
    }
}

#[test]
fn a_part_of_a_tensor_convolves_like_a_copy_of_it() {
    for device in devices() {
        let sizes = Sizes { n: 2, c_in: 3, c_out: 4, l: 6, k: 3, ..Default::default() };
        let whole = Numbers(4).sixteenths(4 * 5 * 9);
        for axis in 0..3 {
            let (start, length) = [(1, 2), (2, 3), (3, 6)][axis];
            let mut extents = sizes.x_shape();
            extents[axis] = [4, 5, 9][axis];
            let strides = [extents[1] * extents[2], extents[2], 1];
            let count: usize = extents.iter().product();
            let o = Operands::new(sizes, DType::F32, 6, true);
            let part: Vec<usize> = (0..count)
                .filter(|e| (start..start + length).contains(&(e / strides[axis] % extents[axis])))
                .collect();
            let x: Vec<f64> = part.iter().map(|&e| whole[e]).collect();
            let tape = Tape::new();
            let full =
                tape.variable(tensor(&whole[..count], extents, DType::F32, &device)).unwrap();
            let w = tape.variable(o.w(&device)).unwrap();
            let y = full.narrow(axis as isize, start, length).unwrap();
            let y = y.conv1d(&w, None, &sizes.options()).unwrap();
            assert_close("y", y.tensor(), &sizes.forward(&x, &o.w, None));
            let gradients = y.backward_with(o.dy(&device)).unwrap();
            let mut expected = vec![0.0; count];
            for (&e, gradient) in part.iter().zip(sizes.input_gradient(&o.dy, &o.w)) {
                expected[e] = gradient;
            }
            assert_close("dx", gradients.get(&full).unwrap(), &expected);
            let dw = sizes.weight_gradient(&x, &o.dy);
            assert_close("dw", gradients.get(&w).unwrap(), &dw);
        }
    }
}

/// Two references that share no code but the sizes.
#[test]
fn the_reference_by_single_elements_is_the_reference() {
    let config = ProptestConfig { cases: 300, ..ProptestConfig::default() };
    proptest!(config, |(case in case())| {
        let sizes = case.sizes;
        if !sizes.fits() {
            return Ok(());
        }
        let o = Operands::new(sizes, DType::F64, case.seed, true);
        let (x, w, dy) = (|i: usize| o.x[i], |i: usize| o.w[i], |i: usize| o.dy[i]);
        let each = |all: &[f64], at: &dyn Fn(usize) -> f64| {
            let single: Vec<f64> = (0..all.len()).map(at).collect();
            assert_eq!(relative_error(&single, all), 0.0, "{case:?}");
        };
        each(&sizes.forward(&o.x, &o.w, None), &|i| sizes.forward_at(x, w, i));
        each(&sizes.input_gradient(&o.dy, &o.w), &|i| sizes.input_gradient_at(dy, w, i));
        each(&sizes.weight_gradient(&o.x, &o.dy), &|i| sizes.weight_gradient_at(x, dy, i));
    });
}
