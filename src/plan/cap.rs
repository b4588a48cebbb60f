//! A workspace cap for a stretch of code on one thread.

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
        let number = context::with(|context| {
            let caps = &mut context.caps;
            let number = caps.last().map_or(0, |&(number, ..)| number + 1);
            caps.push((number, device.key(), bytes));
            number
        });
        CapGuard { number, _device: device.clone(), _this_thread: PhantomData }
    }

    /// The innermost cap for `device` on this thread.
    pub(crate) fn current(device: &Device) -> Option<u64> {
        context::with(|context| {
            context
                .caps
                .iter()
                .rev()
                .find(|&&(_, key, _)| key == device.key())
                .map(|&(.., bytes)| bytes)
        })
    }
}

impl Drop for CapGuard {
    fn drop(&mut self) {
        context::with(|context| context.caps.retain(|&(number, ..)| number != self.number));
    }
}
