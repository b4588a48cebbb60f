//! Comparisons: i32 masks, 1 where they hold. They have no gradient.

use super::constant;
use crate::device::spec::Comparison;
use crate::dtype::DType;
use crate::error::Result;
use crate::tape::Var;
use crate::tensor::{Tensor, require_alike};

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = $comparison:ident;)*) => {
        impl Var {
            $($(#[$doc])*
            pub fn $name(&self, other: &Var) -> Result<Var> {
                self.compare(stringify!($name), Comparison::$comparison, other)
            })*
        }
    };
}

comparisons! {
    /// `a = b`: an i32 mask, 1 where it holds and 0 elsewhere, for any dtype. Operands broadcast
    /// as in [`Var::add`]. A constant: no gradient flows through it.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0, 3.0], [3], &device)?);
    /// let b = Var::from(Tensor::from_vec(vec![2.0], [1], &device)?);
    /// assert_eq!(a.eq(&b)?.tensor().to_vec::<i32>()?, [0, 1, 0]);
    /// assert_eq!(a.lt(&b)?.tensor().to_vec::<i32>()?, [1, 0, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) or `DTypeMismatch` where the
    /// operands differ; `Shape` where they do not broadcast; those of making a tensor.
    eq = Equal;
    /// `a ≠ b`, as [`Var::eq`]; true for NaN.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1.0, f64::NAN], [2], &Device::cpu())?);
    /// assert_eq!(a.ne(&a)?.tensor().to_vec::<i32>()?, [0, 1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::eq`].
    ne = NotEqual;
    /// `a < b`, as [`Var::eq`].
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1i64, 2], [2, 1], &Device::cpu())?);
    /// let b = Var::from(a.tensor().reshape([2])?);
    /// assert_eq!(a.lt(&b)?.tensor().to_vec::<i32>()?, [0, 1, 0, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::eq`].
    lt = Less;
    /// `a ≤ b`, as [`Var::eq`].
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1i64, 2], [2, 1], &Device::cpu())?);
    /// let b = Var::from(a.tensor().reshape([2])?);
    /// assert_eq!(a.le(&b)?.tensor().to_vec::<i32>()?, [1, 1, 0, 1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::eq`].
    le = LessOrEqual;
    /// `a > b`, as [`Var::eq`].
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1i64, 2], [2, 1], &Device::cpu())?);
    /// let b = Var::from(a.tensor().reshape([2])?);
    /// assert_eq!(a.gt(&b)?.tensor().to_vec::<i32>()?, [0, 0, 1, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::eq`].
    gt = Greater;
    /// `a ≥ b`, as [`Var::eq`].
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1i64, 2], [2, 1], &Device::cpu())?);
    /// let b = Var::from(a.tensor().reshape([2])?);
    /// assert_eq!(a.ge(&b)?.tensor().to_vec::<i32>()?, [1, 0, 1, 1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::eq`].
    ge = GreaterOrEqual;
}

impl Var {
    fn compare(&self, op: &'static str, f: Comparison, other: &Var) -> Result<Var> {
        require_alike(op, self.tensor(), other.tensor())?;
        let shape = self.shape().broadcast(other.shape(), op)?;
        let out = Tensor::result(op, shape, DType::I32, self.device())?;
        self.device().backend().compare(f, self.tensor(), other.tensor(), &out)?;
        constant(op, out, &[self, other])
    }
}
