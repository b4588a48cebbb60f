//! Our own matrix product, in the packed form of BLIS. A general library's product keeps scratch
//! of its own for ever and can neither gather its operands nor scatter its result; this one works
//! in a workspace that is known to the byte, and serves plain products and convolutions alike.

mod blocks;
mod engine;
mod kernel;
mod sink;
mod source;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use blocks::{BANDWIDTH, Blocks, Cost, Shape};
pub(crate) use engine::Job;
pub(crate) use kernel::Isa;
pub(crate) use sink::{BiasAxis, Layout, Output};
pub(crate) use source::{Matrix, Source, clear_tail, interleave, narrow_row, widen_row, widened};

use crate::device::spec::GemmSpec;
use crate::dtype::{DType, Float};
use crate::plan::Candidate;
use std::borrow::Cow;

/// Packed panels in the workspace.
const CODE_PACKED: u32 = 0;
/// The same with the sums cut into pieces.
const CODE_PIECES: u32 = 1;
/// Panels on the stack.
const CODE_DIRECT: u32 = 2;

/// Whether the transposed product fills the tiles better: columns come sixteen at a time.
fn transposed(spec: &GemmSpec) -> bool {
    let area = |m: usize, n: usize| m.next_multiple_of(6) as u128 * n.next_multiple_of(16) as u128;
    area(spec.n, spec.m) < area(spec.m, spec.n)
}

/// The product as it is run.
fn shape_of(spec: &GemmSpec) -> Shape {
    let (m, n) = if transposed(spec) { (spec.n, spec.m) } else { (spec.m, spec.n) };
    Shape { batch: spec.batch, m, n, k: spec.k }
}

/// How [`packed_candidates`] names what it offers.
pub(crate) struct Naming {
    /// Code and name of the whole form.
    pub(crate) packed: (u32, &'static str),
    /// Code of the form with the sums in pieces, under the same name.
    pub(crate) pieces: u32,
}

/// Candidates of the packed forms of a product.
pub(crate) fn packed_candidates(
    naming: &Naming,
    shape: &Shape,
    dtype: DType,
    cost: Cost,
    threads: usize,
    cap: u64,
) -> Vec<Candidate> {
    let mut all = Vec::new();
    let mut forms = vec![(naming.packed.0, 1)];
    let pieces = Blocks::pieces_for(shape);
    if pieces > 1 {
        forms.push((naming.pieces, pieces));
    }
    for (code, pieces) in forms {
        for (i, choice) in
            Blocks::choices(shape, dtype, threads, cap, pieces).into_iter().enumerate()
        {
            let (blocks, slots, workspace) = choice;
            let mut split = match i {
                0 => String::new(),
                _ => format!("{} x {} x {} at a time", blocks.mc, blocks.nc, blocks.kc),
            };
            if pieces > 1 {
                let comma = if split.is_empty() { "" } else { ", " };
                split += &format!("{comma}sums in {pieces} pieces");
            }
            all.push(Candidate {
                name: Cow::Borrowed(naming.packed.1),
                split,
                workspace,
                seconds: blocks.seconds(shape, cost, slots),
                deterministic: true,
                code,
                params: [blocks.mc, blocks.nc, blocks.kc, blocks.tm],
            });
        }
    }
    all
}

/// The zero-workspace candidate of a product.
pub(crate) fn direct_candidate(
    code: u32,
    shape: &Shape,
    dtype: DType,
    cost: Cost,
    threads: usize,
) -> Candidate {
    let blocks = Blocks::on_stack(shape, dtype, threads);
    Candidate {
        name: Cow::Borrowed("direct"),
        split: String::new(),
        workspace: 0,
        seconds: blocks.seconds(shape, cost, threads) * 1.2,
        deterministic: true,
        code,
        params: [blocks.mc, blocks.nc, blocks.kc, blocks.tm],
    }
}

/// The cut that a candidate stands for, on a product of this shape.
pub(crate) fn blocks_of(
    candidate: &Candidate,
    shape: &Shape,
    dtype: DType,
    in_pieces: bool,
) -> Blocks {
    let [mc, nc, kc, tm] = candidate.params;
    let pieces = if in_pieces { Blocks::pieces_for(shape) } else { 1 };
    let narrow = dtype.size() < 4;
    Blocks { mc, nc, kc, tm, pieces, held: narrow && pieces == 1 && shape.k > kc }
}

/// Every way to run a product, one of which takes no workspace.
pub(crate) fn gemm_candidates(
    spec: &GemmSpec,
    dtype: DType,
    threads: usize,
    cap: u64,
) -> Vec<Candidate> {
    let shape = shape_of(spec);
    let cost = Cost::of(dtype);
    let naming = Naming { packed: (CODE_PACKED, "packed gemm"), pieces: CODE_PIECES };
    let mut all = packed_candidates(&naming, &shape, dtype, cost, threads, cap);
    all.push(direct_candidate(CODE_DIRECT, &shape, dtype, cost, threads));
    all
}

/// Runs `out = a · b + bias`, or `out += …` where it is to `accumulate`. `bias` has `n` values;
/// `workspace` has exactly `candidate.workspace` bytes and is 64-byte aligned.
#[allow(clippy::too_many_arguments)]
pub(crate) fn gemm_run<T: Float>(
    spec: &GemmSpec,
    candidate: &Candidate,
    a: &[T],
    b: &[T],
    bias: Option<&[T]>,
    accumulate: bool,
    out: &mut [T],
    workspace: &mut [u8],
    threads: usize,
) {
    let call = GemmCall { spec, a, b, bias, accumulate, isa: Isa::detect(), threads };
    call.run(candidate, out, workspace);
}

/// What a product is given, beside its output.
struct GemmCall<'a, T> {
    spec: &'a GemmSpec,
    a: &'a [T],
    b: &'a [T],
    bias: Option<&'a [T]>,
    accumulate: bool,
    isa: Isa,
    threads: usize,
}

impl<T: Float> GemmCall<'_, T> {
    fn run(&self, candidate: &Candidate, out: &mut [T], workspace: &mut [u8]) {
        let GemmCall { spec, isa, .. } = *self;
        debug_assert_eq!(out.len(), spec.batch * spec.m * spec.n);
        debug_assert_eq!(workspace.len() as u64, candidate.workspace);
        let shape = shape_of(spec);
        let blocks = blocks_of(candidate, &shape, T::DTYPE, candidate.code == CODE_PIECES);
        let rows = Matrix::plain(self.a, spec.a.batch, spec.a.row, spec.a.col);
        let columns = Matrix::plain(self.b, spec.b.batch, spec.b.col, spec.b.row);
        let (row, column, axis, a, b) = if transposed(spec) {
            (1, spec.n, BiasAxis::Row, columns, rows)
        } else {
            (spec.n, 1, BiasAxis::Column, rows, columns)
        };
        let (batch, period) = (spec.m * spec.n, shape.n.max(1));
        let layout = Layout { first: 0, batch, row, period, sample: 0, column };
        let sink = Output::new(out, layout).accumulate(self.accumulate).bias(self.bias, axis, 0);
        Job { shape, blocks, a: &a, b: &b, c: &sink, isa }.run(workspace, self.threads);
    }
}
