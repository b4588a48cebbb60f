//! cuDNN: a handle, descriptors that free themselves, and the convolution calls. A 1-d convolution is
//! a 2-d one of height 1. Every algorithm that the library's queries return is given on.

mod algorithms;
mod descriptors;

pub(super) use algorithms::algorithm_name;

use super::Cuda;
use super::error::Check;
use crate::device::spec::ConvPass;
use crate::dtype::DType;
use crate::error::{Error, Result};
use algorithms::{forward, input_gradient, weight_gradient};
use cudarc::cudnn::sys;
use descriptors::Descriptors;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

pub(super) struct Cudnn {
    handle: sys::cudnnHandle_t,
    /// Descriptors by problem: making them takes as long as a small convolution.
    known: HashMap<Problem, Arc<Descriptors>>,
}

// SAFETY: a handle may be used from any thread, one at a time, which its lock sees to.
unsafe impl Send for Cudnn {}

/// Problems whose descriptors are kept; past that all are forgotten.
const KEPT: usize = 1024;

/// How the library may round f32 on its way into a product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Math {
    /// TF32 for f32; the plain units for halves.
    Default,
    /// Tensor cores.
    TensorOp,
    /// f32 as it is.
    Fma,
}

impl Math {
    fn raw(self) -> sys::cudnnMathType_t {
        match self {
            Math::Default => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            Math::TensorOp => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
            Math::Fma => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        }
    }

    fn from_raw(raw: u32) -> Option<Math> {
        [Math::Default, Math::TensorOp, Math::Fma].into_iter().find(|math| math.raw() as u32 == raw)
    }
}

/// A tensor `[batch, channels, length]` in memory, by its strides in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Lines {
    pub(super) channels: usize,
    pub(super) length: usize,
    pub(super) batch_stride: usize,
    pub(super) channel_stride: usize,
    pub(super) stride: usize,
}

impl Lines {
    /// Contiguous, channels first.
    pub(super) fn first(channels: usize, length: usize) -> Lines {
        Lines {
            channels,
            length,
            batch_stride: channels * length,
            channel_stride: length,
            stride: 1,
        }
    }

    /// Contiguous, channels last.
    pub(super) fn last(channels: usize, length: usize) -> Lines {
        Lines {
            channels,
            length,
            batch_stride: channels * length,
            channel_stride: 1,
            stride: channels,
        }
    }
}

/// One convolution, as the library sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Problem {
    pub(super) pass: ConvPass,
    pub(super) dtype: DType,
    pub(super) math: Math,
    pub(super) channels_last: bool,
    pub(super) batch: usize,
    pub(super) x: Lines,
    pub(super) y: Lines,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) padding: usize,
    pub(super) groups: usize,
}

/// An algorithm that the library offers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Offer {
    pub(super) algorithm: u32,
    pub(super) workspace: u64,
    pub(super) math: Math,
    pub(super) deterministic: bool,
}

/// The library's result of a query, with plain numbers where a newer library may say something that
/// the bindings do not know.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Performance {
    algorithm: u32,
    status: u32,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

