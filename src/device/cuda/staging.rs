//! Copies between ordinary memory of the host and a GPU, by way of pinned memory. Several threads take
//! pieces in turn, each with two places of pinned memory of its own: while the GPU copies one, the thread
//! copies the other. One thread alone moves a tenth of what a GPU's link does.

use super::error::Check;
use super::event::Event;
use super::gpu::Gpu;
use super::memory::Stream;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::{Purpose, Reservation, Taker};
use cudarc::driver::sys;
use parking_lot::Mutex;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

/// Bytes of a place, where the cap leaves so much. A multiple of [`LEAST`].
const PIECE: usize = 3 << 19;
/// Bytes of a place, unless the cap leaves even less to two of them.
const SMALL: usize = 256 << 10;
/// Less than this goes without.
const LEAST: usize = 64 << 10;
/// Threads that copy at most: twice as many are slower, for what they enqueue is enqueued in turn.
const THREADS: usize = 8;

/// The threads that copy. A pool of their own: were they the caller's, all of them could come to wait for
/// the lock of a copy that waits for them.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let named = ThreadPoolBuilder::new().thread_name(|number| format!("capgrad-copy-{number}"));
        named.num_threads(cores.min(THREADS)).build().ok()
    });
    POOL.as_ref()
}

/// How many there are.
fn threads() -> usize {
    pool().map_or(1, ThreadPool::current_num_threads)
}

/// Pinned memory of the host in places of one size, which the host's meter counts.
pub(super) struct Pinned {
    start: NonNull<u8>,
    /// Bytes of a place.
    pub(super) piece: usize,
    /// How many there are.
    pub(super) count: usize,
    _counted: Reservation,
}

// SAFETY: the memory is owned.
unsafe impl Send for Pinned {}

impl Pinned {
    /// How many places of how many bytes `cap` bytes are cut into for so many threads, two for each, if
    /// they are enough.
    fn sizes(cap: u64, threads: usize) -> Option<(usize, usize)> {
        let bytes = usize::try_from(cap).unwrap_or(usize::MAX).min(2 * THREADS * PIECE);
        let threads = threads.min(bytes / 2 / SMALL).max(1);
        let piece = (bytes / 2 / threads).min(PIECE) / LEAST * LEAST;
        (piece > 0).then_some((2 * threads, piece))
    }

    /// As much as is useful to as many threads as there may be, within `cap` bytes; `None` where that, or
    /// the host's limit, leaves too little.
    pub(super) fn within(cap: u64) -> Result<Option<Pinned>> {
        Pinned::sizes(cap, threads()).map_or(Ok(None), |(count, piece)| Pinned::new(count, piece))
    }

    /// Whether it is what [`Pinned::within`] would give.
    pub(super) fn suits(&self, cap: u64) -> bool {
        Pinned::sizes(cap, threads()) == Some((self.count, self.piece))
    }

    /// `None` where the host's limit leaves too little.
    pub(super) fn new(count: usize, piece: usize) -> Result<Option<Pinned>> {
        let bytes = count * piece;
        let (host, taker) = (Device::cpu(), Taker::of("staging"));
        let Ok(counted) = host.meter().reserve(bytes as u64, Purpose::Other, taker) else {
            return Ok(None);
        };
        let mut start = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cuMemHostAlloc(&mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .check("cuMemHostAlloc")?;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| Error::driver("capgrad", "pinned memory"))?;
        let pinned = Pinned { start, piece, count, _counted: counted };
        // SAFETY: the block is this long; zeros give its bytes a value before slices are made.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        Ok(Some(pinned))
    }

    /// A place that nothing copies.
    #[cfg(feature = "nccl")]
    pub(super) fn slice(&mut self, which: usize) -> &mut [u8] {
        // SAFETY: the place has this length, and all are borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address(which).as_ptr(), self.piece) }
    }

