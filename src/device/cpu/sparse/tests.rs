//! Every candidate of every product, forced in turn, against a naive f64 reference.

use super::*;
use crate::device::spec::{DenseLayout, Form, StoredSpec};
use crate::dtype::DType;
use crate::sparse::assemble::{CsrArrays, Offsets, check_canonical, from_coo, transpose_csr};
use half::{bf16, f16};

/// The CPU does not look at the statistics.
const STORED: StoredSpec =
    StoredSpec { form: Form::Csr, longest: 0, filled: 0, fresh_groups: 0, fresh_columns: 0 };

struct Lcg(u64);

impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn values<T: Float>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_f64(self.next() as f64 / (1u64 << 31) as f64 - 0.5)).collect()
    }
}

type Shape = (usize, usize, Vec<(i32, i32)>);

/// Rows, columns and entries: with and without empty rows and columns, dense lines, nothing at all.
fn shapes(lcg: &mut Lcg) -> Vec<Shape> {
    let mut shapes = vec![
        (0, 5, vec![]),
        (5, 0, vec![]),
        (0, 0, vec![]),
        (3, 4, vec![]),
        (1, 1, vec![(0, 0)]),
        (1, 700, (0..700).map(|j| (0, j)).collect()),
        (700, 1, (0..700).map(|i| (i, 0)).collect()),
    ];
    for (rows, cols, nnz) in [(37, 53, 400), (300, 9, 1500), (9, 300, 700), (90, 120, 4000)] {
        let (half_rows, half_cols) = (rows / 2, cols / 2 + 1);
        let mut entries: Vec<_> = (0..nnz)
            .map(|_| (lcg.below(half_rows) as i32 * 2, lcg.below(half_cols) as i32))
            .collect();
        entries.extend((0..cols as i32).map(|j| (1, j)));
        entries.sort_unstable();
        entries.dedup();
        shapes.push((rows, cols, entries));
    }
    shapes
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 3e-3,
        _ => 1.5e-2,
    }
}

fn close<T: Float>(out: &[T], reference: &[f64], what: &dyn std::fmt::Debug) {
    let (mut error, mut norm) = (0.0, 0.0);
    for (o, r) in out.iter().zip(reference) {
        error += (o.to_f64() - r).powi(2);
        norm += r * r;
    }
    let limit = tolerance(T::DTYPE) * f64::sqrt(norm);
    assert!(f64::sqrt(error) <= limit, "{error} over {limit} of {what:?}");
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// Bytes that begin at a multiple of 64, poisoned.
fn workspace(bytes: u64) -> Vec<[u64; 8]> {
    vec![[u64::MAX; 8]; (bytes as usize).div_ceil(64)]
}

fn view<'a, T: Float>(
    rows: usize,
    cols: usize,
    offsets: &'a Offsets,
    c: &'a [i32],
    v: &'a [T],
) -> Csr<'a, T> {
    let offsets = match offsets {
        Offsets::I32(o) => {
            check_canonical(rows, cols, o, c, v.len()).unwrap();
            OffsetsRef::I32(o)
        }
        Offsets::I64(o) => {
            check_canonical(rows, cols, o, c, v.len()).unwrap();
            OffsetsRef::I64(o)
        }
    };
    // SAFETY: checked just now.
    unsafe { Csr::new_unchecked(rows, cols, offsets, c, v) }
}

struct Case<'a, T> {
    csr: Csr<'a, T>,
    transpose: Csr<'a, T>,
    /// The dense side of `rows` vectors and the one of `cols`.
    row_side: Vec<T>,
    col_side: Vec<T>,
}

fn case<'a, T: Float>(
    lcg: &mut Lcg,
    [rows, cols]: [usize; 2],
    built: &'a CsrArrays<T>,
    turned: &'a CsrArrays<T>,
    width: usize,
) -> Case<'a, T> {
    Case {
        csr: view(rows, cols, &built.row_offsets, &built.col_indices, &built.values),
        transpose: view(cols, rows, &turned.row_offsets, &turned.col_indices, &turned.values),
        row_side: lcg.values(rows * width),
        col_side: lcg.values(cols * width),
    }
}

