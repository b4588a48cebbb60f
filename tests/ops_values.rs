//! Results against numbers from elsewhere: the definitions, written out over f64, and cases done by
//! hand.

mod support;

use capgrad::{DType, Device, Reduction, Result, Tape, Tensor, Var, cat, stack};
use support::devices;
use support::ops::*;

fn values(x: Result<Var>) -> Vec<f64> {
    x.and_then(|x| x.tensor().to_f64_vec()).expect("a result")
}

/// `erf` by its series without cancellation, `2/√π · e^(-x²) · Σ 2^k x^(2k+1) / (2k+1)!!`.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for k in 1..100 {
        term *= 2.0 * x * x / (2 * k + 1) as f64;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[test]
fn functions_of_one_operand_follow_their_formulas() {
    type Row = (&'static str, fn(&Var) -> Result<Var>, fn(f64) -> f64);
    let rows: &[Row] = &[
        ("neg", |x| x.neg(), |x| -x),
        ("add_scalar", |x| x.add_scalar(0.7), |x| x + 0.7),
        ("sub_scalar", |x| x.sub_scalar(0.7), |x| x - 0.7),
        ("mul_scalar", |x| x.mul_scalar(0.7), |x| x * 0.7),
        ("div_scalar", |x| x.div_scalar(0.7), |x| x / 0.7),
        ("scalar_sub", |x| x.scalar_sub(0.7), |x| 0.7 - x),
        ("scalar_div", |x| x.scalar_div(0.7), |x| 0.7 / x),
        ("square", |x| x.square(), |x| x * x),
        ("sqrt", |x| x.abs()?.sqrt(), |x| x.abs().sqrt()),
        ("exp", |x| x.exp(), f64::exp),
        ("ln", |x| x.abs()?.ln(), |x| x.abs().ln()),
        ("abs", |x| x.abs(), f64::abs),
        ("clamp", |x| x.clamp(-0.5, 0.75), |x| x.clamp(-0.5, 0.75)),
        ("relu", |x| x.relu(), |x| x.max(0.0)),
        ("leaky_relu", |x| x.leaky_relu(0.1), |x| if x > 0.0 { x } else { 0.1 * x }),
        ("gelu", |x| x.gelu(), |x| x / 2.0 * (1.0 + erf(x / 2f64.sqrt()))),
        (
            "gelu_tanh",
            |x| x.gelu_tanh(),
            |x| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                x / 2.0 * (1.0 + inner.tanh())
            },
        ),
        ("silu", |x| x.silu(), |x| x / (1.0 + (-x).exp())),
        ("sigmoid", |x| x.sigmoid(), |x| 1.0 / (1.0 + (-x).exp())),
        ("tanh", |x| x.tanh(), f64::tanh),
    ];
    for device in devices() {
        // Few, and enough for several threads.
        for n in [1, 7, 100_003] {
            let numbers = data(n as u64, n, (-2.0, 4.0));
            let x = constant(&device, &[n], &numbers);
            for (name, f, reference) in rows {
                let reference: Vec<f64> = numbers.iter().map(|&x| reference(x)).collect();
                assert_close(name, &values(f(&x)), &reference, 1e-12);
            }
        }
    }
}

