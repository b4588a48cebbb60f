//! Convolutions with one input channel a group, bound by memory, and weight gradients with few
//! channels a group. See `kernels/depthwise.cu`.

use super::depthwise_rows::Plan;
use super::direct::Sizes;
use crate::device::cuda::Cuda;
use crate::device::cuda::gemm_kernel::{Pieces, sum_size};
use crate::device::cuda::kernels::{self, Kernel};
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;
use crate::error::Result;

/// Whether these kernels take such a geometry.
pub(super) fn takes(geometry: &ConvGeometry) -> bool {
    geometry.in_channels == geometry.groups
}

/// Threads that share a row, and bytes of shared memory a block, for rows of `length` positions with
/// stride 1 and dilation 1; `None` where these are not what the taps are, or there are too many.
fn slide(g: &ConvGeometry, length: usize, dtype: DType) -> Option<(usize, usize)> {
    const MOST_TAPS: usize = 1024;
    const MOST_SHARED: usize = 32 << 10;
    let steps = (g.stride == 1 || g.out_length <= 1, g.dilation == 1 || g.kernel <= 1);
    if steps != (true, true) || g.kernel > MOST_TAPS {
        return None;
    }
    let reach = (g.kernel + 6) / 4 * 4;
    let shared = |lanes: usize| 256 / lanes * (4 * lanes + 2 * reach + 4) * sum_size(dtype);
    let least = length.div_ceil(4).clamp(1, 256).next_power_of_two();
    let lanes = (least.trailing_zeros()..=8).map(|log| 1 << log);
    lanes.map(|lanes| (lanes, shared(lanes))).find(|&(_, bytes)| bytes <= MOST_SHARED)
}

/// Blocks for `rows` rows of `length` positions by `lanes` threads each.
fn slide_grid(cuda: &Cuda, rows: usize, length: usize, (lanes, shared): (usize, usize)) -> Grid {
    let turns = rows.div_ceil(256 / lanes).saturating_mul(length.div_ceil(4 * lanes));
    let most = cuda.gpu().properties.multiprocessors * 64;
    Grid::new(turns.min(most), 256).with_shared(shared)
}

/// `y` from `x` and `w`, plus `bias` unless that is 0. Addresses are of the device's memory.
pub(super) fn forward(
    cuda: &Cuda,
    geometry: &ConvGeometry,
    dtype: DType,
    x: u64,
    w: u64,
    bias: u64,
    y: u64,
) -> Result<()> {
    let (rows, length) = (geometry.batch * geometry.out_channels, geometry.out_length);
    if rows * length == 0 {
        return Ok(());
    }
    if let Some(rows) = Plan::of(ConvPass::Forward, geometry, dtype, [x, y]) {
        return rows.convolve(cuda, dtype, [x, w, bias, y]);
    }
    let args = Args::new().value(Sizes::new(geometry)).value(x).value(w).value(bias).value(y);
    if let Some(plan) = slide(geometry, length, dtype) {
        let grid = slide_grid(cuda, rows, length, plan);
        return cuda.launch(kernels::DEPTHWISE_SLIDE, dtype, grid, args.value(plan.0 as u32));
    }
    cuda.launch(kernels::DEPTHWISE_FORWARD, dtype, cuda.linear(rows * length), args)
}

/// `dx` from `dy` and `w`.
pub(super) fn input_gradient(
    cuda: &Cuda,
    geometry: &ConvGeometry,
    dtype: DType,
    dy: u64,
    w: u64,
    dx: u64,
) -> Result<()> {
    let (rows, length) = (geometry.batch * geometry.in_channels, geometry.in_length);
    if rows * length == 0 {
        return Ok(());
    }
    if let Some(rows) = Plan::of(ConvPass::InputGradient, geometry, dtype, [dy, dx]) {
        return rows.convolve(cuda, dtype, [dy, w, 0, dx]);
    }
    let args = Args::new().value(Sizes::new(geometry)).value(dy).value(w).value(dx);
    if let Some(plan) = slide(geometry, length, dtype) {
        let (kernel, args) = (kernels::DEPTHWISE_SLIDE_GRADIENT, args.value(plan.0 as u32));
        return cuda.launch(kernel, dtype, slide_grid(cuda, rows, length, plan), args);
    }
    cuda.launch(kernels::DEPTHWISE_GRADIENT, dtype, cuda.linear(rows * length), args)
}

