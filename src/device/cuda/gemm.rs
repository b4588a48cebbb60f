//! Matrix products: candidates, and how each runs. cuBLAS takes operands whose rows or columns are
//! contiguous; our own kernel takes any strides and needs no workspace.

use super::cublas::{Operand, Product};
use super::rates::{LAUNCH, Rates};
use super::{Cuda, copy, gemm_kernel, memory};
use crate::device::backend::Terms;
use crate::device::spec::{GemmSpec, Strided, Window};
use crate::dtype::DType;
use crate::error::Result;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use smallvec::smallvec;

const CODE_KERNEL: u32 = 0;
const CODE_CUBLAS: u32 = 1;

/// What cuBLAS is given on large chips where the cap allows it, for sums cut into pieces.
pub(super) const LARGE_WORKSPACE: u64 = 32 << 20;

pub(super) fn candidates(
    cuda: &Cuda,
    spec: &GemmSpec,
    dtype: DType,
    terms: Terms,
) -> Vec<Candidate> {
    let rates = Rates::of(&cuda.gpu().properties);
    let (m, n, k) = (spec.m as f64, spec.n as f64, spec.k as f64);
    let batch = spec.batch as f64;
    let flops = 2.0 * batch * m * n * k;
    let stored =
        |operand: &Strided, area: f64| if operand.batch == 0 { area } else { batch * area };
    let elements = stored(&spec.a, m * k) + stored(&spec.b, k * n) + batch * m * n;
    let bytes = elements * dtype.size() as f64 / rates.bytes;
    // Tiles of 128×128 that share the multiprocessors.
    let tiles = batch * (m / 128.0).ceil() * (n / 128.0).ceil();
    let chips = cuda.gpu().properties.multiprocessors as f64;
    let filled = m / 128.0 / (m / 128.0).ceil() * (n / 128.0 / (n / 128.0).ceil());
    let seconds = |rate: f64, sums_in_pieces: bool| {
        let waves = if sums_in_pieces { 1.0 } else { (tiles / chips).ceil() * chips / tiles };
        LAUNCH + bytes.max(flops / rate / filled.max(0.05) * waves.min(16.0))
    };
    let mut all = vec![Candidate {
        name: "capgrad gemm".into(),
        split: String::new(),
        workspace: 0,
        seconds: seconds(0.6 * rates.f32.min(rates.arithmetic(dtype, false)), true) + LAUNCH,
        deterministic: true,
        code: CODE_KERNEL,
        params: [0; 4],
    }];
    let product = product(spec, dtype, terms.allow_tf32).filter(Product::fits);
    if let Some(product) = product.filter(|_| cuda.cublas().is_some()) {
        let few_tiles = product.few_tiles(cuda.gpu().properties.multiprocessors);
        let workspaces = if few_tiles { [0, LARGE_WORKSPACE].as_slice() } else { &[0] };
        let rate = rates.arithmetic(dtype, terms.allow_tf32);
        all.extend(workspaces.iter().map(|&workspace| Candidate {
            name: "cuBLAS".into(),
            split: String::new(),
            workspace,
            seconds: seconds(rate, workspace > 0),
            deterministic: true,
            code: CODE_CUBLAS,
            params: [usize::from(terms.allow_tf32), 0, 0, 0],
        }));
    }
    all
}

pub(super) fn run(
    cuda: &Cuda,
    spec: &GemmSpec,
    candidate: &Candidate,
    operands: &[&Tensor],
    out: &Tensor,
    workspace: Option<&Storage>,
) -> Result<()> {
    let (a, b) = (memory::pointer(operands[0]), memory::pointer(operands[1]));
    let (bias, dtype) = (operands.get(2).copied(), out.dtype());
    let cublas = product(spec, dtype, candidate.params[0] == 1);
    let (CODE_CUBLAS, Some(product), true) = (candidate.code, cublas, spec.k > 0) else {
        let bias = bias.map_or(0, memory::pointer);
        return gemm_kernel::run(cuda, spec, dtype, a, b, bias, memory::pointer(out));
    };
    if let Some(bias) = bias {
        // The product is added to it, so that there is one rounding.
        let rows = spec.batch * spec.m;
        let from = Window { offset: 0, strides: smallvec![0, 1] };
        let to = Window { offset: 0, strides: smallvec![spec.n, 1] };
        copy::copy_window(cuda, &[rows, spec.n], bias, &from, out, &to)?;
    }
    let product = Product { beta: if bias.is_some() { 1.0 } else { 0.0 }, ..product };
    let workspace = (memory::workspace(workspace), candidate.workspace as usize);
    cuda.product(&product, a, b, memory::pointer(out), workspace)
}

/// The product as cuBLAS takes it, where it does.
fn product(spec: &GemmSpec, dtype: DType, tf32: bool) -> Option<Product> {
    let &GemmSpec { batch, m, n, k, .. } = spec;
    Some(Product {
        batch,
        m,
        n,
        k,
        a: operand(&spec.a, m, k)?,
        b: operand(&spec.b, k, n)?,
        c: Operand::rows(n, m * n),
        beta: 0.0,
        dtype,
        tf32: tf32 && dtype == DType::F32,
    })
}

/// An operand whose rows or columns are contiguous and do not overlap. Along an axis of extent 1 any
/// stride will do.
fn operand(strided: &Strided, rows: usize, cols: usize) -> Option<Operand> {
    let unit = |stride: usize, extent: usize| stride == 1 || extent <= 1;
    let apart = |stride: usize, extent: usize, length: usize| {
        if extent <= 1 { Some(length.max(1)) } else { (stride >= length).then_some(stride) }
    };
    let by_rows = unit(strided.col, cols).then(|| apart(strided.row, rows, cols)).flatten();
    let by_cols = unit(strided.row, rows).then(|| apart(strided.col, cols, rows)).flatten();
    by_rows
        .map(|stride| Operand::rows(stride, strided.batch))
        .or_else(|| by_cols.map(|stride| Operand::columns(stride, strided.batch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_taken_by_rows_or_columns_or_not_at_all() {
        let strided = |row, col| Strided { batch: 7, row, col };
        assert_eq!(operand(&strided(5, 1), 3, 5), Some(Operand::rows(5, 7)));
        assert_eq!(operand(&strided(1, 3), 3, 5), Some(Operand::columns(3, 7)));
        // A vector has a stride that does not matter.
        assert_eq!(operand(&strided(0, 1), 1, 5), Some(Operand::rows(5, 7)));
        assert_eq!(operand(&strided(4, 9), 3, 1), Some(Operand::rows(4, 7)));
        // Neither axis contiguous, and a row that repeats.
        assert_eq!(operand(&strided(10, 2), 3, 5), None);
        assert_eq!(operand(&strided(0, 1), 3, 5), None);
    }
}
