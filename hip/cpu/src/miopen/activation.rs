//! Activations. The formulas are those of MIOpen's reference for `miopenActivationMode_t`.

use super::Shared;
use super::handle::{Handle, Operand, packed};
use super::status::{by_single, input, known, output};
use crate::numeric::element::Single;
use crate::runtime::{enqueue, parallel_ranges};
use core::ffi::c_void;
use hip_provider::miopen::{self as provider, Activations, Described, Outcome};
use miopen_sys::*;

/// A descriptor of an activation.
type Own = Described<provider::Activation, ()>;

/// An activation and its parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    mode: miopenActivationMode_t,
    alpha: f32,
    beta: f32,
    gamma: f32,
}

impl From<&provider::Activation> for Activation {
    fn from(own: &provider::Activation) -> Self {
        let [alpha, beta, gamma] = own.parameters.map(|parameter| parameter as f32);
        Activation { mode: own.mode, alpha, beta, gamma }
    }
}

impl Activation {
    pub(super) fn forward(self, x: f32) -> f32 {
        let Activation { mode, alpha, beta, gamma } = self;
        match mode {
            miopenActivationLOGISTIC => 1.0 / (1.0 + (-x).exp()),
            miopenActivationTANH => beta * (alpha * x).tanh(),
            // A product, as in MIOpen: for -inf it is NaN, for negative numbers -0.
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
            // The derivative of y = beta tanh(alpha x), from y.
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
    // SAFETY: the caller's buffers. They may be the same, because an element is read before it is
    // written.
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

type Gradients = (*mut c_void, *mut c_void, *mut c_void, *mut c_void);

fn backward<T: Single>(activation: Activation, len: usize, (y, dy, x, dx): Gradients) -> Outcome {
    // SAFETY: the caller's buffers. dx may be dy, because an element is read before it is written.
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

impl Activations for Handle {
    type Own = ();

    unsafe fn activation_forward(&self, activation: &Own, x: &Operand<'_>, y: &Operand<'_>) -> Outcome {
        packed(&[x, y])?;
        let (data, len, x, y) = (x.data, x.count(), x.at, y.at);
        by_single!(data, known())?;
        let activation = Activation::from(&**activation);
        // SAFETY: it holds the addresses of the caller's buffers and plain values.
        unsafe { enqueue(move || by_single!(data, forward(activation, len, x, y))) }
    }

    unsafe fn activation_backward(
        &self,
        activation: &Own,
        x: &Operand<'_>,
        y: &Operand<'_>,
        dy: &Operand<'_>,
        dx: &Operand<'_>,
    ) -> Outcome {
        packed(&[x, y, dy, dx])?;
        let (data, len, gradients) = (x.data, x.count(), (y.at, dy.at, x.at, dx.at));
        by_single!(data, known())?;
        let activation = Activation::from(&**activation);
        // SAFETY: as in `activation_forward`.
        unsafe { enqueue(move || by_single!(data, backward(activation, len, gradients))) }
    }
}
