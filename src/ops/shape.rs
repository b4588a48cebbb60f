//! Other shapes for the same elements: nothing is copied, and only a shape is saved.

use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Var};
use crate::tensor::Tensor;

impl Var {
    /// The same elements under another shape, of any dtype. Nothing is copied.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 6], DType::F32, &Device::cpu())?);
    /// assert_eq!(x.reshape([3, 4])?.dims(), [3, 4]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Var> {
        self.view("reshape", shape.into())
    }

    /// The axes from `start_axis` to the last joined into one. Nothing is copied.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 3, 4], DType::F32, &Device::cpu())?);
    /// assert_eq!(x.flatten(1)?.dims(), [2, 12]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such axis (`flatten(0)` of `[]` is `[1]`).
    pub fn flatten(&self, start_axis: usize) -> Result<Var> {
        let rank = self.shape().rank();
        if start_axis >= rank.max(1) {
            let reason = format!("{} has {rank} axes", self.shape());
            return Err(Error::argument("flatten", "start_axis", start_axis, reason));
        }
        let (kept, joined) = self.dims().split_at(start_axis);
        let joined = Shape::from(joined).elements();
        self.view("flatten", kept.iter().copied().chain([joined]).collect())
    }

    /// Without `axis`, whose extent is 1. Nothing is copied.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 1, 4], DType::F32, &Device::cpu())?);
    /// assert_eq!(x.squeeze(1)?.dims(), [2, 4]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such axis, [`Error::Shape`] where it is not 1 long.
    pub fn squeeze(&self, axis: isize) -> Result<Var> {
        let op = "squeeze";
        let axis = self.shape().axis(axis, op)?;
        if self.dims()[axis] != 1 {
            let reason = format!("axis {axis} has extent {}, not 1", self.dims()[axis]);
            return Err(Error::shape(op, &[self.shape()], reason));
        }
        let mut shape = self.shape().clone();
        shape.dims_mut().remove(axis);
        self.view(op, shape)
    }

    /// With a new axis of extent 1 at `axis` of the result (-1 makes it the last). Nothing is
    /// copied.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 4], DType::F32, &Device::cpu())?);
    /// assert_eq!(x.unsqueeze(1)?.dims(), [2, 1, 4]);
    /// assert_eq!(x.unsqueeze(-1)?.dims(), [2, 4, 1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where the result has no such axis.
    pub fn unsqueeze(&self, axis: isize) -> Result<Var> {
        let mut shape = self.shape().clone();
        shape.dims_mut().push(1);
        let axis = shape.axis(axis, "unsqueeze")?;
        shape.dims_mut().pop();
        shape.dims_mut().insert(axis, 1);
        self.view("unsqueeze", shape)
    }

    /// The same elements under another shape, on behalf of `op`.
    pub(super) fn view(&self, op: &'static str, shape: Shape) -> Result<Var> {
        let out = self.tensor().reshape(shape)?;
        Var::record(op, out, &[self], |_| ViewRule { op, shape: self.shape().clone() })
    }
}

struct ViewRule {
    op: &'static str,
    shape: Shape,
}

impl Rule for ViewRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = dy.reshape(&self.shape)?;
        // So that the gradient is nobody else's.
        drop(dy);
        cx.give(0, dx)
    }
}
