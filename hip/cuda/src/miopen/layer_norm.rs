//! Layer norm and T5's, on kernels of this provider's own.

use super::handle::with;
use super::norm_rows::{BLOCK, Forward, Norm, checked, launch, parameters};
use super::tensor::{Tensor, tensor};
use crate::own_kernels;
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, answer};
use hip_provider::require;
use miopen_sys::*;

/// Rows and their length: all axes from `normalized_dim` on are one row, with one value of each of the statistics.
fn rows_of(x: &Tensor, statistics: [&Tensor; 2], normalized_dim: i32) -> Outcome<(usize, usize)> {
    require(normalized_dim >= 0 && (normalized_dim as usize) < x.dims.len(), miopenStatusBadParm)?;
    let axis = normalized_dim as usize;
    let (rows, length) = (x.dims[..axis].iter().product(), x.dims[axis..].iter().product());
    require(statistics.iter().all(|each| each.count() == rows), miopenStatusBadParm)?;
    Ok((rows, length))
}

pub(super) unsafe extern "C" fn miopenLayerNormForward(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    weightDesc: miopenTensorDescriptor_t,
    weight: *const c_void,
    biasDesc: miopenTensorDescriptor_t,
    bias: *const c_void,
    epsilon: f32,
    normalized_dim: i32,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    meanDesc: miopenTensorDescriptor_t,
    mean: *mut c_void,
    rstdDesc: miopenTensorDescriptor_t,
    rstd: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (xt, yt, means, rstds) =
                (tensor(xDesc)?, tensor(yDesc)?, tensor(meanDesc)?, tensor(rstdDesc)?);
            let (rows, length) = rows_of(xt, [means, rstds], normalized_dim)?;
            require(yt.dims == xt.dims, miopenStatusBadParm)?;
            checked(xt, &[(xt, x), (yt, y), (means, mean), (rstds, rstd)])?;
            let parameters = parameters(mode, xt, [(weightDesc, weight), (biasDesc, bias)], length)?;
            let norm = Norm::of_rows(rows, length, epsilon);
            launch(handle.stream, xt.data, true, norm, Forward { x, y, mean, rstd, parameters })
        })
    }
}

/// Rows are those of the last axis; the statistics may be null.
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
    // SAFETY: the caller's handle, descriptors and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            // MIOpen's mode without a weight reads one all the same.
            require(mode == MIOPEN_WEIGHT_BIAS_T5, miopenStatusNotImplemented)?;
            let (xt, yt, weights) = (tensor(xDesc)?, tensor(yDesc)?, tensor(weightDesc)?);
            let length = xt.dims.last().copied().unwrap_or(1);
            let rows = xt.count() / length;
            require(xt.dims == yt.dims && weights.count() == length, miopenStatusBadParm)?;
            checked(xt, &[(xt, x), (yt, y), (weights, weight)])?;
            if !rstd.is_null() {
                let rstds = tensor(rstdDesc)?;
                require(rstds.count() == rows, miopenStatusBadParm)?;
                checked(xt, &[(rstds, rstd)])?;
            }
            let parameters = [weight, core::ptr::null()];
            let call = Forward { x, y, mean: core::ptr::null_mut(), rstd, parameters };
            launch(handle.stream, xt.data, false, Norm::of_rows(rows, length, epsilon), call)
        })
    }
}

pub(super) unsafe extern "C" fn miopenGetLayerNormBackwardWorkspaceSize(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    _weightDesc: miopenTensorDescriptor_t,
    meanDesc: miopenTensorDescriptor_t,
    rstdDesc: miopenTensorDescriptor_t,
    normalized_dim: i32,
    dxDesc: miopenTensorDescriptor_t,
    _dwDesc: miopenTensorDescriptor_t,
    _dbDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and out-pointer.
    unsafe {
        with(handle, |_| {
            require(matches!(mode, MIOPEN_ELEMENTWISE_AFFINE | MIOPEN_WEIGHT_BIAS), miopenStatusBadParm)?;
            let xt = tensor(xDesc)?;
            rows_of(xt, [tensor(meanDesc)?, tensor(rstdDesc)?], normalized_dim)?;
            require(tensor(dyDesc)?.dims == xt.dims && tensor(dxDesc)?.dims == xt.dims, miopenStatusBadParm)?;
            answer(sizeInBytes, 0)
        })
    }
}

/// The gradient by `x`; those by weight and bias where either is not null, then both are.
pub(super) unsafe extern "C" fn miopenLayerNormBackward(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    _workspace: *mut c_void,
    _workspaceSizeInBytes: usize,
    dyDesc: miopenTensorDescriptor_t,
    dy: *const c_void,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    weightDesc: miopenTensorDescriptor_t,
    weight: *const c_void,
    meanDesc: miopenTensorDescriptor_t,
    mean: *const c_void,
    rstdDesc: miopenTensorDescriptor_t,
    rstd: *const c_void,
    normalized_dim: i32,
    dxDesc: miopenTensorDescriptor_t,
    dx: *mut c_void,
    dwDesc: miopenTensorDescriptor_t,
    dw: *mut c_void,
    dbDesc: miopenTensorDescriptor_t,
    db: *mut c_void,
) -> miopenStatus_t {
    // SAFETY: the caller's handle, descriptors and buffers, which are checked.
    unsafe {
        with(handle, |handle| {
            let (dyt, xt, dxt) = (tensor(dyDesc)?, tensor(xDesc)?, tensor(dxDesc)?);
            let (means, rstds) = (tensor(meanDesc)?, tensor(rstdDesc)?);
            let (rows, length) = rows_of(xt, [means, rstds], normalized_dim)?;
            require(dyt.dims == xt.dims && dxt.dims == xt.dims, miopenStatusBadParm)?;
            checked(xt, &[(xt, x), (dyt, dy), (dxt, dx), (means, mean), (rstds, rstd)])?;
            let [weight, _] = parameters(mode, xt, [(weightDesc, weight); 2], length)?;
            let wanted = !dw.is_null() || !db.is_null();
            if wanted {
                for (own, pointer) in [(tensor(dwDesc)?, dw), (tensor(dbDesc)?, db)] {
                    require(own.count() == length, miopenStatusBadParm)?;
                    checked(xt, &[(own, pointer)])?;
                }
            }
            let [by_x, by_parameters] = match xt.data {
                miopenFloat => ["norm_backward<float>", "norm_parameters<float>"],
                miopenHalf => ["norm_backward<f16>", "norm_parameters<f16>"],
                miopenBFloat16 => ["norm_backward<bf16>", "norm_parameters<bf16>"],
                _ => return Err(miopenStatusNotImplemented),
            };
            let mut norm = Norm::of_rows(rows, length, 0.0);
            let run = |name, blocks: usize, norm: &mut Norm, mut buffers: [*const c_void; 6]| {
                let mut arguments = vec![core::ptr::from_mut(norm).cast()];
                arguments.extend(buffers.iter_mut().map(|buffer| core::ptr::from_mut(buffer).cast()));
                own_kernels::launch(name, blocks as u64 * BLOCK, handle.stream, &mut arguments)
                    .map_err(|_| miopenStatusInternalError)
            };
            run(by_x, rows, &mut norm, [dy, x, weight, mean, rstd, dx.cast_const()])?;
            if wanted {
                // A block for 32 places.
                let blocks = length.div_ceil(32);
                run(by_parameters, blocks, &mut norm, [dy, x, mean, rstd, dw.cast_const(), db.cast_const()])?;
            }
            Ok(())
        })
    }
}
