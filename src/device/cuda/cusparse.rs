//! cuSPARSE: a handle, and the one product that is called, of a matrix in compressed rows with dense
//! vectors: to the library one is a vector, and several are a matrix.

use super::Cuda;
use super::error::Check;
use crate::dtype::DType;
use crate::error::{Error, Result};
use cudarc::cusparse::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

pub(super) struct Cusparse {
    handle: sys::cusparseHandle_t,
}

// SAFETY: a handle may be used from any thread, one at a time, which its lock sees to.
unsafe impl Send for Cusparse {}

/// Which of the library's algorithms; the first two take one vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    SpmvCsr1,
    SpmvCsr2,
    SpmmCsr1,
    SpmmCsr2,
    SpmmCsr3,
}

/// An algorithm as the library's numbers for the two routines.
enum Routine {
    Spmv(sys::cusparseSpMVAlg_t),
    Spmm(sys::cusparseSpMMAlg_t),
}

impl Algorithm {
    fn routine(self) -> Routine {
        use sys::{cusparseSpMMAlg_t::*, cusparseSpMVAlg_t::*};
        match self {
            Algorithm::SpmvCsr1 => Routine::Spmv(CUSPARSE_SPMV_CSR_ALG1),
            Algorithm::SpmvCsr2 => Routine::Spmv(CUSPARSE_SPMV_CSR_ALG2),
            Algorithm::SpmmCsr1 => Routine::Spmm(CUSPARSE_SPMM_CSR_ALG1),
            Algorithm::SpmmCsr2 => Routine::Spmm(CUSPARSE_SPMM_CSR_ALG2),
            Algorithm::SpmmCsr3 => Routine::Spmm(CUSPARSE_SPMM_CSR_ALG3),
        }
    }
}

/// An algorithm that takes a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SparseOffer {
    pub(super) algorithm: Algorithm,
    /// For a plan.
    pub(super) name: &'static str,
    /// Whether NVIDIA's documentation says that every run gives the same bits.
    pub(super) deterministic: bool,
}

const SPMV_1: SparseOffer = SparseOffer {
    algorithm: Algorithm::SpmvCsr1,
    name: "cuSPARSE SpMV CSR ALG1",
    deterministic: false,
};
const SPMV_2: SparseOffer = SparseOffer {
    algorithm: Algorithm::SpmvCsr2,
    name: "cuSPARSE SpMV CSR ALG2",
    deterministic: true,
};
const SPMM_1: SparseOffer = SparseOffer {
    algorithm: Algorithm::SpmmCsr1,
    name: "cuSPARSE SpMM CSR ALG1",
    deterministic: false,
};
const SPMM_2: SparseOffer = SparseOffer {
    algorithm: Algorithm::SpmmCsr2,
    name: "cuSPARSE SpMM CSR ALG2",
    deterministic: false,
};
const SPMM_3: SparseOffer = SparseOffer {
    algorithm: Algorithm::SpmmCsr3,
    name: "cuSPARSE SpMM CSR ALG3",
    deterministic: true,
};

/// `out = A·x + beta·out`, or with `Aᵀ`, where `A` is `[rows, cols]` in compressed rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SparseCall {
    pub(super) transposed: bool,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) nnz: usize,
    /// Whether the offsets of rows are i64; columns are i32.
    pub(super) wide_offsets: bool,
    /// Dense vectors.
    pub(super) width: usize,
    /// Whether each dense vector is contiguous, `[width, length]`; else they lie side by side,
    /// `[length, width]`.
    pub(super) by_rows: bool,
    pub(super) dtype: DType,
    /// Whether `beta` is 1; else it is 0.
    pub(super) accumulate: bool,
    pub(super) algorithm: Algorithm,
}

/// Addresses of the matrix's parts and of the dense vectors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SparseOperands {
    pub(super) offsets: u64,
    pub(super) columns: u64,
    pub(super) values: u64,
    pub(super) x: u64,
    pub(super) out: u64,
}

