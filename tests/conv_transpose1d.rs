//! Transposed convolution: against a naive f64 reference, by hand, and as the adjoint of the
//! convolution whose transpose it is.

mod support;

use capgrad::{ConvTranspose1dOptions, DType, Tape, Var};
use proptest::prelude::*;
use support::conv::{Operands, Sizes};
use support::{Kind, Numbers, assert_close, devices, tensor, values};

/// Sizes of the convolution that a transposed one is the transpose of.
fn transposed_case() -> impl Strategy<Value = (Sizes, ConvTranspose1dOptions, DType, u64)> {
    let channels = (1usize..4, 1usize..4, 1usize..4);
    let window = (1usize..8, 1usize..5, 1usize..4, 1usize..4, 0usize..3, 0usize..3);
    (channels, window, 1usize..4, 0usize..4, any::<u64>()).prop_filter_map(
        "an output is left",
        |((groups, per_in, per_out), window, n, dtype, seed)| {
            let (l, k, stride, dilation, padding, extra) = window;
            let output_padding = extra % stride;
            let full = (l - 1) * stride + (k - 1) * dilation + 1 + output_padding;
            let long = full.checked_sub(2 * padding).filter(|&long| long > 0)?;
            let sizes = Sizes {
                n,
                c_in: groups * per_out,
                c_out: groups * per_in,
                l: long,
                k,
                stride,
                dilation,
                groups,
                left: padding,
                right: padding,
            };
            let options = ConvTranspose1dOptions {
                stride,
                dilation,
                groups,
                padding,
                output_padding,
                workspace_cap: None,
            };
            (sizes.fits() && sizes.out_length() == l).then_some((
                sizes,
                options,
                DType::FLOATS[dtype],
                seed,
            ))
        },
    )
}

/// `Σ a·b`.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn the_transposed_convolution_is_the_adjoint_and_agrees_with_the_reference() {
    for device in devices() {
        let (base, cases) = (device.live_bytes(), Kind::of(&device).share(500));
        let config = ProptestConfig { cases, ..ProptestConfig::default() };
        proptest!(config, |((sizes, options, dtype, seed) in transposed_case())| {
            // Its input is the convolution's output and the other way round.
            let o = Operands::new(sizes, dtype, seed, true);
            let bias = Numbers(seed ^ 1).sixteenths(sizes.c_in);
            for cap in [None, Some(0), Some(777)] {
                let options = ConvTranspose1dOptions { workspace_cap: cap, ..options };
                let tape = Tape::new();
                let x = tape.variable(o.dy(&device)).unwrap();
                let w = tape.variable(o.w(&device)).unwrap();
                let b = tape.variable(tensor(&bias, [sizes.c_in], dtype, &device)).unwrap();
                let y = x.conv_transpose1d(&w, Some(&b), &options).unwrap();
                assert_eq!(y.dims(), sizes.x_shape());
                let mut expected = sizes.input_gradient(&o.dy, &o.w);
                for (i, value) in expected.iter_mut().enumerate() {
                    *value += bias[i / sizes.l % sizes.c_in];
                }
                assert_close("y", y.tensor(), &expected);
                let gradients = y.backward_with(o.x(&device)).unwrap();
                let dx = sizes.forward(&o.x, &o.w, None);
                assert_close("dx", gradients.get(&x).unwrap(), &dx);
                let dw = sizes.weight_gradient(&o.x, &o.dy);
                assert_close("dw", gradients.get(&w).unwrap(), &dw);
                let channel =
                    |i: usize| (0..o.x.len()).filter(move |e| e / sizes.l % sizes.c_in == i);
                let db: Vec<f64> =
                    (0..sizes.c_in).map(|i| channel(i).map(|e| o.x[e]).sum()).collect();
                assert_close("db", gradients.get(&b).unwrap(), &db);
            }
            if dtype == DType::F64 {
                // <conv(x), y> = <x, transposed conv(y)>, both by the crate.
                let (x, w) = (Var::from(o.x(&device)), Var::from(o.w(&device)));
                let y = Var::from(o.dy(&device));
                let forward = values(x.conv1d(&w, None, &sizes.options()).unwrap().tensor());
                let back = values(y.conv_transpose1d(&w, None, &options).unwrap().tensor());
                let (left, right) = (dot(&forward, &o.dy), dot(&o.x, &back));
                assert!((left - right).abs() <= 1e-12 * left.abs().max(1.0), "{left} and {right}");
            }
        });
        assert_eq!(device.live_bytes(), base);
    }
}

#[test]
fn a_transposed_convolution_by_hand() {
    for device in devices() {
        let x = Var::from(tensor(&[1.0, 2.0, 3.0], [1, 1, 3], DType::F64, &device));
        let w = Var::from(tensor(&[1.0, 10.0, 100.0], [1, 1, 3], DType::F64, &device));
        let options = ConvTranspose1dOptions {
            stride: 2,
            padding: 1,
            output_padding: 1,
            ..Default::default()
        };
        let y = x.conv_transpose1d(&w, None, &options).unwrap();
        // 1, 10, 100 + 2, 20, 200 + 3, 30, 300 from one to the next two on; the first is cut off,
        // and the last too, but for the one that comes back.
        assert_eq!(values(y.tensor()), [10.0, 102.0, 20.0, 203.0, 30.0, 300.0]);
    }
}