impl<T: Float> Case<'_, T> {
    fn spec(&self, product: SparseProduct, layout: DenseLayout, width: usize) -> SparseSpec {
        let (rows, cols, nnz) = (self.csr.rows, self.csr.cols, self.csr.nnz());
        SparseSpec {
            product,
            layout,
            width,
            rows,
            cols,
            nnz,
            stored: STORED,
            transpose: Some(STORED),
            values_apart: false,
            accumulate: false,
        }
    }
}

fn at(layout: DenseLayout, side: usize, n: usize, i: usize, j: usize) -> usize {
    match layout {
        DenseLayout::Columns => i * n + j,
        DenseLayout::Rows => j * side + i,
    }
}

/// What the result holds before a product is added to it.
fn held<T: Float>(len: usize) -> Vec<T> {
    Lcg(29).values(len)
}

fn reference<T: Float>(case: &Case<'_, T>, spec: &SparseSpec) -> Vec<f64> {
    let (rows, cols, n) = (case.csr.rows, case.csr.cols, spec.width);
    let len = match spec.product {
        SparseProduct::Forward => rows * n,
        SparseProduct::Transposed => cols * n,
        SparseProduct::Sampled => case.csr.nnz(),
    };
    let mut out = vec![0.0; len];
    if spec.accumulate {
        out = held::<T>(len).iter().map(|held| held.to_f64()).collect();
    }
    for r in 0..rows {
        for e in case.csr.offset(r)..case.csr.offset(r + 1) {
            let (c, v) = (case.csr.col_indices[e] as usize, case.csr.values[e].to_f64());
            for j in 0..n {
                let (by_row, by_col) =
                    (at(spec.layout, rows, n, r, j), at(spec.layout, cols, n, c, j));
                let (y, x) = (case.row_side[by_row].to_f64(), case.col_side[by_col].to_f64());
                match spec.product {
                    SparseProduct::Forward => out[by_row] += v * x,
                    SparseProduct::Transposed => out[by_col] += v * y,
                    SparseProduct::Sampled => out[e] += y * x,
                }
            }
        }
    }
    out
}

fn execute<T: Float>(
    case: &Case<'_, T>,
    spec: &SparseSpec,
    candidate: &Candidate,
    len: usize,
) -> Vec<T> {
    // Poison shows whatever is not written, and whatever is read before it is.
    let poison = || vec![T::from_f64(f64::NAN); len];
    let mut out = if spec.accumulate { held(len) } else { poison() };
    let mut workspace = workspace(candidate.workspace);
    let bytes = &mut bytemuck::cast_slice_mut(&mut workspace)[..candidate.workspace as usize];
    match spec.product {
        SparseProduct::Sampled => {
            run_sampled(spec, candidate, &case.csr, &case.row_side, &case.col_side, &mut out, bytes)
        }
        product => {
            let x = if product == SparseProduct::Forward { &case.col_side } else { &case.row_side };
            run(spec, candidate, &case.csr, Some(&case.transpose), x, &mut out, bytes)
        }
    }
    out
}

fn all_candidates<T: Float>(spec: &SparseSpec) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for cap in [0, 1 << 10, 100_000, u64::MAX] {
        let list = candidates(spec, T::DTYPE, 2, cap);
        assert!(list.iter().any(|c| c.workspace == 0), "nothing without a workspace: {spec:?}");
        for candidate in list {
            assert!(candidate.seconds.is_finite() && candidate.deterministic);
            if !all.contains(&candidate) {
                all.push(candidate);
            }
        }
    }
    all
}

fn check<T: Float>(case: &Case<'_, T>, spec: &SparseSpec, pools: &[rayon::ThreadPool]) {
    check_some(case, spec, pools, |_| true);
}

/// Each candidate, which writes its product and which adds it.
fn check_some<T: Float>(
    case: &Case<'_, T>,
    spec: &SparseSpec,
    pools: &[rayon::ThreadPool],
    which: impl Fn(&Candidate) -> bool,
) {
    for accumulate in [false, true] {
        check_one(case, &SparseSpec { accumulate, ..*spec }, pools, &which);
    }
}

