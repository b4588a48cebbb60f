//! Reading and adding at indices, and the range of an index tensor.

use super::Cpu;
use super::block::convert;
use super::host;
use super::parallel::{GRAIN, Rows, grain};
use crate::dtype::{DType, Element, Float};
use crate::tensor::Tensor;

/// The two types of indices and labels.
pub(super) trait Integer: Element {
    /// The exact value.
    fn int(self) -> i64;
}

impl Integer for i32 {
    #[inline(always)]
    fn int(self) -> i64 {
        self as i64
    }
}

impl Integer for i64 {
    #[inline(always)]
    fn int(self) -> i64 {
        self
    }
}

/// Extents along an axis of `x` and of the index, and what lies within one step of the axis.
fn extents(x: &Tensor, axis: usize, index: &Tensor) -> [usize; 3] {
    [x.dims()[axis], index.dims()[axis], x.dims()[axis + 1..].iter().product()]
}

pub(super) fn gather<T: Element, I: Integer>(
    cpu: &Cpu,
    x: &Tensor,
    axis: usize,
    index: &Tensor,
    out: &Tensor,
) {
    let [n, m, inner] = extents(x, axis, index);
    let (x, index) = (host::read::<T>(x), host::read::<I>(index));
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let index = &index[range.clone()];
        // Counted on, as a division an element would cost more than the rest.
        let (mut column, mut row) = (range.start % inner, range.start / inner % m);
        let mut first = range.start / inner / m * n * inner;
        for (o, index) in out.iter_mut().zip(index) {
            *o = x[first + index.int() as usize * inner + column];
            column += 1;
            if column == inner {
                (column, row) = (0, row + 1);
                if row == m {
                    (row, first) = (0, first + n * inner);
                }
            }
        }
    });
}

/// Sums that are kept on the stack at once: 32 KiB.
const SUMS: usize = 4096;

/// Sums are complete before they are rounded: for a block of results at a time, all indices are
/// scanned and what belongs to the block is added up in f64. Only where the axis is longer than a
/// block are f32 and f64 added in place, which costs one scan and not many; halves never are. The
/// order of the terms is that of the index in every case.
pub(super) fn scatter_add<T: Float, I: Integer>(
    cpu: &Cpu,
    dy: &Tensor,
    axis: usize,
    index: &Tensor,
    out: &Tensor,
) {
    let [n, m, inner] = extents(out, axis, index);
    let (dy, index) = (host::read::<T>(dy), host::read::<I>(index));
    let mut out = host::write::<T>(out);
    if out.is_empty() {
        return;
    }
    let width = n * inner;
    let half = matches!(T::DTYPE, DType::F16 | DType::BF16);
    let outer = out.len() / width;
    cpu.each(outer, grain(width.max(m * inner)), Rows(&mut out, width), |range, rows| {
        for (row, out) in range.zip(rows.0.chunks_mut(width)) {
            let own = row * m * inner..(row + 1) * m * inner;
            let (dy, index) = (&dy[own.clone()], &index[own]);
            if half || n <= SUMS {
                cpu.each(n, SUMS, Rows(out, inner), |targets, out| {
                    add_blocks(dy, index, inner, targets, out.0);
                });
            } else {
                add_in_place(dy, index, inner, out);
            }
        }
    });
}

/// The results at `targets` along the axis (at most [`SUMS`]), as many columns at once as fit.
fn add_blocks<T: Float, I: Integer>(
    dy: &[T],
    index: &[I],
    inner: usize,
    targets: std::ops::Range<usize>,
    out: &mut [T],
) {
    let height = targets.len();
    let width = (SUMS / height).clamp(1, inner);
    let mut sums = [0.0f64; SUMS];
    for start in (0..inner).step_by(width) {
        let columns = start..inner.min(start + width);
        sums.fill(0.0);
        for (dy, index) in dy.chunks_exact(inner).zip(index.chunks_exact(inner)) {
            let pairs = dy[columns.clone()].iter().zip(&index[columns.clone()]);
            for (column, (dy, index)) in pairs.enumerate() {
                let at = (index.int() as usize).wrapping_sub(targets.start);
                if at < height {
                    sums[at * width + column] += dy.to_f64();
                }
            }
        }
        for (sums, out) in sums.chunks_exact(width).zip(out.chunks_exact_mut(inner)) {
            convert(&sums[..columns.len()], &mut out[columns.clone()]);
        }
    }
}

