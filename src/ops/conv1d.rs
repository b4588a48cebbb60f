//! 1-d convolution: `y[n,o,l] = b[o] + Σ_c Σ_k w[o,c,k] · x[n,c,l·stride + k·dilation - left]`
//! (cross-correlation, as every framework means it), and its three gradients.

use super::conv_uniform;
use crate::device::spec::Unary;
use crate::device::{ConvGeometry, ConvPass, Query};
use crate::error::{Error, Result};
use crate::plan::PlannedCall;
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::{Tensor, require_alike, require_float};

/// Zeros around the input of a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Padding {
    /// None: only windows that lie wholly inside.
    #[default]
    Valid,
    /// As many as keep the length, at stride 1; the odd one goes right.
    Same,
    /// All on the left, as many as keep the length: `y[l]` sees `x[..=l]` only.
    Causal,
    /// This many on the left and on the right.
    Explicit(usize, usize),
}

/// How a convolution slides over its input.
///
/// ```
/// use capgrad::{Conv1dOptions, Padding};
/// let options = Conv1dOptions { stride: 2, padding: Padding::Explicit(1, 1), ..Default::default() };
/// assert_eq!((options.dilation, options.groups), (1, 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Conv1dOptions {
    /// Step of the window, at least 1.
    pub stride: usize,
    /// Distance between taps, at least 1.
    pub dilation: usize,
    /// Independent groups of channels, at least 1.
    pub groups: usize,
    /// Zeros around the input.
    pub padding: Padding,
    /// Workspace cap in bytes for this call and its gradients, over the device's.
    pub workspace_cap: Option<u64>,
}

impl Default for Conv1dOptions {
    fn default() -> Self {
        Conv1dOptions {
            stride: 1,
            dilation: 1,
            groups: 1,
            padding: Padding::Valid,
            workspace_cap: None,
        }
    }
}

impl Conv1dOptions {
    /// What can be checked without an input.
    pub(crate) fn check(&self, kernel: usize) -> Result<()> {
        const OP: &str = "conv1d";
        check_window(OP, self.stride, self.dilation, self.groups, kernel)?;
        window_span(OP, kernel, self.dilation)?;
        if self.padding == Padding::Same && self.stride != 1 {
            let reason = "`same` is defined for stride 1 only: frameworks differ on the rest; give \
                          the padding explicitly";
            return Err(Error::argument(OP, "stride", self.stride, reason));
        }
        Ok(())
    }

    /// The sizes of this convolution of `x [N, C_in, L]` with `w [C_out, C_in/groups, K]`.
    ///
    /// ```
    /// use capgrad::{Conv1dOptions, Shape};
    /// # fn main() -> capgrad::Result<()> {
    /// let (x, w) = (Shape::from([2, 3, 10]), Shape::from([4, 3, 5]));
    /// assert_eq!(Conv1dOptions::default().geometry(&x, &w)?.out_length, 6);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for ranks and channels that do not go together, [`Error::Argument`] for a
    /// stride, dilation, number of groups or kernel of 0, groups that do not divide, and `same`
    /// with a stride; [`Error::KernelTooLong`].
    pub fn geometry(&self, x: &Shape, w: &Shape) -> Result<ConvGeometry> {
        const OP: &str = "conv1d";
        let (&[batch, in_channels, in_length], &[out_channels, per_group, kernel]) =
            (x.dims(), w.dims())
        else {
            let reason = "expected input [N, C_in, L] and weight [C_out, C_in/groups, K]";
            return Err(Error::shape(OP, &[x, w], reason));
        };
        self.check(kernel)?;
        if in_channels % self.groups != 0 || out_channels % self.groups != 0 {
            let reason = format!(
                "must divide the {in_channels} input and the {out_channels} output channels"
            );
            return Err(Error::argument(OP, "groups", self.groups, reason));
        }
        if per_group != in_channels / self.groups {
            let reason = format!(
                "with {} groups the weight's second extent must be {}",
                self.groups,
                in_channels / self.groups
            );
            return Err(Error::shape(OP, &[x, w], reason));
        }
        let span = window_span(OP, kernel, self.dilation)?;
        let (pad_left, pad_right) = match self.padding {
            Padding::Valid => (0, 0),
            Padding::Explicit(left, right) => (left, right),
            Padding::Causal => (span - 1, 0),
            Padding::Same => ((span - 1) / 2, span - 1 - (span - 1) / 2),
        };
        let padded_length = [in_length, pad_left, pad_right]
            .into_iter()
            .try_fold(0usize, |sum, length| sum.checked_add(length))
            .filter(|&length| length <= isize::MAX as usize)
            .ok_or_else(|| {
                let value = format!("{pad_left}+{pad_right}");
                let reason = format!("with an input of length {in_length} the length overflows");
                Error::argument(OP, "padding", value, reason)
            })?;
        if span > padded_length {
            let (op, dilation) = (OP, self.dilation);
            return Err(Error::KernelTooLong { op, kernel, dilation, span, padded_length });
        }
        Ok(ConvGeometry {
            batch,
            in_channels,
            out_channels,
            in_length,
            out_length: (padded_length - span) / self.stride + 1,
            kernel,
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            pad_left,
            pad_right,
        })
    }
}

