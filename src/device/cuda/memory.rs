//! The one door to a GPU's memory: a stream-ordered pool a device, and buffers that go back to it in
//! the order of its stream.
//!
//! The pool is the workspace arena too: a workspace is taken before its launch and given back right
//! after it, in stream order, so the next one is the same memory, nothing waits, and what is held is
//! never more than the workspaces that are in use.

use super::error::Check;
use super::event::OtherUses;
use super::gpu::Gpu;
use super::pinned::pinned;
use super::staging::Staging;
use crate::device::Buffer;
use crate::error::{Error, Result};
use crate::memory::DriverMemory;
use crate::tensor::{Storage, Tensor};
use cudarc::driver::{result, sys};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A stream and the pool whose memory is used in its order.
pub(super) struct Stream {
    pub(super) gpu: Arc<Gpu>,
    pub(super) raw: sys::CUstream,
    pool: sys::CUmemoryPool,
    pub(super) staging: Mutex<Option<Staging>>,
    /// GPUs that were asked whether they reach this pool.
    asked: Mutex<SmallVec<[(usize, bool); 4]>>,
}

// SAFETY: streams and pools of the driver may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(gpu: Arc<Gpu>) -> Result<Arc<Stream>> {
        let _entered = gpu.enter()?;
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
        Ok(Arc::new(Stream { gpu, raw, pool, staging: Mutex::new(None), asked: Mutex::default() }))
    }

    /// Memory of `bytes` bytes, holding anything.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer> {
        let mut address = 0;
        if bytes > 0 {
            let _entered = self.gpu.enter()?;
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
        Ok(DeviceBuffer { stream: self.clone(), address, bytes, uses: OtherUses::default() })
    }

    pub(super) fn synchronize(&self) -> Result<()> {
        let _entered = self.gpu.enter()?;
        // SAFETY: the stream is this device's.
        unsafe { sys::cuStreamSynchronize(self.raw) }.check("cuStreamSynchronize")
    }

    /// Gives cached memory back to the GPU.
    pub(super) fn trim(&self) -> Result<()> {
        let _entered = self.gpu.enter()?;
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
        let _entered = self.gpu.enter()?;
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
        let _entered = self.gpu.enter()?;
        // SAFETY: callers give a range of a buffer of this stream.
        unsafe { sys::cuMemsetD8Async(address, value, bytes, self.raw) }.check("cuMemsetD8Async")
    }

    /// Lets the GPU `ordinal` reach this pool's memory, if it can at all, and says whether it does.
    pub(super) fn allow(&self, ordinal: usize) -> Result<bool> {
        let mut asked = self.asked.lock();
        if let Some(&(_, reaches)) = asked.iter().find(|&&(other, _)| other == ordinal) {
            return Ok(reaches);
        }
        let device = |ordinal: usize| {
            result::device::get(ordinal as c_int)
                .map_err(|error| Error::driver("cuDeviceGet", format!("{:?}", error.0)))
        };
        let mut reaches = 0;
        let (other, own) = (device(ordinal)?, device(self.gpu.properties.ordinal)?);
        // SAFETY: a valid place for the result, and devices that the driver gave.
        unsafe { sys::cuDeviceCanAccessPeer(&mut reaches, other, own) }
            .check("cuDeviceCanAccessPeer")?;
        if reaches != 0 {
            // SAFETY: the struct is plain numbers.
            let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
            access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            access.location.id = ordinal as i32;
            access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            // SAFETY: the pool is this device's, and one description is given.
            unsafe { sys::cuMemPoolSetAccess(self.pool, &access, 1) }
                .check("cuMemPoolSetAccess")?;
        }
        asked.push((ordinal, reaches != 0));
        Ok(reaches != 0)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A driver that already failed has nothing left to free, so results are not looked at.
        let _entered = self.gpu.enter();
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
    uses: OtherUses,
}

impl DeviceBuffer {
    pub(super) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// By other streams than its own.
    pub(super) fn uses(&self) -> &OtherUses {
        &self.uses
    }

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
        self.uses.settle(self.stream.raw);
        if self.address != 0
            && let Ok(_entered) = self.stream.gpu.enter()
        {
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

/// The block of a tensor in a GPU's memory, whichever device's.
pub(super) fn device_buffer(x: &Tensor) -> Option<&DeviceBuffer> {
    x.storage().buffer().as_any().downcast_ref()
}

/// Address of a tensor's first element, for what is enqueued on its device's stream: kernels read
/// pinned memory of the host, too. Copies of it that are under way on other streams come first.
pub(super) fn pointer(x: &Tensor) -> u64 {
    let skipped = (x.offset() * x.dtype().size()) as u64;
    if let Some((pinned, _)) = pinned(x) {
        return pinned.address() + skipped;
    }
    let block = buffer(x.storage());
    block.uses.settle(block.stream.raw);
    debug_assert!((x.offset() + usize::from(x.is_uniform())) * x.dtype().size() <= block.bytes());
    block.address() + skipped
}

/// Address of a workspace; null where there is none.
pub(super) fn workspace(storage: Option<&Storage>) -> u64 {
    storage.map_or(0, |storage| buffer(storage).address())
}
