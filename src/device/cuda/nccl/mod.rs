//! Ranks whose GPUs NCCL joins: one process for each. Its communicator is asked without blocking, so
//! that a peer that died, or does not come, is an error within the time-out; it is aborted then, which ends
//! what it has under way on the GPU.

mod functions;

use super::Cuda;
use super::error::Check;
use super::event::{Event, SideStream};
use super::gpu::Gpu;
use super::memory::{DeviceBuffer, device_buffer, pointer};
use super::staging::Pinned;
use crate::device::Device;
use crate::distributed::{Collective, Group, Ongoing, ReduceOp, Rendezvous, Transport};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Purpose, Reservation, Taker};
use crate::tensor::Tensor;
use cudarc::driver::sys;
use cudarc::nccl::sys::{
    ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use functions::Functions;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers that [`Transport::sum`] adds at a time.
const NUMBERS: usize = 4096;
/// How long news of a rank that died may take, after NCCL has noticed that something is wrong.
const TELLING: Duration = Duration::from_millis(500);
/// How long a communicator may take to end in order.
const ENDING: Duration = Duration::from_secs(5);

/// One rank.
struct Nccl(Arc<Rank>);

struct Rank {
    functions: &'static Functions,
    rank: usize,
    world_size: usize,
    timeout: Duration,
    group: Group,
    gpu: Arc<Gpu>,
    stream: SideStream,
    communicator: Mutex<Raw>,
    numbers: Mutex<Numbers>,
    description: String,
    charged: Mutex<Option<Reservation>>,
}

/// NCCL's handle, and why it is none any more.
struct Raw {
    handle: ncclComm_t,
    ended: Option<String>,
}

// SAFETY: NCCL's communicators may be used from any thread, by one at a time.
unsafe impl Send for Raw {}

/// Where numbers of the host are added up.
struct Numbers {
    pinned: Pinned,
    on_gpu: DeviceBuffer,
}

/// Joins the ranks with the GPU of `cuda`, which callers hold as `device`.
pub(super) fn join(cuda: &Cuda, it: &Rendezvous, device: &Device) -> Result<Arc<dyn Transport>> {
    let op = "connect";
    let failed = |reason: String| Error::communication(op, it.rank, it.world_size, reason);
    let functions = functions::functions().map_err(|why| failed(format!("NCCL: {why}")))?;
    let gpu = cuda.stream.gpu.clone();
    let _entered = gpu.enter()?;
    let mut version = 0;
    // SAFETY: a valid place for the result.
    ok(unsafe { (functions.version)(&mut version) }).map_err(failed)?;
    let id = || {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: a valid place for the result.
        ok(unsafe { (functions.unique_id)(&mut id) }).map_err(failed)?;
        Ok(bytemuck::cast_slice(&id.internal).to_vec())
    };
    let (group, brought) = Group::meet(it, id)?;
    let mut id = ncclUniqueId { internal: [0; 128] };
    if brought.len() != id.internal.len() {
        return Err(failed(format!("rank 0 sent {} bytes, which is no NCCL id", brought.len())));
    }
    id.internal.copy_from_slice(bytemuck::cast_slice(&brought));
    // What is measured below is NCCL's own memory: this crate's is taken before.
    let on_gpu = cuda.stream.allocate(NUMBERS * size_of::<f64>())?;
    let bytes = (NUMBERS * size_of::<f64>()) as u64;
    let pinned = Pinned::new(1, bytes as usize)?;
    let pinned = pinned.ok_or_else(|| failed("the host's memory limit leaves nothing".into()))?;
    cuda.stream.synchronize()?;
    let (free, _) = gpu.memory()?;
    let (patch, minor) = (version % 100, version / 100 % 100);
    let rank = Rank {
        functions,
        rank: it.rank,
        world_size: it.world_size,
        timeout: it.timeout,
        group,
        stream: SideStream::new(gpu.clone())?,
        gpu: gpu.clone(),
        communicator: Mutex::new(Raw { handle: std::ptr::null_mut(), ended: None }),
        numbers: Mutex::new(Numbers { pinned, on_gpu }),
        description: format!("NCCL {}.{minor}.{patch}", version / 10_000),
        charged: Mutex::default(),
    };
    let rank = Nccl(Arc::new(rank));
    rank.0.init(op, id)?;
    // The first collective makes the connections.
    let mut ones = [1.0];
    rank.sum(op, &mut ones)?;
    if ones[0] != it.world_size as f64 {
        return Err(failed(format!("a first sum over the ranks gave {}", ones[0])));
    }
    let (left, _) = gpu.memory()?;
    let charged =
        device.meter().reserve(free.saturating_sub(left), Purpose::Other, Taker::of("NCCL"));
    *rank.0.charged.lock() = Some(charged.inspect_err(|_| {
        rank.0.group.fail(&format!("rank {} has no memory for NCCL", it.rank));
    })?);
    Ok(Arc::new(rank))
}

/// What NCCL said, where it is a failure.
fn ok(result: ncclResult_t) -> Result<(), String> {
    match result {
        ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
        other => Err(format!("NCCL: {other:?}")),
    }
}

fn data_type(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I64 => ncclDataType_t::ncclInt64,
    }
}