impl Cudnn {
    pub(super) fn new() -> Result<Cudnn> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid place for the result.
        unsafe { sys::cudnnCreate(&mut handle) }.check("cudnnCreate")?;
        Ok(Cudnn { handle, known: HashMap::new() })
    }

    fn descriptors(&mut self, problem: &Problem) -> Result<Arc<Descriptors>> {
        if let Some(known) = self.known.get(problem) {
            return Ok(known.clone());
        }
        let made = Arc::new(Descriptors::new(problem)?);
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        self.known.insert(*problem, made.clone());
        Ok(made)
    }

    /// Every algorithm that the library returns for a problem, in its own order.
    pub(super) fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>> {
        let d = self.descriptors(problem)?;
        let mut found = [Performance::default(); 16];
        let (room, mut count) = (found.len() as c_int, 0);
        let (out, handle) = (found.as_mut_ptr(), self.handle);
        // SAFETY: there is room for as many results as are asked for, and they have the layout that
        // the library writes.
        unsafe {
            match problem.pass {
                ConvPass::Forward => sys::cudnnGetConvolutionForwardAlgorithm_v7(
                    handle,
                    d.x,
                    d.w,
                    d.convolution,
                    d.y,
                    room,
                    &mut count,
                    out.cast(),
                ),
                ConvPass::InputGradient => sys::cudnnGetConvolutionBackwardDataAlgorithm_v7(
                    handle,
                    d.w,
                    d.y,
                    d.convolution,
                    d.x,
                    room,
                    &mut count,
                    out.cast(),
                ),
                ConvPass::WeightGradient => sys::cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                    handle,
                    d.x,
                    d.y,
                    d.convolution,
                    d.w,
                    room,
                    &mut count,
                    out.cast(),
                ),
            }
        }
        .check("cudnnGetConvolutionAlgorithm_v7")?;
        let count = count.clamp(0, room) as usize;
        let usable = found[..count].iter().filter(|result| result.status == 0);
        Ok(usable
            .filter_map(|result| {
                Some(Offer {
                    algorithm: result.algorithm,
                    workspace: result.memory as u64,
                    math: Math::from_raw(result.math)?,
                    deterministic: result.determinism == 1,
                })
            })
            .collect())
    }

    /// Workspace in bytes of an algorithm for a problem; `None` where it does not take the problem.
    pub(super) fn workspace(&mut self, problem: &Problem, algorithm: u32) -> Option<u64> {
        let d = self.descriptors(problem).ok()?;
        let (mut bytes, handle) = (0usize, self.handle);
        // SAFETY: a valid place for the result; the algorithm is one that the library named, which
        // `forward` and its kin check.
        unsafe {
            match problem.pass {
                ConvPass::Forward => sys::cudnnGetConvolutionForwardWorkspaceSize(
                    handle,
                    d.x,
                    d.w,
                    d.convolution,
                    d.y,
                    forward(algorithm)?,
                    &mut bytes,
                ),
                ConvPass::InputGradient => sys::cudnnGetConvolutionBackwardDataWorkspaceSize(
                    handle,
                    d.w,
                    d.y,
                    d.convolution,
                    d.x,
                    input_gradient(algorithm)?,
                    &mut bytes,
                ),
                ConvPass::WeightGradient => sys::cudnnGetConvolutionBackwardFilterWorkspaceSize(
                    handle,
                    d.x,
                    d.y,
                    d.convolution,
                    d.w,
                    weight_gradient(algorithm)?,
                    &mut bytes,
                ),
            }
        }
        .check("cudnnGetConvolutionWorkspaceSize")
        .ok()?;
        Some(bytes as u64)
    }
}

impl Cuda {
    /// Enqueues one convolution: `out = result + beta · out`. `operands` as the pass takes them: `x`
    /// and `w`, `dy` and `w`, or `x` and `dy`.
    pub(super) fn convolution(
        &self,
        problem: &Problem,
        algorithm: u32,
        operands: [u64; 2],
        out: u64,
        beta: f64,
        (workspace, bytes): (u64, u64),
    ) -> Result<()> {
        let absent = || Error::driver("cuDNN", "the library or the algorithm is not here");
        let mut cudnn = self.cudnn().ok_or_else(absent)?.lock();
        let _entered = self.gpu().enter()?;
        let d = cudnn.descriptors(problem)?;
        let (one, beta) = ((1.0f32, 1.0f64), (beta as f32, beta));
        let factor = |pair: &(f32, f64)| match problem.dtype {
            DType::F64 => (&raw const pair.1).cast::<c_void>(),
            _ => (&raw const pair.0).cast::<c_void>(),
        };
        let [first, second] = operands.map(|address| address as *const c_void);
        let (workspace, out) = (workspace as *mut c_void, out as *mut c_void);
        let handle = cudnn.handle;
        // SAFETY: the handle is locked; operands and result are as large as the problem's sizes say,
        // and the workspace has the bytes that the library asked for.
        unsafe {
            sys::cudnnSetStream(handle, self.stream().cast()).check("cudnnSetStream")?;
            match problem.pass {
                ConvPass::Forward => sys::cudnnConvolutionForward(
                    handle,
                    factor(&one),
                    d.x,
                    first,
                    d.w,
                    second,
                    d.convolution,
                    forward(algorithm).ok_or_else(absent)?,
                    workspace,
                    bytes as usize,
                    factor(&beta),
                    d.y,
                    out,
                )
                .check("cudnnConvolutionForward"),
                ConvPass::InputGradient => sys::cudnnConvolutionBackwardData(
                    handle,
                    factor(&one),
                    d.w,
                    second,
                    d.y,
                    first,
                    d.convolution,
                    input_gradient(algorithm).ok_or_else(absent)?,
                    workspace,
                    bytes as usize,
                    factor(&beta),
                    d.x,
                    out,
                )
                .check("cudnnConvolutionBackwardData"),
                ConvPass::WeightGradient => sys::cudnnConvolutionBackwardFilter(
                    handle,
                    factor(&one),
                    d.x,
                    first,
                    d.y,
                    second,
                    d.convolution,
                    weight_gradient(algorithm).ok_or_else(absent)?,
                    workspace,
                    bytes as usize,
                    factor(&beta),
                    d.w,
                    out,
                )
                .check("cudnnConvolutionBackwardFilter"),
            }
        }
    }
}
