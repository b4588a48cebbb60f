//! Random numbers by position, and dropout.

use super::elementwise::pass;
use super::launch::Args;
use super::layout::Axes;
use super::{Cuda, kernels};
use crate::device::philox::Stream;
use crate::device::spec::Distribution;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

pub(super) fn random(
    cuda: &Cuda,
    distribution: Distribution,
    stream: Stream,
    out: &Tensor,
) -> Result<()> {
    let n = out.elements();
    if n == 0 {
        return Ok(());
    }
    let args = Args::new().tensor(out).value(n as u64).value(stream.seed).value(stream.stream);
    let (kernel, args) = match distribution {
        Distribution::Uniform(low, high) => {
            // The largest number below 1 that the dtype has: rounding must not reach `high`.
            let digits = match out.dtype() {
                DType::F32 => 24,
                DType::F16 => 11,
                DType::BF16 => 8,
                _ => 53,
            };
            let most = 1.0 - 0.5f64.powi(digits);
            let args = args.value(low).value(high - low).value(high).value(most);
            (kernels::RANDOM_UNIFORM, args)
        }
        Distribution::Normal(mean, deviation) => {
            (kernels::RANDOM_NORMAL, args.value(mean).value(deviation))
        }
    };
    cuda.launch(kernel, out.dtype(), cuda.linear(n), args)
}

pub(super) fn dropout(cuda: &Cuda, p: f64, stream: Stream, x: &Tensor, out: &Tensor) -> Result<()> {
    // A uniform number is a whole number of 2⁻⁵³, so this asks exactly whether it is at least `p`.
    let threshold = (p * (1u64 << 53) as f64).ceil() as u64;
    let scale = 1.0 / (1.0 - p);
    let axes = Axes::flat(out.elements(), [x]);
    let kernel = (kernels::DROPOUT, out.dtype().name());
    pass(cuda, kernel, &axes, [x], out, |args| {
        args.value(stream.seed).value(stream.stream).value(threshold).value(scale)
    })
}
