//! Softmax and its logarithm along an axis. Both save their result.

use crate::error::Result;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_float};

impl Var {
    /// `e^x / Σ e^x` along `axis` (negative ones count from the end), for floats; computed from
    /// `x - max x`, so that nothing overflows. Saves its result.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 4], DType::F64, &Device::cpu())?);
    /// assert_eq!(x.softmax(-1)?.tensor().to_vec::<f64>()?, [0.25; 8]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for an axis that is not there; `DType` for integers; those of
    /// making a tensor.
    pub fn softmax(&self, axis: isize) -> Result<Var> {
        self.normalised("softmax", false, axis)
    }

    /// `x - ln Σ e^x` along `axis`: the logarithm of [`Var::softmax`], also where that underflows.
    /// Saves its result.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![0.0, -2000.0], [2], &Device::cpu())?);
    /// assert_eq!(x.log_softmax(0)?.tensor().to_vec::<f64>()?, [0.0, -2000.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::softmax`].
    pub fn log_softmax(&self, axis: isize) -> Result<Var> {
        self.normalised("log_softmax", true, axis)
    }

    fn normalised(&self, op: &'static str, log: bool, axis: isize) -> Result<Var> {
        require_float(op, self.dtype())?;
        let axis = self.shape().axis(axis, op)?;
        let out = Tensor::result(op, self.shape(), self.dtype(), self.device())?;
        self.device().backend().softmax(log, self.tensor(), axis, &out)?;
        Var::record(op, out, &[self], |out| SoftmaxRule {
            op,
            log,
            axis,
            result: Saved::new(op, out),
        })
    }
}

struct SoftmaxRule {
    op: &'static str,
    log: bool,
    axis: usize,
    result: Saved,
}

impl Rule for SoftmaxRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let y = self.result.take(cx)?;
        let dy = dy.dense()?;
        let dx = Tensor::result(self.op, dy.shape(), dy.dtype(), dy.device())?;
        dy.device().backend().softmax_gradient(self.log, &y, &dy, self.axis, &dx)?;
        drop((dy, y));
        cx.give(0, dx)
    }
}
