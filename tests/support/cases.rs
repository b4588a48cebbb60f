//! Every operation with a gradient, on shapes that tend to break one: broadcast, of extent 1, odd,
//! of rank 0 to 4.

use super::ops::data;
use capgrad::{
    CpuOptions, CrossEntropyOptions, Device, Reduction, Result, Tensor, Var, cat, stack,
};

type Shapes = &'static [&'static [&'static [usize]]];

/// One operation.
pub struct Case {
    pub name: &'static str,
    /// The operands that are constants; the others are variables.
    pub constants: &'static [usize],
    pub f: fn(&[Var]) -> Result<Var>,
    /// Shapes of the operands, in several lists.
    pub shapes: Shapes,
    /// Range of the data.
    pub range: (f64, f64),
}

impl Case {
    /// Values for the operands of the `i`-th list of shapes.
    pub fn values(&self, i: usize) -> Vec<(&'static [usize], Vec<f64>)> {
        let values = |(j, &shape): (usize, &&'static [usize])| {
            (shape, data((7 * i + j) as u64, shape.iter().product(), self.range))
        };
        self.shapes[i].iter().enumerate().map(values).collect()
    }
}

const ONE: Shapes = &[
    &[&[]],
    &[&[1]],
    &[&[7]],
    &[&[2, 3]],
    &[&[5, 1]],
    &[&[2, 1, 5]],
    &[&[2, 3, 1, 3]],
    &[&[0, 3]],
];
const TWO: Shapes = &[
    &[&[2, 3], &[2, 3]],
    &[&[2, 3], &[3]],
    &[&[3], &[2, 1, 3]],
    &[&[2, 1], &[1, 3]],
    &[&[2, 3, 5], &[1]],
    &[&[], &[4]],
    &[&[2, 3, 5], &[3, 1]],
    &[&[1, 3, 1, 2], &[2, 1, 4, 1]],
    &[&[1, 3], &[0, 3]],
];
const ALIKE: Shapes = &[&[&[], &[]], &[&[1], &[1]], &[&[7], &[7]], &[&[2, 3, 5], &[2, 3, 5]]];
const AXES: Shapes = &[&[&[1, 1]], &[&[2, 3]], &[&[3, 1, 5]], &[&[1, 7]], &[&[2, 3, 2, 3]]];
const LENGTHS: Shapes = &[&[&[1, 1, 5]], &[&[2, 3, 7]], &[&[2, 1, 9]], &[&[0, 2, 5]]];
const WIDE: (f64, f64) = (-2.0, 2.0);
const POSITIVE: (f64, f64) = (0.3, 2.0);

macro_rules! cases {
    ($($name:literal $(constant $c:literal)*, $shapes:expr, $range:expr, |$x:ident| $body:expr;)*) => {
        vec![$(Case {
            name: $name,
            constants: &[$($c),*],
            f: |$x| $body,
            shapes: $shapes,
            range: $range,
        }),*]
    };
}

pub fn all() -> Vec<Case> {
    let mut cases = elementwise();
    cases.extend(layout());
    cases.extend(composed());
    cases
}

fn elementwise() -> Vec<Case> {
    cases! {
        "neg", ONE, WIDE, |x| x[0].neg();
        "add_scalar", ONE, WIDE, |x| x[0].add_scalar(0.7);
        "sub_scalar", ONE, WIDE, |x| x[0].sub_scalar(0.7);
        "mul_scalar", ONE, WIDE, |x| x[0].mul_scalar(-1.3);
        "div_scalar", ONE, WIDE, |x| x[0].div_scalar(-1.3);
        "scalar_sub", ONE, WIDE, |x| x[0].scalar_sub(0.7);
        "scalar_div", ONE, POSITIVE, |x| x[0].scalar_div(0.7);
        "square", ONE, WIDE, |x| x[0].square();
        "sqrt", ONE, POSITIVE, |x| x[0].sqrt();
        "exp", ONE, WIDE, |x| x[0].exp();
        "ln", ONE, (1.5, 4.0), |x| x[0].ln();
        "abs", ONE, WIDE, |x| x[0].abs();
        "clamp", ONE, WIDE, |x| x[0].clamp(-0.5, 0.75);
        "relu", ONE, WIDE, |x| x[0].relu();
        "leaky_relu", ONE, WIDE, |x| x[0].leaky_relu(0.125);
        "gelu", ONE, WIDE, |x| x[0].gelu();
        "gelu_tanh", ONE, WIDE, |x| x[0].gelu_tanh();
        "silu", ONE, WIDE, |x| x[0].silu();
        "sigmoid", ONE, WIDE, |x| x[0].sigmoid();
        "tanh", ONE, WIDE, |x| x[0].tanh();
        "dropout", ONE, WIDE, |x| x[0].dropout(0.25);
        "dropout of nothing", ONE, WIDE, |x| x[0].dropout(0.0);
        "dropout of everything", ONE, WIDE, |x| x[0].dropout(1.0);
        "add", TWO, WIDE, |x| x[0].add(&x[1]);
        "sub", TWO, WIDE, |x| x[0].sub(&x[1]);
        "mul", TWO, WIDE, |x| x[0].mul(&x[1]);
        "div", TWO, POSITIVE, |x| x[0].div(&x[1]);
        "add to itself", ONE, WIDE, |x| x[0].add(&x[0]);
        "mul with itself", ONE, WIDE, |x| x[0].mul(&x[0]);
        "mul" constant 1, TWO, WIDE, |x| x[0].mul(&x[1]);
        "mul" constant 0, TWO, WIDE, |x| x[0].mul(&x[1]);
        "div" constant 1, TWO, POSITIVE, |x| x[0].div(&x[1]);
        "div" constant 0, TWO, POSITIVE, |x| x[0].div(&x[1]);
        "select", TWO, WIDE, |x| x[0].lt(&x[1])?.select(&x[0], &x[1]);
        "select" constant 0, TWO, WIDE, |x| x[0].ge(&x[1])?.select(&x[0], &x[1]);
        "mse_loss", ALIKE, WIDE, |x| x[0].mse_loss(&x[1], Reduction::Mean);
        "mse_loss, sum", ALIKE, WIDE, |x| x[0].mse_loss(&x[1], Reduction::Sum);
        "mse_loss, none", ALIKE, WIDE, |x| x[0].mse_loss(&x[1], Reduction::None);
        "l1_loss", ALIKE, WIDE, |x| x[0].l1_loss(&x[1], Reduction::Mean);
        "l1_loss, none", ALIKE, WIDE, |x| x[0].l1_loss(&x[1], Reduction::None);
        "huber_loss", ALIKE, WIDE, |x| x[0].huber_loss(&x[1], 0.8, Reduction::Sum);
        "huber_loss, none", ALIKE, WIDE, |x| x[0].huber_loss(&x[1], 0.8, Reduction::None);
        "bce_with_logits", ALIKE, (0.05, 0.95), |x| x[0].bce_with_logits(&x[1], Reduction::Mean);
        "bce_with_logits, none", ALIKE, (0.05, 0.95),
            |x| x[0].neg()?.bce_with_logits(&x[1], Reduction::None);
        "mse_loss" constant 0, ALIKE, WIDE, |x| x[0].mse_loss(&x[1], Reduction::Mean);
    }
}

fn layout() -> Vec<Case> {
    cases! {
        "reshape", &[&[&[2, 6]], &[&[12]], &[&[3, 1, 4]]], WIDE, |x| x[0].reshape([4, 3])?.square();
        "flatten", AXES, WIDE, |x| x[0].flatten(1)?.square();
        "unsqueeze", ONE, WIDE, |x| x[0].unsqueeze(0)?.square()?.unsqueeze(-1);
        "squeeze", &[&[&[2, 1, 3]], &[&[1, 1]]], WIDE, |x| x[0].squeeze(1)?.square();
        "transpose", AXES, WIDE, |x| x[0].transpose(0, -1);
        "permute", &[&[&[2, 3, 4]], &[&[1, 3, 2]], &[&[2, 1, 1]], &[&[0, 2, 3]]], WIDE,
            |x| x[0].permute(&[2, 0, 1]);
        "narrow first", &[&[&[5]], &[&[5, 3]], &[&[5, 1, 2]]], WIDE, |x| x[0].narrow(0, 1, 3);
        "narrow last", &[&[&[5]], &[&[3, 5]], &[&[1, 5]], &[&[2, 3, 4]]], WIDE,
            |x| x[0].narrow(-1, 2, 2);
        "narrow to nothing", AXES, WIDE, |x| x[0].narrow(1, 1, 0);
        "cat first", &[&[&[2], &[3]], &[&[2, 3], &[1, 3]], &[&[0, 3], &[2, 3]]], WIDE,
            |x| cat(&[&x[0], &x[1], &x[0]], 0);
        "cat last" constant 1, &[&[&[2], &[3]], &[&[2, 3], &[2, 1]], &[&[2, 3, 5], &[2, 3, 2]]], WIDE,
            |x| cat(&[&x[0], &x[1], &x[1], &x[0]], -1);
        "stack", ALIKE, WIDE, |x| stack(&[&x[0], &x[1]], -1);
        "gather", AXES, WIDE, |x| gather_reversed(&x[0], 1);
        "gather first", AXES, WIDE, |x| gather_reversed(&x[0], 0);
        "to", ONE, WIDE, |x| {
            let other = Device::new_cpu(CpuOptions { threads: Some(1), poison: true })?;
            x[0].to(&other)?.square()?.to(x[0].device())
        };
    }
}

fn composed() -> Vec<Case> {
    const NORM: Shapes = &[
        &[&[2, 3], &[3], &[3]],
        &[&[7], &[7], &[7]],
        &[&[2, 3, 5], &[5], &[5]],
        &[&[0, 3], &[3], &[3]],
    ];
    cases! {
        "sum", ONE, WIDE, |x| x[0].sum();
        "mean", &[&[&[]], &[&[7]], &[&[2, 3, 5]]], WIDE, |x| x[0].mean();
        "sum_axes first", AXES, WIDE, |x| x[0].sum_axes(&[0], false);
        "sum_axes last", AXES, WIDE, |x| x[0].sum_axes(&[-1], true);
        "sum_axes outer", AXES, WIDE, |x| x[0].sum_axes(&[0, -1], false);
        "sum_axes inner", &[&[&[2, 3, 5]], &[&[2, 3, 1, 5]], &[&[2, 0, 3]]], WIDE,
            |x| x[0].sum_axes(&[1], false);
        "sum_axes of none", AXES, WIDE, |x| x[0].sum_axes(&[], false);
        "mean_axes first", AXES, WIDE, |x| x[0].mean_axes(&[0], true);
        "mean_axes last", AXES, WIDE, |x| x[0].mean_axes(&[-1], false);
        "softmax last", AXES, WIDE, |x| x[0].softmax(-1);
        "softmax first", AXES, WIDE, |x| x[0].softmax(0);
        "log_softmax last", AXES, WIDE, |x| x[0].log_softmax(-1);
        "log_softmax first", AXES, WIDE, |x| x[0].log_softmax(0);
        "softmax of one axis", &[&[&[5]], &[&[0]]], WIDE, |x| x[0].softmax(0);
        "layer_norm", NORM, WIDE, |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-2);
        "layer_norm, bias", NORM, WIDE, |x| x[0].layer_norm(None, Some(&x[2]), 1e-2);
        "layer_norm, weight", NORM, WIDE, |x| x[0].layer_norm(Some(&x[1]), None, 1e-2);
        "layer_norm" constant 1 constant 2, NORM, WIDE,
            |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-2);
        "layer_norm" constant 0, NORM, WIDE,
            |x| x[0].layer_norm(Some(&x[1]), Some(&x[2]), 1e-2);
        "max_pool1d", LENGTHS, WIDE, |x| x[0].max_pool1d(2, 2, 0);
        "max_pool1d, overlapping", LENGTHS, WIDE, |x| x[0].max_pool1d(3, 1, 1);
        "max_pool1d, sparse", LENGTHS, WIDE, |x| x[0].max_pool1d(2, 3, 1);
        "avg_pool1d", LENGTHS, WIDE, |x| x[0].avg_pool1d(2, 2, 0);
        "avg_pool1d, overlapping", LENGTHS, WIDE, |x| x[0].avg_pool1d(4, 1, 2);
        "avg_pool1d, sparse", LENGTHS, WIDE, |x| x[0].avg_pool1d(1, 3, 0);
        "cross_entropy", &[&[&[4, 3]], &[&[1, 1]], &[&[7, 5]], &[&[2, 3, 5]], &[&[3, 2, 1]]], WIDE,
            |x| x[0].cross_entropy(&labels(&x[0])?, CrossEntropyOptions::default());
        "cross_entropy, ignoring", &[&[&[4, 3]], &[&[7, 5]], &[&[2, 3, 5]]], WIDE, |x| {
            let options = CrossEntropyOptions { ignore_index: Some(1), ..Default::default() };
            x[0].cross_entropy(&labels(&x[0])?, options)
        };
        "cross_entropy, sum", &[&[&[4, 3]], &[&[0, 3]], &[&[2, 3, 5]]], WIDE, |x| {
            let options = CrossEntropyOptions { reduction: Reduction::Sum, ignore_index: None };
            x[0].cross_entropy(&labels(&x[0])?, options)
        };
        "many uses", &[&[&[2, 3], &[3]]], WIDE,
            |x| x[0].mul(&x[1])?.tanh()?.add(&x[0].sum_axes(&[0], true)?)?.mul(&x[1]);
    }
}

/// The last entry twice, then all in reverse, along `axis`.
fn gather_reversed(x: &Var, axis: usize) -> Result<Var> {
    let extent = x.dims()[axis];
    let mut shape = x.dims().to_vec();
    shape[axis] = extent + 1;
    let entry = |place: &Vec<usize>| (extent - place[axis].max(1)) as i64;
    let index: Vec<i64> = super::ops::places(&shape).iter().map(entry).collect();
    x.gather(axis as isize, &Tensor::from_slice(&index, shape, x.device())?)
}

/// Labels for logits `[N, C]` or `[N, C, L]`.
pub fn labels(x: &Var) -> Result<Tensor> {
    let mut shape = x.dims().to_vec();
    let classes = shape.remove(1);
    let count: usize = shape.iter().product();
    let labels: Vec<i32> = (0..count).map(|i| ((7 * i + 3) % classes) as i32).collect();
    Tensor::from_slice(&labels, shape, x.device())
}
