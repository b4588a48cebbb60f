//! Forward passes, and gradients for inputs, on the tensor cores of compute capability 9.0. A workspace, or
//! the device's scratch, holds the weights in the order in which they are needed: all of them, or as many
//! at a time as it has room for. See `kernels/conv_warpgroup.cuh`.

use super::strips::{self, CLOCK, Layout, Precision, STAGE_BYTES, Strips, TURNS, View};
use super::{Addresses, ConvPass, Cost, Engine, Question, code};
use crate::device::cuda::Cuda;
use crate::device::cuda::kernels::{self, Kernel};
use crate::device::cuda::launch::{Args, Grid};
use crate::device::cuda::rates::{LAUNCH, Rates};
use crate::device::cuda::scratch::SCRATCH_BYTES;
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Candidate;
use smallvec::SmallVec;

/// Places of the weights' stages.
const PLACES: usize = 6;

/// What the kernels take.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Gather {
    strips: Strips,
    rows: u32,
    stages: u32,
    chunks: u32,
    out_length: u32,
    first_position: u32,
    position_step: u32,
    w_group: u64,
    w_row: u64,
    w_channel: u64,
    w_first: i64,
    w_tap: i64,
    first_tile: u32,
    tiles: u32,
    pairs: u32,
    first_chunk: u32,
}

/// A kernel and the tiles that it computes: 128 · `blocks` positions of `columns` channels.
struct Kind {
    gather: Kernel,
    prepare: Kernel,
    columns: usize,
    blocks: usize,
    precision: Precision,
    /// Clocks that a stage takes of 4-byte and of 2-byte numbers, and a tile beside its stages, on an H200.
    stage: [f64; 2],
    tile: f64,
}

const KINDS: [Kind; 6] = [
    kind(kernels::GATHER_256_1, kernels::PREPARE_256, [256, 1], [635.0, 760.0], 14e3),
    kind(kernels::GATHER_128_2, kernels::PREPARE_128, [128, 2], [760.0, 1010.0], 12e3),
    kind(kernels::GATHER_128_1, kernels::PREPARE_128, [128, 1], [500.0, 580.0], 8e3),
    kind(kernels::GATHER_64_2, kernels::PREPARE_64, [64, 2], [640.0, 840.0], 8e3),
    Kind {
        precision: Precision::Split,
        ..kind(
            kernels::GATHER_SPLIT_128_1,
            kernels::PREPARE_SPLIT_128,
            [128, 1],
            [1000.0, 0.0],
            8e3,
        )
    },
    Kind {
        precision: Precision::Split,
        ..kind(kernels::GATHER_SPLIT_64_1, kernels::PREPARE_SPLIT_64, [64, 1], [680.0, 0.0], 5e3)
    },
];

const fn kind(
    gather: Kernel,
    prepare: Kernel,
    [columns, blocks]: [usize; 2],
    stage: [f64; 2],
    tile: f64,
) -> Kind {
    Kind { gather, prepare, columns, blocks, precision: Precision::Single, stage, tile }
}

/// The kinds that multiply in a precision, by number.
pub(super) fn kinds(precision: Precision) -> impl Iterator<Item = usize> {
    (0..KINDS.len()).filter(move |&number| KINDS[number].precision == precision)
}

