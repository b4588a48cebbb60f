//! Convolutions without a workspace, for any geometry: implicit products by tiles, or by columns where
//! there are few rows; the tiles on the plain units or on tensor cores. See `kernels/conv_gather.cuh` and
//! `kernels/conv_weight.cuh`.

use super::{Question, depthwise};
use crate::device::cuda::Cuda;
use crate::device::cuda::gemm_kernel::{Pieces, area_ratio, sum_size, tiles};
use crate::device::cuda::kernels::{self, Kernel};
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;
use crate::error::Result;

/// A geometry as the kernels take it.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Sizes {
    batch: u64,
    in_channels: u64,
    out_channels: u64,
    in_length: u64,
    out_length: u64,
    kernel: u64,
    pub(super) stride: u64,
    pub(super) dilation: u64,
    groups: u64,
    pad_left: u64,
    /// From one tap to the next that meets the same position in a strided gradient.
    pub(super) period: u64,
    /// How far apart along the output they meet it.
    pub(super) shift: u64,
}

impl Sizes {
    pub(super) fn new(g: &ConvGeometry) -> Sizes {
        // A step that is never taken may be larger than anything; as 1 it overflows nothing.
        let stride = if g.out_length <= 1 { 1 } else { g.stride as u64 };
        let dilation = if g.kernel <= 1 { 1 } else { g.dilation as u64 };
        let (mut common, mut rest) = (stride, dilation);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        let common = common.max(1);
        Sizes {
            batch: g.batch as u64,
            in_channels: g.in_channels as u64,
            out_channels: g.out_channels as u64,
            in_length: g.in_length as u64,
            out_length: g.out_length as u64,
            kernel: g.kernel as u64,
            stride,
            dilation,
            groups: g.groups as u64,
            pad_left: g.pad_left as u64,
            period: stride / common,
            shift: dilation / common,
        }
    }
}

/// Whether every offset within a sample, and within the weights of a group, fits 32 bits, what the
/// kernels add before they compare included.
fn narrow(g: &ConvGeometry) -> bool {
    const MOST: f64 = (1u64 << 30) as f64;
    let (ci, co) = ((g.in_channels / g.groups) as f64, (g.out_channels / g.groups) as f64);
    let padded = g.in_length as f64 + g.pad_left as f64 + g.pad_right as f64;
    let sample = (ci.max(co) + 128.0) * (g.in_length.max(g.out_length) as f64);
    sample + 3.0 * padded < MOST && (ci + 128.0) * (co + 128.0) * g.kernel as f64 * 2.0 < MOST
}

/// What multiplies the tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Engine {
    Plain,
    /// Tensor cores, in TF32, which halves are as they are.
    Tensor,
}

/// Whether tensor cores can take a pass: the chip has them, the type may be rounded to TF32, and there
/// are tiles to fill.
pub(super) fn has_tensor_cores(cuda: &Cuda, question: &Question<'_>) -> bool {
    let g = question.geometry;
    let rows = match question.pass {
        ConvPass::InputGradient => g.in_channels / g.groups,
        _ => g.out_channels / g.groups,
    };
    let full = match question.pass {
        ConvPass::WeightGradient => !tiny(g),
        _ => rows > 16,
    };
    let exact = matches!(question.dtype, DType::F16 | DType::BF16);
    let chip = cuda.gpu().properties.compute_capability >= (8, 0);
    chip && (exact || question.tf32) && full && narrow(g)
}

/// One convolution without a workspace. Addresses that its passes take are of the device's memory.
pub(super) struct Direct<'a> {
    pub(super) cuda: &'a Cuda,
    pub(super) geometry: &'a ConvGeometry,
    pub(super) dtype: DType,
    pub(super) engine: Engine,
}

