//! Arithmetic with one number. All but `a / x` is affine, and saves nothing: the gradient of
//! `a·x + b` is `a·dy`, which is `dy` itself for `a = 1`.

use super::broadcast::scaled;
use crate::device::spec::Unary;
use crate::error::Result;
use crate::tape::{Backward, Rule, Var};
use crate::tensor::{Tensor, require_float};

impl Var {
    /// `-x`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![-3.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.neg()?.tensor().to_vec::<f64>()?, [3.0, -2.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`](crate::Error::DType) for integers; those of making a tensor.
    pub fn neg(&self) -> Result<Var> {
        self.affine("neg", -1.0, 0.0)
    }

    /// `x + a`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.add_scalar(0.5)?.tensor().to_vec::<f64>()?, [1.5, 2.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::neg`].
    pub fn add_scalar(&self, a: f64) -> Result<Var> {
        self.affine("add_scalar", 1.0, a)
    }

    /// `x - a`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.sub_scalar(0.5)?.tensor().to_vec::<f64>()?, [0.5, 1.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::neg`].
    pub fn sub_scalar(&self, a: f64) -> Result<Var> {
        self.affine("sub_scalar", 1.0, -a)
    }

    /// `a · x`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.mul_scalar(3.0)?.tensor().to_vec::<f64>()?, [3.0, 6.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::neg`].
    pub fn mul_scalar(&self, a: f64) -> Result<Var> {
        self.affine("mul_scalar", a, 0.0)
    }

    /// `x / a`, elementwise, of any shape and float dtype; computed as `(1/a) · x`.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.div_scalar(4.0)?.tensor().to_vec::<f64>()?, [0.25, 0.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::neg`].
    pub fn div_scalar(&self, a: f64) -> Result<Var> {
        self.affine("div_scalar", 1.0 / a, 0.0)
    }

    /// `a - x`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.scalar_sub(1.0)?.tensor().to_vec::<f64>()?, [0.0, -1.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::neg`].
    pub fn scalar_sub(&self, a: f64) -> Result<Var> {
        self.affine("scalar_sub", -1.0, a)
    }

    /// `a / x`, elementwise, of any shape and float dtype.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(x.scalar_div(1.0)?.tensor().to_vec::<f64>()?, [1.0, 0.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::neg`].
    pub fn scalar_div(&self, a: f64) -> Result<Var> {
        self.unary("scalar_div", Unary::Reciprocal(a))
    }

    fn affine(&self, op: &'static str, factor: f64, summand: f64) -> Result<Var> {
        require_float(op, self.dtype())?;
        let out = Tensor::result(op, self.shape(), self.dtype(), self.device())?;
        self.device().backend().unary(Unary::Affine(factor, summand), self.tensor(), &out)?;
        Var::record(op, out, &[self], |_| AffineRule { op, factor })
    }
}

struct AffineRule {
    op: &'static str,
    factor: f64,
}

impl Rule for AffineRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = scaled(self.op, &dy, self.factor)?;
        drop(dy);
        cx.give(0, dx)
    }
}
