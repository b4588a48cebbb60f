//! What the tape keeps and when it lets go: values and branches that nobody needs, saved tensors
//! during backward, dropped tapes, long chains; and what it refuses.

mod support;

use capgrad::optim::SgdOptions;
use capgrad::{DType, Device, Error, Parameter, Sgd, Tape, Tensor, Var, no_grad};
use support::{Kind, bits, devices, kinds, tensor, values};

/// A tensor of 8,000 bytes, and what the meter says for one.
const ONE: u64 = 8_000;

fn thousand(device: &Device) -> Tensor {
    Tensor::full([1000], 0.5, DType::F64, device).unwrap()
}

#[test]
fn a_value_that_no_gradient_needs_is_freed_in_the_forward_pass() {
    for device in devices() {
        let base = device.live_bytes();
        let x = thousand(&device);
        let tape = Tape::new();
        let v = tape.variable(x.clone()).unwrap();
        device.reset_peak();
        let mut y = v.clone();
        for _ in 0..50 {
            // The gradient of a sum with a scalar needs no value.
            y = y.add_scalar(1.0).unwrap();
        }
        assert_eq!(device.live_bytes() - base, 2 * ONE);
        assert_eq!(device.report().peak - base, 3 * ONE);
        assert_eq!(values(y.tensor())[0], 50.5);
        assert_eq!(tape.live_nodes(), 51);
        let gradients = y.sum().unwrap().backward().unwrap();
        assert_eq!(values(gradients.get(&v).unwrap()), [1.0; 1000]);
        drop((gradients, y));
        assert_eq!(device.live_bytes() - base, ONE);
    }
}

#[test]
fn a_branch_that_no_value_leads_to_is_freed() {
    for device in devices() {
        let (base, tape) = (device.live_bytes(), Tape::new());
        let v = tape.variable(thousand(&device)).unwrap();
        let branch = v.square().unwrap().square().unwrap().exp().unwrap();
        // Two squares save their operands (one of them is v) and exp its result.
        assert_eq!(device.live_bytes() - base, 3 * ONE);
        assert_eq!(tape.live_nodes(), 4);
        drop(branch);
        assert_eq!(device.live_bytes() - base, ONE);
        assert_eq!(tape.live_nodes(), 1);
    }
}

#[test]
fn saved_tensors_are_freed_while_backward_goes() {
    for device in devices() {
        let (base, tape) = (device.live_bytes(), Tape::new());
        let v = tape.variable(thousand(&device)).unwrap();
        let mut y = v.clone();
        for _ in 0..20 {
            y = y.square().unwrap();
        }
        let loss = y.sum().unwrap();
        drop(y);
        let forward = device.live_bytes() - base;
        assert!(forward <= 20 * ONE + 64);
        device.reset_peak();
        let gradients = loss.backward().unwrap();
        // A gradient comes in, another goes out, and what was saved has gone by then.
        let peak = device.report().peak - base;
        assert!(peak <= forward + 2 * ONE + 64, "{peak} over {forward}");
        assert_eq!(device.live_bytes() - base, 2 * ONE);
        assert_eq!(tape.live_nodes(), 1);
        drop(gradients);
        assert_eq!(device.live_bytes() - base, ONE);
    }
}

#[test]
fn a_second_backward_is_refused_unless_the_graph_was_kept() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(thousand(&device)).unwrap();
        let loss = x.square().unwrap().sum().unwrap();
        let first = loss.backward_retained().unwrap();
        let second = loss.backward_retained().unwrap();
        assert_eq!(values(first.get(&x).unwrap()), [1.0; 1000]);
        assert_eq!(bits(first.get(&x).unwrap()), bits(second.get(&x).unwrap()));
        let again = loss.clone();
        loss.backward().unwrap();
        let error = again.clone().backward().err().unwrap();
        assert!(matches!(error, Error::GraphTaken { .. }), "{error}");
        assert!(matches!(again.backward_retained(), Err(Error::GraphTaken { .. })));
        // Also where another result shares a part of the graph.
        let shared = x.square().unwrap();
        let (one, two) = (shared.sum().unwrap(), shared.mean().unwrap());
        one.backward().unwrap();
        let error = two.backward().err().unwrap();
        assert!(error.to_string().contains("square"), "{error}");
    }
}

