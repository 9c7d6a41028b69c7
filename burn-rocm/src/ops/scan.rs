//! Cumulative ops along an axis.

use hip::KernelName;

use super::launch::rows;
use super::reduce::Lines;
use crate::dtype::Value;
use crate::tensor::RocmTensor;

/// The functor's running result along an axis.
pub(crate) fn scan(
    op: &'static str,
    functor: &'static str,
    tensor: RocmTensor,
    axis: usize,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let lines = Lines::new(op, tensor, axis)?;
    let input = &lines.tensor;
    let device = input.hip_device();
    let out = RocmTensor::empty(device, input.layout().shape().clone(), input.dtype_of())?;
    if !out.is_empty() {
        let dims = [lines.outer, lines.len, lines.inner].map(|v| Value::U64(v as u64));
        let kernel = KernelName::new("scan").name(functor).ty(ty);
        let grid = device.grid_rows(lines.outer * lines.inner, lines.len);
        rows(op, device, kernel, grid, &dims, &[input], &[], &[&out])?;
    }
    lines.restore(out)
}
