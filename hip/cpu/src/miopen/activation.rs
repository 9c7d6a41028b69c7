//! Activations. The formulas are those of MIOpen's reference for `miopenActivationMode_t`.

use super::Shared;
use super::handle::in_order;
use super::status::{by_single, input, output};
use super::tensor::tensor;
use crate::numeric::element::Single;
use crate::runtime::parallel_ranges;
use core::ffi::c_void;
use hip_provider::miopen::{Described, Outcome, object, plain_scalars};
use hip_provider::require;
use miopen_sys::*;

/// What a `miopenActivationDescriptor_t` points to.
type Own = Described<hip_provider::miopen::Activation, ()>;

/// An activation and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    mode: miopenActivationMode_t,
    alpha: f32,
    beta: f32,
    gamma: f32,
}

impl Activation {
    pub(super) fn new(mode: miopenActivationMode_t, [alpha, beta, gamma]: [f64; 3]) -> Self {
        Activation { mode, alpha: alpha as f32, beta: beta as f32, gamma: gamma as f32 }
    }

    pub(super) fn forward(self, x: f32) -> f32 {
        let Activation { mode, alpha, beta, gamma } = self;
        match mode {
            miopenActivationLOGISTIC => 1.0 / (1.0 + (-x).exp()),
            miopenActivationTANH => beta * (alpha * x).tanh(),
            // As MIOpen multiplies: of -inf it is NaN, of negative numbers -0.
            miopenActivationRELU => x * f32::from(x > 0.0),
            // ln(1 + e^x), without overflow for large x.
            miopenActivationSOFTRELU => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            miopenActivationABS => x.abs(),
            miopenActivationPOWER => (alpha + beta * x).powf(gamma),
            miopenActivationCLIPPEDRELU => x.max(0.0).min(alpha),
            miopenActivationLEAKYRELU => {
                if x > 0.0 {
                    x
                } else {
                    alpha * x
                }
            }
            miopenActivationELU => {
                if x > 0.0 {
                    x
                } else {
                    alpha * x.exp_m1()
                }
            }
            miopenActivationCLAMP => x.max(alpha).min(beta),
            _ => x,
        }
    }

    fn backward(self, x: f32, y: f32, dy: f32) -> f32 {
        let Activation { mode, alpha, beta, gamma } = self;
        dy * match mode {
            miopenActivationLOGISTIC => y * (1.0 - y),
            // d/dx of beta tanh(alpha x), by y = beta tanh(alpha x).
            miopenActivationTANH => alpha * (beta - y * y / beta),
            miopenActivationRELU => f32::from(x > 0.0),
            miopenActivationSOFTRELU => 1.0 / (1.0 + (-x).exp()),
            miopenActivationABS => {
                if x > 0.0 {
                    1.0
                } else {
                    -1.0
                }
            }
            miopenActivationPOWER => {
                let base = alpha + beta * x;
                if base.abs() <= f32::EPSILON { 0.0 } else { gamma * beta * y / base }
            }
            miopenActivationCLIPPEDRELU => f32::from(x > 0.0 && x <= alpha),
            miopenActivationLEAKYRELU => {
                if x > 0.0 {
                    1.0
                } else {
                    alpha
                }
            }
            miopenActivationELU => {
                if x > 0.0 {
                    1.0
                } else {
                    y + alpha
                }
            }
            miopenActivationCLAMP => f32::from(x > alpha && x <= beta),
            _ => 1.0,
        }
    }
}

/// Elements that one task computes.
const CHUNK: usize = 1 << 15;

fn forward<T: Single>(activation: Activation, len: usize, x: *const c_void, y: *mut c_void) -> Outcome {
    // SAFETY: the caller's buffers, which may be one and the same: an element is read before it is written.
    let (x, y) = unsafe {
        input::<T>(x, len)?;
        output::<T>(y, len)?;
        (Shared(x.cast_mut().cast::<T>()), Shared(y.cast::<T>()))
    };
    parallel_ranges(len, CHUNK, |range| {
        for i in range {
            // SAFETY: inside both tensors.
            unsafe { *y.get().add(i) = T::narrow(activation.forward((*x.get().add(i)).widen())) };
        }
    });
    Ok(())
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
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors and scalars.
        let (activation, shape) = unsafe {
            let own = object::<Own, _>(activDesc)?;
            let activation = Activation::new(own.mode, own.parameters);
            let (x, y) = (tensor(xDesc)?, tensor(yDesc)?);
            require(x.dims == y.dims && x.data == y.data, miopenStatusBadParm)?;
            x.require_packed()?;
            y.require_packed()?;
            plain_scalars(alpha, beta, x.data)?;
            (activation, x)
        };
        by_single!(shape.data, forward(activation, shape.count(), x, y))
    })
}

type Gradients = (*const c_void, *const c_void, *const c_void, *mut c_void);

fn backward<T: Single>(activation: Activation, len: usize, (y, dy, x, dx): Gradients) -> Outcome {
    // SAFETY: the caller's buffers; dx may be dy: an element is read before it is written.
    let (y, dy, x, dx) = unsafe {
        for pointer in [y, dy, x] {
            input::<T>(pointer, len)?;
        }
        output::<T>(dx, len)?;
        let shared = |pointer: *const c_void| Shared(pointer.cast_mut().cast::<T>());
        (shared(y), shared(dy), shared(x), Shared(dx.cast::<T>()))
    };
    parallel_ranges(len, CHUNK, |range| {
        for i in range {
            // SAFETY: inside all four tensors.
            unsafe {
                let value = |from: &Shared<T>| (*from.get().add(i)).widen();
                *dx.get().add(i) = T::narrow(activation.backward(value(&x), value(&y), value(&dy)));
            }
        }
    });
    Ok(())
}

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
    in_order(handle, |_| {
        // SAFETY: the caller's handle, descriptors and scalars.
        let (activation, shape) = unsafe {
            let own = object::<Own, _>(activDesc)?;
            let activation = Activation::new(own.mode, own.parameters);
            let all = [tensor(xDesc)?, tensor(yDesc)?, tensor(dyDesc)?, tensor(dxDesc)?];
            for other in all {
                require(other.dims == all[0].dims && other.data == all[0].data, miopenStatusBadParm)?;
                other.require_packed()?;
            }
            plain_scalars(alpha, beta, all[0].data)?;
            (activation, all[0])
        };
        by_single!(shape.data, backward(activation, shape.count(), (y, dy, x, dx)))
    })
}
