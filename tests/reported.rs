//! Convolution inputs given by shape that others have reported as broken (GitHub issues of
//! other projects), at their own sizes on a GPU and at smaller ones on the CPU: each test names the
//! report it comes from.

mod support;

use capgrad::{Conv1dOptions, CudaOptions, DType, Device, MIB, Padding, Tape, Tensor, Var};
use support::conv::{Operands, Sizes};
use support::{
    Kind, Numbers, assert_close, bits, devices, kinds, relative_error, tensor, tolerance, values,
    workspace_peak,
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

/// y, dx and dw under each cap: the workspace, and a sample of the elements from the definition.
fn check_sampled(kind: Kind, sizes: &Sizes, caps: &[u64], count: usize) {
    let device = kind.poisoned();
    let draw = |shape: [usize; 3]| {
        let tensor = Tensor::rand(shape, DType::F32, &device).unwrap();
        let tensor = Var::from(tensor).add_scalar(-0.5).unwrap().tensor().clone();
        let numbers = tensor.to_vec::<f32>().unwrap();
        (tensor, numbers)
    };
    let [(x, xs), (w, ws), (dy, dys)] =
        [sizes.x_shape(), sizes.w_shape(), sizes.y_shape()].map(draw);
    // The last element too, and the first.
    let mut numbers = Numbers(11);
    let mut sample = |shape: [usize; 3]| -> Vec<usize> {
        let n = shape.iter().product();
        [0, n - 1].into_iter().chain((0..count).map(|_| numbers.below(n))).collect()
    };
    let (of_y, of_x, of_w) =
        (sample(sizes.y_shape()), sample(sizes.x_shape()), sample(sizes.w_shape()));
    let (x_at, w_at) = (|i: usize| xs[i] as f64, |i: usize| ws[i] as f64);
    let dy_at = |i: usize| dys[i] as f64;
    let expected: [Vec<f64>; 3] = [
        of_y.iter().map(|&i| sizes.forward_at(x_at, w_at, i)).collect(),
        of_x.iter().map(|&i| sizes.input_gradient_at(dy_at, w_at, i)).collect(),
        of_w.iter().map(|&i| sizes.weight_gradient_at(x_at, dy_at, i)).collect(),
    ];
    for &cap in caps {
        device.set_workspace_cap(cap);
        let tape = Tape::new();
        let (x, w) = (tape.variable(x.clone()).unwrap(), tape.variable(w.clone()).unwrap());
        device.reset_peak();
        let y = x.conv1d(&w, None, &sizes.options()).unwrap();
        let value = y.tensor().clone();
        let gradients = y.backward_with(dy.clone()).unwrap();
        let peak = workspace_peak(&device);
        assert!(peak <= cap, "{sizes:?} took {peak} under {cap}");
        let results = [&value, gradients.get(&x).unwrap(), gradients.get(&w).unwrap()];
        let places = [&of_y, &of_x, &of_w];
        for (i, name) in ["y", "dx", "dw"].iter().enumerate() {
            let all = results[i].to_vec::<f32>().unwrap();
            let out: Vec<f64> = places[i].iter().map(|&place| all[place] as f64).collect();
            let error = relative_error(&out, &expected[i]);
            let what = format!("{name} of {sizes:?} on {device} under {cap}");
            assert!(error <= tolerance(DType::F32), "{what}: {error:e}");
        }
    }
}

#[test]
fn pytorch_22741_a_long_f16_weight_gradient_stays_within_the_cap() {
    let sizes =
        Sizes { c_in: 128, c_out: 128, k: 3, left: 1, right: 1, l: 10_752, ..Default::default() };
    let o = Operands::new(sizes, DType::F16, 3, false);
    let expected = sizes.weight_gradient(&o.x, &o.dy);
    let caps = [0, MIB / 2 + 1, 64 * MIB];
    for (kind, cap) in kinds().flat_map(|kind| caps.map(|cap| (kind, cap))) {
        let device = kind.poisoned();
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
    for kind in kinds() {
        let l = if kind == Kind::Cuda { 786_432 } else { 49_152 };
        let sizes =
            Sizes { c_in: 128, c_out: 64, k: 7, left: 3, right: 3, l, ..Default::default() };
        check_sampled(kind, &sizes, &[MIB, 64 * MIB], 300);
    }
}

/// The layer whose strict f32 forward pass takes 110 GiB elsewhere, and whose backward pass takes
/// as much with 31 taps.
#[test]
fn a_layer_of_a_fifth_of_a_gigabyte_stays_within_the_cap() {
    for kind in kinds() {
        let n = if kind == Kind::Cuda { 512 } else { 4 };
        for k in [5, 7, 31] {
            let (c_in, c_out, ends) = (576, 1024, k / 2);
            let sizes =
                Sizes { n, c_in, c_out, l: 64, k, left: ends, right: ends, ..Default::default() };
            check_sampled(kind, &sizes, &[0, 64 * MIB], 300);
        }
    }
}

#[test]
fn pytorch_103665_odd_channel_counts_on_a_short_input_work() {
    for (kind, channels) in kinds().flat_map(|kind| [(kind, 208), (kind, 209)]) {
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
        check(&format!("C {channels}"), &sizes, DType::F32, &kind.poisoned());
    }
}

#[test]
fn theano_6045_batches_past_65535_equal_the_single_sample() {
    for device in devices() {
        let cuda = Kind::of(&device) == Kind::Cuda;
        let (c, l) = if cuda { (2, 80) } else { (1, 8) };
        for n in [65_536, 65_537, 100_000] {
            let sizes =
                Sizes { n, c_in: c, c_out: c, l, k: 3, left: 1, right: 1, ..Default::default() };
            let one = Sizes { n: 1, ..sizes };
            let o = Operands::new(one, DType::F32, 5, false);
            let single = run(&one, &o, &device);
            let [y, dx, dw, db] = [
                one.forward(&o.x, &o.w, Some(&o.b)),
                one.input_gradient(&o.dy, &o.w),
                one.weight_gradient(&o.x, &o.dy),
                one.bias_gradient(&o.dy),
            ];
            let mut many = Operands::new(one, DType::F32, 5, false);
            (many.x, many.dy) = (o.x.repeat(n), o.dy.repeat(n));
            let many = many.of(sizes);
            let [ys, dxs, dws, dbs] = run(&sizes, &many, &device);
            for (name, out, expected, single) in
                [("y", &ys, y, &single[0]), ("dx", &dxs, dx, &single[1])]
            {
                assert_close(format!("{name}, N {n}"), out, &expected.repeat(n));
                // One row can be wrong without showing among so many.
                let last = values(out).split_off((n - 1) * c * l);
                let error = relative_error(&last, &expected);
                assert!(error <= tolerance(DType::F32), "the last row of {name}, N {n}: {error:e}");
                // On a GPU another batch may be another algorithm's.
                let equal = |row: &[u64]| row == bits(single);
                assert!(cuda || bits(out).chunks(c * l).all(equal), "{name}, N {n}");
            }
            // Equal samples are the worst that a sum kept in one f32 can meet, and some of a
            // library's are: these are asked of our own kernels.
            let [.., dws, dbs] = if cuda {
                let options =
                    CudaOptions { poison: true, kernels_only: true, ..Default::default() };
                run(&sizes, &many, &Device::new_cuda(0, options).unwrap())
            } else {
                [ys, dxs, dws, dbs]
            };
            for (sum, single) in [(dws, dw), (dbs, db)] {
                let expected: Vec<f64> = single.iter().map(|v| v * n as f64).collect();
                assert_close(format!("sums, N {n}"), &sum, &expected);
            }
        }
    }
}

#[test]
fn causal_conv1d_32_depthwise_with_65536_channels_works() {
    let c = 65_536;
    let sizes = Sizes { c_in: c, c_out: c, groups: c, l: 4, k: 2, left: 1, ..Default::default() };
    for device in devices() {
        check("depthwise", &sizes, DType::F32, &device);
    }
}

#[test]
fn candle_3389_allocations_do_not_grow_with_the_groups() {
    let count = |kind: Kind, groups: usize| {
        let device = kind.poisoned();
        // Not of workspaces: which algorithm is the fastest may hang on the groups.
        device.set_workspace_cap(0);
        let sizes =
            Sizes { c_in: groups, c_out: groups, groups, l: 19, k: 3, ..Default::default() };
        check(&format!("{groups} groups"), &sizes, DType::F32, &device);
        device.report().allocations
    };
    for kind in kinds() {
        assert_eq!(count(kind, 2048), count(kind, 32));
    }
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
    for device in devices() {
        check("f16", &sizes, DType::F16, &device);
        let o = Operands::new(sizes, DType::F16, 7, false);
        let half = run(&sizes, &o, &device);
        let single = run(&sizes, &o.in_dtype(DType::F32), &device);
        for (half, single) in half.iter().zip(&single) {
            assert_close("f16 against f32", half, &values(single));
        }
    }
}

#[test]
fn pytorch_88571_bf16_adds_up_in_f32() {
    let sizes = Sizes { c_in: 3, c_out: 3, k: 5, l: 4096 + 4, ..Default::default() };
    let dtypes = [DType::BF16, DType::F16];
    for (device, dtype) in devices().flat_map(|d| dtypes.map(|dtype| (d.clone(), dtype))) {
        check("halves", &sizes, dtype, &device);
        // In bf16, 256 + 1 is 256: a sum of ones stops there.
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
    for device in devices() {
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
}

#[test]
fn pytorch_19599_an_empty_batch_has_zero_parameter_gradients() {
    for device in devices() {
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
}

/// Positions of the input, not of the stride, decide how long an input gradient takes.
#[test]
fn a_stride_longer_than_the_input_takes_no_longer() {
    for device in kinds().flat_map(|kind| [kind.poisoned(), kind.plain()]) {
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
