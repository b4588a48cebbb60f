//! What the correction of a predicted time may depend on. `features` and its helpers in
//! `benches/fit_ranking.py` compute the same, in the same order.

use super::{Cost, Work};
use crate::device::spec::ConvPass;
use crate::dtype::DType;

pub(super) const FEATURES: usize = 64;

fn log2(value: f64) -> f64 {
    value.max(1e-30).log2()
}

/// 1 where it holds.
fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// Powers of two that divide it, up to 16.
fn evenness(value: usize) -> f64 {
    f64::from(value.trailing_zeros().min(4))
}

/// How much of whole steps it fills, as a logarithm.
fn filled(value: f64, step: f64) -> f64 {
    log2(value / (step * (value / step).ceil()))
}

/// Tiles of `a × b` that cover a matrix, `turns` times, and what they compute over what is needed.
fn cover([rows, columns]: [usize; 2], [a, b]: [usize; 2], turns: usize) -> (f64, f64) {
    let up = |value: usize, step: usize| value.div_ceil(step) as f64;
    let tiles = up(rows, a) * up(columns, b);
    let over = up(rows, a) * a as f64 * (up(columns, b) * b as f64);
    (tiles * turns as f64, over / (rows as f64 * columns as f64))
}

/// Tiles of our own kernels: rows of one, how many, and what they compute over what is needed.
type OwnTiles = (f64, f64, f64);

impl Cost {
    /// What the method's kernel takes, where it is one of ours: see `direct` and `depthwise`.
    fn own_tiles(&self, work: &Work<'_>) -> OwnTiles {
        let g = &self.geometry;
        let (c, m) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let tiles = |first: f64, matrix: [usize; 2], tile: [usize; 2], turns: usize| {
            let (count, over) = cover(matrix, tile, turns);
            (first, count, over)
        };
        let weights = self.pass == ConvPass::WeightGradient;
        if work.method == "depthwise" && !weights && g.stride == 1 && g.dilation == 1 {
            let (channels, line) = match self.pass {
                ConvPass::Forward => (g.out_channels, g.out_length),
                _ => (g.in_channels, g.in_length),
            };
            let lanes = line.div_ceil(4).clamp(1, 256).next_power_of_two();
            return tiles(lanes as f64, [g.batch * channels, line], [256 / lanes, 4 * lanes], 1);
        }
        if !work.method.starts_with("direct") {
            return (0.0, 1.0, 1.0);
        }
        if weights {
            let columns = c * g.kernel;
            if m.min(64) * columns.min(64) < 256 {
                return (-1.0, 1.0, 1.0);
            }
            return tiles(64.0, [m, columns], [64, 64], g.groups);
        }
        let (rows, columns, turns) = match self.pass {
            ConvPass::InputGradient => {
                let (step, most) = (g.in_length.div_ceil(g.stride), g.stride.min(g.in_length));
                (c, g.batch * step, g.groups * most)
            }
            _ => (m, g.batch * g.out_length, g.groups),
        };
        let [a, b] = match rows {
            0..=1 => [1, 256],
            2..=4 => [4, 256],
            5..=16 => [16, 256],
            _ => {
                let (count, large) = cover([rows, columns], [128, 128], turns);
                let (_, small) = cover([rows, columns], [64, 64], 1);
                let large = large / small < 1.3 && count >= self.multiprocessors;
                if large { [128, 128] } else { [64, 64] }
            }
        };
        tiles(a as f64, [rows, columns], [a, b], turns)
    }

