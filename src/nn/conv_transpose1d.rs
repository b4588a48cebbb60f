//! The transposed convolutional layer.

use super::{name, uniform};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::ConvTranspose1dOptions;
use crate::shape::Shape;
use crate::tape::{Parameter, Var};

/// A transposed 1-d convolution with its parameters: `weight [C_in, C_out/groups, K]` and
/// `bias [C_out]`.
///
/// ```
/// use capgrad::{ConvTranspose1d, DType, Device, Tensor, Var};
/// # fn main() -> capgrad::Result<()> {
/// let device = Device::cpu();
/// let upsample = ConvTranspose1d::builder(8, 4, 2).stride(2).build(&device)?;
/// let x = Var::from(Tensor::rand([1, 8, 5], DType::F32, &device)?);
/// assert_eq!(upsample.forward(&x)?.dims(), [1, 4, 10]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ConvTranspose1d {
    weight: Parameter,
    bias: Option<Parameter>,
    options: ConvTranspose1dOptions,
}

/// What a [`ConvTranspose1d`] is to be; from [`ConvTranspose1d::builder`].
#[derive(Clone, Debug)]
#[must_use = "`build` makes the layer"]
pub struct ConvTranspose1dBuilder {
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    options: ConvTranspose1dOptions,
    bias: bool,
    dtype: DType,
    name: String,
}

impl ConvTranspose1d {
    /// A layer from `in_channels` to `out_channels` with `kernel` taps: f32, with a bias, unless
    /// the builder is told otherwise.
    pub fn builder(
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
    ) -> ConvTranspose1dBuilder {
        ConvTranspose1dBuilder {
            in_channels,
            out_channels,
            kernel,
            options: ConvTranspose1dOptions::default(),
            bias: true,
            dtype: DType::F32,
            name: String::new(),
        }
    }

    /// Applies the layer to `x [N, C_in, L]`.
    ///
    /// # Errors
    /// As [`Var::conv_transpose1d`].
    pub fn forward(&self, x: &Var) -> Result<Var> {
        let weight = x.with_parameter(&self.weight);
        let bias = self.bias.as_ref().map(|bias| x.with_parameter(bias));
        x.conv_transpose1d(&weight, bias.as_ref(), &self.options)
    }

    /// `[C_in, C_out/groups, K]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// `[C_out]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

impl ConvTranspose1dBuilder {
    /// Distance between the places of neighbouring inputs in the output.
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

    /// Elements cut off at both ends of the output.
    pub fn padding(mut self, padding: usize) -> Self {
        self.options.padding = padding;
        self
    }

    /// Elements added at the right end.
    pub fn output_padding(mut self, output_padding: usize) -> Self {
        self.options.output_padding = output_padding;
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
    pub fn build(self, device: &Device) -> Result<ConvTranspose1d> {
        const OP: &str = "conv_transpose1d";
        let groups = self.options.groups;
        let sizes = [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("kernel", self.kernel),
            ("groups", groups),
        ];
        for (argument, value) in sizes {
            if value == 0 {
                return Err(Error::argument(OP, argument, value, "must be at least 1"));
            }
        }
        for (argument, value) in &sizes[..2] {
            if value % groups != 0 {
                let reason = format!("must be a multiple of the {groups} groups");
                return Err(Error::argument(OP, argument, value, reason));
            }
        }
        let per_group = self.out_channels / groups;
        // PyTorch's convention for this layer: the weight's extents after the first.
        let fan_in = per_group.saturating_mul(self.kernel);
        let parameter = |part, shape: Shape| {
            uniform(OP, name(&self.name, part), shape, fan_in, self.dtype, device)
        };
        let weight = parameter("weight", [self.in_channels, per_group, self.kernel].into())?;
        let bias =
            if self.bias { Some(parameter("bias", [self.out_channels].into())?) } else { None };
        Ok(ConvTranspose1d { weight, bias, options: self.options })
    }
}
