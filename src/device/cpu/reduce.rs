//! Sums over any axes. After neighbouring axes of one kind are merged, what is left is a last kept
//! axis of `columns`, each a run of `run` numbers that are next to each other, and outer axes of both
//! kinds. A block of columns is summed at a time, in f64, over pieces whose size depends on the shape
//! only.

use super::Cpu;
use super::block::{BLOCK, block, total, wide};
use super::broadcast::offset;
use super::host;
use super::parallel::{GRAIN, Rows, grain};
use crate::dtype::{Element, Float};
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::ops::Range;

/// Extents and strides, outermost first.
type Axes = SmallVec<[(usize, usize); 4]>;

struct Layout {
    kept: Axes,
    reduced: Axes,
    columns: usize,
    run: usize,
    /// A run is summed in this many pieces.
    pieces: usize,
}

impl Layout {
    fn new(dims: &[usize], reduced: &[bool]) -> Layout {
        let mut axes = SmallVec::<[(usize, bool); 4]>::new();
        for (&extent, &reduced) in dims.iter().zip(reduced).filter(|(extent, _)| **extent != 1) {
            match axes.last_mut() {
                Some(last) if last.1 == reduced => last.0 *= extent,
                _ => axes.push((extent, reduced)),
            }
        }
        let mut last = |kind| match axes.last() {
            Some(&(extent, reduced)) if reduced == kind => {
                axes.pop();
                extent
            }
            _ => 1,
        };
        let run = last(true);
        let columns = last(false);
        let (mut kept, mut reduced) = (Axes::new(), Axes::new());
        let mut stride = run * columns;
        for &(extent, is_reduced) in axes.iter().rev() {
            let list = if is_reduced { &mut reduced } else { &mut kept };
            list.insert(0, (extent, stride));
            stride *= extent;
        }
        Layout { kept, reduced, columns, run, pieces: run.div_ceil(GRAIN) }
    }
}

fn extent(axes: &Axes) -> usize {
    axes.iter().map(|axis| axis.0).product()
}

/// The numbers that are added up, in row-major order.
pub(super) enum Terms<'a, T: Float> {
    /// Those of a tensor.
    Stored(&'a [T]),
    /// Made a block at a time, from the position of the block's first.
    Made(&'a (dyn Fn(usize, &mut [T::Sum]) + Sync)),
}

impl<T: Float> Terms<'_, T> {
    /// At most a block of them.
    fn block<'b>(&'b self, start: usize, length: usize, buffer: &'b mut [T::Sum]) -> &'b [T::Sum] {
        match self {
            Terms::Stored(x) => wide(&x[start..start + length], buffer),
            Terms::Made(make) => {
                make(start, &mut buffer[..length]);
                &buffer[..length]
            }
        }
    }
}

pub(super) fn sum<T: Float>(cpu: &Cpu, x: &Tensor, reduced: &[bool], scale: f64, out: &Tensor) {
    let data = host::read::<T>(x);
    sum_terms(cpu, &Terms::Stored(&data), x.dims(), reduced, scale, out);
}

/// `out = scale · Σ` of a tensor of these dimensions, which need not be stored.
pub(super) fn sum_terms<T: Float>(
    cpu: &Cpu,
    x: &Terms<'_, T>,
    dims: &[usize],
    reduced: &[bool],
    scale: f64,
    out: &Tensor,
) {
    let mut out = host::write::<T>(out);
    if dims.contains(&0) {
        return out.fill(T::default());
    }
    let layout = Layout::new(dims, reduced);
    if layout.columns <= 8 {
        columns::<T, 8>(cpu, x, &layout, scale, &mut out);
    } else {
        columns::<T, 256>(cpu, x, &layout, scale, &mut out);
    }
}

fn columns<T: Float, const W: usize>(
    cpu: &Cpu,
    x: &Terms<'_, T>,
    layout: &Layout,
    scale: f64,
    out: &mut [T],
) {
    let terms = extent(&layout.reduced) * layout.run;
    let width = layout.columns;
    cpu.each(extent(&layout.kept), grain(width * terms), Rows(out, width), |range, rows| {
        for (row, out) in range.zip(rows.0.chunks_mut(width)) {
            let first = offset(&layout.kept, row);
            cpu.each(width, W * grain(W * terms), out, |range, out| {
                for (start, out) in range.step_by(W).zip(out.chunks_mut(W)) {
                    let sums = sums::<T, W>(cpu, x, first, layout, start..start + out.len());
                    for (o, sum) in out.iter_mut().zip(sums) {
                        *o = T::from_f64(scale * sum);
                    }
                }
            });
        }
    });
}

