//! Data parallel training against one process on the whole batch: the same gradients, whatever the shares,
//! the buckets and the graph; and steps that fail on one rank.

mod support;

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Communicator, Conv1d, DType, DataParallel, Device, Error, Fault, KIB, Linear, Padding,
    Parameter, Tape, Tensor, Var, checkpoint,
};
use support::Kind;
use support::ranks::run;

const CHANNELS: usize = 3;
const LENGTH: usize = 16;

/// Two convolutions and a linear layer; the second convolution is used twice, in two checkpoints, so that
/// its gradient comes in twice. `unused` is in no graph.
struct Model {
    first: Conv1d,
    second: Conv1d,
    last: Linear,
    unused: Parameter,
}

impl Model {
    fn new(device: &Device, seed: u64) -> Model {
        device.set_seed(seed);
        let conv = |from, to| {
            Conv1d::builder(from, to, 3).padding(Padding::Same).dtype(DType::F64).build(device)
        };
        Model {
            first: conv(CHANNELS, 4).unwrap(),
            second: conv(4, 4).unwrap(),
            last: Linear::new("last", 4 * LENGTH, 2, true, DType::F64, device).unwrap(),
            unused: Parameter::new("unused", Tensor::ones([3], DType::F64, device).unwrap())
                .unwrap(),
        }
    }

    fn parameters(&self) -> Vec<Parameter> {
        let layers = [self.first.parameters(), self.second.parameters(), self.last.parameters()];
        layers.concat().into_iter().chain([self.unused.clone()]).collect()
    }

    /// The mean loss of samples `from .. from + count` of an endless batch.
    fn loss(&self, device: &Device, from: usize, count: usize) -> capgrad::Result<Var> {
        let size = CHANNELS * LENGTH;
        let data: Vec<f64> = (from * size..(from + count) * size)
            .map(|i| ((i * 31 % 97) as f64 / 48.0 - 1.0) * 0.7)
            .collect();
        let tape = Tape::new();
        let x = Tensor::from_vec(data, [count, CHANNELS, LENGTH], device)?;
        let mut y = self.first.forward(&tape.constant(x))?.tanh()?;
        for _ in 0..2 {
            let second = self.second.clone();
            y = checkpoint(&[&y], move |inputs| second.forward(&inputs[0])?.tanh())?;
        }
        let loss = self.last.forward(&y.flatten(1)?)?.square()?.mean()?;
        // The tape must outlive `backward`; a test may let it stay.
        std::mem::forget(tape);
        Ok(loss)
    }
}

fn flat(parameters: &[Parameter]) -> Vec<f64> {
    parameters.iter().flat_map(|p| p.tensor().to_vec::<f64>().unwrap()).collect()
}

fn assert_close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-9 * (1.0 + expected.abs()), "{got} for {expected}");
    }
}

/// Shares of each step's batch: even ones, uneven ones, and ranks without any.
fn shares(ranks: usize, step: usize) -> Vec<usize> {
    (0..ranks)
        .map(|rank| if step % 5 == 4 && rank > 0 { 0 } else { 1 + (rank + step) % 3 })
        .collect()
}

/// What one process makes of all the batches: its parameters and the losses.
fn alone(kind: Kind, ranks: usize, steps: usize) -> (Vec<f64>, Vec<f64>) {
    let device = kind.poisoned();
    let model = Model::new(&device, 5);
    let mut adam =
        Adam::new(model.parameters(), AdamOptions { rate: 1e-2, ..Default::default() }).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let count = shares(ranks, step).iter().sum();
        let loss = model.loss(&device, 100 * step, count).unwrap();
        losses.push(loss.item().unwrap());
        adam.step(&loss.backward().unwrap()).unwrap();
    }
    (flat(&model.parameters()), losses)
}

