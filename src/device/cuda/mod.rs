//! NVIDIA GPUs: our own kernels, and cuBLAS, cuDNN and cuSPARSE where they are found. This file only
//! hands each method on; every family of kernels has a file of its own, beside a file of the same name
//! in `kernels/`.

mod argmax;
mod compare;
mod conv;
mod copy;
mod cross_entropy;
mod cublas;
mod cudnn;
mod cusparse;
mod elementwise;
mod error;
mod event;
mod gemm;
mod gemm_kernel;
mod gpu;
mod index;
mod kernels;
mod launch;
mod layout;
mod libraries;
mod memory;
#[cfg(feature = "nccl")]
mod nccl;
mod norm;
mod pinned;
mod planned;
mod pool;
mod random;
mod rates;
mod reduce;
mod rows;
mod scratch;
mod softmax;
mod sparse;
mod staging;
mod sums;
#[cfg(test)]
mod testing;
mod transfer;
mod update;

use super::backend::{Backend, Buffer, Query, Terms};
use super::options::CudaOptions;
use super::philox::Stream as RandomStream;
use super::spec::*;
use crate::device::Device;
use crate::distributed::{Rendezvous, Transport};
use crate::dtype::DType;
#[cfg(not(feature = "nccl"))]
use crate::error::Error;
use crate::error::Result;
use crate::memory::{DriverMemory, Meter, Purpose, Reservation, Taker};
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use cublas::Cublas;
use cudarc::driver::sys;
use cudnn::Cudnn;
use cusparse::Cusparse;
use gpu::Gpu;
use memory::{Stream, pointer};
use parking_lot::Mutex;
use pinned::{Copies, PinnedBuffer};
use scratch::{SCRATCH_BYTES, Scratch};
use std::any::Any;
use std::sync::Arc;
use transfer::Arrivals;

/// A CUDA device: a stream of its own on a GPU, and its pool of memory.
pub(super) struct Cuda {
    stream: Arc<Stream>,
    scratch: Scratch,
    poison: bool,
    kernels_only: bool,
    shared_per_block: usize,
    /// Whether what other GPUs send comes by way of the host, though it need not.
    through_host: bool,
    /// Made when a matrix is streamed for the first time.
    copies: Mutex<Option<Arc<Mutex<Copies>>>>,
    /// Made when another device sends something for the first time.
    arrivals: Mutex<Option<Arc<Mutex<Arrivals>>>>,
    /// The scratch, and what the libraries took when they started.
    charged: [Reservation; 2],
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({:?})", self.gpu())
    }
}

/// Most bytes of pinned memory that a copy to or from the host goes through.
fn cap(x: &Tensor) -> u64 {
    x.device().workspace_cap().unwrap_or(u64::MAX)
}

/// How many GPUs the driver sees.
pub(super) fn count() -> usize {
    gpu::count()
}

impl Cuda {
    pub(super) fn new(ordinal: usize, options: &CudaOptions, meter: &Meter) -> Result<Cuda> {
        let gpu = Gpu::open(ordinal)?;
        let stream = Stream::new(gpu.clone())?;
        let charged = [
            meter.reserve(gpu.take_uncharged(), Purpose::Other, Taker::of("libraries"))?,
            meter.reserve(SCRATCH_BYTES as u64, Purpose::Other, Taker::of("scratch"))?,
        ];
        let scratch = Scratch::new(&stream)?;
        let &CudaOptions { poison, kernels_only, shared_per_block, through_host } = options;
        let most = stream.gpu.properties.shared_per_block;
        let shared_per_block = shared_per_block.map_or(most, |bytes| bytes.min(most));
        Ok(Cuda {
            stream,
            scratch,
            poison,
            kernels_only,
            shared_per_block,
            through_host,
            copies: Mutex::default(),
            arrivals: Mutex::default(),
            charged,
        })
    }

    fn gpu(&self) -> &Gpu {
        &self.stream.gpu
    }

    /// cuBLAS, where it is here and may be used.
    fn cublas(&self) -> Option<&Mutex<Cublas>> {
        self.gpu().cublas.as_ref().filter(|_| !self.kernels_only)
    }

    /// cuDNN, where it is here and may be used.
    fn cudnn(&self) -> Option<&Mutex<Cudnn>> {
        self.gpu().cudnn.as_ref().filter(|_| !self.kernels_only)
    }

    /// cuSPARSE, where it is here and may be used.
    fn cusparse(&self) -> Option<&Mutex<Cusparse>> {
        self.gpu().cusparse.as_ref().filter(|_| !self.kernels_only)
    }

    /// Most bytes of shared memory of a block.
    fn shared_per_block(&self) -> usize {
        self.shared_per_block
    }

    /// The stream of copies that overlap with kernels.
    fn copies(&self) -> Result<Arc<Mutex<Copies>>> {
        let mut held = self.copies.lock();
        if let Some(copies) = &*held {
            return Ok(copies.clone());
        }
        let copies = Arc::new(Mutex::new(Copies::new(self.stream.gpu.clone())?));
        Ok(held.insert(copies).clone())
    }

