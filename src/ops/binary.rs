//! Elementwise functions of two operands, which broadcast by NumPy's rule: shapes are aligned at
//! the end, and an extent of 1 stretches.

use super::broadcast::{for_inputs, sum_to};
use crate::device::spec::{Binary, Side};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_alike, require_float};

impl Var {
    /// `a + b`, elementwise and broadcast (aligned at the end, an extent of 1 stretches). Saves
    /// only shapes.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2, 1], &device)?);
    /// let b = Var::from(Tensor::from_vec(vec![10.0, 20.0], [2], &device)?);
    /// assert_eq!(a.add(&b)?.tensor().to_vec::<f64>()?, [11.0, 21.0, 12.0, 22.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] for integers; `DeviceMismatch` or `DTypeMismatch`
    /// where the operands differ; `Shape` where they do not broadcast; `TapeMismatch`; those of
    /// making a tensor.
    pub fn add(&self, other: &Var) -> Result<Var> {
        self.binary("add", Binary::Add, other)
    }

    /// `a - b`, elementwise and broadcast as in [`Var::add`]. Saves only shapes.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(a.sub(&a)?.tensor().to_vec::<f64>()?, [0.0, 0.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::add`].
    pub fn sub(&self, other: &Var) -> Result<Var> {
        self.binary("sub", Binary::Sub, other)
    }

    /// `a · b`, elementwise and broadcast as in [`Var::add`]. Saves an operand only where the other
    /// one needs a gradient.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &Device::cpu())?);
    /// assert_eq!(a.mul(&a)?.tensor().to_vec::<f64>()?, [1.0, 4.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::add`].
    pub fn mul(&self, other: &Var) -> Result<Var> {
        self.binary("mul", Binary::Mul, other)
    }

    /// `a / b`, elementwise and broadcast as in [`Var::add`]. Saves `b`, and `a` where `b` needs a
    /// gradient.
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let a = Var::from(Tensor::from_vec(vec![1.0, 2.0], [2], &device)?);
    /// let b = Var::from(Tensor::from_vec(vec![4.0], [1], &device)?);
    /// assert_eq!(a.div(&b)?.tensor().to_vec::<f64>()?, [0.25, 0.5]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Var::add`].
    pub fn div(&self, other: &Var) -> Result<Var> {
        self.binary("div", Binary::Div, other)
    }

    fn binary(&self, op: &'static str, f: Binary, other: &Var) -> Result<Var> {
        require_float(op, self.dtype())?;
        require_alike(op, self.tensor(), other.tensor())?;
        let shape = self.shape().broadcast(other.shape(), op)?;
        let out = Tensor::result(op, shape, self.dtype(), self.device())?;
        self.device().backend().binary(f, self.tensor(), other.tensor(), &out)?;
        Var::record(op, out, &[self, other], |_| BinaryRule::new(op, f, self, other))
    }
}

struct BinaryRule {
    op: &'static str,
    f: Binary,
    shapes: [Shape; 2],
    saved: [Option<Saved>; 2],
}

impl BinaryRule {
    fn new(op: &'static str, f: Binary, a: &Var, b: &Var) -> BinaryRule {
        let (save_a, save_b) = match f {
            Binary::Add | Binary::Sub => (false, false),
            Binary::Mul => (b.requires_grad(), a.requires_grad()),
            _ => (b.requires_grad(), true),
        };
        BinaryRule {
            op,
            f,
            shapes: [a.shape().clone(), b.shape().clone()],
            saved: [
                save_a.then(|| Saved::new(op, a.tensor())),
                save_b.then(|| Saved::new(op, b.tensor())),
            ],
        }
    }

    fn operand(&mut self, i: usize, cx: &Backward<'_>) -> Result<Tensor> {
        match &mut self.saved[i] {
            Some(saved) => saved.take(cx),
            None => Err(Error::GraphTaken { op: self.op }),
        }
    }

    /// `Σ dy·∂f/∂side` over what that operand was stretched along; the terms are added up as they
    /// are made, and nothing of the full shape is written.
    fn gradient(&self, side: Side, a: &Tensor, b: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let shape = &self.shapes[side as usize];
        let out = Tensor::result(self.op, shape, dy.dtype(), dy.device())?;
        dy.device().backend().binary_gradient(self.f, side, a, b, dy, &out)?;
        Ok(out)
    }
}

impl Rule for BinaryRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let [left, right] = for_inputs(dy, cx);
        // Used for both sides of a quotient; the other saved operands are used once.
        let mut divisor = match self.f {
            Binary::Div => Some(self.operand(1, cx)?),
            _ => None,
        };
        if let Some(dy) = left {
            let partner = match self.f {
                Binary::Mul => Some(self.operand(1, cx)?),
                _ if right.is_some() => divisor.clone(),
                _ => divisor.take(),
            };
            let gradient = match partner {
                // Neither derivative depends on the left operand.
                Some(partner) => self.gradient(Side::Left, &partner, &partner, &dy)?,
                None => sum_to(self.op, dy, &self.shapes[0], 1.0)?,
            };
            cx.give(0, gradient)?;
        }
        if let Some(dy) = right {
            let gradient = match (self.f, divisor) {
                (Binary::Mul, _) => {
                    let a = self.operand(0, cx)?;
                    self.gradient(Side::Right, &a, &a, &dy)?
                }
                (_, Some(b)) => {
                    let a = self.operand(0, cx)?;
                    self.gradient(Side::Right, &a, &b, &dy)?
                }
                (Binary::Sub, _) => sum_to(self.op, dy, &self.shapes[1], -1.0)?,
                _ => sum_to(self.op, dy, &self.shapes[1], 1.0)?,
            };
            cx.give(1, gradient)?;
        }
        Ok(())
    }
}
