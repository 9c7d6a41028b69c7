//! Activations that Burn composes.

use crate::RocmTensor;
use crate::ops::{binary, unary};
use hip::Error as RocmError;

/// `x * sigmoid(x)` of each element.
///
/// # Errors
/// `Unsupported` for integers; the device's own.
pub fn silu(x: RocmTensor) -> Result<RocmTensor, RocmError> {
    unary::unary("silu", "Silu", x)
}

/// The gradient of [`silu`] by `x`: `grad * s * (1 + x * (1 - s))` with `s = sigmoid(x)`, shapes broadcast.
///
/// # Errors
/// `Invalid` where shapes, dtypes or devices differ; `Unsupported` for integers; the device's own.
pub fn silu_backward(x: RocmTensor, grad: RocmTensor) -> Result<RocmTensor, RocmError> {
    binary::binary("silu_backward", "SiluBackward", x, grad)
}
