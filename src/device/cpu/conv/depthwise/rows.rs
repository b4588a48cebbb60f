//! Rows of a row times some taps: the forward pass and the input gradient.

use super::{BUFFER, CHUNK, GROUP, Reach, SPAN, line, narrow_strided, tap_classes, with_isa};
use crate::device::cpu::conv::lines::{Taps, correlate};
use crate::device::cpu::conv::product::{Call, phases, tap_period};
use crate::device::cpu::conv::unfold::Window;
use crate::device::spec::ConvPass;
use crate::dtype::Float;
use num_traits::Zero;
use rayon::prelude::*;
use std::ops::Range;

/// Taps that are handled at a time.
const TAPS: usize = 64;
/// Longest stretch of a row that one task takes.
const PIECE: usize = 8192;

/// Small buffers of one task.
struct Scratch<S> {
    rows: [S; BUFFER],
    sums: [S; GROUP * CHUNK],
    taps: [S; TAPS],
}

impl<S: Copy + Zero> Scratch<S> {
    fn new() -> Self {
        Scratch { rows: [S::zero(); _], sums: [S::zero(); _], taps: [S::zero(); _] }
    }
}

/// The rows of `y` or of `dx`, in parallel.
pub(super) fn by_rows<T: Float>(call: &Call<'_, T>, length: usize, out: &mut [T]) {
    // A task of a few microseconds at least, whose rows stay in the cache.
    let rows = if length > PIECE { 1 } else { (1 << 15) / (length * call.geometry.kernel) + 1 };
    out.par_chunks_mut(rows * length).enumerate().for_each_init(
        Scratch::new,
        |scratch, (i, out)| {
            if length <= PIECE {
                return some_rows(call, (i * rows, 0), length, out, scratch);
            }
            let pieces = out.par_chunks_mut(PIECE).enumerate();
            pieces.for_each_init(Scratch::new, |scratch, (p, out)| {
                some_rows(call, (i, p * PIECE), out.len(), out, scratch);
            });
        },
    );
}

/// Rows from `place.0` on, of each the `length` elements from `place.1` on.
fn some_rows<T: Float>(
    call: &Call<'_, T>,
    place: (usize, usize),
    length: usize,
    out: &mut [T],
    scratch: &mut Scratch<T::Sum>,
) {
    with_isa!(call, some_rows_body(
        call: &Call<'_, T>,
        place: (usize, usize),
        length: usize,
        out: &mut [T],
        scratch: &mut Scratch<T::Sum>
    ));
}

#[inline(always)]
fn some_rows_body<T: Float, const FUSED: bool>(
    call: &Call<'_, T>,
    (row, start): (usize, usize),
    length: usize,
    out: &mut [T],
    scratch: &mut Scratch<T::Sum>,
) {
    let g = call.geometry;
    let end = start + length;
    if call.pass == ConvPass::Forward {
        let target = Target { row, length, first: 0, step: 1, positions: start..end };
        let period = tap_period(g);
        let single = period.min(g.kernel) == 1;
        let classes = tap_classes(g, period, 0..g.kernel).map(|(tap, window)| Part {
            distance: window.tap_step as usize / window.step,
            window,
            tap,
            tap_step: period as isize,
        });
        return rows_of_parts::<T, FUSED>(call, classes, single, target, out, scratch);
    }
    for phase in phases(g) {
        let position = |at: usize| match g.stride {
            1 => at,
            stride => at.saturating_sub(phase.first).div_ceil(stride),
        };
        let positions = position(start)..position(end).min(phase.count);
        if positions.is_empty() {
            continue;
        }
        let first = phase.first + positions.start * g.stride - start;
        let target = Target { row, length, first, step: g.stride, positions };
        // Taps in reverse order, so that their places grow. A phase that no tap reaches is zero.
        let part = (phase.window.taps > 0).then(|| {
            let last = phase.window.taps - 1;
            let tap_step = -phase.window.tap_step;
            let offset = phase.window.offset - last as isize * tap_step;
            Part {
                window: Window { tap_step, offset, ..phase.window },
                distance: tap_step as usize,
                tap: phase.tap + last * phase.tap_step,
                tap_step: -(phase.tap_step as isize),
            }
        });
        rows_of_parts::<T, FUSED>(call, part.into_iter(), true, target, out, scratch);
    }
}

/// Where the sums of some positions go.
struct Target {
    /// First row.
    row: usize,
    /// From one row to the next in what is written.
    length: usize,
    /// Where the first position is, in every row of it.
    first: usize,
    /// From one position to the next.
    step: usize,
    /// The positions.
    positions: Range<usize>,
}

/// Some taps at equal distances.
#[derive(Clone, Copy)]
struct Part {
    /// How positions and taps meet the elements of a row, at growing places.
    window: Window,
    /// Positions from one tap to the next.
    distance: usize,
    /// The weight of the first tap.
    tap: usize,
    /// From one weight to the next.
    tap_step: isize,
}

