//! Optimisers over several steps against a naive f64 transcription of their formulas, in every
//! dtype; state in f32 for the halves; and a refused state that leaves everything untouched.

mod support;

use capgrad::optim::{AdamOptions, SgdOptions};
use capgrad::{
    Adam, AdamW, DType, Device, Error, Gradients, Parameter, Purpose, Sgd, Tape, Tensor,
};
use support::{
    Kind, Numbers, bits, devices, kinds, relative_error, rounded, tensor, tolerance, values,
};

const SIZE: usize = 37;

/// Gradients of `Σ g·p`, which are `g`.
fn gradients(parameters: &[(&Parameter, &[f64])], device: &Device) -> Gradients {
    let tape = Tape::new();
    let mut all = Gradients::default();
    for (parameter, g) in parameters {
        let p = tape.parameter(parameter);
        let dtype = parameter.tensor().dtype();
        let g = tensor(g, parameter.tensor().shape(), dtype, device);
        all.add(p.mul(&g.into()).unwrap().sum().unwrap().backward().unwrap()).unwrap();
    }
    all
}

/// The same six steps by an optimiser and by its formula, which is given step, p, g and state.
fn compare(
    kind: Kind,
    what: &str,
    states: usize,
    mut step: impl FnMut(&Parameter, &Gradients),
    formula: impl Fn(i32, f64, f64, &mut [f64; 2]) -> f64,
    dtype: DType,
) {
    let device = kind.poisoned();
    let mut numbers = Numbers(8);
    let mut p = rounded(&numbers.reals(SIZE), dtype);
    let parameter = Parameter::new("p", tensor(&p, [SIZE], dtype, &device)).unwrap();
    let mut state = vec![[0.0; 2]; SIZE];
    for t in 1..=6 {
        let g = rounded(&numbers.reals(SIZE), dtype);
        step(&parameter, &gradients(&[(&parameter, &g)], &device));
        for i in 0..SIZE {
            p[i] = formula(t, p[i], g[i], &mut state[i]);
        }
        // Halves round the parameter at each step; so does its reference.
        p = rounded(&p, dtype);
        let error = relative_error(&values(parameter.tensor()), &p);
        assert!(error <= tolerance(dtype), "{what}, {dtype}, step {t}: {error:e}");
    }
    let each = if dtype == DType::F64 { 8 } else { 4 };
    assert_eq!(device.report().live[Purpose::Optimiser] as usize, states * SIZE * each, "{what}");
}

fn each_dtype() -> impl Iterator<Item = (Kind, DType)> {
    kinds().flat_map(|kind| DType::FLOATS.map(|dtype| (kind, dtype)))
}

#[test]
fn sgd_follows_its_formula() {
    for (kind, dtype) in each_dtype() {
        for (momentum, weight_decay, nesterov) in [
            (0.0, 0.0, false),
            (0.0, 0.1, false),
            (0.9, 0.0, false),
            (0.8, 0.05, false),
            (0.9, 0.01, true),
        ] {
            let rate = 0.07;
            let options = SgdOptions { rate, momentum, weight_decay, nesterov };
            let mut sgd = None;
            compare(
                kind,
                &format!("{options:?}"),
                usize::from(momentum > 0.0),
                |p, g| {
                    sgd.get_or_insert_with(|| Sgd::new([p.clone()], options).unwrap())
                        .step(g)
                        .unwrap()
                },
                |_, p, g, state| {
                    let g = g + weight_decay * p;
                    state[0] = momentum * state[0] + g;
                    p - rate * if nesterov { g + momentum * state[0] } else { state[0] }
                },
                dtype,
            );
        }
    }
}

/// Kingma and Ba's algorithm 1; decay as L2 or decoupled.
fn adam(options: AdamOptions, decoupled: bool) -> impl Fn(i32, f64, f64, &mut [f64; 2]) -> f64 {
    move |t, p, g, [m, v]| {
        let AdamOptions { rate, beta1, beta2, epsilon, weight_decay } = options;
        let g = if decoupled { g } else { g + weight_decay * p };
        *m = beta1 * *m + (1.0 - beta1) * g;
        *v = beta2 * *v + (1.0 - beta2) * g * g;
        let (m, v) = (*m / (1.0 - beta1.powi(t)), *v / (1.0 - beta2.powi(t)));
        let p = if decoupled { p - rate * weight_decay * p } else { p };
        p - rate * m / (v.sqrt() + epsilon)
    }
}

#[test]
fn adam_and_adamw_follow_their_formulas() {
    for (kind, dtype) in each_dtype() {
        for weight_decay in [0.0, 0.1] {
            let options =
                AdamOptions { rate: 0.03, beta1: 0.8, weight_decay, ..Default::default() };
            let mut l2 = None;
            compare(
                kind,
                &format!("Adam {options:?}"),
                2,
                |p, g| {
                    let make = || Adam::new([p.clone()], options).unwrap();
                    l2.get_or_insert_with(make).step(g).unwrap()
                },
                adam(options, false),
                dtype,
            );
            let mut decoupled = None;
            compare(
                kind,
                &format!("AdamW {options:?}"),
                2,
                |p, g| {
                    let make = || AdamW::new([p.clone()], options).unwrap();
                    decoupled.get_or_insert_with(make).step(g).unwrap()
                },
                adam(options, true),
                dtype,
            );
        }
    }
}

