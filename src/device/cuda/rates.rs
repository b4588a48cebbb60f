//! What a GPU should reach, for predicted times: arithmetic rates from its multiprocessors, memory
//! bandwidth from its clock and bus. Ratios between chips are datasheet figures; the share of them that
//! large products and copies reach was measured on an H200.

use super::gpu::Properties;
use crate::dtype::DType;

/// Seconds before the first kernel of an operation runs, and between two kernels.
pub(super) const LAUNCH: f64 = 3e-6;

/// Operations and bytes a second that large problems reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Bytes read and written.
    pub(super) bytes: f64,
    pub(super) f32: f64,
    pub(super) f64: f64,
    pub(super) tf32: f64,
    pub(super) half: f64,
}

impl Rates {
    pub(super) fn of(properties: &Properties) -> Rates {
        // Fused multiply-adds a clock and multiprocessor: f32, f64, and on tensor cores TF32 and
        // halves with sums in f32.
        let (f32, f64, tf32, half) = match properties.compute_capability {
            (7, _) => (64.0, 2.0, 64.0, 256.0),
            (8, 0) => (64.0, 32.0, 512.0, 1024.0),
            (8, _) => (128.0, 2.0, 128.0, 256.0),
            (9, _) => (128.0, 64.0, 1024.0, 2048.0),
            _ => (128.0, 2.0, 512.0, 1024.0),
        };
        let clock =
            if properties.clock_khz > 0 { properties.clock_khz as f64 * 1e3 } else { 1.5e9 };
        let per_second = 2.0 * clock * properties.multiprocessors as f64;
        let wires = properties.memory_clock_khz as f64 * 1e3 * properties.memory_bus_bits as f64;
        let bytes = if wires > 0.0 { 2.0 * wires / 8.0 * 0.86 } else { 5e11 };
        Rates {
            bytes,
            f32: f32 * per_second * 0.76,
            f64: f64 * per_second * 0.9,
            tf32: tf32 * per_second * 0.76,
            half: half * per_second * 0.74,
        }
    }

    /// Operations a second of the unit that multiplies this dtype.
    pub(super) fn arithmetic(&self, dtype: DType, tf32: bool) -> f64 {
        match dtype {
            DType::F64 => self.f64,
            DType::F16 | DType::BF16 => self.half,
            _ if tf32 => self.tf32,
            _ => self.f32,
        }
    }
}
