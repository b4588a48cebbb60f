//! Functions of one and two operands, element by element, and what every such pass shares.

use super::launch::Args;
use super::layout::Axes;
use super::memory::pointer;
use super::{Cuda, kernels};
use crate::device::spec::{Binary, Unary};
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::tensor::Tensor;
use half::{bf16, f16};

/// Elements that a thread handles at a time, `PER_THREAD` of tiles.cuh.
const PER_THREAD: usize = 4;

/// The function's number in functions.cuh, and its parameters.
pub(super) fn unary_code(f: Unary) -> (i32, [f64; 2]) {
    match f {
        Unary::Affine(a, b) => (0, [a, b]),
        Unary::Reciprocal(a) => (1, [a, 0.0]),
        Unary::Square => (2, [0.0; 2]),
        Unary::Sqrt => (3, [0.0; 2]),
        Unary::Exp => (4, [0.0; 2]),
        Unary::Ln => (5, [0.0; 2]),
        Unary::Relu => (6, [0.0; 2]),
        Unary::LeakyRelu(slope) => (7, [slope, 0.0]),
        Unary::Gelu => (8, [0.0; 2]),
        Unary::GeluTanh => (9, [0.0; 2]),
        Unary::Silu => (10, [0.0; 2]),
        Unary::Sigmoid => (11, [0.0; 2]),
        Unary::Tanh => (12, [0.0; 2]),
        Unary::Clamp(low, high) => (13, [low, high]),
        Unary::Abs => (14, [0.0; 2]),
    }
}

/// The function's number in functions.cuh, and its parameter.
pub(super) fn binary_code(f: Binary) -> (i32, f64) {
    match f {
        Binary::Add => (0, 0.0),
        Binary::Sub => (1, 0.0),
        Binary::Mul => (2, 0.0),
        Binary::Div => (3, 0.0),
        Binary::SquaredError => (4, 0.0),
        Binary::AbsoluteError => (5, 0.0),
        Binary::Huber(delta) => (6, delta),
        Binary::BceWithLogits => (7, 0.0),
    }
}

/// Whether threads may take `PER_THREAD` neighbours by wide loads: `operands` are the address and
/// the size of an element of each operand, `dense` of what has the layout of the result.
pub(super) fn packed<const N: usize>(
    axes: &Axes<N>,
    operands: [(u64, usize); N],
    dense: &[(u64, usize)],
) -> bool {
    let aligned =
        |(address, size): (u64, usize)| address.is_multiple_of((size * PER_THREAD).min(16) as u64);
    let Some((inner, outer)) = axes.axes().split_last() else {
        return false;
    };
    // Neighbours never lie across two rows.
    let whole = outer.is_empty() || inner.extent.is_multiple_of(PER_THREAD);
    let rows = |k: usize| outer.iter().all(|axis| axis.strides[k].is_multiple_of(PER_THREAD));
    whole
        && dense.iter().copied().all(aligned)
        && (0..N).all(|k| match inner.strides[k] {
            0 => true,
            1 => aligned(operands[k]) && rows(k),
            _ => false,
        })
}

/// Threads for `n` elements.
pub(super) fn per_thread(n: usize) -> usize {
    n.div_ceil(PER_THREAD)
}

/// Runs a kernel whose arguments are the operands, the result, the layout and whether it is packed,
/// then what `more` adds.
pub(super) fn pass<const N: usize>(
    cuda: &Cuda,
    (kernel, scalar): (kernels::Kernel, &'static str),
    axes: &Axes<N>,
    operands: [&Tensor; N],
    out: &Tensor,
    more: impl Fn(Args) -> Args,
) -> Result<()> {
    let operands = operands.map(|x| (pointer(x), x.dtype().size()));
    let result = (pointer(out), out.dtype().size());
    let packed = packed(axes, operands, &[result]);
    for (number, (layout, starts)) in axes.launches().enumerate() {
        let mut args = Args::new();
        for ((address, size), start) in operands.into_iter().zip(starts) {
            args = args.value(address + (start * size) as u64);
        }
        let start = number as u64 * layout.elements * result.1 as u64;
        let args = args.value(result.0 + start).value(layout).value(u32::from(packed));
        let grid = cuda.linear(per_thread(layout.elements as usize));
        cuda.launch_as(kernel, scalar, grid, more(args))?;
    }
    Ok(())
}

pub(super) fn fill(cuda: &Cuda, out: &Tensor, value: f64) -> Result<()> {
    let bits = match out.dtype() {
        DType::F32 => u64::from(f32::from_f64(value).to_bits()),
        DType::F64 => value.to_bits(),
        DType::F16 => u64::from(<f16 as Element>::from_f64(value).to_bits()),
        DType::BF16 => u64::from(<bf16 as Element>::from_f64(value).to_bits()),
        DType::I32 => u64::from(i32::from_f64(value) as u32),
        DType::I64 => i64::from_f64(value) as u64,
    };
    let (n, size) = (out.elements(), out.dtype().size());
    if n == 0 {
        return Ok(());
    }
    let packed = pointer(out).is_multiple_of(16);
    let grid = cuda.linear(if packed { n.div_ceil(16 / size) } else { n });
    let args = Args::new().tensor(out).value(n as u64).value(bits).value(u32::from(packed));
    cuda.launch_as(kernels::FILL, Cuda::raw(out.dtype().size()), grid, args)
}

pub(super) fn unary(cuda: &Cuda, f: Unary, x: &Tensor, out: &Tensor) -> Result<()> {
    let (code, [p0, p1]) = unary_code(f);
    let axes = Axes::flat(out.elements(), [x]);
    let kernel = (kernels::UNARY, out.dtype().name());
    pass(cuda, kernel, &axes, [x], out, |args| args.value(code).value(p0).value(p1))
}

pub(super) fn unary_gradient(
    cuda: &Cuda,
    f: Unary,
    saved: &Tensor,
    dy: &Tensor,
    out: &Tensor,
) -> Result<()> {
    let (code, [p0, p1]) = unary_code(f);
    // The derivative of this one is a constant; reading `saved` would cost time.
    let saved = if let Unary::Affine(..) = f { dy } else { saved };
    let axes = Axes::flat(out.elements(), [saved, dy]);
    let kernel = (kernels::UNARY_GRADIENT, out.dtype().name());
    pass(cuda, kernel, &axes, [saved, dy], out, |args| args.value(code).value(p0).value(p1))
}

pub(super) fn binary(cuda: &Cuda, f: Binary, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
    let (code, p) = binary_code(f);
    let axes = Axes::over(out.shape(), [a, b]);
    let kernel = if axes.rank() <= 1 { kernels::BINARY_FLAT } else { kernels::BINARY };
    let kernel = (kernel, out.dtype().name());
    pass(cuda, kernel, &axes, [a, b], out, |args| args.value(code).value(p))
}

pub(super) fn accumulate(cuda: &Cuda, out: &Tensor, x: &Tensor) -> Result<()> {
    // In place: every thread reads an element before it writes it.
    binary(cuda, Binary::Add, out, x, out)
}

pub(super) fn cast(cuda: &Cuda, x: &Tensor, out: &Tensor) -> Result<()> {
    let kernel = match out.dtype() {
        DType::F32 => kernels::CAST_F32,
        DType::F64 => kernels::CAST_F64,
        DType::F16 => kernels::CAST_F16,
        DType::BF16 => kernels::CAST_BF16,
        DType::I32 => kernels::CAST_I32,
        DType::I64 => kernels::CAST_I64,
    };
    let axes = Axes::flat(out.elements(), [x]);
    pass(cuda, (kernel, x.dtype().name()), &axes, [x], out, |args| args)
}
