//! cuDNN's algorithms by number: what the queries return is a number, which a newer library may have
//! more of than the bindings know.

use crate::device::spec::ConvPass;
use cudarc::cudnn::sys;

pub(super) fn forward(algorithm: u32) -> Option<sys::cudnnConvolutionFwdAlgo_t> {
    use sys::cudnnConvolutionFwdAlgo_t::*;
    [
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
        CUDNN_CONVOLUTION_FWD_ALGO_DIRECT,
        CUDNN_CONVOLUTION_FWD_ALGO_FFT,
        CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
        CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
    ]
    .into_iter()
    .find(|known| *known as u32 == algorithm)
}

pub(super) fn input_gradient(algorithm: u32) -> Option<sys::cudnnConvolutionBwdDataAlgo_t> {
    use sys::cudnnConvolutionBwdDataAlgo_t::*;
    [
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT,
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
        CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
    ]
    .into_iter()
    .find(|known| *known as u32 == algorithm)
}

pub(super) fn weight_gradient(algorithm: u32) -> Option<sys::cudnnConvolutionBwdFilterAlgo_t> {
    use sys::cudnnConvolutionBwdFilterAlgo_t::*;
    [
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
    ]
    .into_iter()
    .find(|known| *known as u32 == algorithm)
}

/// The library's name of an algorithm, shortened.
pub(in crate::device::cuda) fn algorithm_name(pass: ConvPass, algorithm: u32) -> &'static str {
    match (pass, algorithm) {
        (ConvPass::Forward, 0) => "implicit gemm",
        (ConvPass::Forward, 1) => "implicit precomputed gemm",
        (ConvPass::Forward, 2) => "gemm",
        (ConvPass::Forward, 3) => "direct",
        (ConvPass::Forward, 4) | (_, 2) => "fft",
        (ConvPass::Forward, 5) | (ConvPass::InputGradient, 3) | (ConvPass::WeightGradient, 6) => {
            "tiled fft"
        }
        (ConvPass::Forward, 6) | (_, 4) => "winograd",
        (ConvPass::Forward, 7) | (_, 5) => "nonfused winograd",
        (_, 0) => "algorithm 0",
        (_, 1) => "algorithm 1",
        (_, 3) => "algorithm 3",
        _ => "unnamed",
    }
}
