//! Sums, means and the place of the largest element. A sum saves a shape; its gradient over
//! everything is one number that stands for all.

use super::broadcast::{scaled, stretch};
use super::constant;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Var};
use crate::tensor::{Tensor, require_float};
use smallvec::SmallVec;

impl Var {
    /// The sum of all elements, of shape `[]`; f16 and bf16 add up in f32. Saves a shape.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 6.0], [3], &Device::cpu())?);
    /// assert_eq!(x.sum()?.item()?, 9.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for integers; those of making a tensor.
    pub fn sum(&self) -> Result<Var> {
        self.reduce("sum", SmallVec::from_elem(true, self.shape().rank()), false, false)
    }

    /// The mean of all elements, of shape `[]`; f16 and bf16 add up in f32. Saves a shape.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 6.0], [3], &Device::cpu())?);
    /// assert_eq!(x.mean()?.item()?, 3.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where there are no elements; as [`Var::sum`].
    pub fn mean(&self) -> Result<Var> {
        self.reduce("mean", SmallVec::from_elem(true, self.shape().rank()), false, true)
    }

    /// The sums over these axes (negative ones count from the end). The axes go, or with `keep`
    /// stay with extent 1. Without axes the value itself.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?);
    /// assert_eq!(x.sum_axes(&[-1], false)?.tensor().to_vec::<f64>()?, [3.0, 7.0]);
    /// assert_eq!(x.sum_axes(&[0], true)?.dims(), [1, 2]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that is not there or named twice; as [`Var::sum`].
    pub fn sum_axes(&self, axes: &[isize], keep: bool) -> Result<Var> {
        self.reduce("sum_axes", self.axes("sum_axes", axes)?, keep, false)
    }

    /// The means over these axes, as [`Var::sum_axes`].
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?);
    /// assert_eq!(x.mean_axes(&[0], false)?.tensor().to_vec::<f64>()?, [2.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where there are no elements along the axes; as [`Var::sum_axes`].
    pub fn mean_axes(&self, axes: &[isize], keep: bool) -> Result<Var> {
        self.reduce("mean_axes", self.axes("mean_axes", axes)?, keep, true)
    }

    /// The index (i64) of the largest element along `axis`, the first of equals; that axis goes. A
    /// constant: no gradient flows through it.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 5.0, 4.0, 3.0], [2, 2], &Device::cpu())?);
    /// assert_eq!(x.argmax(1)?.tensor().to_vec::<i64>()?, [1, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that is not there; [`Error::Shape`] for one of extent 0;
    /// [`Error::DType`] for integers; those of making a tensor.
    pub fn argmax(&self, axis: isize) -> Result<Var> {
        let op = "argmax";
        require_float(op, self.dtype())?;
        let axis = self.shape().axis(axis, op)?;
        if self.dims()[axis] == 0 {
            let reason = format!("axis {axis} has no elements to compare");
            return Err(Error::shape(op, &[self.shape()], reason));
        }
        let mut shape = self.shape().clone();
        shape.dims_mut().remove(axis);
        let out = Tensor::result(op, shape, DType::I64, self.device())?;
        self.device().backend().argmax(self.tensor(), axis, &out)?;
        constant(op, out, &[self])
    }

    fn axes(&self, op: &'static str, axes: &[isize]) -> Result<SmallVec<[bool; 4]>> {
        let mut reduced = SmallVec::from_elem(false, self.shape().rank());
        for &axis in axes {
            let resolved = self.shape().axis(axis, op)?;
            if std::mem::replace(&mut reduced[resolved], true) {
                return Err(Error::argument(op, "axes", axis, "the axis is named twice"));
            }
        }
        Ok(reduced)
    }

    fn reduce(
        &self,
        op: &'static str,
        reduced: SmallVec<[bool; 4]>,
        keep: bool,
        mean: bool,
    ) -> Result<Var> {
        require_float(op, self.dtype())?;
        if !reduced.contains(&true) {
            return Ok(self.clone());
        }
        let axes = || self.dims().iter().zip(&reduced);
        let chosen = |which: bool| -> Shape {
            axes().filter(|(_, reduced)| **reduced == which).map(|(&n, _)| n).collect()
        };
        let count = chosen(true).elements();
        if mean && count == 0 {
            return Err(Error::shape(op, &[self.shape()], "there is no mean of no elements"));
        }
        let kept: Shape = axes().map(|(&n, &reduced)| if reduced { 1 } else { n }).collect();
        let shape = if keep { kept.clone() } else { chosen(false) };
        let scale = if mean { 1.0 / count as f64 } else { 1.0 };
        let out = Tensor::result(op, shape, self.dtype(), self.device())?;
        self.device().backend().sum(self.tensor(), &reduced, scale, &out)?;
        Var::record(op, out, &[self], |_| ReduceRule {
            op,
            shape: self.shape().clone(),
            kept,
            scale,
        })
    }
}

struct ReduceRule {
    op: &'static str,
    shape: Shape,
    /// The result's shape with the axes kept.
    kept: Shape,
    scale: f64,
}

impl Rule for ReduceRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        // Scaled first: there is less of it.
        let small = scaled(self.op, &dy, self.scale)?.reshape(&self.kept)?;
        drop(dy);
        let dx = stretch(self.op, &small, &self.shape)?;
        drop(small);
        cx.give(0, dx)
    }
}
