//! Ratios to the ceiling, from one run: each line interleaves the crate's work with the plain work
//! that bounds it, and takes the medians. `cargo run --release -p capgrad-ceiling`.
//!
//! A convolution's ceiling is the same number of operations as matrix products, at the best rate
//! that the product library reaches on those sizes, whole or in chunks; a depthwise one's is a plain
//! copy; a sparse product's is one read of the matrix.

#[path = "../../common/mod.rs"]
mod common;
mod product;

use capgrad::{DType, Device, Tape, Tensor, Var};
use common::{ConvShape, DEPTHWISE, SHAPES, random_matrix};
use product::Product;
use rayon::prelude::*;
use std::time::Instant;

const ROUNDS: usize = 9;

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Seconds of the three passes, each timed on its own; the passes of the given output gradient.
fn conv_passes(shape: &ConvShape, [x, w, dy]: &[Tensor; 3]) -> [f64; 3] {
    let options = shape.options();
    let (constant_x, constant_w) = (Var::from(x), Var::from(w));
    let forward = seconds(|| drop(constant_x.conv1d(&constant_w, None, &options).unwrap()));
    let tape = Tape::new();
    let w_variable = tape.variable(w.clone()).unwrap();
    let y = tape.constant(x.clone()).conv1d(&w_variable, None, &options).unwrap();
    let weight = seconds(|| drop(y.backward_with(dy.clone()).unwrap()));
    let x_variable = tape.variable(x.clone()).unwrap();
    let y = x_variable.conv1d(&constant_w, None, &options).unwrap();
    let input = seconds(|| drop(y.backward_with(dy.clone()).unwrap()));
    [forward, weight, input]
}

fn convolutions(device: &Device) {
    println!(
        "{:<32} {:>10} {:>10} {:>8}   ratio of each pass",
        "convolution", "GFLOP/s", "product", "ratio"
    );
    for shape in &SHAPES {
        let data = shape.data(device).unwrap();
        let mut products: Vec<Product> = shape.products().into_iter().map(Product::new).collect();
        let mut own = [const { Vec::new() }; 3];
        let mut plain = [const { [const { Vec::new() }; 3] }; 3];
        for _ in 0..ROUNDS {
            for (times, time) in own.iter_mut().zip(conv_passes(shape, &data)) {
                times.push(time);
            }
            for (product, times) in products.iter_mut().zip(&mut plain) {
                for (times, chunks) in times.iter_mut().zip([1, 2, 4]) {
                    times.push(match chunks {
                        1 => seconds(|| product.run()),
                        _ => seconds(|| product.run_in_chunks(chunks)),
                    });
                }
            }
        }
        let own = own.map(median);
        let best = plain.map(|ways| ways.map(median).into_iter().fold(f64::INFINITY, f64::min));
        let (own_sum, best_sum): (f64, f64) = (own.iter().sum(), best.iter().sum());
        let rate = |time: f64| 3.0 * shape.flops() as f64 / time / 1e9;
        println!(
            "{:<32} {:>10.1} {:>10.1} {:>8.3}   {:.3} {:.3} {:.3}",
            shape.name,
            rate(own_sum),
            rate(best_sum),
            best_sum / own_sum,
            best[0] / own[0],
            best[1] / own[1],
            best[2] / own[2],
        );
    }
}

fn depthwise(device: &Device) {
    let shape = &DEPTHWISE;
    let data = shape.data(device).unwrap();
    let source = data[0].to_vec::<f32>().unwrap();
    let mut target = source.clone();
    let mut own = [const { Vec::new() }; 3];
    let mut copies = Vec::new();
    for _ in 0..5 * ROUNDS {
        for (times, time) in own.iter_mut().zip(conv_passes(shape, &data)) {
            times.push(time);
        }
        copies.push(seconds(|| {
            // In as many pieces as there are threads.
            let part = source.len().div_ceil(rayon::current_num_threads());
            target
                .par_chunks_mut(part)
                .zip(source.par_chunks(part))
                .for_each(|(target, source)| target.copy_from_slice(source));
        }));
    }
    std::hint::black_box(&target);
    let (own, copy) = (own.map(median), median(copies));
    let bandwidth = |time: f64| 8.0 * source.len() as f64 / time / 1e9;
    println!("\n{:<32} {:>10} {:>10} {:>8}", "depthwise", "GB/s", "copy", "ratio");
    for (pass, time) in ["forward", "weight gradient", "input gradient"].into_iter().zip(own) {
        println!(
            "{:<32} {:>10.2} {:>10.2} {:>8.3}",
            format!("{} {pass}", shape.name),
            bandwidth(time),
            bandwidth(copy),
            copy / time
        );
    }
}

fn sparse(device: &Device) {
    let size = 268_800;
    println!("\n{:<44} {:>10} {:>10} {:>8}", "sparse 268800²", "GB/s", "read", "ratio");
    for (name, per_row, reach) in [
        ("100 a row near the diagonal", 100, 1_000),
        ("100 a row anywhere", 100, size),
        ("1100 a row anywhere", 1_100, size),
    ] {
        let a = random_matrix(size, per_row, reach).unwrap();
        let transposed = a.transpose();
        let x = Var::from(Tensor::randn([1, size], DType::F32, device).unwrap());
        // As many bytes as the matrix has, read once.
        let indices: Vec<i32> = (0..a.nnz() as i32).collect();
        let values = vec![0.5f32; a.nnz()];
        let (mut forward, mut backward, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 * ROUNDS {
            forward.push(seconds(|| drop(a.apply(&x).unwrap())));
            backward.push(seconds(|| drop(transposed.apply(&x).unwrap())));
            reads.push(seconds(|| {
                let floats: f32 = values.par_chunks(1 << 18).map(float_lanes).sum();
                let integers = indices.par_chunks(1 << 18).map(integer_lanes).max();
                std::hint::black_box((floats, integers));
            }));
        }
        let (forward, backward, read) = (median(forward), median(backward), median(reads));
        for (product, time) in [("A·x", forward), ("Aᵀ·g", backward)] {
            let bandwidth = |time: f64| a.bytes() as f64 / time / 1e9;
            println!(
                "{:<44} {:>10.2} {:>10.2} {:>8.3}",
                format!("{name}, {product}"),
                bandwidth(time),
                bandwidth(read),
                read / time
            );
        }
    }
}

/// A sum in lanes that the compiler can keep in vector registers.
fn float_lanes(part: &[f32]) -> f32 {
    let mut lanes = [0f32; 32];
    for values in part.chunks_exact(32) {
        lanes.iter_mut().zip(values).for_each(|(lane, value)| *lane += value);
    }
    lanes.iter().sum()
}

fn integer_lanes(part: &[i32]) -> i32 {
    let mut lanes = [0i32; 32];
    for values in part.chunks_exact(32) {
        lanes.iter_mut().zip(values).for_each(|(lane, value)| *lane ^= value);
    }
    lanes.iter().fold(0, |all, lane| all ^ lane)
}

fn main() {
    let device = Device::cpu();
    println!("{} threads, medians of interleaved runs\n", rayon::current_num_threads());
    convolutions(&device);
    depthwise(&device);
    sparse(&device);
}
