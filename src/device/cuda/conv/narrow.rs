//! Convolutions whose groups have few terms and few rows, on the tensor cores of compute capability 8.0 and
//! later: the weights of a group stay in registers. See `kernels/conv_narrow.cuh`.

use super::strips::{self, CLOCK, Layout, Precision, Strips, View};
use super::{Addresses, ConvPass, Cost, Engine, Question, code};
use crate::device::cuda::Cuda;
use crate::device::cuda::gemm_kernel::Pieces;
use crate::device::cuda::kernels::{self, Kernel};
use crate::device::cuda::launch::{Args, Grid};
use crate::device::cuda::rates::{LAUNCH, Rates};
use crate::error::Result;
use crate::plan::Candidate;
use smallvec::SmallVec;

/// Threads of a block.
const THREADS: usize = 128;
/// Rows of a product, and its columns: positions, or taps of channels.
const ROWS: usize = 16;
const COLUMNS: usize = 8;
/// Positions that a block takes at a time: as many as leave shared memory for several blocks.
const TILES: [usize; 3] = [512, 256, 128];
const SHARED: usize = 40 << 10;
/// More blocks than a multiprocessor holds at once.
const BLOCKS: usize = 8;
/// Results of more rows or columns than so many tiles of them are computed by others.
const MOST_TILES: usize = 4;
/// Terms of one sum of a weight gradient: the tensor cores round towards zero.
const MOST_TERMS: usize = 1 << 17;

/// What the kernels take.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Narrow {
    strips: Strips,
    rows: u32,
    out_length: u32,
    first_position: u32,
    position_step: u32,
    w_group: u64,
    w_row: u64,
    w_channel: u64,
    w_first: i64,
    w_tap: i64,
    tile: u32,
    pieces: u32,
    pairs: u32,
    pack: u32,
    pitch: u32,
    unused: u32,
}

/// A kernel, and what it computes: `rows` times 16 rows, and `across` times a product's terms where results
/// are positions, or times 8 taps of channels where they are weights.
#[derive(Clone, Copy)]
struct Kind {
    kernel: Kernel,
    rows: usize,
    across: usize,
}

const fn kind(kernel: Kernel, rows: usize, across: usize) -> Kind {
    Kind { kernel, rows, across }
}

const GATHER: [Kind; 7] = [
    kind(kernels::NARROW_GATHER_1_2, 1, 2),
    kind(kernels::NARROW_GATHER_1_4, 1, 4),
    kind(kernels::NARROW_GATHER_1_8, 1, 8),
    kind(kernels::NARROW_GATHER_2_4, 2, 4),
    kind(kernels::NARROW_GATHER_2_8, 2, 8),
    kind(kernels::NARROW_GATHER_4_2, 4, 2),
    kind(kernels::NARROW_GATHER_4_4, 4, 4),
];
const GATHER_SPLIT: [Kind; 4] = [
    kind(kernels::NARROW_GATHER_SPLIT_1_4, 1, 4),
    kind(kernels::NARROW_GATHER_SPLIT_1_8, 1, 8),
    kind(kernels::NARROW_GATHER_SPLIT_2_4, 2, 4),
    kind(kernels::NARROW_GATHER_SPLIT_4_4, 4, 4),
];
const WEIGHT: [Kind; 5] = [
    kind(kernels::NARROW_WEIGHT_1_4, 1, 4),
    kind(kernels::NARROW_WEIGHT_1_8, 1, 8),
    kind(kernels::NARROW_WEIGHT_2_4, 2, 4),
    kind(kernels::NARROW_WEIGHT_2_8, 2, 8),
    kind(kernels::NARROW_WEIGHT_4_4, 4, 4),
];
const WEIGHT_SPLIT: [Kind; 4] = [
    kind(kernels::NARROW_WEIGHT_SPLIT_1_4, 1, 4),
    kind(kernels::NARROW_WEIGHT_SPLIT_1_8, 1, 8),
    kind(kernels::NARROW_WEIGHT_SPLIT_2_4, 2, 4),
    kind(kernels::NARROW_WEIGHT_SPLIT_4_4, 4, 4),
];

/// How one view is computed.
struct Plan {
    kind: Kind,
    layout: Layout,
    tile: usize,
    /// Elements of the output's gradient that are copied at once, and from one row of it to the next.
    pack: usize,
    pitch: usize,
    /// Bytes of shared memory.
    shared: usize,
    /// Tiles of rows and of columns, of all groups, and of positions.
    blocks: usize,
    tiles: usize,
    /// How many blocks share the positions.
    pieces: usize,
    /// Multiplications of a product's operands that all of them make.
    products: usize,
}

