//! Batch norm by cuDNN.

use super::handle::{Handle, Operand, check};
use super::status::{answered, check_buffer, one, zero};
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{BatchGradient, BatchNorms, Inference, Outcome, Training};
use miopen_sys::{miopenBNSpatial, miopenFloat};

type BatchNorm<'a> = hip_provider::miopen::BatchNorm<'a, Handle>;

/// cuDNN's name for the mode.
fn mode(norm: &BatchNorm<'_>) -> cudnn::cudnnBatchNormMode_t {
    match norm.mode {
        miopenBNSpatial => cudnn::cudnnBatchNormMode_t::CUDNN_BATCHNORM_SPATIAL,
        _ => cudnn::cudnnBatchNormMode_t::CUDNN_BATCHNORM_PER_ACTIVATION,
    }
}

/// Refuses parameters and statistics that are not buffers of their size; those in `optional` may be
/// null.
fn check_all(norm: &BatchNorm<'_>, needed: &[*const c_void], optional: &[*const c_void]) -> Outcome {
    let given = optional.iter().filter(|pointer| !pointer.is_null());
    let bytes = norm.parameters.bytes();
    needed.iter().chain(given).chain([&norm.scale]).try_for_each(|&pointer| check_buffer(pointer, bytes))
}

impl BatchNorms for Handle {
    unsafe fn batch_norm_training(&self, norm: &BatchNorm<'_>, y: &Operand<'_>, call: &Training) -> Outcome {
        let Training { bias, factor, running: [mean, variance], saved: [saved, inverse] } = *call;
        check(&[&norm.x, y])?;
        check_all(norm, &[bias], &[mean, variance, saved, inverse].map(|pointer| pointer.cast_const()))?;
        let (alpha, beta, mode) = (one(miopenFloat), zero(), mode(norm));
        let (x, xt, y, yt) = (norm.x.at, norm.x.own.raw, y.at, y.own.raw);
        let (parameters, scale, epsilon) = (norm.parameters.own.raw, norm.scale, norm.epsilon);
        // SAFETY: live handle and descriptors, buffers of their sizes, scalars of this program.
        answered(unsafe {
            cudnn::cudnnBatchNormalizationForwardTraining(
                self.raw, mode, alpha, beta, xt, x, yt, y, parameters, scale, bias, factor, mean, variance,
                epsilon, saved, inverse,
            )
        })
    }

    unsafe fn batch_norm_inference(
        &self,
        norm: &BatchNorm<'_>,
        y: &Operand<'_>,
        call: &Inference,
    ) -> Outcome {
        let Inference { bias, mean, variance } = *call;
        check(&[&norm.x, y])?;
        check_all(norm, &[bias, mean, variance], &[])?;
        let (alpha, beta, mode) = (one(miopenFloat), zero(), mode(norm));
        let (x, xt, y, yt) = (norm.x.at, norm.x.own.raw, y.at, y.own.raw);
        let (parameters, scale, epsilon) = (norm.parameters.own.raw, norm.scale, norm.epsilon);
        // SAFETY: as above.
        answered(unsafe {
            cudnn::cudnnBatchNormalizationForwardInference(
                self.raw, mode, alpha, beta, xt, x, yt, y, parameters, scale, bias, mean, variance, epsilon,
            )
        })
    }

    unsafe fn batch_norm_backward(
        &self,
        norm: &BatchNorm<'_>,
        dy: &Operand<'_>,
        dx: &Operand<'_>,
        gradient: &BatchGradient,
    ) -> Outcome {
        let BatchGradient { scale: by_scale, bias: by_bias, saved: [mean, inverse] } = *gradient;
        check(&[&norm.x, dy, dx])?;
        check_all(norm, &[by_scale, by_bias], &[mean, inverse])?;
        let (alpha, beta, mode) = (one(miopenFloat), zero(), mode(norm));
        let (x, xt, dy, dyt, dx, dxt) = (norm.x.at, norm.x.own.raw, dy.at, dy.own.raw, dx.at, dx.own.raw);
        let (parameters, scale, epsilon) = (norm.parameters.own.raw, norm.scale, norm.epsilon);
        // SAFETY: as above.
        answered(unsafe {
            cudnn::cudnnBatchNormalizationBackward(
                self.raw, mode, alpha, beta, alpha, beta, xt, x, dyt, dy, dxt, dx, parameters, scale,
                by_scale, by_bias, epsilon, mean, inverse,
            )
        })
    }
}
