//! Layer norm and group norm.

use super::Shared;
use super::handle::in_order;
use super::status::{by_float, input, output};
use super::tensor::{Tensor, tensor};
use crate::numeric::element::Single;
use crate::numeric::rows::{Normalise, affine, moments, narrowed, normalise, widened};
use crate::numeric::scratch::with_scratch;
use crate::runtime::parallel;
use core::ffi::c_void;
use hip_provider::miopen::{Outcome, answer};
use hip_provider::require;
use miopen_sys::*;

/// A forward call: `rows` rows of `len` values that are normalised together.
struct Forward {
    rows: usize,
    len: usize,
    epsilon: f32,
    /// Weight and bias, `weights` values each; without them 1 and 0.
    parameters: Option<(*const c_void, *const c_void)>,
    weights: usize,
    /// The first weight of a row, and how many values share one weight.
    first: fn(row: usize, weights: usize, per_row: usize) -> usize,
    share: usize,
    x: *const c_void,
    y: *mut c_void,
    mean: *mut c_void,
    rstd: *mut c_void,
}

fn forward<T: Single>(call: &Forward) -> Outcome {
    // SAFETY: the caller's buffers.
    let (x, y, mean, rstd, parameters) = unsafe {
        (
            input::<T>(call.x, call.rows * call.len)?,
            Shared(output::<T>(call.y, call.rows * call.len)?.as_mut_ptr()),
            Shared(output::<T>(call.mean, call.rows)?.as_mut_ptr()),
            Shared(output::<T>(call.rstd, call.rows)?.as_mut_ptr()),
            match call.parameters {
                Some((weight, bias)) => {
                    Some((input::<T>(weight, call.weights)?, input::<T>(bias, call.weights)?))
                }
                None => None,
            },
        )
    };
    let Forward { rows, len, epsilon, weights, first, share, .. } = *call;
    let each = (1usize << 15).div_ceil(len);
    parallel(rows.div_ceil(each), |task| {
        let rows = task * each..((task + 1) * each).min(rows);
        let at = rows.start * len..rows.end * len;
        let x = &x[at.clone()];
        // SAFETY: each row is one task's alone.
        let (y, mean, rstd) = unsafe {
            (
                core::slice::from_raw_parts_mut(y.get().add(at.start), at.len()),
                core::slice::from_raw_parts_mut(mean.get().add(rows.start), rows.len()),
                core::slice::from_raw_parts_mut(rstd.get().add(rows.start), rows.len()),
            )
        };
        if share == 1 {
            return normalised(len, epsilon, x, parameters, y, mean, rstd);
        }
        with_scratch(2 * len, |room| {
            let (wide_x, wide_y) = room.split_at_mut(len);
            for (index, row) in rows.enumerate() {
                let at = index * len..(index + 1) * len;
                let x = widened(&x[at.clone()], wide_x);
                let (own_mean, variance) = moments(x);
                let own_rstd = 1.0 / ((variance + f64::from(epsilon)) as f32).sqrt();
                (mean[index], rstd[index]) = (T::narrow(own_mean), T::narrow(own_rstd));
                let first = first(row, weights, len / share);
                narrowed(&mut y[at], wide_y, |y| {
                    for (part, (x, y)) in x.chunks(share).zip(y.chunks_mut(share)).enumerate() {
                        let (weight, bias) = match parameters {
                            Some((weight, bias)) => {
                                (weight[first + part].widen(), bias[first + part].widen())
                            }
                            None => (1.0, 0.0),
                        };
                        affine(x, own_mean, own_rstd * weight, bias, y);
                    }
                });
            }
        });
    });
    Ok(())
}

