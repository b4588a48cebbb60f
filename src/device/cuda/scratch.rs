//! The memory that a device keeps for partial sums, and as cuBLAS's smallest workspace: every operation
//! uses it in turn. One that takes several launches holds it from the first to the last, so that another
//! thread's come before or after all of them in the stream.

use super::Cuda;
use super::memory::{DeviceBuffer, Stream};
use crate::error::Result;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::sync::Arc;

/// Bytes of a device's scratch.
pub(super) const SCRATCH_BYTES: usize = 1 << 20;

pub(super) struct Scratch {
    block: DeviceBuffer,
    /// Reentrant, since products are parts of other operations.
    turn: ReentrantMutex<()>,
}

/// The scratch, for as long as this is held.
pub(super) struct Held<'a> {
    address: u64,
    _turn: ReentrantMutexGuard<'a, ()>,
}

impl Scratch {
    pub(super) fn new(stream: &Arc<Stream>) -> Result<Scratch> {
        let block = stream.allocate(SCRATCH_BYTES)?;
        Ok(Scratch { block, turn: ReentrantMutex::new(()) })
    }
}

impl Held<'_> {
    /// Of [`SCRATCH_BYTES`] bytes.
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Cuda {
    /// The scratch. What is enqueued with its address is enqueued while this is held.
    pub(super) fn scratch(&self) -> Held<'_> {
        Held { _turn: self.scratch.turn.lock(), address: self.scratch.block.address() }
    }
}
