//! The smallest pieces of the kernels: exact widening that vectorises, fused multiply-add where the
//! machine has it, prefetching, and the choice between the machine's and the portable code.

use crate::dtype::{DType, Float, Real};

/// How far ahead of the entry in work the matrix is prefetched, in entries. The hardware's own
/// prefetchers lose the matrix among the random reads of the dense side; on a Zen 3 this is worth a
/// fifth of the time of `A·x`.
const AHEAD: usize = 512;

/// `value` in the type of its sums: `Float::widen`, but without calls and branches.
#[inline(always)]
pub(super) fn widen<T: Float>(value: T) -> T::Sum {
    match T::DTYPE {
        DType::F16 => bytemuck::cast(f16_to_f32(bytemuck::cast(value))),
        DType::BF16 => {
            let bits: u16 = bytemuck::cast(value);
            bytemuck::cast(f32::from_bits(u32::from(bits) << 16))
        }
        _ => value.widen(),
    }
}

/// IEEE binary16 to binary32 without branches: the exponent is moved by multiplying with a power of
/// two, which treats infinities and NaN right, and subnormals are made by a subtraction.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    let word = u32::from(bits) << 16;
    let twice = word.wrapping_add(word);
    let normal =
        f32::from_bits((twice >> 4).wrapping_add(0xE0 << 23)) * f32::from_bits(0x0780_0000);
    let subnormal = f32::from_bits((twice >> 17) | (126 << 23)) - 0.5;
    let magnitude = if twice < 1 << 27 { subnormal } else { normal };
    f32::from_bits((word & 0x8000_0000) | magnitude.to_bits())
}

/// `a * b + c`, in one rounding where `FMA`.
#[inline(always)]
pub(super) fn fma<S: Real, const FMA: bool>(a: S, b: S, c: S) -> S {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Element-wise sum.
#[inline(always)]
pub(super) fn add_lanes<S: Real, const W: usize>(mut a: [S; W], b: [S; W]) -> [S; W] {
    for w in 0..W {
        a[w] += b[w];
    }
    a
}

/// Terms that a chain of additions takes. Longer sums are made of such stretches, for in a partial sum that
/// grew much larger than its terms these would lose their digits: of 512 equal terms the last keeps all
/// but 4e-6 of the sum, of a million 1e-2.
pub(super) const STRETCH: usize = 512;

/// A sum of stretches, with what was rounded away (Knuth's two-sum), however many there are.
pub(super) struct Total<S, const W: usize> {
    sum: [S; W],
    lost: [S; W],
}

impl<S: Real, const W: usize> Total<S, W> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Total { sum: zeros(), lost: zeros() }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, terms: [S; W]) {
        for (w, &term) in terms.iter().enumerate() {
            let before = self.sum[w];
            let after = before + term;
            let taken = after - before;
            self.lost[w] += (before - (after - taken)) + (term - taken);
            self.sum[w] = after;
        }
    }

    #[inline(always)]
    pub(super) fn finish(self) -> [S; W] {
        std::array::from_fn(|w| {
            // An infinite sum has lost what is not a number.
            if self.sum[w].is_finite() { self.sum[w] + self.lost[w] } else { self.sum[w] }
        })
    }
}

/// No sum yet.
#[inline(always)]
pub(super) fn zeros<S: Real, const W: usize>() -> [S; W] {
    [S::zero(); W]
}

/// Asks for the matrix's entries `AHEAD` of entry `e`.
#[inline(always)]
pub(super) fn prefetch_ahead<T>(cols: &[i32], values: &[T], e: usize) {
    prefetch(cols.as_ptr().wrapping_add(e + AHEAD));
    prefetch(values.as_ptr().wrapping_add(e + AHEAD));
}

/// Asks for the lanes that an entry a little ahead of `e` will need. Worth up to half the time where
/// the dense side is larger than the caches; sums in memory (`scatter`) gain nothing from it.
#[inline(always)]
pub(super) fn prefetch_lanes<T, const W: usize>(
    base: *const T,
    row: usize,
    cols: &[i32],
    e: usize,
) {
    const AHEAD: usize = 12;
    let ahead = if e + AHEAD < cols.len() { e + AHEAD } else { e };
    let at = base.wrapping_add(cols[ahead] as usize * row);
    for line in 0..(W * size_of::<T>()).div_ceil(64) {
        prefetch(at.wrapping_byte_add(line * 64));
    }
}

/// Asks for a cache line; the address need not exist.
#[inline(always)]
pub(super) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Whether code compiled for AVX2 and FMA may run here.
#[inline]
pub(super) fn has_avx2_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether fused multiply-add is part of the target anyway.
pub(super) const PORTABLE_FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// Defines `fn $name`, which calls the inlined `$body::<T, FMA>` as compiled for this machine.
macro_rules! dispatched {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident = $body:ident($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name<T: Float>($($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                unsafe fn fast<T: Float>($($arg: $type),*) {
                    // SAFETY: the promise of the function around this one.
                    unsafe { $body::<T, true>($($arg),*) }
                }
                if $crate::device::cpu::sparse::lanes::has_avx2_fma() {
                    // SAFETY: the machine has the features; the rest is the caller's promise.
                    unsafe { fast::<T>($($arg),*) };
                    return;
                }
            }
            // SAFETY: the caller's promise.
            unsafe { $body::<T, { $crate::device::cpu::sparse::lanes::PORTABLE_FMA }>($($arg),*) }
        }
    };
}
pub(super) use dispatched;

/// Calls `$go::<W>` for vectors `$from..$to` in blocks of 32, 16, 8, 4, 2 and 1. Ranges are cut at
/// multiples of 32 only, so how a vector is summed does not depend on the cut.
macro_rules! for_blocks {
    ($from:expr, $to:expr, [$($w:literal),+], |$j:ident, $width:ident| $go:expr) => {{
        let (mut $j, to) = ($from, $to);
        $(
            while to - $j >= $w {
                const $width: usize = $w;
                $go;
                $j += $w;
            }
        )+
        debug_assert_eq!($j, to);
    }};
}
pub(super) use for_blocks;
