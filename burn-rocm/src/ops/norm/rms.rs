//! RMS norm over the last axis.

use burn_std::DType;
use hip::{Device, Error as RocmError, LayerNormDesc, Template};

use super::{by_miopen, check_rows, for_miopen, passed_over, row, rows_backward, rows_forward};
use crate::arg::Arg;
use crate::dtype::kernel_type;
use crate::ops::copy::packed;
use crate::ops::launch::rows;
use crate::ops::miopen::{Why, whole};
use crate::tensor::RocmTensor;

const OP: &str = "rms_norm";

/// `x / sqrt(mean(x^2) + epsilon) * gamma` along the last axis ([Zhang and Sennrich
/// 2019](https://arxiv.org/abs/1910.07467)).
///
/// MIOpen computes it (under the name T5 layer norm) if it supports the dtype and gamma has the
/// same dtype. Otherwise a kernel of this project does. `BURN_ROCM_NORM` overrides the choice.
///
/// # Shapes
/// - x, result: `[.., len]`
/// - gamma: `[len]`, of a dtype as for [`layer_norm`](crate::fused::layer_norm())
///
/// # Errors
/// As for [`layer_norm`](crate::fused::layer_norm()).
pub fn rms_norm(x: RocmTensor, gamma: RocmTensor, epsilon: f64) -> Result<RocmTensor, RocmError> {
    let len = check_rows(OP, &x, &gamma)?;
    let (x, gamma) = (packed(x)?, packed(gamma)?);
    let out = x.empty_like()?;
    if out.is_empty() {
        return Ok(out);
    }
    let library = || {
        let desc = LayerNormDesc { dtype: x.kernel_type()?, rows: x.len() / len, len };
        let dnn = x.hip_device().dnn()?;
        // MIOpen also writes each row's statistic. It comes from a sum of squares, which loses no
        // precision, so no row has to be recomputed.
        let rstd = RocmTensor::empty(x.hip_device(), [desc.rows], x.dtype_of())?;
        dnn.rms_norm_forward(&desc, whole(&x), whole(&gamma), epsilon as f32, whole(&out), whole(&rstd))
    };
    let passed_over = without_miopen(x.hip_device(), x.dtype_of(), gamma.dtype_of(), x.len())?;
    if by_miopen(x.hip_device(), passed_over, library)? {
        return Ok(out);
    }
    let (kernel, grid) = rows_forward(Template::rms_norm_rows, Template::rms_norm_warps, &x, &gamma)?;
    let dims = [Arg::U64((out.len() / len) as u64), Arg::U64(len as u64)];
    rows(OP, out.hip_device(), kernel, grid, &dims, &[&x, &gamma], &[Arg::F64(epsilon)], &[&out])?;
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
        device.dnn()?.has_rms_norm(kernel_type(dtype)?)
    })
}

/// The gradients of [`rms_norm`] with respect to x and, if `params` asks for it, to gamma (in its
/// dtype), from x and the output's gradient. `onto` is as for
/// [`layer_norm_backward`](crate::fused::layer_norm_backward()).
///
/// # Errors
/// As for [`rms_norm`], except MIOpen's, because a kernel of this project computes the gradient;
/// and `Invalid` if `onto` differs from x in shape, dtype or device.
pub fn rms_norm_backward(
    x: RocmTensor,
    gamma: RocmTensor,
    grad: RocmTensor,
    onto: Option<RocmTensor>,
    epsilon: f64,
    params: bool,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    let kernel = Template::rms_norm_rows_backward;
    let (dx, sums) = rows_backward("rms_norm_backward", kernel, 1, [x, gamma, grad], onto, epsilon, params)?;
    Ok((dx, sums.map(|sums| row(&sums, 0)).transpose()?))
}
