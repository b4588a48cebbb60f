//! Layer normalisation and its gradients. Means are taken in f64 and subtracted in two parts, so
//! that rows far from zero keep their digits, and variances in a second pass over the row.

use super::Cpu;
use super::block::{BLOCK, block, produce, sum, total, visit, wide};
use super::host;
use super::parallel::{Rows, grain};
use crate::dtype::{Element, Float, Real};
use crate::tensor::Tensor;
use num_traits::Zero;
use std::ops::Range;

/// Columns whose gradients are summed together.
const COLUMNS: usize = 256;

/// A row's mean, as a number and what rounding left of it, and the reciprocal of its deviation.
#[derive(Clone, Copy)]
struct Moments<S> {
    mean: S,
    rest: S,
    rstd: S,
}

impl<S: Real> Moments<S> {
    #[inline(always)]
    fn normalised(self, x: S) -> S {
        ((x - self.mean) - self.rest) * self.rstd
    }

    fn of<T: Float<Sum = S>>(x: &[T], epsilon: f64) -> Self {
        let exact = sum(x) / x.len() as f64;
        let mean = S::from_f64(exact);
        let rest = S::from_f64(exact - Element::to_f64(mean));
        let mut terms = block::<S>();
        let mut squares = 0.0;
        visit(x, |x| {
            let terms = &mut terms[..x.len()];
            for (term, &x) in terms.iter_mut().zip(x) {
                let d = (x - mean) - rest;
                *term = d * d;
            }
            squares += total(terms);
        });
        let rstd = S::from_f64(1.0 / (squares / x.len() as f64 + epsilon).sqrt());
        Moments { mean, rest, rstd }
    }

    /// From what the forward pass kept. What rounding took from the mean is found again where it
    /// is not small beside the deviation.
    fn kept<T: Float<Sum = S>>(x: &[T], mean: S, rstd: S) -> Self {
        let rest = if (mean * rstd).abs() > S::from_f64(4.0) {
            S::from_f64(sum(x) / x.len() as f64 - Element::to_f64(mean))
        } else {
            S::zero()
        };
        Moments { mean, rest, rstd }
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn layer_norm<T: Float>(
    cpu: &Cpu,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    epsilon: f64,
    out: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
) {
    let features = x.dims()[1];
    let x = host::read::<T>(x);
    let (weight, bias) = (weight.map(host::read::<T>), bias.map(host::read::<T>));
    let mut out = host::write::<T>(out);
    let (mut mean, mut rstd) = (host::write::<T::Sum>(mean), host::write::<T::Sum>(rstd));
    if x.is_empty() {
        mean.fill(T::Sum::zero());
        return rstd.fill(T::Sum::zero());
    }
    let parts = (Rows(&mut out, features), [&mut *mean, &mut *rstd]);
    cpu.each(x.len() / features, grain(features), parts, |range, (rows, [mean, rstd])| {
        let (mut a, mut b) = (block::<T::Sum>(), block::<T::Sum>());
        let kept = mean.iter_mut().zip(rstd);
        for ((row, out), (mean, rstd)) in range.zip(rows.0.chunks_mut(features)).zip(kept) {
            let x = &x[row * features..][..features];
            let moments = Moments::of(x, epsilon);
            (*mean, *rstd) = (moments.mean, moments.rstd);
            produce::<T>(out, |start, out| {
                let range = start..start + out.len();
                for (o, &x) in out.iter_mut().zip(wide(&x[range.clone()], &mut a)) {
                    *o = moments.normalised(x);
                }
                if let Some(weight) = &weight {
                    let weight = wide(&weight[range.clone()], &mut b);
                    out.iter_mut().zip(weight).for_each(|(o, &w)| *o *= w);
                }
                if let Some(bias) = &bias {
                    let bias = wide(&bias[range], &mut b);
                    out.iter_mut().zip(bias).for_each(|(o, &b)| *o += b);
                }
            });
        }
    });
}

/// What all gradients of a layer norm are computed from.
struct Saved<'a, T: Float> {
    x: &'a [T],
    weight: Option<&'a [T]>,
    mean: &'a [T::Sum],
    rstd: &'a [T::Sum],
    dy: &'a [T],
    features: usize,
}

#[allow(clippy::too_many_arguments)]
pub(super) fn layer_norm_gradient<T: Float>(
    cpu: &Cpu,
    x: &Tensor,
    weight: Option<&Tensor>,
    mean: &Tensor,
    rstd: &Tensor,
    dy: &Tensor,
    dx: Option<&Tensor>,
    dweight: Option<&Tensor>,
    dbias: Option<&Tensor>,
) {
    let features = x.dims()[1];
    let (x, dy, weight) = (host::read::<T>(x), host::read::<T>(dy), weight.map(host::read::<T>));
    let (mean, rstd) = (host::read::<T::Sum>(mean), host::read::<T::Sum>(rstd));
    let weight = weight.as_deref();
    let saved = Saved { x: &x, weight, mean: &mean, rstd: &rstd, dy: &dy, features };
    if let Some(dx) = dx {
        let mut dx = host::write::<T>(dx);
        let parts = Rows(&mut dx, features);
        let rows = if x.is_empty() { 0 } else { x.len() / features };
        cpu.each(rows, grain(features), parts, |range, rows| {
            for (row, dx) in range.zip(rows.0.chunks_mut(features)) {
                saved.row_gradient(row, dx);
            }
        });
    }
    if dweight.is_some() || dbias.is_some() {
        let (mut dweight, mut dbias) = (dweight.map(host::write::<T>), dbias.map(host::write::<T>));
        let parts = (dweight.as_deref_mut(), dbias.as_deref_mut());
        let piece = COLUMNS * grain(COLUMNS * mean.len());
        cpu.each(features, piece, parts, |range, (mut dweight, mut dbias)| {
            for start in range.clone().step_by(COLUMNS) {
                let columns = start..range.end.min(start + COLUMNS);
                let [weights, biases] = saved.column_sums(cpu, columns.clone());
                let own = columns.start - range.start..columns.end - range.start;
                let store = |out: &mut Option<&mut [T]>, sums: [f64; COLUMNS]| {
                    if let Some(out) = out {
                        let out = &mut out[own.clone()];
                        out.iter_mut().zip(sums).for_each(|(o, sum)| *o = T::from_f64(sum));
                    }
                };
                store(&mut dweight, weights);
                store(&mut dbias, biases);
            }
        });
    }
}

impl<T: Float> Saved<'_, T> {
    fn moments(&self, row: usize) -> Moments<T::Sum> {
        let x = &self.x[row * self.features..][..self.features];
        Moments::kept(x, self.mean[row], self.rstd[row])
    }

