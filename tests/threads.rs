//! Tensors, values, parameters, devices and matrices go between threads; several threads use one
//! device at once; and one graph crosses two devices.

mod support;

use capgrad::{
    Conv1d, CpuOptions, CudaOptions, DType, Device, Error, Gradients, Parameter, SparseMatrix,
    Tape, Tensor, Var, no_grad,
};
use support::{Kind, Numbers, bits, devices, kinds, tensor, values};

const fn shared<T: Send + Sync>() {}

const _: () = {
    shared::<Tensor>();
    shared::<Var>();
    shared::<Tape>();
    shared::<Parameter>();
    shared::<Device>();
    shared::<SparseMatrix>();
    shared::<Conv1d>();
    shared::<Gradients>();
    shared::<Error>();
};

/// Two devices, of one kind and of two.
fn pairs() -> impl Iterator<Item = (Device, Device)> {
    let second = |first: Kind| kinds().map(move |second| (first.poisoned(), second.poisoned()));
    kinds().flat_map(second)
}

/// One step on `device`: loss and gradients, bit for bit.
fn step(conv: &Conv1d, a: &SparseMatrix, x: &Tensor) -> Vec<u64> {
    let tape = Tape::new();
    let y = conv.forward(&tape.constant(x.clone())).unwrap().relu().unwrap();
    let y = y.flatten(1).unwrap();
    let y = a.apply(&y).unwrap();
    let gradients = y.square().unwrap().mean().unwrap().backward().unwrap();
    conv.parameters().iter().flat_map(|p| bits(gradients.parameter(p).unwrap())).collect()
}

#[test]
fn threads_share_a_device_and_its_parameters() {
    for kind in kinds() {
        let device = kind.poisoned();
        // Bits are compared.
        device.set_deterministic(true);
        let conv = Conv1d::builder(3, 8, 5).build(&device).unwrap();
        let a = {
            let n = 8 * 46;
            let (i, j): (Vec<usize>, Vec<usize>) = (0..4 * n).map(|e| (e % n, e * 13 % n)).unzip();
            let a = SparseMatrix::from_coo(n, n, &i, &j, vec![0.5f32; 4 * n]).unwrap();
            a.to(&device).unwrap()
        };
        let x = tensor(&Numbers(1).reals(4 * 3 * 50), [4, 3, 50], DType::F32, &device);
        let expected = step(&conv, &a, &x);
        let live = device.live_bytes();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..20 {
                        assert_eq!(step(&conv, &a, &x), expected);
                    }
                });
            }
        });
        assert_eq!(device.live_bytes(), live);
    }
}

/// Operations that add up in several launches, each on data of its own; all results, bit for bit.
fn sums(device: &Device, seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let mut variable = |shape: &[usize], tape: &Tape| {
        let data = numbers.reals(shape.iter().product());
        tape.variable(tensor(&data, shape, DType::F32, device)).unwrap()
    };
    let tape = Tape::new();
    let mut found = Vec::new();
    let mut keep = |x: &Tensor| found.extend(bits(x));
    let x = variable(&[1 << 18], &tape);
    keep(x.sum().unwrap().tensor());
    keep(x.argmax(0).unwrap().tensor());
    let x = variable(&[4096, 64], &tape);
    keep(x.sum_axes(&[0], false).unwrap().tensor());
    let labels: Vec<i64> = (0..4096).map(|row| row * 7 % 64).collect();
    let labels = Tensor::from_vec(labels, [4096], device).unwrap();
    let (weight, bias) = (variable(&[64], &tape), variable(&[64], &tape));
    let y = x.layer_norm(Some(&weight), Some(&bias), 1e-5).unwrap();
    let loss = y.cross_entropy(&labels, Default::default()).unwrap();
    keep(loss.tensor());
    let gradients = loss.backward().unwrap();
    for v in [&x, &weight, &bias] {
        keep(gradients.get(v).unwrap());
    }
    let (a, b) = (variable(&[8, 1 << 15], &tape), variable(&[1 << 15, 8], &tape));
    keep(a.matmul(&b).unwrap().tensor());
    let (x, w) = (variable(&[16, 4, 1000], &tape), variable(&[32, 4, 3], &tape));
    let y = x.conv1d(&w, None, &Default::default()).unwrap();
    let gradients = y.square().unwrap().mean().unwrap().backward().unwrap();
    keep(gradients.get(&w).unwrap());
    found
}

/// Partial sums have one place on a device, which one thread's operation must not take from another's.
#[test]
fn threads_do_not_disturb_each_others_sums() {
    // Where cuBLAS and cuDNN would do, too.
    let alone = kinds().filter(|&kind| kind == Kind::Cuda).map(|_| {
        let options = CudaOptions { poison: true, kernels_only: true, ..Default::default() };
        Device::new_cuda(0, options).unwrap()
    });
    for device in devices().chain(alone) {
        device.set_deterministic(true);
        device.set_workspace_cap(0);
        let expected: Vec<_> = (0..4).map(|seed| sums(&device, seed)).collect();
        std::thread::scope(|threads| {
            for (seed, expected) in expected.iter().enumerate() {
                let device = &device;
                threads.spawn(move || {
                    for _ in 0..20 {
                        assert!(sums(device, seed as u64) == *expected, "{device}");
                    }
                });
            }
        });
    }
}

