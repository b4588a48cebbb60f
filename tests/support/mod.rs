//! What the integration tests share: the devices that they run on, whose new memory is full of NaN,
//! tensors of any dtype from f64 numbers, the design's tolerances, and deterministic data.
//! References are in f64.
#![allow(dead_code)] // Each test binary uses some of it.

pub mod cases;
pub mod conv;
pub mod devices;
pub mod generate;
pub mod ops;
pub mod ranks;
pub mod sparse;
pub mod workloads;

use capgrad::{CpuOptions, CudaOptions, DType, Device, Element, Purpose, Shape, Tensor, bf16, f16};
use std::fmt::Display;
use std::io::Write;
use std::sync::LazyLock;

/// A kind of device. Tests that need several devices, or that fill one to its limit, make them of
/// a kind; the others take one of each from [`devices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cpu,
    Cuda,
}

/// Whether there is a GPU. With `CAPGRAD_REQUIRE_CUDA=1` a missing one is a failure.
///
/// The first device that the process opens on a GPU is charged with what the libraries took when
/// they started. This one is, and lives to the end, so that the meters of all the devices that
/// tests make begin alike.
static CUDA: LazyLock<Result<bool, String>> = LazyLock::new(|| match Device::cuda(0) {
    Ok(_) => Ok(true),
    Err(error) if std::env::var("CAPGRAD_REQUIRE_CUDA").is_ok_and(|value| value == "1") => {
        Err(format!("CAPGRAD_REQUIRE_CUDA=1, but {error}"))
    }
    Err(error) => {
        // Not `eprintln`, which a test that passes does not show.
        let _ = writeln!(std::io::stderr(), "skipped on CUDA: {error}");
        Ok(false)
    }
});

fn cuda() -> bool {
    CUDA.as_ref().copied().unwrap_or_else(|missing| panic!("{missing}"))
}

fn found() -> impl Iterator<Item = Kind> {
    let cuda = cuda();
    [Kind::Cpu, Kind::Cuda].into_iter().filter(move |&kind| kind == Kind::Cpu || cuda)
}

fn name(kind: &Kind) {
    eprintln!("on {kind:?}");
}

/// The kinds of devices that tests run on. Each is named in the output as it is handed out: the
/// last one that a failed test prints is the one on which it failed.
pub fn kinds() -> impl Iterator<Item = Kind> {
    found().inspect(name)
}

/// A new device of every kind, its new memory poisoned, so that an element that nobody wrote shows.
pub fn devices() -> impl Iterator<Item = Device> {
    kinds().map(Kind::poisoned)
}

/// The GPUs among [`devices`].
pub fn cuda_devices() -> impl Iterator<Item = Device> {
    found().filter(|&kind| kind == Kind::Cuda).inspect(name).map(Kind::poisoned)
}

impl Kind {
    /// The kind of a device.
    pub fn of(device: &Device) -> Kind {
        if device.name().starts_with("cuda") { Kind::Cuda } else { Kind::Cpu }
    }

    /// A device of its own whose new memory is poisoned.
    pub fn poisoned(self) -> Device {
        self.device(true)
    }

    /// A device of its own, as a caller makes it.
    pub fn plain(self) -> Device {
        self.device(false)
    }

    fn device(self, poison: bool) -> Device {
        match self {
            // Two threads, also where there is one core, so that work is divided.
            Kind::Cpu if poison => Device::new_cpu(CpuOptions { threads: Some(2), poison }),
            Kind::Cpu => Device::new_cpu(CpuOptions::default()),
            Kind::Cuda => {
                assert!(cuda(), "a test of a kind that is not there");
                Device::new_cuda(0, CudaOptions { poison, ..Default::default() })
            }
        }
        .unwrap()
    }

    /// How many of `cases` generated cases are enough: on a GPU each one waits for dozens of
    /// launches and copies, and for a library to plan it.
    pub fn share(self, cases: u32) -> u32 {
        if self == Kind::Cuda { cases / 4 } else { cases }
    }
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

/// The same for f32 where TF32 is allowed.
pub const TF32_TOLERANCE: f64 = 2e-3;

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

/// ‖out - ref‖ / ‖ref‖, of a reference of zeros ‖out‖; infinite where either has a NaN.
pub fn relative_error(out: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len(), "lengths");
    let norm = |terms: &mut dyn Iterator<Item = f64>| terms.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut out.iter().zip(reference).map(|(a, b)| a - b));
    let size = norm(&mut reference.iter().copied());
    let error = if size == 0.0 { difference } else { difference / size };
    if error.is_nan() { f64::INFINITY } else { error }
}

#[track_caller]
pub fn assert_close(what: impl Display, out: &Tensor, reference: &[f64]) {
    assert_within(what, out, reference, tolerance(out.dtype()));
}

#[track_caller]
pub fn assert_within(what: impl Display, out: &Tensor, reference: &[f64], tolerance: f64) {
    let error = relative_error(&values(out), reference);
    assert!(error <= tolerance, "{what}: {} is {error:e} off its reference", out.dtype());
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