impl Direct<'_> {
    /// One kernel for forward passes and one for input gradients.
    fn gather(&self, gradient: bool, args: [u64; 4]) -> Result<()> {
        let (cuda, g, dtype) = (self.cuda, self.geometry, self.dtype);
        let sizes = Sizes::new(g);
        let (rows, positions, residues) = if gradient {
            let (length, stride) = (g.in_length, sizes.stride as usize);
            (g.in_channels / g.groups, length.div_ceil(stride), stride.min(length))
        } else {
            (g.out_channels / g.groups, g.out_length, 1)
        };
        let (columns, turns) = (g.batch * positions, g.groups * residues);
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let pick = |pair: [Kernel; 2]| pair[usize::from(gradient)];
        let many = tiles(rows, columns, 128).saturating_mul(turns);
        let large =
            area_ratio(rows, columns) < 1.3 && many >= cuda.gpu().properties.multiprocessors;
        let (kernel, blocks) = match (self.engine, rows) {
            (Engine::Tensor, _) if large => {
                ([kernels::CONV_FORWARD_TENSOR_128, kernels::CONV_GRADIENT_TENSOR_128], [128, 128])
            }
            (Engine::Tensor, _) => {
                ([kernels::CONV_FORWARD_TENSOR_64, kernels::CONV_GRADIENT_TENSOR_64], [64, 64])
            }
            (_, 1) => ([kernels::CONV_FORWARD_THIN_1, kernels::CONV_GRADIENT_THIN_1], [1, 256]),
            (_, 2..=4) => ([kernels::CONV_FORWARD_THIN_4, kernels::CONV_GRADIENT_THIN_4], [4, 256]),
            (_, 5..=16) => {
                ([kernels::CONV_FORWARD_THIN_16, kernels::CONV_GRADIENT_THIN_16], [16, 256])
            }
            _ if !narrow(g) => {
                ([kernels::CONV_FORWARD_64_WIDE, kernels::CONV_GRADIENT_64_WIDE], [64, 64])
            }
            _ if dtype != DType::F64 && large => {
                ([kernels::CONV_FORWARD_128, kernels::CONV_GRADIENT_128], [128, 128])
            }
            _ => ([kernels::CONV_FORWARD_64, kernels::CONV_GRADIENT_64], [64, 64]),
        };
        let blocks = rows.div_ceil(blocks[0]).saturating_mul(columns.div_ceil(blocks[1]));
        let grid = Grid::new(blocks.saturating_mul(turns), 256);
        let args = args.into_iter().fold(Args::new().value(sizes), Args::value);
        cuda.launch(pick(kernel), dtype, grid, args)
    }

    /// `y` from `x` and `w`, plus `bias` unless that is 0.
    pub(super) fn forward(&self, x: u64, w: u64, bias: u64, y: u64) -> Result<()> {
        self.gather(false, [x, w, bias, y])
    }

    /// `dx` from `dy` and `w`.
    pub(super) fn input_gradient(&self, dy: u64, w: u64, dx: u64) -> Result<()> {
        self.gather(true, [dy, w, 0, dx])
    }

    /// `dw` from `x` and `dy`. With one piece nothing but the device's scratch is used, as far as that
    /// goes; with more, `workspace` holds as many partial results.
    pub(super) fn weight_gradient(
        &self,
        x: u64,
        dy: u64,
        dw: u64,
        pieces: usize,
        workspace: u64,
    ) -> Result<()> {
        let (cuda, geometry, dtype) = (self.cuda, self.geometry, self.dtype);
        let (rows, columns, terms) = weight_shape(geometry);
        let elements = rows * columns * geometry.groups;
        if elements == 0 {
            return Ok(());
        }
        if terms == 0 {
            return cuda.stream.fill_bytes(dw, 0, elements * dtype.size());
        }
        if tiny(geometry) {
            return depthwise::weight_gradient(cuda, geometry, dtype, x, dy, dw);
        }
        let (kernel, blocks) = weight_tiles(cuda, geometry, dtype, self.engine);
        let pieces = match (pieces, workspace) {
            (0 | 1, _) | (_, 0) => Pieces::in_scratch(cuda, elements, dtype, blocks, terms),
            _ => Pieces::apart(pieces, workspace),
        };
        let args = Args::new().value(Sizes::new(geometry)).value(x).value(dy).value(dw);
        let args = args.value(pieces.partial).value(pieces.count as u64);
        let grid = Grid::new(blocks.saturating_mul(pieces.count), 256);
        cuda.launch(kernel, dtype, grid, args)?;
        pieces.add(cuda, kernels::CONV_ADD_PARTIALS, dtype, elements, &[dw])
    }
}

/// The weight gradient as a product: rows and columns of each group's result, and terms of its sums.
fn weight_shape(g: &ConvGeometry) -> (usize, usize, usize) {
    (g.out_channels / g.groups, g.in_channels / g.groups * g.kernel, g.batch * g.out_length)
}

/// The kernel for a weight gradient, and its tiles.
fn weight_tiles(cuda: &Cuda, g: &ConvGeometry, dtype: DType, engine: Engine) -> (Kernel, usize) {
    let (rows, columns, terms) = weight_shape(g);
    let small = tiles(rows, columns, 64).saturating_mul(g.groups);
    let large = tiles(rows, columns, 128).saturating_mul(g.groups);
    if !narrow(g) {
        return (kernels::CONV_WEIGHT_64_WIDE, small);
    }
    let pieces = Pieces::wanted(cuda, large, terms);
    let enough = large.saturating_mul(pieces) >= cuda.gpu().properties.multiprocessors;
    let large_tiles = dtype != DType::F64 && area_ratio(rows, columns) < 1.3 && enough;
    match (engine, large_tiles) {
        (Engine::Plain, true) => (kernels::CONV_WEIGHT_128, large),
        (Engine::Plain, false) => (kernels::CONV_WEIGHT_64, small),
        (Engine::Tensor, true) => (kernels::CONV_WEIGHT_TENSOR_128, large),
        (Engine::Tensor, false) => (kernels::CONV_WEIGHT_TENSOR_64, small),
    }
}

/// Whether tiles would be all but empty.
fn tiny(g: &ConvGeometry) -> bool {
    let (rows, columns, _) = weight_shape(g);
    rows.min(64) * columns.min(64) < 256
}

/// How many pieces the sums of a weight gradient are worth being cut into, where that is more than
/// the scratch holds; otherwise 1.
pub(super) fn useful_pieces(
    cuda: &Cuda,
    geometry: &ConvGeometry,
    dtype: DType,
    engine: Engine,
) -> usize {
    let (rows, columns, terms) = weight_shape(geometry);
    let elements = rows * columns * geometry.groups;
    if elements == 0 || terms == 0 || tiny(geometry) {
        return 1;
    }
    let (_, blocks) = weight_tiles(cuda, geometry, dtype, engine);
    let held = Pieces::held(elements, dtype);
    let wanted = Pieces::wanted(cuda, blocks, terms);
    if wanted > held.max(1) * 3 / 2 { wanted } else { 1 }
}

/// Bytes of workspace for that many pieces.
pub(super) fn pieces_workspace(geometry: &ConvGeometry, dtype: DType, pieces: usize) -> u64 {
    let (rows, columns, _) = weight_shape(geometry);
    (rows * columns * geometry.groups * sum_size(dtype)) as u64 * pieces as u64
}