impl Plan {
    fn new(cuda: &Cuda, question: &Question<'_>, view: &View) -> Option<Plan> {
        let precision = Precision::of(question)?;
        let (size, weight) = (question.dtype.size(), question.pass == ConvPass::WeightGradient);
        let (terms, lines) = (32 / size, view.channels * view.taps);
        let kinds: &[Kind] = match (weight, precision) {
            (false, Precision::Single) => &GATHER,
            (false, Precision::Split) => &GATHER_SPLIT,
            (true, Precision::Single) => &WEIGHT,
            (true, Precision::Split) => &WEIGHT_SPLIT,
        };
        let row_tiles = |kind: &Kind| view.rows.div_ceil(ROWS * kind.rows);
        let line_tiles = |kind: &Kind| match weight {
            true => lines.div_ceil(COLUMNS * kind.across),
            false => 1,
        };
        let takes = |kind: &&Kind| weight || lines <= terms * kind.across;
        let work = |kind: &Kind| {
            row_tiles(kind) * line_tiles(kind) * (kind.rows * kind.across + kind.across + kind.rows)
        };
        let kind = *kinds.iter().filter(takes).min_by_key(|kind| work(kind))?;
        if row_tiles(&kind) * line_tiles(&kind) > MOST_TILES {
            return None;
        }
        let blocks = view.groups.saturating_mul(row_tiles(&kind) * line_tiles(&kind));
        let positions = view.batch * view.positions;
        let full = cuda.gpu().properties.multiprocessors * BLOCKS;
        let reach = match weight {
            true => ((COLUMNS * kind.across - 1).div_ceil(view.taps) + 1).min(view.channels),
            false => view.channels,
        };
        let cut = |tile: usize| {
            let (lane, zeros) = match weight {
                true => (strips::line_lane(view), 0),
                false => (strips::term_lane(size), 1),
            };
            let layout = Layout::plain(view, size, tile, lane, [reach, zeros, 1]);
            let pack = strips::pack(size, view.positions);
            let pitch = (tile * size / 4 + 4) * 4 / size;
            let gradient = if weight { ROWS * kind.rows * pitch * size } else { 0 };
            let tables = layout.packs() + if weight { tile + tile / pack } else { 0 };
            let sums = ROWS * kind.rows * (COLUMNS * kind.across + 1) * 4;
            let shared = layout.bytes + gradient + tables * 4;
            let shared = if weight { shared.max(sums) } else { shared };
            let tiles = positions.div_ceil(tile);
            let elements = question.w_elements();
            let most = match weight {
                true => Pieces::held(elements, question.dtype).max(1),
                false => usize::MAX,
            };
            let pieces = full.div_ceil(blocks).min(tiles).min(most);
            let columns =
                if weight { positions.div_ceil(terms) } else { positions.div_ceil(COLUMNS) };
            let products = blocks * columns * kind.rows * kind.across;
            Plan { kind, layout, tile, pack, pitch, shared, blocks, tiles, pieces, products }
        };
        let plans: SmallVec<[Plan; 3]> = TILES.into_iter().map(cut).collect();
        let enough = |plan: &Plan| plan.blocks * plan.tiles >= full || plan.tile == TILES[2];
        let fits = |plan: &Plan, most: usize| plan.shared <= most.min(cuda.shared_per_block());
        let best = plans.iter().position(|plan| fits(plan, SHARED) && enough(plan)).or_else(|| {
            plans.iter().position(|plan| fits(plan, 2 * SHARED) && plan.tile == TILES[2])
        });
        let plan = plans.into_iter().nth(best?)?;
        let warps = THREADS / 32 * plan.pieces;
        let short = !weight || positions / warps <= MOST_TERMS;
        let counted = blocks.saturating_mul(plan.pieces) < 1 << 30;
        (short && counted).then_some(plan)
    }

    fn seconds(&self, cuda: &Cuda, question: &Question<'_>, view: &View) -> f64 {
        let size = question.dtype.size();
        let length = view.groups * view.batch;
        let x = (length * view.channels * view.length * size) as f64;
        let y = (length * view.rows * view.positions * size) as f64;
        let per_group = (self.blocks / view.groups.max(1)) as f64;
        // A product, with what brings its operands into registers, and a tile beside its products, on an
        // H200.
        let parts = question.tf32 || size == 2;
        let each = if parts { 1.6 } else { 3.2 };
        let spread =
            (self.blocks * self.pieces).min(cuda.gpu().properties.multiprocessors).max(1) as f64;
        let clocks = (self.products as f64 * each
            + (self.blocks * self.tiles * self.tile) as f64 * 1.5)
            / spread;
        let moving = (x * per_group + y) / (0.6 * Rates::of(&cuda.gpu().properties).bytes);
        (clocks / CLOCK).max(moving) + LAUNCH
    }

