//! The linear layer and its gradients, each one matrix product over all leading axes.

use hip::Functor;

use super::binary::binary;
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

/// `x [.., in] x weight [in, out] + bias [out]`.
pub(crate) fn linear(x: RocmTensor, weight: RocmTensor, bias: Option<RocmTensor>) -> hip::Result<RocmTensor> {
    const OP: &str = "linear";
    let out = by_rows(Request::new(OP, 1.0), x, weight)?;
    match bias {
        Some(bias) => binary(OP, Functor::Add, out, bias),
        None => Ok(out),
    }
}

/// `x [.., in] x weight [in, out]`, with the leading axes of `x` merged into rows.
fn by_rows(request: Request, x: RocmTensor, weight: RocmTensor) -> hip::Result<RocmTensor> {
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
    let (x, grad) = (as_rows(OP, x)?, as_rows(OP, grad)?);
    product(Request::gradient(OP, 1.0), swap_dims(x, 0, 1)?, grad)
}

/// The gradient with respect to the bias: the sum over all rows.
pub(crate) fn bias_backward(grad: RocmTensor) -> hip::Result<RocmTensor> {
    const OP: &str = "linear_bias_backward";
    let columns = grad.dims().last().copied().unwrap_or(1);
    let sum = reduce_dim(OP, Functor::Sum, as_rows(OP, grad)?, 0)?;
    reshape(sum, &[columns])
}
