//! Pinned memory of the host in which a matrix stays, and the copies from there that overlap with
//! kernels.

use super::error::Check;
use super::event::{Event, SideStream};
use super::gpu::Gpu;
use super::memory::Stream;
use crate::device::Buffer;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use cudarc::driver::sys;
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// Pinned memory of the host that the device reads by itself. It begins as zeros.
pub(super) struct PinnedBuffer {
    stream: Arc<Stream>,
    /// Address of its first byte, the same for the host and the device.
    start: usize,
    bytes: usize,
}

impl PinnedBuffer {
    pub(super) fn new(stream: Arc<Stream>, bytes: usize) -> Result<PinnedBuffer> {
        let _entered = stream.gpu.enter()?;
        let mut start = std::ptr::null_mut();
        if bytes > 0 {
            // SAFETY: a valid place for the result.
            unsafe { sys::cuMemHostAlloc(&mut start, bytes, 0) }.check("cuMemHostAlloc")?;
            // SAFETY: the block has this length and is nobody else's.
            unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(PinnedBuffer { stream, start: start as usize, bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.start as u64
    }

    /// The address of `length` bytes from `offset` on.
    fn range(&self, offset: usize, length: usize) -> Result<*mut u8> {
        let end = offset.checked_add(length).filter(|&end| end <= self.bytes);
        end.ok_or_else(|| Error::driver("capgrad", "a range outside pinned memory"))?;
        Ok((self.start + offset) as *mut u8)
    }

    /// Copies in, once nothing that was enqueued can read it any more.
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        let to = self.range(offset, data.len())?;
        self.stream.synchronize()?;
        // SAFETY: the range lies in the block; `data` is not in it, as only this writes to it and
        // slices of it are given out for offsets alone.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    pub(super) fn read(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        let from = self.range(offset, data.len())?;
        // SAFETY: the range lies in the block, and the device only reads it.
        unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }
}

impl Buffer for PinnedBuffer {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // Kernels and copies that were enqueued may still read it.
        if self.start != 0 && self.stream.synchronize().is_ok() {
            // SAFETY: the block is its own.
            unsafe { sys::cuMemFreeHost(self.start as *mut c_void) };
        }
    }
}

/// A stream of copies to two buffers in turn, and what orders it with a stream that computes: a buffer
/// is filled while kernels read the other.
pub(super) struct Copies {
    stream: SideStream,
    /// By buffer: when the kernels that read it are done.
    released: [Option<Arc<Event>>; 2],
}

impl Copies {
    pub(super) fn new(gpu: Arc<Gpu>) -> Result<Copies> {
        Ok(Copies { stream: SideStream::new(gpu)?, released: [None, None] })
    }

    /// Both buffers are free once `compute` has come here.
    pub(super) fn begin(&mut self, compute: sys::CUstream) -> Result<()> {
        (0..2).try_for_each(|buffer| self.release(buffer, compute))
    }

    /// Copies pieces (to, from, bytes skipped there, bytes) to a buffer once it is free; what is
    /// enqueued on `compute` from now on runs when they are there.
    pub(super) fn copy(
        &self,
        buffer: usize,
        pieces: &[(u64, u64, usize, usize)],
        compute: sys::CUstream,
    ) -> Result<()> {
        let _entered = self.stream.gpu.enter()?;
        if let Some(released) = &self.released[buffer] {
            released.before(self.stream.raw)?;
        }
        for &(to, from, skipped, bytes) in pieces.iter().filter(|piece| piece.3 > 0) {
            let from = (from as usize + skipped) as *const c_void;
            // SAFETY: callers give ranges of a workspace and of pinned memory that outlive what is
            // enqueued: the one is given back in the order of `compute`, the other waits for it.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, self.stream.raw) }
                .check("cuMemcpyHtoDAsync")?;
        }
        self.stream.event()?.before(compute)
    }

    /// A buffer is free once `compute` has come here.
    pub(super) fn release(&mut self, buffer: usize, compute: sys::CUstream) -> Result<()> {
        self.released[buffer] = Some(Event::record(&self.stream.gpu, compute)?);
        Ok(())
    }

    /// Waits for all copies.
    pub(super) fn synchronize(&self) {
        // A driver that failed before has nothing under way.
        let _ = self.stream.synchronize();
    }
}

/// The buffer of a tensor that lies in pinned memory of the host, and where it begins there.
pub(super) fn pinned(x: &Tensor) -> Option<(&PinnedBuffer, usize)> {
    let buffer = x.storage().buffer().as_any().downcast_ref()?;
    Some((buffer, x.offset() * x.dtype().size()))
}

/// The elements of a whole tensor in pinned memory, which nobody changes while it is read.
pub(super) fn host_slice<T: bytemuck::Pod>(x: &Tensor) -> Option<&[T]> {
    let (buffer, offset) = pinned(x)?;
    (x.dtype().size() == size_of::<T>() && offset + x.bytes() <= buffer.bytes).then(|| {
        // SAFETY: the range lies in the buffer, which is aligned to a page and whose bytes all have
        // values; any bytes are a `T`. Such tensors are written once, before a matrix is made of
        // them.
        unsafe {
            let start = (buffer.start as *const u8).add(offset).cast();
            std::slice::from_raw_parts(start, x.elements())
        }
    })
}
