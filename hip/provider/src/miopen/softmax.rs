//! Softmax's functions.

use super::tensor::operand;
use super::{Handle, Operand, Outcome, Tensor, scalar, with};
use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// Which softmax is computed, and along which axes.
#[derive(Clone, Copy)]
pub struct Softmax {
    /// The algorithm: fast, accurate or log.
    pub algorithm: miopenSoftmaxAlgorithm_t,
    /// The axes that sum to one.
    pub mode: miopenSoftmaxMode_t,
    /// The caller's alpha and beta: readable, f64 for f64 operands, else f32.
    pub scalars: [*const c_void; 2],
}

/// Softmax of a provider.
pub trait Softmaxes: Handle {
    /// `y = softmax(x)`.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn softmax_forward(
        &self,
        softmax: Softmax,
        x: &Operand<'_, Self>,
        y: &Operand<'_, Self>,
    ) -> Outcome;

    /// The gradient of [`Softmaxes::softmax_forward`].
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn softmax_backward(
        &self,
        softmax: Softmax,
        y: &Operand<'_, Self>,
        dy: &Operand<'_, Self>,
        dx: &Operand<'_, Self>,
    ) -> Outcome;
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenSoftmaxForward_V2<H: Softmaxes>(
    handle: miopenHandle_t, alpha: *const c_void, xDesc: miopenTensorDescriptor_t, x: *const c_void,
    beta: *const c_void, yDesc: miopenTensorDescriptor_t, y: *mut c_void, algorithm: miopenSoftmaxAlgorithm_t,
    mode: miopenSoftmaxMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let softmax = Softmax { algorithm, mode, scalars: [alpha, beta] };
            let (x, y) = (operand::<H>(xDesc, x)?, operand::<H>(yDesc, y)?);
            softmax.check(&x, &[&y])?;
            handle.softmax_forward(softmax, &x, &y)
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenSoftmaxBackward_V2<H: Softmaxes>(
    handle: miopenHandle_t, alpha: *const c_void, yDesc: miopenTensorDescriptor_t, y: *const c_void,
    dyDesc: miopenTensorDescriptor_t, dy: *const c_void, beta: *const c_void, dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void, algorithm: miopenSoftmaxAlgorithm_t, mode: miopenSoftmaxMode_t,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let softmax = Softmax { algorithm, mode, scalars: [alpha, beta] };
            let (y, dy, dx) = (operand::<H>(yDesc, y)?, operand::<H>(dyDesc, dy)?, operand::<H>(dxDesc, dx)?);
            softmax.check(&y, &[&dy, &dx])?;
            handle.softmax_backward(softmax, &y, &dy, &dx)
        })
    }
}

impl Softmax {
    /// Checks the scalars, and the tensors against each other.
    ///
    /// # Safety
    /// The caller's scalars.
    unsafe fn check(&self, first: &Tensor, others: &[&Tensor]) -> Outcome {
        // SAFETY: the caller's scalars.
        self.scalars.iter().try_for_each(|&each| unsafe { scalar(each, first.data) }.map(|_| ()))?;
        let known = self.algorithm.name().is_some() && self.mode.name().is_some();
        require(known, miopenStatusBadParm)?;
        others.iter().try_for_each(|other| first.require_alike(other))
    }
}