#[test]
fn a_dropped_tape_frees_everything_recorded_on_it() {
    for device in devices() {
        let base = device.live_bytes();
        let x = thousand(&device);
        let tape = Tape::new();
        let v = tape.variable(x.clone()).unwrap();
        let loss = v.exp().unwrap().square().unwrap().sum().unwrap();
        assert!(device.live_bytes() - base > 2 * ONE);
        drop((tape, v));
        assert_eq!(device.live_bytes() - base, ONE + 8);
        assert!(!loss.requires_grad());
        assert!(loss.item().unwrap() > 0.0);
        assert!(matches!(loss.backward(), Err(Error::NotRecorded { op: "backward" })));
    }
}

/// pytorch#1840.
#[test]
fn the_losses_of_100_steps_may_be_summed_as_numbers_and_as_values() {
    for device in devices() {
        let base = device.live_bytes();
        let w = Parameter::new("w", thousand(&device)).unwrap();
        let mut sgd =
            Sgd::new([w.clone()], SgdOptions { rate: 1e-3, ..Default::default() }).unwrap();
        let mut live = Vec::new();
        let mut number = 0.0;
        let mut total: Option<Var> = None;
        for _ in 0..100 {
            let tape = Tape::new();
            let loss = tape.parameter(&w).square().unwrap().sum().unwrap();
            number += loss.item().unwrap();
            total = Some(match total {
                Some(total) => total.add(&loss).unwrap(),
                None => loss.clone(),
            });
            sgd.step(&loss.backward_retained().unwrap()).unwrap();
            live.push((device.live_bytes(), tape.live_nodes()));
        }
        assert!(live[1..].iter().all(|seen| *seen == live[1]), "{live:?}");
        let live = device.live_bytes() - base;
        assert!(live <= ONE + 64, "{live}");
        let total = total.unwrap().item().unwrap();
        assert!((total - number).abs() < 1e-9 * number);
    }
}

#[test]
fn a_chain_of_a_million_nodes_drops_without_overflowing_the_stack() {
    for device in kinds().map(Kind::plain) {
        let base = device.live_bytes();
        // The tape is the same on a GPU, where each node costs a launch.
        let nodes = if Kind::of(&device) == Kind::Cuda { 100_000 } else { 1_000_000 };
        let x = Tensor::ones([1], DType::F32, &device).unwrap();
        let chain = |tape: &Tape| {
            let v = tape.variable(x.clone()).unwrap();
            let mut y = v;
            for _ in 0..nodes {
                y = y.add_scalar(0.0).unwrap();
            }
            y
        };
        // The value goes first, then the tape; and the other way round.
        let tape = Tape::new();
        let y = chain(&tape);
        assert_eq!(tape.live_nodes(), nodes + 1);
        drop(y);
        assert_eq!(tape.live_nodes(), 0);
        let y = chain(&tape);
        drop(tape);
        drop(y);
        assert_eq!(device.live_bytes() - base, 4);
    }
}

#[test]
fn detach_and_no_grad_cut_the_graph() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(tensor(&[2.0, 3.0], [2], DType::F64, &device)).unwrap();
        let cut = no_grad(|| x.square()).unwrap();
        assert!(!cut.requires_grad() && !x.detach().requires_grad() && x.requires_grad());
        let y = x.mul(&cut).unwrap().add(&x.detach().square().unwrap()).unwrap();
        let gradients = y.sum().unwrap().backward().unwrap();
        assert_eq!(values(gradients.get(&x).unwrap()), [4.0, 9.0]);
        let nothing = no_grad(|| x.square().unwrap().sum().unwrap());
        assert!(matches!(nothing.backward(), Err(Error::NotRecorded { .. })));
        let constant = Var::from(thousand(&device)).sum().unwrap();
        assert!(matches!(constant.backward(), Err(Error::NotRecorded { .. })));
        // A panic inside leaves recording on.
        let panicked = std::panic::catch_unwind(|| no_grad(|| panic!("inside")));
        assert!(panicked.is_err() && x.square().unwrap().requires_grad());
    }
}

#[test]
fn a_gradient_that_is_asked_for_is_kept() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(tensor(&[2.0, 3.0], [2], DType::F64, &device)).unwrap();
        let (h, other) = (x.square().unwrap(), x.exp().unwrap());
        h.keep_gradient();
        let y = h.mul(&h).unwrap().sum().unwrap();
        let gradients = y.backward().unwrap();
        assert_eq!(values(gradients.get(&h).unwrap()), [8.0, 18.0]);
        assert_eq!(values(gradients.get(&x).unwrap()), [32.0, 108.0]);
        assert!(gradients.get(&other).is_none() && gradients.len() == 2);
    }
}

