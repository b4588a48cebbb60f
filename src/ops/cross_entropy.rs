//! Cross-entropy of logits and class labels, without the softmax ever being stored.

use super::index::first_outside;
use super::loss::{Reduction, mean_of};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_float, require_integer, require_same_device};

/// How [`Var::cross_entropy`] counts.
///
/// ```
/// use capgrad::{CrossEntropyOptions, Reduction};
/// let options = CrossEntropyOptions { ignore_index: Some(-100), ..Default::default() };
/// assert_eq!(options.reduction, Reduction::Mean);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CrossEntropyOptions {
    /// Samples with this label add nothing, and do not count in the mean. It need not be a class.
    pub ignore_index: Option<i64>,
    /// Mean (the default) or sum over the samples.
    pub reduction: Reduction,
}

impl Var {
    /// `-ln softmax(x)[label]`, averaged or added up over the samples, for float logits
    /// `x [N, classes]` with labels `[N]`, or `x [N, classes, L]` with labels `[N, L]` (of which a
    /// copy with the classes last is made). Labels are i32 or i64. The mean is over the labels that
    /// are not ignored. Saves `x` and the labels.
    ///
    /// ```
    /// # use capgrad::{CrossEntropyOptions, DType, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let x = Var::from(Tensor::zeros([2, 4], DType::F64, &Device::cpu())?);
    /// let labels = Tensor::from_vec(vec![3i64, 0], [2], &Device::cpu())?;
    /// let loss = x.cross_entropy(&labels, CrossEntropyOptions::default())?;
    /// assert!((loss.item()? - 4f64.ln()).abs() < 1e-12);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a label that is not a class, which it names, and for
    /// [`Reduction::None`]; [`Error::Shape`] for other shapes, no classes, and the mean of no
    /// labels; [`Error::DType`] for integer logits or float labels; `DeviceMismatch`; those of
    /// making a tensor.
    pub fn cross_entropy(&self, labels: &Tensor, options: CrossEntropyOptions) -> Result<Var> {
        let op = "cross_entropy";
        let CrossEntropyOptions { ignore_index: ignore, reduction } = options;
        require_float(op, self.dtype())?;
        require_integer(op, labels.dtype())?;
        require_same_device(op, self.tensor(), labels)?;
        let (classes, expected) = match *self.dims() {
            [n, classes] if classes > 0 => (classes, Shape::from([n])),
            [n, classes, length] if classes > 0 => (classes, Shape::from([n, length])),
            _ => {
                let reason = "expected logits [N, classes] or [N, classes, L] with classes";
                return Err(Error::shape(op, &[self.shape(), labels.shape()], reason));
            }
        };
        if labels.shape() != &expected {
            let reason = format!("expected labels of shape {expected}");
            return Err(Error::shape(op, &[self.shape(), labels.shape()], reason));
        }
        if reduction == Reduction::None {
            let reason = "a fused loss has no terms; use log_softmax and gather for them";
            return Err(Error::argument(op, "reduction", "None", reason));
        }
        if let Some(outside) = first_outside(labels, classes, ignore)? {
            let reason = format!("a label is one of {classes} classes, 0 ..= {}", classes - 1);
            return Err(Error::argument(op, "label", outside, reason));
        }
        let rows = labels.elements();
        let labels = labels.reshape(rows)?;
        let scale = match reduction {
            Reduction::Mean => 1.0 / mean_of(op, labels.shape(), counted(&labels, ignore)?)?,
            _ => 1.0,
        };
        let by_rows;
        let x = match *self.dims() {
            [_, _] => self,
            _ => {
                by_rows = self.permute(&[0, 2, 1])?.view(op, Shape::from([rows, classes]))?;
                &by_rows
            }
        };
        let out = Tensor::result(op, Shape::scalar(), x.dtype(), x.device())?;
        x.device().backend().cross_entropy(x.tensor(), &labels, ignore, scale, &out)?;
        Var::record(op, out, &[x], |_| CrossEntropyRule {
            x: Saved::new(op, x.tensor()),
            labels: Saved::new(op, &labels),
            ignore,
            scale,
        })
    }
}

/// How many labels are not ignored.
fn counted(labels: &Tensor, ignore: Option<i64>) -> Result<usize> {
    let Some(ignore) = ignore else { return Ok(labels.elements()) };
    match labels.dtype() {
        DType::I32 => count(labels, |label: i32| i64::from(label) != ignore),
        _ => count(labels, |label: i64| label != ignore),
    }
}

/// Counts on the host, a bounded piece at a time: labels are few next to their logits, and their
/// number is needed here before anything can be launched.
fn count<T: Element>(labels: &Tensor, counts: impl Fn(T) -> bool) -> Result<usize> {
    const PIECE: usize = 1 << 16;
    let mut total = 0;
    for start in (0..labels.elements()).step_by(PIECE) {
        let length = PIECE.min(labels.elements() - start);
        let piece = labels.rows(start, length).to_vec::<T>()?;
        total += piece.into_iter().filter(|&label| counts(label)).count();
    }
    Ok(total)
}

struct CrossEntropyRule {
    x: Saved,
    labels: Saved,
    ignore: Option<i64>,
    scale: f64,
}

impl Rule for CrossEntropyRule {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (x, labels) = (self.x.take(cx)?, self.labels.take(cx)?);
        let dx = Tensor::result(self.name(), x.shape(), x.dtype(), x.device())?;
        x.device().backend().cross_entropy_gradient(
            &x,
            &labels,
            self.ignore,
            self.scale,
            &dy.stored(),
            &dx,
        )?;
        drop((x, labels, dy));
        cx.give(0, dx)
    }
}
