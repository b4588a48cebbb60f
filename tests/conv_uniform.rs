//! A loss that is a `mean` or a `sum` of a convolution: its output gradient is one number
//! everywhere, and need not be written out. What comes of it must equal what a written one gives.

mod support;

use capgrad::{Conv1dOptions, DType, Padding, Tape, Tensor};
use proptest::prelude::*;
use support::conv::Operands;
use support::generate::case;
use support::{Kind, assert_close, devices, tensor, values, workspace_peak};

#[test]
fn a_gradient_that_is_one_number_everywhere_gives_what_a_written_one_gives() {
    for device in devices() {
        let (base, cases) = (device.live_bytes(), Kind::of(&device).share(400));
        let config = ProptestConfig { cases, ..ProptestConfig::default() };
        proptest!(config, |(case in case(), cap in prop_oneof![
            Just(None), Just(Some(0)), (0u64..600).prop_map(Some)
        ], mean: bool)| {
            let sizes = &case.sizes;
            let strided = case.padding == Padding::Same && sizes.stride != 1;
            if !sizes.fits() || strided {
                return Ok(());
            }
            let o = Operands::new(*sizes, case.dtype, case.seed, true);
            let count: usize = sizes.y_shape().iter().product();
            if count == 0 {
                return Ok(());
            }
            let g = if mean { 1.0 / count as f64 } else { 1.0 };
            let options = Conv1dOptions {
                padding: case.padding,
                workspace_cap: cap,
                ..sizes.options()
            };
            let expected = {
                let dy = vec![g; count];
                [sizes.input_gradient(&dy, &o.w), sizes.weight_gradient(&o.x, &dy),
                 sizes.bias_gradient(&dy)]
            };
            for written in [false, true] {
                let tape = Tape::new();
                let leaves = [o.x(&device), o.w(&device), o.b(&device)];
                let [x, w, b] = leaves.map(|leaf| tape.variable(leaf).unwrap());
                device.reset_peak();
                let y = x.conv1d(&w, Some(&b), &options).unwrap();
                let gradients = if written {
                    let dy = tensor(&vec![g; count], sizes.y_shape(), case.dtype, &device);
                    y.backward_with(dy).unwrap()
                } else {
                    let loss = if mean { y.mean() } else { y.sum() };
                    loss.unwrap().backward().unwrap()
                };
                assert!(cap.is_none_or(|cap| workspace_peak(&device) <= cap));
                for (leaf, expected) in [&x, &w, &b].into_iter().zip(&expected) {
                    let what = format!("{case:?}, written {written}, {cap:?}");
                    assert_close(what, gradients.get(leaf).unwrap(), expected);
                }
            }
        });
        assert_eq!(device.live_bytes(), base);
    }
}

#[test]
fn a_large_f16_batch_does_not_overflow() {
    for device in devices() {
        let x = Tensor::full([10_000, 2, 1], 8.0, DType::F16, &device).unwrap();
        let tape = Tape::new();
        let w = tape.variable(Tensor::zeros([4, 2, 1], DType::F16, &device).unwrap()).unwrap();
        let y = tape.constant(x).conv1d(&w, None, &Conv1dOptions::default()).unwrap();
        let loss = y.sum().unwrap().mul_scalar(1.0 / 1024.0).unwrap();
        let gradients = loss.backward().unwrap();
        // 10,000 times 8 is over the largest f16; a thousandth of it is not.
        assert_eq!(values(gradients.get(&w).unwrap()), [78.125; 8]);
    }
}
