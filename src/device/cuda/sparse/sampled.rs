//! The sampled product: see `kernels/sparse_scatter.cu`.

use super::job::{Job, Problem, Space, THREADS};
use super::matrix::Operands;
use super::scatter::share_of_warp;
use super::stream;
use crate::device::cuda::Cuda;
use crate::device::cuda::kernels;
use crate::device::cuda::launch::{Args, Grid};
use crate::device::spec::{DenseLayout, Form};
use crate::error::Result;

#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    cuda: &Cuda,
    problem: &Problem,
    job: &Job,
    operands: &Operands<'_>,
    g: u64,
    x: u64,
    out: u64,
    space: &Space,
) -> Result<()> {
    // Lanes that share the vectors of an entry: only where those are neighbours.
    let lanes = match problem.layout {
        DenseLayout::Columns => problem.width.clamp(1, 32).next_power_of_two() as u32,
        DenseLayout::Rows => 1,
    };
    let kernel = match problem.stored.form {
        Form::Tiled { .. } => kernels::SAMPLED_APART,
        _ => kernels::SAMPLED_CSR,
    };
    stream::each_chunk(cuda, problem, job, operands, space.chunks, false, |matrix| {
        let entries = matrix.last - matrix.first;
        let chunk = share_of_warp(cuda, entries);
        let warps = entries.div_ceil(chunk) as usize;
        let args = Args::new().value(*matrix).value(g).value(problem.side(problem.rows)).value(x);
        let args = args.value(problem.side(problem.cols)).value(out).value(problem.width as u64);
        let args = args.value(lanes).value(chunk).value(u32::from(problem.accumulate));
        cuda.launch(kernel, problem.dtype, Grid::new(warps.div_ceil(THREADS / 32), THREADS), args)
    })
}
