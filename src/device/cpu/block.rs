//! Blocks of numbers in the type that sums are kept in: halves pass through a small buffer on the
//! stack, a block at a time, and f32 and f64 are used where they lie. The inner loops of all kernels
//! run over such blocks.

use crate::dtype::{DType, Element, Float, Real};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Numbers in a block: large enough to hide a block's overhead, small enough for the first cache.
pub(super) const BLOCK: usize = 512;

/// Room for a block.
pub(super) fn block<W: Element>() -> [W; BLOCK] {
    [W::default(); BLOCK]
}

/// `out = x`, converted. Integers truncate and saturate.
pub(super) fn convert<T: Element, W: Element>(x: &[T], out: &mut [W]) {
    use bytemuck::{cast_slice, cast_slice_mut};
    match (T::DTYPE, W::DTYPE) {
        (a, b) if a == b => out.copy_from_slice(cast_slice(x)),
        (DType::F16, DType::F32) => {
            cast_slice::<T, f16>(x).convert_to_f32_slice(cast_slice_mut(out));
        }
        (DType::BF16, DType::F32) => {
            cast_slice::<T, bf16>(x).convert_to_f32_slice(cast_slice_mut(out));
        }
        (DType::F32, DType::F16) => {
            cast_slice_mut::<W, f16>(out).convert_from_f32_slice(cast_slice(x));
        }
        (DType::F32, DType::BF16) => {
            cast_slice_mut::<W, bf16>(out).convert_from_f32_slice(cast_slice(x));
        }
        // By way of f64 a large integer would be rounded twice.
        (DType::I64, DType::F32) => {
            let out: &mut [f32] = cast_slice_mut(out);
            out.iter_mut().zip(cast_slice::<T, i64>(x)).for_each(|(o, &x)| *o = x as f32);
        }
        // f64 holds what the other pairs need: every i32, and every i64 that an i32 can hold.
        _ => out.iter_mut().zip(x).for_each(|(o, &x)| *o = W::from_f64(x.to_f64())),
    }
}

/// `x` (a block at most) as numbers of type `W`, in `buffer` where they must be converted.
pub(super) fn wide<'a, T: Element, W: Element>(x: &'a [T], buffer: &'a mut [W]) -> &'a [W] {
    if T::DTYPE == W::DTYPE {
        return bytemuck::cast_slice(x);
    }
    let buffer = &mut buffer[..x.len()];
    convert(x, buffer);
    buffer
}

/// Fills `out` by `f`, which gets the position and the numbers of each block.
pub(super) fn produce<T: Float>(out: &mut [T], mut f: impl FnMut(usize, &mut [T::Sum])) {
    let in_place = T::DTYPE == T::Sum::DTYPE;
    let mut buffer = block::<T::Sum>();
    for (number, out) in out.chunks_mut(BLOCK).enumerate() {
        if in_place {
            f(number * BLOCK, bytemuck::cast_slice_mut(out));
        } else {
            let buffer = &mut buffer[..out.len()];
            f(number * BLOCK, buffer);
            convert(buffer, out);
        }
    }
}

/// Changes `out` by `f`, which gets the position and the numbers of each block.
pub(super) fn modify<T: Float>(out: &mut [T], mut f: impl FnMut(usize, &mut [T::Sum])) {
    let in_place = T::DTYPE == T::Sum::DTYPE;
    let mut buffer = block::<T::Sum>();
    for (number, out) in out.chunks_mut(BLOCK).enumerate() {
        if in_place {
            f(number * BLOCK, bytemuck::cast_slice_mut(out));
        } else {
            let buffer = &mut buffer[..out.len()];
            convert(out, buffer);
            f(number * BLOCK, buffer);
            convert(buffer, out);
        }
    }
}

/// Calls `f` with each block of `x`.
pub(super) fn visit<T: Float>(x: &[T], mut f: impl FnMut(&[T::Sum])) {
    let mut buffer = block::<T::Sum>();
    x.chunks(BLOCK).for_each(|x| f(wide(x, &mut buffer)));
}

/// The sum of a block: in 16 short sums, which are few enough terms for f32, and then in f64.
pub(super) fn total<S: Real>(x: &[S]) -> f64 {
    const LANES: usize = 16;
    let mut sum = 0.0;
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    if x.len() >= LANES {
        let mut lanes = [S::zero(); LANES];
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += x;
            }
        }
        sum = lanes.into_iter().map(Element::to_f64).sum();
    }
    sum + rest.iter().map(|&x| Element::to_f64(x)).sum::<f64>()
}

/// The sum of a slice of any length.
pub(super) fn sum<T: Float>(x: &[T]) -> f64 {
    let mut sum = 0.0;
    visit(x, |x| sum += total(x));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted<T: Element, W: Element>(x: &[T]) -> Vec<W> {
        let mut out = vec![W::default(); x.len()];
        convert(x, &mut out);
        out
    }

    #[test]
    fn conversions_round_once_and_saturate() {
        assert_eq!(converted::<i64, i32>(&[5, -1 << 40, 1 << 40]), [5, i32::MIN, i32::MAX]);
        assert_eq!(converted::<f32, i32>(&[-1.9, 1e20, f32::NAN]), [-1, i32::MAX, 0]);
        // Half-way between two f32 but for the last bit, which f64 cannot hold.
        assert_eq!(
            converted::<i64, f32>(&[(1 << 60) + (1 << 36) + 1]),
            [(1u64 << 60) as f32 + (1u64 << 37) as f32]
        );
        assert_eq!(converted::<f16, f32>(&[f16::from_f32(0.5)]), [0.5]);
        assert_eq!(converted::<f32, bf16>(&[3.0]), [bf16::from_f32(3.0)]);
    }

    #[test]
    fn sums_of_many_f32_are_exact_to_1e_7() {
        let x: Vec<f32> = (0..1 << 20).map(|i| (i % 7) as f32 * 0.1).collect();
        let exact: f64 = x.iter().map(|&x| x as f64).sum();
        assert!((sum(&x) / exact - 1.0).abs() < 3e-7);
        assert_eq!(sum::<f16>(&[]), 0.0);
    }
}
