//! Matrix products by our own kernel: operands of any strides, no workspace. Also how sums are cut
//! into pieces where there are fewer tiles than the chip can compute at once, for convolutions too.

use super::Cuda;
use super::kernels::{self, Kernel};
use super::launch::{Args, Grid};
use super::scratch::{Held, SCRATCH_BYTES};
use crate::device::spec::{GemmSpec, Strided};
use crate::dtype::DType;
use crate::error::Result;

/// Bytes of the type in which sums are kept.
pub(super) fn sum_size(dtype: DType) -> usize {
    if dtype == DType::F64 { 8 } else { 4 }
}

/// Square tiles of a result.
pub(super) fn tiles(rows: usize, columns: usize, side: usize) -> usize {
    rows.div_ceil(side).saturating_mul(columns.div_ceil(side))
}

/// How much more tiles of 128 compute than tiles of 64 do, which are less efficient.
pub(super) fn area_ratio(rows: usize, columns: usize) -> f64 {
    4.0 * tiles(rows, columns, 128) as f64 / tiles(rows, columns, 64).max(1) as f64
}

/// Sums cut into `count` pieces, whose partial results are at `partial` and are added by a second
/// kernel. With one piece there are none, and `partial` is 0.
pub(super) struct Pieces<'a> {
    pub(super) count: usize,
    pub(super) partial: u64,
    /// Where they are in the scratch.
    _scratch: Option<Held<'a>>,
}

impl<'a> Pieces<'a> {
    /// How many pieces `blocks` tiles want: enough to fill the chip, none too short to be worth it.
    pub(super) fn wanted(cuda: &Cuda, blocks: usize, terms: usize) -> usize {
        let full = cuda.gpu().properties.multiprocessors * 4;
        // Two tiles a multiprocessor keep it busy; cutting up less than that much gains nothing.
        if blocks.saturating_mul(2) > full {
            return 1;
        }
        full.div_ceil(blocks.max(1)).min(terms / 256).clamp(1, 512)
    }

    /// As many pieces as are wanted and fit the device's scratch.
    pub(super) fn in_scratch(
        cuda: &'a Cuda,
        elements: usize,
        dtype: DType,
        blocks: usize,
        terms: usize,
    ) -> Pieces<'a> {
        let held = Pieces::held(elements, dtype);
        Pieces::new(cuda, Pieces::wanted(cuda, blocks, terms).min(held))
    }

    /// How many pieces of a result of `elements` elements the scratch holds.
    pub(super) fn held(elements: usize, dtype: DType) -> usize {
        SCRATCH_BYTES / sum_size(dtype) / elements.max(1)
    }

    /// `count` pieces, which fit the device's scratch.
    pub(super) fn new(cuda: &'a Cuda, count: usize) -> Pieces<'a> {
        if count > 1 {
            let scratch = cuda.scratch();
            Pieces { count, partial: scratch.address(), _scratch: Some(scratch) }
        } else {
            Pieces { count: 1, partial: 0, _scratch: None }
        }
    }

    /// `count` pieces in a workspace at `partial`.
    pub(super) fn apart(count: usize, partial: u64) -> Pieces<'a> {
        Pieces { count, partial, _scratch: None }
    }

    /// Adds the partial results of `elements` elements, if there are any. `rest` are the kernel's
    /// arguments after the three that say where they are, all of 64 bits.
    pub(super) fn add(
        &self,
        cuda: &Cuda,
        kernel: Kernel,
        dtype: DType,
        elements: usize,
        rest: &[u64],
    ) -> Result<()> {
        if self.partial == 0 {
            return Ok(());
        }
        let args = Args::new().value(self.partial).value(self.count as u64).value(elements as u64);
        let args = rest.iter().fold(args, |args, &word| args.value(word));
        cuda.launch(kernel, dtype, Grid::new(elements.div_ceil(32), 256), args)
    }
}

/// A product as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Sizes {
    batch: u64,
    m: u64,
    n: u64,
    k: u64,
    a: [u64; 3],
    b: [u64; 3],
    pieces: u64,
}

/// `out[b, i, j] = Σ_p a[b, i, p]·b[b, p, j]`, plus `bias[j]` unless that is 0. Addresses are of the
/// device's memory; `out` is dense.
pub(super) fn run(
    cuda: &Cuda,
    spec: &GemmSpec,
    dtype: DType,
    a: u64,
    b: u64,
    bias: u64,
    out: u64,
) -> Result<()> {
    let &GemmSpec { batch, m, n, k, .. } = spec;
    let elements = batch * m * n;
    if elements == 0 {
        return Ok(());
    }
    // Along the sum where that is contiguous, or there is only one line.
    let a_along = m == 1 || spec.a.col <= spec.a.row;
    let b_along = n == 1 || spec.b.row < spec.b.col;
    let blocks = |side: usize| tiles(m, n, side).saturating_mul(batch);
    let full = cuda.gpu().properties.multiprocessors;
    let large = dtype != DType::F64 && area_ratio(m, n) < 1.3 && blocks(128) >= full;
    let kernel = match (large, a_along, b_along) {
        (false, true, false) => kernels::GEMM_RR_64,
        (false, true, true) => kernels::GEMM_RC_64,
        (false, false, false) => kernels::GEMM_CR_64,
        (false, false, true) => kernels::GEMM_CC_64,
        (true, true, false) => kernels::GEMM_RR_128,
        (true, true, true) => kernels::GEMM_RC_128,
        (true, false, false) => kernels::GEMM_CR_128,
        (true, false, true) => kernels::GEMM_CC_128,
    };
    let blocks = blocks(if large { 128 } else { 64 });
    let pieces = Pieces::in_scratch(cuda, elements, dtype, blocks, k);
    let strides = |x: &Strided| [x.batch, x.row, x.col].map(|s| s as u64);
    let [batch, m, columns, k] = [batch, m, n, k].map(|size| size as u64);
    let (a_strides, b_strides, count) = (strides(&spec.a), strides(&spec.b), pieces.count as u64);
    let sizes = Sizes { batch, m, n: columns, k, a: a_strides, b: b_strides, pieces: count };
    let args = Args::new().value(sizes).value(a).value(b).value(bias).value(out);
    let grid = Grid::new(blocks.saturating_mul(pieces.count), 256);
    cuda.launch(kernel, dtype, grid, args.value(pieces.partial))?;
    let rest = [bias, columns, out];
    pieces.add(cuda, kernels::GEMM_ADD_PARTIALS, dtype, elements, &rest)
}
