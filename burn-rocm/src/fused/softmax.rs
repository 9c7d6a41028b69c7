//! Softmax and its logarithm, with their gradients.

use crate::RocmTensor;
use crate::ops::softmax as ops;
use hip::Error as RocmError;

/// `exp(x - max) / sum(exp(x - max))` along an axis.
///
/// # Errors
/// `Invalid` for an axis that `x` has not; the device's own.
pub fn softmax(x: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    ops::softmax(x, axis)
}

/// The gradient of [`softmax`], from its output `y`: `y (grad - sum(grad y))`.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ, or for an axis that there is not; the device's own.
pub fn softmax_backward(y: RocmTensor, grad: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    ops::backward("softmax_backward", ["softmax_rows_backward", "softmax_columns_backward"], y, grad, axis)
}

/// `x - max - log(sum(exp(x - max)))` along an axis.
///
/// # Errors
/// `Invalid` for an axis that `x` has not; the device's own.
pub fn log_softmax(x: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    ops::log_softmax(x, axis)
}

/// The gradient of [`log_softmax`], from its output `y`: `grad - exp(y) sum(grad)`.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ, or for an axis that there is not; the device's own.
pub fn log_softmax_backward(y: RocmTensor, grad: RocmTensor, axis: usize) -> Result<RocmTensor, RocmError> {
    const NAMES: [&str; 2] = ["log_softmax_rows_backward", "log_softmax_columns_backward"];
    ops::backward("log_softmax_backward", NAMES, y, grad, axis)
}
