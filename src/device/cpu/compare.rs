//! Comparisons and the choice between two operands, for any dtype.

use super::Cpu;
use super::block::BLOCK;
use super::broadcast::Source;
use super::elementwise::add_up;
use super::host;
use super::parallel::GRAIN;
use crate::device::spec::{Comparison, Side};
use crate::dtype::{Element, Float};
use crate::tensor::Tensor;

pub(super) fn compare<T: Element>(cpu: &Cpu, f: Comparison, a: &Tensor, b: &Tensor, out: &Tensor) {
    match f {
        Comparison::Equal => holds::<T>(cpu, a, b, out, |a, b| a == b),
        Comparison::NotEqual => holds::<T>(cpu, a, b, out, |a, b| a != b),
        Comparison::Less => holds::<T>(cpu, a, b, out, |a, b| a < b),
        Comparison::LessOrEqual => holds::<T>(cpu, a, b, out, |a, b| a <= b),
        Comparison::Greater => holds::<T>(cpu, a, b, out, |a, b| a > b),
        Comparison::GreaterOrEqual => holds::<T>(cpu, a, b, out, |a, b| a >= b),
    }
}

fn holds<T: Element>(
    cpu: &Cpu,
    a: &Tensor,
    b: &Tensor,
    out: &Tensor,
    f: impl Fn(&T, &T) -> bool + Sync,
) {
    let (a_data, b_data) = (host::read::<T>(a), host::read::<T>(b));
    let a = Source::new(a, &a_data, out.shape());
    let b = Source::new(b, &b_data, out.shape());
    let mut out = host::write::<i32>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let (mut a, mut b) = (a.reader::<T>(), b.reader::<T>());
        for (number, out) in out.chunks_mut(BLOCK).enumerate() {
            let at = range.start + number * BLOCK;
            let (a, b) = (a.block(at, out.len()), b.block(at, out.len()));
            for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
                *o = f(a, b) as i32;
            }
        }
    });
}

pub(super) fn select<T: Element>(cpu: &Cpu, mask: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor) {
    let mask_data = host::read::<i32>(mask);
    let (a_data, b_data) = (host::read::<T>(a), host::read::<T>(b));
    let mask = Source::new(mask, &mask_data, out.shape());
    let a = Source::new(a, &a_data, out.shape());
    let b = Source::new(b, &b_data, out.shape());
    let mut out = host::write::<T>(out);
    cpu.each(out.len(), GRAIN, &mut *out, |range, out| {
        let (mut mask, mut a, mut b) = (mask.reader::<i32>(), a.reader::<T>(), b.reader::<T>());
        for (number, out) in out.chunks_mut(BLOCK).enumerate() {
            let (at, n) = (range.start + number * BLOCK, out.len());
            let (mask, a, b) = (mask.block(at, n), a.block(at, n), b.block(at, n));
            for (((o, &mask), &a), &b) in out.iter_mut().zip(mask).zip(a).zip(b) {
                *o = if mask != 0 { a } else { b };
            }
        }
    });
}

/// `out = Σ dy` where the mask chose the operand of this side, along the axes that `out` lacks.
pub(super) fn select_gradient<T: Float>(
    cpu: &Cpu,
    mask: &Tensor,
    side: Side,
    dy: &Tensor,
    out: &Tensor,
) {
    let full = mask.shape().broadcast(dy.shape(), "select").expect("checked by ops");
    let (mask_data, dy_data) = (host::read::<i32>(mask), host::read::<T>(dy));
    let mask = Source::new(mask, &mask_data, &full);
    let dy = Source::new(dy, &dy_data, &full);
    // Along no axis at all, where the operand was not stretched.
    add_up::<T>(cpu, &full, out, &|start, terms| {
        let (mut mask, mut dy) = (mask.reader::<i32>(), dy.reader::<T::Sum>());
        let (mask, dy) = (mask.block(start, terms.len()), dy.block(start, terms.len()));
        for ((term, &mask), &dy) in terms.iter_mut().zip(mask).zip(dy) {
            let chosen = (mask != 0) == (side == Side::Left);
            *term = if chosen { dy } else { T::Sum::default() };
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{devices, result, tensor};
    use crate::device::spec::Comparison;
    use crate::{DType, Tensor};

    #[test]
    fn comparisons_and_choices_broadcast_in_every_dtype() {
        let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64];
        for (device, dtype) in devices().into_iter().flat_map(|d| dtypes.map(|t| (d.clone(), t))) {
            let n = 9001;
            let rows: Vec<f64> = (0..n).map(|i| (i % 5) as f64).collect();
            let a = tensor(&rows, [n, 1], dtype, &device);
            let b = tensor(&[1.0, 2.0, 3.0], [3], dtype, &device);
            let mask = result([n, 3], DType::I32, &device);
            for (f, rule) in [
                (Comparison::Equal, (|a, b| a == b) as fn(&f64, &f64) -> bool),
                (Comparison::NotEqual, |a, b| a != b),
                (Comparison::Less, |a, b| a < b),
                (Comparison::LessOrEqual, |a, b| a <= b),
                (Comparison::Greater, |a, b| a > b),
                (Comparison::GreaterOrEqual, |a, b| a >= b),
            ] {
                device.backend().compare(f, &a, &b, &mask).unwrap();
                let held: Vec<bool> =
                    rows.iter().flat_map(|a| [1.0, 2.0, 3.0].map(|b| rule(a, &b))).collect();
                assert_eq!(
                    mask.to_vec::<i32>().unwrap(),
                    held.iter().map(|&h| h as i32).collect::<Vec<_>>()
                );
                let out = result([n, 3], dtype, &device);
                let seven = Tensor::full([], 7.0, dtype, &device).unwrap();
                let seven = Tensor::uniform(&seven, out.shape().clone());
                device.backend().select(&mask, &a, &seven, &out).unwrap();
                let expected = held.iter().enumerate();
                let expected: Vec<f64> =
                    expected.map(|(i, &h)| if h { rows[i / 3] } else { 7.0 }).collect();
                assert_eq!(out.to_f64_vec().unwrap(), expected);
            }
        }
    }
}
