//! Other layouts of signals and weights, for libraries that want them, and biases that they cannot
//! add. See `kernels/conv_layout.cu`. Signals are `[n, channels, length]`, or *channels last*.

use super::unfold::aligned;
use crate::device::cuda::Cuda;
use crate::device::cuda::kernels;
use crate::device::cuda::launch::{Args, Grid};
use crate::dtype::DType;
use crate::error::Result;

/// `to[n, p, q] = from[n, q + q_shift, p + p_shift]`, zero for what lies outside; the shifts are
/// negative as two's complement.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Transpose {
    batch: u64,
    p_length: u64,
    q_length: u64,
    from_p: u64,
    from_q: u64,
    p_shift: i64,
    q_shift: i64,
}

/// Logarithm of the elements of a tile.
const TILE_LOG: u32 = 10;

fn transpose(cuda: &Cuda, dtype: DType, t: Transpose, from: u64, to: u64, bias: u64) -> Result<()> {
    let (batch, p, q) = (t.batch as usize, t.p_length as usize, t.q_length as usize);
    if batch * p * q == 0 {
        return Ok(());
    }
    // Square, unless an axis is shorter than that.
    let log = |length: usize| length.clamp(1, 1 << TILE_LOG).next_power_of_two().trailing_zeros();
    let half = TILE_LOG / 2;
    let wide_p = if log(p) < half { log(p) } else { half.max(TILE_LOG - log(q)) };
    let wide_q = TILE_LOG - wide_p;
    let tiles = p.div_ceil(1 << wide_p).saturating_mul(q.div_ceil(1 << wide_q));
    let args = Args::new().value(t).value(from).value(to).value(bias).value(wide_p).value(wide_q);
    cuda.launch(kernels::TRANSPOSE, dtype, Grid::new(tiles.saturating_mul(batch), 256), args)
}

/// `[n, channels, length]` to channels-last `[n, left + length + right, channels]` with zeros in the
/// padding.
#[allow(clippy::too_many_arguments)]
pub(in crate::device::cuda) fn to_last(
    cuda: &Cuda,
    dtype: DType,
    n: usize,
    channels: usize,
    length: usize,
    padding: (usize, usize),
    from: u64,
    to: u64,
) -> Result<()> {
    let sizes = Transpose {
        batch: n as u64,
        p_length: (padding.0 + length + padding.1) as u64,
        q_length: channels as u64,
        from_p: length as u64,
        from_q: channels as u64,
        p_shift: -(padding.0 as i64),
        q_shift: 0,
    };
    transpose(cuda, dtype, sizes, from, to, 0)
}

/// Channels-last `[n, length, channels]` to `[n, channels, length]`, plus `bias[channel]` unless 0.
#[allow(clippy::too_many_arguments)]
pub(in crate::device::cuda) fn from_last(
    cuda: &Cuda,
    dtype: DType,
    n: usize,
    channels: usize,
    length: usize,
    from: u64,
    to: u64,
    bias: u64,
) -> Result<()> {
    transpose(cuda, dtype, cropped(n, channels, length, (0, 0)), from, to, bias)
}

/// Channels-last `[n, left + length + right, channels]` to `[n, channels, length]`, without the
/// padding.
#[allow(clippy::too_many_arguments)]
pub(super) fn from_last_cropped(
    cuda: &Cuda,
    dtype: DType,
    n: usize,
    channels: usize,
    length: usize,
    padding: (usize, usize),
    from: u64,
    to: u64,
) -> Result<()> {
    transpose(cuda, dtype, cropped(n, channels, length, padding), from, to, 0)
}

fn cropped(n: usize, channels: usize, length: usize, padding: (usize, usize)) -> Transpose {
    Transpose {
        batch: n as u64,
        p_length: channels as u64,
        q_length: length as u64,
        from_p: channels as u64,
        from_q: (padding.0 + length + padding.1) as u64,
        p_shift: 0,
        q_shift: padding.0 as i64,
    }
}

/// `[rows, length]` to `[rows, left + length + right]` with zeros in the padding.
pub(super) fn pad(
    cuda: &Cuda,
    dtype: DType,
    rows: usize,
    length: usize,
    padding: (usize, usize),
    from: u64,
    to: u64,
) -> Result<()> {
    let padded = padding.0 + length + padding.1;
    move_rows(cuda, dtype, [rows, padded, length], -(padding.0 as i64), from, to)
}

/// `[rows, length]` to `[rows, kept]`, from `start` on.
#[allow(clippy::too_many_arguments)]
pub(super) fn crop(
    cuda: &Cuda,
    dtype: DType,
    rows: usize,
    length: usize,
    start: usize,
    kept: usize,
    from: u64,
    to: u64,
) -> Result<()> {
    move_rows(cuda, dtype, [rows, kept, length], start as i64, from, to)
}

/// `to[row, l] = from[row, l + shift]`, zero for what lies outside.
fn move_rows(
    cuda: &Cuda,
    dtype: DType,
    [rows, length, from_length]: [usize; 3],
    shift: i64,
    from: u64,
    to: u64,
) -> Result<()> {
    if rows * length == 0 {
        return Ok(());
    }
    let args = Args::new().value(from).value(to).value(rows as u64).value(length as u64);
    let args = args.value(from_length as u64).value(shift);
    cuda.launch(kernels::PAD_ROWS, dtype, cuda.linear((rows * length).div_ceil(4)), args)
}

/// `y[n, channel, l] += bias[channel]`.
pub(super) fn add_bias(
    cuda: &Cuda,
    dtype: DType,
    n: usize,
    channels: usize,
    length: usize,
    bias: u64,
    y: u64,
) -> Result<()> {
    let rows = n * channels;
    if rows * length == 0 {
        return Ok(());
    }
    let pack = 16 / dtype.size();
    let wide = length.is_multiple_of(pack) && aligned(&[y]);
    let (kernel, length) =
        if wide { (kernels::ADD_BIAS_WIDE, length / pack) } else { (kernels::ADD_BIAS, length) };
    let args = Args::new().value(y).value(bias).value(rows as u64).value(channels as u64);
    let grid = cuda.linear((rows * length).div_ceil(2));
    cuda.launch(kernel, dtype, grid, args.value(length as u64))
}
