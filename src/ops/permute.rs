//! Axes in another order. Tensors are row-major, so the elements move, unless the axes that change
//! places are only 1 long.

use crate::device::spec::Window;
use crate::error::{Error, Result};
use crate::tape::{Backward, Rule, Var};
use crate::tensor::Tensor;
use smallvec::SmallVec;

type Axes = SmallVec<[usize; 4]>;

impl Var {
    /// The axes in another order: axis `i` of the result is axis `axes[i]` of this value, of any
    /// dtype. Copies, unless all that moves is 1 long. Saves the order.
    ///
    /// ```
    /// # use capgrad::{DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 3, 4], DType::F32, &Device::cpu())?);
    /// assert_eq!(x.permute(&[2, 0, 1])?.dims(), [4, 2, 3]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] where `axes` does not name each axis once; those of making a tensor.
    pub fn permute(&self, axes: &[usize]) -> Result<Var> {
        let rank = self.shape().rank();
        if axes.len() != rank || (0..rank).any(|axis| !axes.contains(&axis)) {
            let reason = format!("expected each axis of {} once", self.shape());
            return Err(Error::argument("permute", "axes", format!("{axes:?}"), reason));
        }
        self.reorder("permute", axes.into())
    }

    /// Two axes exchanged (negative ones count from the end), as in [`Var::permute`].
    ///
    /// ```
    /// # use capgrad::{Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?);
    /// assert_eq!(x.transpose(0, 1)?.tensor().to_vec::<f64>()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an axis that is not there; those of making a tensor.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Var> {
        let op = "transpose";
        let (a, b) = (self.shape().axis(a, op)?, self.shape().axis(b, op)?);
        let mut axes: Axes = (0..self.shape().rank()).collect();
        axes.swap(a, b);
        self.reorder(op, axes)
    }

    fn reorder(&self, op: &'static str, axes: Axes) -> Result<Var> {
        let out = reordered(op, self.tensor(), &axes)?;
        Var::record(op, out, &[self], |_| PermuteRule { op, axes })
    }
}

fn reordered(op: &'static str, x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let shape = axes.iter().map(|&axis| x.dims()[axis]).collect();
    if x.is_uniform() {
        return Ok(Tensor::uniform(&x.stored(), shape));
    }
    let mut long = axes.iter().filter(|&&axis| x.dims()[axis] != 1);
    if long.by_ref().is_sorted() || x.elements() == 0 {
        return x.reshape(shape);
    }
    let out = Tensor::result(op, &shape, x.dtype(), x.device())?;
    let own = x.shape().strides();
    let from = Window { offset: 0, strides: axes.iter().map(|&axis| own[axis]).collect() };
    let to = Window { offset: 0, strides: shape.strides() };
    x.device().backend().copy_window(shape.dims(), x, &from, &out, &to)?;
    Ok(out)
}

struct PermuteRule {
    op: &'static str,
    axes: Axes,
}

impl Rule for PermuteRule {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut inverse: Axes = SmallVec::from_elem(0, self.axes.len());
        for (i, &axis) in self.axes.iter().enumerate() {
            inverse[axis] = i;
        }
        let dx = reordered(self.op, &dy, &inverse)?;
        drop(dy);
        cx.give(0, dx)
    }
}
