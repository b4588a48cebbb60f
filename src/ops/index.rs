//! Picking elements by index.

use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_float, require_integer, require_same_device};

impl Var {
    /// `y[.., i, ..] = x[.., index[.., i, ..], ..]` along `axis` (negative ones count from the
    /// end), for floats. `index` is i32 or i64 and has the extents of `x` but along `axis`, and the
    /// result has its shape. The gradient adds up where an element was picked more than once. Saves
    /// the index.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], [2, 2], &device)?);
    /// let index = Tensor::from_vec(vec![1i64, 0], [2, 1], &device)?;
    /// assert_eq!(x.gather(1, &index)?.tensor().to_vec::<f64>()?, [2.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that is not there and for an index out of range, which it
    /// names; [`Error::Shape`] for an index of another shape; `DType` for integer values or a
    /// float index; `DeviceMismatch`; those of making a tensor.
    pub fn gather(&self, axis: isize, index: &Tensor) -> Result<Var> {
        let op = "gather";
        require_float(op, self.dtype())?;
        require_integer(op, index.dtype())?;
        require_same_device(op, self.tensor(), index)?;
        let axis = self.shape().axis(axis, op)?;
        let fits = index.shape().rank() == self.shape().rank()
            && index.shape().with(axis, 0) == self.shape().with(axis, 0);
        if !fits {
            let reason = format!("the index must have the extents of the value but along {axis}");
            return Err(Error::shape(op, &[self.shape(), index.shape()], reason));
        }
        let extent = self.dims()[axis];
        if let Some(outside) = first_outside(index, extent, None)? {
            let reason = format!("axis {axis} of {} has {extent} entries", self.shape());
            return Err(Error::argument(op, "index", outside, reason));
        }
        let out = Tensor::result(op, index.shape(), self.dtype(), self.device())?;
        self.device().backend().gather(self.tensor(), axis, index, &out)?;
        Var::record(op, out, &[self], |_| GatherRule {
            index: Saved::new(op, index),
            shape: self.shape().clone(),
            axis,
        })
    }
}

/// An index that is not in `0 .. extent`, if there is one; those equal to `ignore` do not count.
pub(super) fn first_outside(
    index: &Tensor,
    extent: usize,
    ignore: Option<i64>,
) -> Result<Option<i64>> {
    if index.elements() == 0 {
        return Ok(None);
    }
    let (low, high) = index.device().backend().index_range(index, ignore)?;
    // With nothing left after ignoring, the range is empty: its ends are the wrong way round.
    Ok(match low > high {
        true => None,
        false if low < 0 => Some(low),
        false => Some(high).filter(|&high| high as u64 >= extent as u64),
    })
}

struct GatherRule {
    index: Saved,
    shape: Shape,
    axis: usize,
}

impl Rule for GatherRule {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let index = self.index.take(cx)?;
        let dy = dy.dense()?;
        let dx = Tensor::result(self.name(), &self.shape, dy.dtype(), dy.device())?;
        dy.device().backend().fill(&dx, 0.0)?;
        dy.device().backend().scatter_add(&dy, self.axis, &index, &dx)?;
        drop((dy, index));
        cx.give(0, dx)
    }
}
