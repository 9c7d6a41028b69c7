//! Norms of gradients, and gradients scaled to a norm.

use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::{Device, Error as RocmError, Functor, Template};

use crate::arg::Arg;
use crate::error::invalid;
use crate::ops::binary::{binary, scalar};
use crate::ops::cast::cast;
use crate::ops::copy::packed;
use crate::ops::multi_tensor::{Group, Row, Writes, group, tables};
use crate::ops::pack::{pack, unpack};
use crate::ops::reduce::reduce;
use crate::ops::unary::{clamp, unary};
use crate::tensor::{RocmTensor, float_type, one_device};

/// The Euclidean norm of all elements of the tensors, of shape `[1]`: f64 if all of them are f64,
/// else f32. One launch takes up to 248 tensors of a dtype. Does not wait for the device.
///
/// # Errors
/// `Invalid` for no tensors or for several devices; `Unsupported` for a tensor that is not of a
/// float type; an error of the device.
pub fn norm(tensors: &[RocmTensor]) -> Result<RocmTensor, RocmError> {
    const OP: &str = "norm";
    let operands: Vec<&RocmTensor> = tensors.iter().collect();
    if operands.is_empty() {
        return invalid(OP, "at least one tensor", "none");
    }
    let device = one_device(OP, &operands)?.clone();
    let mut groups = Vec::new();
    for tensor in tensors {
        let ty = float_type(OP, tensor)?;
        if !tensor.is_empty() {
            group(&mut groups, &device, ty).rows.push(vec![packed(tensor.clone())?]);
        }
    }
    let mut sums = Vec::new();
    for Group { key: ty, rows, .. } in &groups {
        let dtype = if *ty == hip::DType::F64 { DType::F64 } else { DType::F32 };
        for (table, _) in tables(OP, &device, rows)? {
            let squares = RocmTensor::empty(&device, Shape::from([table.pieces]), dtype)?;
            let writes = Writes { of_row: 0, buffers: 1 };
            table.launch(OP, Template::optim_squares.ty(*ty), &[], &[Some(&squares)], writes)?;
            sums.push(squares);
        }
    }
    let all_f64 = sums.iter().all(|squares| squares.dtype_of() == DType::F64);
    let dtype = if all_f64 && !sums.is_empty() { DType::F64 } else { DType::F32 };
    let sums: Vec<RocmTensor> = sums.into_iter().map(|sum| cast(sum, dtype)).collect::<Result<_, _>>()?;
    let squares = match sums.is_empty() {
        true => RocmTensor::empty(&device, Shape::from([0]), dtype)?,
        false => pack(&sums)?,
    };
    unary(OP, Functor::Sqrt, reduce(OP, Functor::Sum, squares)?)
}

/// The tensors times `min(1, most / norm)`, and their [`norm`] before that. Takes three launches
/// for up to 55 tensors of a dtype, besides those of the norm. The results are views of one tensor
/// for each dtype, in which the factor is rounded once. Does not wait for the device.
///
/// # Errors
/// As [`norm`].
pub fn clip_to_norm(tensors: &[RocmTensor], most: f32) -> Result<(Vec<RocmTensor>, RocmTensor), RocmError> {
    let norm = norm(tensors)?;
    Ok((scale_to_norm(tensors, norm.clone(), most)?, norm))
}

/// The tensors times `min(1, most / norm)`, where `norm` has shape `[1]`. This is [`clip_to_norm`]
/// with a given norm, for tensors that are only a part of those that have this norm.
///
/// # Errors
/// `Invalid` for tensors of several devices; an error of the device.
pub fn scale_to_norm(
    tensors: &[RocmTensor],
    norm: RocmTensor,
    most: f32,
) -> Result<Vec<RocmTensor>, RocmError> {
    const OP: &str = "clip_to_norm";
    let inverse = unary(OP, Functor::Recip, norm)?;
    let factor = scalar(OP, Functor::Mul, inverse, f64::from(most).into())?;
    let factor = clamp(OP, factor, None, Some(1.0.into()))?;
    let mut groups: Vec<Group<DType>> = Vec::new();
    let mut places = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let of_dtype = group(&mut groups, tensor.hip_device(), tensor.dtype_of());
        places.push((tensor.dtype_of(), of_dtype.rows.len()));
        of_dtype.rows.push(vec![tensor.clone()]);
    }
    let mut clipped = Vec::with_capacity(groups.len());
    for Group { key: dtype, rows, .. } in groups {
        let joined = pack(&rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>())?;
        let joined = binary(OP, Functor::Mul, joined, cast(factor.clone(), dtype)?)?;
        clipped.push((dtype, unpack(&joined, rows.iter().map(|row| row[0].dims()))?));
    }
    let find = |(dtype, at): (DType, usize)| {
        let of_dtype = clipped.iter().find(|(found, _)| *found == dtype);
        of_dtype.map(|(_, tensors)| tensors[at].clone())
    };
    Ok(places.into_iter().filter_map(find).collect())
}

/// For each row, the factor that scales its gradient, of type `ty`, to a norm of at most `most`.
pub(super) fn norm_factors(
    op: &'static str,
    device: &Arc<Device>,
    ty: hip::DType,
    rows: &[Row],
    most: f32,
) -> Result<RocmTensor, RocmError> {
    let (dtype, compute, most) = match ty {
        hip::DType::F64 => (DType::F64, hip::DType::F64, Arg::F64(most.into())),
        _ => (DType::F32, hip::DType::F32, Arg::F32(most)),
    };
    let grads: Vec<Row> = rows.iter().map(|row| vec![row[1].clone()]).collect();
    let factors = RocmTensor::empty(device, Shape::from([rows.len()]), dtype)?;
    // All rows fit one table, because a row of one tensor is shorter than a row of the step.
    for (table, _) in tables(op, device, &grads)? {
        let sums = RocmTensor::empty(device, Shape::from([table.pieces]), dtype)?;
        let writes = Writes { of_row: 0, buffers: 1 };
        table.launch(op, Template::optim_squares.ty(ty), &[], &[Some(&sums)], writes)?;
        let norms = Template::optim_norms.ty(compute);
        table.launch(op, norms, &[most], &[Some(&sums), Some(&factors)], writes)?;
    }
    Ok(factors)
}
