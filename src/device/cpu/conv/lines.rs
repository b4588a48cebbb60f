//! Vector arithmetic along a row, for the depthwise form: a row times a few taps, and the dot
//! products of a row with its own shifts. Inlined into callers that are compiled with and without
//! AVX2, `FUSED` telling which.

use crate::device::cpu::gemm::Isa;
use crate::dtype::Real;

/// Most taps that [`dots`] handles at a time: their sums, a row and a product fill the registers.
pub(super) const DOT_TAPS: usize = 8;

/// Sums of a dot product that are kept apart, so that they fill a register.
pub(super) const LANES: usize = 8;

/// Asks for the cache lines of a short row `ahead` elements after `row`, which need not exist: rows
/// are too short for the hardware to see where the next one is.
#[inline(always)]
pub(super) fn prefetch<T>(row: &[T], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = row.as_ptr().wrapping_add(ahead).cast::<i8>();
        for line in (0..size_of_val(row).min(512)).step_by(64) {
            // SAFETY: a hint; it neither reads nor faults, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (row, ahead);
}

/// `x·y + sum`: fused where the instruction exists, as without it a fused product is a call.
#[inline(always)]
fn multiply_add<S: Real, const FUSED: bool>(x: S, y: S, sum: S) -> S {
    if FUSED { x.mul_add(y, sum) } else { x * y + sum }
}

/// Weights of some taps, in either direction.
#[derive(Clone, Copy)]
pub(super) struct Taps<'a, S> {
    /// What holds them.
    pub(super) weights: &'a [S],
    /// The first.
    pub(super) first: usize,
    /// From one to the next.
    pub(super) step: isize,
    /// How many.
    pub(super) count: usize,
    /// Along the row from one to the next.
    pub(super) distance: usize,
}

impl<S: Copy> Taps<'_, S> {
    /// The weights, and where they meet a row.
    #[inline(always)]
    fn each(self) -> impl Iterator<Item = (S, usize)> {
        let Taps { weights, first, step, count, distance } = self;
        (0..count)
            .map(move |u| (weights[first.wrapping_add_signed(u as isize * step)], u * distance))
    }
}

/// `sums[j] = start + Σ_u taps[u] · row[j + u·distance]`, where no start stands for the sum that
/// is already there.
#[inline(always)]
pub(super) fn correlate<S: Real, const FUSED: bool>(
    taps: Taps<'_, S>,
    row: &[S],
    start: Option<S>,
    sums: &mut [S],
) {
    let count = sums.len();
    let mut at = 0;
    while count - at >= 64 {
        block::<S, FUSED, 8>(taps, &row[at..], start, &mut sums[at..], LANES);
        at += 64;
    }
    if count - at >= 32 {
        block::<S, FUSED, 4>(taps, &row[at..], start, &mut sums[at..], LANES);
        at += 32;
    }
    if count - at >= 16 {
        block::<S, FUSED, 2>(taps, &row[at..], start, &mut sums[at..], LANES);
        at += 16;
    }
    if count - at >= 8 {
        block::<S, FUSED, 1>(taps, &row[at..], start, &mut sums[at..], LANES);
        at += 8;
    }
    let rest = count - at;
    if rest > 0 && count >= LANES {
        // The last whole vector, of which only the new elements are kept.
        let at = count - LANES;
        block::<S, FUSED, 1>(taps, &row[at..], start, &mut sums[at..], rest);
        return;
    }
    for (at, to) in sums.iter_mut().enumerate().skip(at) {
        let mut sum = start.unwrap_or(*to);
        for (tap, shift) in taps.each() {
            sum = multiply_add::<S, FUSED>(tap, row[at + shift], sum);
        }
        *to = sum;
    }
}

