//! Depthwise convolution (one input channel a group, any number of output channels): rows are copied
//! with their padding into a small buffer on the stack, so that the arithmetic is plain vector code
//! without edges; a stretch that needs no padding is read where it is. Several rows are copied
//! before the first is used: a load that lies across two stores that have not left the core yet
//! waits for both. Takes no workspace.

mod rows;
mod weights;

use super::lines::LANES;
use super::product::{Call, tap_period};
use super::unfold::Window;
use crate::device::cpu::gemm::{BANDWIDTH, narrow_row, widen_row};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::{DType, Float};
use num_traits::Zero;
use std::ops::Range;

/// Output positions handled at a time.
const CHUNK: usize = 256;
/// Elements of one row in the buffer: a chunk and the reach of the taps that are handled with it.
const SPAN: usize = 512;
/// Elements of the buffer.
const BUFFER: usize = 4 * SPAN;
/// Rows that are copied before the first is used, when they are short enough for the buffer.
const GROUP: usize = 8;

/// Predicted time of a pass. Measured on one Zen 3 core.
pub(super) fn seconds(pass: ConvPass, g: &ConvGeometry, dtype: DType, threads: usize) -> f64 {
    let rows = (g.batch * g.out_channels) as f64;
    let (x, y) = ((g.batch * g.in_channels * g.in_length) as f64, rows * g.out_length as f64);
    let width = if dtype == DType::F64 { 2.0 } else { 1.0 };
    let gradient = pass == ConvPass::InputGradient;
    let (length, turns) = match gradient {
        // A strided gradient takes the residues of the stride one after another, and writes
        // element by element.
        true => (g.in_length, g.stride),
        false => (g.out_length, tap_period(g).min(g.kernel)),
    };
    let filled = rows * (g.out_length + g.kernel * g.dilation.min(8)) as f64 * turns as f64;
    let fill = match (g.stride, gradient) {
        (1, _) => filled * 0.05e-9,
        (_, false) => filled * 0.3e-9,
        (_, true) => filled * 0.05e-9 + x * 0.5e-9,
    };
    let convert = match dtype {
        DType::F16 => 0.3e-9,
        DType::BF16 => 0.17e-9,
        _ => 0.0,
    };
    // Ends that are not a whole vector.
    let row = if length.is_multiple_of(LANES) { 12e-9 } else { 22e-9 };
    let products = y * g.kernel as f64 / 30e9;
    let work = (products + fill + rows * turns as f64 * row) * width + (x + y) * convert;
    // Reading, writing and arithmetic overlap, so that half of the plain cost of memory shows.
    work / threads as f64 + (x + y) * dtype.size() as f64 / (2.0 * BANDWIDTH) + 8e-6
}

/// Compiles the body of a task with and without AVX2 and calls the form for this machine.
macro_rules! with_isa {
    ($call:expr, $body:ident($($arg:ident: $kind:ty),*)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2<T: Float>($($arg: $kind),*) {
            $body::<T, true>($($arg),*);
        }
        #[cfg(target_arch = "x86_64")]
        if $call.isa.has_avx2() {
            // SAFETY: an `Isa` with AVX2 is made only after the machine was asked for AVX2 and FMA.
            return unsafe { avx2::<T>($($arg),*) };
        }
        $body::<T, false>($($arg),*);
    }};
}
use with_isa;

/// Runs a pass.
pub(super) fn run<T: Float>(call: &Call<'_, T>, out: &mut [T]) {
    let g = call.geometry;
    debug_assert_eq!(g.in_channels, g.groups);
    match call.pass {
        ConvPass::Forward => rows::by_rows(call, g.out_length, out),
        ConvPass::InputGradient => rows::by_rows(call, g.in_length, out),
        ConvPass::WeightGradient => weights::weight_gradient(call, out),
    }
}

