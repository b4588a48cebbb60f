//! Elementwise functions of one operand, and the rule that all of them share.

use crate::device::spec::Unary;
use crate::error::{Error, Result};
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_float};

impl Var {
    /// `x²`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![-3.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.square()?.tensor().to_vec::<f64>()?, [9.0, 4.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for integers; those of making a tensor.
    pub fn square(&self) -> Result<Var> {
        self.unary("square", Unary::Square)
    }

    /// `√x`, elementwise, of any shape and float dtype; NaN below 0. The gradient at 0 is infinite.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![4.0, 9.0], [2], &Device::cpu())?);
    /// assert_eq!(x.sqrt()?.tensor().to_vec::<f64>()?, [2.0, 3.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::square`].
    pub fn sqrt(&self) -> Result<Var> {
        self.unary("sqrt", Unary::Sqrt)
    }

    /// `eˣ`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([1], DType::F64, &Device::cpu())?);
    /// assert_eq!(x.exp()?.item()?, 1.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::square`].
    pub fn exp(&self) -> Result<Var> {
        self.unary("exp", Unary::Exp)
    }

    /// `ln x`, elementwise, of any shape and float dtype; NaN below 0.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::ones([1], DType::F64, &Device::cpu())?);
    /// assert_eq!(x.ln()?.item()?, 0.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::square`].
    pub fn ln(&self) -> Result<Var> {
        self.unary("ln", Unary::Ln)
    }

    /// `|x|`, elementwise, of any shape and float dtype. The gradient at 0 is 0.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![-3.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.abs()?.tensor().to_vec::<f64>()?, [3.0, 2.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::square`].
    pub fn abs(&self) -> Result<Var> {
        self.unary("abs", Unary::Abs)
    }

    /// `x` limited to `[low, high]`, elementwise, of any shape and float dtype. The gradient is 1
    /// inside the interval and on its ends, else 0.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![-3.0, 0.5, 2.0], [3], &Device::cpu())?);
    /// assert_eq!(x.clamp(-1.0, 1.0)?.tensor().to_vec::<f64>()?, [-1.0, 0.5, 1.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where `low > high` or one of them is NaN; as [`Var::square`].
    pub fn clamp(&self, low: f64, high: f64) -> Result<Var> {
        if low.is_nan() || high.is_nan() || low > high {
            let value = format!("{low} with high = {high}");
            let reason = "the lower end must be at most the upper one, and neither NaN";
            return Err(Error::argument("clamp", "low", value, reason));
        }
        self.unary("clamp", Unary::Clamp(low, high))
    }

    /// Runs and records one elementwise function.
    pub(super) fn unary(&self, op: &'static str, f: Unary) -> Result<Var> {
        require_float(op, self.dtype())?;
        let out = Tensor::result(op, self.shape(), self.dtype(), self.device())?;
        self.device().backend().unary(f, self.tensor(), &out)?;
        Var::record(op, out, &[self], |out| {
            let saved = if f.saves_result() { out } else { self.tensor() };
            UnaryRule { op, f, saved: Saved::new(op, saved) }
        })
    }
}

struct UnaryRule {
    op: &'static str,
    f: Unary,
    saved: Saved,
}

impl Rule for UnaryRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let saved = self.saved.take(cx)?;
        let dx = Tensor::result(self.op, dy.shape(), dy.dtype(), dy.device())?;
        dy.device().backend().unary_gradient(self.f, &saved, &dy, &dx)?;
        drop((saved, dy));
        cx.give(0, dx)
    }
}
