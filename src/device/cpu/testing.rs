//! What the kernels' tests share: devices with poisoned memory, numbers to compute with, and the
//! tolerances of the design.

use crate::{CpuOptions, DType, Device, Shape, Tensor};

/// One thread and two, both with poisoned memory.
pub(super) fn devices() -> [Device; 2] {
    [1, 2].map(|n| Device::new_cpu(CpuOptions { threads: Some(n), poison: true }).unwrap())
}

/// Numbers on [-2, 2) with few bits, so that every float dtype holds them exactly.
pub(super) fn values(n: usize, seed: u64) -> Vec<f64> {
    let stream = crate::device::philox::Stream { seed, stream: 0 };
    (0..n as u64).map(|i| (stream.block(i)[0] >> 25) as f64 / 32.0 - 2.0).collect()
}

pub(super) fn tensor(
    data: &[f64],
    shape: impl Into<Shape>,
    dtype: DType,
    device: &Device,
) -> Tensor {
    let wide = Tensor::from_slice(data, shape, device).unwrap();
    wide.to_dtype(dtype).unwrap()
}

/// A poisoned tensor for a result.
pub(super) fn result(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Tensor {
    Tensor::empty("test", shape, dtype, device).unwrap()
}

/// Asserts that the tensor is within its dtype's tolerance of `expected`.
#[track_caller]
pub(super) fn agrees(x: &Tensor, expected: &[f64]) {
    let got = x.to_f64_vec().unwrap();
    assert_eq!(got.len(), expected.len());
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().map(|&b| square(b)).sum();
    let tolerance = match x.dtype() {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 3e-3,
        _ => 1.5e-2,
    };
    assert!(
        error.sqrt() <= tolerance * norm.sqrt(),
        "{x:?}: error {:.2e} of {:.2e}",
        error.sqrt(),
        norm.sqrt()
    );
}

/// Asserts that `f` gives bitwise the same on one thread and on two, and returns both results.
#[track_caller]
pub(super) fn same_on_all(f: impl Fn(&Device) -> Tensor) -> Tensor {
    let [a, b] = devices().map(|device| f(&device));
    let bits = |x: &Tensor| {
        let x = x.to_f64_vec().unwrap();
        x.into_iter().map(f64::to_bits).collect::<Vec<_>>()
    };
    assert!(bits(&a) == bits(&b), "one thread and two differ");
    a
}