/// The taps `taps.start..taps.end` by residue class: the first tap and the window of each.
#[inline(always)]
fn tap_classes(
    g: &ConvGeometry,
    period: usize,
    taps: Range<usize>,
) -> impl Iterator<Item = (usize, Window)> + Clone {
    let g = *g;
    let end = taps.end;
    (taps.start..end.min(taps.start + period)).map(move |tap| {
        let window = Window {
            step: g.stride,
            tap_step: (period * g.dilation) as isize,
            offset: (tap * g.dilation) as isize - g.pad_left as isize,
            taps: if period == 1 { end - tap } else { (end - 1 - tap) / period + 1 },
            length: g.in_length,
        };
        (tap, window)
    })
}

/// Row `at` of rows of `length` elements.
#[inline(always)]
fn line<T>(data: &[T], length: usize, at: usize) -> &[T] {
    &data[at * length..][..length]
}

/// Every `step`-th element of `from`, as many as `to` holds.
#[inline(always)]
fn widen_strided<T: Float>(from: &[T], step: usize, to: &mut [T::Sum]) {
    match step {
        1 => widen_row(&from[..to.len()], to),
        2 => {
            // Whole pairs, which the compiler takes apart with shuffles; the last element may lack
            // its neighbour.
            let Some((last, to)) = to.split_last_mut() else { return };
            *last = from[2 * to.len()].widen();
            for (to, pair) in to.iter_mut().zip(from.as_chunks::<2>().0) {
                *to = pair[0].widen();
            }
        }
        _ => {
            for (to, from) in to.iter_mut().zip(from.chunks(step)) {
                *to = from[0].widen();
            }
        }
    }
}

/// The reverse: every `step`-th element of `to`.
#[inline(always)]
fn narrow_strided<T: Float>(from: &[T::Sum], step: usize, to: &mut [T]) {
    match step {
        1 => narrow_row(from, &mut to[..from.len()]),
        2 => {
            let Some((&last, from)) = from.split_last() else { return };
            to[2 * from.len()] = T::narrow(last);
            for (pair, &from) in to.as_chunks_mut::<2>().0.iter_mut().zip(from) {
                pair[0] = T::narrow(from);
            }
        }
        _ => {
            for (to, &from) in to.chunks_mut(step).zip(from) {
                to[0] = T::narrow(from);
            }
        }
    }
}

/// What consecutive positions meet at tap 0, the same in every row: zeros, elements, zeros.
struct Reach {
    /// The positions (from the first one) that meet elements.
    inside: Range<usize>,
    /// The first element.
    at: usize,
    /// From one element to the next.
    step: usize,
    /// Whether all positions can be read in place: no zeros, no gaps and no conversion.
    in_place: bool,
}

impl Reach {
    #[inline(always)]
    fn new<T: Float>(window: &Window, first: usize, width: usize) -> Self {
        let inside = window.inside(0, first..first + width);
        let at = if inside.is_empty() { 0 } else { window.start(inside.start) as usize };
        let plain = window.step == 1 && size_of::<T>() == size_of::<T::Sum>();
        let in_place = plain && inside.len() == width;
        let inside = inside.start - first..inside.end - first;
        Reach { inside, at, step: window.step, in_place }
    }

    /// Copies the positions; zeros only when asked to.
    #[inline(always)]
    fn gather<T: Float>(&self, row: &[T], to: &mut [T::Sum], zeros: bool) {
        if zeros {
            to[..self.inside.start].fill(T::Sum::zero());
            to[self.inside.end..].fill(T::Sum::zero());
        }
        if !self.inside.is_empty() {
            widen_strided(&row[self.at..], self.step, &mut to[self.inside.clone()]);
        }
    }

    /// The positions, in place or where they were copied to.
    #[inline(always)]
    fn get<'a, T: Float>(&self, row: &'a [T], copied: &'a [T::Sum]) -> &'a [T::Sum] {
        if self.in_place {
            return &bytemuck::cast_slice(row)[self.at..][..self.inside.len()];
        }
        copied
    }
}
