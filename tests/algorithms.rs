//! What holds for every algorithm that a device may choose: none fails while it is timed, results
//! are bitwise the same again where that is asked for, and f32 is f32 unless TF32 is allowed.

mod support;

use capgrad::{
    Conv1d, CudaOptions, DType, Device, GIB, Linear, MIB, Padding, Ranking, Tape, Tensor, Var,
    Verdict,
};
use support::conv::{Operands, Sizes};
use support::{
    Kind, Numbers, TF32_TOLERANCE, assert_close, bits, cuda_devices, devices, kinds,
    relative_error, rounded, tensor, tolerance, values,
};

/// Small shapes of every sort.
fn shapes() -> Vec<Sizes> {
    let s = Sizes { n: 2, c_in: 16, c_out: 24, l: 40, k: 3, left: 1, right: 1, ..Sizes::default() };
    let same = |k: usize| Sizes { k, left: (k - 1) / 2, right: k / 2, ..s };
    let grouped = |groups, c_in, c_out| Sizes { groups, c_in, c_out, ..s };
    vec![
        s,
        same(1),
        same(4),
        same(5),
        same(31),
        Sizes { stride: 2, ..same(1) },
        Sizes { stride: 2, ..s },
        Sizes { stride: 3, dilation: 2, ..s },
        Sizes { dilation: 3, left: 3, right: 3, ..s },
        Sizes { left: 5, right: 0, ..s },
        grouped(4, 16, 24),
        grouped(24, 24, 24),
        grouped(16, 16, 32),
        Sizes { n: 1, c_in: 1, c_out: 1, ..s },
        Sizes { n: 1, l: 1, ..s },
        Sizes { n: 1, l: 3, left: 0, right: 0, ..s },
        Sizes { c_in: 1, c_out: 33, ..s },
        Sizes { c_in: 33, c_out: 1, ..s },
        Sizes { n: 70, c_in: 65, c_out: 67, l: 129, k: 3, ..s },
        Sizes { n: 66_000, c_in: 2, c_out: 3, l: 5, ..s },
        Sizes { n: 1, c_in: 3, c_out: 2, l: 70_000, ..s },
    ]
}

/// y, dx, dw.
fn run(sizes: &Sizes, o: &Operands, device: &Device) -> [Tensor; 3] {
    let tape = Tape::new();
    let [x, w] = [o.x(device), o.w(device)].map(|leaf| tape.variable(leaf).unwrap());
    let y = x.conv1d(&w, None, &sizes.options()).unwrap();
    let value = y.tensor().clone();
    let gradients = y.backward_with(o.dy(device)).unwrap();
    let of = |v: &Var| gradients.get(v).unwrap().clone();
    [value, of(&x), of(&w)]
}

/// A GPU without NVIDIA's libraries.
fn without_libraries() -> Option<Device> {
    cuda_devices().next()?;
    Some(
        Device::new_cuda(0, CudaOptions { poison: true, kernels_only: true, ..Default::default() })
            .unwrap(),
    )
}

#[test]
fn our_own_kernels_need_no_library() {
    let Some(device) = without_libraries() else { return };
    for sizes in shapes() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let o = Operands::new(sizes, dtype, 3, false);
            let expected = [
                sizes.forward(&o.x, &o.w, None),
                sizes.input_gradient(&o.dy, &o.w),
                sizes.weight_gradient(&o.x, &o.dy),
            ];
            for (i, (out, expected)) in run(&sizes, &o, &device).iter().zip(&expected).enumerate() {
                assert_close(format!("{sizes:?}, result {i}"), out, expected);
            }
        }
    }
    for plan in device.plans() {
        for weighed in plan.weighed() {
            let name = &weighed.candidate.name;
            assert!(!name.contains("cuDNN") && !name.contains("cuBLAS"), "{plan}");
            assert!(weighed.candidate.deterministic, "{plan}");
        }
    }
}

