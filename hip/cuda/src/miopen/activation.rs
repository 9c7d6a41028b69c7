//! Activations: cuDNN's where it has them with these parameters, else kernels of this provider's own.

use super::handle::with;
use super::status::{answered, check_buffer};
use super::tensor::{Tensor, tensor};
use crate::own_kernels;
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Activation, Outcome, Own, object, plain_scalars, scalar};
use hip_provider::require;
use miopen_sys::*;
use std::ptr;

/// cuDNN's descriptor, and whether cuDNN has the function.
pub(super) struct Raw {
    raw: cudnn::cudnnActivationDescriptor_t,
    known: bool,
}

/// What a `miopenActivationDescriptor_t` points to.
type Described = hip_provider::miopen::Described<Activation, Raw>;

/// `own.cu`'s.
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

/// cuDNN's mode and coefficient for one of MIOpen's; `None` where it has none.
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

/// Launches the kernel of `own.cu` over packed tensors like `x`, which take alpha = 1 and beta = 0 alone.
///
/// # Safety
/// The scalars are readable; the buffers are of `x`'s size.
unsafe fn launch<const N: usize>(
    stream: miopenAcceleratorQueue_t,
    mut own: Kernel,
    x: &Tensor,
    (alpha, beta): (*const c_void, *const c_void),
    mut buffers: [*const c_void; N],
) -> Outcome {
    // SAFETY: the caller's scalars.
    unsafe { plain_scalars(alpha, beta, x.data) }?;
    x.require_packed()?;
    let backward = N == 4;
    let name = match (x.data, backward) {
        (miopenFloat, false) => "activation_forward<float>",
        (miopenFloat, true) => "activation_backward<float>",
        (miopenHalf, false) => "activation_forward<f16>",
        (miopenHalf, true) => "activation_backward<f16>",
        _ => return Err(miopenStatusNotImplemented),
    };
    let mut count = x.count() as u64;
    let mut arguments = vec![(&raw mut own).cast(), (&raw mut count).cast()];
    arguments.extend(buffers.iter_mut().map(|buffer| ptr::from_mut(buffer).cast()));
    // SAFETY: the kernel's arguments; the buffers are the caller's.
    unsafe { own_kernels::launch(name, count, stream, &mut arguments) }.map_err(|_| miopenStatusInternalError)
}

pub(super) unsafe extern "C" fn miopenActivationForward(
    handle: miopenHandle_t,
    activDesc: miopenActivationDescriptor_t,
    alpha: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    beta: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (own, xt, yt) = (object::<Described, _>(activDesc)?, tensor(xDesc)?, tensor(yDesc)?);
            require(xt.dims == yt.dims && xt.data == yt.data, miopenStatusBadParm)?;
            scalar(alpha, xt.data)?;
            scalar(beta, xt.data)?;
            check_buffer(x, xt.bytes())?;
            check_buffer(y, yt.bytes())?;
            if !own.own.known {
                yt.require_packed()?;
                return launch(handle.stream, (&**own).into(), xt, (alpha, beta), [x, y.cast_const()]);
            }
            answered(cudnn::cudnnActivationForward(
                handle.raw,
                own.own.raw,
                alpha,
                xt.raw,
                x,
                beta,
                yt.raw,
                y,
            ))
        })
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenActivationBackward(
    handle: miopenHandle_t,
    activDesc: miopenActivationDescriptor_t,
    alpha: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    beta: *const c_void,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let own = object::<Described, _>(activDesc)?;
            let (yt, dyt, xt, dxt) = (tensor(yDesc)?, tensor(dyDesc)?, tensor(xDesc)?, tensor(dxDesc)?);
            let alike = [yt, dyt, dxt].iter().all(|other| other.dims == xt.dims && other.data == xt.data);
            require(alike, miopenStatusBadParm)?;
            scalar(alpha, xt.data)?;
            scalar(beta, xt.data)?;
            for (pointer, tensor) in [(y, yt), (dy, dyt), (x, xt), (dx.cast_const(), dxt)] {
                check_buffer(pointer, tensor.bytes())?;
            }
            if !own.own.known {
                for tensor in [yt, dyt, dxt] {
                    tensor.require_packed()?;
                }
                return launch(
                    handle.stream,
                    (&**own).into(),
                    xt,
                    (alpha, beta),
                    [x, y, dy, dx.cast_const()],
                );
            }
            let (yt, dyt, xt, dxt) = (yt.raw, dyt.raw, xt.raw, dxt.raw);
            answered(cudnn::cudnnActivationBackward(
                handle.raw,
                own.own.raw,
                alpha,
                yt,
                y,
                dyt,
                dy,
                xt,
                x,
                beta,
                dxt,
                dx,
            ))
        })
    }
}
