//! Convolution inputs given by shape that others have reported as broken (GitHub issues of
//! other projects), at sizes for a CPU: each test names the report it comes from.

mod support;

use capgrad::{Conv1dOptions, DType, Device, MIB, Padding, Tape, Tensor, Var};
use support::conv::{Operands, Sizes};
use support::workspace_peak;
use support::{
    Numbers, assert_close, bits, plain, poisoned, relative_error, tensor, tolerance, values,
};

/// y, dx, dw, db.
fn run(sizes: &Sizes, operands: &Operands, device: &Device) -> [Tensor; 4] {
    let tape = Tape::new();
    let x = tape.variable(operands.x(device)).unwrap();
    let w = tape.variable(operands.w(device)).unwrap();
    let b = tape.variable(operands.b(device)).unwrap();
    let y = x.conv1d(&w, Some(&b), &sizes.options()).unwrap();
    let value = y.tensor().clone();
    let gradients = y.backward_with(operands.dy(device)).unwrap();
    let of = |v: &Var| gradients.get(v).unwrap().clone();
    [value, of(&x), of(&w), of(&b)]
}

/// Everything against the naive reference.
#[track_caller]
fn check(what: &str, sizes: &Sizes, dtype: DType, device: &Device) {
    let o = Operands::new(*sizes, dtype, 7, false);
    let [y, dx, dw, db] = run(sizes, &o, device);
    assert_close(format!("{what}: y"), &y, &sizes.forward(&o.x, &o.w, Some(&o.b)));
    assert_close(format!("{what}: dx"), &dx, &sizes.input_gradient(&o.dy, &o.w));
    assert_close(format!("{what}: dw"), &dw, &sizes.weight_gradient(&o.x, &o.dy));
    assert_close(format!("{what}: db"), &db, &sizes.bias_gradient(&o.dy));
}

#[test]
fn pytorch_22741_a_long_f16_weight_gradient_stays_within_the_cap() {
    let sizes =
        Sizes { c_in: 128, c_out: 128, k: 3, left: 1, right: 1, l: 10_752, ..Default::default() };
    let o = Operands::new(sizes, DType::F16, 3, false);
    let expected = sizes.weight_gradient(&o.x, &o.dy);
    for cap in [0, MIB / 2 + 1, 64 * MIB] {
        let device = poisoned();
        device.set_workspace_cap(cap);
        let tape = Tape::new();
        let w = tape.variable(o.w(&device)).unwrap();
        let y = tape.constant(o.x(&device)).conv1d(&w, None, &sizes.options()).unwrap();
        let gradients = y.backward_with(o.dy(&device)).unwrap();
        assert_close(format!("dw under {cap}"), gradients.get(&w).unwrap(), &expected);
        assert!(workspace_peak(&device) <= cap);
    }
}

#[test]
fn pytorch_14614_a_long_input_stays_within_the_cap() {
    let sizes =
        Sizes { c_in: 128, c_out: 64, k: 7, left: 3, right: 3, l: 49_152, ..Default::default() };
    let o = Operands::new(sizes, DType::F32, 3, false);
    for cap in [MIB, 64 * MIB] {
        let device = poisoned();
        device.set_workspace_cap(cap);
        let [y, dx, dw, _] = run(&sizes, &o, &device);
        assert!(workspace_peak(&device) <= cap);
        let [y, dx, dw] = [y, dx, dw].map(|t| values(&t));
        // A sample of the elements, from the definition.
        let mut numbers = Numbers(11);
        let (l, k) = (sizes.l, sizes.k);
        let mut pairs = [(vec![], vec![]), (vec![], vec![]), (vec![], vec![])];
        for _ in 0..300 {
            let (c, p, t) = (numbers.below(128), numbers.below(l), numbers.below(64));
            // Every input position has all seven taps but for the three at either end.
            let taps = |p: usize| (0..k).filter(move |tap| (3..l + 3).contains(&(p + tap)));
            let sum = |o_: usize| -> f64 {
                let term =
                    |c: usize, tap: usize| o.x[c * l + p + tap - 3] * o.w[(o_ * 128 + c) * k + tap];
                (0..128).map(|c| taps(p).map(|tap| term(c, tap)).sum::<f64>()).sum()
            };
            pairs[0].0.push(y[t * l + p]);
            pairs[0].1.push(sum(t) + o.b[t]);
            let back = |tap: usize| (p + 3).checked_sub(tap).filter(|&q| q < l);
            let term =
                |q: usize, o_: usize, tap: usize| o.dy[o_ * l + q] * o.w[(o_ * 128 + c) * k + tap];
            let reached = (0..k).filter_map(|tap| Some((tap, back(tap)?)));
            pairs[1].0.push(dx[c * l + p]);
            pairs[1]
                .1
                .push(reached.map(|(tap, q)| (0..64).map(|o| term(q, o, tap)).sum::<f64>()).sum());
            let tap = numbers.below(k);
            let inside = (0..l).filter(|q| (3..l + 3).contains(&(q + tap)));
            pairs[2].0.push(dw[(t * 128 + c) * k + tap]);
            pairs[2].1.push(inside.map(|q| o.dy[t * l + q] * o.x[c * l + q + tap - 3]).sum());
        }
        for (name, (out, reference)) in ["y", "dx", "dw"].iter().zip(&pairs) {
            let error = relative_error(out, reference);
            assert!(error <= tolerance(DType::F32), "{name} under {cap}: {error:e}");
        }
    }
}