#[test]
fn a_graph_made_on_one_thread_goes_backward_on_another() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(tensor(&[1.0, -2.0], [2], DType::F64, &device)).unwrap();
        let loss = x.square().unwrap().sum().unwrap();
        let gradients = std::thread::spawn(move || loss.backward().unwrap()).join().unwrap();
        assert_eq!(values(gradients.get(&x).unwrap()), [2.0, -4.0]);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads: usize| {
        let device = Device::new_cpu(CpuOptions { threads: Some(threads), poison: true }).unwrap();
        device.set_seed(1);
        let conv = Conv1d::builder(16, 32, 3).build(&device).unwrap();
        let x = tensor(&Numbers(2).reals(3 * 16 * 100), [3, 16, 100], DType::F32, &device);
        let y = conv.forward(&Var::from(x)).unwrap();
        values(y.tensor())
    };
    let one = run(1);
    for threads in [2, 3, 5] {
        let error = support::relative_error(&run(threads), &one);
        assert!(error <= 1e-6, "{threads} threads: {error:e}");
    }
}

#[test]
fn one_graph_crosses_two_devices_and_both_meters_are_right() {
    for (first, second) in pairs() {
        let bases = [first.live_bytes(), second.live_bytes()];
        let live = || (first.live_bytes() - bases[0], second.live_bytes() - bases[1]);
        let x = tensor(&Numbers(1).reals(1000), [1000], DType::F64, &first);
        let tape = Tape::new();
        let v = tape.variable(x.clone()).unwrap();
        let there = v.square().unwrap().to(&second).unwrap();
        assert_eq!((there.device(), live().1), (&second, 8000));
        let back = there.square().unwrap().to(&first).unwrap();
        assert_eq!(back.device(), &first);
        drop(there);
        // The square on the second device keeps its operand there; its result has gone.
        assert_eq!(live().1, 8000);
        let loss = back.sum().unwrap();
        drop(back);
        let gradients = loss.backward().unwrap();
        let dx = gradients.get(&v).unwrap();
        assert_eq!(dx.device(), &first);
        for (dx, x) in values(dx).iter().zip(values(&x)) {
            let expected = 4.0 * x.powi(3);
            assert!((dx - expected).abs() <= 1e-12 * expected.abs().max(1e-300));
        }
        assert_eq!(live(), (16_000, 0));
        assert!(second.report().peak - bases[1] <= 4 * 8000);
    }
}

/// pytorch#84999: work on one device touches no other.
#[test]
fn devices_are_independent() {
    for (first, second) in pairs() {
        let base = first.live_bytes();
        second.set_workspace_cap(0);
        second.set_memory_limit(Some(second.live_bytes() + (1 << 20))).unwrap();
        first.reset_peak();
        let conv = Conv1d::builder(3, 4, 3).build(&second).unwrap();
        let x = Tensor::ones([2, 3, 9], DType::F32, &second).unwrap();
        let tape = Tape::new();
        let v = tape.variable(x).unwrap();
        let gradients = conv.forward(&v).unwrap().mean().unwrap().backward().unwrap();
        assert_eq!(gradients.get(&v).unwrap().device(), &second);
        let report = first.report();
        assert_eq!((report.peak, report.allocations), (base, 0));
        assert_eq!((first.memory_limit(), first.workspace_cap()), (None, Some(64 << 20)));
        assert_ne!(first.name(), second.name());
    }
}

/// pytorch#33814.
#[test]
fn operands_on_two_devices_are_named_with_the_operation() {
    for (first, second) in pairs() {
        let bases = [first.live_bytes(), second.live_bytes()];
        let on = |device: &Device, shape: &[usize]| {
            Var::from(Tensor::ones(shape, DType::F32, device).unwrap())
        };
        let (x, w, b) = (on(&first, &[1, 2, 5]), on(&second, &[3, 2, 2]), on(&second, &[3]));
        let options = Default::default();
        let errors = [
            ("conv1d", x.conv1d(&w, None, &options).unwrap_err()),
            ("conv1d", x.conv1d(&w.to(&first).unwrap(), Some(&b), &options).unwrap_err()),
            (
                "conv_transpose1d",
                x.conv_transpose1d(&on(&second, &[2, 3, 2]), None, &Default::default())
                    .unwrap_err(),
            ),
            ("matmul", on(&first, &[2, 2]).matmul(&on(&second, &[2, 2])).unwrap_err()),
            ("linear", on(&first, &[2, 2]).linear(&on(&second, &[2, 2]), None).unwrap_err()),
            ("add", on(&first, &[2]).add(&on(&second, &[2])).unwrap_err()),
            (
                "copy_from",
                on(&first, &[2]).tensor().copy_from(on(&second, &[2]).tensor()).unwrap_err(),
            ),
        ];
        for (op, error) in errors {
            assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
            let text = error.to_string();
            assert!(text.starts_with(op), "{text}");
            assert!(text.contains(first.name()) && text.contains(second.name()), "{text}");
        }
        let live = [first.live_bytes() - bases[0], second.live_bytes() - bases[1]];
        assert_eq!(live, [4 * 10, 4 * 15]);
    }
}

/// A worker that waits for a device's pool may be handed another of the caller's tasks meanwhile.
#[test]
fn guards_of_one_task_are_not_seen_by_another_on_the_same_worker() {
    use rayon::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let shared = Device::new_cpu(Default::default()).unwrap();
    let own = CpuOptions { threads: Some(2), ..Default::default() };
    for device in [Device::new_cpu(own).unwrap(), shared] {
        let tape = Tape::new();
        let x = Tensor::ones([100_000], DType::F64, &device).unwrap();
        let x = tape.variable(x).unwrap();
        let wrong = AtomicUsize::new(0);
        (0..200).into_par_iter().for_each(|i| {
            if i % 2 == 0 {
                let _cap = device.cap_scope(7);
                let _scope = device.scope("even");
                no_grad(|| x.square().unwrap());
            } else {
                let recorded = x.square().unwrap().requires_grad();
                let cap = device.workspace_cap();
                if !recorded || cap == Some(7) {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert_eq!(wrong.into_inner(), 0);
        assert!(device.report().scopes.iter().all(|scope| scope.path == "even"));
    }
}
