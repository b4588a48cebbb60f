//! The one trait that a device implements: a few grouped methods on opaque buffers.
//!
//! Arguments have been checked by `ops` before a method is called: operands are dense unless said
//! otherwise, on this device, of the shapes and dtypes that the method names, and `out` has been
//! allocated and may hold anything. A method writes every element of its result.

use super::Device;
use super::philox::Stream;
use super::spec::*;
use crate::distributed::{Rendezvous, Transport};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::DriverMemory;
use crate::plan::Candidate;
use crate::tensor::{Storage, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory of one device. What is in it is the device's own business.
pub(crate) trait Buffer: Any + Send + Sync {
    /// For the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A question to the planner, and the key under which its answer is kept: everything that decides
/// which candidates there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Query {
    /// Operands `a`, `b`, and optionally a bias `[n]`.
    Gemm(GemmSpec, DType),
    /// Operands `x, w[, bias]` forward; `dy, w` for the input gradient; `x, dy` for the weights'.
    Conv(ConvPass, ConvGeometry, DType),
    /// Operands `row_offsets, col_indices, values` (in the tiled form `pieces` after the first; of
    /// the transposed copy too, where there is one), then `x` (and for the sampled product `g`
    /// first, then `x`).
    Sparse(SparseSpec, DType),
}

/// The terms on which candidates are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Terms {
    /// The cap in force: what is over it is offered split as well.
    pub(crate) cap: u64,
    /// Whether products of f32 may be rounded to TF32.
    pub(crate) allow_tf32: bool,
}

