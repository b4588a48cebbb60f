//! Memory of the host that copies between devices go through: counted, within the cap, given back.
//! The host's meter is one for the whole process, so these tests run one after the other.

mod support;

use capgrad::{Device, MIB, Purpose, Reports, Tensor};
use std::sync::{Mutex, PoisonError};
use support::devices::{numbers, pairs};

static ALONE: Mutex<()> = Mutex::new(());

/// Each device's bytes are on its own meter; pinned memory on the way is the host's, within the cap,
/// and is given back by `trim`.
#[test]
fn each_meter_counts_its_own() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (from, to) in pairs() {
        let host = Device::cpu();
        from.trim().unwrap();
        let other = |device: &Device| device.report().live[Purpose::Other];
        for cap in [0, MIB, 64 * MIB] {
            from.set_workspace_cap(cap);
            to.set_workspace_cap(cap);
            from.trim().unwrap();
            to.trim().unwrap();
            let (staged, live) = (other(&host), (from.live_bytes(), to.live_bytes()));
            let x = Tensor::from_vec(numbers(1 << 20), [1 << 20], &from).unwrap();
            let y = x.to(&to).unwrap();
            assert_eq!(from.live_bytes() - live.0, 8 * MIB);
            assert_eq!(to.live_bytes() - live.1, 8 * MIB);
            // One of each of the two, at most.
            assert!(other(&host) - staged <= 2 * cap, "{from} to {to}, cap {cap}");
            let reports = Reports::of([&from, &to, &from]);
            assert_eq!(reports.devices.len(), 2);
            assert_eq!(reports.live(), from.live_bytes() + to.live_bytes());
            drop((x, y));
            from.trim().unwrap();
            to.trim().unwrap();
            assert_eq!(other(&host), staged);
        }
    }
}

/// A host without room for pinned memory is no reason to fail.
#[test]
fn a_limit_of_the_host_does_not_stop_copies_to_a_gpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(gpu) = support::cuda_devices().next() else { return };
    let host = Device::cpu();
    gpu.trim().unwrap();
    let guard = host.limit_scope(host.live_bytes() + 1).unwrap();
    let data = numbers(1 << 20);
    let x = Tensor::from_vec(data.clone(), [1 << 20], &gpu).unwrap();
    assert!(x.to_vec::<i64>().unwrap() == data);
    drop(guard);
}

/// Staging follows the cap of the day, up and down.
#[test]
fn staging_grows_and_shrinks_with_the_cap() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(gpu) = support::cuda_devices().next() else { return };
    let host = Device::cpu();
    gpu.trim().unwrap();
    let other = || host.report().live[Purpose::Other];
    let before = other();
    let data = numbers(1 << 20);
    let staged = |cap: u64| {
        gpu.set_workspace_cap(cap);
        let x = Tensor::from_vec(data.clone(), [1 << 20], &gpu).unwrap();
        assert!(x.to_vec::<i64>().unwrap() == data);
        other() - before
    };
    let small = staged(MIB);
    assert!((1..=MIB).contains(&small), "{small}");
    let large = staged(64 * MIB);
    assert!((MIB + 1..=64 * MIB).contains(&large), "{large}");
    assert_eq!(staged(MIB), small);
}
