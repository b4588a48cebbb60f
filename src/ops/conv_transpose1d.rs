//! Transposed 1-d convolution: the input gradient of a convolution, as an operation of its own. Its
//! gradients are the other two passes of that convolution.

use super::conv1d::{bias_gradient, check_operands, check_window, run_pass, window_span};
use crate::device::{ConvGeometry, ConvPass};
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Backward, Rule, Saved, Var};
use crate::tensor::Tensor;

/// How a transposed convolution spreads its input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvTranspose1dOptions {
    /// Distance between the places of neighbouring inputs in the output, at least 1.
    pub stride: usize,
    /// Distance between taps, at least 1.
    pub dilation: usize,
    /// Independent groups of channels, at least 1.
    pub groups: usize,
    /// Elements cut off at both ends of the output.
    pub padding: usize,
    /// Elements added at the right end; less than the stride.
    pub output_padding: usize,
    /// Workspace cap in bytes for this call and its gradients, over the device's.
    pub workspace_cap: Option<u64>,
}

impl Default for ConvTranspose1dOptions {
    fn default() -> Self {
        ConvTranspose1dOptions {
            stride: 1,
            dilation: 1,
            groups: 1,
            padding: 0,
            output_padding: 0,
            workspace_cap: None,
        }
    }
}

impl ConvTranspose1dOptions {
    /// What can be checked without an input.
    pub(crate) fn check(&self, kernel: usize) -> Result<()> {
        const OP: &str = "conv_transpose1d";
        check_window(OP, self.stride, self.dilation, self.groups, kernel)?;
        window_span(OP, kernel, self.dilation)?;
        if self.output_padding >= self.stride {
            let reason = format!("must be less than the stride of {}", self.stride);
            return Err(Error::argument(OP, "output_padding", self.output_padding, reason));
        }
        Ok(())
    }

    /// The sizes of the convolution that this one is the transpose of: its output is this one's
    /// input `x [N, C_in, L]`, its weight this one's `w [C_in, C_out/groups, K]`.
    ///
    /// # Errors
    /// As [`Conv1dOptions::geometry`](crate::Conv1dOptions::geometry).
    pub fn geometry(&self, x: &Shape, w: &Shape) -> Result<ConvGeometry> {
        const OP: &str = "conv_transpose1d";
        let (&[batch, channels, length], &[weight_channels, per_group, kernel]) =
            (x.dims(), w.dims())
        else {
            let reason = "expected input [N, C_in, L] and weight [C_in, C_out/groups, K]";
            return Err(Error::shape(OP, &[x, w], reason));
        };
        self.check(kernel)?;
        if channels != weight_channels {
            let reason = "the weight's first extent must be the input's channels";
            return Err(Error::shape(OP, &[x, w], reason));
        }
        if channels % self.groups != 0 {
            let reason = format!("must divide the {channels} input channels");
            return Err(Error::argument(OP, "groups", self.groups, reason));
        }
        let span = window_span(OP, kernel, self.dilation)?;
        // (L - 1)·stride + span + output_padding - 2·padding
        let full = length
            .saturating_sub(1)
            .checked_mul(self.stride)
            .and_then(|places| places.checked_add(span))
            .and_then(|places| places.checked_add(self.output_padding))
            .filter(|&full| full <= isize::MAX as usize)
            .ok_or_else(|| {
                Error::argument(OP, "stride", self.stride, "the output length overflows")
            })?;
        if length == 0 {
            return Err(Error::shape(OP, &[x, w], "the input must have a length of at least 1"));
        }
        let cut = self.padding.checked_mul(2).filter(|&cut| cut < full);
        let (Some(cut), Some(out_channels)) = (cut, per_group.checked_mul(self.groups)) else {
            let reason = format!("cuts all of an output of length {full} off (input {x})");
            return Err(Error::argument(OP, "padding", self.padding, reason));
        };
        Ok(ConvGeometry {
            batch,
            in_channels: out_channels,
            out_channels: channels,
            in_length: full - cut,
            out_length: length,
            kernel,
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
            pad_left: self.padding,
            pad_right: self.padding,
        })
    }
}

