//! Softmax along an axis, its logarithm, and their gradients. The largest element is subtracted
//! first, so that nothing overflows, and sums of exponentials are kept in f64.

use super::Cpu;
use super::block::{BLOCK, block, produce, total, visit, wide};
use super::host;
use super::parallel::{Rows, grain};
use crate::dtype::{Element, Float, Real};
use crate::tensor::Tensor;
use num_traits::Float as _;

/// Columns that are done together where the axis is not the last.
const COLUMNS: usize = 256;

/// The largest element and the sum of `e^(x - largest)`.
pub(super) fn statistics<T: Float>(x: &[T]) -> (T::Sum, f64) {
    const LANES: usize = 8;
    let mut largest = [-<T::Sum as num_traits::Float>::infinity(); LANES];
    visit(x, |x| {
        for x in x.chunks(LANES) {
            for (largest, &x) in largest.iter_mut().zip(x) {
                *largest = if x > *largest { x } else { *largest };
            }
        }
    });
    let largest = largest.into_iter().fold(largest[0], |a, b| if b > a { b } else { a });
    let mut terms = block::<T::Sum>();
    let mut sum = 0.0;
    visit(x, |x| {
        let terms = &mut terms[..x.len()];
        for (term, &x) in terms.iter_mut().zip(x) {
            *term = (x - largest).exp();
        }
        sum += total(terms);
    });
    (largest, sum)
}

/// What is left to do with an element once its row's largest element and sum are known: the sum's
/// reciprocal or logarithm as `rest`.
#[inline(always)]
fn finish<S: Real>(log: bool, x: S, largest: S, rest: S) -> S {
    if log { (x - largest) - rest } else { (x - largest).exp() * rest }
}

fn rest<S: Real>(log: bool, sum: f64) -> S {
    S::from_f64(if log { sum.ln() } else { 1.0 / sum })
}

pub(super) fn softmax<T: Float>(cpu: &Cpu, log: bool, x: &Tensor, axis: usize, out: &Tensor) {
    let n = x.dims()[axis];
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let x = host::read::<T>(x);
    let mut out = host::write::<T>(out);
    if x.is_empty() {
        return;
    }
    let width = n * inner;
    cpu.each(out.len() / width, grain(width), Rows(&mut out, width), |range, rows| {
        for (row, out) in range.zip(rows.0.chunks_mut(width)) {
            let x = &x[row * width..][..width];
            if inner == 1 {
                let (largest, sum) = statistics(x);
                let rest = rest(log, sum);
                let mut buffer = block::<T::Sum>();
                produce::<T>(out, |start, out| {
                    let x = wide(&x[start..start + out.len()], &mut buffer);
                    for (o, &x) in out.iter_mut().zip(x) {
                        *o = finish(log, x, largest, rest);
                    }
                });
            } else {
                for start in (0..inner).step_by(COLUMNS) {
                    let columns = start..inner.min(start + COLUMNS);
                    softmax_columns(log, x, inner, columns, out);
                }
            }
        }
    });
}

/// Softmax of some columns of `[n, inner]`.
fn softmax_columns<T: Float>(
    log: bool,
    x: &[T],
    inner: usize,
    columns: std::ops::Range<usize>,
    out: &mut [T],
) {
    let mut buffer = block::<T::Sum>();
    let mut largest = [-<T::Sum as num_traits::Float>::infinity(); COLUMNS];
    for x in x.chunks_exact(inner) {
        for (largest, &x) in largest.iter_mut().zip(wide(&x[columns.clone()], &mut buffer)) {
            *largest = if x > *largest { x } else { *largest };
        }
    }
    let mut sums = [0.0; COLUMNS];
    for x in x.chunks_exact(inner) {
        let x = wide(&x[columns.clone()], &mut buffer);
        for ((sum, &x), &largest) in sums.iter_mut().zip(x).zip(&largest) {
            *sum += Element::to_f64((x - largest).exp());
        }
    }
    let rests = sums.map(|sum| rest::<T::Sum>(log, sum));
    for (x, out) in x.chunks_exact(inner).zip(out.chunks_exact_mut(inner)) {
        let x = wide(&x[columns.clone()], &mut buffer);
        produce::<T>(&mut out[columns.clone()], |_, out| {
            for (((o, &x), &largest), &rest) in out.iter_mut().zip(x).zip(&largest).zip(&rests) {
                *o = finish(log, x, largest, rest);
            }
        });
    }
}

/// The probability that `y` stands for. Those of a lane add up to one only as far as `y` was not
/// rounded, so the gradient's sum is divided by theirs: in the halves, an offset that all of `dy`
/// has would not cancel otherwise.
#[inline(always)]
fn probability<S: Real>(log: bool, y: S) -> S {
    if log { y.exp() } else { y }
}

/// An element's part of the sum that the gradient needs.
#[inline(always)]
fn term<S: Real>(log: bool, y: S, dy: S) -> S {
    if log { dy } else { y * dy }
}

#[inline(always)]
fn gradient<S: Real>(log: bool, y: S, dy: S, sum: S) -> S {
    if log { dy - probability(log, y) * sum } else { y * (dy - sum) }
}

pub(super) fn softmax_gradient<T: Float>(
    cpu: &Cpu,
    log: bool,
    y: &Tensor,
    dy: &Tensor,
    axis: usize,
    out: &Tensor,
) {
    let n = y.dims()[axis];
    let inner: usize = y.dims()[axis + 1..].iter().product();
    let (y, dy) = (host::read::<T>(y), host::read::<T>(dy));
    let mut out = host::write::<T>(out);
    if y.is_empty() {
        return;
    }
    let width = n * inner;
    cpu.each(out.len() / width, grain(width), Rows(&mut out, width), |range, rows| {
        for (row, out) in range.zip(rows.0.chunks_mut(width)) {
            let (y, dy) = (&y[row * width..][..width], &dy[row * width..][..width]);
            if inner == 1 {
                gradient_row(log, y, dy, out);
            } else {
                for start in (0..inner).step_by(COLUMNS) {
                    let columns = start..inner.min(start + COLUMNS);
                    gradient_columns(log, [y, dy], inner, columns, out);
                }
            }
        }
    });
}

