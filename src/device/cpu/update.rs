//! Optimiser steps, each one pass over the parameter, its gradient and its state.

use super::Cpu;
use super::block::modify;
use super::broadcast::Source;
use super::host;
use super::parallel::GRAIN;
use crate::device::spec::Update;
use crate::dtype::{Element, Float};
use crate::tensor::Tensor;
use num_traits::Float as _;

pub(super) fn update<T: Float>(
    cpu: &Cpu,
    update: Update,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[&Tensor],
) {
    let real = T::Sum::from_f64;
    match update {
        Update::Sgd { rate, momentum: 0.0, decay, .. } => {
            let (rate, decay) = (real(rate), real(decay));
            step::<T, _>(cpu, parameter, gradient, [], |p, g, []| {
                *p = *p - rate * (g + decay * *p)
            });
        }
        Update::Sgd { rate, momentum, decay, nesterov } => {
            let (rate, momentum, decay) = (real(rate), real(momentum), real(decay));
            step::<T, _>(cpu, parameter, gradient, [state[0]], |p, g, [v]| {
                let g = g + decay * *p;
                *v = momentum * *v + g;
                *p = *p - rate * if nesterov { g + momentum * *v } else { *v };
            });
        }
        Update::Adam {
            rate,
            beta1,
            beta2,
            epsilon,
            decay,
            decoupled,
            correction1,
            correction2,
        } => {
            let shrink = real(if decoupled { 1.0 - rate * decay } else { 1.0 });
            let decay = real(if decoupled { 0.0 } else { decay });
            // Differences from 1 are taken in f64, where beta2 = 0.999 keeps its digits.
            let (new1, new2) = (real(1.0 - beta1), real(1.0 - beta2));
            let (beta2, epsilon) = (real(beta2), real(epsilon));
            let (size, root) = (real(rate / correction1), real(1.0 / correction2.sqrt()));
            step::<T, _>(cpu, parameter, gradient, [state[0], state[1]], |p, g, [m, v]| {
                let g = g + decay * *p;
                *m += new1 * (g - *m);
                *v = beta2 * *v + new2 * g * g;
                let denominator = v.sqrt() * root + epsilon;
                *p = *p * shrink - size * *m / denominator;
            });
        }
    }
}

/// Runs `f` on each parameter, its gradient and its state.
fn step<T: Float, const N: usize>(
    cpu: &Cpu,
    parameter: &Tensor,
    gradient: &Tensor,
    state: [&Tensor; N],
    f: impl Fn(&mut T::Sum, T::Sum, [&mut T::Sum; N]) + Sync,
) {
    let data = host::read::<T>(gradient);
    let source = Source::new(gradient, &data, parameter.shape());
    let mut state = state.map(host::write::<T::Sum>);
    let mut parameter = host::write::<T>(parameter);
    let parts = (&mut *parameter, state.each_mut().map(|state| &mut **state));
    cpu.each(parts.0.len(), GRAIN, parts, |range, (parameter, mut state)| {
        let mut gradient = source.reader::<T::Sum>();
        modify::<T>(parameter, |start, p| {
            let n = p.len();
            let g = &gradient.block(range.start + start, n)[..n];
            let mut state = state.each_mut().map(|state| &mut state[start..start + n]);
            for i in 0..n {
                f(&mut p[i], g[i], state.each_mut().map(|state| &mut state[i]));
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, same_on_all, tensor, values};
    use crate::device::spec::Update;
    use crate::{DType, Tensor};

    /// Ten steps as PyTorch's documentation writes them, in f64.
    fn reference(update: Update, p: &mut f64, g: f64, state: &mut [f64; 2], t: i32) {
        match update {
            Update::Sgd { rate, momentum, decay, nesterov } => {
                let g = g + decay * *p;
                state[0] = momentum * state[0] + g;
                *p -= rate * if nesterov { g + momentum * state[0] } else { state[0] };
            }
            Update::Adam { rate, beta1, beta2, epsilon, decay, decoupled, .. } => {
                let mut g = g;
                if decoupled {
                    *p -= rate * decay * *p;
                } else {
                    g += decay * *p;
                }
                state[0] = beta1 * state[0] + (1.0 - beta1) * g;
                state[1] = beta2 * state[1] + (1.0 - beta2) * g * g;
                let m = state[0] / (1.0 - beta1.powi(t));
                let v = state[1] / (1.0 - beta2.powi(t));
                *p -= rate * m / (v.sqrt() + epsilon);
            }
        }
    }

    fn at(update: Update, t: i32) -> Update {
        match update {
            Update::Adam { rate, beta1, beta2, epsilon, decay, decoupled, .. } => Update::Adam {
                rate,
                beta1,
                beta2,
                epsilon,
                decay,
                decoupled,
                correction1: 1.0 - beta1.powi(t),
                correction2: 1.0 - beta2.powi(t),
            },
            sgd => sgd,
        }
    }

    #[test]
    fn steps_are_those_of_pytorch() {
        let sgd = |momentum, decay, nesterov| Update::Sgd { rate: 0.1, momentum, decay, nesterov };
        let adam = |decay, decoupled| Update::Adam {
            rate: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay,
            decoupled,
            correction1: 0.0,
            correction2: 0.0,
        };
        let n = 33_333;
        let (p, g) = (values(n, 1), values(n, 2));
        for update in [
            sgd(0.0, 0.0, false),
            sgd(0.0, 0.1, false),
            sgd(0.9, 0.1, false),
            sgd(0.9, 0.1, true),
            adam(0.0, false),
            adam(0.1, false),
            adam(0.1, true),
        ] {
            for dtype in DType::FLOATS {
                // Ten roundings of a half are more than its tolerance for one operation.
                let steps = if dtype.size() == 2 { 1 } else { 10 };
                let sums = if dtype == DType::F64 { dtype } else { DType::F32 };
                let out = same_on_all(|device| {
                    let out = tensor(&p, [n], dtype, device);
                    let gradient = tensor(&g, [n], dtype, device);
                    let state = [0, 1].map(|_| Tensor::zeros([n], sums, device).unwrap());
                    for t in 1..=steps {
                        let b = device.backend();
                        b.update(at(update, t), &out, &gradient, &[&state[0], &state[1]]).unwrap();
                    }
                    out
                });
                let expected = p.iter().zip(&g).map(|(&p, &g)| {
                    let (mut p, mut state) = (p, [0.0; 2]);
                    (1..=steps).for_each(|t| reference(update, &mut p, g, &mut state, t));
                    p
                });
                agrees(&out, &expected.collect::<Vec<_>>());
            }
        }
    }
}