#[test]
fn values_of_two_tapes_do_not_mix() {
    for device in devices() {
        let (one, two) = (Tape::new(), Tape::new());
        let a = one.variable(thousand(&device)).unwrap();
        let b = two.variable(thousand(&device)).unwrap();
        let error = a.add(&b).unwrap_err();
        assert!(matches!(error, Error::TapeMismatch { op: "add" }), "{error}");
        // A constant of another tape is a number, and so is a value that was detached.
        assert!(a.mul(&two.constant(thousand(&device))).unwrap().requires_grad());
        assert!(a.mul(&b.detach()).unwrap().requires_grad());
        let c = two.constant(thousand(&device)).mul(&a).unwrap();
        assert!(c.sum().unwrap().backward().unwrap().get(&a).is_some());
    }
}

#[test]
fn a_saved_value_that_was_changed_is_noticed() {
    for device in devices() {
        let w = Parameter::new("w", thousand(&device)).unwrap();
        let tape = Tape::new();
        let x = tape.variable(thousand(&device)).unwrap();
        let y = x.mul(&tape.parameter(&w)).unwrap().sum().unwrap();
        w.tensor().copy_from(&Tensor::ones([1000], DType::F64, &device).unwrap()).unwrap();
        let error = y.backward().err().unwrap();
        assert!(matches!(error, Error::SavedValueChanged { op: "mul" }), "{error}");
        let y = x.mul(&tape.parameter(&w)).unwrap().sum().unwrap();
        assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [1.0; 1000]);
    }
}

#[test]
fn gradients_of_a_shared_parameter_add_up_in_place() {
    for device in devices() {
        let w = Parameter::new("w", thousand(&device)).unwrap();
        let c = tensor(&[3.0; 1000], [1000], DType::F64, &device);
        let allocations = |uses: usize| {
            let tape = Tape::new();
            let constant = Var::from(c.clone());
            let mut sum: Option<Var> = None;
            for _ in 0..uses {
                let term = tape.parameter(&w).mul(&constant).unwrap().sum().unwrap();
                sum = Some(match sum {
                    Some(sum) => sum.add(&term).unwrap(),
                    None => term,
                });
            }
            let live = device.live_bytes();
            device.reset_peak();
            let gradients = sum.unwrap().backward().unwrap();
            let gradient = values(gradients.parameter(&w).unwrap());
            assert_eq!(gradient, vec![3.0 * uses as f64; 1000]);
            assert_eq!(gradients.len(), 1);
            let report = device.report();
            (report.allocations, report.peak - live)
        };
        let (two, three, four) = (allocations(2), allocations(3), allocations(4));
        // Each further use allocates its own contribution and nothing for the sum.
        assert_eq!(three.0 - two.0, four.0 - three.0);
        assert!(four.0 - three.0 <= 2, "{two:?} {three:?} {four:?}");
        assert!(four.1 <= 2 * ONE + 64, "{four:?}");
    }
}

#[test]
fn gradients_of_several_passes_add_up() {
    for device in devices() {
        let w = Parameter::new("w", thousand(&device)).unwrap();
        let frozen = Parameter::new("frozen", thousand(&device)).unwrap();
        frozen.set_trainable(false);
        let pass = || {
            let tape = Tape::new();
            let product = tape.parameter(&w).mul(&tape.parameter(&frozen)).unwrap();
            product.sum().unwrap().backward().unwrap()
        };
        let mut gradients = pass();
        assert!(gradients.parameter(&frozen).is_none());
        gradients.add(pass()).unwrap();
        gradients.add(pass()).unwrap();
        assert_eq!(values(gradients.parameter(&w).unwrap()), [1.5; 1000]);
    }
}

#[test]
fn what_is_made_of_a_taken_value_is_refused_and_not_left_out() {
    for device in devices() {
        let w = Parameter::new("w", thousand(&device)).unwrap();
        let tape = Tape::new();
        let h = tape.parameter(&w).square().unwrap();
        h.mean().unwrap().backward().unwrap();
        let second = h.exp().unwrap().mean().unwrap();
        assert!(matches!(second.backward(), Err(Error::GraphTaken { .. })));
    }
}
