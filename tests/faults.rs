//! Whatever fails, nothing is lost: each piece of memory and each algorithm of one whole training step is
//! made to fail in turn. The step is an error, live bytes, parameters and optimiser state are what they
//! were, and the next try gives what a device without faults gives, bit for bit.

mod support;

use capgrad::{DType, Device, Error, Fault, Ranking, Result, Tensor};
use support::workloads::{Workload, operator};
use support::{Kind, kinds, values};

/// Parameters after each of two steps without faults, and the losses.
fn reference(make: &dyn Fn(&Device) -> Result<Workload>, device: &Device) -> Vec<(u64, Vec<u64>)> {
    let mut workload = make(device).unwrap();
    let step = |workload: &mut Workload| {
        let loss = workload.step().unwrap();
        (loss.to_bits(), workload.parameters())
    };
    vec![step(&mut workload), step(&mut workload)]
}

/// A device whose results repeat and whose random numbers begin anew.
fn device(kind: Kind) -> Device {
    let device = kind.poisoned();
    device.set_deterministic(true);
    device.set_seed(3);
    device
}

/// Fails the n-th of a kind for every n that a step reaches, in the first step (which makes the
/// optimiser's state) or in the second; how many that were.
fn each_fault(
    kind: Kind,
    make: &dyn Fn(&Device) -> Result<Workload>,
    fault: fn(u64) -> Fault,
    warm: usize,
) -> u64 {
    let expected = reference(make, &device(kind));
    for n in 1.. {
        let device = device(kind);
        let mut workload = make(&device).unwrap();
        for _ in 0..warm {
            workload.step().unwrap();
        }
        let (before, live) = (workload.parameters(), device.report().live);
        device.inject_fault(Some(fault(n)));
        let result = workload.step();
        device.inject_fault(None);
        match result {
            Ok(_) => {
                assert_eq!(workload.parameters(), expected[warm].1);
                return n - 1;
            }
            Err(Error::Injected { .. }) => {}
            Err(error) => panic!("fault {n}: {error}"),
        }
        assert_eq!(device.report().live, live, "fault {n}");
        assert_eq!(workload.parameters(), before, "fault {n}");
        let loss = workload.step().unwrap();
        assert_eq!(loss.to_bits(), expected[warm].0, "fault {n}");
        assert_eq!(workload.parameters(), expected[warm].1, "fault {n}");
        if warm == 0 {
            // The optimiser's state is right, too: the step after depends on it.
            let loss = workload.step().unwrap();
            assert_eq!((loss.to_bits(), workload.parameters()), expected[1], "fault {n}");
        }
    }
    unreachable!()
}

fn every_fault(kind: Kind, make: &dyn Fn(&Device) -> Result<Workload>, at_least: [u64; 2]) {
    let allocations = each_fault(kind, make, Fault::Allocation, 0);
    let candidates = each_fault(kind, make, Fault::Candidate, 0);
    assert!(allocations >= at_least[0] && candidates >= at_least[1], "{allocations}, {candidates}");
    println!("{kind:?}: {allocations} pieces of memory, {candidates} algorithms");
    // The second step makes no state: two pieces fewer for each parameter.
    let later = each_fault(kind, make, Fault::Allocation, 1);
    assert!(later < allocations, "{later} of {allocations}");
}

#[test]
fn each_fault_in_a_step_of_the_convolution_leaves_all_as_it_was() {
    for kind in kinds() {
        // Result, square, mean and loss; their gradients; of 2 parameters 2 moments each.
        every_fault(kind, &|device| Workload::conv(device, 6, 16), [9, 2]);
    }
}

#[test]
fn each_fault_in_a_step_of_the_autoencoder_leaves_all_as_it_was() {
    let host = operator(240, 20);
    for kind in kinds() {
        let make = |device: &Device| Workload::sparse(device, &host, 2, [12, 20]);
        // Three products forward; backward those of the operator and of the second layer, and both layers' weights.
        every_fault(kind, &make, [20, 7]);
    }
}

#[test]
fn a_fault_while_candidates_are_timed_does_not_end_the_search() {
    for kind in kinds() {
        let device = device(kind);
        device.set_ranking(Ranking::Measured);
        let mut workload = Workload::conv(&device, 6, 16).unwrap();
        device.inject_fault(Some(Fault::Candidate(1)));
        workload.step().unwrap();
        let failed = device
            .plans()
            .iter()
            .filter(|plan| plan.to_string().contains("as `inject_fault` asked"))
            .count();
        assert_eq!(failed, 1);
    }
}

#[test]
fn a_fault_happens_once_where_it_was_asked_for_and_can_be_taken_back() {
    for kind in kinds() {
        let (device, other) = (kind.plain(), kind.plain());
        device.inject_fault(Some(Fault::Allocation(3)));
        let make = |device: &Device| Tensor::ones([4], DType::F32, device);
        // Other devices are not touched, and pieces without bytes are none.
        for _ in 0..5 {
            make(&other).unwrap();
            Tensor::ones([0], DType::F32, &device).unwrap();
        }
        let held = [make(&device).unwrap(), make(&device).unwrap()];
        let error = make(&device).unwrap_err();
        let name = device.name();
        assert_eq!(
            error.to_string(),
            format!("ones on {name}: a piece of memory failed, as `inject_fault` asked")
        );
        assert_eq!(values(&make(&device).unwrap()), values(&held[0]));
        device.inject_fault(Some(Fault::Allocation(1)));
        device.inject_fault(None);
        make(&device).unwrap();
    }
}
