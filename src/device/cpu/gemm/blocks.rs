//! Block sizes: how a product is cut so that its panels fit the caches and the workspace cap, what
//! scratch that takes to the byte, and how long it should run.

use super::engine::STACK_BYTES;
use super::kernel::{MR, tile_columns};
use crate::dtype::DType;

/// The sizes of a batch of products `[m, k] · [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Products.
    pub(crate) batch: usize,
    /// Rows of the output.
    pub(crate) m: usize,
    /// Columns of the output.
    pub(crate) n: usize,
    /// Length of the sums.
    pub(crate) k: usize,
}

/// How a product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Rows packed at a time.
    pub(crate) mc: usize,
    /// Columns of a task, all packed at once.
    pub(crate) nc: usize,
    /// Steps of the sum packed at a time.
    pub(crate) kc: usize,
    /// Rows of a task.
    pub(crate) tm: usize,
    /// Pieces into which the sums are cut, each with sums of its own.
    pub(crate) pieces: usize,
    /// Whether the stored type is narrower than the sums and k needs more than one block, so that a
    /// task holds the sums of its whole rectangle.
    pub(crate) held: bool,
}

/// Upper limits for one way of cutting.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Bytes of one k-step's row panel: kc = this / size.
    kc_bytes: usize,
    /// Bytes of the packed rows.
    a_bytes: usize,
    /// Bytes of the packed columns.
    b_bytes: usize,
    /// Bytes of held sums.
    held_bytes: usize,
}

/// The whole-problem limits, then smaller and smaller ones.
const LADDER: [Limits; 4] = [
    Limits { kc_bytes: 2560, a_bytes: 288 << 10, b_bytes: 4 << 20, held_bytes: 4 << 20 },
    Limits { kc_bytes: 2048, a_bytes: 192 << 10, b_bytes: 768 << 10, held_bytes: 512 << 10 },
    Limits { kc_bytes: 1536, a_bytes: 72 << 10, b_bytes: 160 << 10, held_bytes: 96 << 10 },
    Limits { kc_bytes: 512, a_bytes: 12 << 10, b_bytes: 24 << 10, held_bytes: 12 << 10 },
];

/// Seconds for one floating-point operation on one thread, for one packed element, and so on.
/// Measured on one Zen 3 core; only their proportions matter for the ranking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// One floating-point operation in the micro-kernel.
    pub(crate) flop: f64,
    /// Packing one element of the left operand.
    pub(crate) pack_a: f64,
    /// Packing one element of the right operand.
    pub(crate) pack_b: f64,
    /// Storing one element of a tile, in the cache.
    pub(crate) put: f64,
    /// The memory traffic of one element of the output, whatever the number of threads.
    pub(crate) traffic: f64,
}

impl Cost {
    /// For operands of this type.
    pub(crate) fn of(dtype: DType) -> Cost {
        let flop = if dtype == DType::F64 { 1.0 / 37e9 } else { 1.0 / 75e9 };
        let (pack, put) = match dtype {
            DType::F64 => (0.7e-9, 0.8e-9),
            DType::F32 => (0.45e-9, 0.4e-9),
            DType::F16 => (0.7e-9, 0.7e-9),
            _ => (0.6e-9, 1.0e-9),
        };
        // Read for ownership, then written.
        let traffic = 2.0 * dtype.size() as f64 / BANDWIDTH;
        Cost { flop, pack_a: pack, pack_b: pack, put, traffic }
    }
}

/// Bytes a second between memory and all cores.
pub(crate) const BANDWIDTH: f64 = 12e9;
/// Seconds to set up the packing of one panel, and the call for one tile.
const PANEL: f64 = 60e-9;
const TILE: f64 = 25e-9;
/// Seconds to start one task, and to start and join a parallel region.
const TASK: f64 = 0.4e-6;
const REGION: f64 = 8e-6;

fn round_up(value: usize, step: usize) -> usize {
    value.div_ceil(step) * step
}

