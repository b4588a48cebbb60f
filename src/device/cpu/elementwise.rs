//! Passes over elements: the loops that every elementwise function shares, and the functions that
//! have no formula (fill, cast, accumulate).

use super::Cpu;
use super::block::{convert, modify, produce};
use super::broadcast::Source;
use super::host;
use super::parallel::GRAIN;
use super::reduce::{Terms, sum_terms};
use crate::dtype::{Element, Float};
use crate::shape::Shape;
use crate::tensor::Tensor;
use smallvec::SmallVec;

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

// The passes below exist once a dtype: what differs between functions is a loop over a block, called
// by way of `dyn`. A copy of the passes for each function would cost minutes of compile time.

/// `out = f(x)`.
pub(super) fn map1<T: Float>(
    cpu: &Cpu,
    x: &Tensor,
    out: &Tensor,
    f: impl Fn(T::Sum) -> T::Sum + Sync,
) {
    blocks::<T, 1>(cpu, [x], out, &|out, [x]| {
        for (o, &x) in out.iter_mut().zip(x) {
            *o = f(x);
        }
    });
}

/// `out = f(a, b)`, both broadcast.
pub(super) fn map2<T: Float>(
    cpu: &Cpu,
    operands: [&Tensor; 2],
    out: &Tensor,
    f: impl Fn(T::Sum, T::Sum) -> T::Sum + Sync,
) {
    blocks::<T, 2>(cpu, operands, out, &|out, [a, b]| {
        for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *o = f(a, b);
        }
    });
}

/// `out = f(a, b, c)`, all broadcast.
pub(super) fn map3<T: Float>(
    cpu: &Cpu,
    operands: [&Tensor; 3],
    out: &Tensor,
    f: impl Fn(T::Sum, T::Sum, T::Sum) -> T::Sum + Sync,
) {
    blocks::<T, 3>(cpu, operands, out, &|out, [a, b, c]| {
        for (((o, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
            *o = f(a, b, c);
        }
    });
}

/// A loop over one block of the result and of each operand.
type BlockLoop<'a, S, const N: usize> = dyn Fn(&mut [S], [&[S]; N]) + Sync + 'a;

/// Where the operands broadcast to more than `out` holds, what is made is added up along the axes
/// that `out` lacks, and nothing of the full shape is written.
fn blocks<T: Float, const N: usize>(
    cpu: &Cpu,
    operands: [&Tensor; N],
    out: &Tensor,
    f: &BlockLoop<'_, T::Sum, N>,
) {
    let full = operands.iter().fold(out.shape().clone(), |full, operand| {
        full.broadcast(operand.shape(), "elementwise").expect("checked by ops")
    });
    let data = operands.map(host::read::<T>);
    let sources: [_; N] = std::array::from_fn(|i| Source::new(operands[i], &data[i], &full));
    if full.elements() != out.elements() {
        return add_up::<T>(cpu, &full, out, &|start, terms| {
            let mut readers = sources.each_ref().map(|source| source.reader::<T::Sum>());
            let length = terms.len();
            f(terms, readers.each_mut().map(|reader| reader.block(start, length)));
        });
    }
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let mut readers = sources.each_ref().map(|source| source.reader::<T::Sum>());
        produce::<T>(out, |start, out| {
            let (at, length) = (range.start + start, out.len());
            let blocks = readers.each_mut().map(|reader| reader.block(at, length));
            f(out, blocks);
        });
    });
}

/// Adds up what `make` gives for a tensor of shape `full`, along the axes that `out` lacks or has
/// with extent 1.
pub(super) fn add_up<T: Float>(
    cpu: &Cpu,
    full: &Shape,
    out: &Tensor,
    make: &(dyn Fn(usize, &mut [T::Sum]) + Sync),
) {
    let missing = full.rank() - out.shape().rank();
    let reduced: SmallVec<[bool; 4]> = (0..full.rank())
        .map(|axis| axis < missing || out.dims()[axis - missing] != full[axis])
        .collect();
    sum_terms::<T>(cpu, &Terms::Made(make), full.dims(), &reduced, 1.0, out);
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
