//! The linear layer and its gradients, each one matrix product over all leading axes. hipBLASLt
//! computes the bias and its gradient with the product, if the settings ask for it (`lt.rs`).

use hip::{Error as RocmError, Functor, trace};

use super::binary::binary;
use super::lt::{self, Follows};
use super::matmul::{Request, product};
use super::reduce::reduce_dim;
use super::view::{reshape, swap_dims, unsqueeze_to};
use crate::error::invalid;
use crate::tensor::RocmTensor;

/// `x` with all axes but the last merged into one.
fn as_rows(op: &'static str, x: RocmTensor) -> hip::Result<RocmTensor> {
    let Some((&last, leading)) = x.dims().split_last() else {
        return invalid(op, "at least one axis", "none");
    };
    let rows = leading.iter().product();
    reshape(x, &[rows, last])
}

/// `x W + b`.
///
/// # Shapes
/// - `x`: `[.., in]`
/// - `weight`: `[in, out]`
/// - `bias`: `[out]`
/// - output: `[.., out]`
///
/// # Errors
/// As for [`linear_backward`].
pub fn linear(x: RocmTensor, weight: RocmTensor, bias: Option<RocmTensor>) -> Result<RocmTensor, RocmError> {
    const OP: &str = "linear";
    let Some(bias) = bias else { return product_of_rows(OP, x, weight) };
    if lt::asked() {
        let today = || by_two(OP, x.clone(), weight.clone(), bias.clone()).map(drop);
        let follows = Follows { bias: Some(&bias), ..Follows::default() };
        if let Some((out, _)) = lt::forward(&x, &weight, None, follows, today)? {
            return Ok(out);
        }
    }
    by_two(OP, x, weight, bias)
}

/// The product, then the sum with the bias.
fn by_two(op: &'static str, x: RocmTensor, weight: RocmTensor, bias: RocmTensor) -> hip::Result<RocmTensor> {
    binary(op, Functor::Add, product_of_rows(op, x, weight)?, bias)
}

/// `x [.., in] x weight [in, out]`, with the leading axes of `x` merged into rows.
pub(crate) fn product_of_rows(
    op: &'static str,
    x: RocmTensor,
    weight: RocmTensor,
) -> hip::Result<RocmTensor> {
    by_rows(Request::new(op, 1.0), x, weight)
}

/// [`product_of_rows`] with options.
fn by_rows(request: Request, x: RocmTensor, weight: RocmTensor) -> hip::Result<RocmTensor> {
    if lt::timed() {
        let today = || rows_by_rocblas(request, x.clone(), weight.clone()).map(drop);
        if let Some(out) = lt::product(&x, &weight, request.is_gradient(), today)? {
            return Ok(out);
        }
    }
    rows_by_rocblas(request, x, weight)
}

/// [`by_rows`] without hipBLASLt.
fn rows_by_rocblas(request: Request, x: RocmTensor, weight: RocmTensor) -> hip::Result<RocmTensor> {
    let rank = x.dims().len();
    let Some((_, leading)) = x.dims().split_last() else {
        return invalid(request.op, "at least one axis", "none");
    };
    let leading = leading.to_vec();
    let out = match rank {
        // A vector counts as one row, and the result is a vector again.
        1 => {
            let out = product(request, unsqueeze_to(x, 2)?, weight)?;
            let columns = out.len();
            reshape(out, &[columns])?
        }
        _ => {
            let weight = unsqueeze_to(weight, rank)?;
            product(request, x, weight)?
        }
    };
    debug_assert_eq!(&out.dims()[..out.dims().len() - 1], leading);
    Ok(out)
}

/// The gradient with respect to `x`: `grad [.., out] x weight^T`.
pub(crate) fn x_backward(weight: RocmTensor, grad: RocmTensor) -> hip::Result<RocmTensor> {
    x_product(grad, swap_dims(weight, 0, 1)?)
}

