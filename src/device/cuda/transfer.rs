//! Copies from another CUDA device: of the same GPU, of one that this one reaches by itself, or by way of
//! pinned memory of the host. Neither device's computing waits for the other's: the copy has a stream of
//! its own, and whichever device uses its memory again first waits for the copy then.

use super::Cuda;
use super::error::Check;
use super::event::{Event, SideStream};
use super::gpu::Gpu;
use super::memory::{Stream, device_buffer, pointer};
use super::staging::Pinned;
use crate::error::Result;
use crate::tensor::Tensor;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// Where what other devices send comes in.
pub(super) struct Arrivals {
    stream: SideStream,
    /// The other end of the way through the host, by the GPU where it begins.
    detours: Vec<Detour>,
}

/// The way from a GPU through pinned memory of the host.
struct Detour {
    from: SideStream,
    pinned: Pinned,
    /// When each place is free.
    free: Vec<Option<Arc<Event>>>,
}

impl Arrivals {
    pub(super) fn new(gpu: Arc<Gpu>) -> Result<Arrivals> {
        Ok(Arrivals { stream: SideStream::new(gpu)?, detours: Vec::new() })
    }

    /// Gives up the pinned memory, once nothing uses it.
    pub(super) fn trim(&mut self) -> Result<()> {
        self.stream.synchronize()?;
        self.detours.clear();
        Ok(())
    }

    /// Enqueues the copy by way of the host; `false` where `cap` leaves no room for that.
    fn through_host(
        &mut self,
        source: &Arc<Gpu>,
        ready: &Event,
        (to, from): (u64, u64),
        bytes: usize,
        cap: u64,
    ) -> Result<bool> {
        let known = self.detours.iter().position(|detour| Arc::ptr_eq(&detour.from.gpu, source));
        let known = known.filter(|&at| {
            let fits = self.detours[at].pinned.suits(cap);
            if !fits && self.stream.synchronize().is_ok() {
                self.detours.swap_remove(at);
            }
            fits
        });
        let at = match known {
            Some(at) => at,
            None => {
                let _entered = source.enter()?;
                let Some(pinned) = Pinned::within(cap)? else { return Ok(false) };
                let (from, free) = (SideStream::new(source.clone())?, vec![None; pinned.count]);
                self.detours.push(Detour { from, pinned, free });
                self.detours.len() - 1
            }
        };
        let detour = &mut self.detours[at];
        ready.before(detour.from.raw)?;
        let (most, count) = (detour.pinned.piece, detour.pinned.count);
        for (piece, offset) in (0..bytes).step_by(most).enumerate() {
            let (which, length) = (piece % count, most.min(bytes - offset));
            let pinned = detour.pinned.address(which).as_ptr().cast::<c_void>();
            if let Some(free) = detour.free[which].take() {
                free.before(detour.from.raw)?;
            }
            {
                let _entered = source.enter()?;
                // SAFETY: the range lies in the sender's block, which is kept until the event that
                // follows all this; the place is not written before it has been copied on.
                unsafe {
                    let from = from + offset as u64;
                    sys::cuMemcpyDtoHAsync_v2(pinned, from, length, detour.from.raw)
                }
                .check("cuMemcpyDtoHAsync")?;
            }
            detour.from.event()?.before(self.stream.raw)?;
            let _entered = self.stream.gpu.enter()?;
            // SAFETY: as above, for the receiver's block.
            unsafe {
                let to = to + offset as u64;
                sys::cuMemcpyHtoDAsync_v2(to, pinned, length, self.stream.raw)
            }
            .check("cuMemcpyHtoDAsync")?;
            detour.free[which] = Some(self.stream.event()?);
        }
        Ok(true)
    }
}

/// Copies a tensor of another CUDA device; `false` where it is none.
pub(super) fn receive(cuda: &Cuda, x: &Tensor, out: &Tensor) -> Result<bool> {
    let (Some(from), Some(to)) = (device_buffer(x), device_buffer(out)) else { return Ok(false) };
    let bytes = x.bytes();
    if bytes == 0 {
        return Ok(true);
    }
    let arrivals = cuda.arrivals()?;
    let mut arrivals = arrivals.lock();
    let places = (pointer(out), pointer(x));
    let (sender, receiver) = (&from.stream().gpu, &to.stream().gpu);
    let enqueue = |arrivals: &mut Arrivals| {
        let ready = Event::record(sender, from.stream().raw)?;
        ready.before(arrivals.stream.raw)?;
        // The block may have been somebody else's on the receiver's stream until just now.
        Event::record(receiver, to.stream().raw)?.before(arrivals.stream.raw)?;
        let cap = out.device().workspace_cap().unwrap_or(u64::MAX);
        let direct = !cuda.through_host && reaches(receiver, from.stream())?;
        if direct || !arrivals.through_host(sender, &ready, places, bytes, cap)? {
            directly(&arrivals.stream, places, sender, bytes)?;
        }
        arrivals.stream.event()
    };
    match enqueue(&mut arrivals) {
        Ok(done) => {
            from.uses().add(done.clone());
            to.uses().add(done);
            Ok(true)
        }
        Err(error) => {
            // Nothing may write to a block that its owner gives back.
            let _ = arrivals.stream.synchronize();
            Err(error)
        }
    }
}

/// Whether `gpu` reaches the memory of `sender`, which is told to allow it.
fn reaches(gpu: &Gpu, sender: &Stream) -> Result<bool> {
    if gpu.properties.ordinal == sender.gpu.properties.ordinal {
        return Ok(true);
    }
    sender.allow(gpu.properties.ordinal)
}

/// Where the GPUs do not reach each other, the driver finds a way of its own.
fn directly(
    stream: &SideStream,
    (to, from): (u64, u64),
    sender: &Arc<Gpu>,
    bytes: usize,
) -> Result<()> {
    let _entered = stream.gpu.enter()?;
    if Arc::ptr_eq(&stream.gpu, sender) {
        // SAFETY: both ranges lie in blocks that are kept until the event that follows.
        unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw) }.check("cuMemcpyDtoDAsync")
    } else {
        let (receiver, sender) = (stream.gpu.context(), sender.context());
        // SAFETY: as above; each address is of the context beside it.
        unsafe { sys::cuMemcpyPeerAsync(to, receiver, from, sender, bytes, stream.raw) }
            .check("cuMemcpyPeerAsync")
    }
}
