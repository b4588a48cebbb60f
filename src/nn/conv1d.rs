//! The convolutional layer.

use super::weights::{Weights, WeightsSpec, check_channels, convolution_builder_methods};
use crate::device::{ConvPass, Device, Query};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Conv1dOptions, Padding};
use crate::plan::{Plan, preview};
use crate::shape::Shape;
use crate::tape::{Parameter, Var};
use std::sync::Arc;

/// A 1-d convolution with its parameters: `weight [C_out, C_in/groups, K]` and `bias [C_out]`.
///
/// ```
/// use capgrad::{Conv1d, DType, Device, Padding, Tape, Tensor};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::cpu();
/// let conv = Conv1d::builder(4, 8, 3).padding(Padding::Same).build(&device)?;
/// let tape = Tape::new();
/// let x = tape.constant(Tensor::rand([2, 4, 10], DType::F32, &device)?);
/// let loss = conv.forward(&x)?.mean()?;
/// let grads = loss.backward()?;
/// assert_eq!(grads.parameter(conv.weight()).unwrap().dims(), [8, 4, 3]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Conv1d {
    weights: Weights,
    options: Conv1dOptions,
}

/// What a [`Conv1d`] is to be; from [`Conv1d::builder`].
#[derive(Clone, Debug)]
#[must_use = "`build` makes the layer"]
pub struct Conv1dBuilder {
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    options: Conv1dOptions,
    bias: bool,
    dtype: DType,
    name: String,
}

impl Conv1d {
    /// A layer from `in_channels` to `out_channels` with `kernel` taps: f32, with a bias, stride,
    /// dilation and groups 1, no padding, unless the builder is told otherwise.
    pub fn builder(in_channels: usize, out_channels: usize, kernel: usize) -> Conv1dBuilder {
        Conv1dBuilder {
            in_channels,
            out_channels,
            kernel,
            options: Conv1dOptions::default(),
            bias: true,
            dtype: DType::F32,
            name: String::new(),
        }
    }

    /// Applies the layer to `x [N, C_in, L]`.
    ///
    /// # Errors
    /// As [`Var::conv1d`].
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let (weight, bias) = self.weights.on_tape_of(x);
        x.conv1d(&weight, bias.as_ref(), &self.options)
    }

    /// The plans for an input of this shape, as they would run now: forward, weight gradient, input
    /// gradient.
    ///
    /// # Errors
    /// As [`Var::conv1d`].
    pub fn plan(&self, input: impl Into<Shape>) -> Result<Vec<Arc<Plan>>> {
        let weight = self.weights.weight.tensor();
        let geometry = self.options.geometry(&input.into(), weight.shape())?;
        ConvPass::ALL
            .into_iter()
            .map(|pass| {
                let query = Query::Conv(pass, geometry, weight.dtype());
                preview(weight.device(), "conv1d", query, self.options.workspace_cap)
            })
            .collect()
    }

    /// `[C_out, C_in/groups, K]`.
    pub fn weight(&self) -> &Parameter {
        &self.weights.weight
    }

    /// `[C_out]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.weights.bias.as_ref()
    }

    /// How it slides.
    pub fn options(&self) -> &Conv1dOptions {
        &self.options
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.weights.list()
    }
}

impl Conv1dBuilder {
    convolution_builder_methods!();

    /// Zeros around the input.
    pub fn padding(mut self, padding: Padding) -> Self {
        self.options.padding = padding;
        self
    }

    /// The layer, with parameters drawn from the device's seed.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for sizes of 0 and groups that do not divide; [`Error::DType`](crate::Error::DType) for
    /// integers; [`Error::MemoryLimit`](crate::Error::MemoryLimit).
    pub fn build(self, device: &Device) -> Result<Conv1d> {
        let (groups, out_channels) = (self.options.groups, self.out_channels);
        self.options.check(self.kernel)?;
        check_channels("conv1d", self.in_channels, out_channels, self.kernel, groups)?;
        let per_group = self.in_channels / groups;
        let spec = WeightsSpec {
            op: "conv1d",
            prefix: &self.name,
            shape: [out_channels, per_group, self.kernel].into(),
            fan_in: per_group.saturating_mul(self.kernel),
            bias: self.bias.then_some(out_channels),
            dtype: self.dtype,
        };
        Ok(Conv1d { weights: spec.build(device)?, options: self.options })
    }
}
