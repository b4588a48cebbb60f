//! What layers with a weight and perhaps a bias share: how the two are made, and how they meet an
//! input.

use crate::device::Device;
use crate::device::spec::Distribution;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tape::{Parameter, Var};
use crate::tensor::Tensor;

/// The parameters of a layer.
#[derive(Clone, Debug)]
pub(super) struct Weights {
    pub(super) weight: Parameter,
    pub(super) bias: Option<Parameter>,
}

/// What they are to be.
#[derive(Clone, Debug)]
pub(super) struct WeightsSpec<'a> {
    /// The operation, for errors.
    pub(super) op: &'static str,
    /// Parameters are named `prefix.weight` and `prefix.bias`.
    pub(super) prefix: &'a str,
    pub(super) shape: Shape,
    /// Inputs that one output sums over.
    pub(super) fan_in: usize,
    /// Extent of the bias, if there is to be one.
    pub(super) bias: Option<usize>,
    pub(super) dtype: DType,
}

impl WeightsSpec<'_> {
    /// Both parameters, uniform on ±1/√fan_in.
    pub(super) fn build(self, device: &Device) -> Result<Weights> {
        let bound = 1.0 / (self.fan_in.max(1) as f64).sqrt();
        let parameter = |part, shape: Shape| {
            let distribution = Distribution::Uniform(-bound, bound);
            let tensor = Tensor::random(self.op, shape, distribution, self.dtype, device)?;
            Parameter::new(named(self.prefix, part), tensor)
        };
        let weight = parameter("weight", self.shape.clone())?;
        let bias = match self.bias {
            Some(extent) => Some(parameter("bias", extent.into())?),
            None => None,
        };
        Ok(Weights { weight, bias })
    }
}

impl Weights {
    /// Both on the tape that `x` is on.
    pub(super) fn on_tape_of(&self, x: &Var) -> (Var, Option<Var>) {
        let bias = self.bias.as_ref().map(|bias| x.with_parameter(bias));
        (x.with_parameter(&self.weight), bias)
    }

    pub(super) fn list(&self) -> Vec<Parameter> {
        [Some(self.weight.clone()), self.bias.clone()].into_iter().flatten().collect()
    }
}

/// `prefix.part`, or the part alone.
pub(super) fn named(prefix: &str, part: &str) -> String {
    if prefix.is_empty() { part.to_owned() } else { format!("{prefix}.{part}") }
}

/// Sizes of a layer, none of which may be 0.
pub(super) fn check_sizes(op: &'static str, sizes: &[(&'static str, usize)]) -> Result<()> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((argument, _)) => Err(Error::argument(op, argument, 0, "must be at least 1")),
        None => Ok(()),
    }
}

/// Sizes of a convolutional layer: none 0, and groups that divide the channels.
pub(super) fn check_channels(
    op: &'static str,
    in_channels: usize,
    out_channels: usize,
    kernel: usize,
    groups: usize,
) -> Result<()> {
    let channels = [("in_channels", in_channels), ("out_channels", out_channels)];
    check_sizes(op, &channels)?;
    check_sizes(op, &[("kernel", kernel), ("groups", groups)])?;
    match channels.iter().find(|(_, channels)| channels % groups != 0) {
        Some((argument, channels)) => {
            let reason = format!("must be a multiple of the {groups} groups");
            Err(Error::argument(op, argument, channels, reason))
        }
        None => Ok(()),
    }
}

/// Methods that the builders of both convolutional layers have.
macro_rules! convolution_builder_methods {
    () => {
        /// Distance between windows, in the input of a convolution or the output of its transpose.
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
    };
}
pub(super) use convolution_builder_methods;