impl Var {
    /// Transposed 1-d convolution of `self [N, C_in, L]` with `weight [C_in, C_out/groups, K]` and
    /// an optional `bias [C_out]`, to `[N, C_out, L_out]` with
    /// `L_out = (L-1)·stride - 2·padding + dilation·(K-1) + output_padding + 1`.
    ///
    /// ```
    /// use capgrad::{ConvTranspose1dOptions, Device, Tensor, Var};
    /// # fn main() -> capgrad::Result<()> {
    /// let device = Device::cpu();
    /// let x = Var::from(Tensor::from_vec(vec![1.0f32, 2.0], [1, 1, 2], &device)?);
    /// let w = Var::from(Tensor::from_vec(vec![1.0f32, 10.0], [1, 1, 2], &device)?);
    /// let options = ConvTranspose1dOptions { stride: 2, ..Default::default() };
    /// let y = x.conv_transpose1d(&w, None, &options)?;
    /// assert_eq!(y.tensor().to_vec::<f32>()?, [1.0, 10.0, 2.0, 20.0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`ConvTranspose1dOptions::geometry`] and [`Var::conv1d`].
    pub fn conv_transpose1d(
        &self,
        weight: &Var,
        bias: Option<&Var>,
        options: &ConvTranspose1dOptions,
    ) -> Result<Var> {
        const OP: &str = "conv_transpose1d";
        let geometry = options.geometry(self.shape(), weight.shape())?;
        check_operands(OP, self, weight, bias, geometry.in_channels)?;
        let shape = [geometry.batch, geometry.in_channels, geometry.in_length];
        let y = Tensor::result(OP, shape, self.dtype(), self.device())?;
        let (cap, operands) = (options.workspace_cap, [self.tensor(), weight.tensor()]);
        run_pass(OP, ConvPass::InputGradient, &geometry, cap, &operands, &y)?;
        if let Some(bias) = bias {
            let column = bias.tensor().reshape([geometry.in_channels, 1])?;
            self.device().backend().accumulate(&y, &column)?;
        }
        let mut inputs = vec![self, weight];
        inputs.extend(bias);
        Var::record(OP, y, &inputs, |_| ConvTransposeRule {
            geometry,
            cap,
            x: weight.requires_grad().then(|| Saved::new(OP, self.tensor())),
            w: self.requires_grad().then(|| Saved::new(OP, weight.tensor())),
        })
    }
}

struct ConvTransposeRule {
    geometry: ConvGeometry,
    cap: Option<u64>,
    x: Option<Saved>,
    w: Option<Saved>,
}

impl Rule for ConvTransposeRule {
    fn name(&self) -> &'static str {
        "conv_transpose1d"
    }

    fn backward(&mut self, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (op, g) = (self.name(), self.geometry);
        if cx.needs(2) {
            cx.give(2, bias_gradient(op, &dy)?)?;
        }
        let dy = dy.dense()?;
        if let Some(x) = self.x.as_mut().filter(|_| cx.needs(1)) {
            let x = x.take(cx)?;
            let shape = [g.out_channels, g.in_channels / g.groups, g.kernel];
            let dw = Tensor::result(op, shape, dy.dtype(), dy.device())?;
            run_pass(op, ConvPass::WeightGradient, &g, self.cap, &[&dy, &x], &dw)?;
            drop(x);
            cx.give(1, dw)?;
        }
        if let Some(w) = self.w.as_mut().filter(|_| cx.needs(0)) {
            let w = w.take(cx)?;
            let shape = [g.batch, g.out_channels, g.out_length];
            let dx = Tensor::result(op, shape, dy.dtype(), dy.device())?;
            run_pass(op, ConvPass::Forward, &g, self.cap, &[&dy, &w], &dx)?;
            drop((w, dy));
            cx.give(0, dx)?;
        }
        Ok(())
    }
}
