//! The CPU: kernels over host memory, with rayon for threads. This file only chooses the element
//! type; each family of kernels has a file of its own.

#[macro_use]
mod dispatch;

mod argmax;
mod block;
mod broadcast;
mod compare;
mod conv;
mod copy;
mod cross_entropy;
mod elementwise;
mod functions;
mod gemm;
mod host;
mod index;
mod norm;
mod parallel;
mod planned;
mod pool;
mod random;
mod reduce;
mod softmax;
mod sparse;
#[cfg(test)]
mod testing;
mod update;

use super::CpuOptions;
use super::backend::{Backend, Buffer, Query, Terms};
use super::philox::Stream;
use super::spec::*;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use host::HostBuffer;
use std::any::Any;

/// A CPU device: a pool of threads, and whether new memory is poisoned.
#[derive(Debug)]
pub(super) struct Cpu {
    /// `None` shares the process-wide pool.
    pool: Option<rayon::ThreadPool>,
    poison: bool,
}

/// More than any machine has cores; a slip of the keyboard must not start a million.
const MAX_THREADS: usize = 4096;

impl Cpu {
    /// On the process-wide pool of threads.
    pub(super) fn shared() -> Cpu {
        Cpu { pool: None, poison: false }
    }

    pub(super) fn new(options: &CpuOptions) -> Result<Cpu> {
        let Some(threads) = options.threads else {
            return Ok(Cpu { pool: None, poison: options.poison });
        };
        if threads == 0 {
            let reason = "something must compute; pass None for one thread a core";
            return Err(Error::argument("new_cpu", "threads", 0, reason));
        }
        if threads > MAX_THREADS {
            let reason = format!("at most {MAX_THREADS} threads can be asked for");
            return Err(Error::argument("new_cpu", "threads", threads, reason));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("capgrad-{index}"))
            .build()
            .map_err(|error| Error::DeviceNotAvailable {
                device: format!("cpu with {threads} threads"),
                reason: error.to_string(),
            })?;
        Ok(Cpu { pool: Some(pool), poison: options.poison })
    }
}