/// `dw` from `x` and `dy`, for any number of groups: a block for each pair of channels.
pub(super) fn weight_gradient(
    cuda: &Cuda,
    geometry: &ConvGeometry,
    dtype: DType,
    x: u64,
    dy: u64,
    dw: u64,
) -> Result<()> {
    let g = geometry;
    let pairs = g.out_channels * (g.in_channels / g.groups);
    let (elements, terms) = (pairs * g.kernel, g.batch * g.out_length);
    if elements == 0 {
        return Ok(());
    }
    if terms == 0 {
        return cuda.stream.fill_bytes(dw, 0, elements * dtype.size());
    }
    if let Some(rows) = Plan::of(ConvPass::WeightGradient, g, dtype, [x, dy]) {
        return rows.correlate(cuda, dtype, [x, dy, dw]);
    }
    if let Some(slide) = SlideWeight::of(g, dtype) {
        return slide.run(cuda, g, dtype, [x, dy, dw]);
    }
    let (kernel, taps) = match g.kernel {
        1 => (kernels::DEPTHWISE_WEIGHT_1, 1),
        2..=4 => (kernels::DEPTHWISE_WEIGHT_4, 4),
        5..=8 => (kernels::DEPTHWISE_WEIGHT_8, 8),
        9..=16 => (kernels::DEPTHWISE_WEIGHT_16, 16),
        _ => (kernels::DEPTHWISE_WEIGHT_32, 32),
    };
    let blocks = pairs.saturating_mul(g.kernel.div_ceil(taps));
    let wanted = (cuda.gpu().properties.multiprocessors * 16).div_ceil(blocks).min(terms / 2048);
    let pieces = Pieces::new(cuda, wanted.min(Pieces::held(elements, dtype)).min(512));
    let args = Args::new().value(Sizes::new(g)).value(x).value(dy).value(dw);
    let args = args.value(pieces.partial).value(pieces.count as u64);
    let grid = Grid::new(blocks.saturating_mul(pieces.count), 256);
    cuda.launch(kernel, dtype, grid, args)?;
    pieces.add(cuda, kernels::DEPTHWISE_ADD_PARTIALS, dtype, elements, &[dw])
}

/// How a gradient for weights with stride 1 and dilation 1 is cut up.
struct SlideWeight {
    kernel: Kernel,
    taps: usize,
    /// Threads that share a row, each with eight positions.
    lanes: usize,
}

impl SlideWeight {
    /// `None` where that is not what the taps are, there are too many, or rows are shorter than a thread's.
    fn of(g: &ConvGeometry, dtype: DType) -> Option<SlideWeight> {
        let steps = (g.stride == 1 || g.out_length <= 1, g.dilation == 1 || g.kernel <= 1);
        let (kernel, taps) = match g.kernel {
            1..=4 => (kernels::DEPTHWISE_SLIDE_WEIGHT_4, 4),
            5..=8 => (kernels::DEPTHWISE_SLIDE_WEIGHT_8, 8),
            9..=16 => (kernels::DEPTHWISE_SLIDE_WEIGHT_16, 16),
            17..=32 => (kernels::DEPTHWISE_SLIDE_WEIGHT_32, 32),
            _ => return None,
        };
        let lanes = g.out_length.div_ceil(8).clamp(2, 256).next_power_of_two();
        let fits = steps == (true, true) && g.out_length > 8 && dtype != DType::F64;
        fits.then_some(SlideWeight { kernel, taps, lanes })
    }

    fn run(
        &self,
        cuda: &Cuda,
        g: &ConvGeometry,
        dtype: DType,
        [x, dy, dw]: [u64; 3],
    ) -> Result<()> {
        let pairs = g.out_channels * (g.in_channels / g.groups);
        let elements = pairs * g.kernel;
        let lines = 256 / self.lanes;
        let passes = g.batch.div_ceil(lines) * g.out_length.div_ceil(8 * self.lanes);
        // A block's sums are added up at its end, for which it should have some.
        let wanted = (cuda.gpu().properties.multiprocessors * 8).div_ceil(pairs).min(passes / 4);
        let pieces = Pieces::new(cuda, wanted.min(Pieces::held(elements, dtype)).clamp(1, 512));
        let span = 8 * self.lanes + self.taps - 1;
        let shared = (lines * (span + span / 8 + 1)).max(256 * (self.taps + 1)) * sum_size(dtype);
        let args = Args::new().value(Sizes::new(g)).value(x).value(dy).value(dw);
        let args = args.value(pieces.partial).value(pieces.count as u64).value(self.lanes as u32);
        let grid = Grid::new(pairs.saturating_mul(pieces.count), 256).with_shared(shared);
        cuda.launch(self.kernel, dtype, grid, args)?;
        pieces.add(cuda, kernels::DEPTHWISE_ADD_PARTIALS, dtype, elements, &[dw])
    }
}