/// The first `8·N` sums; of the last eight only the last `kept` change.
#[inline(always)]
fn block<S: Real, const FUSED: bool, const N: usize>(
    taps: Taps<'_, S>,
    row: &[S],
    start: Option<S>,
    to: &mut [S],
    kept: usize,
) {
    let to = vectors_mut::<S, N>(to);
    let mut sums = match start {
        Some(start) => [[start; LANES]; N],
        None => *to,
    };
    for (tap, shift) in taps.each() {
        let row = vectors::<S, N>(row, shift);
        for v in 0..N {
            for i in 0..LANES {
                sums[v][i] = multiply_add::<S, FUSED>(tap, row[v][i], sums[v][i]);
            }
        }
    }
    if kept < LANES {
        for i in 0..LANES {
            if i < LANES - kept {
                sums[N - 1][i] = to[N - 1][i];
            }
        }
    }
    *to = sums;
}

/// `row[at..at + 8·N]`, of a length that the compiler knows.
#[inline(always)]
fn vectors<S, const N: usize>(row: &[S], at: usize) -> &[[S; LANES]; N] {
    let (vectors, _) = row[at..].as_chunks();
    vectors.first_chunk().expect("the row reaches as far as the taps")
}

/// The first `8·N` elements.
#[inline(always)]
fn vectors_mut<S, const N: usize>(row: &mut [S]) -> &mut [[S; LANES]; N] {
    let (vectors, _) = row.as_chunks_mut();
    vectors.first_chunk_mut().expect("checked by the caller")
}

/// `lanes[u] += y[j] · row[j + u·distance]` for every tap u, element j going to lane j mod 8.
#[inline(always)]
pub(super) fn dots<S: Real, const FUSED: bool>(
    isa: Isa,
    y: &[S],
    distance: usize,
    row: &[S],
    lanes: &mut [[S; LANES]],
) {
    // The largest number of taps whose sums, with one `y`, fit into the registers.
    let most = if size_of::<S>() == 4 { DOT_TAPS } else { DOT_TAPS / 2 };
    for (i, lanes) in lanes.chunks_mut(most).enumerate() {
        let row = &row[i * most * distance..];
        match lanes.len() {
            1 => dots_block::<S, FUSED, 1>(isa, y, distance, row, lanes),
            2 => dots_block::<S, FUSED, 2>(isa, y, distance, row, lanes),
            3 => dots_block::<S, FUSED, 3>(isa, y, distance, row, lanes),
            4 => dots_block::<S, FUSED, 4>(isa, y, distance, row, lanes),
            5 => dots_block::<S, FUSED, 5>(isa, y, distance, row, lanes),
            6 => dots_block::<S, FUSED, 6>(isa, y, distance, row, lanes),
            7 => dots_block::<S, FUSED, 7>(isa, y, distance, row, lanes),
            _ => dots_block::<S, FUSED, DOT_TAPS>(isa, y, distance, row, lanes),
        }
    }
}

#[inline(always)]
fn dots_block<S: Real, const FUSED: bool, const TAPS: usize>(
    isa: Isa,
    y: &[S],
    distance: usize,
    row: &[S],
    lanes: &mut [[S; LANES]],
) {
    let Some(lanes) = lanes.first_chunk_mut::<TAPS>() else { return };
    let (whole, rest) = y.as_chunks::<LANES>();
    // One check for all that follows.
    let row = &row[..y.len() + (TAPS - 1) * distance];
    #[cfg(target_arch = "x86_64")]
    let done = avx2::dots(isa, whole, distance, row, lanes);
    #[cfg(not(target_arch = "x86_64"))]
    let done = isa.has_avx2();
    if !done {
        for (j, y) in whole.iter().enumerate() {
            for (u, sums) in lanes.iter_mut().enumerate() {
                let [row] = vectors::<S, 1>(row, j * LANES + u * distance);
                for i in 0..LANES {
                    sums[i] = multiply_add::<S, FUSED>(y[i], row[i], sums[i]);
                }
            }
        }
    }
    let at = whole.len() * LANES;
    for (i, &y) in rest.iter().enumerate() {
        for (u, sums) in lanes.iter_mut().enumerate() {
            sums[i] = multiply_add::<S, FUSED>(y, row[at + i + u * distance], sums[i]);
        }
    }
}

