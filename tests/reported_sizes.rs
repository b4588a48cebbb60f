//! Convolution sizes that others have reported as broken (issues of other projects):
//! kernels longer than the input, more than 2³¹ elements, and what dilation costs.

mod support;

use capgrad::{Conv1d, Conv1dOptions, DType, Error, MIB, Padding, Shape, Tensor, Var};
use std::time::Instant;
use support::conv::{Operands, Sizes};
use support::plain;
use support::poisoned;

#[test]
fn pytorch_4607_a_kernel_longer_than_the_input_is_named_with_the_padded_length() {
    let device = poisoned();
    for (k, stride, pad, padded) in [(3, 2, 0, 2), (4, 1, 0, 2), (5, 1, 1, 4)] {
        let x = Var::from(Tensor::ones([1, 1, 2], DType::F32, &device).unwrap());
        let w = Var::from(Tensor::ones([1, 1, k], DType::F32, &device).unwrap());
        let padding = Padding::Explicit(pad, pad);
        let options = Conv1dOptions { stride, padding, ..Default::default() };
        let error = x.conv1d(&w, None, &options).unwrap_err();
        let Error::KernelTooLong { kernel, padded_length, .. } = &error else { panic!("{error}") };
        assert_eq!((*kernel, *padded_length), (k, padded));
        let text = error.to_string();
        assert!(text.contains(&k.to_string()) && text.contains(&padded.to_string()), "{text}");
    }
}

#[test]
fn pytorch_117736_sizes_past_2_to_the_31_do_not_wrap() {
    let (x, w) = (Shape::from([1, 32, 67_108_868]), Shape::from([1, 32, 1]));
    let geometry = Conv1dOptions::default().geometry(&x, &w).unwrap();
    assert_eq!((geometry.out_length, x.elements()), (67_108_868, 2_147_483_776));
    // Planned without memory for it, and refused with the numbers in it.
    let device = plain();
    let conv = Conv1d::builder(32, 1, 1).build(&device).unwrap();
    for plan in conv.plan(x.clone()).unwrap() {
        assert!(plan.taken().workspace <= 64 * MIB, "{plan}");
    }
    device.set_memory_limit(Some(1 << 30)).unwrap();
    let error = Tensor::zeros(x, DType::F32, &device).unwrap_err();
    assert!(matches!(error, Error::MemoryLimit { requested: 8_589_935_104, .. }), "{error}");
}

#[test]
fn pytorch_28777_dilation_costs_a_deterministic_device_little() {
    let device = plain();
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
        let time = |_| {
            let start = Instant::now();
            let (x, w) = (Var::from(o.x(&device)), Var::from(o.w(&device)));
            x.conv1d(&w, None, &sizes.options()).unwrap();
            start.elapsed().as_secs_f64()
        };
        (0..5).map(time).fold(f64::INFINITY, f64::min)
    };
    let (one, two) = (seconds(1), seconds(2));
    assert!(two < 4.0 * one, "dilation 1 took {one} s, dilation 2 {two} s");
}
