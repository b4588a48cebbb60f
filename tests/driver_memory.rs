//! The driver's figures beside the meter's, on devices that have a driver: what the pool has handed
//! out is what the meter says is live, and what it has cached goes back when asked for.

mod support;

use capgrad::optim::AdamOptions;
use capgrad::{Adam, Conv1d, DType, Device, DriverMemory, MIB, Padding, Tape, Tensor};
use support::{cuda_devices, devices, values};

/// The driver's figures once all that was asked for has been done.
fn driver(device: &Device) -> DriverMemory {
    device.synchronize().unwrap();
    device.report().driver.expect("a GPU has a driver")
}

/// Within 1 %, and 512 bytes for each block.
#[track_caller]
fn agree(what: &str, device: &Device) {
    let used = driver(device).pool_used;
    let (live, blocks) = (device.live_bytes(), device.report().allocations);
    let difference = used.abs_diff(live);
    let most = live / 100 + blocks * 512;
    assert!(difference <= most, "{what}: the driver's {used}, the meter's {live}");
}

#[test]
fn the_pool_holds_what_the_meter_says_after_each_step_of_training() {
    for device in cuda_devices() {
        let conv = Conv1d::builder(512, 512, 3).padding(Padding::Same).build(&device).unwrap();
        let mut adam = Adam::new(conv.parameters(), AdamOptions::default()).unwrap();
        let x = Tensor::rand([64, 512, 128], DType::F32, &device).unwrap();
        agree("before", &device);
        for step in 0..3 {
            let tape = Tape::for_step(0, step);
            let loss = conv.forward(&tape.constant(x.clone())).unwrap();
            let loss = loss.square().unwrap().mean().unwrap();
            agree("after the forward pass", &device);
            let gradients = loss.backward().unwrap();
            agree("after the backward pass", &device);
            adam.step(&gradients).unwrap();
            drop(gradients);
            agree("after the step", &device);
        }
        drop((conv, adam, x));
        agree("in the end", &device);
    }
}

#[test]
fn the_highest_that_the_pool_was_starts_again_with_the_meters_peak() {
    for device in cuda_devices() {
        drop(Tensor::zeros([16 << 20], DType::F32, &device).unwrap());
        assert!(driver(&device).pool_used_peak >= 64 * MIB);
        device.reset_peak();
        let small = Tensor::zeros([1 << 20], DType::F32, &device).unwrap();
        let peak = driver(&device).pool_used_peak;
        assert!((4 * MIB..64 * MIB).contains(&peak), "{peak}");
        drop(small);
    }
}

#[test]
fn trim_gives_back_what_is_cached_and_keeps_what_is_live() {
    for device in devices() {
        let kept = Tensor::full([1000], 0.5, DType::F64, &device).unwrap();
        let live = device.live_bytes();
        device.trim().unwrap();
        assert_eq!(device.live_bytes(), live, "{device}");
        assert_eq!(values(&kept), [0.5; 1000], "{device}");
    }
    for device in cuda_devices() {
        let kept = Tensor::full([1000], 0.5, DType::F64, &device).unwrap();
        let large = Tensor::zeros([64 << 20], DType::F32, &device).unwrap();
        let full = driver(&device);
        assert!(full.pool_reserved >= 256 * MIB, "{full:?}");
        drop(large);
        let cached = driver(&device);
        assert!(cached.pool_used < 256 * MIB, "{cached:?}");
        // Kept for the next request, which may be of the same size.
        assert_eq!(cached.pool_reserved, full.pool_reserved);
        device.trim().unwrap();
        let trimmed = driver(&device);
        assert!(trimmed.pool_reserved + 192 * MIB <= cached.pool_reserved, "{trimmed:?}");
        assert!(trimmed.pool_reserved >= trimmed.pool_used, "{trimmed:?}");
        assert_eq!(trimmed.pool_used, cached.pool_used);
        assert_eq!(values(&kept), [0.5; 1000]);
        assert_eq!(Tensor::ones([3], DType::F32, &device).unwrap().elements(), 3);
    }
}

#[test]
fn a_dropped_device_gives_its_pool_back() {
    for device in cuda_devices() {
        let (other, before) = (support::Kind::Cuda.plain(), driver(&device).free);
        // Large enough to show beside what other tests and processes do meanwhile.
        let large = Tensor::zeros([1 << 27], DType::F64, &other).unwrap();
        let during = driver(&device).free;
        drop((large, other));
        let after = driver(&device).free;
        assert!(after >= during + 512 * MIB, "free: {before}, then {during}, then {after}");
    }
}
