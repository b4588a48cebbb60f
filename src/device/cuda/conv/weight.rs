//! Gradients for weights on the tensor cores of compute capability 9.0: sums over the positions of all
//! samples, cut into pieces so that they fill the chip. Each adds to the result in its turn, or they go to
//! a workspace and are added up from there. See `kernels/conv_warpgroup_weight.cuh`.

use super::strips::{self, CLOCK, Layout, Precision, STAGE_BYTES, Strips, View};
use super::{Addresses, Cost, Engine, Question, code};
use crate::device::cuda::Cuda;
use crate::device::cuda::gemm_kernel::Pieces;
use crate::device::cuda::kernels::{self, Kernel};
use crate::device::cuda::launch::{Args, Grid};
use crate::device::cuda::rates::LAUNCH;
use crate::device::cuda::scratch::SCRATCH_BYTES;
use crate::error::Result;
use crate::plan::Candidate;

/// Bytes at the beginning of shared memory, in which turns are counted.
const HEAD: usize = 256;
/// Clocks that a piece whose turn it is takes to add its results.
const TURN: f64 = 8e3;
/// Terms that are added up in one sum: the tensor cores round towards zero.
const MOST_TERMS: usize = 1 << 17;

/// What the kernels take.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Gradient {
    strips: Strips,
    rows: u32,
    panel: u32,
    pack: u32,
    pieces: u32,
    panels: u32,
    unused: u32,
}

/// A kernel and the tiles that it computes: 128 · `blocks` taps of channels, of `columns` output channels.
struct Kind {
    kernel: Kernel,
    columns: usize,
    blocks: usize,
    precision: Precision,
    /// Clocks that a stage takes of 4-byte and of 2-byte numbers, on an H200.
    stage: [f64; 2],
}

const KINDS: [Kind; 5] = [
    kind(kernels::GRADIENT_128_2, [128, 2], [1130.0, 1300.0]),
    kind(kernels::GRADIENT_128_1, [128, 1], [980.0, 1050.0]),
    kind(kernels::GRADIENT_64_2, [64, 2], [840.0, 960.0]),
    Kind {
        precision: Precision::Split,
        ..kind(kernels::GRADIENT_SPLIT_128_1, [128, 1], [1450.0, 0.0])
    },
    Kind {
        precision: Precision::Split,
        ..kind(kernels::GRADIENT_SPLIT_64_1, [64, 1], [940.0, 0.0])
    },
];

const fn kind(kernel: Kernel, [columns, blocks]: [usize; 2], stage: [f64; 2]) -> Kind {
    Kind { kernel, columns, blocks, precision: Precision::Single, stage }
}

/// The kinds that multiply in a precision, by number.
pub(super) fn kinds(precision: Precision) -> impl Iterator<Item = usize> {
    (0..KINDS.len()).filter(move |&number| KINDS[number].precision == precision)
}

