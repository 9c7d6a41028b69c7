//! Layer norm over the last axis.

use burn_std::DType;
use hip::{Device, Error as RocmError, Grid, LayerNormDesc, Template};

use super::{by_miopen, fits, for_miopen, passed_over, row, rows_backward, rows_forward};
use crate::arg::Arg;
use crate::dtype::kernel_type;
use crate::error::invalid;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::launch::{views, views_in_part};
use crate::ops::miopen::{Why, whole};
use crate::ops::view::narrow;
use crate::tensor::{RocmTensor, float_type};

const OP: &str = "layer_norm";

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis ([Ba, Kiros and
/// Hinton 2016](https://arxiv.org/abs/1607.06450)).
///
/// # Shapes
/// - x, result: `[.., len]`
/// - gamma, beta: `[len]`, of the dtype of `x`, or f32 with an `x` of f16 or bf16. The kernels
///   compute f16 and bf16 in f32, without a cast beforehand
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers, or if
/// `BURN_ROCM_NORM=miopen` and MIOpen lacks the dtype or the parameters have another one; an error
/// of the device.
pub fn layer_norm(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: Option<RocmTensor>,
    epsilon: f64,
) -> Result<RocmTensor, RocmError> {
    let Some(&len) = x.dims().last() else {
        return invalid(OP, "at least one axis", "none");
    };
    float_type(OP, &x)?;
    fits(OP, &x, &[&gamma].into_iter().chain(&beta).collect::<Vec<_>>())?;
    for (parameter, what) in [(Some(&gamma), "scale"), (beta.as_ref(), "shift")] {
        let Some(parameter) = parameter else { continue };
        if parameter.dims() != [len] {
            return invalid(OP, format!("a {what} of shape [{len}]"), format!("{:?}", parameter.dims()));
        }
    }
    let (x, gamma, beta) = (packed(x)?, packed(gamma)?, beta.map(packed).transpose()?);
    let out = x.empty_like()?;
    if out.is_empty() {
        return Ok(out);
    }
    let passed_over = without_miopen(x.hip_device(), x.dtype_of(), gamma.dtype_of(), x.len())?;
    if !by_miopen(x.hip_device(), passed_over, || library(&x, &gamma, beta.as_ref(), epsilon, &out))? {
        let (kernel, grid) = rows_forward(Template::layer_norm_rows, Template::layer_norm_warps, &x, &gamma)?;
        let inputs = [Some(&x), Some(&gamma), beta.as_ref()];
        views(OP, out.hip_device(), kernel, grid, &dims(&out), &inputs, &[Arg::F64(epsilon)], &out)?;
    }
    Ok(out)
}

/// Why MIOpen does not compute the norm of `elements` elements of `dtype`; `None` if it does.
pub(crate) fn without_miopen(
    device: &Device,
    dtype: DType,
    parameters: DType,
    elements: usize,
) -> hip::Result<Option<Why>> {
    passed_over(device, None, || {
        for_miopen(OP, dtype, elements, &[parameters])?;
        device.dnn()?.has_layer_norm(kernel_type(dtype)?)
    })
}

/// The rows of `out` and their length, as the kernels take them.
fn dims(out: &RocmTensor) -> [Arg; 2] {
    let len = out.dims().last().copied().unwrap_or(1);
    [Arg::U64((out.len() / len) as u64), Arg::U64(len as u64)]
}

/// Computes the norm by MIOpen, which requires a beta and also writes each row's statistics.
/// MIOpen's variance, the mean of squares minus the squared mean, loses precision if a row's mean
/// is large. So a kernel reads the statistics and recomputes such rows.
fn library(
    x: &RocmTensor,
    gamma: &RocmTensor,
    beta: Option<&RocmTensor>,
    epsilon: f64,
    out: &RocmTensor,
) -> hip::Result<()> {
    let device = x.hip_device();
    let len = gamma.len();
    let desc = LayerNormDesc { dtype: x.kernel_type()?, rows: x.len() / len, len };
    let dnn = device.dnn()?;
    let shift = match beta {
        Some(beta) => beta.clone(),
        None => full_on(device, [len], 0i64.into(), x.dtype_of())?,
    };
    // The means of all rows, then their reciprocal standard deviations.
    let mean = RocmTensor::empty(device, [2, desc.rows], x.dtype_of())?;
    let rstd = narrow(mean.clone(), 0, 1, 1)?;
    let [px, pg, pb, po, pm, pr] = [x, gamma, &shift, out, &mean, &rstd].map(whole);
    dnn.layer_norm_forward(&desc, px, pg, pb, epsilon as f32, po, pm, pr)?;
    let inputs = [Some(x), Some(gamma), beta, Some(&mean), Some(&rstd)];
    // Each thread looks at the statistics of a few rows.
    let Grid { threads, .. } = device.grid_kept_rows(desc.rows, len);
    let grid = Grid { threads, ..device.grid(desc.rows * threads as usize) };
    let kernel = Template::layer_norm_repair.ty(desc.dtype);
    views_in_part(OP, device, kernel, grid, &dims(out), &inputs, &[Arg::F64(epsilon)], out)
}

/// The gradients of [`layer_norm`] with respect to x and, if `params` asks for them, to gamma and
/// beta (in gamma's dtype), from x and the output's gradient. The gradient with respect to x is
/// added to `onto`, another gradient of the same x: in f32 by the same kernel, in other types by
/// one more launch.
///
/// # Errors
/// As for [`layer_norm`], and `Invalid` if `onto` differs from x in shape, dtype or device.
pub fn layer_norm_backward(
    x: RocmTensor,
    gamma: RocmTensor,
    grad: RocmTensor,
    onto: Option<RocmTensor>,
    epsilon: f64,
    params: bool,
) -> Result<(RocmTensor, Option<[RocmTensor; 2]>), RocmError> {
    let kernel = Template::layer_norm_rows_backward;
    let (dx, sums) =
        rows_backward("layer_norm_backward", kernel, 2, [x, gamma, grad], onto, epsilon, params)?;
    let Some(sums) = sums else { return Ok((dx, None)) };
    Ok((dx, Some([row(&sums, 0)?, row(&sums, 1)?])))
}