fn check_one<T: Float>(
    case: &Case<'_, T>,
    spec: &SparseSpec,
    pools: &[rayon::ThreadPool],
    which: impl Fn(&Candidate) -> bool,
) {
    let expected = reference(case, spec);
    for candidate in all_candidates::<T>(spec).into_iter().filter(which) {
        let what =
            (T::DTYPE, spec, &candidate.name, &candidate.split, case.csr.rows, case.csr.cols);
        let mut results = pools
            .iter()
            .map(|pool| pool.install(|| execute(case, spec, &candidate, expected.len())));
        let first = results.next().unwrap();
        close(&first, &expected, &what);
        for other in results {
            let bytes = bytemuck::cast_slice::<T, u8>;
            assert!(bytes(&first) == bytes(&other), "threads change {what:?}");
        }
    }
}

fn check_all<T: Float>(widths: &[usize]) {
    let mut lcg = Lcg(7);
    let pools = [pool(1), pool(2)];
    for (rows, cols, entries) in shapes(&mut lcg) {
        let (i, j): (Vec<i32>, Vec<i32>) = entries.into_iter().unzip();
        let values = lcg.values::<T>(i.len());
        let built = from_coo(rows, cols, &i, &j, values, false).unwrap().csr;
        let turned = transpose_csr(cols, &built, false).csr;
        for &width in widths {
            let case = case(&mut lcg, [rows, cols], &built, &turned, width);
            for product in
                [SparseProduct::Forward, SparseProduct::Transposed, SparseProduct::Sampled]
            {
                for layout in [DenseLayout::Columns, DenseLayout::Rows] {
                    check(&case, &case.spec(product, layout, width), &pools);
                }
            }
        }
    }
}

/// Sums that are exact in f32 and not in halves: what is held and the product are rounded together,
/// once.
#[test]
fn a_half_that_is_added_to_is_rounded_once() {
    fn with<T: Float>() {
        let mut lcg = Lcg(31);
        let (rows, cols, width) = (40, 50, 40);
        let (i, j): (Vec<i32>, Vec<i32>) =
            (0..600).map(|_| (lcg.below(rows) as i32, lcg.below(cols) as i32)).unzip();
        let mut numbers = |n: usize| -> Vec<T> {
            (0..n).map(|_| T::from_f64((lcg.below(33) as f64 - 16.0) / 16.0)).collect()
        };
        let built = from_coo(rows, cols, &i, &j, numbers(600), false).unwrap().csr;
        let turned = transpose_csr(cols, &built, false).csr;
        let mut case = case(&mut Lcg(0), [rows, cols], &built, &turned, width);
        (case.row_side, case.col_side) = (numbers(rows * width), numbers(cols * width));
        for product in [SparseProduct::Forward, SparseProduct::Transposed, SparseProduct::Sampled] {
            for layout in [DenseLayout::Columns, DenseLayout::Rows] {
                let spec = SparseSpec { accumulate: true, ..case.spec(product, layout, width) };
                let exact = reference(&case, &spec);
                for candidate in all_candidates::<T>(&spec) {
                    let got = pool(2).install(|| execute(&case, &spec, &candidate, exact.len()));
                    for (got, exact) in got.iter().zip(&exact) {
                        let once = T::from_f64(*exact);
                        assert!(*got == once, "{got:?}, not {once:?}: {spec:?} {candidate:?}");
                    }
                }
            }
        }
    }
    with::<f16>();
    with::<bf16>();
}

/// All that there are block sizes for, and odd ones; fewer where the kernels are not optimised.
const WIDTHS: &[usize] = if cfg!(debug_assertions) {
    &[0, 1, 2, 7, 8, 33]
} else {
    &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64, 143]
};

#[test]
fn f32_products() {
    check_all::<f32>(WIDTHS);
}

#[test]
fn f64_products() {
    check_all::<f64>(WIDTHS);
}

#[test]
fn f16_products() {
    check_all::<f16>(WIDTHS);
}

#[test]
fn bf16_products() {
    check_all::<bf16>(WIDTHS);
}