fn add_in_place<T: Float, I: Integer>(dy: &[T], index: &[I], inner: usize, out: &mut [T]) {
    out.fill(T::default());
    for (dy, index) in dy.chunks_exact(inner).zip(index.chunks_exact(inner)) {
        for (column, (dy, index)) in dy.iter().zip(index).enumerate() {
            let sum = &mut out[index.int() as usize * inner + column];
            *sum = T::narrow(sum.widen() + dy.widen());
        }
    }
}

/// The least and the greatest index, or `(i64::MAX, i64::MIN)` where all are ignored: an empty range
/// is within any bounds.
pub(super) fn range<I: Integer>(cpu: &Cpu, index: &Tensor, ignore: Option<i64>) -> (i64, i64) {
    let index = host::read::<I>(index);
    let leaf = |range: std::ops::Range<usize>| {
        let values = index[range].iter().map(|index| index.int());
        let values = values.filter(|&value| Some(value) != ignore);
        values.fold((i64::MAX, i64::MIN), |(low, high), x| (low.min(x), high.max(x)))
    };
    cpu.reduce(index.len(), GRAIN, leaf, |a, b| (a.0.min(b.0), a.1.max(b.1)))
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, devices, result, same_on_all, tensor, values};
    use crate::{DType, Device, Tensor};

    #[test]
    fn gather_and_scatter_add_agree_with_f64() {
        let x_dims = [5, 37, 19];
        for (dtype, axis) in DType::FLOATS.into_iter().flat_map(|t| [(t, 0), (t, 1), (t, 2)]) {
            let mut dims = x_dims;
            dims[axis] = 301;
            let (n, inner) = (x_dims[axis], x_dims[axis + 1..].iter().product::<usize>());
            let (count, x_count) = (dims.iter().product(), x_dims.iter().product());
            let (x, dy) = (values(x_count, 1), values(count, 2));
            let index: Vec<i64> = (0..count).map(|i| (i * 7919 % n) as i64).collect();
            let at = |i: usize| (i / inner / 301 * n + index[i] as usize) * inner + i % inner;
            let gathered: Vec<f64> = (0..count).map(|i| x[at(i)]).collect();
            let mut added = vec![0.0; x_count];
            (0..count).for_each(|i| added[at(i)] += dy[i]);
            let index_on = |device: &Device| {
                let index = Tensor::from_slice(&index, dims, device).unwrap();
                index.to_dtype(if axis == 1 { DType::I32 } else { DType::I64 }).unwrap()
            };
            let out = same_on_all(|device| {
                let out = result(dims, dtype, device);
                let x = tensor(&x, x_dims, dtype, device);
                device.backend().gather(&x, axis, &index_on(device), &out).unwrap();
                out
            });
            assert_eq!(out.to_f64_vec().unwrap(), gathered);
            let out = same_on_all(|device| {
                let out = result(x_dims, dtype, device);
                let dy = tensor(&dy, dims, dtype, device);
                device.backend().scatter_add(&dy, axis, &index_on(device), &out).unwrap();
                out
            });
            agrees(&out, &added);
        }
    }

    #[test]
    fn long_sums_and_long_axes_lose_nothing() {
        for dtype in DType::FLOATS {
            for (n, m, inner) in [(3, 40_000, 2), (9001, 20_000, 3)] {
                let index: Vec<i32> = (0..m * inner).map(|i| (i * 31 % n) as i32).collect();
                let mut added = vec![0.0; n * inner];
                let add = 1.0 / 64.0;
                (0..m * inner).for_each(|i| added[index[i] as usize * inner + i % inner] += add);
                let out = same_on_all(|device| {
                    let out = result([n, inner], dtype, device);
                    let index = Tensor::from_slice(&index, [m, inner], device).unwrap();
                    let dy = Tensor::full([m, inner], add, dtype, device).unwrap();
                    device.backend().scatter_add(&dy, 0, &index, &out).unwrap();
                    out
                });
                agrees(&out, &added);
            }
        }
    }

    #[test]
    fn index_range_ignores() {
        for device in devices() {
            let mut index: Vec<i64> = (0..50_000).map(|i| i % 1000 + 3).collect();
            index[777] = -100;
            let index = Tensor::from_vec(index, [50_000], &device).unwrap();
            let b = device.backend();
            assert_eq!(b.index_range(&index, None).unwrap(), (-100, 1002));
            assert_eq!(b.index_range(&index, Some(-100)).unwrap(), (3, 1002));
            let index = index.to_dtype(DType::I32).unwrap();
            assert_eq!(b.index_range(&index, Some(-100)).unwrap(), (3, 1002));
        }
    }
}
