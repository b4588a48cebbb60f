//! Sums over axes: of a tensor, of a function of two, and of the gradients of stretched operands.

use super::elementwise::{binary_code, pass, unary};
use super::layout::Axes;
use super::sums::{CHOSEN, FUNCTION, GRADIENT, STORED, Sum, Terms};
use super::{Cuda, kernels};
use crate::device::spec::{Binary, Side, Unary};
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;
use smallvec::SmallVec;

pub(super) fn sum(
    cuda: &Cuda,
    x: &Tensor,
    reduced: &[bool],
    scale: f64,
    out: &Tensor,
) -> Result<()> {
    if out.elements() == x.elements() && x.elements() > 0 {
        return unary(cuda, Unary::Affine(scale, 0.0), x, out);
    }
    let (full, operands) = (x.shape(), &[x]);
    Sum { terms: &STORED, operands, code: (0, 0.0), side: 0, full, reduced, scale, out }.run(cuda)
}

pub(super) fn binary_sum(
    cuda: &Cuda,
    f: Binary,
    scale: f64,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let full = a.shape().broadcast(b.shape(), "binary_sum")?;
    let reduced: SmallVec<[bool; 4]> = SmallVec::from_elem(true, full.rank());
    let sum = Sum {
        terms: &FUNCTION,
        operands: &[a, b],
        code: binary_code(f),
        side: 0,
        full: &full,
        reduced: &reduced,
        scale,
        out,
    };
    if full.elements() == 0 { sum.nothing(cuda) } else { sum.run(cuda) }
}

/// Adds `terms` up along the axes that `out` lacks or has with extent 1.
fn add_up(
    cuda: &Cuda,
    terms: &'static Terms,
    operands: &[&Tensor],
    code: (i32, f64),
    side: i32,
    scale: f64,
    out: &Tensor,
) -> Result<()> {
    let full = &broadcast(operands, out)?;
    let missing = full.rank() - out.shape().rank();
    let reduced: SmallVec<[bool; 4]> = (0..full.rank())
        .map(|axis| axis < missing || out.dims()[axis - missing] != full[axis])
        .collect();
    Sum { terms, operands, code, side, full, reduced: &reduced, scale, out }.run(cuda)
}

/// The shape that all broadcast to.
fn broadcast(operands: &[&Tensor], out: &Tensor) -> Result<Shape> {
    operands
        .iter()
        .try_fold(out.shape().clone(), |full, x| full.broadcast(x.shape(), "binary_gradient"))
}

fn side_code(side: Side) -> i32 {
    match side {
        Side::Left => 0,
        Side::Right => 1,
    }
}

pub(super) fn binary_gradient(
    cuda: &Cuda,
    f: Binary,
    side: Side,
    a: &Tensor,
    b: &Tensor,
    dy: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let left = side == Side::Left;
    // Only what the derivative depends on is read, and a product is a function like any other.
    match f {
        Binary::Add => scaled(cuda, dy, 1.0, out),
        Binary::Sub => scaled(cuda, dy, if left { 1.0 } else { -1.0 }, out),
        Binary::Mul => function(cuda, f, [if left { b } else { a }, dy], out),
        Binary::Div if left => function(cuda, f, [dy, b], out),
        Binary::BceWithLogits if !left => gradient(cuda, f, side, [a, a, dy], out),
        _ => gradient(cuda, f, side, [a, b, dy], out),
    }
}

/// `out = scale · dy`, added up.
fn scaled(cuda: &Cuda, dy: &Tensor, scale: f64, out: &Tensor) -> Result<()> {
    if dy.elements() == out.elements() {
        return unary(cuda, Unary::Affine(scale, 0.0), dy, out);
    }
    add_up(cuda, &STORED, &[dy], (0, 0.0), 0, scale, out)
}

/// `out = f(a, b)`, added up.
fn function(cuda: &Cuda, f: Binary, operands: [&Tensor; 2], out: &Tensor) -> Result<()> {
    let (code, p) = binary_code(f);
    let full = broadcast(&operands, out)?;
    if full.elements() != out.elements() {
        return add_up(cuda, &FUNCTION, &operands, (code, p), 0, 1.0, out);
    }
    let axes = Axes::over(&full, operands);
    let kernel = if axes.rank() <= 1 { kernels::BINARY_FLAT } else { kernels::BINARY };
    let kernel = (kernel, out.dtype().name());
    pass(cuda, kernel, &axes, operands, out, |args| args.value(code).value(p))
}

/// `out = dy · ∂f/∂side`, added up, of `a`, `b` and `dy`.
fn gradient(
    cuda: &Cuda,
    f: Binary,
    side: Side,
    operands: [&Tensor; 3],
    out: &Tensor,
) -> Result<()> {
    let ((code, p), side) = (binary_code(f), side_code(side));
    let full = broadcast(&operands, out)?;
    if full.elements() != out.elements() {
        return add_up(cuda, &GRADIENT, &operands, (code, p), side, 1.0, out);
    }
    let kernel = (kernels::BINARY_GRADIENT_MAP, out.dtype().name());
    pass(cuda, kernel, &Axes::over(&full, operands), operands, out, |args| {
        args.value(code).value(side).value(p)
    })
}

pub(super) fn select_gradient(
    cuda: &Cuda,
    mask: &Tensor,
    side: Side,
    dy: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let (operands, side) = ([mask, dy], side_code(side));
    let full = broadcast(&operands, out)?;
    if full.elements() != out.elements() {
        return add_up(cuda, &CHOSEN, &operands, (0, 0.0), side, 1.0, out);
    }
    let kernel = (kernels::SELECT_GRADIENT_MAP, out.dtype().name());
    let axes = Axes::over(&full, operands);
    pass(cuda, kernel, &axes, operands, out, |args| args.value(side))
}
