//! Sparse products, forward and transposed, on the fastest device there is: `cargo bench --bench spmm`.
//! On a CPU they are beside a plain read of the same matrix; on a GPU they are in each form.

mod common;

use capgrad::{
    DType, Device, SparseForm, SparseMatrix, SparseOptions, StoredTranspose, Tensor, Var,
};
use common::random_matrix;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;
use std::time::Instant;

fn products(criterion: &mut Criterion) {
    let device = Device::best().unwrap();
    let on_cpu = device.name().starts_with("cpu");
    let forms: &[SparseForm] =
        if on_cpu { &[SparseForm::Csr] } else { &[SparseForm::Csr, SparseForm::Tiled] };
    let matrices = [
        ("268800, 100 a row anywhere", 268_800, 268_800),
        ("268800, 100 a row near the diagonal", 268_800, 1_000),
        ("100000, 100 a row anywhere", 100_000, 100_000),
    ];
    for (name, size, reach) in matrices {
        let host = random_matrix(size, 100, reach).unwrap();
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).throughput(Throughput::Bytes(host.bytes() as u64));
        if on_cpu {
            reading(&mut group, &host);
        }
        for &form in forms {
            let options = SparseOptions { form, ..Default::default() };
            let a = host.to_with(&device, options).unwrap();
            let stored_transpose = StoredTranspose::Always;
            let twice = a.to_with(&device, SparseOptions { stored_transpose, ..options }).unwrap();
            let form = if on_cpu { "".into() } else { format!(", {form:?}") };
            for width in [1, 8, 64] {
                let x = Var::from(Tensor::randn([width, size], DType::F32, &device).unwrap());
                for (product, copy, a) in [
                    ("A·X", "", a.clone()),
                    ("Aᵀ·G", "", a.transpose()),
                    ("Aᵀ·G", ", stored", twice.transpose()),
                ] {
                    let name = format!("{product}, {width} vectors{copy}{form}");
                    group.bench_function(name, |bencher| {
                        // A GPU is waited for once, not after each product.
                        bencher.iter_custom(|count| {
                            device.synchronize().unwrap();
                            let start = Instant::now();
                            for _ in 0..count {
                                a.apply(&x).unwrap();
                            }
                            device.synchronize().unwrap();
                            start.elapsed()
                        });
                    });
                }
            }
        }
        group.finish();
    }
}

/// A plain read of the matrix.
fn reading(group: &mut BenchmarkGroup<'_, WallTime>, a: &SparseMatrix) {
    let values = a.values().unwrap().to_vec::<f32>().unwrap();
    let indices = vec![1i32; a.nnz()];
    group.bench_function("reading the matrix once", |bencher| {
        bencher.iter(|| {
            let values: f32 = values.par_chunks(1 << 16).map(sum).sum();
            let indices: i32 = indices
                .par_chunks(1 << 16)
                .map(|part| part.iter().fold(0, |sum: i32, &index| sum.wrapping_add(index)))
                .reduce(|| 0, i32::wrapping_add);
            (values, indices)
        });
    });
}

/// A sum in sixteen lanes, which the compiler can keep in vector registers.
fn sum(part: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for sixteen in part.chunks_exact(16) {
        lanes.iter_mut().zip(sixteen).for_each(|(lane, value)| *lane += value);
    }
    lanes.iter().sum()
}

criterion_group!(benches, products);
criterion_main!(benches);