    /// Of the candidate that is the model's method `index`.
    pub(super) fn features(&self, work: &Work<'_>, index: usize) -> [f64; FEATURES] {
        let (g, name) = (&self.geometry, work.method);
        let (c, m) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let (chunk, taps, lo) = (work.chunk, work.taps, g.out_length);
        let positions = chunk * lo;
        let pass = match self.pass {
            ConvPass::Forward => 0.0,
            ConvPass::InputGradient => 1.0,
            ConvPass::WeightGradient => 2.0,
        };
        let kind = match self.dtype {
            DType::F16 => 3.0,
            DType::BF16 => 2.0,
            _ => flag(self.on_tensor_cores(name)),
        };
        let modelled = self.modelled(work);
        let [x, y, _] = self.bytes(chunk, taps);
        let [rows, columns, depth, turns] = work.product.map(|size| size as f64);
        let tiles = |a: f64, b: f64| (rows / a).ceil() * (columns / b).ceil() * turns;
        let over = |a: f64, b: f64| -filled(rows, a) - filled(columns, b);
        let (own_rows, own_tiles, own_over) = self.own_tiles(work);
        let chip = self.multiprocessors;
        let span = (g.pad_left + g.pad_right) as f64;
        // The lines of the operands that are least even; where those are odd, bf16 has the fewest
        // kernels.
        let lines = if name.contains("cuBLAS") {
            let line = if name.contains("packed") { positions } else { lo };
            evenness(c * g.kernel).min(evenness(line))
        } else {
            evenness(c).min(evenness(m))
        };
        let ends = evenness(lo).min(evenness(g.in_length));
        let bf16 = self.dtype == DType::BF16;
        let useful = (33.0 - taps as f64).max(1.0);
        let log = |value: usize| log2(value as f64);
        [
            // The method and what it is made of.
            index as f64,
            pass,
            kind,
            flag(name.starts_with("cuDNN")),
            flag(name.contains("channels last")),
            flag(name.contains("packed")),
            flag(name.contains("tensor cores")),
            // Sizes.
            log(m),
            log(c),
            log(positions),
            log(chunk),
            log(lo),
            log(g.in_length),
            log(taps),
            log(g.kernel),
            log(g.groups),
            log(g.stride),
            log(g.dilation),
            // Modelled times, and how often what is repeated.
            log2(modelled.arithmetic * 1e6),
            log2(modelled.memory * 1e6),
            log2(modelled.arithmetic / modelled.memory),
            log2(modelled.staged / modelled.seconds),
            log2(modelled.repeated),
            log2(modelled.seconds * 1e6),
            log2(work.calls as f64 * modelled.chunks),
            // The library's workspace, which tells which kernel it takes; pieces of sums.
            log2(1.0 + (work.own as f64 - 2048.0).max(0.0) / (x + y) * 1024.0),
            log2(1.0 + work.own as f64),
            log(work.pieces),
            // What wide accesses need.
            evenness(lo),
            evenness(g.in_length),
            evenness(c),
            evenness(m),
            evenness(chunk),
            evenness(g.in_channels),
            evenness(positions),
            evenness(c * taps),
            lines,
            ends,
            if bf16 { lines } else { 8.0 },
            if bf16 { ends } else { 8.0 },
            // The product, and tiles that it may be cut into: how many, how full, in how full waves.
            log2(rows),
            log2(columns),
            log2(depth),
            log2(turns),
            log2(tiles(64.0, 64.0) / chip),
            log2(tiles(128.0, 128.0) / chip),
            over(64.0, 64.0),
            over(128.0, 128.0),
            over(128.0, 256.0),
            filled(tiles(64.0, 64.0), chip),
            filled(tiles(128.0, 128.0), chip),
            filled(tiles(128.0, 256.0), chip),
            // Tiles of 32 that a tiled FFT takes for what its taps leave of one.
            log2((lo as f64 / useful).ceil() * 32.0 / lo as f64),
            flag(g.pad_left != g.pad_right),
            filled(m as f64, 32.0),
            filled((c * taps) as f64, 32.0),
            // Tiles of our own kernels.
            own_rows,
            log2(own_tiles / chip),
            log2(own_over),
            filled(own_tiles, chip),
            log(c * taps),
            log2(1.0 + span / lo as f64),
            flag(chunk == g.batch),
            g.pad_left.min(32) as f64,
        ]
    }
}
