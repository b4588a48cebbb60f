//! The cap promise: no operation's workspace exceeds the cap in force, whatever the shape, the cap
//! and the ranking, and results are right under every cap; and which cap is in force where.

mod support;

use capgrad::{
    Conv1d, Conv1dOptions, ConvTranspose1d, DType, Device, Error, KIB, Padding, Ranking, Tape,
    Tensor, Var, Verdict, Weighed,
};
use proptest::prelude::*;
use support::conv::{Operands, Sizes};
use support::{Kind, Numbers, assert_close, devices, kinds, tensor, workspace_peak};

fn sizes() -> impl Strategy<Value = Sizes> {
    let channels = (1usize..4, 1usize..9, 1usize..9);
    let window = (1usize..40, 1usize..6, 1usize..4, 1usize..4, 0usize..4, 0usize..4);
    (0usize..4, channels, window).prop_filter_map("the kernel fits", |(n, channels, window)| {
        let (groups, per_in, per_out) = channels;
        let (l, k, stride, dilation, left, right) = window;
        let (c_in, c_out) = (groups * per_in, groups * per_out);
        let sizes = Sizes { n, c_in, c_out, l, k, stride, dilation, groups, left, right };
        sizes.fits().then_some(sizes)
    })
}

fn cap() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        0u64..64,
        (0u64..2_000).prop_map(|half| 2 * half + 1),
        0u64..20_000,
        0u64..1_000_000,
    ]
}

fn check(sizes: &Sizes, cap: u64, dtype: DType, seed: u64, device: &Device) {
    device.set_workspace_cap(cap);
    let o = Operands::new(*sizes, dtype, seed, true);
    let what = |name: &str| format!("{name} of {sizes:?} under {cap}");
    let tape = Tape::new();
    let [x, w, b] =
        [o.x(device), o.w(device), o.b(device)].map(|leaf| tape.variable(leaf).unwrap());
    device.reset_peak();
    let y = x.conv1d(&w, Some(&b), &sizes.options()).unwrap();
    assert!(workspace_peak(device) <= cap, "{}", what("forward"));
    assert_close(what("y"), y.tensor(), &sizes.forward(&o.x, &o.w, Some(&o.b)));
    device.reset_peak();
    let gradients = y.backward_with(o.dy(device)).unwrap();
    assert!(workspace_peak(device) <= cap, "{}", what("backward"));
    let of = |leaf: &Var| gradients.get(leaf).unwrap().clone();
    assert_close(what("dx"), &of(&x), &sizes.input_gradient(&o.dy, &o.w));
    assert_close(what("dw"), &of(&w), &sizes.weight_gradient(&o.x, &o.dy));
    assert_close(what("db"), &of(&b), &sizes.bias_gradient(&o.dy));
}

fn never_over_the_cap(ranking: Ranking, cases: u32) {
    for device in devices() {
        device.set_ranking(ranking);
        let (base, cases) = (device.live_bytes(), Kind::of(&device).share(cases));
        let config = ProptestConfig { cases, ..ProptestConfig::default() };
        let strategy = (sizes(), cap(), 0usize..4, any::<u64>());
        proptest!(config, |((sizes, cap, dtype, seed) in strategy)| {
            check(&sizes, cap, DType::FLOATS[dtype], seed, &device);
        });
        assert_eq!(device.live_bytes(), base);
    }
}

#[test]
fn the_workspace_is_never_over_the_cap_by_predicted_ranking() {
    never_over_the_cap(Ranking::Predicted, 2_000);
}

#[test]
fn the_workspace_is_never_over_the_cap_by_measured_ranking() {
    never_over_the_cap(Ranking::Measured, 2_000);
}