    fn narrow(&self, view: &View) -> Narrow {
        Narrow {
            strips: self.layout.strips(view),
            rows: view.rows as u32,
            out_length: 0,
            first_position: view.first_position as u32,
            position_step: view.position_step as u32,
            w_group: 0,
            w_row: 0,
            w_channel: 0,
            w_first: view.first_tap as i64,
            w_tap: view.next_tap,
            tile: self.tile as u32,
            pieces: self.pieces as u32,
            pairs: 0,
            pack: self.pack as u32,
            pitch: self.pitch as u32,
            unused: 0,
        }
    }
}

/// The views of a pass, and how each is computed.
fn plans(cuda: &Cuda, question: &Question<'_>) -> Option<SmallVec<[(View, Plan); 4]>> {
    let views = match question.pass {
        ConvPass::WeightGradient => SmallVec::from_iter([View::forward(question.geometry)]),
        _ => View::of(question)?,
    };
    views.into_iter().map(|view| Some((view, Plan::new(cuda, question, &view)?))).collect()
}

pub(super) fn candidate(cuda: &Cuda, question: &Question<'_>, cost: &Cost) -> Option<Candidate> {
    let properties = &cuda.gpu().properties;
    if properties.compute_capability < (8, 0) || !strips::fits(question.geometry) {
        return None;
    }
    let plans = plans(cuda, question)?;
    let counted = plans.iter().map(|(view, plan)| plan.seconds(cuda, question, view)).sum();
    let name = match Precision::of(question)? {
        Precision::Single => "narrow, tensor cores",
        Precision::Split => "narrow, tensor cores, f32 in two parts",
    };
    Some(Candidate {
        name: name.into(),
        split: String::new(),
        workspace: 0,
        seconds: cost.counted(name, counted, 1),
        deterministic: true,
        code: code::NARROW,
        params: [0, 0, 0, question.rounding()],
    })
}

pub(super) fn run(cuda: &Cuda, question: &Question<'_>, at: Addresses) -> Result<()> {
    let (g, dtype, size) = (question.geometry, question.dtype, question.dtype.size());
    let weight = question.pass == ConvPass::WeightGradient;
    let (source, out) = match question.pass {
        ConvPass::InputGradient => (at.y, at.x),
        _ => (at.x, at.y),
    };
    let plans = plans(cuda, question).filter(|plans| {
        plans.iter().all(|(_, plan)| {
            let gradient = !weight || at.y.is_multiple_of((plan.pack * size) as u64);
            gradient && plan.layout.suits(&[source], size)
        })
    });
    let Some(plans) = plans else {
        // Of a tensor that begins somewhere in another's memory.
        let direct = super::direct::Direct { cuda, geometry: g, dtype, engine: Engine::Plain };
        return match question.pass {
            ConvPass::Forward => direct.forward(source, at.w, at.bias, out),
            ConvPass::InputGradient => direct.input_gradient(source, at.w, out),
            ConvPass::WeightGradient => direct.weight_gradient(at.x, at.y, at.w, 1, 0),
        };
    };
    let forward = question.pass == ConvPass::Forward;
    let (inputs, outputs) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let (row, channel) = (inputs * g.kernel, g.kernel);
    for (view, plan) in plans {
        let mut narrow = plan.narrow(&view);
        if weight {
            let elements = question.w_elements();
            let pieces = Pieces::new(cuda, plan.pieces);
            let args = Args::new().value(narrow).value(at.x).value(at.y).value(at.w);
            let grid = Grid::new(plan.blocks * plan.pieces, THREADS).with_shared(plan.shared);
            cuda.launch(plan.kind.kernel, dtype, grid, args.value(pieces.partial))?;
            return pieces.add(cuda, kernels::CONV_ADD_PARTIALS, dtype, elements, &[at.w]);
        }
        let out_length = if forward { g.out_length } else { g.in_length };
        let (w_row, w_channel) = if forward { (row, channel) } else { (channel, row) };
        let even = out_length.is_multiple_of(2) && view.positions.is_multiple_of(2);
        let pairs = even && view.position_step == 1 && out.is_multiple_of(2 * size as u64);
        narrow.out_length = out_length as u32;
        narrow.w_group = (outputs * row) as u64;
        (narrow.w_row, narrow.w_channel) = (w_row as u64, w_channel as u64);
        narrow.pairs = u32::from(pairs);
        let grid = Grid::new(plan.blocks * plan.pieces, THREADS).with_shared(plan.shared);
        let args = Args::new().value(narrow).value(source).value(at.w).value(at.bias).value(out);
        cuda.launch(plan.kind.kernel, dtype, grid, args)?;
    }
    Ok(())
}