/// Sizes that must not be 0, for convolutions of either direction.
pub(super) fn check_window(
    op: &'static str,
    stride: usize,
    dilation: usize,
    groups: usize,
    kernel: usize,
) -> Result<()> {
    let sizes =
        [("stride", stride), ("dilation", dilation), ("groups", groups), ("kernel", kernel)];
    for (argument, value) in sizes {
        if value == 0 {
            return Err(Error::argument(op, argument, value, "must be at least 1"));
        }
        if value > isize::MAX as usize {
            return Err(Error::argument(op, argument, value, "is more than can be addressed"));
        }
    }
    Ok(())
}

/// `dilation · (kernel - 1) + 1`.
pub(super) fn window_span(op: &'static str, kernel: usize, dilation: usize) -> Result<usize> {
    (kernel - 1)
        .checked_mul(dilation)
        .and_then(|span| span.checked_add(1))
        .filter(|&span| span <= isize::MAX as usize)
        .ok_or_else(|| {
            Error::argument(op, "dilation", dilation, format!("overflows with {kernel} taps"))
        })
}

/// Operands of one dtype on one device, and a bias `[channels]`.
pub(super) fn check_operands(
    op: &'static str,
    x: &Var,
    weight: &Var,
    bias: Option<&Var>,
    channels: usize,
) -> Result<()> {
    require_float(op, x.dtype())?;
    require_alike(op, x.tensor(), weight.tensor())?;
    if let Some(bias) = bias {
        require_alike(op, x.tensor(), bias.tensor())?;
        if bias.dims() != [channels] {
            let reason = format!("the bias must have shape [{channels}]");
            return Err(Error::shape(op, &[x.shape(), bias.shape()], reason));
        }
    }
    Ok(())
}

/// One pass of a convolution under the caps in force.
pub(super) fn run_pass(
    op: &'static str,
    pass: ConvPass,
    geometry: &ConvGeometry,
    cap: Option<u64>,
    operands: &[&Tensor],
    out: &Tensor,
) -> Result<()> {
    let query = Query::Conv(pass, *geometry, out.dtype());
    PlannedCall { op, query, cap, operands, out }.run()
}

/// `Σ dy` over samples and length: the gradient of a bias.
pub(super) fn bias_gradient(op: &'static str, dy: &Tensor) -> Result<Tensor> {
    let (channels, backend) = (dy.shape()[1], dy.device().backend());
    if dy.is_uniform() {
        let (stored, terms) = (dy.stored(), dy.shape()[0] * dy.shape()[2]);
        let sum = Tensor::result(op, stored.shape(), dy.dtype(), dy.device())?;
        backend.unary(Unary::Affine(terms as f64, 0.0), &stored, &sum)?;
        return Ok(Tensor::uniform(&sum, Shape::from([channels])));
    }
    let out = Tensor::result(op, [channels], dy.dtype(), dy.device())?;
    backend.sum(dy, &[true, false, true], 1.0, &out)?;
    Ok(out)
}