#[test]
fn pytorch_103665_odd_channel_counts_on_a_short_input_work() {
    for channels in [208, 209] {
        let sizes = Sizes {
            n: 2,
            c_in: channels,
            c_out: channels,
            l: 2,
            k: 3,
            stride: 2,
            left: 1,
            right: 1,
            ..Default::default()
        };
        check(&format!("C {channels}"), &sizes, DType::F32, &poisoned());
    }
}

#[test]
fn theano_6045_batches_past_65535_equal_the_single_sample() {
    let device = poisoned();
    for n in [65_536, 65_537, 100_000] {
        let sizes = Sizes { n, l: 8, k: 3, left: 1, right: 1, ..Default::default() };
        let one = Sizes { n: 1, ..sizes };
        let o = Operands::new(one, DType::F32, 5, false);
        let [y, dx, dw, db] = run(&one, &o, &device);
        let mut many = Operands::new(one, DType::F32, 5, false);
        (many.x, many.dy) = (o.x.repeat(n), o.dy.repeat(n));
        let many = many.of(sizes);
        let [ys, dxs, dws, dbs] = run(&sizes, &many, &device);
        assert!(bits(&ys).chunks(8).all(|row| row == bits(&y)), "y, N {n}");
        assert!(bits(&dxs).chunks(8).all(|row| row == bits(&dx)), "dx, N {n}");
        for (sum, single) in [(dws, dw), (dbs, db)] {
            let expected: Vec<f64> = values(&single).iter().map(|v| v * n as f64).collect();
            assert_close(format!("sums, N {n}"), &sum, &expected);
        }
    }
}

#[test]
fn causal_conv1d_32_depthwise_with_65536_channels_works() {
    let c = 65_536;
    let sizes = Sizes { c_in: c, c_out: c, groups: c, l: 4, k: 2, left: 1, ..Default::default() };
    check("depthwise", &sizes, DType::F32, &poisoned());
}

#[test]
fn candle_3389_allocations_do_not_grow_with_the_groups() {
    let count = |groups: usize| {
        let device = poisoned();
        let sizes =
            Sizes { c_in: groups, c_out: groups, groups, l: 19, k: 3, ..Default::default() };
        check(&format!("{groups} groups"), &sizes, DType::F32, &device);
        device.report().allocations
    };
    assert_eq!(count(2048), count(32));
}

#[test]
fn pytorch_136812_f16_depthwise_with_an_even_kernel_equals_f32() {
    let sizes = Sizes {
        n: 2,
        c_in: 64,
        c_out: 64,
        groups: 64,
        l: 32,
        k: 4,
        left: 3,
        right: 3,
        ..Default::default()
    };
    let device = poisoned();
    check("f16", &sizes, DType::F16, &device);
    let o = Operands::new(sizes, DType::F16, 7, false);
    let half = run(&sizes, &o, &device);
    let single = run(&sizes, &o.in_dtype(DType::F32), &device);
    for (half, single) in half.iter().zip(&single) {
        assert_close("f16 against f32", half, &values(single));
    }
}

#[test]
fn pytorch_88571_bf16_adds_up_in_f32() {
    let sizes = Sizes { c_in: 3, c_out: 3, k: 5, l: 4096 + 4, ..Default::default() };
    check("bf16", &sizes, DType::BF16, &poisoned());
    // In bf16, 256 + 1 is 256: a sum of ones stops there.
    let device = poisoned();
    for dtype in [DType::BF16, DType::F16] {
        let tape = Tape::new();
        let w = tape.variable(Tensor::ones(sizes.w_shape(), dtype, &device).unwrap()).unwrap();
        let b = tape.variable(Tensor::zeros([3], dtype, &device).unwrap()).unwrap();
        let x = tape.constant(Tensor::ones(sizes.x_shape(), dtype, &device).unwrap());
        let y = x.conv1d(&w, Some(&b), &sizes.options()).unwrap();
        let dy = Tensor::ones(sizes.y_shape(), dtype, &device).unwrap();
        let gradients = y.backward_with(dy).unwrap();
        assert_eq!(values(gradients.get(&w).unwrap()), [4096.0; 45], "{dtype}");
        assert_eq!(values(gradients.get(&b).unwrap()), [4096.0; 3], "{dtype}");
    }
}

