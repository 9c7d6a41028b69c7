//! Softmax.

use super::handle::with;
use super::status::{answered, check_buffer};
use super::tensor::tensor;
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, scalar};
use hip_provider::require;
use miopen_sys::*;

fn raw(
    algorithm: miopenSoftmaxAlgorithm_t,
    mode: miopenSoftmaxMode_t,
) -> Outcome<(cudnn::cudnnSoftmaxAlgorithm_t, cudnn::cudnnSoftmaxMode_t)> {
    use cudnn::{cudnnSoftmaxAlgorithm_t::*, cudnnSoftmaxMode_t::*};
    let algorithm = match algorithm {
        MIOPEN_SOFTMAX_FAST => CUDNN_SOFTMAX_FAST,
        MIOPEN_SOFTMAX_ACCURATE => CUDNN_SOFTMAX_ACCURATE,
        MIOPEN_SOFTMAX_LOG => CUDNN_SOFTMAX_LOG,
        _ => return Err(miopenStatusBadParm),
    };
    let mode = match mode {
        MIOPEN_SOFTMAX_MODE_INSTANCE => CUDNN_SOFTMAX_MODE_INSTANCE,
        MIOPEN_SOFTMAX_MODE_CHANNEL => CUDNN_SOFTMAX_MODE_CHANNEL,
        _ => return Err(miopenStatusBadParm),
    };
    Ok((algorithm, mode))
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenSoftmaxForward_V2(
    handle: miopenHandle_t,
    alpha: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    beta: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    algorithm: miopenSoftmaxAlgorithm_t,
    mode: miopenSoftmaxMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (algorithm, mode) = raw(algorithm, mode)?;
            let (xt, yt) = (tensor(xDesc)?, tensor(yDesc)?);
            require(xt.dims == yt.dims && xt.data == yt.data, miopenStatusBadParm)?;
            scalar(alpha, xt.data)?;
            scalar(beta, xt.data)?;
            check_buffer(x, xt.bytes())?;
            check_buffer(y, yt.bytes())?;
            let (xt, yt) = (xt.raw, yt.raw);
            answered(cudnn::cudnnSoftmaxForward(handle.raw, algorithm, mode, alpha, xt, x, beta, yt, y))
        })
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenSoftmaxBackward_V2(
    handle: miopenHandle_t,
    alpha: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    beta: *const c_void,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    algorithm: miopenSoftmaxAlgorithm_t,
    mode: miopenSoftmaxMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (algorithm, mode) = raw(algorithm, mode)?;
            let (yt, dyt, dxt) = (tensor(yDesc)?, tensor(dyDesc)?, tensor(dxDesc)?);
            let alike =
                yt.dims == dyt.dims && yt.dims == dxt.dims && yt.data == dyt.data && yt.data == dxt.data;
            require(alike, miopenStatusBadParm)?;
            scalar(alpha, yt.data)?;
            scalar(beta, yt.data)?;
            for (pointer, tensor) in [(y, yt), (dy, dyt), (dx.cast_const(), dxt)] {
                check_buffer(pointer, tensor.bytes())?;
            }
            let (yt, dyt, dxt) = (yt.raw, dyt.raw, dxt.raw);
            answered(cudnn::cudnnSoftmaxBackward(
                handle.raw, algorithm, mode, alpha, yt, y, dyt, dy, beta, dxt, dx,
            ))
        })
    }
}
