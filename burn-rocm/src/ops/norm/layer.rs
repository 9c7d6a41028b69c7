//! Layer norm and RMS norm over the last axis.

use std::sync::Arc;

use burn_std::DType;
use hip::{Device, Grid, KernelName, LayerNormDesc, Route};

use super::{fits, for_miopen, wide};
use crate::RocmTensor;
use crate::dtype::Value;
use crate::error::invalid;
use crate::ops::binary::binary;
use crate::ops::conv::{arg, without_library};
use crate::ops::data::{full_on, packed};
use crate::ops::launch::{rows, views_to};
use crate::ops::view::{narrow, reshape};
use crate::tensor::{one_device, one_dtype};
use hip::Error as RocmError;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis ([Ba, Kiros and Hinton
/// 2016](https://arxiv.org/abs/1607.06450)).
///
/// # Shapes
/// - x, result: `[.., len]`; gamma, beta: `[len]`, of the dtype of `x`, or f32 beside an `x` of f16
///   or bf16. Nothing is cast: f16 and bf16 are computed in f32
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices do not fit; `Unsupported` for integers, or if
/// `BURN_ROCM_NORM=miopen` and MIOpen lacks the dtype or the parameters have another; the device's
/// own.
pub fn layer_norm(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: Option<RocmTensor>,
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    super::layer_norm(x, gamma, beta, epsilon)
}

/// The gradients of [`layer_norm`] by x and, where `params` asks for them, by gamma and beta, of the dtype of
/// gamma; from x and the output's. The one by x is added to `onto`, another gradient of the same x, in f32 by the
/// same kernel.
///
/// # Errors
/// As for [`layer_norm`], and `Invalid` where `onto` is not like x.
pub fn layer_norm_backward(
    x: RocmTensor,
    gamma: RocmTensor,
    grad: RocmTensor,
    onto: Option<RocmTensor>,
    epsilon: f64,
    params: bool,
) -> Result<(RocmTensor, Option<[RocmTensor; 2]>), RocmError> {
    let (dx, sums) = backward(
        "layer_norm_backward",
        "layer_norm_rows_backward",
        2,
        [x, gamma, grad],
        onto,
        epsilon,
        params,
    )?;
    let Some(sums) = sums else { return Ok((dx, None)) };
    Ok((dx, Some([row(&sums, 0)?, row(&sums, 1)?])))
}

/// `x / sqrt(mean(x^2) + epsilon) * gamma` along the last axis ([Zhang and Sennrich
/// 2019](https://arxiv.org/abs/1910.07467)).
///
/// MIOpen computes it (as T5's layer norm) if it has that for the dtype and gamma has the same
/// dtype (`BURN_ROCM_NORM` overrides); otherwise an own kernel does.
///
/// # Shapes
/// - x, result: `[.., len]`; gamma: `[len]`, of a dtype as for [`layer_norm`]
///
/// # Errors
/// As for [`layer_norm`].
pub fn rms_norm(x: RocmTensor, gamma: RocmTensor, epsilon: f64) -> Result<RocmTensor, RocmError> {
    const OP: &str = "rms_norm";
    let len = check(OP, &x, &gamma)?;
    let (x, gamma) = (packed(x)?, packed(gamma)?);
    let out = RocmTensor::empty(x.hip_device(), x.layout().shape().clone(), x.dtype_of())?;
    if out.is_empty() {
        return Ok(out);
    }
    let route = x.hip_device().norm_route()?;
    if route != Route::Own {
        match rms_norm_by_miopen(&x, &gamma, epsilon, &out) {
            Ok(()) => return Ok(out),
            Err(error) if route == Route::Library => return Err(error),
            // MIOpen lacks the dtypes, the tensor is too large for it, or it is too old.
            Err(RocmError::Unsupported { .. }) => {}
            Err(error) => without_library(error)?,
        }
    }
    let (device, count) = (out.hip_device(), out.len() / len);
    let kernel = KernelName::new("rms_norm_rows").ty(out.kernel_type()?).ty(gamma.kernel_type()?);
    let dims = [Value::U64(count as u64), Value::U64(len as u64)];
    rows(
        OP,
        device,
        kernel,
        device.grid_kept_rows(count, len),
        &dims,
        &[&x, &gamma],
        &[Value::F64(epsilon)],
        &[&out],
    )?;
    Ok(out)
}

/// By MIOpen, which writes each row's statistic too: a sum of squares, whose digits no mean takes away.
fn rms_norm_by_miopen(x: &RocmTensor, gamma: &RocmTensor, epsilon: f64, out: &RocmTensor) -> hip::Result<()> {
    for_miopen("rms_norm", x, &[gamma])?;
    let len = gamma.len();
    let desc = LayerNormDesc { dtype: x.kernel_type()?, rows: x.len() / len, len };
    let dnn = x.hip_device().dnn()?;
    dnn.has_rms_norm(desc.dtype)?;
    let rstd = RocmTensor::empty(x.hip_device(), [desc.rows], x.dtype_of())?;
    dnn.rms_norm_forward(&desc, arg(x), arg(gamma), epsilon as f32, arg(out), arg(&rstd))
}

/// The gradients of [`rms_norm`] by x and, where `params` asks for it, by gamma, of its dtype; from x and the
/// output's. `onto` as for [`layer_norm_backward`].
///
/// # Errors
/// As for [`rms_norm`], but for MIOpen's: it is not asked; and `Invalid` where `onto` is not like x.
pub fn rms_norm_backward(
    x: RocmTensor,
    gamma: RocmTensor,
    grad: RocmTensor,
    onto: Option<RocmTensor>,
    epsilon: f64,
    params: bool,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    let (dx, sums) =
        backward("rms_norm_backward", "rms_norm_rows_backward", 1, [x, gamma, grad], onto, epsilon, params)?;
    Ok((dx, sums.map(|sums| row(&sums, 0)).transpose()?))
}

/// The last axis of `x`, floats, which gamma has as its one.
fn check(op: &'static str, x: &RocmTensor, gamma: &RocmTensor) -> hip::Result<usize> {
    fits(op, x, &[gamma])?;
    floats(op, x)?;
    let Some(&len) = x.dims().last() else { return invalid(op, "at least one axis", "none") };
    match gamma.dims() == [len] {
        true => Ok(len),
        false => invalid(op, format!("a scale of shape [{len}]"), format!("{:?}", gamma.dims())),
    }
}

/// That a tensor has floats.
pub(super) fn floats(op: &'static str, tensor: &RocmTensor) -> hip::Result<()> {
    match tensor.kernel_type()?.is_float() {
        true => Ok(()),
        false => Err(RocmError::Unsupported { op, dtype: tensor.dtype_of().name().to_string() }),
    }
}

/// That a gradient has the shape of what it is one of.
pub(super) fn same_shape(op: &'static str, x: &RocmTensor, grad: &RocmTensor) -> hip::Result<()> {
    match grad.dims() == x.dims() {
        true => Ok(()),
        false => invalid(op, format!("a gradient of shape {:?}", x.dims()), format!("{:?}", grad.dims())),
    }
}

/// Row `index` of a matrix.
pub(super) fn row(matrix: &RocmTensor, index: usize) -> hip::Result<RocmTensor> {
    let len = matrix.dims()[1];
    reshape(narrow(matrix.clone(), 0, index, 1)?, &[len])
}

/// The gradient by x and, as `[sums, len]`, those by the parameters.
#[allow(clippy::too_many_arguments)] // The op's own, and which op it is.
fn backward(
    op: &'static str,
    kernel: &'static str,
    sums: usize,
    [x, gamma, grad]: [RocmTensor; 3],
    onto: Option<RocmTensor>,
    epsilon: f64,
    params: bool,
) -> hip::Result<(RocmTensor, Option<RocmTensor>)> {
    let len = check(op, &x, &gamma)?;
    for like in [Some(&grad), onto.as_ref()].into_iter().flatten() {
        one_device(op, &[&x, like])?;
        one_dtype(op, &[&x, like])?;
        same_shape(op, &x, like)?;
    }
    let given = gamma.dtype_of();
    let (x, gamma, grad) = (packed(x)?, packed(gamma)?, packed(grad)?);
    let (device, dtype) = (x.hip_device(), x.dtype_of());
    // `ONTO` of the kernel: other types are added behind it.
    let (by_kernel, behind) = match onto {
        Some(onto) if dtype == DType::F32 => (Some(packed(onto)?), None),
        onto => (None, onto),
    };
    let dx = RocmTensor::empty(device, x.layout().shape().clone(), dtype)?;
    if dx.is_empty() {
        let zeros = params.then(|| full_on(device, [sums, len], 0i64.into(), given)).transpose()?;
        return Ok((dx, zeros));
    }
    let count = dx.len() / len;
    let grid = gradient_grid(device, count, len, dtype);
    let blocks = grid.blocks as usize;
    let partial = params.then(|| RocmTensor::empty(device, [sums, blocks, len], wide(dtype))).transpose()?;
    let dims = [Value::U64(count as u64), Value::U64(len as u64)];
    views_to(
        op,
        device,
        KernelName::new(kernel).ty(x.kernel_type()?).ty(gamma.kernel_type()?),
        grid,
        &dims,
        &[Some(&x), Some(&grad), Some(&gamma), by_kernel.as_ref()],
        &[Value::F64(epsilon)],
        &[Some(&dx), partial.as_ref()],
    )?;
    let sums = partial.map(|partial| sum_partials(op, &partial, given)).transpose()?;
    let dx = match behind {
        Some(onto) => binary(op, "Add", dx, onto)?,
        None => dx,
    };
    Ok((dx, sums))
}

/// The sums of `[outer, count, len]` over the middle axis, as `[outer, len]` of `dtype`.
pub(super) fn sum_partials(op: &'static str, partial: &RocmTensor, dtype: DType) -> hip::Result<RocmTensor> {
    let device = partial.hip_device();
    let &[outer, count, len] = partial.dims() else {
        return invalid(op, "partial sums of rank 3", format!("{:?}", partial.dims()));
    };
    let out = RocmTensor::empty(device, [outer, len], dtype)?;
    if out.is_empty() {
        return Ok(out);
    }
    let kernel = KernelName::new("sum_partials").ty(out.kernel_type()?);
    // The kernel gives 16 columns to a block: there are few, so each has all the threads it may, which share the
    // sums' loads.
    let grid = Grid {
        threads: device.info().max_threads_per_block.min(1024),
        ..device.grid_rows(outer * len.div_ceil(16), 16 * count)
    };
    let dims = [Value::U64(outer as u64), Value::U64(count as u64), Value::U64(len as u64)];
    rows(op, device, kernel, grid, &dims, &[partial], &[], &[&out])?;
    Ok(out)
}

/// The grid of a gradient that keeps its rows: 32 bytes a thread of each tensor in compute types. At least 1024
/// threads and two blocks a compute unit, so that one loads while another reduces; more where there are 32 rows for
/// each, beside which the sums that a block writes are few.
pub(super) fn gradient_grid(device: &Arc<Device>, rows: usize, len: usize, dtype: DType) -> Grid {
    let each = 32 / wide(dtype).size();
    let info = device.info();
    let wanted = len.div_ceil(each).next_power_of_two().min(info.max_threads_per_block as usize) as u32;
    let threads = wanted.max(info.warp_size).min(info.max_threads_per_block);
    let units = info.compute_units as usize;
    let resident = units * (info.max_threads_per_compute_unit / threads).max(1) as usize;
    let least = units * (1024 / threads).max(2) as usize;
    Grid { blocks: least.max(rows / 32).min(resident).min(rows).max(1) as u32, threads }
}
