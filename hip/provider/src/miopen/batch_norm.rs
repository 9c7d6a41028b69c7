//! Batch norm's functions.

use super::tensor::{operand, tensor};
use super::{Described, Handle, Operand, Outcome, Tensor, scalar, with};
use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// The arguments that batch norm's functions share.
pub struct BatchNorm<'a, H: Handle> {
    /// Which elements share statistics: those of a channel (spatial), or those of one place in all
    /// samples (per activation).
    pub mode: miopenBatchNormMode_t,
    /// The input.
    pub x: Operand<'a, H>,
    /// The descriptor of scale, bias and statistics, which are f32.
    pub parameters: &'a Described<Tensor, H::Tensor>,
    /// The scale.
    pub scale: *const c_void,
    /// Added to the variance.
    pub epsilon: f64,
}

/// The other arguments of training. The statistics may be null.
#[derive(Clone, Copy)]
pub struct Training {
    /// The bias.
    pub bias: *const c_void,
    /// The weight of this batch in the running statistics.
    pub factor: f64,
    /// The running mean and variance, which are updated.
    pub running: [*mut c_void; 2],
    /// Outputs: the batch's mean and `1 / sqrt(variance + epsilon)`.
    pub saved: [*mut c_void; 2],
}

/// The other arguments of inference.
#[derive(Clone, Copy)]
pub struct Inference {
    /// The bias.
    pub bias: *const c_void,
    /// The running mean.
    pub mean: *const c_void,
    /// The running variance.
    pub variance: *const c_void,
}

/// The other arguments of the gradient.
#[derive(Clone, Copy)]
pub struct BatchGradient {
    /// The gradient with respect to the scale.
    pub scale: *mut c_void,
    /// The gradient with respect to the bias.
    pub bias: *mut c_void,
    /// The statistics that training saved; null to recompute them.
    pub saved: [*const c_void; 2],
}

/// Batch norm of a provider.
pub trait BatchNorms: Handle {
    /// Batch norm with the batch's own statistics.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn batch_norm_training(
        &self,
        norm: &BatchNorm<'_, Self>,
        y: &Operand<'_, Self>,
        call: &Training,
    ) -> Outcome;

    /// Batch norm with running statistics.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn batch_norm_inference(
        &self,
        norm: &BatchNorm<'_, Self>,
        y: &Operand<'_, Self>,
        call: &Inference,
    ) -> Outcome;

    /// The gradient of [`BatchNorms::batch_norm_training`].
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn batch_norm_backward(
        &self,
        norm: &BatchNorm<'_, Self>,
        dy: &Operand<'_, Self>,
        dx: &Operand<'_, Self>,
        gradient: &BatchGradient,
    ) -> Outcome;
}