/// Rows of `len` with a weight and a bias for each place.
fn normalised<T: Single>(
    len: usize,
    epsilon: f32,
    x: &[T],
    parameters: Option<(&[T], &[T])>,
    y: &mut [T],
    mean: &mut [T],
    rstd: &mut [T],
) {
    let one_row = if T::IS_F32 { 0 } else { len };
    with_scratch(2 * len + 2 * one_row, |room| {
        let (weight_room, rest) = room.split_at_mut(len);
        let (bias_room, rest) = rest.split_at_mut(len);
        let (wide_x, wide_y) = rest.split_at_mut(one_row);
        let (weight, bias): (&[f32], &[f32]) = match parameters {
            Some((weight, bias)) => (widened(weight, weight_room), widened(bias, bias_room)),
            None => {
                weight_room.fill(1.0);
                bias_room.fill(0.0);
                (weight_room, bias_room)
            }
        };
        // f32 goes through in one call, other types row by row through f32.
        let rows = if T::IS_F32 { mean.len() } else { 1 };
        let rows = (x.chunks(rows * len).zip(y.chunks_mut(rows * len)))
            .zip(mean.chunks_mut(rows).zip(rstd.chunks_mut(rows)));
        for ((x, y), (mean, rstd)) in rows {
            let x = widened(x, wide_x);
            let (mut one_mean, mut one_rstd) = ([0.0f32], [0.0f32]);
            narrowed(y, wide_y, |y| {
                narrowed(mean, &mut one_mean, |mean| {
                    narrowed(rstd, &mut one_rstd, |rstd| {
                        let (y, mean, rstd) = (y.as_mut_ptr(), mean.as_mut_ptr(), rstd.as_mut_ptr());
                        // SAFETY: `y` is as long as `x`; a statistic for each of its rows.
                        unsafe { normalise(Normalise { x, len, weight, bias, epsilon, y, mean, rstd }) }
                    });
                });
            });
        }
    });
}

/// The parameters of a mode: MIOpen reads them only with `MIOPEN_WEIGHT_BIAS`.
fn parameters(
    mode: miopenNormMode_t,
    weight: *const c_void,
    bias: *const c_void,
) -> Outcome<Option<(*const c_void, *const c_void)>> {
    match mode {
        MIOPEN_ELEMENTWISE_AFFINE => Ok(None),
        MIOPEN_WEIGHT_BIAS => Ok(Some((weight, bias))),
        _ => Err(miopenStatusBadParm),
    }
}

/// Rows and their length: all axes from `normalized_dim` on are one row.
fn layer(x: &Tensor, others: &[&Tensor], normalized_dim: i32) -> Outcome<(usize, usize)> {
    require(normalized_dim >= 0 && (normalized_dim as usize) < x.dims.len(), miopenStatusBadParm)?;
    x.require_packed()?;
    for other in others {
        require(other.data == x.data, miopenStatusBadParm)?;
        other.require_packed()?;
    }
    let axis = normalized_dim as usize;
    Ok((x.dims[..axis].iter().product(), x.dims[axis..].iter().product()))
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
    in_order(handle, |_| {
        // SAFETY: the caller's handle and descriptors.
        let (data, rows, len, parameters) = unsafe {
            let (x, y) = (tensor(xDesc)?, tensor(yDesc)?);
            let (means, rstds) = (tensor(meanDesc)?, tensor(rstdDesc)?);
            let (rows, len) = layer(x, &[y, means, rstds], normalized_dim)?;
            require(y.dims == x.dims && means.count() == rows && rstds.count() == rows, miopenStatusBadParm)?;
            let parameters = parameters(mode, weight, bias)?;
            if parameters.is_some() {
                for own in [tensor(weightDesc)?, tensor(biasDesc)?] {
                    require(
                        own.count() == len && own.data == x.data && own.is_packed(),
                        miopenStatusBadParm,
                    )?;
                }
            }
            (x.data, rows, len, parameters)
        };
        let first = |_, _, _| 0;
        let call =
            Forward { rows, len, epsilon, parameters, weights: len, first, share: 1, x, y, mean, rstd };
        by_float!(data, forward(&call))
    })
}

