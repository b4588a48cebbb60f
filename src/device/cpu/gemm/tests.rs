//! Every candidate of a product against a plain f64 product.

use super::*;
use crate::device::spec::Strided;
use crate::dtype::Element;
use half::{bf16, f16};

/// A small random generator.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    /// Values in -1..1.
    pub(crate) fn values<T: Element>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_f64(self.below(1 << 20) as f64 / (1 << 19) as f64 - 1.0)).collect()
    }
}

/// Workspace bytes that start on a cache line, full of NaN.
pub(crate) fn with_workspace<R>(len: u64, run: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut bytes = vec![0xffu8; len as usize + 64];
    let start = bytes.as_ptr().align_offset(64);
    run(&mut bytes[start..start + len as usize])
}

/// The relative error that a type is allowed.
pub(crate) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F16 => 3e-3,
        DType::BF16 => 1.5e-2,
        _ => 1e-5,
    }
}

/// `‖out − reference‖ / ‖reference‖`; NaN where there is one.
pub(crate) fn distance<T: Element>(out: &[T], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let norm: f64 = reference.iter().map(|r| r * r).sum();
    let error: f64 = out.iter().zip(reference).map(|(o, r)| (o.to_f64() - r).powi(2)).sum();
    if norm == 0.0 { error } else { (error / norm).sqrt() }
}

/// A pool of `threads` threads.
pub(crate) fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

/// The caps that candidates are asked for.
pub(crate) const CAPS: [u64; 4] = [0, 1 << 10, 100 << 10, u64::MAX];

fn reference<T: Element>(
    spec: &GemmSpec,
    a: &[T],
    b: &[T],
    bias: Option<&[T]>,
    before: Option<&[T]>,
) -> Vec<f64> {
    let mut out = Vec::new();
    for p in 0..spec.batch {
        for i in 0..spec.m {
            for j in 0..spec.n {
                let mut sum = bias.map_or(0.0, |bias| bias[j].to_f64());
                sum += before.map_or(0.0, |before| before[out.len()].to_f64());
                for k in 0..spec.k {
                    let a = a[p * spec.a.batch + i * spec.a.row + k * spec.a.col];
                    let b = b[p * spec.b.batch + k * spec.b.row + j * spec.b.col];
                    sum += a.to_f64() * b.to_f64();
                }
                out.push(sum);
            }
        }
    }
    out
}

fn operand(rows: usize, columns: usize, transposed: bool, repeated: bool) -> Strided {
    let (row, col) = if transposed { (1, rows) } else { (columns, 1) };
    Strided { batch: if repeated { 0 } else { rows * columns }, row, col }
}

fn check<T: Float>(
    spec: &GemmSpec,
    accumulate: bool,
    with_bias: bool,
    pools: &[rayon::ThreadPool; 2],
) {
    let mut random = Lcg((spec.m * 31 + spec.n * 7 + spec.k) as u64);
    let a: Vec<T> = random.values(spec.batch * spec.m * spec.k);
    let b: Vec<T> = random.values(spec.batch * spec.k * spec.n);
    let bias: Vec<T> = random.values(spec.n);
    let bias = with_bias.then_some(&bias[..]);
    let len = spec.batch * spec.m * spec.n;
    let before: Vec<T> =
        if accumulate { random.values(len) } else { vec![T::from_f64(f64::NAN); len] };
    let reference = reference(spec, &a, &b, bias, accumulate.then_some(&before));
    for cap in CAPS {
        let candidates = gemm_candidates(spec, T::DTYPE, 2, cap);
        assert!(candidates.iter().any(|c| c.workspace == 0));
        for candidate in candidates {
            assert!(candidate.seconds.is_finite() && candidate.seconds > 0.0, "{candidate:?}");
            let run = |isa: Isa, pool: &rayon::ThreadPool, threads: usize| {
                let mut out = before.clone();
                with_workspace(candidate.workspace, |workspace| {
                    let (a, b) = (&a, &b);
                    let call = GemmCall { spec, a, b, bias, accumulate, isa, threads };
                    pool.install(|| call.run(&candidate, &mut out, workspace));
                });
                out
            };
            let one = run(Isa::detect(), &pools[0], 1);
            let two = run(Isa::detect(), &pools[1], 2);
            let bytes = bytemuck::cast_slice::<T, u8>;
            assert!(
                bytes(&one) == bytes(&two),
                "{spec:?} {candidate:?}: threads change the result"
            );
            let plain = run(Isa::portable(), &pools[1], 2);
            for out in [&one, &plain] {
                let error = distance(out, &reference);
                assert!(error <= tolerance(T::DTYPE), "{spec:?} {candidate:?}: {error}");
            }
        }
    }
}

fn check_all(spec: &GemmSpec, accumulate: bool, with_bias: bool, pools: &[rayon::ThreadPool; 2]) {
    check::<f32>(spec, accumulate, with_bias, pools);
    check::<f64>(spec, accumulate, with_bias, pools);
    check::<f16>(spec, accumulate, with_bias, pools);
    check::<bf16>(spec, accumulate, with_bias, pools);
}

#[test]
fn every_candidate_agrees_with_f64() {
    let pools = [pool(1), pool(2)];
    let sizes = [
        (1, 1, 1, 1),
        (1, 1, 100, 70),
        (1, 100, 1, 70),
        (2, 7, 17, 0),
        (3, 6, 16, 64),
        (2, 0, 5, 3),
        (0, 4, 5, 3),
        (1, 5, 0, 3),
        (1, 150, 130, 700),
        (2, 67, 33, 1300),
        (1, 13, 25, 9000),
        (40, 9, 9, 9),
    ];
    for (i, (batch, m, n, k)) in sizes.into_iter().enumerate() {
        let a = operand(m, k, i % 2 == 1, i % 5 == 4);
        let b = operand(k, n, i % 3 == 1, i % 4 == 3);
        let spec = GemmSpec { batch, m, n, k, a, b };
        check_all(&spec, i % 3 == 2, i % 2 == 0, &pools);
    }
}

#[test]
fn random_products_agree_with_f64() {
    let pools = [pool(1), pool(2)];
    let mut random = Lcg(7);
    for i in 0..60 {
        let batch = 1 + random.below(3);
        let (m, n, k) = (1 + random.below(80), 1 + random.below(80), random.below(200));
        let a = operand(m, k, random.below(2) == 0, random.below(3) == 0);
        let b = operand(k, n, random.below(2) == 0, random.below(3) == 0);
        let spec = GemmSpec { batch, m, n, k, a, b };
        check_all(&spec, random.below(3) == 0, i % 2 == 0, &pools);
    }
}

#[test]
fn whole_product_is_the_same_for_any_number_of_threads() {
    let (m, n, k) = (150, 130, 1500);
    let (a, b) = (operand(m, k, false, false), operand(k, n, false, false));
    let spec = GemmSpec { batch: 1, m, n, k, a, b };
    let mut random = Lcg(3);
    let (x, y): (Vec<f32>, Vec<f32>) = (random.values(m * k), random.values(k * n));
    let mut results = [1, 2, 5].map(|threads| {
        let candidate = &gemm_candidates(&spec, DType::F32, threads, u64::MAX)[0];
        let mut out = vec![f32::NAN; m * n];
        with_workspace(candidate.workspace, |workspace| {
            pool(threads).install(|| {
                gemm_run(&spec, candidate, &x, &y, None, false, &mut out, workspace, threads);
            });
        });
        out
    });
    let first = std::mem::take(&mut results[0]);
    assert!(results[1..].iter().all(|other| *other == first));
}
