//! Sparse products, forward and transposed, beside a plain read of the same matrix:
//! `cargo bench --bench spmm`.

mod common;

use capgrad::{DType, Device, SparseOptions, StoredTranspose, Tensor, Var};
use common::random_matrix;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;

fn products(criterion: &mut Criterion) {
    let device = Device::cpu();
    let matrices = [
        ("268800, 100 a row anywhere", 268_800, 268_800),
        ("268800, 100 a row near the diagonal", 268_800, 1_000),
        ("100000, 100 a row anywhere", 100_000, 100_000),
    ];
    for (name, size, reach) in matrices {
        let a = random_matrix(size, 100, reach).unwrap();
        let options =
            SparseOptions { stored_transpose: StoredTranspose::Always, ..Default::default() };
        let twice = a.to_with(&device, options).unwrap();
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).throughput(Throughput::Bytes(a.bytes() as u64));
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
        for width in [1, 8, 64] {
            let x = Var::from(Tensor::randn([width, size], DType::F32, &device).unwrap());
            group.bench_function(format!("A·X, {width} vectors"), |bencher| {
                bencher.iter(|| a.apply(&x).unwrap());
            });
            group.bench_function(format!("Aᵀ·G, {width} vectors"), |bencher| {
                let transposed = a.transpose();
                bencher.iter(|| transposed.apply(&x).unwrap());
            });
            group.bench_function(format!("Aᵀ·G, {width} vectors, stored"), |bencher| {
                let transposed = twice.transpose();
                bencher.iter(|| transposed.apply(&x).unwrap());
            });
        }
        group.finish();
    }
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
