//! Depthwise convolution (one input channel a group, any number of output channels): a row at a
//! time, copied with its padding into a small buffer on the stack, so that the arithmetic is plain
//! vector code without edges. Takes no workspace.

use super::lines::{DOT_TAPS, LANES, correlate, dots, prefetch};
use super::product::{Call, Phase, phases, tap_period};
use super::unfold::Window;
use crate::device::cpu::gemm::{BANDWIDTH, narrow_row, widen_row, widened};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::{DType, Float};
use num_traits::Zero;
use rayon::prelude::*;

/// Output positions handled at a time.
const CHUNK: usize = 256;
/// Elements of the buffer: a chunk and the reach of the taps that are handled with it.
const SPAN: usize = 512;
/// Taps whose weights are copied at a time.
const TAPS: usize = 64;
/// Longest stretch of a row that one task takes.
const PIECE: usize = 8192;
/// Chunks after which the lanes of a dot product are added to their totals, so that no sum grows
/// much longer than the terms it is made of.
const FLUSH: usize = 64;

/// Small buffers of one task.
struct Scratch<S> {
    row: [S; SPAN],
    sums: [S; CHUNK],
    taps: [S; TAPS],
}

impl<S: Copy + Zero> Scratch<S> {
    fn new() -> Self {
        Scratch { row: [S::zero(); SPAN], sums: [S::zero(); CHUNK], taps: [S::zero(); TAPS] }
    }
}

/// Predicted time of a pass.
pub(super) fn seconds(pass: ConvPass, g: &ConvGeometry, dtype: DType, threads: usize) -> f64 {
    let rows = (g.batch * g.out_channels) as f64;
    let terms = rows * g.out_length as f64 * g.kernel as f64;
    let width = if dtype == DType::F64 { 2.0 } else { 1.0 };
    let strided = if g.stride > 1 && pass != ConvPass::InputGradient {
        // The buffer is filled once a residue of the stride, element by element.
        tap_period(g).min(g.kernel) as f64
    } else {
        1.0
    };
    let convert = if dtype == DType::F16 { 3e-9 } else { 0.15e-9 };
    let fill = rows * (g.out_length + g.kernel * g.dilation.min(8)) as f64 * convert * strided;
    let work = terms * width / 22e9 + fill * width + rows * 25e-9 * width;
    let (x, y) = ((g.batch * g.in_channels * g.in_length) as f64, rows * g.out_length as f64);
    let moved = match pass {
        // What is written is read for ownership first.
        ConvPass::Forward => x + 2.0 * y,
        ConvPass::InputGradient => 2.0 * x + y,
        ConvPass::WeightGradient => x + y,
    };
    work / threads as f64 + moved * dtype.size() as f64 / BANDWIDTH + 8e-6
}

/// Runs a pass.
pub(super) fn run<T: Float>(call: &Call<'_, T>, out: &mut [T]) {
    let g = call.geometry;
    debug_assert_eq!(g.in_channels, g.groups);
    let period = tap_period(g);
    match call.pass {
        ConvPass::Forward => {
            for_pieces(g, g.out_length, out, |at, out, scratch| {
                forward(call, period, at, out, scratch);
            });
        }
        ConvPass::InputGradient => {
            for phase in phases(g) {
                for_pieces(g, g.in_length, out, |at, out, scratch| {
                    input_gradient(call, &phase, at, out, scratch);
                });
            }
        }
        ConvPass::WeightGradient => weight_gradient(call, period, out),
    }
}

/// Calls `piece((row, start), out, scratch)` for pieces of every row of `out`, in parallel.
fn for_pieces<T: Float>(
    g: &ConvGeometry,
    length: usize,
    out: &mut [T],
    piece: impl Fn((usize, usize), &mut [T], &mut Scratch<T::Sum>) + Sync,
) {
    // A task of a few microseconds at least.
    let rows = (1 << 15) / (length * g.kernel) + 1;
    out.par_chunks_mut(length).enumerate().with_min_len(rows).for_each_init(
        Scratch::new,
        |scratch, (r, row)| {
            if length <= PIECE {
                return piece((r, 0), row, scratch);
            }
            let pieces = row.par_chunks_mut(PIECE).enumerate();
            pieces.for_each(|(p, out)| piece((r, p * PIECE), out, &mut Scratch::new()));
        },
    );
}

