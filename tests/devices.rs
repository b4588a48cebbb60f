//! One graph over several devices: copies between any two of them, in every dtype and under any cap,
//! and what they are ordered with. What is metered on the way: `staging.rs`.

mod support;

use capgrad::optim::SgdOptions;
use capgrad::{DType, Error, KIB, MIB, Parameter, Sgd, Tape, Tensor, Var, bf16, f16};
use rayon::prelude::*;
use support::devices::{all, numbers, pairs};

/// Lengths around what is copied at a time: nothing, one element, a small copy, pieces with a rest.
const LENGTHS: [usize; 6] = [0, 1, 8_191, 8_193, 1 << 19, (3 << 19) + 77];

#[test]
fn every_bit_arrives() {
    for (from, to) in pairs() {
        for cap in [0, 200 * KIB, 64 * MIB] {
            from.set_workspace_cap(cap);
            to.set_workspace_cap(cap);
            for length in LENGTHS {
                let data = numbers(length);
                let x = Tensor::from_vec(data.clone(), [length], &from).unwrap();
                let y = x.to(&to).unwrap();
                drop(x);
                assert_eq!(y.device(), &to);
                assert!(y.to_vec::<i64>().unwrap() == data, "{from} to {to}, {length}, cap {cap}");
                let mut there = vec![0; length];
                y.copy_to_slice(&mut there).unwrap();
                assert!(there == data, "{to} to a slice, {length}, cap {cap}");
            }
        }
    }
}

#[test]
fn every_dtype_arrives() {
    for (from, to) in pairs() {
        let data: Vec<f64> = numbers(70_001).iter().map(|&n| (n % 2048) as f64 / 8.0).collect();
        let shape = [7, 10_001];
        assert_eq!(shape[0] * shape[1], 70_007);
        let data: Vec<f64> = data.into_iter().chain([0.5; 6]).collect();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64] {
            let here =
                Tensor::from_vec(data.clone(), shape, &from).unwrap().to_dtype(dtype).unwrap();
            let there = here.to(&to).unwrap();
            assert_eq!((there.dtype(), there.dims()), (dtype, &shape[..]));
            let same = match dtype {
                DType::F64 => there.to_vec::<f64>().unwrap() == data,
                DType::F32 => there.to_vec::<f32>().unwrap() == here.to_vec::<f32>().unwrap(),
                DType::F16 => there.to_vec::<f16>().unwrap() == here.to_vec::<f16>().unwrap(),
                DType::BF16 => there.to_vec::<bf16>().unwrap() == here.to_vec::<bf16>().unwrap(),
                DType::I32 => there.to_vec::<i32>().unwrap() == here.to_vec::<i32>().unwrap(),
                DType::I64 => there.to_vec::<i64>().unwrap() == here.to_vec::<i64>().unwrap(),
            };
            assert!(same, "{dtype} from {from} to {to}");
        }
    }
}

/// The copy is of the value at the time, whatever the owner does to it next, and of nothing that was in
/// the receiver's memory before.
#[test]
fn a_copy_is_ordered_with_what_comes_before_and_after() {
    for (from, to) in pairs() {
        let length = 1 << 21;
        let weight = Tensor::full([length], 1.0, DType::F32, &from).unwrap();
        let parameter = Parameter::new("weight", weight).unwrap();
        let options = SgdOptions { rate: 1.0, ..Default::default() };
        let mut sgd = Sgd::new([parameter.clone()], options).unwrap();
        let mut copies = Vec::new();
        for _ in 0..8 {
            let tape = Tape::new();
            // A long chain, so that the value is not there yet when the copy is asked for.
            let mut slow = tape.parameter(&parameter);
            for _ in 0..20 {
                slow = slow.mul_scalar(1.0).unwrap();
            }
            let busy = Tensor::full([length], 3.0, DType::F32, &to).unwrap();
            copies.push((slow.tensor().to(&to).unwrap(), parameter.tensor().to(&to).unwrap()));
            drop(busy);
            // d(sum)/dw is 1, so the weight falls by one a step, in place.
            let grads = slow.sum().unwrap().backward().unwrap();
            sgd.step(&grads).unwrap();
        }
        for (step, (slow, direct)) in copies.iter().enumerate() {
            let expected = 1.0 - step as f32;
            for copy in [slow, direct] {
                let data = copy.to_vec::<f32>().unwrap();
                assert!(data.iter().all(|&v| v == expected), "step {step}, {from} to {to}");
            }
        }
    }
}