impl SparseCall {
    /// The algorithms that take this call, whatever its own is.
    pub(super) fn algorithms(&self) -> &'static [SparseOffer] {
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        match (self.width, self.transposed) {
            _ if !self.dtype.is_float() => &[],
            (1, false) => &[SPMV_1, SPMV_2],
            // The second is the first under another name.
            (1, true) => &[SPMV_1],
            // Halves have the third alone, whichever is named, and the third takes no transpose.
            (_, false) if half => &[SPMM_3],
            (_, true) if half => &[],
            (_, false) => &[SPMM_1, SPMM_2, SPMM_3],
            (_, true) => &[SPMM_1, SPMM_2],
        }
    }

    /// Whether there is something to compute and the numbers fit the library's: it documents
    /// offsets and columns that are both of 32 bits or both of 64, and columns are of 32 here.
    pub(super) fn fits(&self) -> bool {
        let sizes = [self.rows, self.cols, self.nnz, self.width];
        !self.wide_offsets && sizes.iter().all(|&size| (1..=i32::MAX as usize).contains(&size))
    }

    /// Lengths of a vector of `x` and of one of `out`.
    fn lengths(&self) -> (usize, usize) {
        match self.transposed {
            true => (self.rows, self.cols),
            false => (self.cols, self.rows),
        }
    }

    fn value_type(&self) -> sys::cudaDataType {
        match self.dtype {
            DType::F64 => sys::cudaDataType::CUDA_R_64F,
            DType::F16 => sys::cudaDataType::CUDA_R_16F,
            DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
            _ => sys::cudaDataType::CUDA_R_32F,
        }
    }
}

impl Cusparse {
    pub(super) fn new() -> Result<Cusparse> {
        let mut handle = null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cusparseCreate(&mut handle) }.check("cusparseCreate")?;
        let host = sys::cusparsePointerMode_t::CUSPARSE_POINTER_MODE_HOST;
        // SAFETY: the handle was just made.
        unsafe { sys::cusparseSetPointerMode(handle, host) }.check("cusparseSetPointerMode")?;
        Ok(Cusparse { handle })
    }

    /// As the library numbers it: 12603 is 12.6.3; 0 where it does not say.
    pub(super) fn version(&self) -> i32 {
        let mut version = 0;
        // SAFETY: a valid place for the result.
        let _ = unsafe { sys::cusparseGetVersion(self.handle, &mut version) };
        version
    }
}

/// The descriptor of a matrix in compressed rows.
struct Rows(sys::cusparseConstSpMatDescr_t);

impl Rows {
    fn new(call: &SparseCall, operands: &SparseOperands) -> Result<Rows> {
        let index = sys::cusparseIndexType_t::CUSPARSE_INDEX_32I;
        let mut made = std::ptr::null();
        // SAFETY: a valid place for the result; the addresses are only noted down.
        unsafe {
            sys::cusparseCreateConstCsr(
                &mut made,
                call.rows as i64,
                call.cols as i64,
                call.nnz as i64,
                operands.offsets as *const c_void,
                operands.columns as *const c_void,
                operands.values as *const c_void,
                index,
                index,
                sys::cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO,
                call.value_type(),
            )
        }
        .check("cusparseCreateConstCsr")?;
        Ok(Rows(made))
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: it is its own.
        unsafe { sys::cusparseDestroySpMat(self.0) };
    }
}

/// The descriptor of one dense vector.
struct Vector(sys::cusparseDnVecDescr_t);

impl Vector {
    fn new(call: &SparseCall, length: usize, address: u64) -> Result<Vector> {
        let mut made = null_mut();
        let (address, kind) = (address as *mut c_void, call.value_type());
        // SAFETY: a valid place for the result; the address is only noted down.
        unsafe { sys::cusparseCreateDnVec(&mut made, length as i64, address, kind) }
            .check("cusparseCreateDnVec")?;
        Ok(Vector(made))
    }
}

impl Drop for Vector {
    fn drop(&mut self) {
        // SAFETY: it is its own.
        unsafe { sys::cusparseDestroyDnVec(self.0) };
    }
}

/// The descriptor of dense vectors as the columns of a matrix.
struct Matrix(sys::cusparseDnMatDescr_t);