/// How one view is computed by a kind of kernel.
struct Plan {
    layout: Layout,
    stages: usize,
    chunks: usize,
    /// Tiles of channels of the result, in a group.
    tiles: usize,
    /// Bytes of the weights of a tile and a chunk, for all groups.
    weights: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Plan {
    fn new(cuda: &Cuda, question: &Question<'_>, kind: &Kind, view: &View) -> Option<Plan> {
        let size = question.dtype.size();
        let (columns, count) = (kind.columns, 128 * kind.blocks);
        let place = STAGE_BYTES * columns * kind.precision.parts();
        let terms = STAGE_BYTES / size;
        let cut = |chunk: usize, whole: bool| -> Option<(f64, Plan)> {
            let stages = (chunk * view.taps).div_ceil(terms);
            let chunks = view.channels.div_ceil(chunk);
            // A buffer is written again only when the places have been in between.
            let buffers = (PLACES - 1).div_ceil(stages) + 1;
            let layout = if whole {
                Layout::whole(view, size, count, [chunk, buffers])?
            } else {
                Layout::plain(view, size, count, strips::term_lane(size), [chunk, 1, buffers])
            };
            let tables = stages * terms * 4 + 2 * layout.packs() * 4;
            let shared = TURNS + 2 * 4 * columns + PLACES * place + layout.bytes + tables;
            if shared > cuda.shared_per_block() {
                return None;
            }
            let tiles = view.rows.div_ceil(columns);
            let weights = view.groups * stages * place;
            // Larger chunks come late, which the first tile waits for.
            let bytes = (chunk * size) as f64 / 128.0;
            let score = (stages * chunks) as f64 * (1.0 + 0.04 * (bytes - 1.0).max(0.0));
            Some((score, Plan { layout, stages, chunks, tiles, weights, shared }))
        };
        // Chunks of 32 to 512 bytes of each position, and all there are where they are fewer.
        let (least, most) = ((32 / size).min(view.channels), (512 / size).min(view.channels));
        let fewest = view.channels.div_ceil(most);
        let most_chunks = view.channels.div_ceil(least);
        let plain = (fewest..=most_chunks)
            .map(|chunks| view.channels.div_ceil(chunks))
            .filter_map(|chunk| cut(chunk, false));
        let whole = (1..=512 / size / terms).filter_map(|stages| cut(stages * terms, true));
        let better = |a: (f64, Plan), b: (f64, Plan)| if b.0 < a.0 { b } else { a };
        whole.chain(plain).reduce(better).map(|(_, plan)| plan)
    }
}

/// How many of a plan's tiles and chunks a room holds the weights of.
#[derive(Clone, Copy)]
struct Held {
    tiles: usize,
    chunks: usize,
}

impl Plan {
    /// `None` where that is not a tile of a chunk. Sums that are not in one launch are added up in the
    /// result, which is read and written again, and in halves rounded: tiles are given up before chunks.
    fn held(&self, room: u64, dtype: DType) -> Option<Held> {
        let units = usize::try_from(room / self.weights as u64).unwrap_or(usize::MAX);
        let tiles = (units / self.chunks).clamp(1, self.tiles);
        let chunks = units.min(self.chunks);
        let passes = self.chunks.div_ceil(chunks.max(1));
        let few = dtype.size() > 2 || passes <= super::MOST_HALF_CHUNKS;
        (chunks > 0 && few).then_some(Held { tiles, chunks })
    }