/// Copies what positions `first..first + to.len()` meet at tap 0 into `to`, zero outside the row.
#[inline]
fn gather<T: Float>(row: &[T], window: &Window, first: usize, to: &mut [T::Sum]) {
    let inside = window.inside(0, first..first + to.len());
    let (before, rest) = to.split_at_mut(inside.start - first);
    let (middle, after) = rest.split_at_mut(inside.len());
    before.fill(T::Sum::zero());
    after.fill(T::Sum::zero());
    if middle.is_empty() {
        return;
    }
    let from = &row[window.start(inside.start) as usize..];
    if window.step == 1 {
        widen_row(&from[..middle.len()], middle);
    } else {
        for (to, from) in middle.iter_mut().zip(from.iter().step_by(window.step)) {
            *to = from.widen();
        }
    }
}

/// Adds the products of a row and some taps to the sums of `count` positions from `first` on.
/// The taps lie `distance` positions apart, at growing places.
fn add_taps<T: Float>(
    call: &Call<'_, T>,
    row: &[T],
    (window, distance): (Window, usize),
    (first, count): (usize, usize),
    weight: impl Fn(usize) -> T,
    scratch: &mut Scratch<T::Sum>,
) {
    // Divisions are slow beside a short row: none where all taps fit.
    let all = window.taps <= TAPS && (window.taps - 1) * distance <= SPAN - CHUNK;
    let block = if all { window.taps } else { ((SPAN - CHUNK) / distance + 1).min(TAPS) };
    let mut start = 0;
    while start < window.taps {
        let taps = block.min(window.taps - start);
        for (u, to) in scratch.taps[..taps].iter_mut().enumerate() {
            *to = weight(start + u).widen();
        }
        let offset = window.offset + start as isize * window.tap_step;
        let buffer = &mut scratch.row[..count + (taps - 1) * distance];
        gather(row, &Window { offset, ..window }, first, buffer);
        let sums = &mut scratch.sums[..count];
        correlate(call.isa, &scratch.taps[..taps], distance, buffer, sums);
        start += taps;
    }
}

