//! Vector arithmetic along a row, for the depthwise form: a row times a few taps, and the dot
//! products of a row with its own shifts. Written once, compiled with and without AVX2.

use crate::device::cpu::gemm::Isa;
use crate::dtype::Real;

/// Most taps that [`dots`] handles at a time.
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

/// `sums[j] += Σ_u taps[u] · row[j + u·distance]`.
pub(super) fn correlate<S: Real>(isa: Isa, taps: &[S], distance: usize, row: &[S], sums: &mut [S]) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: an `Isa` with AVX2 is made only after the machine was asked for AVX2 and FMA.
        return unsafe { correlate_avx2(taps, distance, row, sums) };
    }
    let _ = isa;
    correlate_body::<S, false>(taps, distance, row, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn correlate_avx2<S: Real>(taps: &[S], distance: usize, row: &[S], sums: &mut [S]) {
    correlate_body::<S, true>(taps, distance, row, sums);
}

#[inline(always)]
fn correlate_body<S: Real, const FUSED: bool>(
    taps: &[S],
    distance: usize,
    row: &[S],
    sums: &mut [S],
) {
    let mut at = 0;
    let (wide, rest) = sums.as_chunks_mut::<32>();
    for sums in wide {
        correlate_block::<S, FUSED, 32>(taps, distance, &row[at..], sums);
        at += 32;
    }
    let (narrow, rest) = rest.as_chunks_mut::<8>();
    for sums in narrow {
        correlate_block::<S, FUSED, 8>(taps, distance, &row[at..], sums);
        at += 8;
    }
    for sum in rest {
        for (u, &tap) in taps.iter().enumerate() {
            *sum = multiply_add::<S, FUSED>(tap, row[at + u * distance], *sum);
        }
        at += 1;
    }
}

#[inline(always)]
fn correlate_block<S: Real, const FUSED: bool, const N: usize>(
    taps: &[S],
    distance: usize,
    row: &[S],
    to: &mut [S; N],
) {
    let mut sums = *to;
    for (u, &tap) in taps.iter().enumerate() {
        let row = block::<S, N>(row, u * distance);
        for i in 0..N {
            sums[i] = multiply_add::<S, FUSED>(tap, row[i], sums[i]);
        }
    }
    *to = sums;
}

/// `row[at..at + N]`, of a length that the compiler knows.
#[inline(always)]
fn block<S, const N: usize>(row: &[S], at: usize) -> &[S; N] {
    row[at..].first_chunk().expect("the row reaches as far as the taps")
}

/// `lanes[u] += y[j] · row[j + u·distance]` for every tap u, element j going to lane j mod 8.
pub(super) fn dots<S: Real>(
    isa: Isa,
    y: &[S],
    distance: usize,
    row: &[S],
    lanes: &mut [[S; LANES]],
) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx2() {
        // SAFETY: an `Isa` with AVX2 is made only after the machine was asked for AVX2 and FMA.
        return unsafe { dots_avx2(y, distance, row, lanes) };
    }
    let _ = isa;
    dots_body::<S, false>(y, distance, row, lanes);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn dots_avx2<S: Real>(y: &[S], distance: usize, row: &[S], lanes: &mut [[S; LANES]]) {
    dots_body::<S, true>(y, distance, row, lanes);
}

#[inline(always)]
fn dots_body<S: Real, const FUSED: bool>(
    y: &[S],
    distance: usize,
    row: &[S],
    lanes: &mut [[S; LANES]],
) {
    match lanes.len() {
        1 => dots_block::<S, FUSED, 1>(y, distance, row, lanes),
        2 => dots_block::<S, FUSED, 2>(y, distance, row, lanes),
        3 => dots_block::<S, FUSED, 3>(y, distance, row, lanes),
        4 => dots_block::<S, FUSED, 4>(y, distance, row, lanes),
        5 => dots_block::<S, FUSED, 5>(y, distance, row, lanes),
        6 => dots_block::<S, FUSED, 6>(y, distance, row, lanes),
        7 => dots_block::<S, FUSED, 7>(y, distance, row, lanes),
        _ => dots_block::<S, FUSED, DOT_TAPS>(y, distance, row, lanes),
    }
}

#[inline(always)]
fn dots_block<S: Real, const FUSED: bool, const TAPS: usize>(
    y: &[S],
    distance: usize,
    row: &[S],
    lanes: &mut [[S; LANES]],
) {
    let Some(lanes) = lanes.first_chunk_mut::<TAPS>() else { return };
    let mut sums = *lanes;
    let (whole, rest) = y.as_chunks::<LANES>();
    for (j, y) in whole.iter().enumerate() {
        for (u, sums) in sums.iter_mut().enumerate() {
            let row = block::<S, LANES>(row, j * LANES + u * distance);
            for i in 0..LANES {
                sums[i] = multiply_add::<S, FUSED>(y[i], row[i], sums[i]);
            }
        }
    }
    let at = whole.len() * LANES;
    for (i, &y) in rest.iter().enumerate() {
        for (u, sums) in sums.iter_mut().enumerate() {
            sums[i] = multiply_add::<S, FUSED>(y, row[at + i + u * distance], sums[i]);
        }
    }
    *lanes = sums;
}