#[test]
fn our_own_products_need_no_library() {
    let Some(device) = without_libraries() else { return };
    let mut numbers = Numbers(17);
    for [m, k, n] in [[1, 1, 1], [33, 65, 17], [128, 4096, 130], [3, 70_000, 5], [257, 64, 300]] {
        let (a, b) = (numbers.reals(m * k), numbers.reals(k * n));
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let (ra, rb) = (rounded(&a, dtype), rounded(&b, dtype));
            let mut expected = vec![0.0; m * n];
            for i in 0..m {
                for p in 0..k {
                    for j in 0..n {
                        expected[i * n + j] += ra[i * k + p] * rb[p * n + j];
                    }
                }
            }
            let (a, b) = (tensor(&a, [m, k], dtype, &device), tensor(&b, [k, n], dtype, &device));
            let product = Var::from(a).matmul(&Var::from(b)).unwrap();
            assert_close(format!("{m}×{k}×{n}"), product.tensor(), &expected);
        }
    }
}

#[test]
fn no_candidate_fails_while_it_is_timed() {
    let mut failures = Vec::new();
    for device in devices() {
        device.set_ranking(Ranking::Measured);
        let mut names = std::collections::BTreeSet::new();
        let mut settings: Vec<(DType, bool)> = DType::FLOATS.map(|dtype| (dtype, false)).into();
        let mut caps = vec![0, 64 * MIB];
        if Kind::of(&device) == Kind::Cuda {
            // Elsewhere these change nothing.
            settings.push((DType::F32, true));
            caps.push(GIB);
        }
        for sizes in shapes() {
            for &(dtype, tf32) in &settings {
                let _tf32 = device.tf32_scope(tf32);
                let o = Operands::new(sizes, dtype, 3, true);
                for &cap in &caps {
                    device.set_workspace_cap(cap);
                    run(&sizes, &o, &device);
                }
            }
            for plan in device.plans() {
                for weighed in plan.weighed() {
                    names.insert(weighed.candidate.name.to_string());
                    if let Verdict::Failed(why) = &weighed.verdict {
                        let name = &weighed.candidate.name;
                        failures.push(format!("{}: {name}: {why}\n{plan}", plan.operation()));
                    }
                }
            }
            device.forget_plans();
        }
        println!("weighed on {device}: {names:?}");
    }
    failures.iter().for_each(|failure| println!("{failure}"));
    assert!(failures.is_empty(), "{} candidates failed", failures.len());
}

#[test]
fn a_deterministic_device_gives_the_same_bits_again() {
    for (kind, dtype) in kinds().flat_map(|kind| DType::FLOATS.map(|dtype| (kind, dtype))) {
        for ranking in [Ranking::Predicted, Ranking::Measured] {
            let device = kind.poisoned();
            device.set_deterministic(true);
            device.set_ranking(ranking);
            for sizes in shapes() {
                let o = Operands::new(sizes, dtype, 5, false);
                // Measured once: the second time is the plan that was kept.
                let [first, second] = [0, 1].map(|_| run(&sizes, &o, &device).map(|t| bits(&t)));
                assert!(first == second, "{sizes:?} in {dtype} on {device}");
            }
            let plans = device.plans();
            assert!(plans.iter().all(|plan| plan.taken().deterministic));
        }
    }
}

#[test]
fn a_deterministic_step_of_a_net_gives_the_same_bits_again() {
    for (kind, dtype) in kinds().flat_map(|kind| DType::FLOATS.map(|dtype| (kind, dtype))) {
        let step = || {
            let device = kind.poisoned();
            device.set_deterministic(true);
            device.set_seed(8);
            let conv = |from, to, k, groups| {
                let conv = Conv1d::builder(from, to, k).groups(groups).padding(Padding::Same);
                conv.dtype(dtype).build(&device).unwrap()
            };
            let convs = [conv(12, 64, 5, 1), conv(64, 64, 3, 64), conv(64, 32, 1, 1)];
            let head = Linear::new("head", 32 * 90, 10, true, dtype, &device).unwrap();
            let x = tensor(&Numbers(2).sixteenths(20 * 12 * 90), [20, 12, 90], dtype, &device);
            let tape = Tape::for_step(1, 1);
            let mut y = tape.constant(x);
            for conv in &convs {
                y = conv.forward(&y).unwrap().gelu().unwrap().dropout(0.1).unwrap();
            }
            let loss = head.forward(&y.flatten(1).unwrap()).unwrap().square().unwrap();
            let gradients = loss.mean().unwrap().backward().unwrap();
            let parameters = convs.iter().flat_map(Conv1d::parameters).chain(head.parameters());
            parameters.map(|p| bits(gradients.parameter(&p).unwrap())).collect::<Vec<_>>()
        };
        assert!(step() == step(), "{kind:?}, {dtype}");
    }
}