impl<'a, H: Handle> BatchNorm<'a, H> {
    /// Checks the tensors against each other, and that alpha is 1 and beta is 0. As in MIOpen, null
    /// stands for these values.
    ///
    /// # Safety
    /// The caller's descriptor and pairs of alpha and beta.
    unsafe fn new(
        mode: miopenBatchNormMode_t,
        scalars: &[[*const c_void; 2]],
        x: Operand<'a, H>,
        others: &[&Operand<'_, H>],
        parameters: miopenTensorDescriptor_t,
        scale: *const c_void,
        epsilon: f64,
    ) -> Outcome<Self> {
        for [alpha, beta] in scalars {
            for (pointer, usual) in [(*alpha, 1.0), (*beta, 0.0)] {
                // SAFETY: the caller's scalars.
                let fits = pointer.is_null() || unsafe { scalar(pointer, x.data) }? == usual;
                require(fits, miopenStatusBadParm)?;
            }
        }
        require(mode.name().is_some() && matches!(x.dims.len(), 4 | 5), miopenStatusBadParm)?;
        others.iter().try_for_each(|other| x.require_alike(other))?;
        // SAFETY: the caller's descriptor.
        let parameters = unsafe { tensor::<H>(parameters) }?;
        let mut expected = x.dims.clone();
        expected[0] = 1;
        if mode == miopenBNSpatial {
            expected[2..].fill(1);
        }
        require(parameters.data == miopenFloat && parameters.dims == expected, miopenStatusBadParm)?;
        Ok(BatchNorm { mode, x, parameters, scale, epsilon })
    }
}

#[rustfmt::skip] // One line of arguments a group, here and below.
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenBatchNormalizationForwardTraining<H: BatchNorms>(
    handle: miopenHandle_t, bn_mode: miopenBatchNormMode_t, alpha: *mut c_void, beta: *mut c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
    bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t, bnScale: *mut c_void, bnBias: *mut c_void, expAvgFactor: f64,
    resultRunningMean: *mut c_void, resultRunningVariance: *mut c_void, epsilon: f64, resultSaveMean: *mut c_void,
    resultSaveInvVariance: *mut c_void,
) -> miopenStatus_t {
    let scalars = [[alpha.cast_const(), beta.cast_const()]];
    let running = [resultRunningMean, resultRunningVariance];
    let saved = [resultSaveMean, resultSaveInvVariance];
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let (x, y) = (operand::<H>(xDesc, x)?, operand::<H>(yDesc, y)?);
            let norm =
                BatchNorm::new(bn_mode, &scalars, x, &[&y], bnScaleBiasMeanVarDesc, bnScale, epsilon)?;
            handle.batch_norm_training(&norm, &y, &Training { bias: bnBias, factor: expAvgFactor, running, saved })
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenBatchNormalizationForwardInference<H: BatchNorms>(
    handle: miopenHandle_t, bn_mode: miopenBatchNormMode_t, alpha: *mut c_void, beta: *mut c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void,
    bnScaleBiasMeanVarDesc: miopenTensorDescriptor_t, bnScale: *mut c_void, bnBias: *mut c_void,
    estimatedMean: *mut c_void, estimatedVariance: *mut c_void, epsilon: f64,
) -> miopenStatus_t {
    let scalars = [[alpha.cast_const(), beta.cast_const()]];
    let call = Inference { bias: bnBias, mean: estimatedMean, variance: estimatedVariance };
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let (x, y) = (operand::<H>(xDesc, x)?, operand::<H>(yDesc, y)?);
            let norm =
                BatchNorm::new(bn_mode, &scalars, x, &[&y], bnScaleBiasMeanVarDesc, bnScale, epsilon)?;
            handle.batch_norm_inference(&norm, &y, &call)
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenBatchNormalizationBackward<H: BatchNorms>(
    handle: miopenHandle_t, bn_mode: miopenBatchNormMode_t, alphaDataDiff: *const c_void,
    betaDataDiff: *const c_void, alphaParamDiff: *const c_void, betaParamDiff: *const c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
    dxDesc: miopenTensorDescriptor_t, dx: *mut c_void, bnScaleBiasDiffDesc: miopenTensorDescriptor_t,
    bnScale: *const c_void, resultBnScaleDiff: *mut c_void, resultBnBiasDiff: *mut c_void, epsilon: f64,
    savedMean: *const c_void, savedInvVariance: *const c_void,
) -> miopenStatus_t {
    let scalars = [[alphaDataDiff, betaDataDiff], [alphaParamDiff, betaParamDiff]];
    let saved = [savedMean, savedInvVariance];
    let gradient = BatchGradient { scale: resultBnScaleDiff, bias: resultBnBiasDiff, saved };
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let (x, dy, dx) = (operand::<H>(xDesc, x)?, operand::<H>(dyDesc, dy)?, operand::<H>(dxDesc, dx)?);
            let norm =
                BatchNorm::new(bn_mode, &scalars, x, &[&dy, &dx], bnScaleBiasDiffDesc, bnScale, epsilon)?;
            require(savedMean.is_null() == savedInvVariance.is_null(), miopenStatusBadParm)?;
            handle.batch_norm_backward(&norm, &dy, &dx, &gradient)
        })
    }
}