#[test]
fn matrix_products_and_layers_stay_within_the_cap() {
    let rankings = [Ranking::Predicted, Ranking::Measured];
    for (kind, ranking) in kinds().flat_map(|kind| rankings.map(|ranking| (kind, ranking))) {
        for (i, cap) in [0, 1, 99, 4 * KIB + 1, 64 * KIB].into_iter().enumerate() {
            let device = kind.poisoned();
            device.set_ranking(ranking);
            device.set_workspace_cap(cap);
            let mut numbers = Numbers(i as u64);
            for dtype in DType::FLOATS {
                let (batch, m, k, n) = (3, 37, 50, 41);
                let (a, b) = (numbers.sixteenths(batch * m * k), numbers.sixteenths(k * n));
                let tape = Tape::new();
                let av = tape.variable(tensor(&a, [batch, m, k], dtype, &device)).unwrap();
                let bv = tape.variable(tensor(&b, [k, n], dtype, &device)).unwrap();
                device.reset_peak();
                let y = av.matmul(&bv).unwrap();
                let mut expected = vec![0.0; batch * m * n];
                for (e, out) in expected.iter_mut().enumerate() {
                    let (row, col) = (e / n, e % n);
                    *out = (0..k).map(|p| a[row * k + p] * b[p * n + col]).sum();
                }
                assert_close("a·b", y.tensor(), &expected);
                let gradients = y.sum().unwrap().backward().unwrap();
                let row_sums: Vec<f64> =
                    (0..k).map(|p| (0..n).map(|col| b[p * n + col]).sum()).collect();
                let da: Vec<f64> = (0..batch * m * k).map(|e| row_sums[e % k]).collect();
                assert_close("da", gradients.get(&av).unwrap(), &da);
                let column = |p: usize| (0..batch * m).map(|row| a[row * k + p]).sum::<f64>();
                let db: Vec<f64> = (0..k * n).map(|e| column(e / n)).collect();
                assert_close("db", gradients.get(&bv).unwrap(), &db);
                assert!(workspace_peak(&device) <= cap, "{dtype} under {cap}");
            }
        }
    }
}

/// A layer whose best candidate wants more than the caps below.
fn layer(device: &Device) -> (Conv1d, Tensor) {
    let conv = Conv1d::builder(64, 64, 5).padding(Padding::Same).build(device).unwrap();
    let x = tensor(&Numbers(1).reals(4 * 64 * 200), [4, 64, 200], DType::F32, device);
    (conv, x)
}

/// The workspace of one training step.
fn step(conv: &Conv1d, x: &Tensor) -> u64 {
    let device = x.device();
    device.reset_peak();
    let tape = Tape::new();
    let x = tape.variable(x.clone()).unwrap();
    let y = conv.forward(&x).unwrap();
    let dy = Tensor::ones(y.shape(), y.dtype(), device).unwrap();
    y.backward_with(dy).unwrap();
    workspace_peak(device)
}

#[test]
fn the_cap_of_a_call_is_over_that_of_a_scope_and_that_over_the_devices() {
    for device in kinds().map(Kind::plain) {
        let (conv, x) = layer(&device);
        assert_eq!(device.workspace_cap(), Some(64 << 20));
        device.remove_workspace_cap();
        assert_eq!(device.workspace_cap(), None);
        let free = step(&conv, &x);
        if Kind::of(&device) == Kind::Cpu {
            assert!(free > 40 * KIB, "the layer must want more than the caps, and wants {free}");
        }
        device.set_workspace_cap(40 * KIB);
        assert!(step(&conv, &x) <= 40 * KIB);
        {
            let _outer = device.cap_scope(20 * KIB);
            assert!(step(&conv, &x) <= 20 * KIB);
            {
                let _inner = device.cap_scope(0);
                assert_eq!(device.workspace_cap(), Some(0));
                assert_eq!(step(&conv, &x), 0);
                let _other = Kind::of(&device).plain().cap_scope(7);
                assert_eq!(device.workspace_cap(), Some(0), "another device's cap is not ours");
            }
            assert_eq!(device.workspace_cap(), Some(20 * KIB));
            // A scope may raise the cap, too.
            let _raised = device.cap_scope(u64::MAX);
            assert_eq!(step(&conv, &x), free);
        }
        assert_eq!(device.workspace_cap(), Some(40 * KIB));
        std::thread::scope(|threads| {
            let _guard = device.cap_scope(0);
            let other = threads.spawn(|| device.workspace_cap());
            assert_eq!(other.join().unwrap(), Some(40 * KIB), "a scope is its thread's");
        });

        let capped = |bytes: u64| {
            let layer = Conv1d::builder(64, 64, 5)
                .padding(Padding::Same)
                .workspace_cap(bytes)
                .build(&device);
            layer.unwrap()
        };
        assert_eq!(step(&capped(0), &x), 0);
        let _guard = device.cap_scope(0);
        assert_eq!(step(&capped(u64::MAX), &x), free);
    }
}

#[test]
fn guards_may_end_in_any_order() {
    for device in kinds().map(Kind::plain) {
        let first = device.cap_scope(1);
        let second = device.cap_scope(2);
        drop(first);
        assert_eq!(device.workspace_cap(), Some(2));
        let third = device.cap_scope(3);
        drop(second);
        assert_eq!(device.workspace_cap(), Some(3));
        drop(third);
        assert_eq!(device.workspace_cap(), Some(64 << 20));
    }
}