#[test]
fn the_rate_can_change_between_steps() {
    for device in devices() {
        let p = Parameter::new("p", tensor(&[1.0], [1], DType::F64, &device)).unwrap();
        let mut sgd =
            Sgd::new([p.clone()], SgdOptions { rate: 0.5, ..Default::default() }).unwrap();
        sgd.step(&gradients(&[(&p, &[1.0])], &device)).unwrap();
        sgd.set_rate(0.25).unwrap();
        sgd.step(&gradients(&[(&p, &[1.0])], &device)).unwrap();
        assert_eq!(values(p.tensor()), [0.25]);
        assert!(sgd.set_rate(f64::NAN).is_err() && sgd.set_rate(-1.0).is_err());
    }
}

#[test]
fn a_parameter_named_twice_or_without_gradient_or_frozen_is_handled_once_or_not() {
    for device in devices() {
        let make = |name| Parameter::new(name, tensor(&[1.0], [1], DType::F64, &device)).unwrap();
        let (p, unused, frozen) = (make("p"), make("unused"), make("frozen"));
        let all = [p.clone(), p.clone(), unused.clone(), frozen.clone()];
        let mut adam = Adam::new(all, AdamOptions { rate: 0.5, ..Default::default() }).unwrap();
        assert_eq!(adam.parameters().count(), 3);
        let given = gradients(&[(&p, &[3.0]), (&frozen, &[3.0])], &device);
        frozen.set_trainable(false);
        adam.step(&given).unwrap();
        assert!((values(p.tensor())[0] - 0.5).abs() < 1e-7);
        assert_eq!((values(unused.tensor()), values(frozen.tensor())), (vec![1.0], vec![1.0]));
        assert_eq!(device.report().live[Purpose::Optimiser], 16, "state of one parameter only");
    }
}

#[test]
fn a_refused_state_leaves_everything_untouched() {
    for device in devices() {
        let mut numbers = Numbers(3);
        let parameters: Vec<Parameter> = (0..3)
            .map(|i| {
                Parameter::new(
                    format!("p{i}"),
                    tensor(&numbers.reals(100), [100], DType::F64, &device),
                )
                .unwrap()
            })
            .collect();
        let data = numbers.reals(100);
        let given: Vec<(&Parameter, &[f64])> = parameters.iter().map(|p| (p, &data[..])).collect();
        let grads = gradients(&given, &device);
        let mut adam = Adam::new(parameters.clone(), AdamOptions::default()).unwrap();
        let state = || parameters.iter().map(|p| bits(p.tensor())).collect::<Vec<_>>();
        let (before, live) = (state(), device.report().live);
        // Six moments of 800 bytes: each refused in turn.
        for moments in 0..6 {
            device.set_memory_limit(Some(live.total() + moments * 800 + 799)).unwrap();
            let error = adam.step(&grads).unwrap_err();
            assert!(
                matches!(error, Error::MemoryLimit { purpose: Purpose::Optimiser, .. }),
                "{error}"
            );
            assert_eq!(
                (state(), device.report().live),
                (before.clone(), live),
                "{moments} moments"
            );
        }
        device.set_memory_limit(Some(live.total() + 4800)).unwrap();
        adam.step(&grads).unwrap();
        // The refusals were no steps: the first step is the rate times the sign.
        for (p, before) in parameters.iter().zip(&before) {
            for ((p, before), g) in values(p.tensor()).iter().zip(before).zip(&data) {
                let expected = f64::from_bits(*before) - 1e-3 * g.signum();
                assert!((p - expected).abs() < 1e-6);
            }
        }
        // And from now on nothing is allocated.
        device.set_memory_limit(Some(1)).unwrap();
        device.reset_peak();
        adam.step(&grads).unwrap();
        assert_eq!(device.report().allocations, 0);
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    let sgd = |options| Sgd::new([], options).map(drop);
    let adam = |options| Adam::new([], options).map(drop).and(AdamW::new([], options).map(drop));
    let (s, a) = (SgdOptions::default(), AdamOptions::default());
    let refused = [
        sgd(SgdOptions { rate: -0.1, ..s }),
        sgd(SgdOptions { rate: f64::NAN, ..s }),
        sgd(SgdOptions { momentum: f64::INFINITY, ..s }),
        sgd(SgdOptions { weight_decay: -1.0, ..s }),
        sgd(SgdOptions { nesterov: true, ..s }),
        adam(AdamOptions { rate: f64::INFINITY, ..a }),
        adam(AdamOptions { beta1: 1.0, ..a }),
        adam(AdamOptions { beta2: -0.1, ..a }),
        adam(AdamOptions { beta2: f64::NAN, ..a }),
        adam(AdamOptions { epsilon: -1e-8, ..a }),
        adam(AdamOptions { weight_decay: f64::NAN, ..a }),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    }
    assert!(Parameter::new("i", Tensor::zeros([1], DType::I32, &Device::cpu()).unwrap()).is_err());
}
