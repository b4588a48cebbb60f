//! Host memory: aligned blocks behind a lock, read and written as slices of numbers.

use crate::device::Buffer;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::tensor::{Storage, Tensor};
use parking_lot::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::alloc::Layout;
use std::any::Any;
use std::ptr::NonNull;

/// Blocks begin at a cache line, which is also the widest vector there is.
const ALIGN: usize = 64;

/// A huge page. The first touch of fresh memory costs a fault a page, which for large results takes
/// longer than many of the operations that write them; with huge pages it is a fault every 2 MiB.
const HUGE_PAGE: usize = 2 << 20;

/// Asks the system for huge pages, where it has them.
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is a block of our own, which begins at a page; the advice changes nothing in
    // it. A refusal only means small pages.
    unsafe {
        libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// One block of host memory. The lock lets an optimiser change a parameter in place while other
/// threads hold the same tensor.
pub(super) struct HostBuffer(RwLock<Block>);

struct Block {
    start: NonNull<u8>,
    bytes: usize,
    /// What the block was allocated with: [`ALIGN`], a huge page, or an element's for a vector that
    /// was taken over.
    align: usize,
}

// SAFETY: a block owns its memory and has no tie to the thread that made it.
unsafe impl Send for Block {}
// SAFETY: a shared block only gives shared slices of plain numbers.
unsafe impl Sync for Block {}

impl Block {
    fn new(bytes: usize) -> Result<Block> {
        let refused = || Error::OutOfMemory { device: "cpu".into(), requested: bytes as u64 };
        let huge = cfg!(target_os = "linux") && bytes >= 2 * HUGE_PAGE;
        let align = if huge { HUGE_PAGE } else { ALIGN };
        let layout = Layout::from_size_align(bytes, align).map_err(|_| refused())?;
        if bytes == 0 {
            return Ok(Block { start: NonNull::<Aligned>::dangling().cast(), bytes, align: ALIGN });
        }
        // SAFETY: the layout has a size over 0.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(refused)?;
        // SAFETY: the instructions are empty. As far as the compiler can know they have written
        // the block, so its bytes have some value from here on and slices over it are sound; a
        // pass that writes zeros would cost as much as many of the operations themselves.
        unsafe {
            std::arch::asm!("/* {0} */", in(reg) start.as_ptr(), options(nostack, preserves_flags));
        }
        if huge {
            advise_huge_pages(start, bytes);
        }
        Ok(Block { start, bytes, align })
    }

    /// Takes over a vector's memory.
    fn from_vec<T: Element>(data: Vec<T>) -> Block {
        let data = Box::leak(data.into_boxed_slice());
        let (bytes, align) = (size_of_val(data), align_of::<T>());
        Block { start: NonNull::from(data).cast(), bytes, align }
    }

    fn slice<T: Element>(&self) -> &[T] {
        // SAFETY: the block is `bytes` long and aligned for `T` (a vector that was taken over is only
        // read as what it held, or as the bytes of that), its bytes have values
        // (see `new`), and every bit pattern is a value of `T: Pod`.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<T>())
        }
    }

    fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: as in `slice`, and the block is borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / size_of::<T>())
        }
    }
}

#[repr(align(64))]
struct Aligned;

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        if let Ok(layout) = Layout::from_size_align(self.bytes, self.align) {
            // SAFETY: the block was allocated with this layout, by `new` or as the boxed slice that
            // `from_vec` took over, and nothing else frees it.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl HostBuffer {
    pub(super) fn new(bytes: usize, poison: bool) -> Result<HostBuffer> {
        let mut block = Block::new(bytes)?;
        if poison {
            // All ones is NaN in every float dtype and -1 in the integers.
            let odd = bytes % 4;
            block.slice_mut::<i32>().fill(-1);
            block.slice_mut::<half::f16>()[(bytes - odd) / 2..].fill(half::f16::NAN);
        }
        Ok(HostBuffer(RwLock::new(block)))
    }
}

impl HostBuffer {
    /// A block that is the `Vec<T>` in `data`.
    pub(super) fn adopt<T: Element>(data: Box<dyn Any + Send + Sync>) -> HostBuffer {
        let data = data.downcast::<Vec<T>>();
        let data = data.expect("a tensor's vector holds elements of its dtype");
        HostBuffer(RwLock::new(Block::from_vec(*data)))
    }
}

impl Buffer for HostBuffer {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn host(storage: &Storage) -> &HostBuffer {
    let buffer = storage.buffer().as_any().downcast_ref();
    buffer.expect("a CPU device is only given tensors of its own")
}

/// A tensor's stored elements, to be read: all of them, or the one of a uniform tensor.
pub(super) fn read<T: Element>(x: &Tensor) -> MappedRwLockReadGuard<'_, [T]> {
    debug_assert_eq!(x.dtype(), T::DTYPE);
    let length = if x.is_uniform() { 1 } else { x.elements() };
    // Recursive: an operation may read one tensor as two of its operands.
    RwLockReadGuard::map(host(x.storage()).0.read_recursive(), |block| {
        &block.slice()[x.offset()..x.offset() + length]
    })
}

/// A tensor's elements, to be written.
pub(super) fn write<T: Element>(x: &Tensor) -> MappedRwLockWriteGuard<'_, [T]> {
    debug_assert_eq!(x.dtype(), T::DTYPE);
    RwLockWriteGuard::map(host(x.storage()).0.write(), |block| {
        &mut block.slice_mut()[x.offset()..x.offset() + x.elements()]
    })
}

/// The bytes of a workspace.
pub(super) fn workspace(storage: &Storage) -> MappedRwLockWriteGuard<'_, [u8]> {
    RwLockWriteGuard::map(host(storage).0.write(), |block| {
        let words = block.slice_mut::<i64>();
        let (start, bytes) = (words.as_mut_ptr(), block.bytes);
        // SAFETY: the whole block, as bytes, borrowed exclusively through the lock.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), bytes) }
    })
}
