//! Copies: to and from the host, and between strided windows. The axes of a window copy are put in
//! the order of the result's strides and merged where both sides allow it; what is left is a copy of
//! contiguous runs, or a transpose, which goes through tiles that fit the first cache.

use super::Cpu;
use super::host;
use super::parallel::{GRAIN, Rows, grain};
use crate::device::spec::Window;
use crate::dtype::Element;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// Bytes that are worth a thread's while.
const PIECE: usize = 1 << 20;

pub(super) fn write<T: Element>(cpu: &Cpu, out: &Tensor, data: &[u8]) {
    let mut out = host::write::<T>(out);
    let out: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
    cpu.each(out.len(), PIECE, out, |range, out| out.copy_from_slice(&data[range]));
}

pub(super) fn read<T: Element>(cpu: &Cpu, x: &Tensor, data: &mut [u8]) {
    let x = host::read::<T>(x);
    let x: &[u8] = bytemuck::cast_slice(&x);
    cpu.each(data.len(), PIECE, data, |range, data| data.copy_from_slice(&x[range]));
}

/// One axis of both windows: how long it is, and how far its steps are on either side.
#[derive(Clone, Copy)]
struct Axis {
    extent: usize,
    from: usize,
    to: usize,
}

type Axes = SmallVec<[Axis; 4]>;

