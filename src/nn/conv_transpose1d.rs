//! The transposed convolutional layer.

use super::weights::{Weights, WeightsSpec, check_channels, convolution_builder_methods};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::ConvTranspose1dOptions;
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
    weights: Weights,
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
        let (weight, bias) = self.weights.on_tape_of(x);
        x.conv_transpose1d(&weight, bias.as_ref(), &self.options)
    }

    /// `[C_in, C_out/groups, K]`.
    pub fn weight(&self) -> &Parameter {
        &self.weights.weight
    }

    /// `[C_out]`, if there is one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.weights.bias.as_ref()
    }

    /// Weight and bias.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.weights.list()
    }
}

impl ConvTranspose1dBuilder {
    convolution_builder_methods!();

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

    /// The layer, with parameters drawn from the device's seed.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for sizes of 0 and groups that do not divide; [`Error::DType`](crate::Error::DType) for
    /// integers; [`Error::MemoryLimit`](crate::Error::MemoryLimit).
    pub fn build(self, device: &Device) -> Result<ConvTranspose1d> {
        const OP: &str = "conv_transpose1d";
        let (groups, in_channels) = (self.options.groups, self.in_channels);
        self.options.check(self.kernel)?;
        check_channels(OP, in_channels, self.out_channels, self.kernel, groups)?;
        let per_group = self.out_channels / groups;
        let spec = WeightsSpec {
            op: OP,
            prefix: &self.name,
            shape: [in_channels, per_group, self.kernel].into(),
            // PyTorch's convention for this layer: the weight's extents after the first.
            fan_in: per_group.saturating_mul(self.kernel),
            bias: self.bias.then_some(self.out_channels),
            dtype: self.dtype,
        };
        Ok(ConvTranspose1d { weights: spec.build(device)?, options: self.options })
    }
}