    /// `rstd·(g - mean(g) - x̂·mean(g·x̂))` with `g = dy·weight`.
    fn row_gradient(&self, row: usize, dx: &mut [T]) {
        let moments = self.moments(row);
        let first = row * self.features;
        let (mut a, mut b) = (block::<T::Sum>(), block::<T::Sum>());
        // The weighted gradient of a block, over which `dx` is also computed.
        let mut weighted = |range: Range<usize>, g: &mut [T::Sum]| {
            let dy = wide(&self.dy[first + range.start..first + range.end], &mut b);
            g.copy_from_slice(dy);
            if let Some(weight) = self.weight {
                let weight = wide(&weight[range], &mut b);
                g.iter_mut().zip(weight).for_each(|(g, &w)| *g *= w);
            }
        };
        let mut g = block::<T::Sum>();
        let (mut sum, mut product) = (0.0, 0.0);
        for start in (0..self.features).step_by(BLOCK) {
            let range = start..self.features.min(start + BLOCK);
            let g = &mut g[..range.len()];
            weighted(range.clone(), g);
            sum += total(g);
            let x = wide(&self.x[first + range.start..first + range.end], &mut a);
            g.iter_mut().zip(x).for_each(|(g, &x)| *g *= moments.normalised(x));
            product += total(g);
        }
        let n = self.features as f64;
        let (sum, product) = (T::Sum::from_f64(sum / n), T::Sum::from_f64(product / n));
        produce::<T>(dx, |start, dx| {
            let range = start..start + dx.len();
            weighted(range.clone(), dx);
            let x = wide(&self.x[first + range.start..first + range.end], &mut a);
            for (dx, &x) in dx.iter_mut().zip(x) {
                *dx = moments.rstd * ((*dx - sum) - moments.normalised(x) * product);
            }
        });
    }

