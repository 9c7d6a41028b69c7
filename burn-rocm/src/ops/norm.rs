//! Normalisations of rows.

use hip::KernelName;

use super::data::{full_on, packed};
use super::launch::rows;
use crate::dtype::Value;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device, one_dtype};

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` along the last axis.
pub(crate) fn layer_norm(
    x: RocmTensor,
    gamma: RocmTensor,
    beta: Option<RocmTensor>,
    epsilon: f64,
) -> hip::Result<RocmTensor> {
    const OP: &str = "layer_norm";
    one_device(OP, &[&x, &gamma])?;
    one_dtype(OP, &[&x, &gamma])?;
    let Some((&len, leading)) = x.dims().split_last() else {
        return invalid(OP, "at least one axis", "none");
    };
    let lines: usize = leading.iter().product();
    let beta = match beta {
        Some(beta) => beta,
        None => full_on(x.hip_device(), gamma.layout().shape().clone(), 0i64.into(), x.dtype_of())?,
    };
    one_device(OP, &[&x, &beta])?;
    one_dtype(OP, &[&x, &beta])?;
    if gamma.dims() != [len] || beta.dims() != [len] {
        let found = format!("{:?} and {:?}", gamma.dims(), beta.dims());
        return invalid(OP, format!("a scale and a shift of shape [{len}]"), found);
    }
    let (x, gamma, beta) = (packed(x)?, packed(gamma)?, packed(beta)?);
    let out = RocmTensor::empty(x.hip_device(), x.layout().shape().clone(), x.dtype_of())?;
    if !out.is_empty() {
        let device = out.hip_device();
        let kernel = KernelName::new("layer_norm_rows").ty(out.kernel_type()?);
        let dims = [Value::U64(lines as u64), Value::U64(len as u64)];
        let inputs = [&x, &gamma, &beta];
        rows(
            OP,
            device,
            kernel,
            device.grid_rows(lines, len),
            &dims,
            &inputs,
            &[Value::F64(epsilon)],
            &[&out],
        )?;
    }
    Ok(out)
}
