//! The convolutional layer.

use super::{name, uniform};
use crate::device::{ConvPass, Device, Query};
use crate::dtype::DType;
use crate::error::{Error, Result};
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
    weight: Parameter,
    bias: Option<Parameter>,
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
        let weight = x.with_parameter(&self.weight);
        let bias = self.bias.as_ref().map(|bias| x.with_parameter(bias));
        x.conv1d(&weight, bias.as_ref(), &self.options)
    }

    /// The plans for an input of this shape, as they would run now: forward, weight gradient, input
    /// gradient.
    ///
    /// # Errors
    /// As [`Var::conv1d`].
    pub fn plan(&self, input: impl Into<Shape>) -> Result<Vec<Arc<Plan>>> {
        let weight = self.weight.tensor();
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
        &self.weight
    }

    /// `[C_out]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// How it slides.
    pub fn options(&self) -> &Conv1dOptions {
        &self.options
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

impl Conv1dBuilder {
    /// Step of the window.
    pub fn stride(mut self, stride: usize) -> Self {
        self.options.stride = stride;
        self
    }

    /// Distance between taps.
    pub fn dilation(mut self, dilation: usize) -> Self {
        self.options.dilation = dilation;
        self
    }

    /// Independent groups of channels.
    pub fn groups(mut self, groups: usize) -> Self {
        self.options.groups = groups;
        self
    }

    /// Zeros around the input.
    pub fn padding(mut self, padding: Padding) -> Self {
        self.options.padding = padding;
        self
    }

    /// Workspace cap in bytes for this layer, forward and backward, over the device's.
    pub fn workspace_cap(mut self, bytes: u64) -> Self {
        self.options.workspace_cap = Some(bytes);
        self
    }

    /// Whether there is a bias.
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// The parameters' dtype.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Parameters are named `name.weight` and `name.bias`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The layer, with parameters drawn from the device's seed.
    ///
    /// # Errors
    /// [`Error::Argument`] for sizes of 0 and groups that do not divide; [`Error::DType`] for
    /// integers; [`Error::MemoryLimit`].
    pub fn build(self, device: &Device) -> Result<Conv1d> {
        let groups = self.options.groups;
        let sizes = [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("kernel", self.kernel),
            ("groups", groups),
        ];
        for (argument, value) in sizes {
            if value == 0 {
                return Err(Error::argument("conv1d", argument, value, "must be at least 1"));
            }
        }
        for (argument, value) in &sizes[..2] {
            if value % groups != 0 {
                let reason = format!("must be a multiple of the {groups} groups");
                return Err(Error::argument("conv1d", argument, value, reason));
            }
        }
        let per_group = self.in_channels / groups;
        let shape = [self.out_channels, per_group, self.kernel];
        let fan_in = per_group.saturating_mul(self.kernel);
        let parameter = |part, shape: Shape| {
            uniform("conv1d", name(&self.name, part), shape, fan_in, self.dtype, device)
        };
        let weight = parameter("weight", shape.into())?;
        let bias =
            if self.bias { Some(parameter("bias", [self.out_channels].into())?) } else { None };
        Ok(Conv1d { weight, bias, options: self.options })
    }
}
