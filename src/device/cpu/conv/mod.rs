//! The three passes of a 1-d convolution on the CPU: as products with the unfolded input (gathered
//! while it is packed), the same without any workspace, and a depthwise form.

mod depthwise;
mod lines;
mod product;
#[cfg(test)]
mod tests;
mod unfold;

use crate::device::cpu::gemm::{Cost, Isa, Naming, blocks_of, direct_candidate, packed_candidates};
use crate::device::spec::{ConvGeometry, ConvPass};
use crate::dtype::{DType, Float};
use crate::plan::Candidate;
use product::{Call, envelope, shapes};
use std::borrow::Cow;

/// Kernel 1, stride 1, no padding: the product needs no unfolding.
const CODE_POINTWISE: u32 = 0;
/// The same with the sums cut into pieces.
const CODE_POINTWISE_PIECES: u32 = 1;
/// Product with the unfolded input.
const CODE_UNFOLD: u32 = 2;
/// The same with the sums cut into pieces.
const CODE_UNFOLD_PIECES: u32 = 3;
/// No workspace, any geometry.
const CODE_DIRECT: u32 = 4;
/// One input channel a group, no workspace.
const CODE_DEPTHWISE: u32 = 5;

/// What packing and storing cost in a pass, compared with a plain product.
fn cost_of(pass: ConvPass, g: &ConvGeometry, dtype: DType) -> Cost {
    let mut cost = Cost::of(dtype);
    let contiguous = g.stride == 1 && g.out_length.is_multiple_of(16);
    match pass {
        ConvPass::WeightGradient => {}
        ConvPass::Forward | ConvPass::InputGradient if contiguous => {}
        _ => {
            cost.pack_b *= 2.0;
            cost.put *= 2.0;
        }
    }
    cost
}

/// Every way to run a pass, some of which take no workspace: each algorithm at its whole-problem
/// block sizes, and where that is over the cap, in smaller blocks that fit.
pub(crate) fn candidates(
    pass: ConvPass,
    g: &ConvGeometry,
    dtype: DType,
    threads: usize,
    cap: u64,
) -> Vec<Candidate> {
    let pointwise = g.kernel == 1 && g.stride == 1 && g.pad_left == 0 && g.pad_right == 0;
    let naming = if pointwise {
        Naming { packed: (CODE_POINTWISE, "pointwise gemm"), pieces: CODE_POINTWISE_PIECES }
    } else {
        Naming { packed: (CODE_UNFOLD, "unfold + gemm"), pieces: CODE_UNFOLD_PIECES }
    };
    let cost = cost_of(pass, g, dtype);
    let shapes = shapes(pass, g);
    let envelope = envelope(&shapes);
    let mut all = packed_candidates(&naming, &envelope, dtype, cost, threads, cap);
    all.push(direct_candidate(CODE_DIRECT, &envelope, dtype, cost, threads));
    for candidate in &mut all {
        // The products run one after another.
        candidate.seconds *= shapes.len() as f64;
    }
    if g.in_channels == g.groups {
        all.push(Candidate {
            name: Cow::Borrowed("depthwise"),
            split: String::new(),
            workspace: 0,
            seconds: depthwise::seconds(pass, g, dtype, threads),
            deterministic: true,
            code: CODE_DEPTHWISE,
            params: [0; 4],
        });
    }
    all
}

/// Runs a pass: `(a, b)` is `(x, w)` in the forward pass, `(dy, w)` in the input gradient and
/// `(x, dy)` in the weight gradient. `workspace` has exactly `candidate.workspace` bytes and is
/// 64-byte aligned. Every element of `out` is written, whatever it holds.
#[allow(clippy::too_many_arguments)]
pub(crate) fn run<T: Float>(
    pass: ConvPass,
    g: &ConvGeometry,
    candidate: &Candidate,
    a: &[T],
    b: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
    workspace: &mut [u8],
    threads: usize,
) {
    let isa = Isa::detect();
    let call = Call { pass, geometry: g, a, b, bias, isa, threads };
    run_call(&call, candidate, out, workspace);
}

fn run_call<T: Float>(
    call: &Call<'_, T>,
    candidate: &Candidate,
    out: &mut [T],
    workspace: &mut [u8],
) {
    debug_assert_eq!(workspace.len() as u64, candidate.workspace);
    if out.is_empty() {
        return;
    }
    if candidate.code == CODE_DEPTHWISE {
        return depthwise::run(call, out);
    }
    let pieces = matches!(candidate.code, CODE_POINTWISE_PIECES | CODE_UNFOLD_PIECES);
    let envelope = envelope(&shapes(call.pass, call.geometry));
    let blocks = blocks_of(candidate, &envelope, T::DTYPE, pieces);
    call.run(blocks, out, workspace);
}
