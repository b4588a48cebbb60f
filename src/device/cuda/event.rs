//! Streams beside the ones that compute, and the places in a stream that others wait for.

use super::error::Check;
use super::gpu::Gpu;
use crate::error::Result;
use cudarc::driver::sys;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A place in a stream: everything that had been enqueued there when it was made.
pub(super) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: events of the driver may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// No place yet; it counts as one that has been reached.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Event> {
        let _entered = gpu.enter()?;
        let mut event = Event { gpu: gpu.clone(), raw: std::ptr::null_mut() };
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a valid place for the result, and the context is current.
        unsafe { sys::cuEventCreate(&mut event.raw, flags) }.check("cuEventCreate")?;
        Ok(event)
    }

    /// The place that `stream`, one of `gpu`'s, has come to.
    pub(super) fn record(gpu: &Arc<Gpu>, stream: sys::CUstream) -> Result<Arc<Event>> {
        let event = Event::new(gpu)?;
        event.mark(stream)?;
        Ok(Arc::new(event))
    }

    /// From now on it is the place that `stream` has come to, instead of an earlier one.
    pub(super) fn mark(&self, stream: sys::CUstream) -> Result<()> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the event is alive; the stream is of the context that is current.
        unsafe { sys::cuEventRecord(self.raw, stream) }.check("cuEventRecord")
    }

    /// What is enqueued on `stream` from now on, on whichever GPU, comes after this place.
    pub(super) fn before(&self, stream: sys::CUstream) -> Result<()> {
        // SAFETY: the event is recorded; a stream may wait for one of another GPU.
        unsafe { sys::cuStreamWaitEvent(stream, self.raw, 0) }.check("cuStreamWaitEvent")
    }

    /// Whether the stream has come here.
    #[cfg(feature = "nccl")]
    pub(super) fn reached(&self) -> Result<bool> {
        // SAFETY: the event is recorded.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => status.check("cuEventQuery").map(|()| true),
        }
    }

    /// Waits, on the host, until the stream has come here.
    pub(super) fn wait(&self) -> Result<()> {
        // SAFETY: the event is recorded.
        unsafe { sys::cuEventSynchronize(self.raw) }.check("cuEventSynchronize")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.raw.is_null()
            && let Ok(_entered) = self.gpu.enter()
        {
            // SAFETY: it is its own; the driver keeps what streams still wait for.
            unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// A stream beside the one that computes: of copies, or of what other processes take part in.
pub(super) struct SideStream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) raw: sys::CUstream,
}

// SAFETY: streams of the driver may be used from any thread.
unsafe impl Send for SideStream {}
// SAFETY: as above.
unsafe impl Sync for SideStream {}

impl SideStream {
    pub(super) fn new(gpu: Arc<Gpu>) -> Result<SideStream> {
        let _entered = gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a valid place for the result, and the context is current.
        unsafe { sys::cuStreamCreate(&mut raw, flags) }.check("cuStreamCreate")?;
        drop(_entered);
        Ok(SideStream { gpu, raw })
    }

    /// The place that it has come to.
    pub(super) fn event(&self) -> Result<Arc<Event>> {
        Event::record(&self.gpu, self.raw)
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is its own.
        unsafe { sys::cuStreamSynchronize(self.raw) }.check("cuStreamSynchronize")
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: the stream is its own. A driver that failed before has nothing under way.
            unsafe {
                sys::cuStreamSynchronize(self.raw);
                sys::cuStreamDestroy_v2(self.raw);
            }
        }
    }
}

/// Uses of a block of memory by other streams than the one that it belongs to, which that one waits for
/// when it uses the block again, and not before.
#[derive(Default)]
pub(super) struct OtherUses {
    any: AtomicBool,
    events: Mutex<SmallVec<[Arc<Event>; 1]>>,
}

impl OtherUses {
    pub(super) fn add(&self, event: Arc<Event>) {
        let mut events = self.events.lock();
        events.push(event);
        self.any.store(true, Ordering::Release);
    }

    /// What is enqueued on `stream`, the block's own, from now on comes after them.
    pub(super) fn settle(&self, stream: sys::CUstream) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut events = self.events.lock();
        for event in events.drain(..) {
            // It only fails where the driver has failed, which the next call there says.
            let _ = event.before(stream);
        }
        self.any.store(false, Ordering::Release);
    }
}