#[test]
fn pytorch_32395_a_permuted_input_is_as_if_made_contiguous() {
    let device = poisoned();
    for (n, c, l) in [(2, 3, 7), (2, 1, 7), (2, 3, 1), (1, 1, 1), (3, 5, 4)] {
        let sizes =
            Sizes { n, c_in: c, c_out: 4, l, k: 3, left: 1, right: 1, ..Default::default() };
        let o = Operands::new(sizes, DType::F32, 9, false);
        // The same numbers laid out (N, L, C).
        let mut channels_last = vec![0.0; n * l * c];
        for (i, &value) in o.x.iter().enumerate() {
            let (sample, channel, place) = (i / (c * l), i / l % c, i % l);
            channels_last[(sample * l + place) * c + channel] = value;
        }
        let tape = Tape::new();
        let x = tape.variable(tensor(&channels_last, [n, l, c], DType::F32, &device)).unwrap();
        let w = tape.variable(o.w(&device)).unwrap();
        let permuted = x.permute(&[0, 2, 1]).unwrap();
        let y = permuted.conv1d(&w, None, &sizes.options()).unwrap();
        assert_close("y", y.tensor(), &sizes.forward(&o.x, &o.w, None));
        let gradients = y.backward_with(o.dy(&device)).unwrap();
        let dx = sizes.input_gradient(&o.dy, &o.w);
        let mut expected = vec![0.0; dx.len()];
        for (i, value) in dx.into_iter().enumerate() {
            let (sample, channel, place) = (i / (c * l), i / l % c, i % l);
            expected[(sample * l + place) * c + channel] = value;
        }
        assert_close("dx", gradients.get(&x).unwrap(), &expected);
        let dw = sizes.weight_gradient(&o.x, &o.dy);
        assert_close("dw", gradients.get(&w).unwrap(), &dw);
    }
}

#[test]
fn pytorch_19599_an_empty_batch_has_zero_parameter_gradients() {
    let device = poisoned();
    for dtype in DType::FLOATS {
        let sizes = Sizes { n: 0, c_in: 3, c_out: 5, l: 7, k: 2, ..Default::default() };
        let o = Operands::new(sizes, dtype, 1, false);
        let [y, dx, dw, db] = run(&sizes, &o, &device);
        assert_eq!((y.dims(), dx.dims()), (&[0, 5, 6][..], &[0, 3, 7][..]));
        assert_eq!((values(&dw), values(&db)), (vec![0.0; 30], vec![0.0; 5]), "{dtype}");
        // And where the gradient is one number everywhere.
        let tape = Tape::new();
        let w = tape.variable(o.w(&device)).unwrap();
        let b = tape.variable(o.b(&device)).unwrap();
        let x = tape.constant(o.x(&device));
        let loss = x.conv1d(&w, Some(&b), &sizes.options()).unwrap().sum().unwrap();
        assert_eq!(loss.item().unwrap(), 0.0);
        let gradients = loss.backward().unwrap();
        assert_eq!(values(gradients.get(&w).unwrap()), vec![0.0; 30], "{dtype}");
        assert_eq!(values(gradients.get(&b).unwrap()), vec![0.0; 5], "{dtype}");
    }
}

/// Positions of the input, not of the stride, decide how long an input gradient takes.
#[test]
fn a_stride_longer_than_the_input_takes_no_longer() {
    for device in [poisoned(), plain()] {
        let p = 1usize << 40;
        let options =
            Conv1dOptions { stride: p / 2, padding: Padding::Explicit(p, p), ..Default::default() };
        let tape = Tape::new();
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [1, 1, 8], DType::F64, &device);
        let w = tensor(&[10.0, 100.0, 1000.0], [1, 1, 3], DType::F64, &device);
        let (x, w) = (tape.variable(x).unwrap(), tape.variable(w).unwrap());
        let y = x.conv1d(&w, None, &options).unwrap();
        // Windows begin at -p, -p/2, 0, p/2 and p; only the third meets the input.
        assert_eq!(y.tensor().to_vec::<f64>().unwrap(), [0.0, 0.0, 3210.0, 0.0, 0.0]);
        let grads = y.sum().unwrap().backward().unwrap();
        let expected = [10.0, 100.0, 1000.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(grads.get(&x).unwrap().to_vec::<f64>().unwrap(), expected);
        assert_eq!(grads.get(&w).unwrap().to_vec::<f64>().unwrap(), [1.0, 2.0, 3.0]);
    }
}
