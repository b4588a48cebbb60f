//! The gradients of a convolution whose output gradient is one number everywhere, as `mean` and
//! `sum` give it: nothing of the output's size is written out.
//!
//! With `dy = g`: `dw[o,c,k] = g · Σ_l Σ_n x[n,c,·]` is the same for every `o` of a group, so the
//! samples are added up first and one row a group is convolved; `dx[n,c,i] = g · Σ_k Σ_o w[o,c,k]`
//! is the same for every `n`, so the weights of a group are added up and one sample is convolved.

use super::conv1d::run_pass;
use crate::device::spec::Window;
use crate::device::{ConvGeometry, ConvPass};
use crate::error::Result;
use crate::memory::{Purpose, PurposeGuard};
use crate::tensor::Tensor;
use smallvec::smallvec;

/// The gradient, or `None` where its temporaries would not fit the workspace cap or the limit:
/// they are workspace, and writing `dy` out is then the way.
pub(super) fn gradient(
    op: &'static str,
    pass: ConvPass,
    geometry: &ConvGeometry,
    cap: Option<u64>,
    dy: &Tensor,
    saved: &Tensor,
) -> Result<Option<Tensor>> {
    let g = *geometry;
    let (device, dtype) = (dy.device(), dy.dtype());
    let per_group = g.in_channels / g.groups;
    let one = ConvGeometry { batch: 1, out_channels: g.groups, ..g };
    let (input, weight) = (g.in_channels * g.in_length, g.groups * per_group * g.kernel);
    let output = g.groups * g.out_length;
    let temporaries = ((input + weight + output) * dtype.size()) as u64;
    let cap = cap.or(device.workspace_cap()).unwrap_or(u64::MAX);
    let shape = match pass {
        ConvPass::WeightGradient => [g.out_channels, per_group, g.kernel],
        _ => [g.batch, g.in_channels, g.in_length],
    };
    let result_bytes = (shape.iter().product::<usize>() * dtype.size()) as u64;
    let left = device.meter().left().unwrap_or(u64::MAX).saturating_sub(result_bytes);
    // Where there are hardly more output channels than groups, nothing is gained; and the
    // halves would round the sums on the way, or overflow where the gradient itself does not.
    let gains = g.out_channels >= 2 * g.groups && g.batch != 0 && dtype.size() >= 4;
    if temporaries > cap.min(left) || !gains {
        return Ok(None);
    }
    let rest = Some(cap.min(left) - temporaries);
    let out = Tensor::result(op, shape, dtype, device)?;
    let temporary = |dims: [usize; 3]| {
        let _purpose = PurposeGuard::new(Purpose::Workspace);
        Tensor::empty(op, dims, dtype, device)
    };
    let dy_one = {
        let _purpose = PurposeGuard::new(Purpose::Workspace);
        Tensor::uniform(&dy.stored(), [1, g.groups, g.out_length].into()).dense()?
    };
    let backend = device.backend();
    if pass == ConvPass::WeightGradient {
        let sum = temporary([1, g.in_channels, g.in_length])?;
        backend.sum(saved, &[true, false, false], 1.0, &sum)?;
        let row = temporary([g.groups, per_group, g.kernel])?;
        run_pass(op, pass, &one, rest, &[&sum, &dy_one], &row)?;
        // Each group's row, once for every output channel of the group.
        let (members, length) = (g.out_channels / g.groups, per_group * g.kernel);
        let from = Window { offset: 0, strides: smallvec![length, 0, 1] };
        let to = Window { offset: 0, strides: smallvec![members * length, length, 1] };
        backend.copy_window(&[g.groups, members, length], &row, &from, &out, &to)?;
    } else {
        let sum = temporary([g.groups, per_group, g.kernel])?;
        let members = g.out_channels / g.groups;
        let grouped = saved.reshape([g.groups, members, per_group * g.kernel])?;
        backend.sum(&grouped, &[false, true, false], 1.0, &sum)?;
        let sample = temporary([1, g.in_channels, g.in_length])?;
        run_pass(op, pass, &one, rest, &[&dy_one, &sum], &sample)?;
        let from = Window { offset: 0, strides: smallvec![0, 1] };
        let to = Window { offset: 0, strides: smallvec![input, 1] };
        backend.copy_window(&[g.batch, input], &sample, &from, &out, &to)?;
    }
    Ok(Some(out))
}