pub(super) fn copy_window<T: Element>(
    cpu: &Cpu,
    extents: &[usize],
    x: &Tensor,
    from: &Window,
    out: &Tensor,
    to: &Window,
) {
    if extents.contains(&0) {
        return;
    }
    let uniform = x.is_uniform();
    let mut axes: Axes = (0..extents.len())
        .filter(|&axis| extents[axis] != 1)
        .map(|axis| Axis {
            extent: extents[axis],
            from: if uniform { 0 } else { from.strides[axis] },
            to: to.strides[axis],
        })
        .collect();
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.to));
    let mut merged = Axes::new();
    for axis in axes {
        match merged.last_mut() {
            Some(last)
                if last.from == axis.from * axis.extent && last.to == axis.to * axis.extent =>
            {
                *last = Axis { extent: last.extent * axis.extent, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    if merged.is_empty() {
        merged.push(Axis { extent: 1, from: 1, to: 1 });
    }
    let x = host::read::<T>(x);
    let mut out = host::write::<T>(out);
    let x = if uniform { &x[..] } else { &x[from.offset..] };
    split(cpu, &merged, x, &mut out[to.offset..]);
}

/// Cuts the copy along its outer axes into pieces that write to different parts of `out`.
fn split<T: Element>(cpu: &Cpu, axes: &[Axis], x: &[T], out: &mut [T]) {
    let (first, rest) = (axes[0], &axes[1..]);
    let inner: usize = rest.iter().map(|axis| axis.extent).product();
    let span: usize = 1 + rest.iter().map(|axis| (axis.extent - 1) * axis.to).sum::<usize>();
    if first.extent * inner <= GRAIN || first.to < span {
        return nest(&ordered(axes), x, out);
    }
    // Neighbours in `x` are read together: pieces of one would read every cache line many times.
    let transposes = first.from == 1 && !rest.is_empty();
    if inner > GRAIN && !transposes {
        return cpu.each(first.extent, 1, Rows(out, first.to), |range, out| {
            split(cpu, rest, &x[range.start * first.from..], out.0);
        });
    }
    let piece = grain(inner).max(if transposes { TILE } else { 1 });
    cpu.each(first.extent, piece, Rows(out, first.to), |range, out| {
        let mut axes = Axes::from_slice(axes);
        axes[0].extent = range.len();
        nest(&ordered(&axes), &x[range.start * first.from..], out.0);
    });
}

/// The axes with the one to transpose against, if there is one, next to the last.
fn ordered(axes: &[Axis]) -> Axes {
    let mut axes = Axes::from_slice(axes);
    let last = axes.len() - 1;
    if axes[last].from > 1
        && let Some(p) = (0..last).find(|&p| axes[p].from == 1)
    {
        let axis = axes.remove(p);
        axes.insert(last - 1, axis);
    }
    axes
}

fn nest<T: Element>(axes: &[Axis], x: &[T], out: &mut [T]) {
    match *axes {
        [axis] => line(axis, x, out),
        [p, axis] if p.from == 1 && axis.from > 1 && axis.to == 1 => transpose(p, axis, x, out),
        [first, ref rest @ ..] => {
            for i in 0..first.extent {
                nest(rest, &x[i * first.from..], &mut out[i * first.to..]);
            }
        }
        [] => {}
    }
}

fn line<T: Element>(axis: Axis, x: &[T], out: &mut [T]) {
    let n = axis.extent;
    match (axis.from, axis.to) {
        (1, 1) => out[..n].copy_from_slice(&x[..n]),
        (0, 1) => out[..n].fill(x[0]),
        (0, to) => out.iter_mut().step_by(to).take(n).for_each(|o| *o = x[0]),
        (from, to) => {
            let out = out.iter_mut().step_by(to).take(n);
            out.zip(x.iter().step_by(from)).for_each(|(o, &x)| *o = x);
        }
    }
}

/// Rows and columns of a tile.
const TILE: usize = 32;

/// `out[i·p.to + j] = x[i + j·axis.from]`. Both sides are touched in runs of a tile's width, so
/// that strides which are powers of two do not crowd one set of the cache.
fn transpose<T: Element>(p: Axis, axis: Axis, x: &[T], out: &mut [T]) {
    let mut tile = [[T::default(); TILE]; TILE];
    for j in (0..axis.extent).step_by(TILE) {
        let width = TILE.min(axis.extent - j);
        for i in (0..p.extent).step_by(TILE) {
            let height = TILE.min(p.extent - i);
            for (dj, row) in tile[..width].iter_mut().enumerate() {
                row[..height].copy_from_slice(&x[i + (j + dj) * axis.from..][..height]);
            }
            for di in 0..height {
                let out = &mut out[(i + di) * p.to + j..][..width];
                for (o, row) in out.iter_mut().zip(&tile) {
                    *o = row[di];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::testing::same_on_all;
    use crate::{DType, Shape};

    fn check(extents: &[usize], x_count: usize, from: Window, count: usize, to: Window) {
        let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64];
        for dtype in dtypes {
            let numbers: Vec<f64> = (0..x_count).map(|i| (i % 251) as f64).collect();
            let out = same_on_all(|device| {
                let x = Tensor::from_slice(&numbers, [x_count], device).unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let out = Tensor::full([count], -1.0, dtype, device).unwrap();
                device.backend().copy_window(extents, &x, &from, &out, &to).unwrap();
                out
            });
            let mut expected = vec![-1.0; count];
            let own = Shape::from(extents).strides();
            for i in 0..Shape::from(extents).elements() {
                let offset = |w: &Window| {
                    let axes = (0..extents.len()).map(|a| i / own[a] % extents[a] * w.strides[a]);
                    w.offset + axes.sum::<usize>()
                };
                expected[offset(&to)] = numbers[offset(&from)];
            }
            assert!(out.to_f64_vec().unwrap() == expected, "{extents:?} {dtype}");
        }
    }

    fn permuted(dims: &[usize], order: &[usize]) {
        let own = Shape::from(dims).strides();
        let extents: Vec<usize> = order.iter().map(|&axis| dims[axis]).collect();
        let from = Window { offset: 0, strides: order.iter().map(|&axis| own[axis]).collect() };
        let to = Window { offset: 0, strides: Shape::from(&extents[..]).strides() };
        let count = dims.iter().product();
        check(&extents, count, from, count, to);
    }

    #[test]
    fn permutations() {
        permuted(&[3, 1, 5], &[2, 1, 0]);
        permuted(&[301, 203], &[1, 0]);
        permuted(&[64, 1024], &[1, 0]);
        permuted(&[70_001, 2], &[1, 0]);
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            permuted(&[37, 41, 43], &order);
        }
        permuted(&[7, 5, 33, 3, 11], &[3, 1, 4, 0, 2]);
        permuted(&[], &[]);
    }

    #[test]
    fn cuts_joins_and_stretches() {
        let window = |offset, strides: &[usize]| Window { offset, strides: strides.into() };
        check(&[50, 7], 50 * 11, window(3, &[11, 1]), 50 * 9, window(1, &[9, 1]));
        check(&[40_000, 3], 120_000, window(0, &[3, 1]), 40_000 * 5 + 7, window(7, &[5, 1]));
        check(&[300, 400], 400, window(0, &[0, 1]), 120_000, window(0, &[400, 1]));
        check(&[300, 400], 300, window(0, &[1, 0]), 120_000, window(0, &[400, 1]));
        check(&[100, 200, 3], 3, window(0, &[0, 0, 0]), 120_000, window(0, &[1200, 6, 2]));
        check(&[3, 30_000], 90_000, window(0, &[30_000, 1]), 90_000, window(0, &[1, 3]));
        check(&[0, 5], 1, window(0, &[5, 1]), 3, window(0, &[5, 1]));
    }
}