fn gradient_row<T: Float>(log: bool, y: &[T], dy: &[T], out: &mut [T]) {
    let (mut a, mut b, mut terms) = (block::<T::Sum>(), block::<T::Sum>(), block::<T::Sum>());
    let (mut sum, mut whole) = (0.0, 0.0);
    for (y, dy) in y.chunks(BLOCK).zip(dy.chunks(BLOCK)) {
        let (y, dy) = (wide(y, &mut a), wide(dy, &mut b));
        let terms = &mut terms[..y.len()];
        for ((t, &y), &dy) in terms.iter_mut().zip(y).zip(dy) {
            *t = term(log, y, dy);
        }
        sum += total(terms);
        for (t, &y) in terms.iter_mut().zip(y) {
            *t = probability(log, y);
        }
        whole += total(terms);
    }
    let sum = T::Sum::from_f64(sum / whole);
    produce::<T>(out, |start, out| {
        let range = start..start + out.len();
        let (y, dy) = (wide(&y[range.clone()], &mut a), wide(&dy[range], &mut b));
        for ((o, &y), &dy) in out.iter_mut().zip(y).zip(dy) {
            *o = gradient(log, y, dy, sum);
        }
    });
}

fn gradient_columns<T: Float>(
    log: bool,
    [y, dy]: [&[T]; 2],
    inner: usize,
    columns: std::ops::Range<usize>,
    out: &mut [T],
) {
    let (mut a, mut b) = (block::<T::Sum>(), block::<T::Sum>());
    let (mut sums, mut wholes) = ([0.0; COLUMNS], [0.0; COLUMNS]);
    for (y, dy) in y.chunks_exact(inner).zip(dy.chunks_exact(inner)) {
        let y = wide(&y[columns.clone()], &mut a);
        let dy = wide(&dy[columns.clone()], &mut b);
        for (((sum, whole), &y), &dy) in sums.iter_mut().zip(&mut wholes).zip(y).zip(dy) {
            *sum += Element::to_f64(term(log, y, dy));
            *whole += Element::to_f64(probability(log, y));
        }
    }
    for (sum, whole) in sums.iter_mut().zip(wholes) {
        *sum /= whole;
    }
    let sums = sums.map(T::Sum::from_f64);
    let rows = y.chunks_exact(inner).zip(dy.chunks_exact(inner));
    for ((y, dy), out) in rows.zip(out.chunks_exact_mut(inner)) {
        let y = wide(&y[columns.clone()], &mut a);
        let dy = wide(&dy[columns.clone()], &mut b);
        produce::<T>(&mut out[columns.clone()], |_, out| {
            for (((o, &y), &dy), &sum) in out.iter_mut().zip(y).zip(dy).zip(&sums) {
                *o = gradient(log, y, dy, sum);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, result, same_on_all, tensor, values};
    use crate::{DType, Tensor};

    #[test]
    fn softmax_and_its_gradient_agree_with_f64_along_any_axis() {
        let dims = [5, 7, 600];
        let count = 5 * 7 * 600;
        let (x, dy) = (values(count, 7), values(count, 8));
        for (dtype, axis, log) in DType::FLOATS
            .into_iter()
            .flat_map(|t| (0..3).flat_map(move |a| [(t, a, false), (t, a, true)]))
        {
            let y = same_on_all(|device| {
                let out = result(dims, dtype, device);
                let x = tensor(&x, dims, dtype, device);
                device.backend().softmax(log, &x, axis, &out).unwrap();
                out
            });
            let inner: usize = dims[axis + 1..].iter().product();
            let line = |i: usize| {
                let first = i / inner / dims[axis] * dims[axis] * inner + i % inner;
                (0..dims[axis]).map(move |k| first + k * inner)
            };
            let expected: Vec<f64> = (0..count)
                .map(|i| {
                    let sum: f64 = line(i).map(|k| x[k].exp()).sum();
                    if log { x[i] - sum.ln() } else { x[i].exp() / sum }
                })
                .collect();
            agrees(&y, &expected);
            let rounded = y.to_f64_vec().unwrap();
            let gradient: Vec<f64> = (0..count)
                .map(|i| {
                    let y = &rounded;
                    if log {
                        dy[i] - y[i].exp() * line(i).map(|k| dy[k]).sum::<f64>()
                    } else {
                        y[i] * (dy[i] - line(i).map(|k| y[k] * dy[k]).sum::<f64>())
                    }
                })
                .collect();
            let out = same_on_all(|device| {
                let out = result(dims, dtype, device);
                let y = tensor(&rounded, dims, dtype, device);
                let dy = tensor(&dy, dims, dtype, device);
                device.backend().softmax_gradient(log, &y, &dy, axis, &out).unwrap();
                out
            });
            agrees(&out, &gradient);
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let device = &crate::Device::cpu();
        let x = Tensor::from_slice(&[1e4f32, -1e4, 1e4, f32::NEG_INFINITY], [4], device).unwrap();
        let out = result([4], DType::F32, device);
        device.backend().softmax(false, &x, 0, &out).unwrap();
        assert_eq!(out.to_vec::<f32>().unwrap(), [0.5, 0.0, 0.5, 0.0]);
        device.backend().softmax(true, &x, 0, &out).unwrap();
        assert_eq!(out.to_f64_vec().unwrap()[0], -(2f32.ln() as f64));
    }
}
