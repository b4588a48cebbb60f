//! Convolution sizes that others have reported as broken (issues of other projects):
//! kernels longer than the input, more than 2³¹ elements, and what dilation costs.

mod support;

use capgrad::{
    Conv1d, Conv1dOptions, DType, Error, MIB, Padding, Purpose, Shape, Tape, Tensor, Var, cat,
};
use std::time::Instant;
use support::conv::{Operands, Sizes};
use support::{Kind, assert_close, cuda_devices, devices, kinds, values};

#[test]
fn pytorch_4607_a_kernel_longer_than_the_input_is_named_with_the_padded_length() {
    for device in devices() {
        for (k, stride, pad, padded) in [(3, 2, 0, 2), (4, 1, 0, 2), (5, 1, 1, 4)] {
            let x = Var::from(Tensor::ones([1, 1, 2], DType::F32, &device).unwrap());
            let w = Var::from(Tensor::ones([1, 1, k], DType::F32, &device).unwrap());
            let padding = Padding::Explicit(pad, pad);
            let options = Conv1dOptions { stride, padding, ..Default::default() };
            let error = x.conv1d(&w, None, &options).unwrap_err();
            let Error::KernelTooLong { kernel, padded_length, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((*kernel, *padded_length), (k, padded));
            let text = error.to_string();
            assert!(text.contains(&k.to_string()) && text.contains(&padded.to_string()), "{text}");
        }
    }
}

#[test]
fn pytorch_117736_sizes_past_2_to_the_31_do_not_wrap() {
    let (x, w) = (Shape::from([1, 32, 67_108_868]), Shape::from([1, 32, 1]));
    let geometry = Conv1dOptions::default().geometry(&x, &w).unwrap();
    assert_eq!((geometry.out_length, x.elements()), (67_108_868, 2_147_483_776));
    // Planned without memory for it, and refused with the numbers in it.
    for device in kinds().map(Kind::plain) {
        let conv = Conv1d::builder(32, 1, 1).build(&device).unwrap();
        for plan in conv.plan(x.clone()).unwrap() {
            assert!(plan.taken().workspace <= 64 * MIB, "{plan}");
        }
        device.set_memory_limit(Some(device.live_bytes() + (1 << 30))).unwrap();
        let error = Tensor::zeros(x.clone(), DType::F32, &device).unwrap_err();
        assert!(matches!(error, Error::MemoryLimit { requested: 8_589_935_104, .. }), "{error}");
    }
}

#[test]
fn pytorch_87354_a_tensor_of_more_than_2_to_the_31_elements_is_right_to_the_last() {
    const CHANNELS: usize = 32;
    const LENGTH: usize = 67_108_868;
    for device in cuda_devices() {
        let free = device.report().driver.unwrap().free;
        if free < 48 << 30 {
            println!("skipped: {free} bytes are free, of 48 GiB that it takes");
            continue;
        }
        // Row c is (c + 1) times the first one. Of small whole numbers, so exact in f32; the
        // periods are primes, so that an element from elsewhere is another number.
        let row = |l: usize| (l % 251 + 1) as f32;
        let back = |l: usize| (l % 241 + 1) as f32;
        let weight = |c: usize| (c % 7) as f64 - 2.0;
        let first: Vec<f32> = (0..LENGTH).map(row).collect();
        let first = Var::from(Tensor::from_vec(first, [1, 1, LENGTH], &device).unwrap());
        let x = {
            let rows: Vec<Var> =
                (1..=CHANNELS).map(|c| first.mul_scalar(c as f64).unwrap()).collect();
            cat(&rows.iter().collect::<Vec<_>>(), 1).unwrap()
        };
        drop(first);
        assert!(x.tensor().elements() > 1 << 31);
        let w: Vec<f32> = (0..CHANNELS).map(|c| weight(c) as f32).collect();
        let tape = Tape::new();
        let w = tape.variable(Tensor::from_vec(w, [1, CHANNELS, 1], &device).unwrap()).unwrap();
        let v = tape.variable(x.tensor().clone()).unwrap();
        drop(x);
        device.reset_peak();
        let y = v.conv1d(&w, None, &Conv1dOptions::default()).unwrap();
        let sum: f64 = (0..CHANNELS).map(|c| weight(c) * (c + 1) as f64).sum();
        let wrong = |out: Vec<f32>, expected: &dyn Fn(usize) -> f64| {
            let right = |(l, &out): (usize, &f32)| {
                let expected = expected(l);
                (out as f64 - expected).abs() <= 1e-5 * expected.abs()
            };
            let wrong = out.iter().enumerate().find(|&place| !right(place));
            wrong.map(|(l, &out)| (l, out, expected(l)))
        };
        let out = y.tensor().to_vec::<f32>().unwrap();
        assert_eq!(wrong(out, &|l| sum * row(l) as f64), None, "y: place, found, expected");
        let dy: Vec<f32> = (0..LENGTH).map(back).collect();
        let dy = Tensor::from_vec(dy, [1, 1, LENGTH], &device).unwrap();
        let gradients = y.backward_with(dy).unwrap();
        assert!(device.report().peaks[Purpose::Workspace] <= 64 * MIB);
        let total: f64 = (0..LENGTH).map(|l| row(l) as f64 * back(l) as f64).sum();
        let dw: Vec<f64> = (1..=CHANNELS).map(|c| c as f64 * total).collect();
        assert_close("dw", gradients.get(&w).unwrap(), &dw);
        let dx = Var::from(gradients.get(&v).unwrap());
        for c in [0, 1, 17, CHANNELS - 1] {
            let row = dx.narrow(1, c, 1).unwrap();
            let row = row.tensor().to_vec::<f32>().unwrap();
            let expected = |l: usize| weight(c) * back(l) as f64;
            assert_eq!(wrong(row, &expected), None, "dx of channel {c}: place, found, expected");
        }
        // The last elements by themselves, past what 31 bits count.
        let last = dx.narrow(2, LENGTH - 3, 3).unwrap().narrow(1, CHANNELS - 1, 1).unwrap();
        let expected = [3, 2, 1].map(|l| weight(CHANNELS - 1) * back(LENGTH - l) as f64);
        assert_eq!(values(last.tensor()), expected);
    }
}

#[test]
fn pytorch_28777_dilation_costs_a_deterministic_device_little() {
    for device in kinds().map(Kind::plain) {
        device.set_deterministic(true);
        let seconds = |dilation: usize| {
            let sizes = Sizes {
                c_in: 512,
                c_out: 512,
                k: 3,
                dilation,
                l: 256,
                left: dilation,
                right: dilation,
                ..Default::default()
            };
            let o = Operands::new(sizes, DType::F32, 1, false);
            let (x, w) = (Var::from(o.x(&device)), Var::from(o.w(&device)));
            let time = |_| {
                device.synchronize().unwrap();
                let start = Instant::now();
                x.conv1d(&w, None, &sizes.options()).unwrap();
                device.synchronize().unwrap();
                start.elapsed().as_secs_f64()
            };
            (0..10).map(time).fold(f64::INFINITY, f64::min)
        };
        let (one, two) = (seconds(1), seconds(2));
        assert!(two < 4.0 * one, "dilation 1 took {one} s, dilation 2 {two} s");
    }
}