#[test]
fn ranks_together_train_like_one_process() {
    for kind in support::kinds() {
        let steps = if kind == Kind::Cpu { 50 } else { 12 };
        for (ranks, bucket) in [(1, 1), (2, 1), (3, 700), (4, 1 << 20), (5, 3000)] {
            let (expected, losses) = alone(kind, ranks, steps);
            let all = run(ranks, |own| {
                let device = kind.poisoned();
                // Other seeds: rank 0's parameters are everybody's.
                let model = Model::new(&device, 5 + own.rank() as u64);
                let parallel =
                    DataParallel::new(&own, model.parameters()).unwrap().with_bucket_bytes(bucket);
                let options = AdamOptions { rate: 1e-2, ..Default::default() };
                let mut adam = Adam::new(model.parameters(), options).unwrap();
                for (step, expected) in losses.iter().enumerate() {
                    let shares = shares(ranks, step);
                    let from = 100 * step + shares[..own.rank()].iter().sum::<usize>();
                    let samples = shares[own.rank()];
                    let forward = || model.loss(&device, from, samples);
                    let step = parallel.step(samples, forward).unwrap();
                    assert_close(&[step.loss], &[*expected]);
                    assert!(step.gradients.parameter(&model.unused).is_none());
                    adam.step(&step.gradients).unwrap();
                }
                flat(&model.parameters())
            });
            for own in all {
                assert_close(&own, &expected);
            }
        }
    }
}

/// A parameter that one rank alone uses, and one that is frozen.
#[test]
fn graphs_may_differ_between_ranks() {
    run(3, |own| {
        let device = Device::new_cpu(Default::default()).unwrap();
        let one = |name: &str| {
            Parameter::new(name, Tensor::full([2], 3.0, DType::F64, &device).unwrap()).unwrap()
        };
        let (everywhere, somewhere, frozen) = (one("everywhere"), one("somewhere"), one("frozen"));
        frozen.set_trainable(false);
        let all = [everywhere.clone(), somewhere.clone(), frozen.clone()];
        let parallel = DataParallel::new(&own, all).unwrap();
        let tape = Tape::new();
        let step = parallel
            .step(1, || {
                let mut loss = tape.parameter(&everywhere).square()?.sum()?;
                if own.rank() == 1 {
                    loss = loss.add(&tape.parameter(&somewhere).mul_scalar(6.0)?.sum()?)?;
                }
                loss.add(&tape.parameter(&frozen).sum()?)
            })
            .unwrap();
        // Means over three samples: 2·3, and 6 on one of three.
        let gradient = |p| step.gradients.parameter(p).map(|g| g.to_vec::<f64>().unwrap());
        assert_eq!(gradient(&everywhere), Some(vec![6.0, 6.0]));
        assert_eq!(gradient(&somewhere), Some(vec![2.0, 2.0]));
        assert_eq!(gradient(&frozen), None);
        assert!((step.loss - (18.0 + 6.0 + 36.0 / 3.0)).abs() < 1e-12);
    });
}

/// Gradients that several holders share are not written over: d(p + p)/dp and a variable's own.
#[test]
fn shared_gradients_stay_apart() {
    run(2, |own| {
        let device = Device::new_cpu(Default::default()).unwrap();
        let p = Parameter::new("p", Tensor::ones([4], DType::F64, &device).unwrap()).unwrap();
        let parallel = DataParallel::new(&own, [p.clone()]).unwrap();
        let tape = Tape::new();
        let x = tape.variable(Tensor::ones([4], DType::F64, &device).unwrap()).unwrap();
        let scale = 1.0 + own.rank() as f64;
        let step = parallel
            .step(1, || tape.parameter(&p).add(&x)?.square()?.sum()?.mul_scalar(scale))
            .unwrap();
        // 2·(1 + 1)·scale, weighed by a half: 2 on rank 0, 4 on rank 1.
        assert_eq!(step.gradients.get(&x).unwrap().to_vec::<f64>().unwrap(), [2.0 * scale; 4]);
        assert_eq!(step.gradients.parameter(&p).unwrap().to_vec::<f64>().unwrap(), [6.0; 4]);
    });
}