    /// Address of a place, the same for the host and the GPUs.
    pub(super) fn address(&self, which: usize) -> NonNull<u8> {
        debug_assert!(which < self.count);
        // SAFETY: the block has that many places.
        unsafe { self.start.add(which * self.piece) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: whoever holds it has waited for the copies; the block is its own.
        unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
    }
}

/// Copies past the caches: what is written is not read from memory first, and the pinned places stay in
/// the caches, where the link puts them. Lengths are equal.
#[cfg(target_arch = "x86_64")]
fn copy_to_memory(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // Four stores fill a line of the cache.
    const LINE: usize = 4 * size_of::<__m128i>();
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let (to_head, to) = to.split_at_mut(head);
    let (from_head, from) = from.split_at(head);
    to_head.copy_from_slice(from_head);
    let (mut to, mut from) = (to.chunks_exact_mut(LINE), from.chunks_exact(LINE));
    for (to, from) in std::iter::zip(&mut to, &mut from) {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: every x86-64 has these instructions; both sides are LINE bytes long, and the first is
        // at a multiple of that.
        unsafe {
            let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, value) in parts.into_iter().enumerate() {
                _mm_stream_si128(to.add(part), value);
            }
        }
    }
    to.into_remainder().copy_from_slice(from.remainder());
    // SAFETY: as above. Such stores are not ordered with others before this.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_to_memory(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// A place of pinned memory, and until when the GPU copies it.
struct Place {
    start: NonNull<u8>,
    bytes: usize,
    done: Event,
}

// SAFETY: the bytes are this place's alone, for as long as its `Staging` holds the block.
unsafe impl Send for Place {}

impl Place {
    /// Its bytes, once the GPU does not copy them any more.
    fn free(&mut self) -> Result<&mut [u8]> {
        self.done.wait()?;
        // SAFETY: the place has this length and is borrowed exclusively; the GPU is done with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) })
    }
}

/// What one thread copies by way of.
type Lane = [Place; 2];

/// A stream's staging memory.
pub(super) struct Staging {
    lanes: Vec<Lane>,
    pinned: Pinned,
}

impl Staging {
    fn new(gpu: &Arc<Gpu>, pinned: Pinned) -> Result<Staging> {
        let place = |which: usize| -> Result<Place> {
            let (start, done) = (pinned.address(which), Event::new(gpu)?);
            Ok(Place { start, bytes: pinned.piece, done })
        };
        let lane = |number: usize| Ok([place(2 * number)?, place(2 * number + 1)?]);
        let lanes = (0..pinned.count / 2).map(lane).collect::<Result<_>>()?;
        Ok(Staging { lanes, pinned })
    }

    /// What is held already, if `cap` allows it, else as much as it does; `None` for fewer bytes than
    /// are worth it.
    fn within<'a>(
        held: &'a mut Option<Staging>,
        gpu: &Arc<Gpu>,
        bytes: usize,
        cap: u64,
    ) -> Result<Option<&'a mut Staging>> {
        if bytes < LEAST {
            return Ok(None);
        }
        if held.as_ref().is_none_or(|staging| !staging.pinned.suits(cap)) {
            // Given back before more is taken.
            *held = None;
            *held = Pinned::within(cap)?.map(|pinned| Staging::new(gpu, pinned)).transpose()?;
        }
        Ok(held.as_mut())
    }

    /// Has as many threads as `bytes` are worth copy pieces by turns.
    fn each_lane(
        &mut self,
        bytes: usize,
        copy: impl Fn(&mut Lane) -> Result<()> + Send + Sync,
    ) -> Result<()> {
        // A worker of a caller's pool does other tasks of that while it waits, and could come to one that
        // needs the lock that it holds.
        let pool = pool().filter(|_| rayon::current_thread_index().is_none());
        let most = if pool.is_some() { self.lanes.len() } else { 1 };
        match (&mut self.lanes[..bytes.div_ceil(2 * self.pinned.piece).clamp(1, most)], pool) {
            (lanes @ [_, _, ..], Some(pool)) => pool.install(|| {
                lanes.par_iter_mut().with_max_len(1).map(copy).reduce(|| Ok(()), Result::and)
            }),
            (lanes, _) => lanes.first_mut().map_or(Ok(()), copy),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for place in self.lanes.iter_mut().flatten() {
            // A driver that failed has nothing under way.
            let _ = place.done.wait();
        }
    }
}

impl Stream {
    /// Enqueues a copy to a range of one of its buffers. The host's side is not to be touched before it
    /// is over.
    fn to_device(&self, address: u64, data: &[u8]) -> Result<()> {
        // SAFETY: callers give such a range, and wait before they touch the host's side.
        unsafe { sys::cuMemcpyHtoDAsync_v2(address, data.as_ptr().cast(), data.len(), self.raw) }
            .check("cuMemcpyHtoDAsync")
    }

    /// The same, the other way round.
    fn to_host(&self, address: u64, data: &mut [u8]) -> Result<()> {
        let to = data.as_mut_ptr().cast();
        // SAFETY: as in `to_device`.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, data.len(), self.raw) }
            .check("cuMemcpyDtoHAsync")
    }

