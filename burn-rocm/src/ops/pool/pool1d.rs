//! Pooling of lines `[N, C, L]`, as pooling of planes of one row. The planes are views, so a
//! pooling stays one launch.

use burn_std::DType;

use crate::error::invalid;
use crate::ops::pool::{self, Window};
use crate::ops::view::{self, lower};
use crate::tensor::RocmTensor;

fn lift(op: &'static str, lines: RocmTensor) -> hip::Result<RocmTensor> {
    match lines.dims().len() {
        3 => view::lift(lines),
        _ => invalid(op, "tensors of rank 3", format!("{:?}", lines.dims())),
    }
}

/// As [`pool::max`].
pub(crate) fn max(op: &'static str, x: RocmTensor, window: Window<2>) -> hip::Result<RocmTensor> {
    lower(pool::max(op, lift(op, x)?, window)?)
}

/// As [`pool::max_with_indices`].
pub(crate) fn max_with_indices(
    op: &'static str,
    x: RocmTensor,
    window: Window<2>,
    index: DType,
) -> hip::Result<(RocmTensor, RocmTensor)> {
    let (out, indices) = pool::max_with_indices(op, lift(op, x)?, window, index)?;
    Ok((lower(out)?, lower(indices)?))
}

/// As [`pool::max_backward`].
pub(crate) fn max_backward(
    op: &'static str,
    x: RocmTensor,
    window: Window<2>,
    grad: RocmTensor,
    indices: RocmTensor,
) -> hip::Result<RocmTensor> {
    lower(pool::max_backward(op, &lift(op, x)?, window, lift(op, grad)?, lift(op, indices)?)?)
}

/// As [`pool::average`].
pub(crate) fn average(
    op: &'static str,
    x: RocmTensor,
    window: Window<2>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    lower(pool::average(op, lift(op, x)?, window, count_include_pad)?)
}

/// As [`pool::average_backward`].
pub(crate) fn average_backward(
    op: &'static str,
    x: RocmTensor,
    grad: RocmTensor,
    window: Window<2>,
    count_include_pad: bool,
) -> hip::Result<RocmTensor> {
    lower(pool::average_backward(op, &lift(op, x)?, lift(op, grad)?, window, count_include_pad)?)
}

/// As [`pool::adaptive`].
pub(crate) fn adaptive(op: &'static str, x: RocmTensor, size: usize) -> hip::Result<RocmTensor> {
    lower(pool::adaptive(op, lift(op, x)?, [1, size])?)
}

/// As [`pool::adaptive_backward`].
pub(crate) fn adaptive_backward(
    op: &'static str,
    x: RocmTensor,
    grad: RocmTensor,
) -> hip::Result<RocmTensor> {
    lower(pool::adaptive_backward(op, lift(op, x)?, lift(op, grad)?)?)
}