/// [`x_backward`] for a weight that is already transposed.
pub(crate) fn x_product(grad: RocmTensor, weight: RocmTensor) -> hip::Result<RocmTensor> {
    by_rows(Request::gradient("linear_x_backward", 1.0), grad, weight)
}

/// The gradient with respect to the weight: `x^T x grad` over all rows.
pub(crate) fn weight_backward(x: RocmTensor, grad: RocmTensor) -> hip::Result<RocmTensor> {
    const OP: &str = "linear_weight_backward";
    let (x, grad) = (swap_dims(as_rows(OP, x)?, 0, 1)?, as_rows(OP, grad)?);
    let request = Request::gradient(OP, 1.0);
    if lt::timed() {
        let today = || product(request, x.clone(), grad.clone()).map(drop);
        if let Some(out) = lt::product(&x, &grad, true, today)? {
            return Ok(out);
        }
    }
    product(request, x, grad)
}

/// The gradient with respect to the bias: the sum over all rows.
pub(crate) fn bias_backward(grad: RocmTensor) -> hip::Result<RocmTensor> {
    const OP: &str = "linear_bias_backward";
    let columns = grad.dims().last().copied().unwrap_or(1);
    let sum = reduce_dim(OP, Functor::Sum, as_rows(OP, grad)?, 0)?;
    reshape(sum, &[columns])
}

/// The gradients with respect to the weight and the bias.
pub(crate) fn weight_and_bias_backward(x: RocmTensor, grad: RocmTensor) -> hip::Result<[RocmTensor; 2]> {
    if lt::asked() {
        let today = || each_backward(x.clone(), grad.clone()).map(drop);
        if let Some(both) = lt::weight_and_bias(&x, &grad, today)? {
            return Ok(both);
        }
    }
    each_backward(x, grad)
}

/// The gradients with respect to the weight and the bias, one after the other.
fn each_backward(x: RocmTensor, grad: RocmTensor) -> hip::Result<[RocmTensor; 2]> {
    Ok([weight_backward(x, grad.clone())?, bias_backward(grad)?])
}

/// The gradients of a linear layer; `None` for one that was not asked for.
#[derive(Clone, Debug, Default)]
pub struct LinearGradients {
    /// With respect to the input: `[.., in]`.
    pub x: Option<RocmTensor>,
    /// With respect to the weight: `[in, out]`.
    pub weight: Option<RocmTensor>,
    /// With respect to the bias: `[out]`.
    pub bias: Option<RocmTensor>,
}

/// The gradients of `x W + b` with respect to input, weight and bias, each if `wanted`, from the
/// output's gradient. If hipBLASLt joins products ([`joins_products`](crate::fused::joins_products)),
/// one product gives the gradients of weight and bias.
///
/// # Shapes
/// - `x`: `[.., in]`
/// - `weight`: `[in, out]`
/// - `grad`: `[.., out]`
///
/// # Errors
/// `Invalid` if shapes, dtypes or devices do not fit; `Unsupported` for integers; an error of the
/// device.
pub fn linear_backward(
    x: RocmTensor,
    weight: RocmTensor,
    grad: RocmTensor,
    wanted: [bool; 3],
) -> Result<LinearGradients, RocmError> {
    let mut found = LinearGradients::default();
    match [wanted[1], wanted[2]] {
        [true, true] => {
            let [weight, bias] = weight_and_bias_backward(x, grad.clone())?;
            (found.weight, found.bias) = (Some(weight), Some(bias));
        }
        [true, false] => found.weight = Some(weight_backward(x, grad.clone())?),
        [false, true] => found.bias = Some(bias_backward(grad.clone())?),
        [false, false] => {}
    }
    if wanted[0] {
        // Other devices' gradients can be added to the weight's while this one is computed.
        trace::op_goes_on();
        found.x = Some(x_backward(weight, grad)?);
    }
    Ok(found)
}
