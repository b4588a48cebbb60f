//! How sums over any axes are shared out: the plans for the kernels of `kernels/reduce.cuh`. The axes
//! are merged, kept ones and summed ones apart. Where the innermost is summed and long, groups of
//! threads go along runs of it; where it is kept, or summed and short, blocks go down columns.

mod terms;

use super::Cuda;
use super::kernels::{self, Kernel};
use super::launch::{Args, Grid};
use super::layout::{Axes, Axis, Layout, broadcast_strides};
use super::memory::pointer;
use super::rows::THREADS;
use super::scratch::SCRATCH_BYTES;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;
use smallvec::SmallVec;
pub(super) use terms::{CHOSEN, FUNCTION, GRADIENT, STORED, Terms};
use terms::{Columns, Operands, Results, Runs};

/// `out = scale · Σ terms` over some axes of `full`, to which the operands broadcast.
pub(super) struct Sum<'a> {
    pub(super) terms: &'static Terms,
    /// As many as the terms have.
    pub(super) operands: &'a [&'a Tensor],
    /// The function's number and parameter.
    pub(super) code: (i32, f64),
    pub(super) side: i32,
    pub(super) full: &'a Shape,
    pub(super) reduced: &'a [bool],
    pub(super) scale: f64,
    pub(super) out: &'a Tensor,
}

/// Partial sums that the scratch holds, and most of them that make one result.
const PARTIALS: usize = SCRATCH_BYTES / size_of::<f64>();
const CHUNKS: usize = 1 << 14;
/// Runs shorter than this are summed by columns, if there are many of them to a result.
const SHORT_RUN: usize = 64;
/// Runs from this length on are summed by blocks.
const LONG_RUN: usize = 8192;
/// Rows that a thread has in flight as it goes down columns.
const DEEP: usize = 4;
/// A thread each is best for this many results at least, of so many terms at most.
const MANY: usize = 1 << 15;
const FEW: usize = 64;

/// All axes but the innermost, and the innermost.
fn split(axes: &Axes<3>) -> (Axes<3>, Axis<3>) {
    let outer = axes.axes().split_last().map_or(&[][..], |(_, outer)| outer);
    (Axes::merged(outer.iter().copied()), axes.inner())
}

fn wide_strides(strides: [usize; 3]) -> [u64; 3] {
    strides.map(|stride| stride as u64)
}