impl Backend for Cpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(HostBuffer::new(bytes, self.poison)?))
    }

    fn adopt(
        &self,
        dtype: DType,
        data: Box<dyn Any + Send + Sync>,
        _: u64,
    ) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(any!(dtype, T => HostBuffer::adopt::<T>(data))))
    }

    fn write(&self, out: &Tensor, data: &[u8]) -> Result<()> {
        any!(out.dtype(), T => copy::write::<T>(self, out, data));
        Ok(())
    }

    fn read(&self, x: &Tensor, data: &mut [u8]) -> Result<()> {
        any!(x.dtype(), T => copy::read::<T>(self, x, data));
        Ok(())
    }

    fn host_bytes(&self, x: &Tensor, to: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        any!(x.dtype(), T => to(bytemuck::cast_slice(&host::read::<T>(x))))?;
        Ok(true)
    }

    fn host_bytes_mut(
        &self,
        out: &Tensor,
        from: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<bool> {
        any!(out.dtype(), T => from(bytemuck::cast_slice_mut(&mut host::write::<T>(out))))?;
        Ok(true)
    }

    fn free_memory(&self) -> Option<u64> {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.free_memory);
        Some(system.available_memory().min(limit)).filter(|&free| free > 0)
    }

    /// Operations are over when they return.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn description(&self) -> String {
        format!("CPU, {} threads", self.threads())
    }

    #[cfg(feature = "serde")]
    fn identity(&self) -> String {
        format!("{} of {}", self.description(), model())
    }

    fn fill(&self, out: &Tensor, value: f64) -> Result<()> {
        any!(out.dtype(), T => elementwise::fill::<T>(self, out, value));
        Ok(())
    }

    fn random(&self, distribution: Distribution, stream: Stream, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => random::random::<T>(self, distribution, stream, out));
        Ok(())
    }

    fn dropout(&self, p: f64, stream: Stream, x: &Tensor, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => random::dropout::<T>(self, p, stream, x, out));
        Ok(())
    }

    fn unary(&self, f: Unary, x: &Tensor, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => functions::unary::<T>(self, f, x, out));
        Ok(())
    }

    fn unary_gradient(&self, f: Unary, saved: &Tensor, dy: &Tensor, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => functions::unary_gradient::<T>(self, f, saved, dy, out));
        Ok(())
    }

    fn binary(&self, f: Binary, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => functions::binary::<T>(self, f, a, b, out));
        Ok(())
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
        float!(out.dtype(), T => functions::binary_gradient::<T>(self, f, side, a, b, dy, out));
        Ok(())
    }

    fn binary_sum(
        &self,
        f: Binary,
        scale: f64,
        a: &Tensor,
        b: &Tensor,
        out: &Tensor,
    ) -> Result<()> {
        float!(out.dtype(), T => functions::binary_sum::<T>(self, f, scale, a, b, out));
        Ok(())
    }

    fn accumulate(&self, out: &Tensor, x: &Tensor) -> Result<()> {
        float!(out.dtype(), T => elementwise::accumulate::<T>(self, out, x));
        Ok(())
    }

    fn compare(&self, f: Comparison, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
        any!(a.dtype(), T => compare::compare::<T>(self, f, a, b, out));
        Ok(())
    }

    fn select(&self, mask: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
        any!(out.dtype(), T => compare::select::<T>(self, mask, a, b, out));
        Ok(())
    }

    fn select_gradient(&self, mask: &Tensor, side: Side, dy: &Tensor, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => compare::select_gradient::<T>(self, mask, side, dy, out));
        Ok(())
    }

    fn cast(&self, x: &Tensor, out: &Tensor) -> Result<()> {
        any!(x.dtype(), T => any!(out.dtype(), U => elementwise::cast::<T, U>(self, x, out)));
        Ok(())
    }

    fn sum(&self, x: &Tensor, reduced: &[bool], scale: f64, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => reduce::sum::<T>(self, x, reduced, scale, out));
        Ok(())
    }

    fn argmax(&self, x: &Tensor, axis: usize, out: &Tensor) -> Result<()> {
        any!(x.dtype(), T => argmax::argmax::<T>(self, x, axis, out));
        Ok(())
    }

    fn softmax(&self, log: bool, x: &Tensor, axis: usize, out: &Tensor) -> Result<()> {
        float!(out.dtype(), T => softmax::softmax::<T>(self, log, x, axis, out));
        Ok(())
    }

    fn softmax_gradient(
        &self,
        log: bool,
        y: &Tensor,
        dy: &Tensor,
        axis: usize,
        out: &Tensor,
    ) -> Result<()> {
        float!(out.dtype(), T => softmax::softmax_gradient::<T>(self, log, y, dy, axis, out));
        Ok(())
    }

    fn cross_entropy(
        &self,
        x: &Tensor,
        labels: &Tensor,
        ignore: Option<i64>,
        scale: f64,
        out: &Tensor,
    ) -> Result<()> {
        float!(x.dtype(), T => integer!(labels.dtype(), I => {
            cross_entropy::forward::<T, I>(self, x, labels, ignore, scale, out)
        }));
        Ok(())
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
        float!(x.dtype(), T => integer!(labels.dtype(), I => {
            cross_entropy::gradient::<T, I>(self, x, labels, ignore, scale, dy, out)
        }));
        Ok(())
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
        float!(x.dtype(), T => {
            norm::layer_norm::<T>(self, x, weight, bias, epsilon, out, mean, rstd)
        });
        Ok(())
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
        float!(x.dtype(), T => {
            norm::layer_norm_gradient::<T>(self, x, weight, mean, rstd, dy, dx, dweight, dbias)
        });
        Ok(())
    }

    fn pool(
        &self,
        pool: Pool,
        geometry: &PoolGeometry,
        x: &Tensor,
        out: &Tensor,
        indices: Option<&Tensor>,
    ) -> Result<()> {
        float!(x.dtype(), T => pool::pool::<T>(self, pool, geometry, x, out, indices));
        Ok(())
    }

    fn pool_gradient(
        &self,
        pool: Pool,
        geometry: &PoolGeometry,
        dy: &Tensor,
        indices: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()> {
        float!(out.dtype(), T => pool::pool_gradient::<T>(self, pool, geometry, dy, indices, out));
        Ok(())
    }

    fn copy_window(
        &self,
        extents: &[usize],
        x: &Tensor,
        from: &Window,
        out: &Tensor,
        to: &Window,
    ) -> Result<()> {
        any!(out.dtype(), T => copy::copy_window::<T>(self, extents, x, from, out, to));
        Ok(())
    }

    fn gather(&self, x: &Tensor, axis: usize, index: &Tensor, out: &Tensor) -> Result<()> {
        any!(x.dtype(), T => integer!(index.dtype(), I => {
            index::gather::<T, I>(self, x, axis, index, out)
        }));
        Ok(())
    }

    fn scatter_add(&self, dy: &Tensor, axis: usize, index: &Tensor, out: &Tensor) -> Result<()> {
        float!(dy.dtype(), T => integer!(index.dtype(), I => {
            index::scatter_add::<T, I>(self, dy, axis, index, out)
        }));
        Ok(())
    }

    fn index_range(&self, index: &Tensor, ignore: Option<i64>) -> Result<(i64, i64)> {
        Ok(integer!(index.dtype(), I => index::range::<I>(self, index, ignore)))
    }

    /// Products of f32 are f32: there is nothing faster to allow.
    fn candidates(&self, query: &Query, terms: Terms) -> Vec<Candidate> {
        planned::candidates(self.threads(), query, terms.cap)
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
        float!(parameter.dtype(), T => update::update::<T>(self, update, parameter, gradient, state));
        Ok(())
    }
}

/// Which processor it is.
#[cfg(feature = "serde")]
fn model() -> &'static str {
    static MODEL: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    MODEL.get_or_init(|| {
        let kind = sysinfo::RefreshKind::nothing().with_cpu(sysinfo::CpuRefreshKind::nothing());
        let system = sysinfo::System::new_with_specifics(kind);
        let brand = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
        brand.filter(|brand| !brand.is_empty()).unwrap_or_else(|| std::env::consts::ARCH.into())
    })
}
