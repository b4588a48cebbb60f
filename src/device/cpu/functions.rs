//! The elementwise functions and their gradients, as formulas in f32 or f64. Written so that they
//! neither overflow on the way to a finite result nor swallow a NaN.

use super::Cpu;
use super::block::{BLOCK, block, total};
use super::broadcast::Source;
use super::elementwise::{map1, map2, map3};
use super::host;
use super::parallel::GRAIN;
use crate::device::spec::{Binary, Side, Unary};
use crate::dtype::{Float, Real};
use crate::tensor::Tensor;
use num_traits::Float as _;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// A constant in the type that is computed in.
#[inline(always)]
fn c<S: Real>(value: f64) -> S {
    S::from_f64(value)
}

#[inline(always)]
fn sigmoid<S: Real>(x: S) -> S {
    let e = (-x.abs()).exp();
    let numerator = if x >= S::zero() { S::one() } else { e };
    numerator / (S::one() + e)
}

/// 1, 0 or -1; NaN stays.
#[inline(always)]
fn sign<S: Real>(x: S) -> S {
    if x > S::zero() {
        S::one()
    } else if x < S::zero() {
        -S::one()
    } else {
        x
    }
}

#[inline(always)]
fn clamp<S: Real>(x: S, low: S, high: S) -> S {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

/// The argument of the hyperbolic tangent in GELU's approximation, and its derivative.
#[inline(always)]
fn gelu_inner<S: Real>(x: S) -> (S, S) {
    let scale = c::<S>((2.0 / PI).sqrt());
    let cubic = c::<S>(0.044715);
    (scale * (x + cubic * x * x * x), scale * (S::one() + c::<S>(3.0) * cubic * x * x))
}

pub(super) fn unary<T: Float>(cpu: &Cpu, f: Unary, x: &Tensor, out: &Tensor) {
    let (zero, one, half) = (c::<T::Sum>(0.0), c::<T::Sum>(1.0), c::<T::Sum>(0.5));
    match f {
        Unary::Affine(a, b) => {
            let (a, b) = (c::<T::Sum>(a), c(b));
            map1::<T>(cpu, x, out, |x| a * x + b);
        }
        Unary::Reciprocal(a) => {
            let a = c::<T::Sum>(a);
            map1::<T>(cpu, x, out, |x| a / x);
        }
        Unary::Square => map1::<T>(cpu, x, out, |x| x * x),
        Unary::Sqrt => map1::<T>(cpu, x, out, |x| x.sqrt()),
        Unary::Exp => map1::<T>(cpu, x, out, |x| x.exp()),
        Unary::Ln => map1::<T>(cpu, x, out, |x| x.ln()),
        Unary::Relu => map1::<T>(cpu, x, out, |x| if x <= zero { zero } else { x }),
        Unary::LeakyRelu(slope) => {
            let slope = c::<T::Sum>(slope);
            map1::<T>(cpu, x, out, |x| if x > zero { x } else { slope * x });
        }
        Unary::Gelu => {
            let root = c::<T::Sum>(FRAC_1_SQRT_2);
            map1::<T>(cpu, x, out, |x| half * x * (-x * root).erfc());
        }
        Unary::GeluTanh => {
            map1::<T>(cpu, x, out, |x| half * x * (one + gelu_inner(x).0.tanh()));
        }
        Unary::Silu => map1::<T>(cpu, x, out, |x| x * sigmoid(x)),
        Unary::Sigmoid => map1::<T>(cpu, x, out, sigmoid),
        Unary::Tanh => map1::<T>(cpu, x, out, |x| x.tanh()),
        Unary::Clamp(low, high) => {
            let (low, high) = (c::<T::Sum>(low), c(high));
            map1::<T>(cpu, x, out, |x| clamp(x, low, high));
        }
        Unary::Abs => map1::<T>(cpu, x, out, |x| x.abs()),
    }
}

pub(super) fn unary_gradient<T: Float>(
    cpu: &Cpu,
    f: Unary,
    saved: &Tensor,
    dy: &Tensor,
    out: &Tensor,
) {
    let (zero, one, half) = (c::<T::Sum>(0.0), c::<T::Sum>(1.0), c::<T::Sum>(0.5));
    let operands = [saved, dy];
    match f {
        Unary::Affine(a, _) => {
            let a = c::<T::Sum>(a);
            map1::<T>(cpu, dy, out, |dy| a * dy);
        }
        Unary::Reciprocal(a) => {
            let a = c::<T::Sum>(a);
            map2::<T>(cpu, operands, out, |x, dy| -dy * (a / x) / x);
        }
        Unary::Square => map2::<T>(cpu, operands, out, |x, dy| (x + x) * dy),
        Unary::Sqrt => map2::<T>(cpu, operands, out, |y, dy| dy / (y + y)),
        Unary::Exp => map2::<T>(cpu, operands, out, |y, dy| dy * y),
        Unary::Ln => map2::<T>(cpu, operands, out, |x, dy| dy / x),
        Unary::Relu => {
            map2::<T>(cpu, operands, out, |y, dy| if y <= zero { zero } else { dy });
        }
        Unary::LeakyRelu(slope) => {
            let slope = c::<T::Sum>(slope);
            map2::<T>(cpu, operands, out, |x, dy| if x > zero { dy } else { slope * dy });
        }
        Unary::Gelu => {
            let (root, density) = (c::<T::Sum>(FRAC_1_SQRT_2), FRAC_1_SQRT_2 * FRAC_2_SQRT_PI);
            let density = c::<T::Sum>(0.5 * density);
            map2::<T>(cpu, operands, out, |x, dy| {
                let normal = half * (-x * root).erfc();
                dy * (normal + x * density * (-half * x * x).exp())
            });
        }
        Unary::GeluTanh => map2::<T>(cpu, operands, out, |x, dy| {
            let (inner, slope) = gelu_inner(x);
            let t = inner.tanh();
            dy * half * ((one + t) + x * (one - t * t) * slope)
        }),
        Unary::Silu => map2::<T>(cpu, operands, out, |x, dy| {
            let s = sigmoid(x);
            dy * s * (one + x * (one - s))
        }),
        Unary::Sigmoid => map2::<T>(cpu, operands, out, |y, dy| dy * y * (one - y)),
        Unary::Tanh => map2::<T>(cpu, operands, out, |y, dy| dy * (one - y * y)),
        Unary::Clamp(low, high) => {
            let (low, high) = (c::<T::Sum>(low), c(high));
            map2::<T>(cpu, operands, out, |x, dy| if x >= low && x <= high { dy } else { zero });
        }
        Unary::Abs => map2::<T>(cpu, operands, out, |x, dy| sign(x) * dy),
    }
}

#[inline(always)]
fn squared_error<S: Real>(a: S, b: S) -> S {
    (a - b) * (a - b)
}

#[inline(always)]
fn huber<S: Real>(a: S, b: S, delta: S) -> S {
    let d = (a - b).abs();
    let half = c::<S>(0.5);
    if d > delta { delta * (d - half * delta) } else { half * d * d }
}

#[inline(always)]
fn bce<S: Real>(a: S, b: S) -> S {
    let positive = if a > S::zero() { a } else { S::zero() };
    positive - a * b + (-a.abs()).exp().ln_1p()
}

/// Calls `$run!` with the formula of `$f`, so that each has a loop of its own.
macro_rules! with_formula {
    ($f:expr, $S:ty, $run:ident) => {
        match $f {
            Binary::Add => $run!(|a: $S, b: $S| a + b),
            Binary::Sub => $run!(|a: $S, b: $S| a - b),
            Binary::Mul => $run!(|a: $S, b: $S| a * b),
            Binary::Div => $run!(|a: $S, b: $S| a / b),
            Binary::SquaredError => $run!(squared_error::<$S>),
            Binary::AbsoluteError => $run!(|a: $S, b: $S| (a - b).abs()),
            Binary::Huber(delta) => {
                let delta = c::<$S>(delta);
                $run!(|a: $S, b: $S| huber(a, b, delta))
            }
            Binary::BceWithLogits => $run!(bce::<$S>),
        }
    };
}

pub(super) fn binary<T: Float>(cpu: &Cpu, f: Binary, a: &Tensor, b: &Tensor, out: &Tensor) {
    macro_rules! run {
        ($formula:expr) => {
            map2::<T>(cpu, [a, b], out, $formula)
        };
    }
    with_formula!(f, T::Sum, run)
}

pub(super) fn binary_sum<T: Float>(
    cpu: &Cpu,
    f: Binary,
    scale: f64,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
) {
    macro_rules! run {
        ($formula:expr) => {
            pair_sum::<T>(cpu, a, b, $formula)
        };
    }
    let sum = with_formula!(f, T::Sum, run);
    host::write::<T>(out)[0] = T::from_f64(scale * sum);
}

/// `Σ f(a, b)` over the broadcast shape.
fn pair_sum<T: Float>(
    cpu: &Cpu,
    a: &Tensor,
    b: &Tensor,
    f: impl Fn(T::Sum, T::Sum) -> T::Sum + Sync,
) -> f64 {
    block_sum::<T>(cpu, a, b, &|terms, a, b| {
        for ((term, &a), &b) in terms.iter_mut().zip(a).zip(b) {
            *term = f(a, b);
        }
    })
}

/// The terms of one block, from a block of each operand.
type Terms<'a, S> = dyn Fn(&mut [S], &[S], &[S]) + Sync + 'a;

fn block_sum<T: Float>(cpu: &Cpu, a: &Tensor, b: &Tensor, f: &Terms<'_, T::Sum>) -> f64 {
    let shape = a.shape().broadcast(b.shape(), "binary_sum").expect("checked by ops");
    let (a_data, b_data) = (host::read::<T>(a), host::read::<T>(b));
    let (a, b) = (Source::new(a, &a_data, &shape), Source::new(b, &b_data, &shape));
    let leaf = |range: std::ops::Range<usize>| {
        let (mut a, mut b) = (a.reader::<T::Sum>(), b.reader::<T::Sum>());
        let mut terms = block::<T::Sum>();
        let mut sum = 0.0;
        for start in range.clone().step_by(BLOCK) {
            let length = BLOCK.min(range.end - start);
            let terms = &mut terms[..length];
            f(terms, a.block(start, length), b.block(start, length));
            sum += total(terms);
        }
        sum
    };
    cpu.reduce(shape.elements(), GRAIN, leaf, |a, b| a + b)
}

pub(super) fn binary_gradient<T: Float>(
    cpu: &Cpu,
    f: Binary,
    side: Side,
    a: &Tensor,
    b: &Tensor,
    dy: &Tensor,
    out: &Tensor,
) {
    let left = side == Side::Left;
    let direction = c::<T::Sum>(if left { 1.0 } else { -1.0 });
    let all = [a, b, dy];
    match f {
        Binary::Add => map1::<T>(cpu, dy, out, |dy| dy),
        Binary::Sub => map1::<T>(cpu, dy, out, |dy| direction * dy),
        Binary::Mul => {
            map2::<T>(cpu, [if left { b } else { a }, dy], out, |other, dy| dy * other);
        }
        Binary::Div if left => map2::<T>(cpu, [b, dy], out, |b, dy| dy / b),
        Binary::Div => map3::<T>(cpu, all, out, |a, b, dy| -dy * (a / b) / b),
        Binary::SquaredError => {
            let two = direction + direction;
            map3::<T>(cpu, all, out, |a, b, dy| two * (a - b) * dy);
        }
        Binary::AbsoluteError => {
            map3::<T>(cpu, all, out, |a, b, dy| direction * sign(a - b) * dy);
        }
        Binary::Huber(delta) => {
            let delta = c::<T::Sum>(delta);
            map3::<T>(cpu, all, out, |a, b, dy| direction * clamp(a - b, -delta, delta) * dy);
        }
        Binary::BceWithLogits if left => {
            map3::<T>(cpu, all, out, |a, b, dy| dy * (sigmoid(a) - b));
        }
        Binary::BceWithLogits => map2::<T>(cpu, [a, dy], out, |a, dy| -a * dy),
    }
}

#[cfg(test)]
mod tests;