    /// Where what other devices send comes in.
    fn arrivals(&self) -> Result<Arc<Mutex<Arrivals>>> {
        let mut held = self.arrivals.lock();
        if let Some(arrivals) = &*held {
            return Ok(arrivals.clone());
        }
        let arrivals = Arc::new(Mutex::new(Arrivals::new(self.stream.gpu.clone())?));
        Ok(held.insert(arrivals).clone())
    }

    fn stream(&self) -> sys::CUstream {
        self.stream.raw
    }
}

impl Backend for Cuda {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Buffer>> {
        let buffer = self.stream.allocate(bytes)?;
        if self.poison {
            // All ones is NaN in every float dtype and -1 in the integers.
            self.stream.fill_bytes(buffer.address(), 0xff, bytes)?;
        }
        Ok(Box::new(buffer))
    }

    fn adopt(
        &self,
        dtype: DType,
        data: Box<dyn Any + Send + Sync>,
        cap: u64,
    ) -> Result<Box<dyn Buffer>> {
        fn bytes<T: bytemuck::Pod>(data: &(dyn Any + Send + Sync)) -> &[u8] {
            data.downcast_ref::<Vec<T>>().map_or(&[], |data| bytemuck::cast_slice(data))
        }
        let data = &*data;
        let bytes = match dtype {
            DType::F32 => bytes::<f32>(data),
            DType::F64 => bytes::<f64>(data),
            DType::F16 => bytes::<half::f16>(data),
            DType::BF16 => bytes::<half::bf16>(data),
            DType::I32 => bytes::<i32>(data),
            DType::I64 => bytes::<i64>(data),
        };
        let buffer = self.stream.allocate(bytes.len())?;
        self.stream.write(buffer.address(), bytes, cap)?;
        Ok(Box::new(buffer))
    }

