//! The input of a convolution unfolded into columns, its adjoint, and the exchange of samples and
//! channels that makes long rows of short samples. See `kernels/unfold.cu`. All work on a chunk of
//! samples, the first of which the address of `x` points at.

use super::direct::Sizes;
use crate::device::cuda::Cuda;
use crate::device::cuda::kernels;
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::ConvGeometry;
use crate::dtype::DType;
use crate::error::Result;

/// Positions that a thread takes at once.
const EACH: usize = 4;

/// Threads of a block for rows of `length` elements, of which each takes [`EACH`].
fn threads(length: usize) -> usize {
    length.div_ceil(EACH).clamp(32, 256).next_power_of_two()
}

/// Whether all of the addresses allow accesses of 16 bytes.
pub(super) fn aligned(addresses: &[u64]) -> bool {
    addresses.iter().all(|address| address.is_multiple_of(16))
}

/// `to[b, a, l] = from[a, b, l]`, plus `bias[a]` unless that is 0.
fn exchange(
    cuda: &Cuda,
    dtype: DType,
    [a, b, length]: [usize; 3],
    from: u64,
    bias: u64,
    to: u64,
) -> Result<()> {
    if a * b * length == 0 {
        return Ok(());
    }
    let pack = 16 / dtype.size();
    let wide = length.is_multiple_of(pack) && aligned(&[from, to]);
    let (length, bytes) = if wide { (length / pack, 16) } else { (length, dtype.size()) };
    let sizes = [a, b, length, b * length, a * length].map(|size| size as u64);
    let args = Args::new().value(sizes).value(from).value(to).value(bias);
    if length > 32 {
        let across = a * length;
        let threads = threads(across);
        let blocks = b.saturating_mul(across.div_ceil(threads * EACH));
        let kernel = if wide { kernels::EXCHANGE_ROWS_WIDE } else { kernels::EXCHANGE_ROWS };
        return cuda.launch(kernel, dtype, Grid::new(blocks, threads), args);
    }
    // Tiles that fill shared memory, as square as the axes allow.
    let room = 16384 / bytes;
    let (mut wide_a, mut wide_b) = (0u32, 0u32);
    let fits = |a: u32, b: u32| (1 << a) * ((length << b) + 1) <= room;
    loop {
        let (more_a, more_b) = (1 << wide_a < a, 1 << wide_b < b);
        let grow_b = more_b && (wide_b <= wide_a || !more_a) && fits(wide_a, wide_b + 1);
        let grow_a = !grow_b && more_a && fits(wide_a + 1, wide_b);
        if !grow_a && !grow_b {
            break;
        }
        wide_a += u32::from(grow_a);
        wide_b += u32::from(grow_b);
    }
    let blocks = a.div_ceil(1 << wide_a).saturating_mul(b.div_ceil(1 << wide_b));
    let kernel =
        if wide { kernels::EXCHANGE_SHORT_ROWS_WIDE } else { kernels::EXCHANGE_SHORT_ROWS };
    cuda.launch(kernel, dtype, Grid::new(blocks, 256), args.value(wide_a).value(wide_b))
}

/// `[samples, channels, length]` to `[channels, samples·length]`.
pub(super) fn pack(
    cuda: &Cuda,
    dtype: DType,
    samples: usize,
    channels: usize,
    length: usize,
    from: u64,
    to: u64,
) -> Result<()> {
    exchange(cuda, dtype, [samples, channels, length], from, 0, to)
}

/// `[channels, samples·length]` to `[samples, channels, length]`, plus `bias[channel]` unless 0.
#[allow(clippy::too_many_arguments)]
pub(super) fn unpack(
    cuda: &Cuda,
    dtype: DType,
    samples: usize,
    channels: usize,
    length: usize,
    from: u64,
    bias: u64,
    to: u64,
) -> Result<()> {
    exchange(cuda, dtype, [channels, samples, length], from, bias, to)
}

/// Where the columns of a chunk lie.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Held {
    samples: u64,
    sample_step: u64,
    row_step: u64,
}

impl Held {
    /// `[samples, groups, C_in/g·K, L_out]`.
    pub(super) fn by_sample(g: &ConvGeometry, samples: usize) -> Held {
        let sample_step = (g.in_channels * g.kernel * g.out_length) as u64;
        Held { samples: samples as u64, sample_step, row_step: g.out_length as u64 }
    }

    /// `[groups, C_in/g·K, samples·L_out]`.
    pub(super) fn packed(g: &ConvGeometry, samples: usize) -> Held {
        let (sample_step, row_step) = (g.out_length as u64, (samples * g.out_length) as u64);
        Held { samples: samples as u64, sample_step, row_step }
    }
}

/// `x` to its columns.
pub(super) fn unfold(
    cuda: &Cuda,
    g: &ConvGeometry,
    dtype: DType,
    held: Held,
    x: u64,
    columns: u64,
) -> Result<()> {
    let (rows, positions) = (g.in_channels * g.kernel, held.samples as usize * g.out_length);
    if rows * positions == 0 {
        return Ok(());
    }
    let threads = threads(positions);
    let blocks = rows.saturating_mul(positions.div_ceil(threads * EACH));
    let args = Args::new().value(Sizes::new(g)).value(held).value(x).value(columns);
    cuda.launch(kernels::UNFOLD, dtype, Grid::new(blocks, threads), args)
}

/// The adjoint of [`unfold`]: writes every element of the chunk's `dx`.
pub(super) fn fold(
    cuda: &Cuda,
    g: &ConvGeometry,
    dtype: DType,
    held: Held,
    columns: u64,
    dx: u64,
) -> Result<()> {
    let positions = held.samples as usize * g.in_length;
    if g.in_channels * positions == 0 {
        return Ok(());
    }
    let threads = threads(positions * EACH);
    let blocks = g.in_channels.saturating_mul(positions.div_ceil(threads));
    let args = Args::new().value(Sizes::new(g)).value(held).value(columns).value(dx);
    cuda.launch(kernels::FOLD, dtype, Grid::new(blocks, threads), args)
}
