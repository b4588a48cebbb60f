//! Pooling along the last axis. Both passes run over their result, in pieces that may begin and end
//! within a row, so that every sum is complete before it is rounded and stored.

use super::Cpu;
use super::block::{BLOCK, produce};
use super::host;
use super::parallel::{Split, grain};
use crate::device::spec::{Pool, PoolGeometry};
use crate::dtype::{Element, Float};
use crate::tensor::Tensor;
use num_traits::Zero;
use std::ops::Range;

/// The part of an output's window that lies within the input.
fn window(g: &PoolGeometry, position: usize) -> Range<usize> {
    let start = position * g.stride;
    let end = (start + g.kernel).saturating_sub(g.padding).min(g.in_length);
    start.saturating_sub(g.padding).min(end)..end
}

/// Cuts `range` of `[rows, length]` at the ends of rows: a row and a range of positions each.
fn rows(range: Range<usize>, length: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let (row, start) = (at / length, at % length);
        let end = length.min(start + (range.end - at));
        let more = at < range.end;
        at += end - start;
        more.then_some((row, start..end))
    })
}

pub(super) fn pool<T: Float>(
    cpu: &Cpu,
    pool: Pool,
    g: &PoolGeometry,
    x: &Tensor,
    out: &Tensor,
    indices: Option<&Tensor>,
) {
    let x = host::read::<T>(x);
    let mut out = host::write::<T>(out);
    let mut indices = indices.map(host::write::<i32>);
    let parts = (&mut *out, indices.as_deref_mut());
    let row = |row: usize| &x[row * g.in_length..][..g.in_length];
    cpu.each(parts.0.len(), grain(g.kernel), parts, |range, (mut out, mut indices)| {
        for (number, positions) in rows(range, g.out_length) {
            let x = row(number);
            let (head, tail) = std::mem::take(&mut out).split_at_mut(positions.len());
            out = tail;
            match pool {
                Pool::Average => {
                    for (position, o) in positions.zip(head) {
                        let sum: f64 = x[window(g, position)].iter().map(|x| x.to_f64()).sum();
                        *o = T::from_f64(sum / g.kernel as f64);
                    }
                }
                Pool::Max => {
                    let (mut own, rest) = indices.take().split(positions.len());
                    indices = rest;
                    for (i, (position, o)) in positions.zip(head).enumerate() {
                        let window = window(g, position);
                        let (at, largest) = first_largest(&x[window.clone()]);
                        *o = T::narrow(largest);
                        if let Some(own) = &mut own {
                            own[i] = (window.start + at) as i32;
                        }
                    }
                }
            }
        }
    });
}

/// The first of the largest elements, or the first NaN, and where it is.
fn first_largest<T: Float>(x: &[T]) -> (usize, T::Sum) {
    let mut best = (0, -<T::Sum as num_traits::Float>::infinity());
    for (i, x) in x.iter().enumerate() {
        let x = x.widen();
        if num_traits::Float::is_nan(x) {
            return (i, x);
        }
        if x > best.1 {
            best = (i, x);
        }
    }
    best
}