/// All sums of a target: a chunk at a time of long rows, short rows in groups.
#[inline(always)]
fn rows_of_parts<T: Float, const FUSED: bool>(
    call: &Call<'_, T>,
    parts: impl Iterator<Item = Part> + Clone,
    single: bool,
    target: Target,
    out: &mut [T],
    scratch: &mut Scratch<T::Sum>,
) {
    let Target { row, length, first, step, positions } = target;
    let in_place = step == 1 && size_of::<T>() == size_of::<T::Sum>();
    // The padding of the first group serves all when the parts do not take turns.
    let keep = single && positions.len() <= CHUNK;
    let mut fresh = true;
    for (i, out) in out.chunks_mut(GROUP * length).enumerate() {
        let rows = row + i * GROUP..row + i * GROUP + out.len() / length;
        let mut at = positions.start;
        while at < positions.end {
            let count = CHUNK.min(positions.end - at);
            let to = &mut out[first + (at - positions.start) * step..];
            let Scratch { rows: buffer, taps, sums } = scratch;
            let places = (rows.clone(), at..at + count);
            let (parts, scratch) = (parts.clone(), (buffer, taps));
            if in_place {
                let sums = bytemuck::cast_slice_mut(to);
                group::<T, FUSED>(call, parts, places, fresh, scratch, sums, length);
            } else {
                group::<T, FUSED>(call, parts, places, fresh, scratch, sums, CHUNK);
                for (to, sums) in to.chunks_mut(length).zip(sums.chunks(CHUNK)) {
                    narrow_strided(&sums[..count], step, to);
                }
            }
            fresh = !keep;
            at += count;
        }
    }
}

/// The sums at `places` of some rows, row i at `to[i·pitch..]`.
#[inline(always)]
fn group<T: Float, const FUSED: bool>(
    call: &Call<'_, T>,
    parts: impl Iterator<Item = Part> + Clone,
    (rows, places): (Range<usize>, Range<usize>),
    fresh: bool,
    (buffer, taps): (&mut [T::Sum; BUFFER], &mut [T::Sum; TAPS]),
    to: &mut [T::Sum],
    pitch: usize,
) {
    let g = call.geometry;
    let multiplier = g.out_channels / g.groups;
    let forward = call.pass == ConvPass::Forward;
    let (sources, channels) = if forward { (1, g.out_channels) } else { (multiplier, g.groups) };
    let count = places.len();
    let first_channel = rows.start % channels;
    let mut begun = false;
    for source in 0..sources {
        // Divisions are slow beside a short row: none where they can be avoided.
        let from = |row: usize| match multiplier {
            1 => row,
            _ if forward => row / multiplier,
            _ => row * multiplier + source,
        };
        for part in parts.clone() {
            let Part { window, distance, tap, tap_step } = part;
            let all = window.taps <= TAPS && (window.taps - 1) * distance <= SPAN - CHUNK;
            let block = if all { window.taps } else { ((SPAN - CHUNK) / distance + 1).min(TAPS) };
            let mut done = 0;
            while done < window.taps {
                let some = block.min(window.taps - done);
                let offset = window.offset + done as isize * window.tap_step;
                let width = count + (some - 1) * distance;
                let at_once = if width <= BUFFER / GROUP { GROUP } else { BUFFER / SPAN };
                let reach = Reach::new::<T>(&Window { offset, ..window }, places.start, width);
                let fresh = fresh || !all;
                let first_tap = tap.wrapping_add_signed(done as isize * tap_step);
                let mut channel = first_channel;
                let mut row = rows.start;
                while row < rows.end {
                    let next = rows.end.min(row + at_once);
                    let copied = if reach.in_place { row..row } else { row..next };
                    for (r, to) in copied.zip(buffer.chunks_exact_mut(width)) {
                        reach.gather(line(call.a, window.length, from(r)), to, fresh);
                    }
                    for (r, copied) in (row..next).zip(buffer.chunks_exact(width)) {
                        let o = if forward { channel } else { channel * multiplier + source };
                        channel = if channel + 1 == channels { 0 } else { channel + 1 };
                        let w = line(call.b, g.kernel, o);
                        let taps = if size_of::<T>() == size_of::<T::Sum>() {
                            let weights = bytemuck::cast_slice(w);
                            Taps {
                                weights,
                                first: first_tap,
                                step: tap_step,
                                count: some,
                                distance,
                            }
                        } else {
                            for (u, to) in taps[..some].iter_mut().enumerate() {
                                let at = first_tap.wrapping_add_signed(u as isize * tap_step);
                                *to = w[at].widen();
                            }
                            Taps { weights: &taps[..], first: 0, step: 1, count: some, distance }
                        };
                        let start = match call.bias {
                            _ if begun => None,
                            Some(bias) => Some(bias[o].widen()),
                            None => Some(T::Sum::zero()),
                        };
                        let x = reach.get(line(call.a, window.length, from(r)), copied);
                        let sums = &mut to[(r - rows.start) * pitch..][..count];
                        correlate::<T::Sum, FUSED>(taps, x, start, sums);
                    }
                    row = next;
                }
                begun = true;
                done += some;
            }
        }
    }
    if !begun {
        for row in to.chunks_mut(pitch) {
            row[..count].fill(T::Sum::zero());
        }
    }
}
