//! The weight gradient: dot products of the rows of `dy` with shifts of the rows of `x`, a few
//! channels at a time through all samples, so that memory is read in stretches of some rows.

use super::{BUFFER, CHUNK, GROUP, Reach, SPAN, line, tap_classes, with_isa};
use crate::device::cpu::conv::lines::{LANES, dots, prefetch};
use crate::device::cpu::conv::product::{Call, tap_period};
use crate::device::cpu::conv::unfold::Window;
use crate::device::cpu::gemm::widened;
use crate::dtype::Float;
use num_traits::Zero;
use rayon::prelude::*;

/// Most taps of a channel that one task takes.
const TAPS: usize = 64;
/// The same where there are too few channels for all threads.
const FEW_TAPS: usize = 8;
/// Dot products that one task keeps.
const DOTS: usize = 128;
/// Chunks after which the lanes of a dot product are added to their totals, so that no sum grows
/// much longer than the terms it is made of.
const FLUSH: usize = 64;

/// All of `dw`: some channels a task, or, where channels are few, some taps of one. The sums of a
/// tap do not depend on what else is in its task.
pub(super) fn weight_gradient<T: Float>(call: &Call<'_, T>, out: &mut [T]) {
    let g = call.geometry;
    let kernel = g.kernel;
    let few = g.out_channels < 2 * call.threads;
    let taps = kernel.min(if few { FEW_TAPS } else { TAPS });
    let shared = g.out_channels.div_ceil(4 * call.threads.max(1));
    let channels = if taps < kernel { 1 } else { shared.clamp(1, DOTS / taps).min(16) };
    out.par_chunks_mut(channels * kernel).enumerate().for_each(|(i, out)| {
        if taps == kernel {
            return some_weights(call, (i * channels, 0), taps, out);
        }
        let pieces = out.par_chunks_mut(taps).enumerate();
        pieces.for_each(|(p, out)| some_weights(call, (i, p * taps), out.len(), out));
    });
}

/// `taps` weights from `place.1` on of the channels from `place.0` on.
fn some_weights<T: Float>(call: &Call<'_, T>, place: (usize, usize), taps: usize, out: &mut [T]) {
    with_isa!(call, some_weights_body(
        call: &Call<'_, T>,
        place: (usize, usize),
        taps: usize,
        out: &mut [T]
    ));
}

#[inline(always)]
fn some_weights_body<T: Float, const FUSED: bool>(
    call: &Call<'_, T>,
    (first, tap): (usize, usize),
    taps: usize,
    out: &mut [T],
) {
    let g = call.geometry;
    let multiplier = g.out_channels / g.groups;
    let period = tap_period(g);
    let channels = out.len() / taps;
    let classes = tap_classes(g, period, tap..tap + taps);
    let single = period.min(taps) == 1 && g.out_length <= CHUNK;
    let mut buffer = [T::Sum::zero(); BUFFER];
    let mut y_buffer = [T::Sum::zero(); CHUNK];
    let mut totals = [[T::Sum::zero(); LANES]; DOTS];
    let mut lanes = totals;
    let used = ..channels * taps;
    let input = |o: usize| if multiplier == 1 { o } else { o / multiplier };
    let (mut held, mut fresh) = (0, true);
    for n in 0..g.batch {
        for start in (0..g.out_length).step_by(CHUNK) {
            let count = CHUNK.min(g.out_length - start);
            let mut slot = 0;
            for (_, window) in classes.clone() {
                let distance = window.tap_step as usize / window.step;
                let all = (window.taps - 1) * distance <= SPAN - CHUNK;
                let block = if all { window.taps } else { (SPAN - CHUNK) / distance + 1 };
                for done in (0..window.taps).step_by(block) {
                    let some = block.min(window.taps - done);
                    let offset = window.offset + done as isize * window.tap_step;
                    let width = count + (some - 1) * distance;
                    let reach = Reach::new::<T>(&Window { offset, ..window }, start, width);
                    let at_once = if width <= BUFFER / GROUP { GROUP } else { BUFFER / SPAN };
                    let fresh = fresh || !single || !all;
                    let x =
                        |i: usize| line(call.a, g.in_length, n * g.in_channels + input(first + i));
                    let mut channel = 0;
                    while channel < channels {
                        let next = channels.min(channel + at_once);
                        let copied = if reach.in_place { channel..channel } else { channel..next };
                        for (c, to) in copied.zip(buffer.chunks_exact_mut(width)) {
                            reach.gather(x(c), to, fresh);
                        }
                        for (c, copied) in (channel..next).zip(buffer.chunks_exact(width)) {
                            let x = x(c);
                            let dy = line(call.b, g.out_length, n * g.out_channels + first + c);
                            if g.out_length <= CHUNK {
                                prefetch(x, g.in_channels * g.in_length);
                                prefetch(dy, g.out_channels * g.out_length);
                            }
                            let dy = widened(&dy[start..][..count], &mut y_buffer);
                            let lanes = &mut lanes[c * taps + slot..][..some];
                            dots::<T::Sum, FUSED>(
                                call.isa,
                                dy,
                                distance,
                                reach.get(x, copied),
                                lanes,
                            );
                        }
                        channel = next;
                    }
                    slot += some;
                }
            }
            fresh = false;
            held += 1;
            if held == FLUSH {
                flush::<T>(&mut lanes[used], &mut totals[used]);
                held = 0;
            }
        }
    }
    flush::<T>(&mut lanes[used], &mut totals[used]);
    for (out, totals) in out.chunks_mut(taps).zip(totals.chunks(taps)) {
        // Classes one after another, as above.
        let order = classes
            .clone()
            .flat_map(|(first, window)| (0..window.taps).map(move |u| first + u * period - tap));
        for (to, total) in order.zip(totals) {
            let sum: T::Sum = total.iter().copied().sum();
            out[to] = T::narrow(sum);
        }
    }
}

fn flush<T: Float>(lanes: &mut [[T::Sum; LANES]], totals: &mut [[T::Sum; LANES]]) {
    for (lanes, totals) in lanes.iter_mut().zip(totals) {
        for i in 0..LANES {
            totals[i] += lanes[i];
            lanes[i] = T::Sum::zero();
        }
    }
}
