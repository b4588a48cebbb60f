//! Depthwise convolutions of stride and dilation 1, and weight gradients of few channels a group, where
//! wide loads can read every row. See `kernels/depthwise_rows.cu`.

use crate::device::cuda::Cuda;
use crate::device::cuda::gemm_kernel::Pieces;
use crate::device::cuda::kernels::{self, Kernel};
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::DType;
use crate::error::Result;

/// Threads of a block, and positions of a thread.
const THREADS: usize = 128;
const POSITIONS: usize = 8;

/// Taps that a kernel has registers for, and what convolves and correlates with so many.
const KINDS: [(usize, Kernel, Kernel); 5] = [
    (4, kernels::ROWS_CONVOLVE_4, kernels::ROWS_CORRELATE_4),
    (8, kernels::ROWS_CONVOLVE_8, kernels::ROWS_CORRELATE_8),
    (16, kernels::ROWS_CONVOLVE_16, kernels::ROWS_CORRELATE_16),
    (32, kernels::ROWS_CONVOLVE_32, kernels::ROWS_CORRELATE_32),
    (48, kernels::ROWS_CONVOLVE_48, kernels::ROWS_CORRELATE_48),
];

/// How a pass reads its source, as the kernels take it.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Rows {
    batch: u64,
    channels: u32,
    sources: u32,
    multiplier: u32,
    length: u32,
    source_length: u32,
    offset: i32,
    kernel: u32,
    shift: u32,
    reversed: u32,
    lanes: u32,
    pieces: u32,
    inputs: u32,
    outputs: u32,
    unused: u32,
}

/// A pass by these kernels.
pub(super) struct Plan {
    rows: Rows,
    kernel: Kernel,
    /// Stretches of rows that a block could have of its own, for each channel or pair of channels.
    passes: usize,
}

impl Plan {
    /// `None` where they do not take it. `addresses` are those of what is read and written in rows.
    pub(super) fn of(
        pass: ConvPass,
        g: &ConvGeometry,
        dtype: DType,
        addresses: [u64; 2],
    ) -> Option<Plan> {
        const MOST: usize = 1 << 30;
        let multiplier = g.out_channels / g.groups;
        let near = (g.stride == 1 || g.out_length <= 1) && (g.dilation == 1 || g.kernel <= 1);
        let wide = addresses.iter().all(|address| address.is_multiple_of(16))
            && g.in_length.is_multiple_of(4)
            && g.out_length.is_multiple_of(4);
        let sizes = [g.in_length, g.out_length, g.pad_left, g.in_channels, g.out_channels];
        let one_result = pass != ConvPass::InputGradient || multiplier == 1;
        let fits = sizes.iter().all(|&size| size < MOST) && dtype != DType::F64;
        if !(near && wide && one_result && fits && g.kernel < MOST) {
            return None;
        }
        let (pad, gradient) = (g.pad_left as i64, pass == ConvPass::InputGradient);
        let begin = if gradient { pad - (g.kernel as i64 - 1) } else { -pad };
        // Windows begin where loads may.
        let shift = begin.rem_euclid(4);
        let taps = g.kernel + shift as usize;
        let &(_, convolve, correlate) = KINDS.iter().find(|kind| taps <= kind.0)?;
        let kernel = if pass == ConvPass::WeightGradient { correlate } else { convolve };
        let (channels, sources) = match gradient {
            true => (g.in_channels, g.out_channels),
            false => (g.out_channels, g.in_channels),
        };
        let (length, source_length) = match gradient {
            true => (g.in_length, g.out_length),
            false => (g.out_length, g.in_length),
        };
        let lanes = length.div_ceil(POSITIONS).next_power_of_two().clamp(2, THREADS);
        let passes =
            g.batch.div_ceil(THREADS / lanes).saturating_mul(length.div_ceil(lanes * POSITIONS));
        let rows = Rows {
            batch: g.batch as u64,
            channels: channels as u32,
            sources: sources as u32,
            multiplier: multiplier as u32,
            length: length as u32,
            source_length: source_length as u32,
            offset: (begin - shift) as i32,
            kernel: g.kernel as u32,
            shift: shift as u32,
            reversed: u32::from(gradient),
            lanes: lanes as u32,
            pieces: 1,
            inputs: (g.in_channels / g.groups) as u32,
            outputs: multiplier as u32,
            unused: 0,
        };
        Some(Plan { rows, kernel, passes })
    }

    /// Blocks that share a channel, or a pair of channels, so that `blocks` of them fill the chip.
    fn pieces(&self, cuda: &Cuda, blocks: usize) -> usize {
        (cuda.gpu().properties.multiprocessors * 16).div_ceil(blocks).min(self.passes)
    }

    /// `out` from `source` and the weights, plus `bias` unless that is 0.
    pub(super) fn convolve(
        mut self,
        cuda: &Cuda,
        dtype: DType,
        [source, w, bias, out]: [u64; 4],
    ) -> Result<()> {
        let channels = self.rows.channels as usize;
        let pieces = self.pieces(cuda, channels);
        self.rows.pieces = pieces as u32;
        let grid = Grid::new(channels.saturating_mul(pieces), THREADS);
        let args = Args::new().value(self.rows).value(source).value(w).value(bias).value(out);
        cuda.launch(self.kernel, dtype, grid, args)
    }

    /// `dw` from `x` and `dy`.
    pub(super) fn correlate(
        mut self,
        cuda: &Cuda,
        dtype: DType,
        [x, dy, dw]: [u64; 3],
    ) -> Result<()> {
        let pairs = self.rows.channels as usize * self.rows.inputs as usize;
        let elements = pairs * self.rows.kernel as usize;
        // A block's sums are added up at its end, for which it should have some.
        let wanted = self.pieces(cuda, pairs).min(self.passes / 4);
        let pieces = Pieces::new(cuda, wanted.min(Pieces::held(elements, dtype)).max(1));
        self.rows.pieces = pieces.count as u32;
        let args = Args::new().value(self.rows).value(x).value(dy).value(dw);
        let grid = Grid::new(pairs.saturating_mul(pieces.count), THREADS);
        cuda.launch(self.kernel, dtype, grid, args.value(pieces.partial))?;
        pieces.add(cuda, kernels::DEPTHWISE_ADD_PARTIALS, dtype, elements, &[dw])
    }
}