    /// A method, which threads can call: the field is a plain pointer.
    fn stream(&self) -> sys::CUstream {
        self.raw
    }

    /// Copies from the host, by way of at most `cap` bytes of pinned memory. When it returns, `data`
    /// has been read.
    pub(super) fn write(&self, address: u64, data: &[u8], cap: u64) -> Result<()> {
        let _entered = self.gpu.enter()?;
        let mut held = self.staging.lock();
        let Some(staging) = Staging::within(&mut held, &self.gpu, data.len(), cap)? else {
            if data.is_empty() {
                return Ok(());
            }
            self.to_device(address, data)?;
            return self.synchronize();
        };
        let piece = staging.pinned.piece;
        let pieces = Mutex::new(data.chunks(piece).enumerate());
        let copied = staging.each_lane(data.len(), |lane| {
            let _entered = self.gpu.enter()?;
            for turn in 0.. {
                let Some((at, data)) = pieces.lock().next() else { break };
                let place = &mut lane[turn % 2];
                let pinned = &mut place.free()?[..data.len()];
                pinned.copy_from_slice(data);
                self.to_device(address + (at * piece) as u64, pinned)?;
                place.done.mark(self.stream())?;
            }
            Ok(())
        });
        // A copy that no event marks must be over before its place is used again.
        copied.inspect_err(|_| drop(self.synchronize()))
    }

    /// Copies to the host, by way of at most `cap` bytes of pinned memory, after everything enqueued
    /// before.
    pub(super) fn read(&self, address: u64, data: &mut [u8], cap: u64) -> Result<()> {
        let _entered = self.gpu.enter()?;
        let mut held = self.staging.lock();
        let Some(staging) = Staging::within(&mut held, &self.gpu, data.len(), cap)? else {
            if data.is_empty() {
                return Ok(());
            }
            self.to_host(address, data)?;
            return self.synchronize();
        };
        let (piece, bytes) = (staging.pinned.piece, data.len());
        let pieces = Mutex::new(data.chunks_mut(piece).enumerate());
        let copied = staging.each_lane(bytes, |lane| {
            let _entered = self.gpu.enter()?;
            // The piece before, which the thread copies while the next is on its way.
            let mut before: Option<(usize, &mut [u8])> = None;
            for turn in 0.. {
                let next = pieces.lock().next();
                let next = match next {
                    None => None,
                    Some((at, data)) => {
                        let place = &mut lane[turn % 2];
                        let pinned = &mut place.free()?[..data.len()];
                        self.to_host(address + (at * piece) as u64, pinned)?;
                        place.done.mark(self.stream())?;
                        Some((turn % 2, data))
                    }
                };
                let over = next.is_none();
                if let Some((which, data)) = std::mem::replace(&mut before, next) {
                    copy_to_memory(data, &lane[which].free()?[..data.len()]);
                }
                if over {
                    break;
                }
            }
            Ok(())
        });
        copied.inspect_err(|_| drop(self.synchronize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_past_the_caches_are_whole() {
        let from: Vec<u8> = (0..1000u32).map(|i| ((i * 37) >> 2) as u8 | 1).collect();
        for start in [0, 1, 15, 16, 63, 64] {
            for len in [0, 1, 63, 64, 65, 127, 128, 500, 900] {
                let mut to = vec![0; 1000];
                copy_to_memory(&mut to[start..start + len], &from[7..7 + len]);
                assert_eq!(to[start..start + len], from[7..7 + len], "{start}, {len}");
                let rest = to[..start].iter().chain(&to[start + len..]);
                assert!(rest.copied().all(|byte| byte == 0), "{start}, {len}");
            }
        }
    }

    #[test]
    fn places_fit_the_cap_and_use_most_of_it() {
        let mib = 1 << 20;
        for threads in [1, 2, 3, 8] {
            for cap in (0..1000).map(|n| n * 40_009) {
                let Some((count, piece)) = Pinned::sizes(cap, threads) else {
                    assert!(cap < 2 * LEAST as u64);
                    continue;
                };
                assert!(
                    count.is_multiple_of(2) && count <= 2 * threads && piece.is_multiple_of(LEAST)
                );
                assert!((count * piece) as u64 <= cap, "{cap}: {count} of {piece}");
                assert!(piece >= SMALL || count == 2, "{cap}: {count} of {piece}");
            }
        }
        assert_eq!(Pinned::sizes(u64::MAX, 8), Some((16, 3 * mib / 2)));
        assert_eq!(Pinned::sizes(1 << 20, 8), Some((4, mib / 4)));
    }
}
