//! Batch normalisation.

use super::handle::with;
use super::status::{answered, check_buffer};
use super::tensor::{Tensor, tensor};
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, scalar};
use hip_provider::require;
use miopen_sys::*;

/// Checks the tensors against each other; cuDNN's name for the mode.
fn checked(
    mode: miopenBatchNormMode_t,
    x: &Tensor,
    others: &[&Tensor],
    parameters: &Tensor,
) -> Outcome<cudnn::cudnnBatchNormMode_t> {
    require(matches!(x.dims.len(), 4 | 5), miopenStatusBadParm)?;
    for other in others {
        require(other.dims == x.dims && other.data == x.data, miopenStatusBadParm)?;
    }
    require(parameters.data == miopenFloat, miopenStatusBadParm)?;
    let (spatial, raw) = match mode {
        miopenBNSpatial => (true, cudnn::cudnnBatchNormMode_t::CUDNN_BATCHNORM_SPATIAL),
        miopenBNPerActivation => (false, cudnn::cudnnBatchNormMode_t::CUDNN_BATCHNORM_PER_ACTIVATION),
        _ => return Err(miopenStatusBadParm),
    };
    let mut expected = x.dims.clone();
    expected[0] = 1;
    if spatial {
        expected[2..].fill(1);
    }
    require(parameters.dims == expected, miopenStatusBadParm)?;
    Ok(raw)
}

/// Refuses parameters or statistics that are no buffers of their size; `optional` ones may be null.
fn check_all(parameters: &Tensor, needed: &[*const c_void], optional: &[*const c_void]) -> Outcome {
    for &pointer in needed {
        check_buffer(pointer, parameters.bytes())?;
    }
    for &pointer in optional.iter().filter(|pointer| !pointer.is_null()) {
        check_buffer(pointer, parameters.bytes())?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenBatchNormalizationForwardTraining(
    handle: miopenHandle_t,
    bn_mode: miopenBatchNormMode_t,
    alpha: *mut c_void,
    beta: *mut c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t,
    bnScale: *mut c_void,
    bnBias: *mut c_void,
    expAvgFactor: f64,
    resultRunningMean: *mut c_void,
    resultRunningVariance: *mut c_void,
    epsilon: f64,
    resultSaveMean: *mut c_void,
    resultSaveInvVariance: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (xt, yt, parameters) = (tensor(xDesc)?, tensor(yDesc)?, tensor(bnScaleBiasMeanVarDesc)?);
            let mode = checked(bn_mode, xt, &[yt], parameters)?;
            scalar(alpha, xt.data)?;
            scalar(beta, xt.data)?;
            check_buffer(x, xt.bytes())?;
            check_buffer(y, yt.bytes())?;
            let running = [resultRunningMean.cast_const(), resultRunningVariance.cast_const()];
            let saved = [resultSaveMean.cast_const(), resultSaveInvVariance.cast_const()];
            check_all(parameters, &[bnScale.cast_const(), bnBias.cast_const()], &[running, saved].concat())?;
            answered(cudnn::cudnnBatchNormalizationForwardTraining(
                handle.raw,
                mode,
                alpha,
                beta,
                xt.raw,
                x,
                yt.raw,
                y,
                parameters.raw,
                bnScale,
                bnBias,
                expAvgFactor,
                resultRunningMean,
                resultRunningVariance,
                epsilon,
                resultSaveMean,
                resultSaveInvVariance,
            ))
        })
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenBatchNormalizationForwardInference(
    handle: miopenHandle_t,
    bn_mode: miopenBatchNormMode_t,
    alpha: *mut c_void,
    beta: *mut c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t,
    bnScale: *mut c_void,
    bnBias: *mut c_void,
    estimatedMean: *mut c_void,
    estimatedVariance: *mut c_void,
    epsilon: f64,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (xt, yt, parameters) = (tensor(xDesc)?, tensor(yDesc)?, tensor(bnScaleBiasMeanVarDesc)?);
            let mode = checked(bn_mode, xt, &[yt], parameters)?;
            scalar(alpha, xt.data)?;
            scalar(beta, xt.data)?;
            check_buffer(x, xt.bytes())?;
            check_buffer(y, yt.bytes())?;
            let needed =
                [bnScale, bnBias, estimatedMean, estimatedVariance].map(|pointer| pointer.cast_const());
            check_all(parameters, &needed, &[])?;
            answered(cudnn::cudnnBatchNormalizationForwardInference(
                handle.raw,
                mode,
                alpha,
                beta,
                xt.raw,
                x,
                yt.raw,
                y,
                parameters.raw,
                bnScale,
                bnBias,
                estimatedMean,
                estimatedVariance,
                epsilon,
            ))
        })
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenBatchNormalizationBackward(
    handle: miopenHandle_t,
    bn_mode: miopenBatchNormMode_t,
    alphaDataDiff: *const c_void,
    betaDataDiff: *const c_void,
    alphaParamDiff: *const c_void,
    betaParamDiff: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    bnScaleBiasDiffDesc: miopenTensorDescriptor_t,
    bnScale: *const c_void,
    resultBnScaleDiff: *mut c_void,
    resultBnBiasDiff: *mut c_void,
    epsilon: f64,
    savedMean: *const c_void,
    savedInvVariance: *const c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (xt, dyt, dxt) = (tensor(xDesc)?, tensor(dyDesc)?, tensor(dxDesc)?);
            let parameters = tensor(bnScaleBiasDiffDesc)?;
            let mode = checked(bn_mode, xt, &[dyt, dxt], parameters)?;
            for factor in [alphaDataDiff, betaDataDiff, alphaParamDiff, betaParamDiff] {
                scalar(factor, xt.data)?;
            }
            for (pointer, tensor) in [(x, xt), (dy, dyt), (dx.cast_const(), dxt)] {
                check_buffer(pointer, tensor.bytes())?;
            }
            let needed = [bnScale, resultBnScaleDiff.cast_const(), resultBnBiasDiff.cast_const()];
            check_all(parameters, &needed, &[savedMean, savedInvVariance])?;
            answered(cudnn::cudnnBatchNormalizationBackward(
                handle.raw,
                mode,
                alphaDataDiff,
                betaDataDiff,
                alphaParamDiff,
                betaParamDiff,
                xt.raw,
                x,
                dyt.raw,
                dy,
                dxt.raw,
                dx,
                parameters.raw,
                bnScale,
                resultBnScaleDiff,
                resultBnBiasDiff,
                epsilon,
                savedMean,
                savedInvVariance,
            ))
        })
    }
}
