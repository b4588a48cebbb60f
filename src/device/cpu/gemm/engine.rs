//! The loop nest: each task owns a rectangle of the output (or one piece of its sums), packs the
//! panels it needs into its own slot of the workspace and runs over k itself. The order in which
//! anything is added up therefore follows from the block sizes alone, never from the threads.

use super::blocks::{Blocks, Shape};
use super::kernel::{Isa, MAX_NR, MR, Tile, multiply_tile, tile_columns};
use super::sink::{Layout, Output, Place, Sink};
use super::source::Source;
use crate::dtype::Real;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Multiply-adds below which waking another thread costs more than it gains.
const SERIAL_BELOW: f64 = 60e3;

/// One product, ready to run.
pub(crate) struct Job<'a, S> {
    /// Its sizes.
    pub(crate) shape: Shape,
    /// How it is cut.
    pub(crate) blocks: Blocks,
    /// The left operand.
    pub(crate) a: &'a dyn Source<S>,
    /// The right operand.
    pub(crate) b: &'a dyn Source<S>,
    /// The output.
    pub(crate) c: &'a dyn Sink<S>,
    /// The instructions to use.
    pub(crate) isa: Isa,
}

/// Panels on the stack, for products that may take no workspace.
#[repr(align(64))]
struct Stack([u64; STACK_BYTES / 8]);

/// Bytes of a task's panels on the stack; what [`Blocks::on_stack`] needs at most.
pub(crate) const STACK_BYTES: usize = 64 << 10;