pub(super) unsafe extern "C" fn miopenGroupNormForward(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    xDesc: miopenTensorDescriptor_t,
    x: *const c_void,
    weightDesc: miopenTensorDescriptor_t,
    weight: *const c_void,
    biasDesc: miopenTensorDescriptor_t,
    bias: *const c_void,
    num_groups: u64,
    epsilon: f32,
    yDesc: miopenTensorDescriptor_t,
    y: *mut c_void,
    meanDesc: miopenTensorDescriptor_t,
    mean: *mut c_void,
    rstdDesc: miopenTensorDescriptor_t,
    rstd: *mut c_void,
) -> miopenStatus_t {
    in_order(handle, |_| {
        // SAFETY: the caller's handle and descriptors.
        let (data, (batch, channels, pixels), parameters) = unsafe {
            let (x, y) = (tensor(xDesc)?, tensor(yDesc)?);
            let shape = x.planes()?;
            require(x.dims == y.dims, miopenStatusBadParm)?;
            let groups = num_groups as usize;
            require(groups >= 1 && shape.1.is_multiple_of(groups), miopenStatusBadParm)?;
            for own in [tensor(meanDesc)?, tensor(rstdDesc)?] {
                require(own.count() == shape.0 * groups, miopenStatusBadParm)?;
                layer(x, &[y, own], 0)?;
            }
            let parameters = parameters(mode, weight, bias)?;
            if parameters.is_some() {
                for own in [tensor(weightDesc)?, tensor(biasDesc)?] {
                    require(
                        own.count() == shape.1 && own.data == x.data && own.is_packed(),
                        miopenStatusBadParm,
                    )?;
                }
            }
            (x.data, shape, parameters)
        };
        let groups = num_groups as usize;
        let call = Forward {
            rows: batch * groups,
            len: channels / groups * pixels,
            epsilon,
            parameters,
            weights: channels,
            first: |row, weights, per_row| row * per_row % weights,
            share: pixels,
            x,
            y,
            mean,
            rstd,
        };
        by_float!(data, forward(&call))
    })
}

pub(super) unsafe extern "C" fn miopenGetLayerNormBackwardWorkspaceSize(
    handle: miopenHandle_t,
    mode: miopenNormMode_t,
    dyDesc: miopenTensorDescriptor_t,
    xDesc: miopenTensorDescriptor_t,
    weightDesc: miopenTensorDescriptor_t,
    meanDesc: miopenTensorDescriptor_t,
    rstdDesc: miopenTensorDescriptor_t,
    normalized_dim: i32,
    dxDesc: miopenTensorDescriptor_t,
    dwDesc: miopenTensorDescriptor_t,
    dbDesc: miopenTensorDescriptor_t,
    sizeInBytes: *mut usize,
) -> miopenStatus_t {
    let _ = (weightDesc, dwDesc, dbDesc);
    // SAFETY: the caller's handle, descriptors and out-pointer.
    in_order(handle, |_| unsafe {
        parameters(mode, core::ptr::null(), core::ptr::null())?;
        let others = [tensor(dyDesc)?, tensor(meanDesc)?, tensor(rstdDesc)?, tensor(dxDesc)?];
        layer(tensor(xDesc)?, &others, normalized_dim)?;
        answer(sizeInBytes, 0)
    })
}

struct Backward {
    rows: usize,
    len: usize,
    dy: *const c_void,
    x: *const c_void,
    weight: Option<*const c_void>,
    mean: *const c_void,
    rstd: *const c_void,
    dx: *mut c_void,
    dw: *mut c_void,
    db: *mut c_void,
}