/// Every piece of memory of one rank's step fails in turn, and its forward pass: the step is an error on
/// every rank, nothing has changed, and the next try is right.
#[test]
fn a_step_that_fails_on_one_rank_fails_on_all_and_can_be_tried_again() {
    let allocations = 400;
    let outcomes = run(3, |own| {
        let device = Device::new_cpu(Default::default()).unwrap();
        let model = Model::new(&device, 5);
        let parallel = DataParallel::new(&own, model.parameters()).unwrap().with_bucket_bytes(300);
        let expected = parallel.step(2, || model.loss(&device, 2 * own.rank(), 2)).unwrap();
        let gradients = |step: &capgrad::ParallelStep| -> Vec<f64> {
            let of =
                |p: &Parameter| step.gradients.parameter(p).map(|g| g.to_vec::<f64>().unwrap());
            model.parameters().iter().filter_map(of).flatten().collect()
        };
        let live = device.live_bytes();
        let mut failures = 0;
        for n in 1..allocations {
            if own.rank() == 1 {
                device.inject_fault(Some(Fault::Allocation(n)));
            }
            let step = parallel.step(2, || model.loss(&device, 2 * own.rank(), 2));
            let failed = own.sum(&[f64::from(u8::from(step.is_err()))]).unwrap()[0];
            match step {
                Ok(step) => {
                    assert_eq!(failed, 0.0, "all ranks or none");
                    assert_close(&gradients(&step), &gradients(&expected));
                    break;
                }
                Err(error) => {
                    assert_eq!(failed, 3.0, "all ranks or none");
                    failures += 1;
                    match own.rank() {
                        1 => assert!(matches!(error, Error::Injected { .. }), "{error}"),
                        _ => assert!(error.to_string().contains("rank 1 has failed"), "{error}"),
                    }
                    assert_eq!(device.live_bytes(), live);
                }
            }
        }
        device.inject_fault(None);
        let error = parallel.step(1, || Err(Error::custom("data", "the file is cut short")));
        assert!(error.unwrap_err().to_string().contains("cut short"));
        let again = parallel.step(2, || model.loss(&device, 2 * own.rank(), 2)).unwrap();
        assert_close(&gradients(&again), &gradients(&expected));
        failures
    });
    assert!(outcomes[0] > 30 && outcomes[0] < allocations, "{outcomes:?}");
}

/// The peak is that of a step alone, and the piece that is held.
#[test]
fn averaging_takes_no_memory() {
    for kind in support::kinds() {
        let peak = |own: Option<&Communicator>| {
            let device = kind.plain();
            let model = Model::new(&device, 5);
            let parallel =
                own.map(|own| DataParallel::new(own, model.parameters()[..6].to_vec()).unwrap());
            let step = || match &parallel {
                Some(parallel) => {
                    let step = parallel.step(3, || model.loss(&device, 0, 3)).unwrap();
                    (step.loss, step.gradients)
                }
                None => {
                    let loss = model.loss(&device, 0, 3).unwrap();
                    (loss.item().unwrap(), loss.backward().unwrap())
                }
            };
            step();
            device.reset_peak();
            let held = device.live_bytes();
            step();
            device.report().peak - held
        };
        let expected = peak(None);
        for own in run(2, |own| peak(Some(&own))) {
            assert!(own <= expected + KIB, "{own} bytes, {expected} alone");
        }
    }
}

#[test]
fn models_that_differ_are_refused() {
    let errors = run(3, |own| {
        let device = Device::new_cpu(Default::default()).unwrap();
        let length = if own.rank() == 2 { 5 } else { 4 };
        let p = Parameter::new("p", Tensor::ones([length], DType::F32, &device).unwrap()).unwrap();
        DataParallel::new(&own, [p]).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("rank 2 has other parameters")), "{errors:?}");
    let errors = run(2, |own| {
        let device = Device::new_cpu(Default::default()).unwrap();
        let p = Parameter::new("p", Tensor::ones([4], DType::F32, &device).unwrap()).unwrap();
        let parallel = DataParallel::new(&own, [p]).unwrap();
        parallel.step(0, || unreachable!("no samples")).unwrap_err()
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Argument { .. })));
}
