//! The one door to a GPU's memory: a stream-ordered pool a device, buffers that go back to it in
//! the order of its stream, and pinned memory through which host copies pass.
//!
//! The pool is the workspace arena too: a workspace is taken before its launch and given back right
//! after it, in stream order, so the next one is the same memory, nothing waits, and what is held is
//! never more than the workspaces that are in use.

use super::error::Check;
use super::gpu::Gpu;
use super::pinned::pinned;
use crate::device::{Buffer, Device};
use crate::error::{Error, Result};
use crate::memory::{DriverMemory, Purpose, Reservation, Taker};
use crate::tensor::{Storage, Tensor};
use cudarc::driver::sys;
use parking_lot::Mutex;
use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// A stream and the pool whose memory is used in its order.
pub(super) struct Stream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) raw: sys::CUstream,
    pool: sys::CUmemoryPool,
    staging: Mutex<Option<Staging>>,
}

// SAFETY: streams and pools of the driver may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(gpu: Arc<Gpu>) -> Result<Arc<Stream>> {
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a valid place for the result, and the context is current.
        unsafe { sys::cuStreamCreate(&mut raw, flags) }.check("cuStreamCreate")?;
        let pool = match create_pool(gpu.properties.ordinal) {
            Ok(pool) => pool,
            Err(error) => {
                // SAFETY: the stream was just made and nothing uses it.
                unsafe { sys::cuStreamDestroy_v2(raw) };
                return Err(error);
            }
        };
        Ok(Arc::new(Stream { gpu, raw, pool, staging: Mutex::new(None) }))
    }

    /// Memory of `bytes` bytes, holding anything.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        let mut address = 0;
        if bytes > 0 {
            self.gpu.enter()?;
            let mut take = || {
                // SAFETY: a valid place for the result; the pool and stream are this device's.
                unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, self.raw) }
                    .check("cuMemAllocFromPoolAsync")
            };
            let refused = |error| match error {
                Error::OutOfMemory { device, .. } => {
                    Error::OutOfMemory { device, requested: bytes as u64 }
                }
                other => other,
            };
            // No driver has to be asked for more than there is; some call it a bad argument.
            if bytes > self.gpu.properties.memory_bytes {
                return Err(refused(Error::OutOfMemory { device: String::new(), requested: 0 }));
            }
            match take() {
                // What was freed and not yet reached by the stream may be enough.
                Err(Error::OutOfMemory { .. }) => {
                    self.trim()?;
                    take().map_err(refused)?;
                }
                other => other?,
            }
        }
        Ok(DeviceBuffer { stream: self.clone(), address, bytes })
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: the stream is this device's.
        unsafe { sys::cuStreamSynchronize(self.raw) }.check("cuStreamSynchronize")
    }

    /// Gives cached memory back to the GPU.
    pub(super) fn trim(&self) -> Result<()> {
        self.synchronize()?;
        *self.staging.lock() = None;
        // SAFETY: the pool is this device's.
        unsafe { sys::cuMemPoolTrimTo(self.pool, 0) }.check("cuMemPoolTrimTo")
    }

    /// What the driver says of the pool and of the GPU.
    pub(super) fn figures(&self) -> Result<DriverMemory> {
        use sys::CUmemPool_attribute::*;
        let (free, total) = self.gpu.memory()?;
        let read = |attribute| {
            let mut value = 0u64;
            // SAFETY: these attributes are 64-bit numbers.
            unsafe {
                sys::cuMemPoolGetAttribute(self.pool, attribute, (&raw mut value).cast::<c_void>())
            }
            .check("cuMemPoolGetAttribute")?;
            Ok::<u64, Error>(value)
        };
        Ok(DriverMemory {
            pool_used: read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            pool_used_peak: read(CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            pool_reserved: read(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            pool_reserved_peak: read(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            free,
            total,
        })
    }

    /// The pool's high marks start again from what is used now.
    pub(super) fn reset_peaks(&self) -> Result<()> {
        use sys::CUmemPool_attribute::*;
        self.gpu.enter()?;
        for attribute in [CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH] {
            let mut zero = 0u64;
            // SAFETY: these attributes are 64-bit numbers, and may only be set to zero.
            unsafe {
                sys::cuMemPoolSetAttribute(self.pool, attribute, (&raw mut zero).cast::<c_void>())
            }
            .check("cuMemPoolSetAttribute")?;
        }
        Ok(())
    }

    /// Every byte becomes `value`.
    pub(super) fn fill_bytes(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.gpu.enter()?;
        // SAFETY: callers give a range of a buffer of this stream.
        unsafe { sys::cuMemsetD8Async(address, value, bytes, self.raw) }.check("cuMemsetD8Async")
    }

    /// Copies from the host, by way of pinned memory. When it returns, `data` has been read.
    pub(super) fn write(&self, address: u64, data: &[u8]) -> Result<()> {
        self.gpu.enter()?;
        let mut held = self.staging.lock();
        let staging = Staging::ready(&mut held)?;
        for (piece, data) in data.chunks(HALF).enumerate() {
            let which = piece % 2;
            staging.wait(which)?;
            let half = &mut staging.half(which)[..data.len()];
            half.copy_from_slice(data);
            // SAFETY: pinned memory of that length, and a range of the buffer; the half is not
            // touched again before it has been waited for.
            unsafe {
                let (to, from) = (address + (piece * HALF) as u64, half.as_ptr().cast());
                sys::cuMemcpyHtoDAsync_v2(to, from, data.len(), self.raw)
            }
            .check("cuMemcpyHtoDAsync")?;
            staging.record(which, self.raw)?;
        }
        Ok(())
    }

    /// Copies to the host, by way of pinned memory, after everything enqueued before.
    pub(super) fn read(&self, address: u64, data: &mut [u8]) -> Result<()> {
        self.gpu.enter()?;
        // The piece before, which is on its way while the next is asked for.
        let mut held = self.staging.lock();
        let staging = Staging::ready(&mut held)?;
        let mut pending: Option<(usize, usize, usize)> = None;
        for (piece, offset) in (0..data.len()).step_by(HALF).enumerate() {
            let (which, length) = (piece % 2, HALF.min(data.len() - offset));
            let half = staging.half(which);
            // SAFETY: as in `write`, the other way round.
            unsafe {
                let to = half.as_mut_ptr().cast();
                sys::cuMemcpyDtoHAsync_v2(to, address + offset as u64, length, self.raw)
            }
            .check("cuMemcpyDtoHAsync")?;
            staging.record(which, self.raw)?;
            if let Some((which, offset, length)) = pending.replace((which, offset, length)) {
                staging.wait(which)?;
                data[offset..offset + length].copy_from_slice(&staging.half(which)[..length]);
            }
        }
        if let Some((which, offset, length)) = pending {
            staging.wait(which)?;
            data[offset..offset + length].copy_from_slice(&staging.half(which)[..length]);
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A driver that already failed has nothing left to free, so results are not looked at.
        let _ = self.synchronize();
        *self.staging.lock() = None;
        // SAFETY: every buffer holds the stream, so none is left; both are this device's own.
        unsafe {
            sys::cuMemPoolDestroy(self.pool);
            sys::cuStreamDestroy_v2(self.raw);
        }
    }
}

fn create_pool(ordinal: usize) -> Result<sys::CUmemoryPool> {
    // SAFETY: the struct is plain numbers, for which zero means the default.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal as i32;
    let mut pool = std::ptr::null_mut();
    // SAFETY: a valid place for the result, and properties that the driver only reads.
    unsafe { sys::cuMemPoolCreate(&mut pool, &properties) }.check("cuMemPoolCreate")?;
    // Freed memory stays in the pool until `trim`: going to the system at every step costs time.
    let mut keep = u64::MAX;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number.
    unsafe { sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast::<c_void>()) }
        .check("cuMemPoolSetAttribute")?;
    Ok(pool)
}

/// A block of one device's memory.
pub(super) struct DeviceBuffer {
    stream: Arc<Stream>,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Buffer for DeviceBuffer {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address != 0 && self.stream.gpu.enter().is_ok() {
            // SAFETY: the address is from this pool, and everything enqueued that uses it comes
            // before this in the stream's order.
            unsafe { sys::cuMemFreeAsync(self.address, self.stream.raw) };
        }
    }
}

fn buffer(storage: &Storage) -> &DeviceBuffer {
    let buffer = storage.buffer().as_any().downcast_ref();
    buffer.expect("a CUDA device is only given tensors of its own")
}

/// Address of a tensor's first element, for kernels: they read pinned memory of the host, too.
pub(super) fn pointer(x: &Tensor) -> u64 {
    let skipped = (x.offset() * x.dtype().size()) as u64;
    if let Some((pinned, _)) = pinned(x) {
        return pinned.address() + skipped;
    }
    let block = buffer(x.storage());
    debug_assert!((x.offset() + usize::from(x.is_uniform())) * x.dtype().size() <= block.bytes());
    block.address() + skipped
}

/// Address of a workspace; null where there is none.
pub(super) fn workspace(storage: Option<&Storage>) -> u64 {
    storage.map_or(0, |storage| buffer(storage).address())
}

/// Bytes of half the staging memory of a stream.
const HALF: usize = 4 << 20;

/// Pinned host memory in two halves: one is copied by the host while the other is by the GPU.
struct Staging {
    start: NonNull<u8>,
    events: [sys::CUevent; 2],
    _counted: Reservation,
}

// SAFETY: the memory is owned, and events may be used from any thread.
unsafe impl Send for Staging {}

impl Staging {
    /// The staging memory, taken at the first copy.
    fn ready(held: &mut Option<Staging>) -> Result<&mut Staging> {
        if held.is_none() {
            *held = Some(Staging::new()?);
        }
        held.as_mut().ok_or_else(|| Error::driver("capgrad", "staging memory"))
    }

    fn new() -> Result<Staging> {
        let host = Device::cpu();
        let bytes = 2 * HALF as u64;
        let counted = host.meter().reserve(bytes, Purpose::Other, Taker::of("staging"))?;
        let mut start = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cuMemHostAlloc(&mut start, 2 * HALF, 0) }.check("cuMemHostAlloc")?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| Error::driver("capgrad", "pinned memory"))?;
        let events = [std::ptr::null_mut(); 2];
        let mut staging = Staging { start, events, _counted: counted };
        for event in &mut staging.events {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: a valid place for the result.
            unsafe { sys::cuEventCreate(event, flags) }.check("cuEventCreate")?;
        }
        // SAFETY: the block is this long; zeros give its bytes a value before slices are made.
        unsafe { start.as_ptr().write_bytes(0, 2 * HALF) };
        Ok(staging)
    }

    fn half(&mut self, which: usize) -> &mut [u8] {
        // SAFETY: the block has two halves of this length, borrowed together exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(which * HALF), HALF) }
    }

    /// Marks the place in the stream after which a half is free.
    fn record(&self, which: usize, stream: sys::CUstream) -> Result<()> {
        // SAFETY: both belong to the current context.
        unsafe { sys::cuEventRecord(self.events[which], stream) }.check("cuEventRecord")
    }

    /// Waits until a half is free; one that was never used is.
    fn wait(&self, which: usize) -> Result<()> {
        // SAFETY: the event is valid.
        unsafe { sys::cuEventSynchronize(self.events[which]) }.check("cuEventSynchronize")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has waited for the stream or holds it no longer; the block and
        // the events are its own.
        unsafe {
            for event in self.events {
                if !event.is_null() {
                    sys::cuEventSynchronize(event);
                    sys::cuEventDestroy_v2(event);
                }
            }
            sys::cuMemFreeHost(self.start.as_ptr().cast());
        }
    }
}
