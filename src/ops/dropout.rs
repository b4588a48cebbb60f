//! Dropout. The mask is never stored: it is drawn again, from its position in the random stream.

use crate::device::philox::Stream;
use crate::error::{Error, Result};
use crate::tape::{Backward, Rule, Var};
use crate::tensor::{Tensor, require_float};

impl Var {
    /// `x/(1 - p)` with probability `1 - p`, else 0, element by element, for floats (Srivastava et
    /// al. 2014). The mask is drawn from (seed, step, operation) of the tape, or from the device's
    /// seed without one, and drawn again in the backward pass: nothing is saved. With `p = 0` the
    /// value itself, and nothing is drawn.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tape, Tensor};
    /// # fn main() -> capgrad::Result<()> {
    /// let ones = Tensor::ones([4], DType::F64, &Device::cpu())?;
    /// let run = || Tape::for_step(7, 0).constant(ones.clone()).dropout(0.5)?.tensor().to_vec();
    /// let kept: Vec<f64> = run()?;
    /// assert!(kept.iter().all(|&x| x == 0.0 || x == 2.0));
    /// assert_eq!(kept, run()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for `p` outside `[0, 1]` or NaN; [`Error::DType`] for integers; those of
    /// making a tensor.
    pub fn dropout(&self, p: f64) -> Result<Var> {
        let op = "dropout";
        require_float(op, self.dtype())?;
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument(op, "p", p, "a probability lies between 0 and 1"));
        }
        if p == 0.0 {
            return Ok(self.clone());
        }
        let out = Tensor::result(op, self.shape(), self.dtype(), self.device())?;
        // Drawn when nothing can be refused any more, so that a step tried again has the same mask.
        let stream = self.next_stream();
        self.device().backend().dropout(p, stream, self.tensor(), &out)?;
        Var::record(op, out, &[self], |_| DropoutRule { p, stream })
    }
}

struct DropoutRule {
    p: f64,
    stream: Stream,
}

impl Rule for DropoutRule {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dx = Tensor::result(self.name(), dy.shape(), dy.dtype(), dy.device())?;
        dy.device().backend().dropout(self.p, self.stream, &dy, &dx)?;
        drop(dy);
        cx.give(0, dx)
    }
}
