//! The elementwise functions against their formulas in f64, and their gradients against
//! differences.

use super::*;
use crate::device::cpu::testing::{agrees, devices, result, same_on_all, tensor, values};
use crate::{DType, Device};

fn cpu() -> Device {
    devices()[0].clone()
}

fn apply(f: Unary, x: &[f64], dtype: DType, device: &Device) -> Tensor {
    let out = result([x.len()], dtype, device);
    device.backend().unary(f, &tensor(x, [x.len()], dtype, device), &out).unwrap();
    out
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()))
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

type OfOne = fn(f64) -> f64;

const UNARY: [(Unary, OfOne); 15] = [
    (Unary::Affine(1.5, -0.25), |x| 1.5 * x - 0.25),
    (Unary::Reciprocal(3.0), |x| 3.0 / x),
    (Unary::Square, |x| x * x),
    (Unary::Sqrt, f64::sqrt),
    (Unary::Exp, f64::exp),
    (Unary::Ln, f64::ln),
    (Unary::Relu, |x| x.max(0.0)),
    (Unary::LeakyRelu(0.25), |x| if x > 0.0 { x } else { 0.25 * x }),
    (Unary::Gelu, gelu),
    (Unary::GeluTanh, gelu_tanh),
    (Unary::Silu, |x| x / (1.0 + (-x).exp())),
    (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    (Unary::Tanh, f64::tanh),
    (Unary::Clamp(-1.03, 1.03), |x| x.clamp(-1.03, 1.03)),
    (Unary::Abs, f64::abs),
];

/// Away from 0 and from where functions have corners; positive where that is needed.
fn operand(f: Unary, n: usize) -> Vec<f64> {
    let x = values(n, 1).into_iter().map(|x| if x == 0.0 { 0.5 } else { x });
    let positive = matches!(f, Unary::Sqrt | Unary::Ln);
    x.map(|x| if positive { x.abs() } else { x }).collect()
}

#[test]
fn unary_functions_and_gradients_agree_with_f64() {
    for (f, formula) in UNARY {
        for dtype in DType::FLOATS {
            let n = 1037;
            let x = operand(f, n);
            let device = cpu();
            let y = apply(f, &x, dtype, &device);
            agrees(&y, &x.iter().map(|&x| formula(x)).collect::<Vec<_>>());
            let dy = values(n, 2);
            let saved = if f.saves_result() { y } else { tensor(&x, [n], dtype, &device) };
            let out = result([n], dtype, &device);
            let dy_tensor = tensor(&dy, [n], dtype, &device);
            device.backend().unary_gradient(f, &saved, &dy_tensor, &out).unwrap();
            if dtype == DType::F32 {
                let step = 1e-5;
                let slopes = x
                    .iter()
                    .zip(&dy)
                    .map(|(&x, dy)| (formula(x + step) - formula(x - step)) / (2.0 * step) * dy);
                agrees(&out, &slopes.collect::<Vec<_>>());
            } else if dtype == DType::BF16 {
                assert!(out.to_f64_vec().unwrap().iter().all(|x| x.is_finite()));
            }
        }
    }
}

#[test]
fn nothing_overflows_and_nan_is_kept() {
    for dtype in [DType::F32, DType::F16] {
        let big = if dtype == DType::F16 { 80.0 } else { 1e4 };
        let x = [-big, big, f64::NAN];
        for (f, expected) in [
            (Unary::Sigmoid, [0.0, 1.0]),
            (Unary::Silu, [0.0, big]),
            (Unary::Gelu, [0.0, big]),
            (Unary::GeluTanh, [0.0, big]),
            (Unary::Relu, [0.0, big]),
            (Unary::Clamp(-1.0, 1.0), [-1.0, 1.0]),
            (Unary::Abs, [big, big]),
        ] {
            let y = apply(f, &x, dtype, &cpu()).to_f64_vec().unwrap();
            for (y, expected) in y.iter().zip(expected) {
                assert!((y - expected).abs() <= 1e-3 * big, "{f:?} {dtype}: {y}");
            }
            assert!(y[2].is_nan(), "{f:?}");
        }
        let device = cpu();
        let (a, b) = (tensor(&x[..2], [2], dtype, &device), tensor(&[1.0], [], dtype, &device));
        let out = result([2], dtype, &device);
        device.backend().binary(Binary::BceWithLogits, &a, &b, &out).unwrap();
        agrees(&out, &[big, 0.0]);
    }
}

type OfTwo = fn(f64, f64) -> f64;

const BINARY: [(Binary, OfTwo); 8] = [
    (Binary::Add, |a, b| a + b),
    (Binary::Sub, |a, b| a - b),
    (Binary::Mul, |a, b| a * b),
    (Binary::Div, |a, b| a / b),
    (Binary::SquaredError, |a, b| (a - b) * (a - b)),
    (Binary::AbsoluteError, |a, b| (a - b).abs()),
    (Binary::Huber(0.9), |a, b| {
        let d = (a - b).abs();
        if d <= 0.9 { 0.5 * d * d } else { 0.9 * (d - 0.45) }
    }),
    (Binary::BceWithLogits, |a, b| a.max(0.0) - a * b + (-a.abs()).exp().ln_1p()),
];

#[test]
fn binary_functions_sums_and_gradients_agree_with_f64() {
    let (n, m) = (33, 515);
    let a = values(n * m, 3);
    // Odd multiples of 1/64: never 0, never equal to an element of `a`.
    let b: Vec<f64> = values(m, 4).iter().map(|b| (b + 1.0 / 64.0) / 2.0).collect();
    for (f, formula) in BINARY {
        for dtype in DType::FLOATS {
            let run = |device: &Device| {
                let (x, y) = (tensor(&a, [n, m], dtype, device), tensor(&b, [m], dtype, device));
                let sum = result([], dtype, device);
                device.backend().binary_sum(f, 0.125, &x, &y, &sum).unwrap();
                sum
            };
            let rounded = tensor(&b, [m], dtype, &cpu()).to_f64_vec().unwrap();
            let pairs = || a.iter().enumerate().map(|(i, &a)| (a, rounded[i % m]));
            let expected: Vec<f64> = pairs().map(|(a, b)| formula(a, b)).collect();
            agrees(&same_on_all(run), &[expected.iter().sum::<f64>() * 0.125]);

            let device = devices()[1].clone();
            let (x, y) = (tensor(&a, [n, m], dtype, &device), tensor(&b, [m], dtype, &device));
            let out = result([n, m], dtype, &device);
            device.backend().binary(f, &x, &y, &out).unwrap();
            agrees(&out, &expected);
            let dy = Tensor::uniform(&tensor(&[0.5], [], dtype, &device), out.shape().clone());
            for side in [Side::Left, Side::Right] {
                device.backend().binary_gradient(f, side, &x, &y, &dy, &out).unwrap();
                if dtype != DType::F32 {
                    assert!(out.to_f64_vec().unwrap().iter().all(|x| x.is_finite()));
                    continue;
                }
                let slopes = pairs().map(|(a, b)| {
                    let h = 1e-6;
                    let (da, db) = if side == Side::Left { (h, 0.0) } else { (0.0, h) };
                    (formula(a + da, b + db) - formula(a - da, b - db)) / (4.0 * h)
                });
                agrees(&out, &slopes.collect::<Vec<_>>());
            }
        }
    }
}
