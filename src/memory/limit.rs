//! A memory limit for a stretch of code.

use super::meter::Meter;

/// A memory limit that lasts until this is dropped; from
/// [`Device::limit_scope`](crate::Device::limit_scope). It holds for every thread that uses the device,
/// since memory does not belong to threads.
#[must_use = "the limit ends when the guard is dropped"]
pub struct LimitGuard {
    meter: Meter,
    number: u64,
}

impl LimitGuard {
    pub(crate) fn new(meter: &Meter, bytes: u64) -> LimitGuard {
        LimitGuard { meter: meter.clone(), number: meter.push_limit(bytes) }
    }
}

impl Drop for LimitGuard {
    fn drop(&mut self) {
        self.meter.take_back_limit(self.number);
    }
}
