//! Embeddings: rows of a table by indices, and the table's gradient.

use super::create::full_on;
use super::index::{Join, select, select_into};
use super::view::reshape;
use crate::error::invalid;
use crate::tensor::RocmTensor;

/// The number of rows of the table, and their width.
fn table(op: &'static str, weights: &RocmTensor) -> hip::Result<[usize; 2]> {
    match weights.dims() {
        &[rows, width] => Ok([rows, width]),
        other => invalid(op, "weights of rank 2", format!("{other:?}")),
    }
}

/// The table's rows at the indices. The result has the indices' shape with the row width appended.
pub(crate) fn embedding(weights: RocmTensor, indices: RocmTensor) -> hip::Result<RocmTensor> {
    const OP: &str = "embedding";
    let [_, width] = table(OP, &weights)?;
    let shape = [indices.dims(), &[width]].concat();
    let count = indices.len();
    reshape(select(OP, weights, 0, reshape(indices, &[count])?)?, &shape)
}

/// The gradient with respect to the table: each row is the sum of the gradients at the indices that
/// select it.
pub(crate) fn embedding_backward(
    weights: RocmTensor,
    grad: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    const OP: &str = "embedding_backward";
    let [rows, width] = table(OP, &weights)?;
    let shape = [indices.dims(), &[width]].concat();
    if grad.dims() != shape {
        return invalid(OP, format!("a gradient of shape {shape:?}"), format!("{:?}", grad.dims()));
    }
    let count = indices.len();
    let sums = full_on(grad.hip_device(), [rows, width], 0i64.into(), grad.dtype_of())?;
    let grad = reshape(grad, &[count, width])?;
    select_into(OP, sums, 0, reshape(indices, &[count])?, grad, Join::Add)
}
