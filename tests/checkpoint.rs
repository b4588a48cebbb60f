//! Checkpoints compute a segment again instead of keeping it: the same numbers, masks and
//! gradients, also for parameters and captured values, with a lower peak.

mod support;

use capgrad::{
    Conv1d, DType, Device, Error, Gradients, Padding, Parameter, Tape, Tensor, Var, checkpoint,
};
use support::{Numbers, bits, devices, tensor, values};

fn net(device: &Device, layers: usize) -> (Vec<Conv1d>, Tensor) {
    // Bits are compared, and peaks of tensors.
    device.set_deterministic(true);
    device.set_workspace_cap(0);
    device.set_seed(3);
    let conv = |_| Conv1d::builder(4, 4, 3).padding(Padding::Same).build(device).unwrap();
    let convs = (0..layers).map(conv).collect();
    let x = tensor(&Numbers(1).reals(2 * 4 * 300), [2, 4, 300], DType::F32, device);
    (convs, x)
}

fn layer(conv: &Conv1d, x: &Var) -> capgrad::Result<Var> {
    conv.forward(x)?.gelu()?.dropout(0.3)
}

/// The loss and every parameter gradient, bit for bit.
fn outcome(loss: f64, gradients: &Gradients, convs: &[Conv1d]) -> Vec<u64> {
    let parameters = convs.iter().flat_map(Conv1d::parameters);
    let gradients = parameters.flat_map(|p| bits(gradients.parameter(&p).unwrap()));
    std::iter::once(loss.to_bits()).chain(gradients).collect()
}

/// One step with a checkpoint around every `each` layers; and what its peak is over the start.
fn step(convs: &[Conv1d], x: &Tensor, each: usize, wanted: bool) -> (Vec<u64>, u64, Vec<u64>) {
    let tape = Tape::for_step(9, 4);
    let input = if wanted { tape.variable(x.clone()).unwrap() } else { tape.constant(x.clone()) };
    x.device().reset_peak();
    let start = x.device().live_bytes();
    let mut y = input.clone();
    if each == 0 {
        for conv in convs {
            y = layer(conv, &y).unwrap();
        }
    } else {
        for segment in convs.chunks(each) {
            let segment = segment.to_vec();
            let run = move |x: &[Var]| segment.iter().try_fold(x[0].clone(), |y, c| layer(c, &y));
            y = checkpoint(&[&y], run).unwrap();
        }
    }
    // A random operation after the segments draws what it would have drawn.
    let loss = y.dropout(0.5).unwrap().square().unwrap().mean().unwrap();
    drop(y);
    let value = loss.item().unwrap();
    let gradients = loss.backward().unwrap();
    let peak = x.device().report().peak - start;
    let dx = gradients.get(&input).map(bits).unwrap_or_default();
    (outcome(value, &gradients, convs), peak, dx)
}

#[test]
fn a_checkpointed_step_has_the_same_bits_and_a_lower_peak() {
    for device in devices() {
        let base = device.live_bytes();
        let (convs, x) = net(&device, 12);
        for wanted in [true, false] {
            let (plain, plain_peak, plain_dx) = step(&convs, &x, 0, wanted);
            assert_eq!(plain_dx.is_empty(), !wanted);
            for each in [1, 3, 4, 12] {
                let (numbers, peak, dx) = step(&convs, &x, each, wanted);
                assert_eq!(numbers, plain, "{each} layers a segment, input wanted {wanted}");
                assert_eq!(dx, plain_dx);
                if each == 3 || each == 4 {
                    assert!(peak * 10 < plain_peak * 7, "{peak} against {plain_peak}");
                }
            }
        }
        let parameters: usize =
            convs.iter().flat_map(Conv1d::parameters).map(|p| p.tensor().bytes()).sum();
        assert_eq!((device.live_bytes() - base) as usize, parameters + x.bytes());
    }
}

/// pytorch#7617.
#[test]
fn a_layer_whose_input_needs_no_gradient_still_trains() {
    for device in devices() {
        let (convs, x) = net(&device, 1);
        let conv = convs[0].clone();
        let tape = Tape::new();
        let y = checkpoint(&[&tape.constant(x)], move |x| conv.forward(&x[0])).unwrap();
        assert!(y.requires_grad());
        let gradients = y.square().unwrap().mean().unwrap().backward().unwrap();
        assert_eq!(gradients.len(), 2);
        assert!(values(gradients.parameter(convs[0].weight()).unwrap()).iter().any(|g| *g != 0.0));
    }
}

