//! Passes over elements: the loops that every elementwise function shares, and the functions that
//! have no formula (fill, cast, accumulate).

use super::Cpu;
use super::block::{convert, modify, produce};
use super::broadcast::Source;
use super::host;
use super::parallel::GRAIN;
use crate::dtype::{Element, Float};
use crate::tensor::Tensor;

pub(super) fn fill<T: Element>(cpu: &Cpu, out: &Tensor, value: f64) {
    let value = T::from_f64(value);
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), 4 * GRAIN, &mut *out, |_, out| out.fill(value));
}

pub(super) fn cast<T: Element, U: Element>(cpu: &Cpu, x: &Tensor, out: &Tensor) {
    let x = host::read::<T>(x);
    let mut out = host::write::<U>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| match &x[..] {
        [value] if range.len() > 1 => out.fill(U::from_f64(value.to_f64())),
        x => convert(&x[range], out),
    });
}

pub(super) fn accumulate<T: Float>(cpu: &Cpu, out: &Tensor, x: &Tensor) {
    let data = host::read::<T>(x);
    let source = Source::new(x, &data, out.shape());
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let mut x = source.reader::<T::Sum>();
        modify::<T>(out, |start, out| {
            let x = x.block(range.start + start, out.len());
            for (o, &x) in out.iter_mut().zip(x) {
                *o += x;
            }
        });
    });
}

/// `out = f(x)`.
pub(super) fn map1<T: Float>(
    cpu: &Cpu,
    x: &Tensor,
    out: &Tensor,
    f: impl Fn(T::Sum) -> T::Sum + Sync,
) {
    let data = host::read::<T>(x);
    let source = Source::new(x, &data, out.shape());
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let mut x = source.reader::<T::Sum>();
        produce::<T>(out, |start, out| {
            let x = x.block(range.start + start, out.len());
            for (o, &x) in out.iter_mut().zip(x) {
                *o = f(x);
            }
        });
    });
}

/// `out = f(a, b)`, both broadcast.
pub(super) fn map2<T: Float>(
    cpu: &Cpu,
    [a, b]: [&Tensor; 2],
    out: &Tensor,
    f: impl Fn(T::Sum, T::Sum) -> T::Sum + Sync,
) {
    let (a_data, b_data) = (host::read::<T>(a), host::read::<T>(b));
    let a = Source::new(a, &a_data, out.shape());
    let b = Source::new(b, &b_data, out.shape());
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let (mut a, mut b) = (a.reader::<T::Sum>(), b.reader::<T::Sum>());
        produce::<T>(out, |start, out| {
            let at = range.start + start;
            let (a, b) = (a.block(at, out.len()), b.block(at, out.len()));
            for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *o = f(a, b);
            }
        });
    });
}

/// `out = f(a, b, c)`, all broadcast.
pub(super) fn map3<T: Float>(
    cpu: &Cpu,
    [a, b, c]: [&Tensor; 3],
    out: &Tensor,
    f: impl Fn(T::Sum, T::Sum, T::Sum) -> T::Sum + Sync,
) {
    let data = [a, b, c].map(host::read::<T>);
    let a = Source::new(a, &data[0], out.shape());
    let b = Source::new(b, &data[1], out.shape());
    let c = Source::new(c, &data[2], out.shape());
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let (mut a, mut b, mut c) =
            (a.reader::<T::Sum>(), b.reader::<T::Sum>(), c.reader::<T::Sum>());
        produce::<T>(out, |start, out| {
            let (at, length) = (range.start + start, out.len());
            let (a, b, c) = (a.block(at, length), b.block(at, length), c.block(at, length));
            for (((o, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *o = f(a, b, c);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, devices, tensor, values};
    use crate::{DType, Tensor};

    #[test]
    fn fill_cast_and_accumulate_work_for_any_dtype_and_size() {
        let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64];
        for device in devices() {
            for n in [0, 1, 513, 70_001] {
                for from in dtypes {
                    let x = Tensor::full([n], 3.0, from, &device).unwrap();
                    assert_eq!(x.to_f64_vec().unwrap(), vec![3.0; n]);
                    for to in dtypes {
                        let y = Tensor::empty("test", [n], to, &device).unwrap();
                        device.backend().cast(&x, &y).unwrap();
                        assert_eq!(y.to_f64_vec().unwrap(), vec![3.0; n]);
                    }
                }
            }
            for dtype in DType::FLOATS {
                let (x, y) = (values(40_003, 1), values(40_003, 2));
                let out = tensor(&x, [40_003], dtype, &device);
                let b = device.backend();
                b.accumulate(&out, &tensor(&y, [40_003], dtype, &device)).unwrap();
                let two = tensor(&[2.0], [], dtype, &device);
                b.accumulate(&out, &Tensor::uniform(&two, out.shape().clone())).unwrap();
                let expected: Vec<f64> = x.iter().zip(&y).map(|(x, y)| x + y + 2.0).collect();
                agrees(&out, &expected);
            }
        }
    }
}