/// The largest error of y, dx and dw of some convolutions and of a product of matrices.
fn error_of_f32(device: &Device) -> f64 {
    let base =
        Sizes { n: 8, c_in: 64, c_out: 96, l: 120, k: 3, left: 1, right: 1, ..Sizes::default() };
    let pointwise = Sizes { k: 1, left: 0, right: 0, ..base };
    let mut most: f64 = 0.0;
    let mut compare = |out: &Tensor, expected: Vec<f64>| {
        most = most.max(relative_error(&values(out), &expected));
    };
    for sizes in [base, pointwise, Sizes { stride: 2, ..base }, Sizes { groups: 4, ..base }] {
        let o = Operands::new(sizes, DType::F32, 4, false);
        let [y, dx, dw] = run(&sizes, &o, device);
        compare(&y, sizes.forward(&o.x, &o.w, None));
        compare(&dx, sizes.input_gradient(&o.dy, &o.w));
        compare(&dw, sizes.weight_gradient(&o.x, &o.dy));
    }
    let (m, k, n) = (160, 256, 192);
    let mut numbers = Numbers(6);
    let [a, b] = [m * k, k * n].map(|count| rounded(&numbers.reals(count), DType::F32));
    let product = (0..m * n).map(|e| (0..k).map(|p| a[e / n * k + p] * b[p * n + e % n]).sum());
    let [av, bv] = [(&a, [m, k]), (&b, [k, n])]
        .map(|(data, shape)| Var::from(tensor(data, shape, DType::F32, device)));
    compare(av.matmul(&bv).unwrap().tensor(), product.collect());
    most
}

#[test]
fn f32_is_f32_unless_tf32_is_allowed() {
    for device in devices() {
        let strict = |what: &str| {
            let error = error_of_f32(&device);
            println!("{device}, {what}: {error:e}");
            assert!(error <= tolerance(DType::F32), "{what} on {device}: {error:e}");
        };
        let allowed = |what: &str| {
            let error = error_of_f32(&device);
            println!("{device}, {what}: {error:e}");
            assert!(error <= TF32_TOLERANCE, "{what} on {device}: {error:e}");
            if Kind::of(&device) == Kind::Cpu {
                // It has no such units.
                assert!(error <= tolerance(DType::F32), "{what} on {device}: {error:e}");
            }
        };
        assert!(!device.allow_tf32());
        strict("at first");
        {
            let _scope = device.tf32_scope(true);
            allowed("in a scope");
            let _inner = device.tf32_scope(false);
            strict("in a scope that forbids it");
        }
        strict("after the scope");
        device.set_allow_tf32(true);
        allowed("allowed by the device");
        {
            let _scope = device.tf32_scope(false);
            strict("forbidden by a scope");
        }
        device.set_allow_tf32(false);
        strict("forbidden again");
    }
}

#[test]
fn a_backward_pass_is_on_the_terms_of_its_own_time() {
    let sizes =
        Sizes { n: 8, c_in: 64, c_out: 96, l: 120, k: 3, left: 1, right: 1, ..Sizes::default() };
    let o = Operands::new(sizes, DType::F32, 4, false);
    for device in devices() {
        let tape = Tape::new();
        let [x, w] = [o.x(&device), o.w(&device)].map(|leaf| tape.variable(leaf).unwrap());
        let y = {
            let _scope = device.tf32_scope(true);
            x.conv1d(&w, None, &sizes.options()).unwrap()
        };
        let gradients = y.backward_with(o.dy(&device)).unwrap();
        let dw = relative_error(
            &values(gradients.get(&w).unwrap()),
            &sizes.weight_gradient(&o.x, &o.dy),
        );
        assert!(dw <= tolerance(DType::F32), "dw on {device}: {dw:e}");
    }
}
