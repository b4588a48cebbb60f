//! What the integration tests share: devices whose new memory is full of NaN, tensors of any dtype
//! from f64 numbers, the design's tolerances, and deterministic data. References are in f64.
#![allow(dead_code)]

pub mod conv;
pub mod generate;
pub mod sparse;

use capgrad::{CpuOptions, DType, Device, Element, Purpose, Shape, Tensor, bf16, f16};
use std::fmt::Display;

/// A CPU device of its own whose new memory is poisoned, so that an element that nobody wrote
/// shows.
pub fn poisoned() -> Device {
    Device::new_cpu(CpuOptions { poison: true, ..Default::default() }).unwrap()
}

/// A CPU device of its own.
pub fn plain() -> Device {
    Device::new_cpu(CpuOptions::default()).unwrap()
}

/// ‖out - ref‖ / ‖ref‖ that passes.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 3e-3,
        DType::BF16 => 1.5e-2,
        other => panic!("{other} does not compute"),
    }
}

/// `data` rounded to `dtype`, on `device`.
pub fn tensor(data: &[f64], shape: impl Into<Shape>, dtype: DType, device: &Device) -> Tensor {
    fn of<T: Element>(data: &[f64], shape: Shape, device: &Device) -> Tensor {
        let data: Vec<T> = data.iter().map(|&value| T::from_f64(value)).collect();
        Tensor::from_vec(data, shape, device).unwrap()
    }
    let shape = shape.into();
    match dtype {
        DType::F32 => of::<f32>(data, shape, device),
        DType::F64 => of::<f64>(data, shape, device),
        DType::F16 => of::<f16>(data, shape, device),
        DType::BF16 => of::<bf16>(data, shape, device),
        DType::I32 => of::<i32>(data, shape, device),
        DType::I64 => of::<i64>(data, shape, device),
    }
}

/// `data` rounded to `dtype`: what a reference must start from.
pub fn rounded(data: &[f64], dtype: DType) -> Vec<f64> {
    let round = |value: &f64| match dtype {
        DType::F32 => *value as f32 as f64,
        DType::F16 => f16::from_f64(*value).to_f64(),
        DType::BF16 => bf16::from_f64(*value).to_f64(),
        _ => *value,
    };
    data.iter().map(round).collect()
}

pub fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f64_vec().unwrap()
}

/// ‖out - ref‖ / ‖ref‖; NaN where either has one.
pub fn relative_error(out: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len(), "lengths");
    let norm = |terms: &mut dyn Iterator<Item = f64>| terms.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut out.iter().zip(reference).map(|(a, b)| a - b));
    if difference == 0.0 { 0.0 } else { difference / norm(&mut reference.iter().copied()) }
}

#[track_caller]
pub fn assert_close(what: impl Display, out: &Tensor, reference: &[f64]) {
    let dtype = out.dtype();
    let error = relative_error(&values(out), reference);
    // Not `error > tolerance`: NaN must not pass.
    let passes = error <= tolerance(dtype);
    assert!(passes, "{what}: {dtype} is {error:e} off its reference");
}

/// Deterministic numbers (SplitMix64, Steele, Lea and Flood 2014).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Uniform on [-1, 1).
    pub fn real(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn reals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.real()).collect()
    }

    /// Sixteenths in [-1, 1]: exact in every dtype, and sums of their products are exact in f32,
    /// so that terms that cancel leave no rounding behind.
    pub fn sixteenths(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| (self.below(33) as f64 - 16.0) / 16.0).collect()
    }
}

/// The highest that the workspace was since the last `reset_peak`.
pub fn workspace_peak(device: &Device) -> u64 {
    device.report().peaks[Purpose::Workspace]
}

/// The bits of a tensor's elements, for comparisons in which NaN would not hide.
pub fn bits(tensor: &Tensor) -> Vec<u64> {
    values(tensor).into_iter().map(f64::to_bits).collect()
}
