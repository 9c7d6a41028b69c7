//! T5's layer norm, which divides by the root of the mean square alone.

use super::Shared;
use super::handle::in_order;
use super::status::{by_float, input, output};
use super::tensor::tensor;
use crate::numeric::element::Single;
use crate::runtime::parallel;
use core::ffi::c_void;
use hip_provider::miopen::Outcome;
use hip_provider::require;
use miopen_sys::*;

struct Forward {
    rows: usize,
    len: usize,
    epsilon: f32,
    x: *const c_void,
    weight: *const c_void,
    y: *mut c_void,
    /// May be null.
    rstd: *mut c_void,
}

fn forward<T: Single>(call: &Forward) -> Outcome {
    let Forward { rows, len, epsilon, .. } = *call;
    // SAFETY: the caller's buffers.
    let (x, weight, y, rstd) = unsafe {
        (
            input::<T>(call.x, rows * len)?,
            input::<T>(call.weight, len)?,
            Shared(output::<T>(call.y, rows * len)?.as_mut_ptr()),
            match call.rstd.is_null() {
                true => None,
                false => Some(Shared(output::<T>(call.rstd, rows)?.as_mut_ptr())),
            },
        )
    };
    let each = (1usize << 14).div_ceil(len);
    parallel(rows.div_ceil(each), |task| {
        for row in task * each..((task + 1) * each).min(rows) {
            let x = &x[row * len..(row + 1) * len];
            // SAFETY: each row is one task's alone.
            let y = unsafe { core::slice::from_raw_parts_mut(y.get().add(row * len), len) };
            let squares: f64 = x.iter().map(|x| f64::from(x.widen()).powi(2)).sum();
            let own = 1.0 / ((squares / len as f64) as f32 + epsilon).sqrt();
            if let Some(rstd) = &rstd {
                // SAFETY: as above.
                unsafe { *rstd.get().add(row) = T::narrow(own) };
            }
            for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
                *y = T::narrow(x.widen() * own * weight.widen());
            }
        }
    });
    Ok(())
}

/// Rows are those of the last axis.
pub(super) unsafe extern "C" fn miopenT5LayerNormForward(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    weightDesc: miopenTensorDescriptor_t,
    weight: *const c_void,
    epsilon: f32,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    rstdDesc: miopenTensorDescriptor_t,
    rstd: *mut c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // MIOpen's mode without a weight reads one all the same.
        require(mode == MIOPEN_WEIGHT_BIAS_T5, miopenStatusNotImplemented)?;
        // SAFETY: the caller's handle and descriptors.
        let (data, rows, len) = unsafe {
            let (xs, ys, ws) = (tensor(xDesc)?, tensor(yDesc)?, tensor(weightDesc)?);
            require(xs.dims == ys.dims && xs.data == ys.data && xs.data == ws.data, miopenStatusBadParm)?;
            let len = xs.dims.last().copied().unwrap_or(0);
            require(len > 0 && ws.count() == len, miopenStatusBadParm)?;
            let rows = xs.count() / len;
            for each in [xs, ys, ws] {
                each.require_packed()?;
            }
            if !rstd.is_null() {
                let statistics = tensor(rstdDesc)?;
                require(statistics.count() == rows && statistics.data == xs.data, miopenStatusBadParm)?;
                statistics.require_packed()?;
            }
            (xs.data, rows, len)
        };
        by_float!(data, forward(&Forward { rows, len, epsilon, x, weight, y, rstd }))
    })
}
