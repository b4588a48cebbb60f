//! Each pass of the named convolutions, beside a plain matrix product of the same work:
//! `cargo bench --bench conv1d`.

mod common;

use capgrad::{DType, Device, Tape, Tensor, Var};
use common::{ConvShape, DEPTHWISE, SHAPES};
use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};

/// Which operand wants its gradient.
#[derive(Clone, Copy)]
enum Wanted {
    Weight,
    Input,
}

fn gradient(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    shape: &ConvShape,
    [x, w, dy]: &[Tensor; 3],
    wanted: Wanted,
) {
    let recorded = || {
        let tape = Tape::new();
        let (x, w) = match wanted {
            Wanted::Weight => (tape.constant(x.clone()), tape.variable(w.clone()).unwrap()),
            Wanted::Input => (tape.variable(x.clone()).unwrap(), tape.constant(w.clone())),
        };
        let y = x.conv1d(&w, None, &shape.options()).unwrap();
        (tape, y)
    };
    group.bench_function(name, |bencher| {
        bencher.iter_batched(
            recorded,
            |(_tape, y)| y.backward_with(dy.clone()).unwrap(),
            BatchSize::PerIteration,
        );
    });
}

fn passes(criterion: &mut Criterion) {
    let device = Device::best().unwrap();
    for shape in SHAPES.iter().chain([&DEPTHWISE]) {
        let mut group = criterion.benchmark_group(shape.name);
        group.sample_size(10).throughput(Throughput::Elements(shape.flops()));
        let data = shape.data(&device).unwrap();
        let (x, w) = (Var::from(&data[0]), Var::from(&data[1]));
        group.bench_function("forward", |bencher| {
            bencher.iter(|| x.conv1d(&w, None, &shape.options()).unwrap());
        });
        gradient(&mut group, "weight gradient", shape, &data, Wanted::Weight);
        gradient(&mut group, "input gradient", shape, &data, Wanted::Input);
        if shape.groups == 1 {
            let names = ["forward as a product", "weight as a product", "input as a product"];
            for ([rows, columns, depth], name) in shape.products().into_iter().zip(names) {
                let a = Var::from(Tensor::randn([rows, depth], DType::F32, &device).unwrap());
                let b = Var::from(Tensor::randn([depth, columns], DType::F32, &device).unwrap());
                group.bench_function(name, |bencher| bencher.iter(|| a.matmul(&b).unwrap()));
            }
        } else {
            let data = vec![1.5f32; data[0].elements()];
            let mut copy = data.clone();
            group.bench_function("a plain copy", |bencher| {
                bencher.iter(|| copy.copy_from_slice(std::hint::black_box(&data)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, passes);
criterion_main!(benches);
