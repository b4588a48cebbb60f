//! Every candidate of every product, forced in turn, against a naive f64 reference.

use super::*;
use crate::dtype::DType;
use crate::sparse::build::{Offsets, from_coo, transpose_csr};
use half::{bf16, f16};

struct Lcg(u64);

impl Lcg {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn values<T: Float>(&mut self, n: usize) -> Vec<T> {
        (0..n)
            .map(|_| T::from_f64(self.next() as f64 / (1u64 << 31) as f64 - 0.5))
            .collect()
    }
}

/// Rows, columns and entries: with and without empty rows and columns, dense lines, nothing at all.
fn shapes(lcg: &mut Lcg) -> Vec<(usize, usize, Vec<(i32, i32)>)> {
    let mut shapes = vec![
        (0, 5, vec![]),
        (5, 0, vec![]),
        (0, 0, vec![]),
        (3, 4, vec![]),
        (1, 1, vec![(0, 0)]),
        (1, 700, (0..700).map(|j| (0, j)).collect()),
        (700, 1, (0..700).map(|i| (i, 0)).collect()),
    ];
    for (rows, cols, nnz) in [
        (37, 53, 400),
        (300, 9, 1500),
        (9, 300, 700),
        (90, 120, 4000),
    ] {
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
    assert!(
        f64::sqrt(error) <= limit,
        "{error} over {limit} of {what:?}"
    );
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
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
        Offsets::I32(o) => OffsetsRef::I32(o),
        Offsets::I64(o) => OffsetsRef::I64(o),
    };
    Csr::new(rows, cols, offsets, c, v).unwrap()
}

struct Case<'a, T> {
    csr: Csr<'a, T>,
    transpose: Csr<'a, T>,
    /// The dense side of `rows` vectors and the one of `cols`.
    row_side: Vec<T>,
    col_side: Vec<T>,
}

fn at(layout: Layout, side: usize, n: usize, i: usize, j: usize) -> usize {
    match layout {
        Layout::Columns => i * n + j,
        Layout::BatchFirst => j * side + i,
    }
}

