//! Terms for a stretch of code on one thread: a workspace cap, and whether TF32 may be used.

use crate::context;
use crate::device::Device;
use std::marker::PhantomData;

/// A workspace cap that lasts until this is dropped; from
/// [`Device::cap_scope`](crate::Device::cap_scope). It belongs to the thread that made it.
pub struct CapGuard {
    number: u64,
    // The device must outlive its entry, whose key is its address.
    _device: Device,
    _this_thread: PhantomData<*const ()>,
}

impl CapGuard {
    pub(crate) fn new(device: &Device, bytes: u64) -> CapGuard {
        let number = context::with(|context| context.caps.set(device.key(), bytes));
        CapGuard { number, _device: device.clone(), _this_thread: PhantomData }
    }

    /// The innermost cap for `device` on this thread.
    pub(crate) fn current(device: &Device) -> Option<u64> {
        context::with(|context| context.caps.of(device.key()))
    }
}

impl Drop for CapGuard {
    fn drop(&mut self) {
        context::with(|context| context.caps.take_back(self.number));
    }
}

/// A permission or ban of TF32 that lasts until this is dropped; from
/// [`Device::tf32_scope`](crate::Device::tf32_scope). It belongs to the thread that made it.
pub struct Tf32Guard {
    number: u64,
    // As in `CapGuard`.
    _device: Device,
    _this_thread: PhantomData<*const ()>,
}

impl Tf32Guard {
    pub(crate) fn new(device: &Device, allow: bool) -> Tf32Guard {
        let number = context::with(|context| context.tf32.set(device.key(), allow));
        Tf32Guard { number, _device: device.clone(), _this_thread: PhantomData }
    }

    /// What the innermost scope for `device` on this thread says.
    pub(crate) fn current(device: &Device) -> Option<bool> {
        context::with(|context| context.tf32.of(device.key()))
    }
}

impl Drop for Tf32Guard {
    fn drop(&mut self) {
        context::with(|context| context.tf32.take_back(self.number));
    }
}
