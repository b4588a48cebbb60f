//! cuDNN's descriptors of one problem, made together and freed together.

use super::Problem;
use crate::device::cuda::error::Check;
use crate::dtype::DType;
use crate::error::{Error, Result};
use cudarc::cudnn::sys;
use std::ffi::c_int;

pub(super) struct Descriptors {
    pub(super) x: sys::cudnnTensorDescriptor_t,
    pub(super) y: sys::cudnnTensorDescriptor_t,
    pub(super) w: sys::cudnnFilterDescriptor_t,
    pub(super) convolution: sys::cudnnConvolutionDescriptor_t,
}

// SAFETY: descriptors are only read once they are set, and only while the handle is locked.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

/// A number that must fit the library's.
fn int(value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::driver("cuDNN", format!("{value} is over 2³¹")))
}

fn data_type(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

impl Descriptors {
    pub(super) fn new(problem: &Problem) -> Result<Descriptors> {
        use std::ptr::null_mut as null;
        let mut own = Descriptors { x: null(), y: null(), w: null(), convolution: null() };
        let kind = data_type(problem.dtype);
        let sums = match problem.dtype {
            DType::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
            _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let format = match problem.channels_last {
            true => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
            false => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
        };
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let groups = int(problem.groups)?;
        // SAFETY: each descriptor is made, then set; whichever exist are freed by `Drop`.
        unsafe {
            sys::cudnnCreateTensorDescriptor(&mut own.x).check("cudnnCreateTensorDescriptor")?;
            sys::cudnnCreateTensorDescriptor(&mut own.y).check("cudnnCreateTensorDescriptor")?;
            sys::cudnnCreateFilterDescriptor(&mut own.w).check("cudnnCreateFilterDescriptor")?;
            sys::cudnnCreateConvolutionDescriptor(&mut own.convolution)
                .check("cudnnCreateConvolutionDescriptor")?;
            for (descriptor, lines) in [(own.x, &problem.x), (own.y, &problem.y)] {
                sys::cudnnSetTensor4dDescriptorEx(
                    descriptor,
                    kind,
                    int(problem.batch)?,
                    int(lines.channels)?,
                    1,
                    int(lines.length)?,
                    int(lines.batch_stride)?,
                    int(lines.channel_stride)?,
                    // Of the axis of height 1: what it would be in a packed tensor.
                    int(lines.length * lines.stride)?,
                    int(lines.stride)?,
                )
                .check("cudnnSetTensor4dDescriptorEx")?;
            }
            sys::cudnnSetFilter4dDescriptor(
                own.w,
                kind,
                format,
                int(problem.y.channels)?,
                int(problem.x.channels / problem.groups)?,
                1,
                int(problem.kernel)?,
            )
            .check("cudnnSetFilter4dDescriptor")?;
            let (padding, stride, dilation) =
                (int(problem.padding)?, int(problem.stride)?, int(problem.dilation)?);
            sys::cudnnSetConvolution2dDescriptor(
                own.convolution,
                0,
                padding,
                1,
                stride,
                1,
                dilation,
                mode,
                sums,
            )
            .check("cudnnSetConvolution2dDescriptor")?;
            sys::cudnnSetConvolutionGroupCount(own.convolution, groups)
                .check("cudnnSetConvolutionGroupCount")?;
            sys::cudnnSetConvolutionMathType(own.convolution, problem.math.raw())
                .check("cudnnSetConvolutionMathType")?;
        }
        Ok(own)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: each is its own, or null where making it failed.
        unsafe {
            if !self.x.is_null() {
                sys::cudnnDestroyTensorDescriptor(self.x);
            }
            if !self.y.is_null() {
                sys::cudnnDestroyTensorDescriptor(self.y);
            }
            if !self.w.is_null() {
                sys::cudnnDestroyFilterDescriptor(self.w);
            }
            if !self.convolution.is_null() {
                sys::cudnnDestroyConvolutionDescriptor(self.convolution);
            }
        }
    }
}
