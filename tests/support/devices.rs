//! Pairs of devices between which tensors move, and data that shows where they went wrong.

use super::Kind;
use capgrad::{CudaOptions, Device};
use std::io::Write;
use std::sync::LazyLock;

/// Whether there is a second GPU. It stays open, as the first one does.
static SECOND: LazyLock<bool> = LazyLock::new(|| match Device::cuda(1) {
    Ok(_) => true,
    Err(error) => {
        let _ = writeln!(std::io::stderr(), "skipped on a second GPU: {error}");
        false
    }
});

/// A device on the second GPU, its new memory poisoned; where there is one GPU, says that what needs two
/// is skipped.
pub fn second_gpu() -> Option<Device> {
    let poisoned = || CudaOptions { poison: true, ..Default::default() };
    SECOND.then(|| Device::new_cuda(1, poisoned()).unwrap())
}

/// Devices of every kind, two of each, and one on a second GPU if there is one: a second device on the
/// same GPU is as any other to the crate.
pub fn all() -> Vec<Device> {
    super::kinds()
        .flat_map(|kind| {
            let mut made = vec![kind.poisoned(), kind.poisoned()];
            if kind == Kind::Cuda {
                let options = CudaOptions { through_host: true, ..Default::default() };
                made.push(Device::new_cuda(0, options).unwrap());
                made.extend(second_gpu());
            }
            made
        })
        .collect()
}

/// Each of them with each of the others.
pub fn pairs() -> Vec<(Device, Device)> {
    let devices = all();
    let with = |from: &Device| {
        let others = devices.iter().filter(|&to| to != from).cloned();
        others.map(|to| (from.clone(), to)).collect::<Vec<_>>()
    };
    devices.iter().flat_map(with).collect()
}

/// Numbers without a pattern that a misplaced piece could hide in.
pub fn numbers(count: usize) -> Vec<i64> {
    let mut state = 88172645463325252u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as i64
    };
    std::iter::repeat_with(next).take(count).collect()
}
