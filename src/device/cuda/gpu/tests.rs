//! Whatever context a thread had before the crate worked on it, it has afterwards.

use crate::device::cuda::error::Check;
use crate::{Conv1d, CudaOptions, DType, Device, Padding, Tape, Tensor};
use cudarc::driver::sys;

fn current() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: a valid place for the result.
    unsafe { sys::cuCtxGetCurrent(&mut context) }.check("cuCtxGetCurrent").unwrap();
    context
}

#[test]
fn the_callers_context_stays() {
    let Some(gpu) = crate::device::cuda::testing::gpu() else { return };
    let mut context = std::ptr::null_mut();
    // SAFETY: a valid place for the result, and a device that is there. The context becomes this
    // thread's.
    unsafe { sys::cuCtxCreate_v4(&mut context, std::ptr::null_mut(), 0, 0) }
        .check("cuCtxCreate")
        .unwrap();
    assert_eq!(current(), context);
    let second = Device::new_cuda(0, CudaOptions { through_host: true, ..Default::default() });
    let second = second.unwrap();
    assert_eq!(current(), context);
    let conv = Conv1d::builder(8, 8, 5).padding(Padding::Same).build(&gpu).unwrap();
    let x = Tensor::rand([4, 8, 4096], DType::F32, &gpu).unwrap();
    let tape = Tape::new();
    let y = conv.forward(&tape.constant(x)).unwrap().to(&second).unwrap();
    assert_eq!(current(), context);
    let loss = y.square().unwrap().mean().unwrap();
    assert!(loss.item().unwrap() > 0.0);
    drop(y);
    assert_eq!(current(), context);
    let grads = loss.backward().unwrap();
    assert_eq!(current(), context);
    drop(grads);
    gpu.trim().unwrap();
    second.trim().unwrap();
    drop(second);
    assert_eq!(current(), context);
    // SAFETY: nothing was made in it.
    unsafe { sys::cuCtxDestroy_v2(context) }.check("cuCtxDestroy").unwrap();
}
