//! The position of the largest element along an axis. NaN counts as larger than any number.

use super::Cpu;
use super::host;
use super::parallel::grain;
use crate::dtype::Element;
use crate::tensor::Tensor;

/// Columns that are searched together where the axis is not the last.
const COLUMNS: usize = 256;

#[inline(always)]
fn is_nan<T: Element>(x: T) -> bool {
    x.partial_cmp(&x).is_none()
}

#[inline(always)]
fn beats<T: Element>(x: T, best: T) -> bool {
    x > best || (is_nan(x) && !is_nan(best))
}

pub(super) fn argmax<T: Element>(cpu: &Cpu, x: &Tensor, axis: usize, out: &Tensor) {
    let n = x.dims()[axis];
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let x = host::read::<T>(x);
    let mut out = host::write::<i64>(out);
    if x.is_empty() {
        return out.fill(0);
    }
    cpu.each(out.len(), grain(n).max(16), &mut *out, |range, out| {
        if inner == 1 {
            for (x, o) in x[range.start * n..].chunks_exact(n).zip(out) {
                *o = first_largest(x) as i64;
            }
            return;
        }
        let mut done = 0;
        while done < out.len() {
            let (row, column) = ((range.start + done) / inner, (range.start + done) % inner);
            let width = COLUMNS.min(inner - column).min(out.len() - done);
            let x = &x[row * n * inner + column..];
            let mut best = [T::default(); COLUMNS];
            best[..width].copy_from_slice(&x[..width]);
            let out = &mut out[done..done + width];
            out.fill(0);
            for i in 1..n {
                let x = &x[i * inner..][..width];
                for ((o, best), &x) in out.iter_mut().zip(&mut best).zip(x) {
                    if beats(x, *best) {
                        (*o, *best) = (i as i64, x);
                    }
                }
            }
            done += width;
        }
    });
}

fn first_largest<T: Element>(x: &[T]) -> usize {
    let (mut at, mut best) = (0, x[0]);
    for (i, &x) in x.iter().enumerate().skip(1) {
        if beats(x, best) {
            (at, best) = (i, x);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{result, same_on_all, tensor, values};
    use crate::{DType, Device, Tensor};

    #[test]
    fn the_first_of_equals_and_nan_win() {
        let device = &Device::cpu();
        let nan = f32::NAN;
        let x = [1.0, 3.0, 3.0, 2.0, nan, nan, -nan, 5.0, f32::NEG_INFINITY];
        let x = Tensor::from_slice(&x, [3, 3], device).unwrap();
        for (axis, expected) in [(1, [1, 1, 0]), (0, [2, 1, 1])] {
            let out = result([3], DType::I64, device);
            device.backend().argmax(&x, axis, &out).unwrap();
            assert_eq!(out.to_vec::<i64>().unwrap(), expected);
        }
    }

    #[test]
    fn any_axis_of_any_dtype() {
        let dims = [11, 7, 613];
        let x = values(11 * 7 * 613, 6);
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64] {
            for axis in 0..3 {
                let mut kept = dims.to_vec();
                kept.remove(axis);
                let out = same_on_all(|device| {
                    let out = result(kept.clone(), DType::I64, device);
                    let x = tensor(&x, dims, dtype, device);
                    device.backend().argmax(&x, axis, &out).unwrap();
                    out
                });
                let x = tensor(&x, dims, dtype, &Device::cpu()).to_f64_vec().unwrap();
                let inner: usize = dims[axis + 1..].iter().product();
                for (i, got) in out.to_vec::<i64>().unwrap().into_iter().enumerate() {
                    let at = |k| x[(i / inner * dims[axis] + k) * inner + i % inner];
                    let best = (0..dims[axis]).map(at).fold(f64::MIN, f64::max);
                    assert_eq!((0..dims[axis]).position(|k| at(k) == best), Some(got as usize));
                }
            }
        }
    }
}
