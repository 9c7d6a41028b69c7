//! Fusion plans. A plan can be created, but none compiles, as if MIOpen had no fused kernel for the
//! shape. The caller then runs a convolution and another kernel. cuDNN's fused call is not used,
//! because it supports f32 and f16 in only one of its algorithms.

use super::handle::Handle;
use core::convert::Infallible;
use core::ffi::c_void;
use hip_provider::miopen::{Activation, Convolution, ConvolutionBuffers, Fusions, Outcome, Tensor};
use miopen_sys::miopenStatusUnsupportedOp;

impl Fusions for Handle {
    type Fused = Infallible;

    fn fuse(_: &Convolution, _: [&Tensor; 3]) -> Outcome<Infallible> {
        Err(miopenStatusUnsupportedOp)
    }

    fn fused_workspace(fused: &Infallible) -> usize {
        match *fused {}
    }

    unsafe fn run_fused(
        fused: &Infallible,
        _: &Tensor,
        _: ConvolutionBuffers,
        _: Option<*const c_void>,
        _: Activation,
    ) -> Outcome {
        match *fused {}
    }
}
