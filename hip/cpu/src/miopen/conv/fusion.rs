//! Fusion plans: a convolution, optionally a bias, and an activation.

use super::super::Shared;
use super::super::activation::Activation;
use super::super::handle::Handle;
use super::super::status::{input, output};
use super::call::Call;
use crate::runtime::{enqueue, parallel};
use core::ffi::c_void;
use hip_provider::miopen::{
    self as provider, Convolution, ConvolutionBuffers, Fusions, Kind, Outcome, Tensor,
};

impl Fusions for Handle {
    type Fused = Call;

    fn fuse(conv: &Convolution, tensors: [&Tensor; 3]) -> Outcome<Call> {
        tensors.iter().try_for_each(|tensor| tensor.require_packed())?;
        Call::new(Kind::Forward, conv, tensors)
    }

    fn fused_workspace(call: &Call) -> usize {
        call.workspace()
    }

    unsafe fn run_fused(
        call: &Call,
        output: &Tensor,
        buffers: ConvolutionBuffers,
        bias: Option<*const c_void>,
        activation: provider::Activation,
    ) -> Outcome {
        let (call, count, planes) = (call.clone(), output.count(), output.planes()?);
        let run = move || {
            // SAFETY: the caller's buffers; the written one overlaps no other.
            unsafe {
                call.run(buffers)?;
                finish(count, planes, buffers.y, bias, (&activation).into())
            }
        };
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(run) }
    }
}

/// `y = activation(y + bias)`.
///
/// # Safety
/// `y` is the output's buffer, and no other code uses it meanwhile.
unsafe fn finish(
    count: usize,
    (batch, channels, pixels): (usize, usize, usize),
    y: *mut c_void,
    bias: Option<*const c_void>,
    activation: Activation,
) -> Outcome {
    // SAFETY: the caller's buffers, whose sizes are checked here.
    let (y, bias) = unsafe {
        let y = output::<f32>(y, count)?;
        (y, bias.map(|bias| input::<f32>(bias, channels)).transpose()?)
    };
    let y = Shared(y.as_mut_ptr());
    parallel(batch * channels, |plane| {
        let add = bias.map_or(0.0, |bias| bias[plane % channels]);
        // SAFETY: each plane is one task's alone.
        let plane = unsafe { core::slice::from_raw_parts_mut(y.get().add(plane * pixels), pixels) };
        plane.iter_mut().for_each(|value| *value = activation.forward(*value + add));
    });
    Ok(())
}
