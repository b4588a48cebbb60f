//! Copies between ordinary memory of the host and a GPU, by way of pinned memory: the GPU copies one
//! half while the host's threads copy the other.

use super::error::Check;
use super::event::Event;
use super::memory::Stream;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::{Purpose, Reservation, Taker};
use cudarc::driver::sys;
use rayon::prelude::*;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of half the staging memory, where the cap leaves so much.
const HALF: usize = 4 << 20;
/// Less than this goes without.
const LEAST: usize = 64 << 10;
/// What one thread of the host copies at a time.
const SHARE: usize = 256 << 10;

/// Pinned memory of the host in two halves, which the host's meter counts.
pub(super) struct Halves {
    start: NonNull<u8>,
    /// Bytes of a half.
    pub(super) half: usize,
    _counted: Reservation,
}

// SAFETY: the memory is owned.
unsafe impl Send for Halves {}

impl Halves {
    /// As large as is useful within `cap` bytes; `None` where that, or the host's limit, leaves too
    /// little.
    pub(super) fn within(cap: u64) -> Result<Option<Halves>> {
        let half = usize::try_from(cap / 2).unwrap_or(HALF).min(HALF) / LEAST * LEAST;
        if half == 0 {
            return Ok(None);
        }
        let host = Device::cpu();
        let taker = Taker::of("staging");
        let Ok(counted) = host.meter().reserve(2 * half as u64, Purpose::Other, taker) else {
            return Ok(None);
        };
        let mut start = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cuMemHostAlloc(&mut start, 2 * half, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .check("cuMemHostAlloc")?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| Error::driver("capgrad", "pinned memory"))?;
        let halves = Halves { start, half, _counted: counted };
        // SAFETY: the block is this long; zeros give its bytes a value before slices are made.
        unsafe { start.as_ptr().write_bytes(0, 2 * half) };
        Ok(Some(halves))
    }

    /// Address of a half, the same for the host and the GPUs.
    pub(super) fn address(&self, which: usize) -> *mut u8 {
        // SAFETY: the block has two halves.
        unsafe { self.start.as_ptr().add(which * self.half) }
    }

    /// The bytes of a half that nothing copies.
    pub(super) fn bytes(&mut self, which: usize) -> &mut [u8] {
        // SAFETY: the half has this length, and the halves are borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(which), self.half) }
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        // SAFETY: whoever holds it has waited for the copies; the block is its own.
        unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
    }
}

/// A stream's staging memory, and when each half is free.
pub(super) struct Staging {
    halves: Halves,
    busy: [Option<Arc<Event>>; 2],
}

impl Staging {
    /// What is held already, if `cap` allows it, else as much as it does.
    fn within(held: &mut Option<Staging>, cap: u64) -> Result<Option<&mut Staging>> {
        if held.as_ref().is_some_and(|staging| 2 * staging.halves.half as u64 > cap) {
            *held = None;
        }
        if held.is_none() {
            *held = Halves::within(cap)?.map(|halves| Staging { halves, busy: [None, None] });
        }
        Ok(held.as_mut())
    }

    /// A half, once nothing copies it any more.
    fn free(&mut self, which: usize) -> Result<&mut [u8]> {
        if let Some(event) = self.busy[which].take() {
            event.wait()?;
        }
        Ok(self.halves.bytes(which))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for event in self.busy.iter().flatten() {
            // A driver that failed has nothing under way.
            let _ = event.wait();
        }
    }
}

impl Stream {
    /// Copies from the host, by way of at most `cap` bytes of pinned memory. When it returns, `data`
    /// has been read.
    pub(super) fn write(&self, address: u64, data: &[u8], cap: u64) -> Result<()> {
        let _entered = self.gpu.enter()?;
        let to_device = |address, data: &[u8]| {
            // SAFETY: callers give a range of a buffer of this device; the host's side is waited for
            // before it is touched again.
            unsafe {
                sys::cuMemcpyHtoDAsync_v2(address, data.as_ptr().cast(), data.len(), self.raw)
            }
            .check("cuMemcpyHtoDAsync")
        };
        let mut held = self.staging.lock();
        let staging = if data.len() < LEAST { None } else { Staging::within(&mut held, cap)? };
        let Some(staging) = staging else {
            if data.is_empty() {
                return Ok(());
            }
            to_device(address, data)?;
            return self.synchronize();
        };
        let half = staging.halves.half;
        for (piece, data) in data.chunks(half).enumerate() {
            let which = piece % 2;
            let pinned = &mut staging.free(which)?[..data.len()];
            copy_bytes(pinned, data);
            to_device(address + (piece * half) as u64, pinned)?;
            staging.busy[which] = Some(Event::record(&self.gpu, self.raw)?);
        }
        Ok(())
    }

    /// Copies to the host, by way of at most `cap` bytes of pinned memory, after everything enqueued
    /// before.
    pub(super) fn read(&self, address: u64, data: &mut [u8], cap: u64) -> Result<()> {
        let _entered = self.gpu.enter()?;
        let to_host = |address, data: &mut [u8]| {
            // SAFETY: as in `write`, the other way round.
            unsafe {
                sys::cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), address, data.len(), self.raw)
            }
            .check("cuMemcpyDtoHAsync")
        };
        let mut held = self.staging.lock();
        let staging = if data.len() < LEAST { None } else { Staging::within(&mut held, cap)? };
        let Some(staging) = staging else {
            if data.is_empty() {
                return Ok(());
            }
            to_host(address, data)?;
            return self.synchronize();
        };
        let half = staging.halves.half;
        // The piece before, which is copied by the host while the next is on its way.
        let mut before: Option<(usize, &mut [u8])> = None;
        for (piece, data) in data.chunks_mut(half).enumerate() {
            let which = piece % 2;
            let pinned = &mut staging.free(which)?[..data.len()];
            to_host(address + (piece * half) as u64, pinned)?;
            staging.busy[which] = Some(Event::record(&self.gpu, self.raw)?);
            if let Some((which, data)) = before.replace((which, data)) {
                copy_bytes(data, &staging.free(which)?[..data.len()]);
            }
        }
        if let Some((which, data)) = before {
            copy_bytes(data, &staging.free(which)?[..data.len()]);
        }
        Ok(())
    }
}

/// By as many threads as are worth it: one alone copies at a fifth of what a GPU's link takes.
fn copy_bytes(to: &mut [u8], from: &[u8]) {
    // A worker of the pool that waited here could be handed another copy, which needs the lock that
    // this one holds.
    if to.len() <= 2 * SHARE || rayon::current_thread_index().is_some() {
        return to.copy_from_slice(from);
    }
    let shares = to.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE));
    shares.for_each(|(to, from)| to.copy_from_slice(from));
}