impl<S: Real> Job<'_, S> {
    /// Runs the product in slots cut from `workspace` (one a concurrent task); with an empty
    /// workspace, on the stacks of `threads` threads.
    pub(crate) fn run(&self, workspace: &mut [u8], threads: usize) {
        let Shape { batch, m, n, .. } = self.shape;
        if batch * m * n == 0 {
            return;
        }
        if workspace.is_empty() {
            return self.run_on_stack(threads);
        }
        let workspace: &mut [S] = bytemuck::cast_slice_mut(workspace);
        let sums = self.blocks.sums_len(&self.shape);
        let (sums, slots) = workspace.split_at_mut(sums);
        if self.blocks.pieces == 1 {
            return self.run_in(slots, self.c, 1);
        }
        let layout = Layout { first: 0, batch: m * n, row: n, period: n, sample: 0, column: 1 };
        self.run_in(slots, &Output::new(sums, layout), self.blocks.pieces);
        self.add_pieces(sums);
    }

    fn run_on_stack(&self, threads: usize) {
        let next = AtomicUsize::new(0);
        let worker = |_| {
            let mut stack = Stack([0; STACK_BYTES / 8]);
            self.work(&next, self.c, 1, bytemuck::cast_slice_mut(&mut stack.0), threads);
        };
        if threads <= 1 || self.is_small() {
            worker(0);
        } else {
            (0..threads).into_par_iter().with_max_len(1).for_each(worker);
        }
    }

    fn run_in(&self, slots: &mut [S], sink: &dyn Sink<S>, pieces: usize) {
        let len = self.blocks.slot_len::<S>();
        let count = slots.len() / len;
        debug_assert!(count > 0, "no room for one task");
        let next = AtomicUsize::new(0);
        if count == 1 || self.is_small() {
            self.work(&next, sink, pieces, &mut slots[..len], 1);
        } else {
            slots
                .par_chunks_exact_mut(len)
                .with_max_len(1)
                .for_each(|slot| self.work(&next, sink, pieces, slot, count));
        }
    }

    fn is_small(&self) -> bool {
        let Shape { batch, m, n, k } = self.shape;
        (batch * m * n) as f64 * (k as f64) < SERIAL_BELOW
    }

    /// Takes tasks until none is left.
    fn work(
        &self,
        next: &AtomicUsize,
        sink: &dyn Sink<S>,
        pieces: usize,
        slot: &mut [S],
        workers: usize,
    ) {
        let Shape { batch, m, n, k } = self.shape;
        let Blocks { tm, nc, kc, .. } = self.blocks;
        let (row_cuts, column_cuts) = (m.div_ceil(tm), n.div_ceil(nc));
        let tasks = batch * pieces * row_cuts * column_cuts;
        let grab = (tasks / (workers * 16)).max(1);
        let piece_len = k.div_ceil(kc).div_ceil(pieces) * kc;
        loop {
            let from = next.fetch_add(grab, Ordering::Relaxed);
            if from >= tasks {
                return;
            }
            for task in from..tasks.min(from + grab) {
                let (rest, column) = (task / column_cuts, task % column_cuts * nc);
                let (rest, row) = (rest / row_cuts, rest % row_cuts * tm);
                let (batch, piece) = (rest % batch, rest / batch);
                let place = Place {
                    batch,
                    row,
                    column,
                    rows: tm.min(m - row),
                    columns: nc.min(n - column),
                };
                let start = (piece * piece_len).min(k);
                let ks = start..(start + piece_len).min(k);
                self.rectangle(place, piece, ks, sink, slot);
            }
        }
    }

    /// One rectangle of the output, summed over `ks`.
    fn rectangle(
        &self,
        place: Place,
        piece: usize,
        ks: Range<usize>,
        sink: &dyn Sink<S>,
        slot: &mut [S],
    ) {
        let nr = tile_columns::<S>();
        let Blocks { mc, kc, .. } = self.blocks;
        let (a_len, b_len) = self.blocks.panel_lens::<S>();
        let (a_panels, rest) = slot.split_at_mut(a_len);
        let (b_panels, held) = rest.split_at_mut(b_len);
        let columns = place.column..place.column + place.columns;
        let rows = place.row..place.row + place.rows;
        let target = piece * self.shape.batch + place.batch;
        let tile_area = MR * nr;
        let mut tile = Tile::zero();
        let steps = ks.len().div_ceil(kc).max(1);
        for step in 0..steps {
            let start = ks.start + step * kc;
            let ks = start..(start + kc).min(ks.end);
            let (first, last) = (step == 0, step + 1 == steps);
            pack(self.b, place.batch, nr, columns.clone(), ks.clone(), b_panels);
            let mut index = 0;
            for row in rows.clone().step_by(mc) {
                let block = row..(row + mc).min(rows.end);
                pack(self.a, place.batch, MR, block.clone(), ks.clone(), a_panels);
                for (j, column) in columns.clone().step_by(nr).enumerate() {
                    let b = &b_panels[j * nr * ks.len()..][..nr * ks.len()];
                    for (i, row) in block.clone().step_by(MR).enumerate() {
                        let a = &a_panels[i * MR * ks.len()..][..MR * ks.len()];
                        let place = Place {
                            batch: target,
                            row,
                            column,
                            rows: MR.min(block.end - row),
                            columns: nr.min(columns.end - column),
                        };
                        sink.prefetch(place);
                        multiply_tile(self.isa, a, b, &mut tile);
                        let mut first = first;
                        if self.blocks.held && steps > 1 {
                            // Sums wider than the output wait here until they are complete.
                            let held = &mut held[index * tile_area..][..tile_area];
                            index += 1;
                            for (held, &sum) in held.iter_mut().zip(&tile.0) {
                                *held = if first { sum } else { *held + sum };
                            }
                            if !last {
                                continue;
                            }
                            tile.0[..tile_area].copy_from_slice(held);
                            first = true;
                        }
                        sink.put(place, &tile.0, nr, first);
                    }
                }
            }
        }
    }

    /// Adds the pieces of every sum in their order and hands the results to the output.
    fn add_pieces(&self, sums: &[S]) {
        let Shape { batch, m, n, .. } = self.shape;
        let nr = tile_columns::<S>();
        (0..batch * m).into_par_iter().with_min_len(16).for_each(|line| {
            for column in (0..n).step_by(nr) {
                let columns = nr.min(n - column);
                let mut total = [S::zero(); MAX_NR];
                for piece in sums.chunks_exact(batch * m * n) {
                    let piece = &piece[line * n + column..][..columns];
                    for (total, &sum) in total.iter_mut().zip(piece) {
                        *total += sum;
                    }
                }
                let place = Place { batch: line / m, row: line % m, column, rows: 1, columns };
                self.c.put(place, &total, nr, true);
            }
        });
    }
}

/// Packs `lines` into panels of `width` lines each.
fn pack<S>(
    source: &dyn Source<S>,
    batch: usize,
    width: usize,
    lines: Range<usize>,
    ks: Range<usize>,
    dst: &mut [S],
) {
    let len = lines.len().next_multiple_of(width) * ks.len();
    if len > 0 {
        source.pack(batch, width, lines, ks, &mut dst[..len]);
    }
}