impl Sum<'_> {
    pub(super) fn run(&self, cuda: &Cuda) -> Result<()> {
        if self.out.elements() == 0 || self.full.elements() == 0 {
            let bytes = self.out.elements() * self.out.dtype().size();
            return cuda.stream.fill_bytes(pointer(self.out), 0, bytes);
        }
        let mut lists: [SmallVec<[Axis<3>; 8]>; 2] = Default::default();
        let strides: SmallVec<[_; 3]> =
            self.operands.iter().map(|x| broadcast_strides(x, self.full)).collect();
        let mut by_row = true;
        for (axis, &extent) in self.full.dims().iter().enumerate() {
            if extent > 1 {
                let strides = [0, 1, 2].map(|k| strides.get(k).map_or(0, |own| own[axis]));
                by_row = self.reduced[axis];
                lists[usize::from(by_row)].push(Axis { extent, strides });
            }
        }
        let [kept, reduced] = lists.map(Axes::merged);
        let (outer, run) = split(&reduced);
        if by_row && (run.extent >= SHORT_RUN || outer.elements() == 1 || kept.rank() == 0) {
            return self.rows(cuda, &kept, &outer, run);
        }
        if !by_row && reduced.elements() <= FEW && kept.elements() >= MANY {
            return self.each(cuda, &kept, &reduced);
        }
        let (groups, columns) = split(&kept);
        if by_row {
            self.columns(cuda, &groups, columns, &outer, run)
        } else {
            self.columns(cuda, &groups, columns, &reduced, Axis { extent: 1, strides: [0; 3] })
        }
    }

    /// Calls `launch` with the layouts of kept and summed axes, almost always once; each of the
    /// points of the kept ones has `width` results.
    fn launches(
        &self,
        kept: &Axes<3>,
        summed: &Axes<3>,
        width: usize,
        mut launch: impl FnMut(Layout, Layout, Operands, Results) -> Result<()>,
    ) -> Result<()> {
        for (more, (inner, skipped)) in summed.launches().enumerate() {
            for (number, (own, starts)) in kept.launches().enumerate() {
                let mut address = [0; 3];
                for (k, x) in self.operands.iter().enumerate() {
                    let start = (skipped[k] + starts[k]) * x.dtype().size();
                    address[k] = pointer(x) + start as u64;
                }
                let (code, parameter) = self.code;
                let operands = Operands { address, parameter, code, side: self.side };
                let count = own.elements * width as u64;
                let start = number as u64 * count * self.out.dtype().size() as u64;
                let results = Results {
                    out: pointer(self.out) + start,
                    partials: 0,
                    scale: self.scale,
                    count,
                    chunks: 1,
                    more: u32::from(more > 0),
                    unused: 0,
                };
                launch(own, inner, operands, results)?;
            }
        }
        Ok(())
    }

    /// Launches a kernel, and the one that adds up its chunks.
    fn launch(
        &self,
        cuda: &Cuda,
        kernel: Kernel,
        grid: Grid,
        args: Args,
        mut results: Results,
    ) -> Result<()> {
        let scratch = cuda.scratch();
        results.partials = scratch.address();
        cuda.launch(kernel, self.out.dtype(), grid, args.value(results))?;
        if results.chunks > 1 { self.finish(cuda, results) } else { Ok(()) }
    }

    fn finish(&self, cuda: &Cuda, results: Results) -> Result<()> {
        let (kernel, lanes) = match results.chunks {
            0..32 => (kernels::REDUCE_FINISH, 1),
            32..512 => (kernels::REDUCE_FINISH, 32),
            _ => (kernels::REDUCE_FINISH_LONG, THREADS),
        };
        let grid = cuda.linear(results.count as usize * lanes);
        let args = Args::new().value(results).value(lanes as u32);
        cuda.launch(kernel, self.out.dtype(), grid, args)
    }

    /// The result of adding up nothing: a scalar, times the scale.
    pub(super) fn nothing(&self, cuda: &Cuda) -> Result<()> {
        let results = Results {
            out: pointer(self.out),
            partials: 0,
            scale: self.scale,
            count: 1,
            chunks: 0,
            more: 0,
            unused: 0,
        };
        self.finish(cuda, results)
    }

    /// Numbers in a pack, if all operands of a non-zero step can be read in packs along the
    /// neighbours whose strides are `steps`.
    fn pack(&self, steps: [usize; 3], others: [&Axes<3>; 2]) -> Option<usize> {
        let pack = 16 / self.out.dtype().size();
        let aligned = |(k, x): (usize, &&Tensor)| {
            let far = || others.iter().flat_map(|axes| axes.axes()).map(|axis| axis.strides[k]);
            steps[k] == 0
                || (steps[k] == 1
                    && pointer(x).is_multiple_of(16)
                    && far().all(|stride| stride.is_multiple_of(pack)))
        };
        (self.terms.wide && self.operands.iter().enumerate().all(aligned)).then_some(pack)
    }

    fn rows(&self, cuda: &Cuda, kept: &Axes<3>, outer: &Axes<3>, run: Axis<3>) -> Result<()> {
        let long = run.extent >= LONG_RUN;
        let lanes = match long {
            true => THREADS,
            false => run.extent.div_ceil(8).next_power_of_two().min(32),
        };
        let kernel = if long { self.terms.long } else { self.terms.short };
        let wide = self.pack(run.strides, [kept, outer]).is_some();
        let units = cuda.gpu().properties.multiprocessors * 2048 / lanes;
        self.launches(kept, outer, 1, |own, inner, operands, mut results| {
            let (outputs, outer) = (own.elements as usize, inner.elements as usize);
            let worth = outer.saturating_mul(run.extent).div_ceil(32 * lanes);
            let chunks = (units / outputs).min(worth).min(PARTIALS / outputs).clamp(1, CHUNKS);
            let (mut pieces, mut piece) = (1, run.extent);
            if outer < chunks {
                piece = run.extent.div_ceil(chunks.div_ceil(outer)).next_multiple_of(64);
                pieces = run.extent.div_ceil(piece);
            }
            let total = outer * pieces;
            let items = total.div_ceil(chunks);
            let chunks = total.div_ceil(items);
            let runs = Runs {
                length: run.extent as u64,
                strides: wide_strides(run.strides),
                pieces: pieces as u64,
                piece: piece as u64,
                items: items as u64,
                total: total as u64,
                lanes: lanes as u32,
                wide: u32::from(wide),
            };
            results.chunks = chunks as u64;
            let args = Args::new().value(operands).value(own).value(inner).value(runs);
            let most = cuda.gpu().properties.multiprocessors * 64;
            let blocks = (outputs * chunks).div_ceil(THREADS / lanes).min(most);
            self.launch(cuda, kernel, Grid::new(blocks, THREADS), args, results)
        })
    }

    fn columns(
        &self,
        cuda: &Cuda,
        groups: &Axes<3>,
        columns: Axis<3>,
        outer: &Axes<3>,
        run: Axis<3>,
    ) -> Result<()> {
        let width = columns.extent * run.extent;
        // Steps from one to the next element of the columns, a run after the other.
        let steps = [0, 1, 2].map(|k| match (columns.strides[k], run.strides[k]) {
            (0, 0) => Some(0),
            (step, 0) if run.extent == 1 => Some(step),
            (step, 1) if step == run.extent => Some(1),
            _ => None,
        });
        let pack = match steps {
            [Some(a), Some(b), Some(c)] => self.pack([a, b, c], [groups, outer]),
            _ => None,
        };
        let pack = pack.filter(|&pack| width.is_multiple_of(pack)).unwrap_or(1);
        let kernel = if pack > 1 { self.terms.packs } else { self.terms.columns };
        let multiprocessors = cuda.gpu().properties.multiprocessors;
        self.launches(groups, outer, columns.extent, |own, inner, operands, mut results| {
            let rows = inner.elements as usize;
            let most = if rows <= 16 { THREADS } else { 64 };
            // Whole packs a tile.
            let tile = (most * pack / run.extent / pack * pack).max(pack).min(columns.extent);
            let threads = tile * run.extent / pack;
            let parts = (THREADS / threads).min(rows.div_ceil(DEEP)).max(1);
            let block = (threads * parts).next_multiple_of(32);
            let tiles = columns.extent.div_ceil(tile);
            let items = own.elements as usize * tiles;
            let chunks = (multiprocessors * 2048 / block / items)
                .min(rows.div_ceil(2 * DEEP * parts))
                .min(PARTIALS / results.count as usize)
                .max(1);
            let chunk_rows = rows.div_ceil(chunks);
            let chunks = rows.div_ceil(chunk_rows);
            let blocks = items * chunks;
            let plan = Columns {
                columns: columns.extent as u64,
                run: run.extent as u64,
                column_strides: wide_strides(columns.strides),
                run_strides: wide_strides(run.strides),
                tile: tile as u64,
                tiles: tiles as u64,
                blocks: blocks as u64,
                rows: rows as u64,
                chunk_rows: chunk_rows as u64,
                threads: threads as u32,
                parts: parts as u32,
            };
            results.chunks = chunks as u64;
            let args = Args::new().value(operands).value(own).value(inner).value(plan);
            let grid = Grid::new(blocks.min(multiprocessors * 256), block);
            self.launch(cuda, kernel, grid, args, results)
        })
    }

    fn each(&self, cuda: &Cuda, kept: &Axes<3>, reduced: &Axes<3>) -> Result<()> {
        self.launches(kept, reduced, 1, |own, inner, operands, results| {
            let args = Args::new().value(operands).value(own).value(inner);
            let grid = cuda.linear(own.elements as usize);
            self.launch(cuda, self.terms.each, grid, args, results)
        })
    }
}