pub(super) fn pool_gradient<T: Float>(
    cpu: &Cpu,
    pool: Pool,
    g: &PoolGeometry,
    dy: &Tensor,
    indices: Option<&Tensor>,
    out: &Tensor,
) {
    let dy = host::read::<T>(dy);
    let indices = indices.map(host::read::<i32>);
    let mut out = host::write::<T>(out);
    // A block of inputs, and all outputs whose windows touch it.
    let width = T::Sum::from_f64(g.kernel as f64);
    let cost = (g.kernel / g.stride.max(1)).max(1);
    let piece = grain(cost).max(BLOCK);
    cpu.each(out.len(), piece, &mut *out, |range, mut out| {
        for (row, positions) in rows(range, g.in_length) {
            let (head, tail) = std::mem::take(&mut out).split_at_mut(positions.len());
            out = tail;
            let dy = &dy[row * g.out_length..][..g.out_length];
            let indices = indices.as_ref().map(|i| &i[row * g.out_length..][..g.out_length]);
            produce::<T>(head, |start, out| {
                out.fill(T::Sum::zero());
                let start = positions.start + start;
                let block = start..start + out.len();
                // The first output whose window ends after the block's start, and the first whose
                // window starts after its end.
                let first = (block.start + g.padding + 1).saturating_sub(g.kernel);
                let first = first.div_ceil(g.stride).min(g.out_length);
                let last = (block.end + g.padding).div_ceil(g.stride).min(g.out_length);
                for o in first..last.max(first) {
                    let value = dy[o].widen();
                    match (pool, indices) {
                        (Pool::Max, Some(indices)) => {
                            let at = indices[o] as usize;
                            if block.contains(&at) {
                                out[at - block.start] += value;
                            }
                        }
                        _ => {
                            let window = window(g, o);
                            let from = window.start.max(block.start) - block.start;
                            let to = window.end.min(block.end).saturating_sub(block.start);
                            if from < to {
                                out[from..to].iter_mut().for_each(|x| *x += value / width);
                            }
                        }
                    }
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, result, same_on_all, tensor, values};
    use crate::device::spec::{Pool, PoolGeometry};
    use crate::{DType, Device, Tensor};

    fn geometry(
        rows: usize,
        in_length: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> PoolGeometry {
        let out_length = (in_length + 2 * padding - kernel) / stride + 1;
        PoolGeometry { rows, in_length, out_length, kernel, stride, padding }
    }

    #[test]
    fn pooling_and_its_gradient_agree_with_f64() {
        for g in [
            geometry(3, 17, 3, 2, 1),
            geometry(301, 101, 5, 1, 2),
            geometry(7, 5003, 4, 7, 0),
            geometry(2, 20_000, 2000, 1, 1000),
            geometry(5, 9, 9, 1, 0),
            geometry(0, 9, 2, 2, 0),
        ] {
            let (x, dy) = (values(g.rows * g.in_length, 1), values(g.rows * g.out_length, 2));
            for (pool, dtype) in
                DType::FLOATS.into_iter().flat_map(|t| [(Pool::Max, t), (Pool::Average, t)])
            {
                let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
                for (i, y) in y.iter_mut().enumerate() {
                    let (row, o) = (i / g.out_length, i % g.out_length);
                    let start = (o * g.stride) as isize - g.padding as isize;
                    let inside = (start..start + g.kernel as isize)
                        .filter(|&k| k >= 0 && k < g.in_length as isize)
                        .map(|k| row * g.in_length + k as usize);
                    if pool == Pool::Max {
                        let best = inside.reduce(|a, b| if x[b] > x[a] { b } else { a }).unwrap();
                        *y = x[best];
                        dx[best] += dy[i];
                    } else {
                        for k in inside {
                            *y += x[k] / g.kernel as f64;
                            dx[k] += dy[i] / g.kernel as f64;
                        }
                    }
                }
                let run = |device: &Device| {
                    let (out, indices) =
                        (result([y.len()], dtype, device), result([y.len()], DType::I32, device));
                    let x = tensor(&x, [x.len()], dtype, device);
                    let wanted = (pool == Pool::Max).then_some(&indices);
                    device.backend().pool(pool, &g, &x, &out, wanted).unwrap();
                    (out, indices)
                };
                agrees(&same_on_all(|device| run(device).0), &y);
                let out = same_on_all(|device| {
                    let indices = run(device).1;
                    let wanted = (pool == Pool::Max).then_some(&indices);
                    let out = result([dx.len()], dtype, device);
                    let dy = tensor(&dy, [dy.len()], dtype, device);
                    device.backend().pool_gradient(pool, &g, &dy, wanted, &out).unwrap();
                    out
                });
                agrees(&out, &dx);
            }
        }
    }

    #[test]
    fn nan_wins_and_the_first_of_equals() {
        let device = &Device::cpu();
        let x = [1.0, f32::NAN, 2.0, 3.0, 3.0, f32::NEG_INFINITY];
        let x = Tensor::from_slice(&x, [6], device).unwrap();
        let (out, indices) = (result([2], DType::F32, device), result([2], DType::I32, device));
        let g = geometry(1, 6, 3, 3, 0);
        device.backend().pool(Pool::Max, &g, &x, &out, Some(&indices)).unwrap();
        let y = out.to_vec::<f32>().unwrap();
        assert!(y[0].is_nan() && y[1] == 3.0);
        assert_eq!(indices.to_vec::<i32>().unwrap(), [1, 3]);
    }
}
