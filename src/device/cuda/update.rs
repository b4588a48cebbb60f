//! Optimiser steps, in place.

use super::elementwise::{packed, per_thread};
use super::launch::Args;
use super::layout::Axes;
use super::memory::pointer;
use super::{Cuda, kernels};
use crate::device::spec::Update;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// `Adam` of update.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Adam {
    /// What decoupled decay leaves of a parameter.
    shrink: f64,
    decay: f64,
    new1: f64,
    new2: f64,
    beta2: f64,
    epsilon: f64,
    /// The rate, and the root of the second moment's factor, each with its moment's correction.
    size: f64,
    root: f64,
}

pub(super) fn update(
    cuda: &Cuda,
    update: Update,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[&Tensor],
) -> Result<()> {
    let step = |kernel, state: &[&Tensor], more: &dyn Fn(Args) -> Args| {
        step(cuda, kernel, parameter, gradient, state, more)
    };
    match (update, state) {
        (Update::Sgd { rate, momentum: 0.0, decay, .. }, _) => {
            step(kernels::SGD, &[], &|args| args.value(rate).value(decay))
        }
        (Update::Sgd { rate, momentum, decay, nesterov }, [velocity, ..]) => {
            step(kernels::MOMENTUM, &[velocity], &|args| {
                args.value(rate).value(momentum).value(decay).value(u32::from(nesterov))
            })
        }
        (
            Update::Adam {
                rate,
                beta1,
                beta2,
                epsilon,
                decay,
                decoupled,
                correction1,
                correction2,
            },
            [first, second, ..],
        ) => {
            // Differences from 1 are taken in f64, where beta2 = 0.999 keeps its digits.
            let by = Adam {
                shrink: if decoupled { 1.0 - rate * decay } else { 1.0 },
                decay: if decoupled { 0.0 } else { decay },
                new1: 1.0 - beta1,
                new2: 1.0 - beta2,
                beta2,
                epsilon,
                size: rate / correction1,
                root: 1.0 / correction2.sqrt(),
            };
            step(kernels::ADAM, &[first, second], &|args| args.value(by))
        }
        _ => Err(Error::driver("update", "an optimiser without its state")),
    }
}

fn step(
    cuda: &Cuda,
    kernel: kernels::Kernel,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[&Tensor],
    more: &dyn Fn(Args) -> Args,
) -> Result<()> {
    let place = |x: &Tensor| (pointer(x), x.dtype().size());
    let axes = Axes::flat(parameter.elements(), [gradient]);
    let dense: smallvec::SmallVec<[_; 3]> =
        state.iter().copied().chain([parameter]).map(place).collect();
    let packed = packed(&axes, [place(gradient)], &dense);
    // One axis, so at most one launch.
    for (layout, _) in axes.launches() {
        let args = Args::new().tensor(parameter).tensor(gradient);
        let args = args.value(layout).value(u32::from(packed));
        let args = state.iter().fold(args, |args, state| args.tensor(state));
        let grid = cuda.linear(per_thread(parameter.elements()));
        cuda.launch(kernel, parameter.dtype(), grid, more(args))?;
    }
    Ok(())
}
