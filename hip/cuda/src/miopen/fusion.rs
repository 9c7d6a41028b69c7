//! Fusion plans: they can be made, and none compiles, as for a shape that MIOpen has no fused kernel for. The
//! convolution and a kernel take their place. (cuDNN's fused call would take f32 and f16 in one of its algorithms
//! alone.)

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
