//! Casts of many tensors at once, and the unscaling of gradients.

use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::{Error as RocmError, Template};

use crate::arg::Arg;
use crate::dtype::kernel_type;
use crate::error::unsupported;
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::create::full_on;
use crate::ops::multi_tensor::{Group, Writes, group, tables};
use crate::tensor::RocmTensor;

/// Casts the tensors to the float type `dtype`. Casts between f32 and f16 or bf16 take one launch
/// for up to 165 tensors.
///
/// # Errors
/// `Unsupported` for a dtype that is not a float type; an error of the device.
pub fn cast_all(tensors: Vec<RocmTensor>, dtype: DType) -> Result<Vec<RocmTensor>, RocmError> {
    const OP: &str = "cast_all";
    let to = kernel_type(dtype)?;
    for found in tensors.iter().map(RocmTensor::dtype_of).chain([dtype]) {
        if !found.is_float() {
            return unsupported(OP, found);
        }
    }
    let mut groups = Vec::new();
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let from = tensor.kernel_type()?;
        let together = from != to
            && from != hip::DType::F64
            && [from, to].contains(&hip::DType::F32)
            && to != hip::DType::F64;
        if !together || tensor.is_empty() {
            all.push(cast(tensor, dtype)?);
            continue;
        }
        let tensor = packed(tensor)?;
        let out = RocmTensor::empty(tensor.hip_device(), tensor.layout().shape().clone(), dtype)?;
        let device = tensor.hip_device().clone();
        let kernel = Template::optim_cast.ty(from).ty(to);
        group(&mut groups, &device, kernel).rows.push(vec![tensor, out.clone()]);
        all.push(out);
    }
    for Group { device, key: kernel, rows } in &groups {
        for (table, _) in tables(OP, device, rows)? {
            table.launch(OP, *kernel, &[], &[], Writes { of_row: 1, buffers: 0 })?;
        }
    }
    Ok(all)
}

/// Multiplies the gradients by `factor`. Returns them in f32 (f64 gradients stay f64) and one flag
/// for each device, a u32 tensor of shape `[1]`: 1 if an element of a result on that device is
/// infinite or NaN, else 0. One launch takes up to 165 gradients of a dtype. Does not wait for the
/// device.
///
/// Overwrites f32 and f64 gradients that have no other owner.
///
/// # Errors
/// `Unsupported` for a gradient that is not of a float type; an error of the device.
pub fn unscale(grads: Vec<RocmTensor>, factor: f32) -> Result<(Vec<RocmTensor>, Vec<RocmTensor>), RocmError> {
    const OP: &str = "unscale";
    if let Some(other) = grads.iter().find(|grad| !grad.dtype_of().is_float()) {
        return unsupported(OP, other.dtype_of());
    }
    let mut groups = Vec::new();
    let mut all = Vec::with_capacity(grads.len());
    for grad in grads {
        let from = grad.kernel_type()?;
        let (dtype, to) = match from {
            hip::DType::F64 => (DType::F64, hip::DType::F64),
            _ => (DType::F32, hip::DType::F32),
        };
        let mut grad = packed(grad)?;
        let out = match from == to && grad.can_overwrite() {
            true => grad.clone(),
            false => RocmTensor::empty(grad.hip_device(), grad.layout().shape().clone(), dtype)?,
        };
        if !out.is_empty() {
            let device = out.hip_device().clone();
            let kernel = Template::optim_unscale.ty(from).ty(to);
            group(&mut groups, &device, kernel).rows.push(vec![grad, out.clone()]);
        }
        all.push(out);
    }
    let mut flags: Vec<RocmTensor> = Vec::new();
    for Group { device, key: kernel, rows } in &groups {
        let at = flags.iter().position(|flag| Arc::ptr_eq(flag.hip_device(), device));
        let at = match at {
            Some(at) => at,
            None => {
                flags.push(full_on(device, Shape::from([1]), 0i64.into(), DType::U32)?);
                flags.len() - 1
            }
        };
        for (table, _) in tables(OP, device, rows)? {
            let writes = Writes { of_row: 1, buffers: 1 };
            table.launch(OP, *kernel, &[Arg::F32(factor)], &[Some(&flags[at])], writes)?;
        }
    }
    Ok((all, flags))
}

/// Whether any flag of [`unscale`] is set. Waits once for each device.
///
/// # Errors
/// An error of the device, including one that it recorded earlier.
pub fn any_set(flags: Vec<RocmTensor>) -> Result<bool, RocmError> {
    let read = crate::ops::transfer::read_all(flags)?;
    Ok(read.iter().any(|data| data.iter::<u32>().any(|flag| flag != 0)))
}
