//! Activations: their descriptor and functions.

use super::tensor::operand;
use super::{Described, Handle, Operand, Outcome, Own, object, object_mut, plain_scalars, status, with};
use crate::require;
use core::ffi::c_void;
use miopen_sys::*;

/// The values of an activation descriptor.
#[derive(Clone, Copy)]
pub struct Activation {
    /// The function.
    pub mode: miopenActivationMode_t,
    /// Its parameters: alpha, beta and gamma.
    pub parameters: [f64; 3],
}

impl Default for Activation {
    fn default() -> Self {
        Activation { mode: miopenActivationPASTHRU, parameters: [0.0; 3] }
    }
}

/// Sets an activation's function and parameters.
///
/// # Safety
/// As [`miopenSetPoolingIndexType`].
pub(super) unsafe extern "C" fn miopenSetActivationDescriptor<O: Own<Activation>>(
    activDesc: miopenActivationDescriptor_t,
    mode: miopenActivationMode_t,
    activAlpha: f64,
    activBeta: f64,
    activGamma: f64,
) -> miopenStatus_t {
    status(|| {
        require(mode.name().is_some(), miopenStatusBadParm)?;
        // SAFETY: the caller's descriptor.
        let own = unsafe { object_mut::<Described<Activation, O>, _>(activDesc) }?;
        own.set(Activation { mode, parameters: [activAlpha, activBeta, activGamma] })
    })
}

/// Activations of a provider.
pub trait Activations: Handle {
    /// The provider's part of a descriptor.
    type Own: Own<Activation>;

    /// `y = activation(x)`.
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn activation_forward(
        &self,
        activation: &Described<Activation, Self::Own>,
        x: &Operand<'_, Self>,
        y: &Operand<'_, Self>,
    ) -> Outcome;

    /// The gradient of [`Activations::activation_forward`].
    ///
    /// # Safety
    /// As [`Handle`] says of computations.
    unsafe fn activation_backward(
        &self,
        activation: &Described<Activation, Self::Own>,
        x: &Operand<'_, Self>,
        y: &Operand<'_, Self>,
        dy: &Operand<'_, Self>,
        dx: &Operand<'_, Self>,
    ) -> Outcome;
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenActivationForward<H: Activations>(
    handle: miopenHandle_t, activDesc: miopenActivationDescriptor_t, alpha: *const c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void, yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let activation = object::<Described<Activation, H::Own>, _>(activDesc)?;
            let (x, y) = (operand::<H>(xDesc, x)?, operand::<H>(yDesc, y)?);
            x.require_alike(&y)?;
            plain_scalars(alpha, beta, x.data)?;
            handle.activation_forward(activation, &x, &y)
        })
    }
}

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn miopenActivationBackward<H: Activations>(
    handle: miopenHandle_t, activDesc: miopenActivationDescriptor_t, alpha: *const c_void,
    yDesc: miopenTensorDescriptor_t, y: *const c_void, dyDesc: miopenTensorDescriptor_t, dy: *const c_void,
    xDesc: miopenTensorDescriptor_t, x: *const c_void, beta: *const c_void, dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors, scalars and buffers.
    unsafe {
        with::<H>(handle, |handle| {
            let activation = object::<Described<Activation, H::Own>, _>(activDesc)?;
            let (x, dx) = (operand::<H>(xDesc, x)?, operand::<H>(dxDesc, dx)?);
            let (y, dy) = (operand::<H>(yDesc, y)?, operand::<H>(dyDesc, dy)?);
            [&y, &dy, &dx].iter().try_for_each(|other| x.require_alike(other))?;
            plain_scalars(alpha, beta, x.data)?;
            handle.activation_backward(activation, &x, &y, &dy, &dx)
        })
    }
}