/// How a kind of kernel computes a gradient.
struct Plan {
    layout: Layout,
    /// Positions in strips at a time.
    panel: usize,
    /// Elements of the output's gradient that are copied at once.
    pack: usize,
    /// Tiles, of all groups.
    tiles: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Plan {
    fn new(cuda: &Cuda, question: &Question<'_>, kind: &Kind, view: &View) -> Option<Plan> {
        let size = question.dtype.size();
        let lines = 128 * kind.blocks;
        let place = STAGE_BYTES * kind.columns * kind.precision.parts();
        let places = if place > 8192 { 6 } else { 8 };
        let reach = ((lines - 1).div_ceil(view.taps) + 1).min(view.channels);
        let pack = strips::pack(size, view.positions);
        let cut = |stages: usize| {
            let panel = stages * STAGE_BYTES / size;
            let buffers = (places - 1_usize).div_ceil(stages) + 1;
            // What a tile begins with is a multiple of its lines.
            let whole = Layout::whole(view, size, panel, [reach, buffers]);
            let aligned = |layout: &Layout| {
                (lines * view.length).is_multiple_of(layout.pack) || view.channels <= lines
            };
            let lane = strips::line_lane(view);
            let plain = || Layout::plain(view, size, panel, lane, [reach, 0, buffers]);
            let layout = whole.filter(aligned).unwrap_or_else(plain);
            let tables = buffers * (layout.packs() + panel / pack + panel) * 4;
            let shared = HEAD + places * place + layout.bytes + tables;
            let tiles = (view.channels * view.taps).div_ceil(lines)
                * view.rows.div_ceil(kind.columns)
                * view.groups;
            let fits = shared <= cuda.shared_per_block();
            fits.then_some(Plan { layout, panel, pack, tiles, shared })
        };
        [8, 4].into_iter().find_map(cut)
    }

    /// Clocks with so many pieces, of which all are `panels` long.
    fn clocks(&self, cuda: &Cuda, kind: &Kind, size: usize, pieces: usize, panels: usize) -> f64 {
        let turns = self.tiles.saturating_mul(pieces);
        let rounds = turns.div_ceil(cuda.gpu().properties.multiprocessors) as f64;
        let stages = (panels * self.panel * size / STAGE_BYTES) as f64;
        rounds * (stages * kind.stage[usize::from(size == 2)] + 20e3)
    }
}

pub(super) fn candidates(
    cuda: &Cuda,
    question: &Question<'_>,
    cost: &Cost,
    cap: u64,
) -> Vec<Candidate> {
    let Some(precision) = Precision::of(question) else { return Vec::new() };
    let g = question.geometry;
    if !strips::takes(&cuda.gpu().properties, g) {
        return Vec::new();
    }
    let (view, size, elements) = (View::forward(g), question.dtype.size(), question.w_elements());
    let positions = g.batch * g.out_length;
    let mut all: Vec<Candidate> = Vec::new();
    let room = usize::try_from(cap).unwrap_or(usize::MAX) / 4 / elements.max(1);
    // A turn rounds halves once more.
    let turns = if size == 2 { super::MOST_HALF_CHUNKS } else { usize::MAX };
    let plans: Vec<_> = kinds(precision)
        .filter_map(|number| Some((number, Plan::new(cuda, question, &KINDS[number], &view)?)))
        .collect();
    for (most, apart) in [(turns, false), (room, true), (usize::MAX, true)] {
        let mut best: Option<(usize, usize, f64)> = None;
        for (number, plan) in &plans {
            let (number, kind) = (*number, &KINDS[*number]);
            if !apart && (plan.tiles + 1) * 4 > SCRATCH_BYTES {
                continue;
            }
            let panels = positions.div_ceil(plan.panel);
            let least = positions.div_ceil(MOST_TERMS);
            for pieces in 1..=most.clamp(1, 512.max(least)).min(panels) {
                let each = panels.div_ceil(pieces);
                let pieces = panels.div_ceil(each);
                if pieces < least || apart && pieces == 1 {
                    continue;
                }
                let added = match apart {
                    true => (pieces * elements * 8) as f64 / 3e12 + LAUNCH,
                    false => (pieces - 1) as f64 * TURN / CLOCK,
                };
                let clocks = plan.clocks(cuda, kind, size, pieces, each);
                let seconds = clocks / CLOCK + added + LAUNCH;
                if best.is_none_or(|best| seconds < best.2) {
                    best = Some((number, pieces, seconds));
                }
            }
        }
        let Some((number, pieces, seconds)) = best else { continue };
        let params = [pieces, number, usize::from(apart), question.rounding()];
        if all.iter().any(|other| other.params == params) {
            continue;
        }
        let split = match (pieces, apart) {
            (1, _) => String::new(),
            (_, true) => format!("sums in {pieces} pieces"),
            (_, false) => format!("sums in {pieces} turns"),
        };
        all.push(Candidate {
            name: precision.name().into(),
            split,
            workspace: if apart { (pieces * elements * 4) as u64 } else { 0 },
            seconds: cost.counted(precision.name(), seconds, pieces),
            deterministic: true,
            code: code::GRADIENT,
            params,
        });
    }
    all
}

/// `workspace` is 0 where the pieces take turns.
pub(super) fn run(
    cuda: &Cuda,
    question: &Question<'_>,
    candidate: &Candidate,
    at: Addresses,
    workspace: u64,
) -> Result<()> {
    let [pieces, number, ..] = candidate.params;
    let (g, dtype, size) = (question.geometry, question.dtype, question.dtype.size());
    let (kind, view, elements) = (&KINDS[number], View::forward(g), question.w_elements());
    let plan = Plan::new(cuda, question, kind, &view).filter(|plan| {
        plan.layout.suits(&[at.x], size) && at.y.is_multiple_of((plan.pack * size) as u64)
    });
    let Some(plan) = plan else {
        // Of a tensor that begins somewhere in another's memory.
        let direct = super::direct::Direct { cuda, geometry: g, dtype, engine: Engine::Plain };
        return direct.weight_gradient(at.x, at.y, at.w, 1, 0);
    };
    let all = (g.batch * g.out_length).div_ceil(plan.panel);
    let panels = all.div_ceil(pieces);
    // None is empty: whoever computes it would have nothing to begin with.
    let pieces = all.div_ceil(panels);
    // Whose turn it is, for each tile, and how many turns are claimed.
    let order = (workspace == 0 && pieces > 1).then(|| cuda.scratch());
    if let Some(order) = &order {
        cuda.stream.fill_bytes(order.address(), 0, (plan.tiles + 1) * 4)?;
    }
    let sums = Pieces::apart(pieces, workspace);
    let gradient = Gradient {
        strips: plan.layout.strips(&view),
        rows: view.rows as u32,
        panel: plan.panel as u32,
        pack: plan.pack as u32,
        pieces: pieces as u32,
        panels: panels as u32,
        unused: 0,
    };
    let blocks = plan.tiles.saturating_mul(pieces).min(cuda.gpu().properties.multiprocessors);
    let grid = Grid::new(blocks, strips::THREADS).with_shared(plan.shared);
    let args = Args::new().value(gradient).value(at.x).value(at.y).value(at.w).value(sums.partial);
    let args = args.value(order.as_ref().map_or(0, |order| order.address()));
    cuda.launch(kind.kernel, dtype, grid, args)?;
    sums.add(cuda, kernels::CONV_ADD_PARTIALS, dtype, elements, &[at.w])
}