    fn allocate_host(&self, bytes: usize) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(PinnedBuffer::new(self.stream.clone(), bytes)?))
    }

    fn streams(&self) -> bool {
        true
    }

    fn shared_per_block(&self) -> Option<usize> {
        Some(self.shared_per_block)
    }

    fn write(&self, out: &Tensor, data: &[u8]) -> Result<()> {
        match pinned::pinned(out) {
            Some((buffer, offset)) => buffer.write(offset, data),
            None => self.stream.write(pointer(out), data, cap(out)),
        }
    }

    fn read(&self, x: &Tensor, data: &mut [u8]) -> Result<()> {
        match pinned::pinned(x) {
            Some((buffer, offset)) => buffer.read(offset, data),
            None => self.stream.read(pointer(x), data, cap(x)),
        }
    }

    fn receive(&self, x: &Tensor, out: &Tensor) -> Result<bool> {
        transfer::receive(self, x, out)
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
    }

    fn description(&self) -> String {
        if self.kernels_only {
            return format!("{}; this crate's kernels only", self.gpu().properties.name);
        }
        self.gpu().description.clone()
    }

    fn trim(&self) -> Result<()> {
        if let Some(arrivals) = &*self.arrivals.lock() {
            arrivals.lock().trim()?;
        }
        self.stream.trim()
    }

    fn driver_memory(&self) -> Option<DriverMemory> {
        self.stream.figures().ok()
    }

    fn free_memory(&self) -> Option<u64> {
        // What the pool keeps for the next request is free, too.
        let figures = self.stream.figures().ok()?;
        Some(figures.free + figures.pool_reserved.saturating_sub(figures.pool_used))
    }

    fn charged(&self) -> u64 {
        self.charged.iter().map(Reservation::bytes).sum()
    }

    #[cfg(feature = "nccl")]
    fn join_ranks(&self, it: &Rendezvous, device: &Device) -> Result<Arc<dyn Transport>> {
        nccl::join(self, it, device)
    }

    #[cfg(not(feature = "nccl"))]
    fn join_ranks(&self, it: &Rendezvous, _: &Device) -> Result<Arc<dyn Transport>> {
        let reason = "capgrad was built without its feature `nccl`";
        Err(Error::communication("connect", it.rank, it.world_size, reason))
    }

    fn reset_driver_peaks(&self) {
        // Only figures of a report hang on it.
        let _ = self.stream.reset_peaks();
    }

    fn fill(&self, out: &Tensor, value: f64) -> Result<()> {
        elementwise::fill(self, out, value)
    }

    fn random(&self, distribution: Distribution, stream: RandomStream, out: &Tensor) -> Result<()> {
        random::random(self, distribution, stream, out)
    }

    fn dropout(&self, p: f64, stream: RandomStream, x: &Tensor, out: &Tensor) -> Result<()> {
        random::dropout(self, p, stream, x, out)
    }

    fn unary(&self, f: Unary, x: &Tensor, out: &Tensor) -> Result<()> {
        elementwise::unary(self, f, x, out)
    }

    fn unary_gradient(&self, f: Unary, saved: &Tensor, dy: &Tensor, out: &Tensor) -> Result<()> {
        elementwise::unary_gradient(self, f, saved, dy, out)
    }

    fn binary(&self, f: Binary, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
        elementwise::binary(self, f, a, b, out)
    }

    fn binary_gradient(
        &self,
        f: Binary,
        side: Side,
        a: &Tensor,
        b: &Tensor,
        dy: &Tensor,
        out: &Tensor,
    ) -> Result<()> {
        reduce::binary_gradient(self, f, side, a, b, dy, out)
    }

    fn binary_sum(
        &self,
        f: Binary,
        scale: f64,
        a: &Tensor,
        b: &Tensor,
        out: &Tensor,
    ) -> Result<()> {
        reduce::binary_sum(self, f, scale, a, b, out)
    }

    fn accumulate(&self, out: &Tensor, x: &Tensor) -> Result<()> {
        elementwise::accumulate(self, out, x)
    }

    fn compare(&self, f: Comparison, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
        compare::compare(self, f, a, b, out)
    }

    fn select(&self, mask: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
        compare::select(self, mask, a, b, out)
    }

    fn select_gradient(&self, mask: &Tensor, side: Side, dy: &Tensor, out: &Tensor) -> Result<()> {
        reduce::select_gradient(self, mask, side, dy, out)
    }

    fn cast(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        elementwise::cast(self, x, out)
    }

    fn sum(&self, x: &Tensor, reduced: &[bool], scale: f64, out: &Tensor) -> Result<()> {
        reduce::sum(self, x, reduced, scale, out)
    }

    fn argmax(&self, x: &Tensor, axis: usize, out: &Tensor) -> Result<()> {
        argmax::argmax(self, x, axis, out)
    }

    fn softmax(&self, log: bool, x: &Tensor, axis: usize, out: &Tensor) -> Result<()> {
        softmax::softmax(self, log, x, axis, out)
    }

    fn softmax_gradient(
        &self,
        log: bool,
        y: &Tensor,
        dy: &Tensor,
        axis: usize,
        out: &Tensor,
    ) -> Result<()> {
        softmax::softmax_gradient(self, log, y, dy, axis, out)
    }

    fn cross_entropy(
        &self,
        x: &Tensor,
        labels: &Tensor,
        ignore: Option<i64>,
        scale: f64,
        out: &Tensor,
    ) -> Result<()> {
        cross_entropy::forward(self, x, labels, ignore, scale, out)
    }

    fn cross_entropy_gradient(
        &self,
        x: &Tensor,
        labels: &Tensor,
        ignore: Option<i64>,
        scale: f64,
        dy: &Tensor,
        out: &Tensor,
    ) -> Result<()> {
        cross_entropy::gradient(self, x, labels, ignore, scale, dy, out)
    }

    fn layer_norm(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f64,
        out: &Tensor,
        mean: &Tensor,
        rstd: &Tensor,
    ) -> Result<()> {
        norm::layer_norm(self, x, weight, bias, epsilon, out, mean, rstd)
    }

    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        mean: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        dx: Option<&Tensor>,
        dweight: Option<&Tensor>,
        dbias: Option<&Tensor>,
    ) -> Result<()> {
        norm::layer_norm_gradient(self, x, weight, mean, rstd, dy, dx, dweight, dbias)
    }

    fn pool(
        &self,
        pool: Pool,
        geometry: &PoolGeometry,
        x: &Tensor,
        out: &Tensor,
        indices: Option<&Tensor>,
    ) -> Result<()> {
        pool::pool(self, pool, geometry, x, out, indices)
    }

    fn pool_gradient(
        &self,
        pool: Pool,
        geometry: &PoolGeometry,
        dy: &Tensor,
        indices: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        pool::pool_gradient(self, pool, geometry, dy, indices, out)
    }

    fn copy_window(
        &self,
        extents: &[usize],
        x: &Tensor,
        from: &Window,
        out: &Tensor,
        to: &Window,
    ) -> Result<()> {
        copy::copy_window(self, extents, x, from, out, to)
    }

    fn gather(&self, x: &Tensor, axis: usize, index: &Tensor, out: &Tensor) -> Result<()> {
        index::gather(self, x, axis, index, out)
    }

    fn scatter_add(&self, dy: &Tensor, axis: usize, index: &Tensor, out: &Tensor) -> Result<()> {
        index::scatter_add(self, dy, axis, index, out)
    }

    fn index_range(&self, index: &Tensor, ignore: Option<i64>) -> Result<(i64, i64)> {
        index::range(self, index, ignore)
    }

    fn candidates(&self, query: &Query, terms: Terms) -> Vec<Candidate> {
        planned::candidates(self, query, terms)
    }

    fn run(
        &self,
        query: &Query,
        candidate: &Candidate,
        operands: &[&Tensor],
        out: &Tensor,
        workspace: Option<&Storage>,
    ) -> Result<()> {
        planned::run(self, query, candidate, operands, out, workspace)
    }

    fn update(
        &self,
        update: Update,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[&Tensor],
    ) -> Result<()> {
        update::update(self, update, parameter, gradient, state)
    }
}
