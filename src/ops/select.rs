//! Choosing between two values, element by element.

use super::broadcast::for_inputs;
use crate::device::spec::Side;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_alike, require_float, require_same_device};

impl Var {
    /// `a` where this mask (i32, from a comparison) is not 0, else `b`; NumPy's `where`. All three
    /// broadcast as in [`Var::add`]. Gradients flow to `a` and `b`; saves the mask.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let a = Var::from(Tensor::from_vec(vec![1.0, 5.0], [2], &device)?);
    /// let b = Var::from(Tensor::from_vec(vec![3.0], [1], &device)?);
    /// let largest = a.gt(&b)?.select(&a, &b)?;
    /// assert_eq!(largest.tensor().to_vec::<f64>()?, [3.0, 5.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for a mask that is not i32 and for values that are not floats;
    /// `DeviceMismatch` or `DTypeMismatch` where operands differ; `Shape` where they do not
    /// broadcast; `TapeMismatch`; those of making a tensor.
    pub fn select(&self, a: &Var, b: &Var) -> Result<Var> {
        let op = "select";
        if self.dtype() != DType::I32 {
            return Err(Error::DType { op, got: self.dtype(), expected: "i32 for the mask" });
        }
        require_float(op, a.dtype())?;
        require_alike(op, a.tensor(), b.tensor())?;
        require_same_device(op, self.tensor(), a.tensor())?;
        let shape = self.shape().broadcast(&a.shape().broadcast(b.shape(), op)?, op)?;
        let out = Tensor::result(op, shape, a.dtype(), a.device())?;
        a.device().backend().select(self.tensor(), a.tensor(), b.tensor(), &out)?;
        Var::record(op, out, &[a, b], |_| SelectRule {
            mask: Saved::new(op, self.tensor()),
            shapes: [a.shape().clone(), b.shape().clone()],
        })
    }
}

struct SelectRule {
    mask: Saved,
    shapes: [Shape; 2],
}

impl Rule for SelectRule {
    fn name(&self) -> &'static str {
        "select"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (op, device) = (self.name(), dy.device().clone());
        let mask = self.mask.take(cx)?;
        for (i, dy) in for_inputs(dy, cx).into_iter().enumerate() {
            let Some(dy) = dy else { continue };
            let side = if i == 0 { Side::Left } else { Side::Right };
            let out = Tensor::result(op, &self.shapes[i], dy.dtype(), &device)?;
            device.backend().select_gradient(&mask, side, &dy, &out)?;
            drop(dy);
            cx.give(i, out)?;
        }
        Ok(())
    }
}