/// The sums of a block of columns of the kept row that begins at `first`.
fn sums<T: Float, const W: usize>(
    cpu: &Cpu,
    x: &Terms<'_, T>,
    first: usize,
    layout: &Layout,
    columns: Range<usize>,
) -> [f64; W] {
    let (run, pieces, n) = (layout.run, layout.pieces, columns.len());
    let leaf = |items: Range<usize>| {
        let mut sums = [0.0; W];
        let mut buffer = block::<T::Sum>();
        for item in items {
            let from = item % pieces * GRAIN;
            let at = first + offset(&layout.reduced, item / pieces) + columns.start * run;
            if run == 1 {
                for (sum, &x) in sums.iter_mut().zip(x.block(at, n, &mut buffer)) {
                    *sum += Element::to_f64(x);
                }
            } else if run <= BLOCK {
                let together = BLOCK / run;
                for start in (0..n).step_by(together) {
                    let count = together.min(n - start);
                    let x = x.block(at + start * run, count * run, &mut buffer);
                    for (sum, x) in sums[start..].iter_mut().zip(x.chunks_exact(run)) {
                        *sum += total(x);
                    }
                }
            } else {
                let piece = from..run.min(from + GRAIN);
                for (column, sum) in sums[..n].iter_mut().enumerate() {
                    for start in piece.clone().step_by(BLOCK) {
                        let length = BLOCK.min(piece.end - start);
                        *sum += total(x.block(at + column * run + start, length, &mut buffer));
                    }
                }
            }
        }
        sums
    };
    let items = extent(&layout.reduced) * pieces;
    cpu.reduce(items, grain(n * run.min(GRAIN)), leaf, |mut a, b| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        a
    })
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, result, same_on_all, tensor, values};
    use crate::{DType, Shape};

    fn check(dims: &[usize], reduced: &[bool], dtype: DType) {
        let shape = Shape::from(dims);
        let x = values(shape.elements(), 5);
        let x: Vec<f64> = x.iter().map(|x| x + 1.0).collect();
        let kept: Vec<usize> =
            dims.iter().zip(reduced).filter(|(_, r)| !**r).map(|(d, _)| *d).collect();
        let kept = Shape::from(kept);
        let mut expected = vec![0.0; kept.elements()];
        let own = shape.strides();
        for (i, x) in x.iter().enumerate() {
            let mut at = 0;
            for axis in (0..dims.len()).filter(|&axis| !reduced[axis]) {
                at = at * dims[axis] + i / own[axis] % dims[axis];
            }
            expected[at] += x / 8.0;
        }
        let out = same_on_all(|device| {
            let out = result(kept.clone(), dtype, device);
            let x = tensor(&x, dims, dtype, device);
            device.backend().sum(&x, reduced, 0.125, &out).unwrap();
            out
        });
        agrees(&out, &expected);
    }

    #[test]
    fn sums_over_any_axes_agree_with_f64() {
        for dtype in DType::FLOATS {
            let dims = [3, 5, 2, 37];
            for mask in 0..16 {
                let reduced: Vec<bool> = (0..4).map(|axis| mask >> axis & 1 == 1).collect();
                check(&dims, &reduced, dtype);
            }
            check(&[], &[], dtype);
            check(&[0, 3], &[true, false], dtype);
            check(&[0, 3], &[false, true], dtype);
            check(&[7, 301, 13], &[true, false, true], dtype);
        }
    }

    #[test]
    fn long_sums_agree_with_f64() {
        check(&[1_000_003], &[true], DType::F32);
        check(&[3, 100_001], &[false, true], DType::F32);
        check(&[100_001, 3], &[true, false], DType::F32);
        check(&[2000, 300], &[true, false], DType::BF16);
        check(&[3, 1000, 300], &[true, false, true], DType::F16);
        check(&[20_000, 2, 2, 3], &[false, true, false, true], DType::F64);
    }
}