    fn seconds(&self, cuda: &Cuda, size: usize, kind: &Kind, view: &View, held: Held) -> f64 {
        let columns = (view.batch * view.positions).div_ceil(128 * kind.blocks) * view.groups;
        let stage = kind.stage[usize::from(size == 2)];
        let (across, passes) = (self.tiles.div_ceil(held.tiles), self.chunks.div_ceil(held.chunks));
        let rounds = (columns * held.tiles).div_ceil(cuda.gpu().properties.multiprocessors);
        let clocks = rounds as f64 * ((self.stages * held.chunks) as f64 * stage + kind.tile);
        let x = (view.batch * view.groups * view.channels * view.length * size) as f64;
        let y = (view.batch * view.groups * view.rows * view.positions * size) as f64;
        let moved = across as f64 * x + (2 * passes - 1) as f64 * y;
        let launches = (across * passes) as f64;
        let moving = moved / Rates::of(&cuda.gpu().properties).bytes;
        let w = (self.weights * self.chunks * self.tiles) as f64;
        (launches * clocks / CLOCK).max(moving) + 2.0 * launches * LAUNCH + 2.0 * w / 1e12
    }
}

/// A pass by a kind of kernel: its views, and how each is computed.
fn plans(cuda: &Cuda, question: &Question<'_>, kind: &Kind) -> Option<SmallVec<[(View, Plan); 4]>> {
    let views = View::of(question)?;
    views.into_iter().map(|view| Some((view, Plan::new(cuda, question, kind, &view)?))).collect()
}

pub(super) fn candidates(
    cuda: &Cuda,
    question: &Question<'_>,
    cost: &Cost,
    cap: u64,
) -> Vec<Candidate> {
    let Some(precision) = Precision::of(question) else { return Vec::new() };
    if !strips::takes(&cuda.gpu().properties, question.geometry) {
        return Vec::new();
    }
    let (scratch, size) = (SCRATCH_BYTES as u64, question.dtype.size());
    let mut all: Vec<Candidate> = Vec::new();
    let kinds: Vec<_> = kinds(precision)
        .filter_map(|number| Some((number, plans(cuda, question, &KINDS[number])?)))
        .collect();
    // Of what a room holds, the fastest; one room after another, the smallest first.
    for room in [scratch, cap, u64::MAX] {
        let offers = kinds.iter().filter_map(|(number, plans)| {
            let (number, kind) = (*number, &KINDS[*number]);
            let (mut seconds, mut bytes, mut parts) = (0.0, 0, (None, None));
            for (view, plan) in plans {
                let held = plan.held(room, question.dtype)?;
                seconds += plan.seconds(cuda, size, kind, view, held);
                bytes = bytes.max((held.tiles * held.chunks * plan.weights) as u64);
                let channels = (held.tiles < plan.tiles).then_some(held.tiles * kind.columns);
                let sums = (held.chunks < plan.chunks).then_some(held.chunks * plan.layout.chunk);
                parts = (parts.0.or(channels), parts.1.or(sums));
            }
            Some((number, seconds, bytes, parts))
        });
        let best = offers.reduce(|a, b| if b.1 < a.1 { b } else { a });
        let Some((number, seconds, bytes, (channels, sums))) = best else { continue };
        // As many launches as that makes.
        let g = question.geometry;
        let (inputs, outputs) = (g.in_channels / g.groups, g.out_channels / g.groups);
        let (rows, terms) = match question.pass {
            ConvPass::InputGradient => (inputs, outputs),
            _ => (outputs, inputs),
        };
        let launches = channels.map_or(1, |channels| rows.div_ceil(channels))
            * sums.map_or(1, |channels| terms.div_ceil(channels));
        let split = [
            channels.map(|channels| format!("{channels} channels at a time")),
            sums.map(|channels| format!("sums over {channels} at a time")),
        ];
        let params = [bytes as usize, number, 0, question.rounding()];
        if all.iter().any(|other| other.params == params) {
            continue;
        }
        all.push(Candidate {
            name: precision.name().into(),
            split: split.into_iter().flatten().collect::<Vec<_>>().join(", "),
            workspace: if bytes <= scratch { 0 } else { bytes },
            seconds: cost.counted(precision.name(), seconds, launches),
            deterministic: true,
            code: code::GATHER,
            params,
        });
    }
    all
}

/// `workspace` is 0 where the weights go to the scratch.
pub(super) fn run(
    cuda: &Cuda,
    question: &Question<'_>,
    candidate: &Candidate,
    at: Addresses,
    workspace: u64,
) -> Result<()> {
    let [room, number, ..] = candidate.params;
    let (g, size) = (question.geometry, question.dtype.size());
    let kind = &KINDS[number];
    let (source, out) = match question.pass {
        ConvPass::InputGradient => (at.y, at.x),
        _ => (at.x, at.y),
    };
    let plans = plans(cuda, question, kind);
    let plans =
        plans.filter(|plans| plans.iter().all(|(_, plan)| plan.layout.suits(&[source], size)));
    let Some(plans) = plans else {
        // Of a tensor that begins somewhere in another's memory.
        let direct = super::direct::Direct {
            cuda,
            geometry: g,
            dtype: question.dtype,
            engine: Engine::Plain,
        };
        return match question.pass {
            ConvPass::InputGradient => direct.input_gradient(source, at.w, out),
            _ => direct.forward(source, at.w, at.bias, out),
        };
    };
    let scratch = (workspace == 0).then(|| cuda.scratch());
    let weights = scratch.as_ref().map_or(workspace, |scratch| scratch.address());
    let forward = question.pass == ConvPass::Forward;
    let (inputs, outputs) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let (row, channel) = (inputs * g.kernel, g.kernel);
    let out_length = if forward { g.out_length } else { g.in_length };
    for (view, plan) in plans {
        let (w_row, w_channel) = if forward { (row, channel) } else { (channel, row) };
        let even = out_length.is_multiple_of(2) && view.positions.is_multiple_of(2);
        let pairs = even && view.position_step == 1 && out.is_multiple_of(2 * size as u64);
        let Some(held) = plan.held(room as u64, question.dtype) else { continue };
        let tiles = (0..plan.tiles).step_by(held.tiles);
        let chunks = || (0..plan.chunks).step_by(held.chunks);
        let launches = tiles.flat_map(|tile| chunks().map(move |chunk| (tile, chunk)));
        for (first_tile, first_chunk) in launches {
            let tiles = held.tiles.min(plan.tiles - first_tile);
            let chunks = held.chunks.min(plan.chunks - first_chunk);
            let gather = Gather {
                strips: plan.layout.strips(&view),
                rows: view.rows as u32,
                stages: plan.stages as u32,
                chunks: chunks as u32,
                out_length: out_length as u32,
                first_position: view.first_position as u32,
                position_step: view.position_step as u32,
                w_group: (outputs * row) as u64,
                w_row: w_row as u64,
                w_channel: w_channel as u64,
                w_first: view.first_tap as i64,
                w_tap: view.next_tap,
                first_tile: first_tile as u32,
                tiles: tiles as u32,
                pairs: u32::from(pairs),
                first_chunk: first_chunk as u32,
            };
            let vectors = plan.weights / kind.precision.parts() / 16 * tiles * chunks;
            let args = Args::new().value(gather).value(at.w).value(weights);
            cuda.launch(kind.prepare, question.dtype, cuda.linear(vectors), args)?;
            let columns = (view.batch * view.positions).div_ceil(128 * kind.blocks);
            let blocks = columns.saturating_mul(view.groups).saturating_mul(tiles);
            let blocks = blocks.min(cuda.gpu().properties.multiprocessors);
            let grid = Grid::new(blocks, strips::THREADS).with_shared(plan.shared);
            let bias = if first_chunk == 0 { at.bias } else { 0 };
            let args = Args::new().value(gather).value(source).value(weights);
            cuda.launch(kind.gather, question.dtype, grid, args.value(bias).value(out))?;
        }
    }
    Ok(())
}
