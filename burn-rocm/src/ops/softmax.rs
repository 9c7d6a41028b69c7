//! Softmax and its logarithm along an axis.

use hip::KernelName;

use super::data::packed;
use super::reduce::Lines;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// The gradient by the input, from the output and its gradient.
pub(crate) fn backward(
    op: &'static str,
    names: [&'static str; 2],
    output: RocmTensor,
    grad: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&output, &grad])?;
    one_dtype(op, &[&output, &grad])?;
    if output.dims() != grad.dims() {
        return invalid(op, format!("a gradient of shape {:?}", output.dims()), format!("{:?}", grad.dims()));
    }
    let ty = output.kernel_type()?;
    let lines = Lines::new(op, packed(output)?, axis)?;
    let grad = packed(grad)?;
    let out = RocmTensor::empty(grad.hip_device(), grad.layout().shape().clone(), grad.dtype_of())?;
    if !out.is_empty() {
        let names = names.map(|name| KernelName::new(name).ty(ty));
        lines.launch(op, names, lines.kept_row_grid(), 1, &[], &[&grad, &out])?;
    }
    Ok(out)
}

/// `row` and `column` kernels along the axis.
fn along(
    op: &'static str,
    names: [&'static str; 2],
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let lines = Lines::new(op, tensor, axis)?;
    let input = &lines.tensor;
    let out = RocmTensor::empty(input.hip_device(), input.layout().shape().clone(), input.dtype_of())?;
    if !out.is_empty() {
        let names = names.map(|name| KernelName::new(name).ty(ty));
        lines.launch(op, names, lines.kept_row_grid(), 1, &[], &[&out])?;
    }
    lines.restore(out)
}

/// `exp(x - max) / sum(exp(x - max))` along the axis.
pub(crate) fn softmax(tensor: RocmTensor, axis: usize) -> hip::Result<RocmTensor> {
    along("softmax", ["softmax_rows", "softmax_columns"], tensor, axis)
}

/// The softmax of `-x`.
pub(crate) fn softmin(tensor: RocmTensor, axis: usize) -> hip::Result<RocmTensor> {
    along("softmin", ["softmin_rows", "softmin_columns"], tensor, axis)
}

/// `x - max - log(sum(exp(x - max)))` along the axis.
pub(crate) fn log_softmax(tensor: RocmTensor, axis: usize) -> hip::Result<RocmTensor> {
    along("log_softmax", ["log_softmax_rows", "log_softmax_columns"], tensor, axis)
}