/// What a device must be able to do.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    /// Memory of `bytes` bytes, aligned for every dtype, holding anything.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Buffer>>;
    /// Memory of the host that the device reads by itself, holding anything.
    fn allocate_host(&self, bytes: usize) -> Result<Box<dyn Buffer>> {
        self.allocate(bytes)
    }
    /// Whether products copy a matrix that lies in such memory ([`Form::Streamed`]).
    fn streams(&self) -> bool {
        false
    }
    /// Bytes of shared memory of a block of threads, for which the strips of the tiled form are made;
    /// `None` where there is no such form.
    fn shared_per_block(&self) -> Option<usize> {
        None
    }
    /// Memory that holds what `data` (a `Vec` of the dtype's Rust type) does; on a CPU the vector
    /// itself. A copy goes through at most `cap` bytes.
    fn adopt(
        &self,
        dtype: DType,
        data: Box<dyn Any + Send + Sync>,
        cap: u64,
    ) -> Result<Box<dyn Buffer>>;
    /// Copies from the host. `data` has exactly the tensor's bytes.
    fn write(&self, out: &Tensor, data: &[u8]) -> Result<()>;
    /// Copies to the host. `data` has exactly the tensor's bytes.
    fn read(&self, x: &Tensor, data: &mut [u8]) -> Result<()>;
    /// Copies `x`, which is another device's, without the host; `false` where it cannot. Neither device
    /// waits for what the other still has to do, but for what depends on the copy.
    fn receive(&self, _x: &Tensor, _out: &Tensor) -> Result<bool> {
        Ok(false)
    }
    /// Hands over the bytes of `x` where they lie in the host's memory; `false` where they do not.
    fn host_bytes(&self, _x: &Tensor, _to: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<bool> {
        Ok(false)
    }
    /// [`Backend::host_bytes`], to be written.
    fn host_bytes_mut(
        &self,
        _out: &Tensor,
        _from: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<bool> {
        Ok(false)
    }
    /// Waits until everything asked for has been done.
    fn synchronize(&self) -> Result<()>;
    /// What the device is and which libraries it uses, for people.
    fn description(&self) -> String;
    /// All that times depend on: the device, its driver, its libraries.
    #[cfg(feature = "serde")]
    fn identity(&self) -> String {
        self.description()
    }
    /// Gives memory that is cached and not in use back to the system.
    fn trim(&self) -> Result<()> {
        Ok(())
    }
    /// What the driver says of the device's memory, where there is a driver.
    fn driver_memory(&self) -> Option<DriverMemory> {
        None
    }
    /// Bytes that could still be taken, where that is known.
    fn free_memory(&self) -> Option<u64> {
        None
    }
    /// Whether nothing is computed ([`Dry`](super::dry::Dry)).
    fn is_dry(&self) -> bool {
        false
    }
    /// The device that this is a dry twin of.
    fn twin_of(&self) -> Option<Device> {
        None
    }
    /// Bytes that the meter has charged for the device itself.
    fn charged(&self) -> u64 {
        0
    }
    /// Joins the ranks of a run, for tensors of this device (which is also given as callers hold it).
    fn join_ranks(&self, it: &Rendezvous, device: &Device) -> Result<Arc<dyn Transport>> {
        let reason = format!(
            "NCCL joins GPUs, and {device} is none; give a CUDA device, or use ranks of one process"
        );
        Err(Error::communication("connect", it.rank, it.world_size, reason))
    }
    /// The high marks of [`Backend::driver_memory`] start again.
    fn reset_driver_peaks(&self) {}

    /// Every element becomes `value`.
    fn fill(&self, out: &Tensor, value: f64) -> Result<()>;
    /// Element i is drawn from position i of the stream.
    fn random(&self, distribution: Distribution, stream: Stream, out: &Tensor) -> Result<()>;
    /// `out = x·keep/(1-p)`, where element i is kept if position i of the stream is at least `p`.
    /// Its own gradient. `x` may be uniform.
    fn dropout(&self, p: f64, stream: Stream, x: &Tensor, out: &Tensor) -> Result<()>;

    /// `out = f(x)`.
    fn unary(&self, f: Unary, x: &Tensor, out: &Tensor) -> Result<()>;
    /// `out = dy · f'`; `saved` is f's result where `f.saves_result()`, else its operand. `dy` may
    /// be uniform.
    fn unary_gradient(&self, f: Unary, saved: &Tensor, dy: &Tensor, out: &Tensor) -> Result<()>;
    /// `out = f(a, b)`, both broadcast to the shape of `out`. Either may be uniform.
    fn binary(&self, f: Binary, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()>;
    /// `out = dy · ∂f/∂side`, everything broadcast, and added up along the axes that `out` lacks or
    /// has with extent 1: the gradient of an operand that was stretched. `dy` may be uniform. The
    /// operand that the derivative does not depend on may be anything that broadcasts.
    fn binary_gradient(
        &self,
        f: Binary,
        side: Side,
        a: &Tensor,
        b: &Tensor,
        dy: &Tensor,
        out: &Tensor,
    ) -> Result<()>;
    /// `out = scale · Σ f(a, b)` over all elements of the broadcast shape; `out` is a scalar.
    fn binary_sum(&self, f: Binary, scale: f64, a: &Tensor, b: &Tensor, out: &Tensor)
    -> Result<()>;
    /// `out += x`, `x` broadcast to the shape of `out`; it may be uniform.
    fn accumulate(&self, out: &Tensor, x: &Tensor) -> Result<()>;
    /// `out` (i32) `= a ? b`, both broadcast. Any dtype, the same for both.
    fn compare(&self, f: Comparison, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()>;
    /// `out = mask ≠ 0 ? a : b`, all broadcast to the shape of `out`; `mask` is i32. `a` and `b`
    /// may be uniform.
    fn select(&self, mask: &Tensor, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()>;
    /// `out = dy` where `mask` chose the operand of this side and 0 elsewhere, added up as in
    /// `binary_gradient`. `dy` may be uniform.
    fn select_gradient(&self, mask: &Tensor, side: Side, dy: &Tensor, out: &Tensor) -> Result<()>;
    /// `out = x`, converted between any two dtypes.
    fn cast(&self, x: &Tensor, out: &Tensor) -> Result<()>;

    /// `out = scale · Σ x` over the axes for which `reduced` is true. `out` has the other axes, in
    /// order (rank kept or not: only its elements matter).
    fn sum(&self, x: &Tensor, reduced: &[bool], scale: f64, out: &Tensor) -> Result<()>;
    /// `out` (i64) = index along `axis` of the largest element, the first of equals.
    fn argmax(&self, x: &Tensor, axis: usize, out: &Tensor) -> Result<()>;
    /// Softmax along `axis`, or its logarithm.
    fn softmax(&self, log: bool, x: &Tensor, axis: usize, out: &Tensor) -> Result<()>;
    /// From the result `y`: `y·(dy - Σ y·dy/Σ y)`, or for the logarithm `dy - e^y·Σ dy/Σ e^y`; the
    /// divisors are one but for `y`'s rounding.
    fn softmax_gradient(
        &self,
        log: bool,
        y: &Tensor,
        dy: &Tensor,
        axis: usize,
        out: &Tensor,
    ) -> Result<()>;
    /// `out = scale · Σ -log_softmax(x)[label]` over rows of `x [rows, classes]`; labels (i32 or
    /// i64) are in range, or equal to `ignore`.
    fn cross_entropy(
        &self,
        x: &Tensor,
        labels: &Tensor,
        ignore: Option<i64>,
        scale: f64,
        out: &Tensor,
    ) -> Result<()>;
    /// `out = dy·scale·(softmax(x) - onehot(label))`, zero for ignored rows; `dy` is a scalar.
    fn cross_entropy_gradient(
        &self,
        x: &Tensor,
        labels: &Tensor,
        ignore: Option<i64>,
        scale: f64,
        dy: &Tensor,
        out: &Tensor,
    ) -> Result<()>;
    /// Normalises rows of `x [rows, features]` to mean 0 and variance 1 (biased), then
    /// `·weight + bias` (each `[features]`). `mean` and `rstd` `[rows]` are kept, in the type that
    /// sums are kept in.
    #[allow(clippy::too_many_arguments)]
    fn layer_norm(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f64,
        out: &Tensor,
        mean: &Tensor,
        rstd: &Tensor,
    ) -> Result<()>;
    /// The gradients of `layer_norm`, each where it is wanted.
    #[allow(clippy::too_many_arguments)]
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
    ) -> Result<()>;

    /// Pooling along the last axis. For the maximum, `indices` (i32, shape of `out`) gets the
    /// position of each maximum along the input.
    fn pool(
        &self,
        pool: Pool,
        geometry: &PoolGeometry,
        x: &Tensor,
        out: &Tensor,
        indices: Option<&Tensor>,
    ) -> Result<()>;
    /// The gradient of `pool`; `indices` as it left them.
    fn pool_gradient(
        &self,
        pool: Pool,
        geometry: &PoolGeometry,
        dy: &Tensor,
        indices: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<()>;

    /// `out[to] = x[from]` for every index of `extents`: transposes, cuts and joins are all this.
    /// Elements of `out` outside the window stay as they are. Any dtype. `x` may be uniform.
    fn copy_window(
        &self,
        extents: &[usize],
        x: &Tensor,
        from: &Window,
        out: &Tensor,
        to: &Window,
    ) -> Result<()>;
    /// `out[.., i, ..] = x[.., index[.., i, ..], ..]` along `axis`: `index` (i32 or i64, checked to
    /// be in range) has the shape of `out`, and the other axes of `x`.
    fn gather(&self, x: &Tensor, axis: usize, index: &Tensor, out: &Tensor) -> Result<()>;
    /// The gradient of `gather`: `out` starts at zero, and `dy` is added at the indices.
    fn scatter_add(&self, dy: &Tensor, axis: usize, index: &Tensor, out: &Tensor) -> Result<()>;
    /// The smallest and the largest element of an integer tensor, ignoring elements equal to
    /// `ignore`; `(i64::MAX, i64::MIN)` where nothing is left.
    fn index_range(&self, index: &Tensor, ignore: Option<i64>) -> Result<(i64, i64)>;

    /// The algorithms for a planned operation. An algorithm without workspace is always among
    /// them.
    fn candidates(&self, query: &Query, terms: Terms) -> Vec<Candidate>;
    /// Runs one of them. Operands as [`Query`] says; `workspace` has `candidate.workspace` bytes.
    fn run(
        &self,
        query: &Query,
        candidate: &Candidate,
        operands: &[&Tensor],
        out: &Tensor,
        workspace: Option<&Storage>,
    ) -> Result<()>;

    /// One optimiser step, in place. `state` holds the momentum, or both moments, in the type that
    /// sums are kept in. `gradient` may be uniform.
    fn update(
        &self,
        update: Update,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[&Tensor],
    ) -> Result<()>;
}