#[test]
fn extreme_operands_neither_overflow_nor_become_nan() {
    for device in devices() {
        let x = constant(&device, &[4], &[-1000.0, -50.0, 50.0, 1000.0]);
        assert_eq!(values(x.silu())[3], 1000.0);
        assert_eq!(values(x.gelu()), [0.0, 0.0, 50.0, 1000.0]);
        assert_eq!(values(x.gelu_tanh())[3], 1000.0);
        assert_eq!(values(x.sigmoid())[3], 1.0);
        assert_eq!(values(x.tanh()), [-1.0, -1.0, 1.0, 1.0]);
        let zeros = constant(&device, &[4], &[0.0; 4]);
        let bce = values(x.bce_with_logits(&zeros, Reduction::None));
        assert_close("bce", &bce, &[0.0, (-50f64).exp(), 50.0, 1000.0], 1e-12);
        assert_eq!(values(x.softmax(0)), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(values(x.log_softmax(0)), [-2000.0, -1050.0, -950.0, 0.0]);
        for f in [Var::silu, Var::sigmoid, Var::tanh, Var::gelu, Var::gelu_tanh] {
            let tape = Tape::new();
            let x = tape.variable(x.tensor().clone()).unwrap();
            let gradients = f(&x).unwrap().sum().unwrap().backward().unwrap();
            let gradient = gradients.get(&x).unwrap().to_f64_vec().unwrap();
            assert!(gradient.iter().all(|g| g.is_finite()), "{gradient:?}");
        }
    }
}

#[test]
fn two_operands_broadcast_from_the_end() {
    type Row = (&'static str, fn(&Var, &Var) -> Result<Var>, fn(f64, f64) -> f64);
    let rows: &[Row] = &[
        ("add", |a, b| a.add(b), |a, b| a + b),
        ("sub", |a, b| a.sub(b), |a, b| a - b),
        ("mul", |a, b| a.mul(b), |a, b| a * b),
        ("div", |a, b| a.div(b), |a, b| a / b),
        ("eq", |a, b| a.eq(b), |a, b| f64::from(a == b)),
        ("ne", |a, b| a.ne(b), |a, b| f64::from(a != b)),
        ("lt", |a, b| a.lt(b), |a, b| f64::from(a < b)),
        ("le", |a, b| a.le(b), |a, b| f64::from(a <= b)),
        ("gt", |a, b| a.gt(b), |a, b| f64::from(a > b)),
        ("ge", |a, b| a.ge(b), |a, b| f64::from(a >= b)),
        ("select", |a, b| a.lt(b)?.select(b, a), f64::max),
    ];
    let shapes: &[[&[usize]; 3]] = &[
        [&[2, 3], &[2, 3], &[2, 3]],
        [&[], &[3], &[3]],
        [&[2, 1], &[1, 3], &[2, 3]],
        [&[3], &[2, 1, 3], &[2, 1, 3]],
        [&[2, 3, 5], &[3, 1], &[2, 3, 5]],
        [&[2, 1, 4, 1], &[1, 3, 1, 2], &[2, 3, 4, 2]],
        [&[1, 3], &[0, 3], &[0, 3]],
        [&[70, 1, 40], &[30, 1], &[70, 30, 40]],
    ];
    for device in devices() {
        for &[left, right, both] in shapes {
            // Whole numbers, so that some are equal.
            let numbers = |seed, shape: &[usize]| -> Vec<f64> {
                let n = shape.iter().product();
                data(seed, n, (1.0, 4.0)).into_iter().map(f64::floor).collect()
            };
            let (a, b) = (numbers(1, left), numbers(2, right));
            let (x, y) = (constant(&device, left, &a), constant(&device, right, &b));
            for (name, f, reference) in rows {
                let term = |place: &Vec<usize>| {
                    reference(a[position(left, place)], b[position(right, place)])
                };
                let reference: Vec<f64> = places(both).iter().map(term).collect();
                let out = f(&x, &y).unwrap();
                assert_eq!(out.dims(), both, "{name}");
                assert_close(name, &out.tensor().to_f64_vec().unwrap(), &reference, 1e-12);
            }
        }
    }
}

#[test]
fn comparisons_take_integers_and_know_nan() {
    for device in devices() {
        let index = Var::from(Tensor::from_vec(vec![1i32, 2, 3], [3], &device).unwrap());
        let two = Var::from(Tensor::from_vec(vec![2i32], [1], &device).unwrap());
        assert_eq!(index.ge(&two).unwrap().tensor().to_vec::<i32>().unwrap(), [0, 1, 1]);
        let nan = constant(&device, &[2], &[f64::NAN, 1.0]);
        assert_eq!(values(nan.eq(&nan)), [0.0, 1.0]);
        assert_eq!(values(nan.ne(&nan)), [1.0, 0.0]);
        assert_eq!(values(nan.le(&nan)), [0.0, 1.0]);
    }
}

#[test]
fn moved_elements_are_where_the_definition_puts_them() {
    for device in devices() {
        for shape in [&[2usize, 3, 4][..], &[1, 3, 1], &[5, 1, 2], &[33, 17, 9]] {
            let numbers: Vec<f64> = (0..shape.iter().product()).map(|i: usize| i as f64).collect();
            let x = constant(&device, shape, &numbers);
            for axes in [[0, 1, 2], [2, 0, 1], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0]] {
                let out = axes.map(|axis| shape[axis]);
                let from = |place: &Vec<usize>| {
                    let mut source = [0; 3];
                    for (i, axis) in axes.into_iter().enumerate() {
                        source[axis] = place[i];
                    }
                    numbers[position(shape, &source)]
                };
                let reference: Vec<f64> = places(&out).iter().map(from).collect();
                assert_eq!(values(x.permute(&axes)), reference, "{shape:?} {axes:?}");
            }
            for axis in 0..3 {
                let half = shape[axis] / 2;
                let rest = shape[axis] - half;
                let cut = x.narrow(axis as isize, half, rest).unwrap();
                let mut out = shape.to_vec();
                out[axis] = rest;
                let from = |place: &Vec<usize>| {
                    let mut source = place.clone();
                    source[axis] += half;
                    numbers[position(shape, &source)]
                };
                let reference: Vec<f64> = places(&out).iter().map(from).collect();
                assert_eq!(cut.tensor().to_vec::<f64>().unwrap(), reference);
                let start = x.narrow(axis as isize, 0, half).unwrap();
                assert_eq!(values(cat(&[&start, &cut], axis as isize)), numbers);
            }
        }
        let x = constant(&device, &[2], &[1.0, 2.0]);
        let y = constant(&device, &[2], &[3.0, 4.0]);
        assert_eq!(values(stack(&[&x, &y], 0)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(values(stack(&[&x, &y], -1)), [1.0, 3.0, 2.0, 4.0]);
        let index = Tensor::from_vec(vec![2i64, 0, 1, 1], [2, 2], &device).unwrap();
        let x = constant(&device, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(values(x.gather(-1, &index)), [3.0, 1.0, 5.0, 5.0]);
        assert_eq!(values(x.flatten(0)).len(), 6);
        assert_eq!(values(x.to(&Device::cpu())), values(Ok(x)));
    }
}

#[test]
fn integers_can_be_moved_too() {
    for device in devices() {
        let x = Var::from(Tensor::from_vec(vec![1i64, 2, 3, 4], [2, 2], &device).unwrap());
        assert_eq!(values(x.transpose(0, 1)), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(values(x.narrow(1, 1, 1)), [2.0, 4.0]);
        assert_eq!(values(cat(&[&x, &x], 1)), [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
        assert_eq!(x.to_dtype(DType::BF16).unwrap().dtype(), DType::BF16);
        let halves = constant(&device, &[3], &[1.5, -1.5, 1e30]);
        let whole = halves.to_dtype(DType::I32).unwrap();
        assert_eq!(whole.tensor().to_vec::<i32>().unwrap(), [1, -1, i32::MAX]);
    }
}