impl Matrix {
    fn new(call: &SparseCall, length: usize, address: u64) -> Result<Matrix> {
        let (order, stride) = match call.by_rows {
            true => (sys::cusparseOrder_t::CUSPARSE_ORDER_COL, length),
            false => (sys::cusparseOrder_t::CUSPARSE_ORDER_ROW, call.width),
        };
        let mut made = null_mut();
        // SAFETY: a valid place for the result; the address is only noted down.
        unsafe {
            sys::cusparseCreateDnMat(
                &mut made,
                length as i64,
                call.width as i64,
                stride as i64,
                address as *mut c_void,
                call.value_type(),
                order,
            )
        }
        .check("cusparseCreateDnMat")?;
        Ok(Matrix(made))
    }
}

impl Drop for Matrix {
    fn drop(&mut self) {
        // SAFETY: it is its own.
        unsafe { sys::cusparseDestroyDnMat(self.0) };
    }
}

/// What is asked of the library about a call.
enum Ask<'a> {
    /// The bytes of its buffer.
    Bytes(&'a mut usize),
    /// To enqueue it, with a buffer at this address.
    Run(u64),
}

impl Cuda {
    /// Bytes of the buffer that a call needs; an error where the library does not take the call.
    pub(super) fn sparse_buffer(&self, call: &SparseCall) -> Result<usize> {
        // The library notes addresses down and reads nothing, so any aligned one serves.
        let place = self.scratch().address();
        let operands =
            SparseOperands { offsets: place, columns: place, values: place, x: place, out: place };
        let mut bytes = 0;
        self.sparse(call, &operands, Ask::Bytes(&mut bytes))?;
        Ok(bytes)
    }

    /// Enqueues a call. The buffer is an address and its bytes, as many as `sparse_buffer` says or
    /// more; of 0 bytes it is an address that the library does not mistake for none.
    pub(super) fn sparse_call(
        &self,
        call: &SparseCall,
        operands: &SparseOperands,
        (address, bytes): (u64, usize),
    ) -> Result<()> {
        let address = if bytes == 0 { self.scratch().address() } else { address };
        self.sparse(call, operands, Ask::Run(address))
    }

