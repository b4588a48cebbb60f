//! Layer normalisation over the last axis.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_alike, require_float};
use smallvec::SmallVec;

impl Var {
    /// `(x - mean)/√(variance + epsilon) · weight + bias` over the last axis, with the biased
    /// variance, for floats (Ba, Kiros and Hinton 2016). `x [.., features]`, `weight [features]`,
    /// `bias [features]`. Saves `x`, `weight`, and a mean and a scale a row.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 3.0], [1, 2], &Device::cpu())?);
    /// assert_eq!(x.layer_norm(None, None, 0.0)?.tensor().to_vec::<f64>()?, [-1.0, 1.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for `[]`, for no features, and for a weight or bias of another shape;
    /// [`Error::Argument`] for an epsilon that is negative or not finite; `DType` for integers;
    /// `DeviceMismatch`, `DTypeMismatch`, `TapeMismatch`; those of making a tensor.
    pub fn layer_norm(
        &self,
        weight: Option<&Var>,
        bias: Option<&Var>,
        epsilon: f64,
    ) -> Result<Var> {
        let op = "layer_norm";
        require_float(op, self.dtype())?;
        let features = match self.dims() {
            [.., features] if *features > 0 => *features,
            _ => {
                let reason = "expected [.., features] with at least one feature";
                return Err(Error::shape(op, &[self.shape()], reason));
            }
        };
        for other in [weight, bias].into_iter().flatten() {
            require_alike(op, self.tensor(), other.tensor())?;
            if other.dims() != [features] {
                let reason = format!("weight and bias must have shape [{features}]");
                return Err(Error::shape(op, &[self.shape(), other.shape()], reason));
            }
        }
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            let reason = "expected a finite number of at least 0";
            return Err(Error::argument(op, "epsilon", epsilon, reason));
        }
        let rows = self.shape().elements() / features;
        let sums = if self.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let x = self.tensor().reshape([rows, features])?;
        let out = Tensor::result(op, [rows, features], self.dtype(), self.device())?;
        let mean = Tensor::result(op, rows, sums, self.device())?;
        let rstd = Tensor::result(op, rows, sums, self.device())?;
        let (w, b) = (weight.map(Var::tensor), bias.map(Var::tensor));
        self.device().backend().layer_norm(&x, w, b, epsilon, &out, &mean, &rstd)?;
        let inputs: SmallVec<[&Var; 3]> =
            [Some(self), weight, bias].into_iter().flatten().collect();
        Var::record(op, out.reshape(self.shape())?, &inputs, |_| LayerNormRule {
            shape: self.shape().clone(),
            x: Saved::new(op, &x),
            weight: w.map(|weight| Saved::new(op, weight)),
            mean: Saved::new(op, &mean),
            rstd: Saved::new(op, &rstd),
        })
    }
}

struct LayerNormRule {
    shape: Shape,
    x: Saved,
    weight: Option<Saved>,
    mean: Saved,
    rstd: Saved,
}

impl Rule for LayerNormRule {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (x, mean, rstd) = (self.x.take(cx)?, self.mean.take(cx)?, self.rstd.take(cx)?);
        let weight = self.weight.as_mut().map(|weight| weight.take(cx)).transpose()?;
        // Inputs are numbered in order, without those that were not given.
        let bias_input = if weight.is_some() { 2 } else { 1 };
        let features = Shape::from(x.dims()[1]);
        let wanted = |wanted: bool, shape: &Shape| {
            wanted.then(|| Tensor::result("layer_norm", shape, x.dtype(), x.device())).transpose()
        };
        let dy = dy.dense()?.reshape(x.shape())?;
        let dx = wanted(cx.needs(0), x.shape())?;
        let dweight = wanted(weight.is_some() && cx.needs(1), &features)?;
        let dbias = wanted(cx.needs(bias_input), &features)?;
        dy.device().backend().layer_norm_gradient(
            &x,
            weight.as_ref(),
            &mean,
            &rstd,
            &dy,
            dx.as_ref(),
            dweight.as_ref(),
            dbias.as_ref(),
        )?;
        drop((x, weight, mean, rstd, dy));
        let dx = dx.map(|dx| dx.reshape(&self.shape)).transpose()?;
        for (i, gradient) in [(0, dx), (1, dweight), (bias_input, dbias)] {
            if let Some(gradient) = gradient {
                cx.give(i, gradient)?;
            }
        }
        Ok(())
    }
}
