//! cuBLAS: a handle, and the one product that is called, on row-major matrices. The library gets its
//! workspace at every call, so that it never takes one of its own.

use super::Cuda;
use super::error::Check;
use super::scratch::SCRATCH_BYTES;
use crate::dtype::DType;
use crate::error::{Error, Result};
use cudarc::cublas::sys;
use std::ffi::c_void;

pub(super) struct Cublas {
    handle: sys::cublasHandle_t,
}

// SAFETY: a handle may be used from any thread, one at a time, which its lock sees to.
unsafe impl Send for Cublas {}

/// A matrix in memory: row-major with `stride` elements between rows, or the transpose of that.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Operand {
    pub(super) transposed: bool,
    pub(super) stride: usize,
    /// Elements between the matrices of a batch; 0 repeats one.
    pub(super) batch: usize,
}

impl Operand {
    /// Row-major.
    pub(super) fn rows(stride: usize, batch: usize) -> Operand {
        Operand { transposed: false, stride, batch }
    }

    /// The transpose of a row-major matrix.
    pub(super) fn columns(stride: usize, batch: usize) -> Operand {
        Operand { transposed: true, stride, batch }
    }
}

/// `c[i] = a[i] · b[i] + beta · c[i]`, `[m, k] · [k, n]`, for each matrix of a batch. `c` is
/// row-major, like an [`Operand`] that is not transposed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Product {
    pub(super) batch: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) c: Operand,
    pub(super) beta: f64,
    pub(super) dtype: DType,
    pub(super) tf32: bool,
}

impl Product {
    /// Whether there are too few tiles for the chip, and sums that can be cut.
    pub(super) fn few_tiles(&self, multiprocessors: usize) -> bool {
        let tiles = self.m.div_ceil(128).saturating_mul(self.n.div_ceil(128));
        tiles.saturating_mul(self.batch) < multiprocessors && self.k >= 4096
    }

    /// Whether all sizes fit the library's 32-bit numbers.
    pub(super) fn fits(&self) -> bool {
        let sizes =
            [self.batch, self.m, self.n, self.k, self.a.stride, self.b.stride, self.c.stride];
        sizes.iter().all(|&size| size <= i32::MAX as usize)
    }
}

impl Cublas {
    pub(super) fn new() -> Result<Cublas> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cublasCreate_v2(&mut handle) }.check("cublasCreate")?;
        // Partial sums of halves stay in f32, as all sums of halves do here.
        let math = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle was just made.
        unsafe { sys::cublasSetMathMode(handle, math) }.check("cublasSetMathMode")?;
        Ok(Cublas { handle })
    }

    /// As the library numbers it: 120406 is 12.4.6; 0 where it does not say.
    pub(super) fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: a valid place for the result.
        let _ = unsafe { sys::cublasGetVersion_v2(self.handle, &mut version) };
        version
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}

impl Cuda {
    /// Enqueues a product. `workspace` is an address and its bytes; with 0 bytes the device's
    /// scratch serves.
    pub(super) fn product(
        &self,
        product: &Product,
        a: u64,
        b: u64,
        c: u64,
        workspace: (u64, usize),
    ) -> Result<()> {
        use sys::cublasComputeType_t::*;
        use sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
        let Some(cublas) = self.cublas() else {
            return Err(Error::driver("cublasGemmStridedBatchedEx", "cuBLAS is not here"));
        };
        let scratch = self.scratch();
        let cublas = cublas.lock();
        let _entered = self.gpu().enter()?;
        let (address, bytes) = match workspace {
            (_, 0) => (scratch.address(), SCRATCH_BYTES),
            given => given,
        };
        let operation =
            |operand: Operand| if operand.transposed { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let compute = match product.dtype {
            DType::F64 => CUBLAS_COMPUTE_64F,
            DType::F32 if product.tf32 => CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => CUBLAS_COMPUTE_32F,
        };
        // The factors are of the type that is computed in.
        let (one, beta) = ((1.0f32, 1.0f64), (product.beta as f32, product.beta));
        let factor = |pair: &(f32, f64)| match product.dtype {
            DType::F64 => (&raw const pair.1).cast::<c_void>(),
            _ => (&raw const pair.0).cast::<c_void>(),
        };
        let kind = data_type(product.dtype);
        // A row-major matrix is the transpose of a column-major one, so the library is asked for
        // cᵀ = bᵀ·aᵀ.
        let (first, second) = (product.b, product.a);
        // SAFETY: the handle is locked; the workspace is a block of this device of that size, used
        // in the stream's order; the operands are as large as their sizes say, which `ops` and the
        // candidates checked, and `fits` holds for sizes that candidates are made of.
        unsafe {
            sys::cublasSetStream_v2(cublas.handle, self.stream().cast())
                .check("cublasSetStream")?;
            // After the stream, which resets it.
            sys::cublasSetWorkspace_v2(cublas.handle, address as *mut c_void, bytes)
                .check("cublasSetWorkspace")?;
            sys::cublasGemmStridedBatchedEx(
                cublas.handle,
                operation(first),
                operation(second),
                product.n as i32,
                product.m as i32,
                product.k as i32,
                factor(&one),
                b as *const c_void,
                kind,
                first.stride.max(1) as i32,
                first.batch as i64,
                a as *const c_void,
                kind,
                second.stride.max(1) as i32,
                second.batch as i64,
                factor(&beta),
                c as *mut c_void,
                kind,
                product.c.stride.max(1) as i32,
                product.c.batch as i64,
                product.batch as i32,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
            .check("cublasGemmStridedBatchedEx")
        }
    }
}