fn operation(by: ReduceOp) -> ncclRedOp_t {
    match by {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Mean => ncclRedOp_t::ncclAvg,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
    }
}

impl Rank {
    fn failed(&self, op: &'static str, reason: impl Into<String>) -> Error {
        Error::communication(op, self.rank, self.world_size, reason)
    }

    fn init(&self, op: &'static str, id: ncclUniqueId) -> Result<()> {
        // What is not set is NCCL's choice; the numbers are its header's.
        let unset = c_int::MIN;
        let mut config = ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: 0xcafe_beef,
            version: 22400,
            blocking: 0,
            cgaClusterSize: unset,
            minCTAs: unset,
            maxCTAs: unset,
            netName: std::ptr::null(),
            splitShare: unset,
        };
        let mut raw = self.communicator.lock();
        let (ranks, rank) = (self.world_size as c_int, self.rank as c_int);
        // SAFETY: valid places for the result and the settings, which are read before it returns.
        let result =
            unsafe { (self.functions.init)(&mut raw.handle, ranks, id, rank, &mut config) };
        self.settle(op, &mut raw, result, Instant::now() + self.timeout)
    }

    /// Waits until NCCL has done what it was asked for on the host's side.
    fn settle(
        &self,
        op: &'static str,
        raw: &mut Raw,
        mut result: ncclResult_t,
        deadline: Instant,
    ) -> Result<()> {
        let mut pause = Duration::from_micros(1);
        loop {
            match result {
                ncclResult_t::ncclSuccess => return Ok(()),
                ncclResult_t::ncclInProgress => {}
                other => {
                    let why = self.cause(raw, other);
                    return Err(self.end(op, raw, why));
                }
            }
            if let Some(why) = self.trouble(deadline) {
                return Err(self.end(op, raw, why));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(1));
            result = self.state(raw);
        }
    }

    fn state(&self, raw: &Raw) -> ncclResult_t {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the handle is alive, as nobody has ended it, and there is a place for the result.
        match unsafe { (self.functions.state)(raw.handle, &mut state) } {
            ncclResult_t::ncclSuccess => state,
            other => other,
        }
    }

    fn last_error(&self, raw: &Raw) -> String {
        if raw.handle.is_null() {
            return String::new();
        }
        // SAFETY: the handle is alive; the text is NCCL's, ends in zero, and is copied at once.
        let text = unsafe {
            let text = (self.functions.last_error)(raw.handle);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy()) }
        };
        text.filter(|text| !text.trim().is_empty())
            .map_or(String::new(), |t| format!(" ({})", t.trim()))
    }

    /// What is behind a failure: who has died, where the other ranks' connections tell so shortly, else
    /// what NCCL says, which does not know.
    fn cause(&self, raw: &Raw, result: ncclResult_t) -> String {
        let said = format!("NCCL: {result:?}{}", self.last_error(raw));
        let deadline = Instant::now() + TELLING;
        while Instant::now() < deadline {
            if let Some(why) = self.group.lost() {
                return format!("{why} ({said})");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        said
    }

    /// Why waiting any longer is of no use.
    fn trouble(&self, deadline: Instant) -> Option<String> {
        let late = || format!("a peer did not come within {:?}", self.timeout);
        self.group.lost().or_else(|| (Instant::now() >= deadline).then(late))
    }

    /// Ends everything here and tells the others.
    fn end(&self, op: &'static str, raw: &mut Raw, why: String) -> Error {
        if raw.ended.is_none() {
            self.group.fail(&format!("rank {}: {why}", self.rank));
            self.abort(raw);
            raw.ended = Some(why.clone());
        }
        self.failed(op, why)
    }

    /// Ends what NCCL has under way, and the handle.
    fn abort(&self, raw: &mut Raw) {
        let handle = std::mem::replace(&mut raw.handle, std::ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: the handle was alive and is nobody's from here on.
            unsafe { (self.functions.abort)(handle) };
        }
    }

    /// The handle, if there still is one.
    fn alive<'a>(&self, op: &'static str, raw: &'a mut Raw) -> Result<&'a mut Raw> {
        if let Some(why) = &raw.ended {
            return Err(self.failed(op, format!("the communicator has ended: {why}")));
        }
        if let Some(why) = self.group.lost() {
            return Err(self.end(op, raw, why));
        }
        Ok(raw)
    }

    /// Enqueues collectives on the side stream: what they are, and the addresses of their operands.
    fn enqueue(
        &self,
        op: &'static str,
        raw: &mut Raw,
        work: &[(&Collective, u64, u64)],
    ) -> Result<()> {
        let (f, comm, stream) = (self.functions, raw.handle, self.stream.raw.cast::<c_void>());
        // SAFETY: the handle is alive and locked. Callers keep the blocks until the event that they
        // record next, and the counts are those of tensors that lie in them.
        let result = unsafe {
            let mut result = (f.group_start)();
            for &(collective, from, to) in work {
                let (from, to) = (from as *const c_void, to as *mut c_void);
                let [x, out] = collective.tensors();
                let kind = data_type(x.dtype());
                let next = match collective {
                    Collective::AllReduce { by, .. } => {
                        let count = x.elements();
                        (f.all_reduce)(from, to, count, kind, operation(*by), comm, stream)
                    }
                    Collective::Broadcast { root, .. } => {
                        (f.broadcast)(from, to, x.elements(), kind, *root as c_int, comm, stream)
                    }
                    Collective::AllGather { .. } => {
                        (f.all_gather)(from, to, x.elements(), kind, comm, stream)
                    }
                    Collective::ReduceScatter { by, .. } => {
                        let count = out.elements();
                        (f.reduce_scatter)(from, to, count, kind, operation(*by), comm, stream)
                    }
                };
                if ok(result).is_ok() {
                    result = next;
                }
            }
            let end = (f.group_end)();
            if ok(result).is_ok() { end } else { result }
        };
        self.settle(op, raw, result, Instant::now() + self.timeout)
    }

    /// Waits for a place in the side stream.
    fn wait(&self, op: &'static str, done: &Event) -> Result<()> {
        let began = Instant::now();
        let deadline = began + self.timeout;
        loop {
            let reached = done.reached()?;
            {
                let mut raw = self.communicator.lock();
                if let Some(why) = &raw.ended {
                    return Err(self.failed(op, format!("the communicator has ended: {why}")));
                }
                if reached {
                    return Ok(());
                }
                let state = self.state(&raw);
                if ok(state).is_err() {
                    let why = self.cause(&raw, state);
                    return Err(self.end(op, &mut raw, why));
                }
                if let Some(why) = self.trouble(deadline) {
                    return Err(self.end(op, &mut raw, why));
                }
            }
            match began.elapsed() {
                short if short < Duration::from_micros(200) => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let Ok(_entered) = self.gpu.enter() else { return };
        let mut raw = self.communicator.lock();
        if raw.handle.is_null() {
            return;
        }
        // SAFETY: the handle is alive; the state says when it has been done.
        let result = unsafe { (self.functions.finalize)(raw.handle) };
        let ended = self.settle("disconnect", &mut raw, result, Instant::now() + ENDING);
        if ended.is_ok() {
            // SAFETY: it has been finalised, and is nobody's from here on.
            unsafe { (self.functions.destroy)(raw.handle) };
            raw.handle = std::ptr::null_mut();
        }
    }
}

/// The memory that collectives work on.
fn blocks(work: &[Collective]) -> impl Iterator<Item = &DeviceBuffer> {
    work.iter().flat_map(Collective::tensors).filter_map(device_buffer)
}

/// Collectives under way.
struct Underway {
    rank: Arc<Rank>,
    op: &'static str,
    done: Arc<Event>,
    /// Their memory, until they are over.
    _work: Vec<Collective>,
}

impl Ongoing for Underway {
    fn wait(&mut self) -> Result<()> {
        self.rank.wait(self.op, &self.done)
    }
}

impl Transport for Nccl {
    fn rank(&self) -> usize {
        self.0.rank
    }

    fn world_size(&self) -> usize {
        self.0.world_size
    }

    fn description(&self) -> String {
        self.0.description.clone()
    }

    fn start(&self, op: &'static str, work: Vec<Collective>) -> Result<Box<dyn Ongoing>> {
        let rank = &self.0;
        let _entered = rank.gpu.enter()?;
        let here = |x: &Tensor| {
            let block = device_buffer(x);
            if block.is_some_and(|block| Arc::ptr_eq(&block.stream().gpu, &rank.gpu)) {
                return Ok(());
            }
            let (gpu, other) = (rank.gpu.properties.ordinal, x.device());
            Err(rank.failed(op, format!("a tensor is on {other}, this rank's GPU is cuda:{gpu}")))
        };
        let mut places: SmallVec<[(&Collective, u64, u64); 8]> = SmallVec::new();
        for collective in &work {
            let [x, out] = collective.tensors();
            here(x)?;
            here(out)?;
            places.push((collective, pointer(x), pointer(out)));
        }
        let mut raw = rank.communicator.lock();
        let raw = rank.alive(op, &mut raw)?;
        let mut waited: SmallVec<[sys::CUstream; 2]> = SmallVec::new();
        for block in blocks(&work) {
            let stream = block.stream().raw;
            if !waited.contains(&stream) {
                waited.push(stream);
                Event::record(&rank.gpu, stream)?.before(rank.stream.raw)?;
            }
        }
        rank.enqueue(op, raw, &places)?;
        drop(places);
        let done = rank.stream.event()?;
        blocks(&work).for_each(|block| block.uses().add(done.clone()));
        Ok(Box::new(Underway { rank: rank.clone(), op, done, _work: work }))
    }

    fn sum(&self, op: &'static str, numbers: &mut [f64]) -> Result<()> {
        let rank = &self.0;
        let _entered = rank.gpu.enter()?;
        let mut held = rank.numbers.lock();
        let Numbers { pinned, on_gpu } = &mut *held;
        let (address, host) = (on_gpu.address(), pinned.address(0).as_ptr().cast::<c_void>());
        for piece in numbers.chunks_mut(NUMBERS) {
            let bytes = size_of_val(piece);
            pinned.slice(0)[..bytes].copy_from_slice(bytemuck::cast_slice(piece));
            let done = {
                let mut raw = rank.communicator.lock();
                let raw = rank.alive(op, &mut raw)?;
                let stream = rank.stream.raw;
                // SAFETY: both blocks have that many bytes and are locked until the event below.
                unsafe { sys::cuMemcpyHtoDAsync_v2(address, host, bytes, stream) }
                    .check("cuMemcpyHtoDAsync")?;
                let (f, comm, at) = (rank.functions, raw.handle, address as *mut c_void);
                let (kind, sum) = (ncclDataType_t::ncclFloat64, ncclRedOp_t::ncclSum);
                // SAFETY: as above; the handle is alive and locked.
                let result =
                    unsafe { (f.all_reduce)(at, at, piece.len(), kind, sum, comm, stream.cast()) };
                rank.settle(op, raw, result, Instant::now() + rank.timeout)?;
                // SAFETY: as above.
                unsafe { sys::cuMemcpyDtoHAsync_v2(host, address, bytes, stream) }
                    .check("cuMemcpyDtoHAsync")?;
                rank.stream.event()?
            };
            rank.wait(op, &done)?;
            piece.copy_from_slice(bytemuck::cast_slice(&pinned.slice(0)[..bytes]));
        }
        Ok(())
    }
}
