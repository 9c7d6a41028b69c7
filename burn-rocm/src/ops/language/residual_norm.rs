//! RMS norm together with the sum of a residual connection.

use burn_backend::Scalar;
use hip::{Error as RocmError, Functor, Template};

use crate::arg::Arg;
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::ops::binary::scalar;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::launch::views_to;
use crate::ops::norm::check_rows;
use crate::ops::norm::rms::rms_norm_backward;
use crate::tensor::{RocmTensor, float_type, one_device, one_dtype};

const OP: &str = "residual_norm";

/// What the norms of [`residual_norm`] have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsOptions {
    /// Added to the mean of squares.
    pub epsilon: f64,
    /// Added to the weights: 1 in Gemma, else 0.
    pub shift: f64,
}

/// A residual connection between two RMS norms, in one kernel. With `rms(v, w) = v / sqrt(mean(v^2)
/// + epsilon) * (w + shift)` along the last axis:
///
/// - `y = rms(x, before)`, or `x` without `before`;
/// - the first result is `residual + y`, or `y` without a residual;
/// - the second result is `rms(first result, after)`, if there is an `after`.
///
/// `y` and the first result are rounded to the dtype before they are used, as separate ops would.
/// The first result overwrites `x` or the residual if that has no other owner.
///
/// # Shapes
/// - `x`, `residual`, results: `[.., len]`
/// - `before`, `after`: `[len]`, of the dtype of `x`, or both f32 with an `x` of f16 or bf16
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers; an error of the
/// device.
pub fn residual_norm(
    x: RocmTensor,
    residual: Option<RocmTensor>,
    before: Option<RocmTensor>,
    after: Option<RocmTensor>,
    options: RmsOptions,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    float_type(OP, &x)?;
    if let Some(residual) = &residual {
        one_device(OP, &[&x, residual])?;
        one_dtype(OP, &[&x, residual])?;
        if residual.dims() != x.dims() {
            let expected = format!("a residual of shape {:?}", x.dims());
            return invalid(OP, expected, format!("{:?}", residual.dims()));
        }
    }
    let mut len = x.dims().last().copied();
    for weight in before.iter().chain(&after) {
        len = Some(check_rows(OP, &x, weight)?);
    }
    if let (Some(before), Some(after)) = (&before, &after) {
        one_dtype(OP, &[before, after])?;
    }
    let Some(len) = len else { return invalid(OP, "at least one axis", "none") };
    let mut x = packed(x)?;
    let mut residual = residual.map(packed).transpose()?;
    let (before, after) = (before.map(packed).transpose()?, after.map(packed).transpose()?);
    let normed = after.is_some().then(|| x.empty_like()).transpose()?;
    // Without a norm before and a residual, the sum is x.
    let sums = before.is_some() || residual.is_some();
    let free = residual.as_mut().is_some_and(RocmTensor::can_overwrite);
    let sum = match &residual {
        _ if !sums || x.can_overwrite() => x.clone(),
        Some(residual) if free => residual.clone(),
        _ => x.empty_like()?,
    };
    if x.is_empty() || (!sums && normed.is_none()) {
        return Ok((sum, normed));
    }
    let device = x.hip_device();
    let weights = before.as_ref().or(after.as_ref());
    let parameters = weights.map_or_else(|| x.kernel_type(), |weight| weight.kernel_type())?;
    let kernel = Template::residual_norm.ty(x.kernel_type()?).ty(parameters);
    let rows = x.len() / len;
    let dims = [Arg::U64(rows as u64), Arg::U64(len as u64)];
    let inputs = [Some(&x), residual.as_ref(), before.as_ref(), after.as_ref()];
    let scalars = [Arg::F64(options.epsilon), Arg::F64(options.shift)];
    let outputs = [sums.then_some(&sum), normed.as_ref()];
    views_to(OP, device, kernel, device.grid_kept_rows(rows, len), &dims, &inputs, &scalars, &outputs)?;
    Ok((sum, normed))
}

/// The gradients of `rms(x, weight)` of [`residual_norm`] with respect to `x` and, if `by_weight`,
/// to the weight (in its dtype). `onto` is another gradient of `x`, which is added to that of `x`.
///
/// # Errors
/// As for [`rms_norm_backward`](crate::fused::rms_norm_backward()).
pub fn residual_norm_backward(
    x: RocmTensor,
    weight: RocmTensor,
    grad: RocmTensor,
    onto: Option<RocmTensor>,
    options: RmsOptions,
    by_weight: bool,
) -> Result<(RocmTensor, Option<RocmTensor>), RocmError> {
    let RmsOptions { epsilon, shift } = options;
    if shift == 0.0 {
        return rms_norm_backward(x, weight, grad, onto, epsilon, by_weight);
    }
    // The sum is not rounded to f16 or bf16, as in the forward pass.
    let given = weight.dtype_of();
    let weight = scalar(OP, Functor::Add, cast(weight, compute_dtype(given))?, Scalar::Float(shift))?;
    let (by_x, sums) = rms_norm_backward(x, weight, grad, onto, epsilon, by_weight)?;
    Ok((by_x, sums.map(|sums| cast(sums, given)).transpose()?))
}
