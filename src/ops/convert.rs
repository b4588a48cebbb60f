//! To another device, to another dtype. Nothing is saved but where the value came from.

use super::constant;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::PurposeGuard;
use crate::tape::{Backward, Rule, Var};
use crate::tensor::Tensor;

impl Var {
    /// A copy on another device (or the same value, if it is there already), of any dtype. The
    /// gradient goes back the same way, so one graph crosses devices.
    ///
    /// ```
    /// # use capgrad::{Device, Tape, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let (one, two) = (Device::cpu(), Device::new_cpu(Default::default())?);
    /// let tape = Tape::new();
    /// let x = tape.variable(Tensor::from_vec(vec![1.0, 2.0], [2], &one)?)?;
    /// let grads = x.to(&two)?.sum()?.backward()?;
    /// assert_eq!(grads.get(&x).unwrap().device(), &one);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of making a tensor on the other device.
    pub fn to(&self, device: &Device) -> Result<Var> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let _purpose = PurposeGuard::for_results();
        let out = self.tensor().to(device)?;
        Var::record("to", out, &[self], |_| ToRule(self.device().clone()))
    }

    /// A copy in another dtype (or the same value, if it has that dtype already). Integers truncate
    /// and saturate; halves round to nearest. Between floats the gradient is converted back; to an
    /// integer dtype there is none.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.5, -2.5], [2], &Device::cpu())?);
    /// assert_eq!(x.to_dtype(DType::F32)?.tensor().to_vec::<f32>()?, [1.5, -2.5]);
    /// assert_eq!(x.to_dtype(DType::I64)?.tensor().to_vec::<i64>()?, [1, -2]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of making a tensor.
    pub fn to_dtype(&self, dtype: DType) -> Result<Var> {
        let op = "to_dtype";
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let _purpose = PurposeGuard::for_results();
        let out = self.tensor().to_dtype(dtype)?;
        if !dtype.is_float() {
            return constant(op, out, &[self]);
        }
        Var::record(op, out, &[self], |_| CastRule(self.dtype()))
    }
}

/// Holds the device that the value came from.
struct ToRule(Device);

impl Rule for ToRule {
    fn name(&self) -> &'static str {
        "to"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = dy.to(&self.0)?;
        drop(dy);
        cx.give(0, dx)
    }
}

/// Holds the dtype that the value had.
struct CastRule(DType);

impl Rule for CastRule {
    fn name(&self) -> &'static str {
        "to_dtype"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = dy.to_dtype(self.0)?;
        drop(dy);
        cx.give(0, dx)
    }
}
