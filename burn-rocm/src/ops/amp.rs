//! Many tensors at once from one float type to another, and gradients of a scaled loss.

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

/// The tensors' elements as `dtype`, a float's. Between f32 and f16 or bf16 up to 165 tensors share a launch.
///
/// # Errors
/// `Unsupported` where a dtype is no float's; the device's own.
pub fn cast_all(tensors: Vec<RocmTensor>, dtype: DType) -> Result<Vec<RocmTensor>, RocmError> {
    const OP: &str = "cast_all";
    let to = kernel_type(dtype)?;
    for found in tensors.iter().map(RocmTensor::dtype_of).chain([dtype]) {
        if !found.is_float() {
            return unsupported(OP, found.name());
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

/// The gradients times `factor`, as f32 (f64 ones stay f64), and for each device a flag, a u32 of shape `[1]`: 1
/// where an element of the result is infinite or NaN, else 0. Up to 165 gradients of a dtype share a launch.
/// Nothing waits.
///
/// f32 and f64 gradients are replaced where they have no other owner.
///
/// # Errors
/// `Unsupported` where a gradient is no float; the device's own.
pub fn unscale(grads: Vec<RocmTensor>, factor: f32) -> Result<(Vec<RocmTensor>, Vec<RocmTensor>), RocmError> {
    const OP: &str = "unscale";
    if let Some(other) = grads.iter().find(|grad| !grad.dtype_of().is_float()) {
        return unsupported(OP, other.dtype_of().name());
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

/// Whether a flag of [`unscale`] is set on any device. Waits for the devices, once each.
///
/// # Errors
/// The device's own, and what it recorded.
pub fn any_set(flags: Vec<RocmTensor>) -> Result<bool, RocmError> {
    let read = crate::ops::transfer::read_all(flags)?;
    Ok(read.iter().any(|data| data.iter::<u32>().any(|flag| flag != 0)))
}