    fn sparse(&self, call: &SparseCall, operands: &SparseOperands, ask: Ask) -> Result<()> {
        use sys::cusparseOperation_t::{
            CUSPARSE_OPERATION_NON_TRANSPOSE as PLAIN, CUSPARSE_OPERATION_TRANSPOSE as TRANSPOSE,
        };
        let Some(cusparse) = self.cusparse() else {
            return Err(Error::driver("cuSPARSE", "the library is not here"));
        };
        if !call.fits() || !call.algorithms().iter().any(|offer| offer.algorithm == call.algorithm)
        {
            return Err(Error::driver("cuSPARSE", format!("it does not take {call:?}")));
        }
        let cusparse = cusparse.lock();
        let _entered = self.gpu().enter()?;
        let handle = cusparse.handle;
        let operation = if call.transposed { TRANSPOSE } else { PLAIN };
        let compute = match call.dtype {
            DType::F64 => sys::cudaDataType::CUDA_R_64F,
            _ => sys::cudaDataType::CUDA_R_32F,
        };
        // The factors are of the type that is computed in.
        let beta = f32::from(u8::from(call.accumulate));
        let (one, beta) = ((1.0f32, 1.0f64), (beta, f64::from(beta)));
        let factor = |pair: &(f32, f64)| match call.dtype {
            DType::F64 => (&raw const pair.1).cast::<c_void>(),
            _ => (&raw const pair.0).cast::<c_void>(),
        };
        let (one, beta) = (factor(&one), factor(&beta));
        let (x_length, out_length) = call.lengths();
        let a = Rows::new(call, operands)?;
        // SAFETY: the handle is locked, and the stream is this device's.
        unsafe { sys::cusparseSetStream(handle, self.stream().cast()) }
            .check("cusparseSetStream")?;
        match call.algorithm.routine() {
            Routine::Spmv(algorithm) => {
                let x = Vector::new(call, x_length, operands.x)?;
                let out = Vector::new(call, out_length, operands.out)?;
                match ask {
                    // SAFETY: the handle is locked, the descriptors are alive, the factors are on
                    // this machine's side, and there is a place for the result.
                    Ask::Bytes(bytes) => unsafe {
                        sys::cusparseSpMV_bufferSize(
                            handle, operation, one, a.0, x.0, beta, out.0, compute, algorithm,
                            bytes,
                        )
                    }
                    .check("cusparseSpMV_bufferSize"),
                    // SAFETY: as above; the operands are as large as their sizes say, which `ops`
                    // and the candidates checked, and the buffer has the bytes that the library
                    // asked for, used in the stream's order.
                    Ask::Run(buffer) => unsafe {
                        sys::cusparseSpMV(
                            handle,
                            operation,
                            one,
                            a.0,
                            x.0,
                            beta,
                            out.0,
                            compute,
                            algorithm,
                            buffer as *mut c_void,
                        )
                    }
                    .check("cusparseSpMV"),
                }
            }
            Routine::Spmm(algorithm) => {
                let x = Matrix::new(call, x_length, operands.x)?;
                let out = Matrix::new(call, out_length, operands.out)?;
                match ask {
                    // SAFETY: as for one vector.
                    Ask::Bytes(bytes) => unsafe {
                        sys::cusparseSpMM_bufferSize(
                            handle, operation, PLAIN, one, a.0, x.0, beta, out.0, compute,
                            algorithm, bytes,
                        )
                    }
                    .check("cusparseSpMM_bufferSize"),
                    // SAFETY: as for one vector.
                    Ask::Run(buffer) => unsafe {
                        sys::cusparseSpMM(
                            handle,
                            operation,
                            PLAIN,
                            one,
                            a.0,
                            x.0,
                            beta,
                            out.0,
                            compute,
                            algorithm,
                            buffer as *mut c_void,
                        )
                    }
                    .check("cusparseSpMM"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> SparseCall {
        SparseCall {
            transposed: false,
            rows: 300,
            cols: 200,
            nnz: 5000,
            wide_offsets: false,
            width: 16,
            by_rows: false,
            dtype: DType::F32,
            accumulate: false,
            algorithm: Algorithm::SpmmCsr2,
        }
    }

    #[test]
    fn one_vector_has_the_algorithms_for_vectors() {
        let plain = SparseCall { width: 1, ..call() };
        assert_eq!(plain.algorithms(), [SPMV_1, SPMV_2]);
        assert_eq!(SparseCall { transposed: true, ..plain }.algorithms(), [SPMV_1]);
        assert_eq!(SparseCall { dtype: DType::BF16, ..plain }.algorithms(), [SPMV_1, SPMV_2]);
    }

    #[test]
    fn the_third_takes_no_transpose_and_is_all_that_halves_have() {
        assert_eq!(call().algorithms(), [SPMM_1, SPMM_2, SPMM_3]);
        let transposed = SparseCall { transposed: true, ..call() };
        assert_eq!(transposed.algorithms(), [SPMM_1, SPMM_2]);
        for dtype in [DType::F16, DType::BF16] {
            assert_eq!(SparseCall { dtype, ..call() }.algorithms(), [SPMM_3]);
            assert_eq!(SparseCall { dtype, ..transposed }.algorithms(), []);
        }
        assert_eq!(SparseCall { dtype: DType::I64, ..call() }.algorithms(), []);
    }

    #[test]
    fn no_transpose_is_deterministic() {
        for (width, dtype) in [(1, DType::F32), (1, DType::F16), (16, DType::F32), (16, DType::F64)]
        {
            let plain = SparseCall { width, dtype, ..call() };
            assert!(plain.algorithms().iter().any(|offer| offer.deterministic));
            let transposed = SparseCall { transposed: true, ..plain };
            assert!(transposed.algorithms().iter().all(|offer| !offer.deterministic));
        }
    }

    #[test]
    fn sizes_fit_32_bits_and_none_is_zero() {
        let most = i32::MAX as usize;
        assert!(SparseCall { rows: most, cols: most, nnz: most, ..call() }.fits());
        for size in [0, most + 1] {
            assert!(!SparseCall { rows: size, ..call() }.fits());
            assert!(!SparseCall { cols: size, ..call() }.fits());
            assert!(!SparseCall { nnz: size, ..call() }.fits());
            assert!(!SparseCall { width: size, ..call() }.fits());
        }
        assert!(!SparseCall { wide_offsets: true, ..call() }.fits());
    }

    #[test]
    fn a_transpose_swaps_the_lengths() {
        assert_eq!(call().lengths(), (200, 300));
        assert_eq!(SparseCall { transposed: true, ..call() }.lengths(), (300, 200));
    }
}