fn reference<T: Float>(case: &Case<'_, T>, spec: &SparseSpec, before: f64) -> Vec<f64> {
    let (rows, cols, n) = (case.csr.rows, case.csr.cols, spec.width);
    let len = match spec.product {
        Product::Forward => rows * n,
        Product::Transposed => cols * n,
        Product::Sampled => case.csr.nnz(),
    };
    let mut out = vec![if spec.accumulate { before } else { 0.0 }; len];
    for r in 0..rows {
        for e in case.csr.offset(r)..case.csr.offset(r + 1) {
            let (c, v) = (
                case.csr.col_indices[e] as usize,
                case.csr.values[e].to_f64(),
            );
            for j in 0..n {
                let (by_row, by_col) = (
                    at(spec.layout, rows, n, r, j),
                    at(spec.layout, cols, n, c, j),
                );
                let (y, x) = (
                    case.row_side[by_row].to_f64(),
                    case.col_side[by_col].to_f64(),
                );
                match spec.product {
                    Product::Forward => out[by_row] += v * x,
                    Product::Transposed => out[by_col] += v * y,
                    Product::Sampled => out[e] += y * x,
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
    let before = if spec.accumulate { 0.75 } else { f64::NAN };
    let mut out = vec![T::from_f64(before); len];
    let mut workspace = workspace(candidate.workspace);
    let bytes = &mut bytemuck::cast_slice_mut(&mut workspace)[..candidate.workspace as usize];
    match spec.product {
        Product::Sampled => run_sampled(
            spec,
            candidate,
            &case.csr,
            &case.row_side,
            &case.col_side,
            &mut out,
            bytes,
        ),
        product => {
            let x = if product == Product::Forward {
                &case.col_side
            } else {
                &case.row_side
            };
            run(
                spec,
                candidate,
                &case.csr,
                Some(&case.transpose),
                x,
                &mut out,
                bytes,
            )
        }
    }
    .unwrap();
    out
}

fn all_candidates<T: Float>(case: &Case<'_, T>, spec: &SparseSpec) -> Vec<Candidate> {
    let (rows, cols, nnz) = (case.csr.rows, case.csr.cols, case.csr.nnz());
    let mut all: Vec<Candidate> = Vec::new();
    for cap in [0, 1 << 10, 100_000, u64::MAX] {
        let list = candidates(spec, rows, cols, nnz, T::DTYPE, true, 2, cap);
        assert!(
            list.iter().any(|c| c.workspace == 0),
            "nothing without a workspace: {spec:?}"
        );
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
    let expected = reference(case, spec, 0.75);
    for candidate in all_candidates(case, spec) {
        let what = (
            T::DTYPE,
            spec,
            &candidate.name,
            &candidate.split,
            case.csr.rows,
            case.csr.cols,
        );
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
    let pools = [pool(1), pool(2), pool(5)];
    for (rows, cols, entries) in shapes(&mut lcg) {
        let (i, j): (Vec<i32>, Vec<i32>) = entries.into_iter().unzip();
        let values = lcg.values::<T>(i.len());
        let built = from_coo(rows, cols, &i, &j, values, false).unwrap().csr;
        let turned = transpose_csr(cols, &built, false).csr;
        for &width in widths {
            let case = Case {
                csr: view(
                    rows,
                    cols,
                    &built.row_offsets,
                    &built.col_indices,
                    &built.values,
                ),
                transpose: view(
                    cols,
                    rows,
                    &turned.row_offsets,
                    &turned.col_indices,
                    &turned.values,
                ),
                row_side: lcg.values(rows * width),
                col_side: lcg.values(cols * width),
            };
            for product in [Product::Forward, Product::Transposed, Product::Sampled] {
                for layout in [Layout::Columns, Layout::BatchFirst] {
                    for accumulate in [false, true] {
                        let spec = SparseSpec {
                            product,
                            layout,
                            width,
                            accumulate,
                        };
                        check(&case, &spec, &pools);
                    }
                }
            }
        }
    }
}

const WIDTHS: [usize; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64, 143];

#[test]
fn f32_products() {
    check_all::<f32>(&WIDTHS);
}

#[test]
fn f64_products() {
    check_all::<f64>(&WIDTHS);
}

#[test]
fn f16_products() {
    check_all::<f16>(&WIDTHS);
}

#[test]
fn bf16_products() {
    check_all::<bf16>(&WIDTHS);
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
        let pools = [pool(1), pool(2), pool(3)];
        for width in [1, 5] {
            let case = Case {
                csr: view(
                    rows,
                    cols,
                    &built.row_offsets,
                    &built.col_indices,
                    &built.values,
                ),
                transpose: view(
                    cols,
                    rows,
                    &turned.row_offsets,
                    &turned.col_indices,
                    &turned.values,
                ),
                row_side: lcg.values(rows * width),
                col_side: lcg.values(cols * width),
            };
            for product in [Product::Forward, Product::Transposed, Product::Sampled] {
                for layout in [Layout::Columns, Layout::BatchFirst] {
                    let spec = SparseSpec {
                        product,
                        layout,
                        width,
                        accumulate: false,
                    };
                    check(&case, &spec, &pools);
                }
            }
        }
    }
    with::<f32>();
    with::<bf16>();
}

/// cupy#9850: more vectors than a 16-bit or 20-bit grid holds.
#[test]
fn a_million_vectors() {
    let width = 1_048_561;
    let (i, j) = ([0i32, 1, 1, 3], [2i32, 0, 3, 3]);
    let mut lcg = Lcg(3);
    let built = from_coo(4, 4, &i, &j, lcg.values::<f32>(4), false)
        .unwrap()
        .csr;
    let turned = transpose_csr(4, &built, false).csr;
    let case = Case {
        csr: view(4, 4, &built.row_offsets, &built.col_indices, &built.values),
        transpose: view(
            4,
            4,
            &turned.row_offsets,
            &turned.col_indices,
            &turned.values,
        ),
        row_side: lcg.values(4 * width),
        col_side: lcg.values(4 * width),
    };
    for product in [Product::Forward, Product::Transposed, Product::Sampled] {
        for layout in [Layout::Columns, Layout::BatchFirst] {
            let spec = SparseSpec {
                product,
                layout,
                width,
                accumulate: false,
            };
            check(&case, &spec, &[pool(1), pool(2)]);
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
fn what_does_not_fit_is_an_error() {
    let csr = Csr::new(2, 3, OffsetsRef::I64(&[0, 1, 2]), &[1, 2], &[1.0f32, 2.0]).unwrap();
    let spec = SparseSpec {
        product: Product::Transposed,
        layout: Layout::Columns,
        width: 1,
        accumulate: false,
    };
    let list = candidates(&spec, 2, 3, 2, DType::F32, true, 2, 1 << 20);
    let (x, mut out) = ([1.0f32; 2], [f32::NAN; 3]);
    for candidate in &list {
        let short = run(&spec, candidate, &csr, None, &x[..1], &mut out, &mut []);
        assert!(matches!(
            short,
            Err(RunError::Length {
                expected: 2,
                got: 1,
                ..
            })
        ));
        let short = run(&spec, candidate, &csr, None, &x, &mut out[..2], &mut []);
        assert!(matches!(
            short,
            Err(RunError::Length {
                expected: 3,
                got: 2,
                ..
            })
        ));
        let run = run(&spec, candidate, &csr, None, &x, &mut out, &mut []);
        match candidate.code {
            code::STORED => assert_eq!(run, Err(RunError::NoTranspose)),
            code::COLUMN_RANGES => assert_eq!(run, Ok(())),
            _ => assert!(matches!(run, Err(RunError::Workspace { got: 0, .. }))),
        }
    }
    let forward = SparseSpec {
        product: Product::Forward,
        ..spec
    };
    let wrong = run(
        &forward,
        &list[0],
        &csr,
        None,
        &[1.0; 3],
        &mut [0.0; 2],
        &mut [],
    );
    assert_eq!(
        wrong,
        Err(RunError::Unknown {
            code: code::COLUMN_RANGES
        })
    );
    assert!(candidates(&spec, 2, 3, 2, DType::I64, false, 1, 0).is_empty());
    assert!(Csr::new(1, 2, OffsetsRef::I32(&[0, 2]), &[1, 1], &[1.0f32; 2]).is_err());
}