/// y = (2x moved)², z = Σ y moved back · x: dz/dx by hand is 12x² for a graph that goes there and back.
#[test]
fn gradients_cross_devices_both_ways() {
    for (one, two) in pairs() {
        let data: Vec<f64> = numbers(1_000).iter().map(|&n| (n % 1000) as f64 / 250.0).collect();
        let tape = Tape::new();
        let x = tape.variable(Tensor::from_vec(data.clone(), [1_000], &one).unwrap()).unwrap();
        let there = x.mul_scalar(2.0).unwrap().to(&two).unwrap().square().unwrap();
        let z = there.to(&one).unwrap().mul(&x).unwrap().sum().unwrap();
        let grads = z.backward().unwrap();
        let dx = grads.get(&x).unwrap();
        assert_eq!(dx.device(), &one);
        for (got, x) in dx.to_vec::<f64>().unwrap().iter().zip(&data) {
            assert!((got - 12.0 * x * x).abs() <= 1e-12 * (1.0 + 12.0 * x * x));
        }
    }
}

/// The gradient of a sum is one number everywhere, and crosses as one number.
#[test]
fn a_uniform_gradient_crosses_as_one_number() {
    for (one, two) in pairs() {
        let length = 1 << 20;
        let tape = Tape::new();
        let x = tape.variable(Tensor::ones([length], DType::F32, &one).unwrap()).unwrap();
        let sum = x.to(&two).unwrap().sum().unwrap();
        let before = two.live_bytes();
        two.reset_peak();
        let grads = sum.backward().unwrap();
        assert!(two.report().peak <= before + 4 * KIB, "{one} to {two}");
        assert!(grads.get(&x).unwrap().to_vec::<f32>().unwrap().iter().all(|&v| v == 1.0));
    }
}

#[test]
fn operands_on_two_devices_are_named() {
    for (one, two) in pairs() {
        let x = Var::from(Tensor::ones([1, 2, 5], DType::F32, &one).unwrap());
        let w = Var::from(Tensor::ones([3, 2, 1], DType::F32, &two).unwrap());
        let error = x.conv1d(&w, None, &Default::default()).unwrap_err();
        assert!(matches!(error, Error::DeviceMismatch { .. }));
        let text = error.to_string();
        let named = [one.name(), two.name(), "conv1d"].iter().all(|&part| text.contains(part));
        assert!(named, "{text}");
    }
}

#[test]
fn a_refused_copy_leaves_both_devices_as_they_were() {
    for (from, to) in pairs() {
        let x = Tensor::from_vec(numbers(1 << 16), [1 << 16], &from).unwrap();
        let (before, there) = (from.live_bytes(), to.live_bytes());
        let guard = to.limit_scope(there + 100).unwrap();
        let error = x.to(&to).unwrap_err();
        assert!(matches!(error, Error::MemoryLimit { .. }), "{error}");
        drop(guard);
        assert_eq!((from.live_bytes(), to.live_bytes()), (before, there));
        assert!(x.to(&to).unwrap().to_vec::<i64>().unwrap() == x.to_vec::<i64>().unwrap());
    }
}

/// Threads that send to each other's devices at once, workers of the process-wide pool among them.
#[test]
fn many_threads_send_at_once() {
    let devices = all();
    // Enough for several threads to a copy.
    let data = numbers(1 << 20);
    let hop = &|start: usize| {
        let mut x = Tensor::from_vec(data.clone(), [data.len()], &devices[start % devices.len()]);
        for step in 1..5 {
            x = x.and_then(|x| x.to(&devices[(start + step) % devices.len()]));
        }
        assert!(x.unwrap().to_vec::<i64>().unwrap() == data);
    };
    std::thread::scope(|scope| {
        for start in 0..4 {
            scope.spawn(move || hop(start));
        }
        // Every worker of the pool, while threads outside it copy too.
        (4..64usize).into_par_iter().for_each(hop);
    });
}