/// `value` cut into the fewest equal parts of at most `limit`, the part rounded up to `step`.
fn even_part(value: usize, limit: usize, step: usize) -> usize {
    let limit = limit.max(step);
    round_up(value.div_ceil(value.div_ceil(limit).max(1)).max(1), step).min(round_up(limit, step))
}

impl Blocks {
    /// Elements of the packed rows and of the packed columns of one task.
    pub(crate) fn panel_lens<S>(&self) -> (usize, usize) {
        let nr = tile_columns::<S>();
        // Each starts on a cache line.
        let a = round_up(round_up(self.mc, MR) * self.kc, 16);
        (a, round_up(round_up(self.nc, nr) * self.kc, 16))
    }

    /// Elements that one concurrent task takes.
    pub(crate) fn slot_len<S>(&self) -> usize {
        let (a, b) = self.panel_lens::<S>();
        let held = round_up(self.tm, MR) * round_up(self.nc, tile_columns::<S>());
        a + b + if self.held { held } else { 0 }
    }

    /// Elements that the pieces' sums take.
    pub(crate) fn sums_len(&self, shape: &Shape) -> usize {
        if self.pieces == 1 {
            return 0;
        }
        round_up(self.pieces * shape.batch * shape.m * shape.n, 16)
    }

    /// Workspace in bytes for `slots` tasks at a time.
    pub(crate) fn workspace(&self, shape: &Shape, dtype: DType, slots: usize) -> u64 {
        let (slot, size) = match dtype {
            DType::F64 => (self.slot_len::<f64>(), 8),
            _ => (self.slot_len::<f32>(), 4),
        };
        ((self.sums_len(shape) + slot * slots) * size) as u64
    }

    /// Blocks whose panels fit [`STACK_BYTES`], for products that may take no workspace.
    pub(crate) fn on_stack(shape: &Shape, dtype: DType, threads: usize) -> Blocks {
        let narrow = dtype.size() < 4;
        let (mc, nc, kc) = match dtype {
            DType::F64 => (24, 96, 64),
            DType::F32 => (24, 96, 128),
            // Wide rectangles, as their sums stay on the stack too.
            _ => (72, 64, 64),
        };
        let mut blocks = Blocks { mc, nc, kc, tm: mc, pieces: 1, held: narrow && shape.k > kc };
        let nr = if dtype == DType::F64 { 8 } else { 16 };
        blocks.nc = even_part(shape.n, nc, nr);
        blocks.mc = even_part(shape.m, mc, MR);
        blocks.tm = blocks.mc;
        if !blocks.held {
            // Packed columns serve many rows, as long as every thread has something to do.
            let columns = shape.n.div_ceil(blocks.nc) * shape.batch;
            let cuts = (3 * threads).div_ceil(columns.max(1));
            blocks.tm = even_part(shape.m, shape.m.div_ceil(cuts).max(1), blocks.mc);
        }
        debug_assert!(blocks.workspace(shape, dtype, 1) <= STACK_BYTES as u64);
        blocks
    }

    /// Pieces that a product with a small output and a long sum is worth cutting into; a function
    /// of the shape alone, so that the result is too.
    pub(crate) fn pieces_for(shape: &Shape) -> usize {
        let rectangles = shape.batch * shape.m.div_ceil(96) * shape.n.div_ceil(256);
        (16 / rectangles.max(1)).min(shape.k / 2048).max(1)
    }