fn backward<T: Single>(call: &Backward) -> Outcome {
    let (rows, len) = (call.rows, call.len);
    // SAFETY: the caller's buffers.
    let (dy, x, mean, rstd, dx, weight) = unsafe {
        (
            input::<T>(call.dy, rows * len)?,
            input::<T>(call.x, rows * len)?,
            input::<T>(call.mean, rows)?,
            input::<T>(call.rstd, rows)?,
            Shared(output::<T>(call.dx, rows * len)?.as_mut_ptr()),
            match call.weight {
                Some(weight) => Some(input::<T>(weight, len)?),
                None => None,
            },
        )
    };
    let each = (1usize << 12).div_ceil(len);
    parallel(rows.div_ceil(each), |task| {
        for row in task * each..((task + 1) * each).min(rows) {
            let at = row * len..(row + 1) * len;
            let (mean, rstd) = (mean[row].widen(), rstd[row].widen());
            let gradient = |i: usize, dy: &T| dy.widen() * weight.map_or(1.0, |weight| weight[i].widen());
            let (mut sum, mut moment) = (0.0f64, 0.0f64);
            for (i, (dy, x)) in dy[at.clone()].iter().zip(&x[at.clone()]).enumerate() {
                let value = gradient(i, dy);
                sum += f64::from(value);
                moment += f64::from(value * (x.widen() - mean) * rstd);
            }
            let (sum, moment) = ((sum / len as f64) as f32, (moment / len as f64) as f32);
            for (i, (dy, x)) in dy[at.clone()].iter().zip(&x[at.clone()]).enumerate() {
                let normal = (x.widen() - mean) * rstd;
                // SAFETY: each row is one task's alone.
                unsafe {
                    *dx.get().add(at.start + i) = T::narrow(rstd * (gradient(i, dy) - sum - normal * moment))
                };
            }
        }
    });
    if call.dw.is_null() && call.db.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's buffers.
    let (dw, db) = unsafe { (output::<T>(call.dw, len)?, output::<T>(call.db, len)?) };
    let (dw, db) = (Shared(dw.as_mut_ptr()), Shared(db.as_mut_ptr()));
    // A task takes neighbouring columns, so that it reads whole cache lines.
    const COLUMNS: usize = 64;
    parallel(len.div_ceil(COLUMNS), |task| {
        let first = task * COLUMNS;
        let count = COLUMNS.min(len - first);
        let mut sums = [[0.0f64; COLUMNS]; 2];
        for row in 0..rows {
            let (mean, rstd) = (mean[row].widen(), rstd[row].widen());
            let at = row * len + first..row * len + first + count;
            let [weights, biases] = &mut sums;
            for ((dy, x), (weight, bias)) in
                dy[at.clone()].iter().zip(&x[at]).zip(weights.iter_mut().zip(biases))
            {
                let dy = dy.widen();
                *weight += f64::from(dy * (x.widen() - mean) * rstd);
                *bias += f64::from(dy);
            }
        }
        for (i, (weight, bias)) in sums[0].iter().zip(&sums[1]).take(count).enumerate() {
            // SAFETY: each column is one task's alone.
            unsafe {
                *dw.get().add(first + i) = T::narrow(*weight as f32);
                *db.get().add(first + i) = T::narrow(*bias as f32);
            }
        }
    });
    Ok(())
}

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
    in_order(handle, |_| {
        // SAFETY: the caller's handle and descriptors.
        let (data, rows, len, weight) = unsafe {
            let (dys, xs, dxs) = (tensor(dyDesc)?, tensor(xDesc)?, tensor(dxDesc)?);
            let (means, rstds) = (tensor(meanDesc)?, tensor(rstdDesc)?);
            let (rows, len) = layer(xs, &[dys, dxs, means, rstds], normalized_dim)?;
            require(dys.dims == xs.dims && dxs.dims == xs.dims, miopenStatusBadParm)?;
            require(means.count() == rows && rstds.count() == rows, miopenStatusBadParm)?;
            let weight = parameters(mode, weight, weight)?.map(|(weight, _)| weight);
            if weight.is_some() {
                require(tensor(weightDesc)?.count() == len, miopenStatusBadParm)?;
            }
            if !dw.is_null() || !db.is_null() {
                for own in [tensor(dwDesc)?, tensor(dbDesc)?] {
                    require(own.count() == len && own.data == xs.data, miopenStatusBadParm)?;
                }
            }
            (xs.data, rows, len, weight)
        };
        by_float!(data, backward(&Backward { rows, len, dy, x, weight, mean, rstd, dx, dw, db }))
    })
}
