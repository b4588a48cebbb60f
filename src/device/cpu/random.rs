//! Random numbers and dropout: element i depends on position i of the stream only.

use super::Cpu;
use super::block::produce;
use super::broadcast::Source;
use super::host;
use crate::device::philox::Stream;
use crate::device::spec::Distribution;
use crate::dtype::{DType, Element, Float};
use crate::tensor::Tensor;
use num_traits::Zero;

/// Elements a piece: fewer than elsewhere, as each costs much more.
const PIECE: usize = 4 << 10;

pub(super) fn random<T: Float>(cpu: &Cpu, f: Distribution, stream: Stream, out: &Tensor) {
    let mut out = host::write::<T>(out);
    match f {
        Distribution::Uniform(low, high) => {
            // The largest number below 1 that the dtype has: rounding must not reach `high`.
            let digits = match T::DTYPE {
                DType::F32 => 24,
                DType::F16 => 11,
                DType::BF16 => 8,
                _ => 53,
            };
            let most = 1.0 - 0.5f64.powi(digits);
            fill(cpu, &mut out, |i| {
                let x = T::from_f64(low + (high - low) * stream.uniform(i).min(most));
                if x.to_f64() < high { x } else { T::from_f64(low) }
            });
        }
        Distribution::Normal(mean, deviation) => {
            fill(cpu, &mut out, |i| T::from_f64(mean + deviation * stream.normal(i)));
        }
    }
}

fn fill<T: Float>(cpu: &Cpu, out: &mut [T], f: impl Fn(u64) -> T + Sync) {
    cpu.each(out.len(), PIECE, out, |range, out| {
        for (i, o) in range.zip(out) {
            *o = f(i as u64);
        }
    });
}

pub(super) fn dropout<T: Float>(cpu: &Cpu, p: f64, stream: Stream, x: &Tensor, out: &Tensor) {
    let data = host::read::<T>(x);
    let source = Source::new(x, &data, out.shape());
    let mut out = host::write::<T>(out);
    let scale = T::Sum::from_f64(1.0 / (1.0 - p));
    cpu.each(out.len(), PIECE, &mut *out, |range, out| {
        let mut x = source.reader::<T::Sum>();
        produce::<T>(out, |start, out| {
            let at = range.start + start;
            let x = x.block(at, out.len());
            for ((o, &x), i) in out.iter_mut().zip(x).zip(at as u64..) {
                // A choice, not a product: infinite scale and dropped NaN leave zeros.
                *o = if stream.uniform(i) >= p { x * scale } else { T::Sum::zero() };
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::device::cpu::testing::{result, same_on_all, tensor};

    const STREAM: Stream = Stream { seed: 5, stream: 9 };

    #[test]
    fn elements_come_from_their_positions_and_stay_below_the_end() {
        for dtype in DType::FLOATS {
            let n = 20_011;
            let out = same_on_all(|device| {
                let out = result([n], dtype, device);
                let uniform = Distribution::Uniform(-1.0, 3.0);
                device.backend().random(uniform, STREAM, &out).unwrap();
                out
            });
            for (i, x) in out.to_f64_vec().unwrap().into_iter().enumerate() {
                assert!((-1.0..3.0).contains(&x));
                let exact = -1.0 + 4.0 * STREAM.uniform(i as u64);
                assert!((x - exact).abs() < 0.02, "{x} {exact}");
            }
            let out = same_on_all(|device| {
                let out = result([n], dtype, device);
                let normal = Distribution::Normal(1.0, 0.5);
                device.backend().random(normal, STREAM, &out).unwrap();
                out
            });
            let exact = 1.0 + 0.5 * STREAM.normal(77);
            assert!((out.to_f64_vec().unwrap()[77] - exact).abs() < 0.02);
        }
    }

    #[test]
    fn dropout_keeps_what_the_stream_says() {
        for (p, uniform) in [(0.0, false), (0.25, true), (1.0, false)] {
            let out = same_on_all(|device| {
                let shape = Shape::from([3, 5003]);
                let one = tensor(&[3.0], [1], DType::F16, device);
                let x = if uniform {
                    Tensor::uniform(&one, shape.clone())
                } else {
                    Tensor::full(shape.clone(), 3.0, DType::F16, device).unwrap()
                };
                let out = result(shape, DType::F16, device);
                device.backend().dropout(p, STREAM, &x, &out).unwrap();
                out
            });
            for (i, x) in out.to_f64_vec().unwrap().into_iter().enumerate() {
                let kept = STREAM.uniform(i as u64) >= p;
                assert_eq!(x, if kept { 3.0 / (1.0 - p) } else { 0.0 });
            }
        }
    }
}