#[test]
fn a_captured_value_gets_its_gradient() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(tensor(&[2.0, 3.0], [2], DType::F64, &device)).unwrap();
        let outer = tape.variable(tensor(&[5.0, 7.0], [2], DType::F64, &device)).unwrap();
        let inner = outer.square().unwrap();
        let captured = inner.clone();
        let y = checkpoint(&[&x], move |x| x[0].mul(&captured)).unwrap();
        // Used outside as well.
        let loss = y.add(&inner).unwrap().sum().unwrap();
        drop(inner);
        let gradients = loss.backward().unwrap();
        assert_eq!(values(gradients.get(&x).unwrap()), [25.0, 49.0]);
        assert_eq!(values(gradients.get(&outer).unwrap()), [30.0, 56.0]);
    }
}

#[test]
fn checkpoints_nest() {
    for device in devices() {
        let (convs, x) = net(&device, 4);
        let run = |nested: bool| {
            let tape = Tape::for_step(1, 1);
            let v = tape.variable(x.clone()).unwrap();
            let layers = convs.clone();
            let whole = move |x: &[Var]| {
                let mut y = x[0].clone();
                for pair in layers.chunks(2) {
                    let pair = pair.to_vec();
                    let inner = move |x: &[Var]| layer(&pair[1], &layer(&pair[0], &x[0])?);
                    y = if nested { checkpoint(&[&y], inner)? } else { inner(&[y])? };
                }
                Ok(y)
            };
            let y = if nested { checkpoint(&[&v], whole) } else { whole(std::slice::from_ref(&v)) };
            let loss = y.unwrap().square().unwrap().mean().unwrap();
            let value = loss.item().unwrap();
            let gradients = loss.backward().unwrap();
            (outcome(value, &gradients, &convs), bits(gradients.get(&v).unwrap()))
        };
        assert_eq!(run(true), run(false));
    }
}

#[test]
fn a_kept_graph_replays_its_checkpoint_twice() {
    for device in devices() {
        let (convs, x) = net(&device, 2);
        let tape = Tape::for_step(1, 1);
        let segment = convs.clone();
        let y = checkpoint(&[&tape.constant(x)], move |x| {
            layer(&segment[1], &layer(&segment[0], &x[0])?)
        });
        let loss = y.unwrap().square().unwrap().mean().unwrap();
        let first = outcome(0.0, &loss.backward_retained().unwrap(), &convs);
        let second = outcome(0.0, &loss.backward_retained().unwrap(), &convs);
        assert_eq!(first, second);
        assert_eq!(outcome(0.0, &loss.backward().unwrap(), &convs), first);
    }
}

#[test]
fn several_inputs_and_one_used_twice() {
    for device in devices() {
        let tape = Tape::new();
        let a = tape.variable(tensor(&[2.0], [1], DType::F64, &device)).unwrap();
        let b = tape.variable(tensor(&[3.0], [1], DType::F64, &device)).unwrap();
        let y = checkpoint(&[&a, &b, &a], |x| x[0].mul(&x[1])?.mul(&x[2])).unwrap();
        let gradients = y.backward().unwrap();
        assert_eq!(values(gradients.get(&a).unwrap()), [12.0]);
        assert_eq!(values(gradients.get(&b).unwrap()), [4.0]);
    }
}

#[test]
fn a_changed_parameter_is_noticed_where_it_was_an_input() {
    for device in devices() {
        let w = Parameter::new("w", Tensor::ones([3], DType::F64, &device).unwrap()).unwrap();
        let tape = Tape::new();
        let y = checkpoint(&[&tape.parameter(&w)], |x| x[0].square()).unwrap().sum().unwrap();
        w.tensor().copy_from(&Tensor::zeros([3], DType::F64, &device).unwrap()).unwrap();
        assert!(matches!(y.backward(), Err(Error::SavedValueChanged { op: "checkpoint" })));
    }
}

#[test]
fn without_a_tape_it_only_runs_and_a_failing_segment_is_an_error() {
    for device in devices() {
        let base = device.live_bytes();
        let x = Var::from(Tensor::ones([3], DType::F64, &device).unwrap());
        let y = checkpoint(&[&x], |x| x[0].add_scalar(1.0)).unwrap();
        assert_eq!((values(y.tensor()), y.requires_grad()), (vec![2.0; 3], false));
        drop(y);
        let tape = Tape::new();
        let v = tape.variable(x.tensor().clone()).unwrap();
        let failing = |_: &[Var]| Err(Error::custom("segment", "no"));
        assert_eq!(checkpoint(&[&v], failing).unwrap_err().to_string(), "segment: no");
        // One that fails only when it is run again.
        let first = std::sync::atomic::AtomicBool::new(true);
        let y = checkpoint(&[&v], move |x| {
            if first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                x[0].square()
            } else {
                Err(Error::custom("segment", "second time"))
            }
        });
        let error = y.unwrap().sum().unwrap().backward().err().unwrap();
        assert_eq!(error.to_string(), "segment: second time");
        assert!(v.square().unwrap().requires_grad(), "recording goes on");
        assert_eq!(device.live_bytes() - base, 24);
    }
}