impl Var {
    /// 1-d convolution of `self [N, C_in, L]` with `weight [C_out, C_in/groups, K]` and an optional
    /// `bias [C_out]`, to `[N, C_out, L_out]` with
    /// `L_out = (L + left + right - dilation·(K-1) - 1)/stride + 1`. f32, f64, f16 or bf16; sums of
    /// the halves are kept in f32.
    ///
    /// ```
    /// use capgrad::{Conv1dOptions, Device, Padding, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::from(Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [1, 1, 3], &device)?);
    /// let w = Var::from(Tensor::from_vec(vec![1.0f32, 10.0], [1, 1, 2], &device)?);
    /// let options = Conv1dOptions { padding: Padding::Causal, ..Default::default() };
    /// let y = x.conv1d(&w, None, &options)?;
    /// assert_eq!(y.tensor().to_vec::<f32>()?, [10.0, 21.0, 32.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Conv1dOptions::geometry`]; [`Error::DType`], [`Error::DTypeMismatch`],
    /// [`Error::DeviceMismatch`]; [`Error::MemoryLimit`].
    pub fn conv1d(&self, weight: &Var, bias: Option<&Var>, options: &Conv1dOptions) -> Result<Var> {
        const OP: &str = "conv1d";
        let geometry = options.geometry(self.shape(), weight.shape())?;
        check_operands(OP, self, weight, bias, geometry.out_channels)?;
        let shape = [geometry.batch, geometry.out_channels, geometry.out_length];
        let y = Tensor::result(OP, shape, self.dtype(), self.device())?;
        let mut operands = vec![self.tensor(), weight.tensor()];
        operands.extend(bias.map(Var::tensor));
        run_pass(OP, ConvPass::Forward, &geometry, options.workspace_cap, &operands, &y)?;

        let mut inputs = vec![self, weight];
        inputs.extend(bias);
        Var::record(OP, y, &inputs, |_| ConvRule {
            geometry,
            cap: options.workspace_cap,
            x: weight.requires_grad().then(|| Saved::new(OP, self.tensor())),
            w: self.requires_grad().then(|| Saved::new(OP, weight.tensor())),
        })
    }
}

struct ConvRule {
    geometry: ConvGeometry,
    cap: Option<u64>,
    x: Option<Saved>,
    w: Option<Saved>,
}

impl ConvRule {
    fn gradient(&self, pass: ConvPass, dy: &Tensor, saved: &Tensor) -> Result<Tensor> {
        const OP: &str = "conv1d";
        if dy.is_uniform() {
            let gradient = conv_uniform::gradient(OP, pass, &self.geometry, self.cap, dy, saved)?;
            if let Some(gradient) = gradient {
                return Ok(gradient);
            }
        }
        let dy = dy.dense()?;
        let g = &self.geometry;
        let (shape, operands) = match pass {
            ConvPass::WeightGradient => {
                ([g.out_channels, g.in_channels / g.groups, g.kernel], [saved, &dy])
            }
            _ => ([g.batch, g.in_channels, g.in_length], [&dy, saved]),
        };
        let out = Tensor::result(OP, shape, dy.dtype(), dy.device())?;
        run_pass(OP, pass, g, self.cap, &operands, &out)?;
        Ok(out)
    }
}

impl Rule for ConvRule {
    fn name(&self) -> &'static str {
        "conv1d"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if cx.needs(2) {
            cx.give(2, bias_gradient("conv1d", &dy)?)?;
        }
        // The weights first: the input, usually the largest thing there is, can then go.
        if let Some(x) = self.x.as_mut().filter(|_| cx.needs(1)) {
            let x = x.take(cx)?;
            let dw = self.gradient(ConvPass::WeightGradient, &dy, &x)?;
            drop(x);
            cx.give(1, dw)?;
        }
        if let Some(w) = self.w.as_mut().filter(|_| cx.needs(0)) {
            let w = w.take(cx)?;
            let dx = self.gradient(ConvPass::InputGradient, &dy, &w)?;
            drop((w, dy));
            cx.give(0, dx)?;
        }
        Ok(())
    }
}
