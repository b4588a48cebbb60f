//! Cuts along one axis.

use crate::device::spec::Window;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Var};
use crate::tensor::Tensor;

impl Var {
    /// Entries `start .. start + length` along `axis`, of any dtype. Along the first axis (or one
    /// with only axes of extent 1 before it) nothing is copied, and the whole storage stays alive
    /// as long as the cut does. Saves a shape.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?);
    /// assert_eq!(x.narrow(1, 0, 1)?.tensor().to_vec::<f64>()?, [1.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that is not there, and for entries that are not; those of
    /// making a tensor.
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Result<Var> {
        let op = "narrow";
        let axis = self.shape().axis(axis, op)?;
        let extent = self.dims()[axis];
        if start.checked_add(length).is_none_or(|end| end > extent) {
            let value = format!("{length} from {start}");
            let reason = format!("axis {axis} of {} has {extent} entries", self.shape());
            return Err(Error::argument(op, "length", value, reason));
        }
        if length == extent {
            return Ok(self.clone());
        }
        let out = cut(op, self.tensor(), axis, start, length)?;
        let shape = self.shape().clone();
        Var::record(op, out, &[self], |_| NarrowRule { shape, axis, start })
    }
}

/// Entries `start .. start + length` along `axis`, shared where they lie together.
pub(super) fn cut(
    op: &'static str,
    x: &Tensor,
    axis: usize,
    start: usize,
    length: usize,
) -> Result<Tensor> {
    let shape = x.shape().with(axis, length);
    if x.is_uniform() {
        return Ok(Tensor::uniform(&x.stored(), shape));
    }
    if shape.elements() == 0 {
        return Tensor::result(op, shape, x.dtype(), x.device());
    }
    if x.dims()[..axis].iter().all(|&extent| extent == 1) {
        return x.reshape(&x.dims()[axis..])?.rows(start, length).reshape(shape);
    }
    let out = Tensor::result(op, &shape, x.dtype(), x.device())?;
    let to = Window { offset: 0, strides: shape.strides() };
    x.device().backend().copy_window(shape.dims(), x, &part(x.shape(), axis, start), &out, &to)?;
    Ok(out)
}

/// Writes `x` to the entries of `out` that begin at `start` along `axis`.
pub(super) fn paste(x: &Tensor, out: &Tensor, axis: usize, start: usize) -> Result<()> {
    if x.elements() == 0 {
        return Ok(());
    }
    let mut from = part(x.shape(), axis, 0);
    if x.is_uniform() {
        from.strides.fill(0);
    }
    let to = part(out.shape(), axis, start);
    x.device().backend().copy_window(x.dims(), x, &from, out, &to)
}

fn part(shape: &Shape, axis: usize, start: usize) -> Window {
    let strides = shape.strides();
    Window { offset: start * strides[axis], strides }
}

struct NarrowRule {
    shape: Shape,
    axis: usize,
    start: usize,
}

impl Rule for NarrowRule {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = Tensor::result(self.name(), &self.shape, dy.dtype(), dy.device())?;
        dx.device().backend().fill(&dx, 0.0)?;
        paste(&dy, &dx, self.axis, self.start)?;
        drop(dy);
        cx.give(0, dx)
    }
}