/// The taps `taps.start..taps.end` by residue class: the first tap and the window of each.
fn tap_classes(
    g: &ConvGeometry,
    period: usize,
    taps: std::ops::Range<usize>,
) -> impl Iterator<Item = (usize, Window)> {
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

/// `y[r][start..]` for row `r` of all samples and channels.
fn forward<T: Float>(
    call: &Call<'_, T>,
    period: usize,
    (r, start): (usize, usize),
    out: &mut [T],
    scratch: &mut Scratch<T::Sum>,
) {
    let g = call.geometry;
    let (n, o) = (r / g.out_channels, r % g.out_channels);
    let c = o / (g.out_channels / g.groups);
    let x = &call.a[(n * g.in_channels + c) * g.in_length..][..g.in_length];
    let w = &call.b[o * g.kernel..][..g.kernel];
    let distance = if g.stride == 1 { g.dilation } else { period * g.dilation / g.stride };
    let bias = call.bias.map_or(T::Sum::zero(), |bias| bias[o].widen());
    for (i, out) in out.chunks_mut(CHUNK).enumerate() {
        let place = (start + i * CHUNK, out.len());
        scratch.sums[..out.len()].fill(bias);
        for (tap, window) in tap_classes(g, period, 0..g.kernel) {
            add_taps(call, x, (window, distance), place, |u| w[tap + u * period], scratch);
        }
        narrow_row(&scratch.sums[..out.len()], out);
    }
}

/// The positions of one phase in `dx[r][start..]`, for row `r` of all samples and channels.
fn input_gradient<T: Float>(
    call: &Call<'_, T>,
    phase: &Phase,
    (r, start): (usize, usize),
    out: &mut [T],
    scratch: &mut Scratch<T::Sum>,
) {
    let g = call.geometry;
    let multiplier = g.out_channels / g.groups;
    let (n, c) = (r / g.in_channels, r % g.in_channels);
    let first_row = n * g.out_channels + c * multiplier;
    let end = start + out.len();
    let last = phase.window.taps.wrapping_sub(1);
    // Taps in reverse order, so that their places grow.
    let tap_step = -phase.window.tap_step;
    let offset = phase.window.offset - last as isize * tap_step;
    let window = Window { tap_step, offset, ..phase.window };
    let distance = tap_step as usize;
    let position = |at: usize| match g.stride {
        1 => at,
        stride => at.saturating_sub(phase.first).div_ceil(stride),
    };
    let positions = position(start)..position(end).min(phase.count);
    let mut first = positions.start;
    while first < positions.end {
        let count = CHUNK.min(positions.end - first);
        scratch.sums[..count].fill(T::Sum::zero());
        // A phase that no tap reaches is zero.
        let channels = if phase.window.taps > 0 { multiplier } else { 0 };
        for o in 0..channels {
            let dy = &call.a[(first_row + o) * g.out_length..][..g.out_length];
            let w = &call.b[(c * multiplier + o) * g.kernel..][..g.kernel];
            let weight = |u: usize| w[phase.tap + (last - u) * phase.tap_step];
            add_taps(call, dy, (window, distance), (first, count), weight, scratch);
        }
        let to = &mut out[phase.first + first * g.stride - start..];
        first += count;
        if g.stride == 1 {
            narrow_row(&scratch.sums[..count], &mut to[..count]);
            continue;
        }
        for (to, &sum) in to.iter_mut().step_by(g.stride).zip(&scratch.sums[..count]) {
            *to = T::narrow(sum);
        }
    }
}

/// All of `dw`, a few taps of one channel a task.
fn weight_gradient<T: Float>(call: &Call<'_, T>, period: usize, out: &mut [T]) {
    let g = call.geometry;
    out.par_chunks_mut(g.kernel).enumerate().for_each(|(o, row)| {
        if row.len() <= DOT_TAPS {
            return few_taps(call, period, (o, 0), row);
        }
        let pieces = row.par_chunks_mut(DOT_TAPS).enumerate();
        pieces.for_each(|(p, out)| few_taps(call, period, (o, p * DOT_TAPS), out));
    });
}

/// `dw[o][start..]`, at most [`DOT_TAPS`] of them.
fn few_taps<T: Float>(
    call: &Call<'_, T>,
    period: usize,
    (o, start): (usize, usize),
    out: &mut [T],
) {
    let g = call.geometry;
    let c = o / (g.out_channels / g.groups);
    let mut x_buffer = [T::Sum::zero(); SPAN];
    let mut y_buffer = [T::Sum::zero(); CHUNK];
    for (tap, window) in tap_classes(g, period, start..start + out.len()) {
        let distance = window.tap_step as usize / window.step;
        let block = ((SPAN - CHUNK) / distance + 1).min(DOT_TAPS);
        for first_tap in (0..window.taps).step_by(block) {
            let taps = block.min(window.taps - first_tap);
            let offset = window.offset + first_tap as isize * window.tap_step;
            let window = Window { offset, ..window };
            let mut totals = [[T::Sum::zero(); LANES]; DOT_TAPS];
            let mut lanes = totals;
            let mut held = 0;
            for n in 0..g.batch {
                let x = &call.a[(n * g.in_channels + c) * g.in_length..][..g.in_length];
                let dy = &call.b[(n * g.out_channels + o) * g.out_length..][..g.out_length];
                prefetch(x, g.in_channels * g.in_length);
                prefetch(dy, g.out_channels * g.out_length);
                for (i, dy) in dy.chunks(CHUNK).enumerate() {
                    let dy = widened(dy, &mut y_buffer);
                    let x_buffer = &mut x_buffer[..dy.len() + (taps - 1) * distance];
                    gather(x, &window, i * CHUNK, x_buffer);
                    dots(call.isa, dy, distance, x_buffer, &mut lanes[..taps]);
                    held += 1;
                    if held == FLUSH {
                        flush::<T>(&mut lanes, &mut totals);
                        held = 0;
                    }
                }
            }
            flush::<T>(&mut lanes, &mut totals);
            for (u, total) in totals[..taps].iter().enumerate() {
                let sum: T::Sum = total.iter().copied().sum();
                out[tap - start + (first_tap + u) * period] = T::narrow(sum);
            }
        }
    }
}

fn flush<T: Float>(lanes: &mut [[T::Sum; LANES]], totals: &mut [[T::Sum; LANES]]) {
    for (lane, total) in lanes.iter_mut().flatten().zip(totals.iter_mut().flatten()) {
        *total += *lane;
        *lane = T::Sum::zero();
    }
}
