//! What the gradients of several operations share: sums over the axes along which an operand was
//! stretched, and arithmetic that leaves a uniform gradient uniform.

use crate::device::spec::{Unary, Window};
use crate::error::Result;
use crate::shape::Shape;
use crate::tape::Backward;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// `factor · x`: one number for a uniform `x`, and `x` itself for a factor of 1.
pub(super) fn scaled(op: &'static str, x: &Tensor, factor: f64) -> Result<Tensor> {
    if factor == 1.0 {
        return Ok(x.clone());
    }
    let stored = x.stored();
    let out = Tensor::result(op, stored.shape(), x.dtype(), x.device())?;
    x.device().backend().unary(Unary::Affine(factor, 0.0), &stored, &out)?;
    Ok(if x.is_uniform() { Tensor::uniform(&out, x.shape().clone()) } else { out })
}

/// `scale · Σ dy` over the axes along which `shape` was stretched to the shape of `dy`: the
/// gradient of that stretching.
pub(super) fn sum_to(op: &'static str, dy: Tensor, shape: &Shape, scale: f64) -> Result<Tensor> {
    let missing = dy.shape().rank() - shape.rank();
    let stretched = |axis: usize| axis < missing || shape[axis - missing] == 1;
    let axes = || dy.dims().iter().enumerate();
    let reduced: SmallVec<[bool; 4]> = axes().map(|(axis, &n)| n != 1 && stretched(axis)).collect();
    if !reduced.contains(&true) {
        return scaled(op, &dy, scale)?.reshape(shape);
    }
    if dy.is_uniform() {
        let count: f64 =
            axes().filter(|(axis, _)| reduced[*axis]).map(|(_, &n)| n as f64).product();
        return Ok(Tensor::uniform(&scaled(op, &dy.stored(), scale * count)?, shape.clone()));
    }
    let out = Tensor::result(op, shape, dy.dtype(), dy.device())?;
    dy.device().backend().sum(&dy, &reduced, scale, &out)?;
    Ok(out)
}

/// `x` repeated to `target`, to whose rank its own shape has been brought; shared where one number
/// stands for all.
pub(super) fn stretch(op: &'static str, x: &Tensor, target: &Shape) -> Result<Tensor> {
    if x.shape() == target {
        return Ok(x.clone());
    }
    if x.is_uniform() || x.elements() == 1 && target.elements() > 0 {
        return Ok(Tensor::uniform(&x.stored(), target.clone()));
    }
    let out = Tensor::result(op, target, x.dtype(), x.device())?;
    if out.elements() == 0 {
        return Ok(out);
    }
    let from = Window { offset: 0, strides: x.shape().broadcast_strides(target) };
    let to = Window { offset: 0, strides: target.strides() };
    x.device().backend().copy_window(target.dims(), x, &from, &out, &to)?;
    Ok(out)
}

/// `dy` for each of two inputs that needs it. With one, nobody else holds it, so that it can be
/// added to in place.
pub(super) fn for_inputs(dy: Tensor, cx: &Backward<'_>) -> [Option<Tensor>; 2] {
    match (cx.needs(0), cx.needs(1)) {
        (true, true) => [Some(dy.clone()), Some(dy)],
        (true, false) => [Some(dy), None],
        (false, true) => [None, Some(dy)],
        (false, false) => [None, None],
    }
}
