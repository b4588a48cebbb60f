//! Copies between the host and a GPU, and between two devices of one GPU: `cargo bench --bench transfers`.
//!
//! `--table` prints one line of JSON for each, in bytes a second, for `benches/compare_devices.py`, which
//! puts pinned copies beside them.

use capgrad::{CudaOptions, DType, Device, MIB, Tensor};
use criterion::{Criterion, Throughput};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// A pair of devices and what the copy is called.
type Way = (&'static str, Device, Device);

fn ways() -> Vec<Way> {
    let Ok(gpu) = Device::cuda(0) else {
        let (one, two) = (Device::cpu(), Device::new_cpu(Default::default()).unwrap());
        return vec![("cpu to cpu", one, two)];
    };
    let other = Device::new_cuda(0, CudaOptions::default()).unwrap();
    let detour = Device::new_cuda(0, CudaOptions { through_host: true, ..Default::default() });
    let (cpu, detour) = (Device::cpu(), detour.unwrap());
    vec![
        ("cpu to cuda", cpu.clone(), gpu.clone()),
        ("cuda to cpu", gpu.clone(), cpu),
        ("cuda to cuda", gpu.clone(), other),
        ("cuda to cuda through the host", gpu, detour),
    ]
}

/// The time of `count` copies, one after the other.
fn copies(x: &Tensor, to: &Device, count: u64) -> Duration {
    let finish = || {
        x.device().synchronize().unwrap();
        to.synchronize().unwrap();
    };
    finish();
    let start = Instant::now();
    for _ in 0..count {
        let copy = x.to(to).unwrap();
        // What is not used is not waited for.
        to.synchronize().unwrap();
        drop(copy);
    }
    finish();
    start.elapsed()
}

fn print(way: &str, bytes: u64, cap: u64, copy: impl Fn() -> Duration) {
    copy();
    let mut times: Vec<f64> = (0..5).map(|_| copy().as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let rate = bytes as f64 / times[2];
    println!(
        "{{\"way\": \"{way}\", \"bytes\": {bytes}, \"cap\": {cap}, \"bytes_per_second\": {rate:.0}}}"
    );
}

/// To memory of the host that is there already.
fn to_slice(x: &Tensor, data: &mut [f32]) -> Duration {
    x.device().synchronize().unwrap();
    let start = Instant::now();
    x.copy_to_slice(data).unwrap();
    start.elapsed()
}

fn table() {
    for (name, from, to) in ways() {
        for bytes in [MIB, 16 * MIB, 256 * MIB, 1024 * MIB] {
            let x = Tensor::randn([bytes as usize / 4], DType::F32, &from).unwrap();
            for cap in [0, MIB, 64 * MIB] {
                from.set_workspace_cap(cap);
                to.set_workspace_cap(cap);
                print(name, bytes, cap, || copies(&x, &to, 1));
                if name == "cuda to cpu" {
                    let data = RefCell::new(vec![1.0; x.elements()]);
                    print("cuda to a slice", bytes, cap, || to_slice(&x, &mut data.borrow_mut()));
                }
            }
        }
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--table") {
        return table();
    }
    let mut criterion = Criterion::default().configure_from_args();
    for (name, from, to) in ways() {
        let mut group = criterion.benchmark_group(name);
        for bytes in [MIB, 64 * MIB] {
            let x = Tensor::randn([bytes as usize / 4], DType::F32, &from).unwrap();
            group.sample_size(10).throughput(Throughput::Bytes(bytes));
            group.bench_function(capgrad::format_bytes(bytes), |bencher| {
                bencher.iter_custom(|count| copies(&x, &to, count));
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
