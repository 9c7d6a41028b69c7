//! Activations by cuDNN if it has the function with these parameters, else by this provider's
//! kernels.

use super::handle::{Handle, Operand, check};
use super::status::{answered, one, zero};
use crate::own_kernels;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Activation, Activations, Outcome, Own};
use miopen_sys::*;
use std::ptr;

/// cuDNN's descriptor, and whether cuDNN has the function.
pub(super) struct Raw {
    raw: cudnn::cudnnActivationDescriptor_t,
    known: bool,
}

/// What a `miopenActivationDescriptor_t` points to.
type Described = hip_provider::miopen::Described<Activation, Raw>;

/// `Activation` of `own.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Kernel {
    mode: i32,
    alpha: f32,
    beta: f32,
    gamma: f32,
}

impl From<&Activation> for Kernel {
    fn from(own: &Activation) -> Self {
        let [alpha, beta, gamma] = own.parameters.map(|parameter| parameter as f32);
        Kernel { mode: own.mode.0, alpha, beta, gamma }
    }
}

impl Own<Activation> for Raw {
    fn new() -> Outcome<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuDNN's, the pointer valid.
        answered(unsafe { cudnn::cudnnCreateActivationDescriptor(&mut raw) })?;
        Ok(Raw { raw, known: false })
    }

    fn set(&mut self, values: &Activation) -> Outcome {
        self.known = false;
        let [alpha, beta, _] = values.parameters;
        if let Some((mode, coefficient)) = raw_mode(values.mode, alpha, beta) {
            let nan = cudnn::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
            // SAFETY: cuDNN's descriptor.
            answered(unsafe { cudnn::cudnnSetActivationDescriptor(self.raw, mode, nan, coefficient) })?;
            self.known = true;
        }
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: cuDNN's descriptor; calls that read it have returned.
        let _ = unsafe { cudnn::cudnnDestroyActivationDescriptor(self.raw) };
    }
}

/// cuDNN's mode and coefficient for a mode of MIOpen's; `None` if cuDNN has none.
fn raw_mode(
    mode: miopenActivationMode_t,
    alpha: f64,
    beta: f64,
) -> Option<(cudnn::cudnnActivationMode_t, f64)> {
    use cudnn::cudnnActivationMode_t::*;
    Some(match mode {
        miopenActivationLOGISTIC => (CUDNN_ACTIVATION_SIGMOID, 0.0),
        miopenActivationTANH if alpha == 1.0 && beta == 1.0 => (CUDNN_ACTIVATION_TANH, 0.0),
        miopenActivationRELU => (CUDNN_ACTIVATION_RELU, 0.0),
        miopenActivationCLIPPEDRELU => (CUDNN_ACTIVATION_CLIPPED_RELU, alpha),
        miopenActivationELU => (CUDNN_ACTIVATION_ELU, alpha),
        _ => return None,
    })
}

/// Launches the kernel of `own.cu` over packed operands.
///
/// # Safety
/// The buffers are of their descriptors' sizes.
unsafe fn launch<const N: usize>(handle: &Handle, mut own: Kernel, operands: [&Operand<'_>; N]) -> Outcome {
    operands.iter().try_for_each(|operand| operand.require_packed())?;
    let x = operands[0];
    let backward = N == 4;
    let name = match (x.data, backward) {
        (miopenFloat, false) => "activation_forward<float>",
        (miopenFloat, true) => "activation_backward<float>",
        (miopenHalf, false) => "activation_forward<f16>",
        (miopenHalf, true) => "activation_backward<f16>",
        _ => return Err(miopenStatusNotImplemented),
    };
    let mut count = x.count() as u64;
    let mut buffers = operands.map(|operand| operand.at);
    let mut arguments = vec![(&raw mut own).cast(), (&raw mut count).cast()];
    arguments.extend(buffers.iter_mut().map(|buffer| ptr::from_mut(buffer).cast()));
    // SAFETY: the kernel's arguments; the buffers are the caller's.
    unsafe { own_kernels::launch(name, count, handle.stream(), &mut arguments) }
        .map_err(|_| miopenStatusInternalError)
}

impl Activations for Handle {
    type Own = Raw;

    unsafe fn activation_forward(&self, activation: &Described, x: &Operand<'_>, y: &Operand<'_>) -> Outcome {
        check(&[x, y])?;
        let Raw { raw, known } = activation.own;
        if !known {
            // SAFETY: the buffers were checked.
            return unsafe { launch(self, (&**activation).into(), [x, y]) };
        }
        let (alpha, beta) = (one(x.data), zero());
        let (xt, x, yt, y) = (x.own.raw, x.at, y.own.raw, y.at);
        // SAFETY: live handle and descriptors, buffers of their sizes, scalars of this program.
        answered(unsafe { cudnn::cudnnActivationForward(self.raw, raw, alpha, xt, x, beta, yt, y) })
    }

    unsafe fn activation_backward(
        &self,
        activation: &Described,
        x: &Operand<'_>,
        y: &Operand<'_>,
        dy: &Operand<'_>,
        dx: &Operand<'_>,
    ) -> Outcome {
        check(&[x, y, dy, dx])?;
        let Raw { raw, known } = activation.own;
        if !known {
            // SAFETY: the buffers were checked.
            return unsafe { launch(self, (&**activation).into(), [x, y, dy, dx]) };
        }
        let (alpha, beta) = (one(x.data), zero());
        let (xt, x, yt, y) = (x.own.raw, x.at, y.own.raw, y.at);
        let (dyt, dy, dxt, dx) = (dy.own.raw, dy.at, dx.own.raw, dx.at);
        // SAFETY: as above.
        answered(unsafe {
            cudnn::cudnnActivationBackward(self.raw, raw, alpha, yt, y, dyt, dy, xt, x, beta, dxt, dx)
        })
    }
}