    /// The best cut on one rung of the ladder.
    fn on_rung(rung: usize, shape: &Shape, dtype: DType, slots: usize, pieces: usize) -> Blocks {
        let size = if dtype == DType::F64 { 8 } else { 4 };
        let nr = 64 / size;
        let limits = LADDER[rung];
        let k = shape.k.div_ceil(pieces).max(1);
        let kc = even_part(k, limits.kc_bytes / size, 1);
        let held = dtype.size() < size && k > kc && pieces == 1;
        let mc = even_part(shape.m, limits.a_bytes / size / kc, MR);
        let widest = even_part(shape.n, limits.b_bytes / size / kc, nr);
        let cost = Cost::of(dtype);
        let mut best = (f64::INFINITY, None);
        for row_cuts in 1..=shape.m.div_ceil(mc).min(4 * slots) {
            let tm = round_up(shape.m.div_ceil(row_cuts), MR);
            let mut nc = widest;
            loop {
                let blocks = Blocks { mc, nc, kc, tm, pieces, held };
                if !held || round_up(tm, MR) * nc * size <= limits.held_bytes || nc == nr {
                    let mut seconds = blocks.seconds(shape, cost, slots);
                    let tasks = shape.m.div_ceil(tm) * shape.n.div_ceil(nc) * shape.batch * pieces;
                    if slots > 1 && tasks < 2 * slots {
                        // Nothing to hand over when one thread is held up.
                        seconds *= 1.04;
                    }
                    if seconds < best.0 {
                        best = (seconds, Some(blocks));
                    }
                }
                if nc <= nr {
                    break;
                }
                // The next smaller width that saves a column cut.
                let cuts = shape.n.div_ceil(nc) + 1;
                let next = round_up(shape.n.div_ceil(cuts), nr);
                nc = if next < nc { next } else { nc - nr };
                if cuts > 64 {
                    nc = nc.min(round_up(nc * 3 / 4, nr));
                }
            }
        }
        best.1.unwrap_or(Blocks { mc, nc: nr, kc, tm: mc, pieces, held })
    }

    /// Predicted time with `slots` threads.
    pub(crate) fn seconds(&self, shape: &Shape, cost: Cost, slots: usize) -> f64 {
        let nr = 16;
        let (tm, nc) = (self.tm.min(shape.m), self.nc.min(shape.n));
        let tasks = shape.m.div_ceil(self.tm.max(1))
            * shape.n.div_ceil(self.nc.max(1))
            * shape.batch
            * self.pieces;
        let k = shape.k.div_ceil(self.pieces) as f64;
        let steps = (k / self.kc as f64).ceil().max(1.0);
        let area = (round_up(tm, MR) * round_up(nc, nr)) as f64;
        let task = 2.0 * area * k * cost.flop
            + round_up(tm, MR) as f64 * k * cost.pack_a
            + round_up(nc, nr) as f64 * k * cost.pack_b
            + area * steps * cost.put
            + steps * (area / (MR * nr) as f64) * TILE
            + steps * (tm.div_ceil(MR) + nc.div_ceil(nr)) as f64 * PANEL
            + TASK;
        // A cut that leaves a smaller last rectangle is not as slow as full ones.
        let full = (shape.m as f64 / tm.max(1) as f64) * (shape.n as f64 / nc.max(1) as f64);
        let full = full * (shape.batch * self.pieces) as f64;
        let waves = if tasks <= 4 * slots {
            tasks.div_ceil(slots) as f64
        } else {
            (full / slots as f64).max(1.0)
        };
        let region = if slots > 1 { REGION } else { 0.0 };
        let pieces =
            if self.pieces > 1 { self.sums_len(shape) as f64 * 0.5e-9 + region } else { 0.0 };
        let outputs = shape.batch as f64 * shape.m as f64 * shape.n as f64;
        waves * task + outputs * cost.traffic + region + pieces + TASK
    }

    /// The cuts worth offering under `cap`, with the slots and the workspace of each: the
    /// whole-problem one always, and where that is over the cap, smaller ones that fit.
    pub(crate) fn choices(
        shape: &Shape,
        dtype: DType,
        threads: usize,
        cap: u64,
        pieces: usize,
    ) -> Vec<(Blocks, usize, u64)> {
        let mut choices = Vec::new();
        for slots in [threads.max(1), 1] {
            for rung in 0..LADDER.len() {
                let blocks = Blocks::on_rung(rung, shape, dtype, slots, pieces);
                let workspace = blocks.workspace(shape, dtype, slots);
                let whole = choices.is_empty();
                if whole || workspace <= cap {
                    choices.push((blocks, slots, workspace));
                }
                if (whole && workspace <= cap) || choices.len() == 3 {
                    return choices;
                }
            }
            if choices.len() > 1 || threads <= 1 {
                break;
            }
        }
        choices
    }
}
