//! From the libraries' status codes to the crate's errors.

use crate::error::{Error, Result};
use cudarc::driver::sys::CUresult;
use cudarc::{cublas, cudnn, cusparse};

pub(super) fn unavailable(ordinal: usize, reason: impl Into<String>) -> Error {
    Error::DeviceNotAvailable { device: format!("cuda:{ordinal}"), reason: reason.into() }
}

/// A status that may be a failure of `call`.
pub(super) trait Check {
    fn check(self, call: &'static str) -> Result<()>;
}

impl Check for CUresult {
    fn check(self, call: &'static str) -> Result<()> {
        match self {
            CUresult::CUDA_SUCCESS => Ok(()),
            // The one who asked knows how much; it is filled in there.
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(Error::OutOfMemory { device: String::new(), requested: 0 })
            }
            status => Err(Error::driver(call, format!("{status:?}"))),
        }
    }
}

impl Check for cublas::sys::cublasStatus_t {
    fn check(self, call: &'static str) -> Result<()> {
        match self {
            cublas::sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
            status => Err(Error::driver(call, format!("{status:?}"))),
        }
    }
}

impl Check for cudnn::sys::cudnnStatus_t {
    fn check(self, call: &'static str) -> Result<()> {
        match self {
            cudnn::sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
            status => Err(Error::driver(call, format!("{status:?}"))),
        }
    }
}

impl Check for cusparse::sys::cusparseStatus_t {
    fn check(self, call: &'static str) -> Result<()> {
        match self {
            cusparse::sys::cusparseStatus_t::CUSPARSE_STATUS_SUCCESS => Ok(()),
            status => Err(Error::driver(call, format!("{status:?}"))),
        }
    }
}
