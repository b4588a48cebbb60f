//! Losses of a prediction and a target of the same shape. The sum is taken as the terms are made,
//! so a reduced loss needs no memory but its result.

use super::broadcast::{for_inputs, scaled};
use crate::device::spec::{Binary, Side};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_float, require_same};

/// What becomes of the terms of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reduction {
    /// Their mean, of shape `[]`.
    #[default]
    Mean,
    /// Their sum, of shape `[]`.
    Sum,
    /// The terms themselves.
    None,
}

impl Var {
    /// `(x - target)²`, reduced, for floats. Gradients flow to both. Saves both.
    ///
    /// ```
    /// # use capgrad::{Device, Reduction, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &device)?);
    /// let target = Var::from(Tensor::from_vec(vec![1.0, 4.0], [2], &device)?);
    /// assert_eq!(x.mse_loss(&target, Reduction::Mean)?.item()?, 2.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] unless the shapes are equal (nothing broadcasts), and for the mean of no
    /// elements; [`Error::DType`] for integers; `DeviceMismatch`, `DTypeMismatch`, `TapeMismatch`;
    /// those of making a tensor.
    pub fn mse_loss(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        self.loss("mse_loss", Binary::SquaredError, target, reduction)
    }

    /// `|x - target|`, reduced, as [`Var::mse_loss`]. The gradient where they are equal is 0.
    ///
    /// ```
    /// # use capgrad::{Device, Reduction, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &device)?);
    /// let target = Var::from(Tensor::from_vec(vec![1.0, 4.0], [2], &device)?);
    /// assert_eq!(x.l1_loss(&target, Reduction::Sum)?.item()?, 2.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::mse_loss`].
    pub fn l1_loss(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        self.loss("l1_loss", Binary::AbsoluteError, target, reduction)
    }

    /// `½d²` where `|d| ≤ delta`, else `delta·(|d| - ½·delta)`, with `d = x - target` (Huber 1964),
    /// reduced, as [`Var::mse_loss`].
    ///
    /// ```
    /// # use capgrad::{Device, Reduction, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &device)?);
    /// let target = Var::from(Tensor::from_vec(vec![2.0, 5.0], [2], &device)?);
    /// let terms = x.huber_loss(&target, 1.0, Reduction::None)?;
    /// assert_eq!(terms.tensor().to_vec::<f64>()?, [0.5, 2.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] unless `delta` is finite and over 0; as [`Var::mse_loss`].
    pub fn huber_loss(&self, target: &Var, delta: f64, reduction: Reduction) -> Result<Var> {
        let op = "huber_loss";
        if !(delta > 0.0 && delta.is_finite()) {
            return Err(Error::argument(op, "delta", delta, "expected a finite number over 0"));
        }
        self.loss(op, Binary::Huber(delta), target, reduction)
    }

    /// Binary cross-entropy of these logits and targets in `[0, 1]`, reduced, as [`Var::mse_loss`]:
    /// `-t·ln σ(x) - (1 - t)·ln(1 - σ(x)) = max(x, 0) - x·t + ln(1 + e^-|x|)`, which does not
    /// overflow.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Reduction, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let logits = Var::from(Tensor::zeros([3], DType::F64, &Device::cpu())?);
    /// let targets = Var::from(Tensor::ones([3], DType::F64, &Device::cpu())?);
    /// let loss = logits.bce_with_logits(&targets, Reduction::Mean)?.item()?;
    /// assert!((loss - 2f64.ln()).abs() < 1e-12);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::mse_loss`].
    pub fn bce_with_logits(&self, target: &Var, reduction: Reduction) -> Result<Var> {
        self.loss("bce_with_logits", Binary::BceWithLogits, target, reduction)
    }

    fn loss(&self, op: &'static str, f: Binary, target: &Var, reduction: Reduction) -> Result<Var> {
        require_float(op, self.dtype())?;
        require_same(op, self.tensor(), target.tensor())?;
        let scale = match reduction {
            Reduction::Mean => Some(1.0 / mean_of(op, self.shape(), self.shape().elements())?),
            Reduction::Sum => Some(1.0),
            Reduction::None => None,
        };
        let shape = scale.map_or_else(|| self.shape().clone(), |_| Shape::scalar());
        let out = Tensor::result(op, shape, self.dtype(), self.device())?;
        let (backend, a, b) = (self.device().backend(), self.tensor(), target.tensor());
        match scale {
            Some(scale) => backend.binary_sum(f, scale, a, b, &out)?,
            None => backend.binary(f, a, b, &out)?,
        }
        Var::record(op, out, &[self, target], |_| LossRule {
            op,
            f,
            scale,
            saved: [Saved::new(op, a), Saved::new(op, b)],
        })
    }
}

/// The number of terms in a mean, unless there are none.
pub(super) fn mean_of(op: &'static str, shape: &Shape, count: usize) -> Result<f64> {
    match count {
        0 => Err(Error::shape(op, &[shape], "there is no mean of no terms; use Reduction::Sum")),
        _ => Ok(count as f64),
    }
}

struct LossRule {
    op: &'static str,
    f: Binary,
    /// The factor of the sum, if the terms are summed.
    scale: Option<f64>,
    saved: [Saved; 2],
}

impl Rule for LossRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, mut dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let op = self.op;
        let [a, b] = &mut self.saved;
        let (a, b) = (a.take(cx)?, b.take(cx)?);
        if let Some(scale) = self.scale {
            // Every term has the same gradient: one number stands for all.
            dy = Tensor::uniform(&scaled(op, &dy.stored(), scale)?, a.shape().clone());
        }
        let sides = for_inputs(dy, cx).into_iter().zip([Side::Left, Side::Right]).enumerate();
        for (i, (dy, side)) in sides {
            let Some(dy) = dy else { continue };
            let gradient = Tensor::result(op, dy.shape(), dy.dtype(), dy.device())?;
            dy.device().backend().binary_gradient(self.f, side, &a, &b, &dy, &gradient)?;
            drop(dy);
            cx.give(i, gradient)?;
        }
        Ok(())
    }
}
