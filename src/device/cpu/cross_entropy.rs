//! Cross-entropy of logits and labels, without the softmax ever being stored.

use super::Cpu;
use super::block::{block, produce, wide};
use super::host;
use super::index::Integer;
use super::parallel::{Rows, grain};
use super::softmax::statistics;
use crate::dtype::{Element, Float};
use crate::tensor::Tensor;
use num_traits::Float as _;

pub(super) fn forward<T: Float, I: Integer>(
    cpu: &Cpu,
    x: &Tensor,
    labels: &Tensor,
    ignore: Option<i64>,
    scale: f64,
    out: &Tensor,
) {
    let classes = x.dims()[1];
    let (x, labels) = (host::read::<T>(x), host::read::<I>(labels));
    let loss = |row: usize| {
        let label = labels[row].int();
        if Some(label) == ignore {
            return 0.0;
        }
        let x = &x[row * classes..][..classes];
        let (largest, sum) = statistics(x);
        sum.ln() - (x[label as usize].to_f64() - Element::to_f64(largest))
    };
    let leaf = |rows: std::ops::Range<usize>| rows.map(loss).sum::<f64>();
    let sum = cpu.reduce(labels.len(), grain(classes), leaf, |a, b| a + b);
    host::write::<T>(out)[0] = T::from_f64(scale * sum);
}

pub(super) fn gradient<T: Float, I: Integer>(
    cpu: &Cpu,
    x: &Tensor,
    labels: &Tensor,
    ignore: Option<i64>,
    scale: f64,
    dy: &Tensor,
    out: &Tensor,
) {
    let classes = x.dims()[1];
    let (x, labels) = (host::read::<T>(x), host::read::<I>(labels));
    let scale = scale * host::read::<T>(dy)[0].to_f64();
    let mut out = host::write::<T>(out);
    if x.is_empty() {
        return;
    }
    cpu.each(labels.len(), grain(classes), Rows(&mut out, classes), |range, rows| {
        let mut buffer = block::<T::Sum>();
        for (row, out) in range.zip(rows.0.chunks_mut(classes)) {
            let label = labels[row].int();
            if Some(label) == ignore {
                out.fill(T::default());
                continue;
            }
            let x = &x[row * classes..][..classes];
            let (largest, sum) = statistics(x);
            let factor = T::Sum::from_f64(scale / sum);
            produce::<T>(out, |start, out| {
                let x = wide(&x[start..start + out.len()], &mut buffer);
                for (o, &x) in out.iter_mut().zip(x) {
                    *o = (x - largest).exp() * factor;
                }
                // Before the rounding to a half, which would cost the digits that cancel here.
                if let Some(o) = (label as usize).checked_sub(start).and_then(|i| out.get_mut(i)) {
                    *o += T::Sum::from_f64(-scale);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::testing::{agrees, result, same_on_all, tensor, values};
    use crate::{DType, Tensor};

    #[test]
    fn loss_and_gradient_agree_with_f64() {
        let (rows, classes) = (101, 703);
        let x = values(rows * classes, 9);
        let labels: Vec<i64> =
            (0..rows as i64).map(|r| if r % 5 == 0 { -100 } else { r * 37 % 703 }).collect();
        let exp = |r: usize| x[r * classes..][..classes].iter().map(|x| x.exp());
        let used = |r: &usize| labels[*r] != -100;
        let loss: f64 = (0..rows)
            .filter(used)
            .map(|r| exp(r).sum::<f64>().ln() - x[r * classes + labels[r] as usize])
            .sum();
        let mut gradient = vec![0.0; rows * classes];
        for r in (0..rows).filter(used) {
            let sum: f64 = exp(r).sum();
            for (j, e) in exp(r).enumerate() {
                let hot = (j as i64 == labels[r]) as i64 as f64;
                gradient[r * classes + j] = 2.0 * 0.01 * (e / sum - hot);
            }
        }
        for dtype in DType::FLOATS {
            let out = same_on_all(|device| {
                let out = result([], dtype, device);
                let labels = Tensor::from_slice(&labels, [rows], device).unwrap();
                let x = tensor(&x, [rows, classes], dtype, device);
                device.backend().cross_entropy(&x, &labels, Some(-100), 0.01, &out).unwrap();
                out
            });
            agrees(&out, &[loss * 0.01]);
            let out = same_on_all(|device| {
                let out = result([rows, classes], dtype, device);
                let labels: Vec<i32> = labels.iter().map(|&l| l as i32).collect();
                let labels = Tensor::from_slice(&labels, [rows], device).unwrap();
                let x = tensor(&x, [rows, classes], dtype, device);
                let dy = tensor(&[2.0], [], dtype, device);
                let b = device.backend();
                b.cross_entropy_gradient(&x, &labels, Some(-100), 0.01, &dy, &out).unwrap();
                out
            });
            agrees(&out, &gradient);
        }
    }
}