/// The dot products with intrinsics: from plain loads of overlapping stretches the compiler makes
/// fewer loads and many shuffles, at half the speed.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Isa, LANES};
    use crate::dtype::{DType, Real};
    use std::arch::x86_64::*;

    /// The whole vectors of [`super::dots`], or false where the machine has no AVX2.
    #[inline(always)]
    pub(super) fn dots<S: Real, const TAPS: usize>(
        isa: Isa,
        y: &[[S; LANES]],
        distance: usize,
        row: &[S],
        lanes: &mut [[S; LANES]; TAPS],
    ) -> bool {
        if !isa.has_avx2() {
            return false;
        }
        assert!(row.len() >= y.len() * LANES + (TAPS - 1) * distance);
        let lanes = lanes.as_flattened_mut();
        if S::DTYPE == DType::F32 {
            let (row, lanes) = (bytemuck::cast_slice(row), bytemuck::cast_slice_mut(lanes));
            let y = bytemuck::cast_slice(y.as_flattened());
            // SAFETY: an `Isa` with AVX2 is made only after the machine was asked for AVX2 and
            // FMA; the length was checked above.
            unsafe {
                match distance {
                    1 => dots_f32::<TAPS>(y, 1, row, lanes),
                    _ => dots_f32::<TAPS>(y, distance, row, lanes),
                }
            }
        } else {
            let (row, lanes) = (bytemuck::cast_slice(row), bytemuck::cast_slice_mut(lanes));
            let y = bytemuck::cast_slice(y.as_flattened());
            // SAFETY: as above.
            unsafe { dots_f64::<TAPS>(y, distance, row, lanes) }
        }
        true
    }

    /// # Safety
    ///
    /// The row has `y.len() + (TAPS - 1)·distance` elements, `y` whole vectors.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn dots_f32<const TAPS: usize>(
        y: &[f32],
        distance: usize,
        row: &[f32],
        lanes: &mut [f32],
    ) {
        let mut sums = [_mm256_setzero_ps(); TAPS];
        for (sum, lanes) in sums.iter_mut().zip(lanes.as_chunks::<LANES>().0) {
            // SAFETY: a whole vector.
            *sum = unsafe { _mm256_loadu_ps(lanes.as_ptr()) };
        }
        for at in (0..y.len()).step_by(LANES) {
            // SAFETY: `at + LANES` is within `y`, and so within the row at every tap.
            unsafe {
                let y = _mm256_loadu_ps(y.as_ptr().add(at));
                for (u, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_loadu_ps(row.as_ptr().add(at + u * distance));
                    *sum = _mm256_fmadd_ps(y, x, *sum);
                }
            }
        }
        for (sum, lanes) in sums.iter().zip(lanes.as_chunks_mut::<LANES>().0) {
            // SAFETY: a whole vector.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), *sum) };
        }
    }

    /// # Safety
    ///
    /// The row has `y.len() + (TAPS - 1)·distance` elements, `y` whole vectors.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn dots_f64<const TAPS: usize>(
        y: &[f64],
        distance: usize,
        row: &[f64],
        lanes: &mut [f64],
    ) {
        let mut sums = [[_mm256_setzero_pd(); 2]; TAPS];
        for (sum, lanes) in sums.as_flattened_mut().iter_mut().zip(lanes.as_chunks::<4>().0) {
            // SAFETY: a whole vector.
            *sum = unsafe { _mm256_loadu_pd(lanes.as_ptr()) };
        }
        for at in (0..y.len()).step_by(LANES) {
            // SAFETY: `at + LANES` is within `y`, and so within the row at every tap.
            unsafe {
                let y0 = _mm256_loadu_pd(y.as_ptr().add(at));
                let y1 = _mm256_loadu_pd(y.as_ptr().add(at + 4));
                for (u, sums) in sums.iter_mut().enumerate() {
                    let x = row.as_ptr().add(at + u * distance);
                    sums[0] = _mm256_fmadd_pd(y0, _mm256_loadu_pd(x), sums[0]);
                    sums[1] = _mm256_fmadd_pd(y1, _mm256_loadu_pd(x.add(4)), sums[1]);
                }
            }
        }
        for (sum, lanes) in sums.as_flattened().iter().zip(lanes.as_chunks_mut::<4>().0) {
            // SAFETY: a whole vector.
            unsafe { _mm256_storeu_pd(lanes.as_mut_ptr(), *sum) };
        }
    }
}