#[test]
fn a_transposed_layer_keeps_its_cap() {
    for device in devices() {
        let layer = |cap| {
            ConvTranspose1d::builder(48, 48, 4).stride(2).workspace_cap(cap).build(&device).unwrap()
        };
        let x = tensor(&Numbers(2).reals(2 * 48 * 100), [2, 48, 100], DType::F32, &device);
        for cap in [0, 1001, 9 * KIB] {
            let tape = Tape::new();
            let x = tape.variable(x.clone()).unwrap();
            device.reset_peak();
            let y = layer(cap).forward(&x).unwrap();
            let dy = Tensor::ones(y.shape(), y.dtype(), &device).unwrap();
            y.backward_with(dy).unwrap();
            assert!(workspace_peak(&device) <= cap);
        }
    }
}

#[test]
fn a_plan_prints_the_cap_and_every_workspace_in_bytes() {
    for device in kinds().map(Kind::plain) {
        let (conv, x) = layer(&device);
        for cap in [0, 12_345, 64 << 20] {
            device.set_workspace_cap(cap);
            for (plan, pass) in
                conv.plan(x.shape()).unwrap().iter().zip(["forward", "weight", "input"])
            {
                let text = plan.to_string();
                assert!(
                    text.contains(&format!("workspace cap {}", capgrad::format_bytes(cap))),
                    "{text}"
                );
                assert!(plan.operation().contains(pass), "{}", plan.operation());
                let taken = plan.taken();
                assert!(taken.workspace <= cap && plan.cap() == Some(cap));
                let line = |text: &str, name: &str, verdict: &str| {
                    text.lines().any(|line| line.contains(name) && line.ends_with(verdict))
                };
                assert!(line(&text, &taken.name, "taken"), "{text}");
                for weighed in plan.weighed() {
                    let workspace = weighed.candidate.workspace.to_string();
                    assert!(text.contains(&workspace), "{workspace} in {text}");
                    assert_eq!(
                        weighed.verdict == Verdict::OverCap,
                        weighed.candidate.workspace > cap
                    );
                }
                if cap == 0 {
                    assert!(plan.largest_over_cap().is_some(), "{text}");
                    assert!(text.contains("bytes over the cap"), "{text}");
                }
            }
        }
        device.remove_workspace_cap();
        let plan = &conv.plan(x.shape()).unwrap()[0];
        assert!(plan.to_string().contains("workspace cap none"));
    }
}

#[test]
fn a_plan_is_what_a_run_takes() {
    let rankings = [Ranking::Predicted, Ranking::Measured];
    for (kind, ranking) in kinds().flat_map(|kind| rankings.map(|ranking| (kind, ranking))) {
        let device = kind.plain();
        device.set_ranking(ranking);
        device.set_workspace_cap(50 * KIB);
        let (conv, x) = layer(&device);
        let before = step(&conv, &x);
        let plans = conv.plan(x.shape()).unwrap();
        let most = plans.iter().map(|plan| plan.taken().workspace).max().unwrap();
        if ranking == Ranking::Measured {
            // One that failed has another test.
            let fits = |w: &Weighed| !matches!(w.verdict, Verdict::OverCap | Verdict::Failed(_));
            for plan in &plans {
                let far = 8.0 * plan.taken().seconds;
                let timed = |w: &Weighed| w.measured.is_some() == fits(w);
                let hopeless = |w: &Weighed| w.measured.is_none() && w.candidate.seconds > far;
                assert!(plan.weighed().iter().all(|w| timed(w) || hopeless(w)), "{plan}");
            }
            // While candidates are timed, each takes its own workspace, within the cap.
            assert!(before <= 50 * KIB);
        }
        assert_eq!(step(&conv, &x), most);
        assert!(!device.plans().is_empty());
        device.forget_plans();
        assert!(device.plans().is_empty());
    }
}

#[test]
fn the_message_of_a_cap_that_nothing_fits_is_never_seen() {
    // A candidate without workspace always exists, so a cap of 0 works for every operation.
    for (device, dtype) in devices().flat_map(|d| DType::FLOATS.map(|dtype| (d.clone(), dtype))) {
        device.set_workspace_cap(0);
        let x = Var::from(Tensor::ones([2, 6, 9], dtype, &device).unwrap());
        for (groups, k) in [(1, 1), (1, 4), (6, 3), (3, 2)] {
            let w = Var::from(Tensor::ones([12, 6 / groups, k], dtype, &device).unwrap());
            let options = Conv1dOptions { groups, ..Default::default() };
            let result = x.conv1d(&w, None, &options);
            assert!(!matches!(result, Err(Error::WorkspaceCap { .. })));
            let expected = vec![(6 / groups * k) as f64; 2 * 12 * (9 - k + 1)];
            assert_close("ones", result.unwrap().tensor(), &expected);
        }
    }
}
