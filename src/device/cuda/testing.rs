//! The GPU that unit tests run on.

use crate::{CudaOptions, Device};

/// A device on it whose new memory is poisoned, or `None` where a missing one may be skipped.
pub(super) fn gpu() -> Option<Device> {
    gpu_with(CudaOptions { poison: true, ..Default::default() })
}

/// The same, made as the options say.
pub(super) fn gpu_with(options: CudaOptions) -> Option<Device> {
    match Device::new_cuda(0, options) {
        Ok(device) => Some(device),
        Err(error) if std::env::var("CAPGRAD_REQUIRE_CUDA").is_ok_and(|v| v == "1") => {
            panic!("CAPGRAD_REQUIRE_CUDA=1, but {error}")
        }
        Err(error) => {
            eprintln!("skipped on CUDA: {error}");
            None
        }
    }
}