    /// `Σ dy·x̂` and `Σ dy` over the rows, for a block of columns.
    fn column_sums(&self, cpu: &Cpu, columns: Range<usize>) -> [[f64; COLUMNS]; 2] {
        let leaf = |rows: Range<usize>| {
            let mut sums = [[0.0; COLUMNS]; 2];
            let [weights, biases] = &mut sums;
            let (mut a, mut b) = (block::<T::Sum>(), block::<T::Sum>());
            for row in rows {
                let moments = self.moments(row);
                let first = row * self.features;
                let range = first + columns.start..first + columns.end;
                let x = wide(&self.x[range.clone()], &mut a);
                let dy = wide(&self.dy[range], &mut b);
                for ((sum, &x), &dy) in weights.iter_mut().zip(x).zip(dy) {
                    *sum += Element::to_f64(dy * moments.normalised(x));
                }
                for (sum, &dy) in biases.iter_mut().zip(dy) {
                    *sum += Element::to_f64(dy);
                }
            }
            sums
        };
        cpu.reduce(self.mean.len(), grain(columns.len()), leaf, |mut a, b| {
            a.as_flattened_mut().iter_mut().zip(b.as_flattened()).for_each(|(a, b)| *a += b);
            a
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::DType;
    use crate::device::cpu::testing::{agrees, result, same_on_all, tensor, values};

    #[test]
    fn forward_and_gradients_agree_with_f64_even_far_from_zero() {
        for ((rows, n), far) in
            [((37, 1029), 0.0), ((530, 19), 1e4), ((67, 700), 1e4), ((3, 1), 0.0)]
        {
            for dtype in DType::FLOATS {
                let far = if dtype.size() == 2 { 0.0 } else { far };
                // In f32 numbers this far from 0 keep ten bits behind the point.
                let x: Vec<f64> = values(rows * n, 1).iter().map(|x| x + far).collect();
                let (w, b, dy) = (values(n, 2), values(n, 3), values(rows * n, 4));
                let epsilon = 1e-5;
                let mut expected =
                    [vec![0.0; rows * n], vec![0.0; rows * n], vec![0.0; n], vec![0.0; n]];
                for r in 0..rows {
                    let x = &x[r * n..][..n];
                    let mean = x.iter().sum::<f64>() / n as f64;
                    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
                    let rstd = 1.0 / (variance + epsilon).sqrt();
                    let hat: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
                    let dy = &dy[r * n..][..n];
                    let g: Vec<f64> = dy.iter().zip(&w).map(|(dy, w)| dy * w).collect();
                    let g_mean = g.iter().sum::<f64>() / n as f64;
                    let product = g.iter().zip(&hat).map(|(g, h)| g * h).sum::<f64>() / n as f64;
                    for j in 0..n {
                        expected[0][r * n + j] = hat[j] * w[j] + b[j];
                        expected[1][r * n + j] = rstd * (g[j] - g_mean - hat[j] * product);
                        expected[2][j] += dy[j] * hat[j];
                        expected[3][j] += dy[j];
                    }
                }
                for (which, expected) in expected.iter().enumerate() {
                    let out = same_on_all(|device| {
                        let sums = if dtype == DType::F64 { dtype } else { DType::F32 };
                        let x = tensor(&x, [rows, n], dtype, device);
                        let (w, b) =
                            (tensor(&w, [n], dtype, device), tensor(&b, [n], dtype, device));
                        let dy = tensor(&dy, [rows, n], dtype, device);
                        let (mean, rstd) =
                            (result([rows], sums, device), result([rows], sums, device));
                        let out = result([rows, n], dtype, device);
                        let backend = device.backend();
                        backend
                            .layer_norm(&x, Some(&w), Some(&b), epsilon, &out, &mean, &rstd)
                            .unwrap();
                        if which == 0 {
                            return out;
                        }
                        let (dx, dw, db) = (
                            result([rows, n], dtype, device),
                            result([n], dtype, device),
                            result([n], dtype, device),
                        );
                        let some = |k, t| (which == k).then_some(t);
                        let (dx_, dw_, db_) = (some(1, &dx), some(2, &dw), some(3, &db));
                        backend
                            .layer_norm_gradient(&x, Some(&w), &mean, &rstd, &dy, dx_, dw_, db_)
                            .unwrap();
                        [dx, dw, db][which - 1].clone()
                    });
                    if n > 1 || which == 0 || which == 3 {
                        agrees(&out, expected);
                    }
                }
            }
        }
    }
}