/// A row longer than a task, columns beyond a strip, and enough entries for many tasks.
#[test]
fn large_and_uneven() {
    fn with<T: Float>() {
        let mut lcg = Lcg(11);
        let (rows, cols) = (2_000, 90_000);
        let mut i: Vec<i32> = vec![777; cols];
        let mut j: Vec<i32> = (0..cols as i32).collect();
        for r in 0..rows as i32 {
            for _ in 0..40 {
                i.push(r);
                j.push((lcg.below(300) * lcg.below(300)) as i32);
            }
        }
        let values = lcg.values::<T>(i.len());
        let built = from_coo(rows, cols, &i, &j, values, false).unwrap().csr;
        let turned = transpose_csr(cols, &built, false).csr;
        let pools = [pool(1), pool(2)];
        for width in [1, 5] {
            let case = case(&mut lcg, [rows, cols], &built, &turned, width);
            for product in
                [SparseProduct::Forward, SparseProduct::Transposed, SparseProduct::Sampled]
            {
                for layout in [DenseLayout::Columns, DenseLayout::Rows] {
                    check(&case, &case.spec(product, layout, width), &pools);
                }
            }
        }
    }
    with::<f32>();
    with::<bf16>();
}

/// Rows of many entries, taken by strips of columns: an odd last strip and last block, empty rows,
/// short ones, a full one, and entries that crowd at one end.
#[test]
fn many_entries_a_row() {
    fn with<T: Float>() {
        let mut lcg = Lcg(23);
        let (rows, cols) = (331usize, 70_003);
        let (mut i, mut j) = (Vec::new(), Vec::new());
        for r in 0..rows {
            let count = match r % 7 {
                0 => 0,
                1 => 3,
                _ => 500,
            };
            for k in 0..count {
                let col = if r % 3 == 0 { cols - 1 - k } else { lcg.below(cols) };
                i.push(r as i32);
                j.push(col as i32);
            }
        }
        i.extend(vec![200; cols]);
        j.extend(0..cols as i32);
        let values = lcg.values::<T>(i.len());
        let built = from_coo(rows, cols, &i, &j, values, false).unwrap().csr;
        let turned = transpose_csr(cols, &built, false).csr;
        let case = case(&mut lcg, [rows, cols], &built, &turned, 1);
        let nnz = case.csr.nnz();
        assert!(walk::pays(rows, cols, nnz, cols / 5, size_of::<T::Sum>()), "{nnz} are too few");
        let pools = [pool(1), pool(2), pool(5)];
        for product in [SparseProduct::Forward, SparseProduct::Transposed] {
            check(&case, &case.spec(product, DenseLayout::Columns, 1), &pools);
        }
    }
    with::<f32>();
    with::<f64>();
    with::<f16>();
    with::<bf16>();
}

/// cupy#9850: more vectors than a 16-bit or 20-bit grid holds.
#[test]
fn a_million_vectors() {
    let width = 1_048_561;
    let (i, j) = ([0i32, 1, 1, 3], [2i32, 0, 3, 3]);
    let mut lcg = Lcg(3);
    let built = from_coo(4, 4, &i, &j, lcg.values::<f32>(4), false).unwrap().csr;
    let turned = transpose_csr(4, &built, false).csr;
    let case = case(&mut lcg, [4, 4], &built, &turned, width);
    for product in [SparseProduct::Forward, SparseProduct::Transposed, SparseProduct::Sampled] {
        for layout in [DenseLayout::Columns, DenseLayout::Rows] {
            let spec = case.spec(product, layout, width);
            // Blocks of 32 of them would be 32,768 steps, right but slow.
            check_some(&case, &spec, &[pool(2)], |c| c.workspace == 0);
        }
    }
}

/// Every 16-bit pattern widens to what the half crate says.
#[test]
fn halves_widen_exactly() {
    for bits in 0..=u16::MAX {
        let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
        let same = |ours: f32, theirs: f32| {
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan());
        };
        same(lanes::widen(h), h.to_f32());
        same(lanes::widen(b), b.to_f32());
    }
}

#[test]
fn integers_do_not_compute() {
    let spec = SparseSpec {
        product: SparseProduct::Forward,
        layout: DenseLayout::Columns,
        width: 1,
        rows: 2,
        cols: 3,
        nnz: 2,
        stored: STORED,
        transpose: None,
        values_apart: false,
        accumulate: false,
    };
    assert!(candidates(&spec, DType::I64, 1, 0).is_empty());
}
