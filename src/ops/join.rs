//! Joining several values to one.

use super::narrow::{cut, paste};
use crate::error::{Error, Result};
use crate::tape::{Backward, Rule, Var};
use crate::tensor::{Tensor, require_alike};

/// The values one after another along `axis` (negative ones count from the end), of any dtype; the
/// other extents are equal. Saves extents only. Along the first axis, gradients share storage.
///
/// ```
/// use capgrad::{Device, Tensor, Var, cat};
/// # fn main() -> capgrad::Result<()> {
/// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2, 1], &Device::cpu())?);
/// assert_eq!(cat(&[&a, &a], 1)?.tensor().to_vec::<f64>()?, [1.0, 1.0, 2.0, 2.0]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Argument`] for no values and for an axis that is not there; [`Error::Shape`] where
/// another extent differs; `DeviceMismatch`, `DTypeMismatch`, `TapeMismatch`; those of making a
/// tensor.
pub fn cat(values: &[&Var], axis: isize) -> Result<Var> {
    join("cat", values, axis)
}

/// The values, all of one shape, along a new axis at `axis` of the result. Saves extents only.
///
/// ```
/// use capgrad::{Device, Tensor, Var, stack};
/// # fn main() -> capgrad::Result<()> {
/// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
/// assert_eq!(stack(&[&a, &a], 1)?.tensor().to_vec::<f64>()?, [1.0, 1.0, 2.0, 2.0]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`cat`].
pub fn stack(values: &[&Var], axis: isize) -> Result<Var> {
    let op = "stack";
    if let Some(first) = values.first()
        && let Some(other) = values.iter().find(|value| value.shape() != first.shape())
    {
        return Err(Error::shape(op, &[first.shape(), other.shape()], "the shapes must be equal"));
    }
    let values = values.iter().map(|value| value.unsqueeze(axis)).collect::<Result<Vec<_>>>()?;
    join(op, &values.iter().collect::<Vec<_>>(), axis)
}

fn join(op: &'static str, values: &[&Var], axis: isize) -> Result<Var> {
    let Some(first) = values.first() else {
        return Err(Error::argument(op, "values", "[]", "expected at least one value"));
    };
    let axis = first.shape().axis(axis, op)?;
    let mut extent = 0usize;
    for value in values {
        require_alike(op, first.tensor(), value.tensor())?;
        let own = value.shape();
        if own.rank() != first.shape().rank() || own.with(axis, 0) != first.shape().with(axis, 0) {
            let reason = format!("all extents but that of axis {axis} must be equal");
            return Err(Error::shape(op, &[first.shape(), own], reason));
        }
        // What is too large is refused when the result is allocated.
        extent = extent.saturating_add(own[axis]);
    }
    if values.len() == 1 {
        return Ok((*first).clone());
    }
    let out = Tensor::result(op, first.shape().with(axis, extent), first.dtype(), first.device())?;
    let mut start = 0;
    for value in values {
        paste(value.tensor(), &out, axis, start)?;
        start += value.dims()[axis];
    }
    Var::record(op, out, values, |_| JoinRule {
        op,
        axis,
        extents: values.iter().map(|value| value.dims()[axis]).collect(),
    })
}

struct JoinRule {
    op: &'static str,
    axis: usize,
    extents: Vec<usize>,
}

impl Rule for JoinRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut start = 0;
        for (i, &extent) in self.extents.iter().enumerate() {
            if cx.needs(i) {
                cx.give(i, cut(self.op, &dy, self.axis, start, extent)?)?;
            }
            start += extent;
        }
        Ok(())
    }
}
