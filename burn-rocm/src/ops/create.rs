//! New tensors: uninitialised, filled with one value, or counting.

use std::sync::Arc;

use burn_backend::Scalar;
use burn_std::{DType, Shape, bf16, f16};
use hip::{Device, Functor, Operands, Template};

use super::launch::{flat, put_off};
use crate::arg::{Arg, bits};
use crate::device::RocmDevice;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::tensor::RocmTensor;

/// A tensor of unspecified elements.
pub(crate) fn empty(device: &RocmDevice, shape: Shape, dtype: DType) -> hip::Result<RocmTensor> {
    Ok(RocmTensor::empty(&device.open()?, shape, dtype)?.skip_check())
}

/// A tensor whose elements are all `value`.
pub(crate) fn full(
    device: &RocmDevice,
    shape: Shape,
    value: Scalar,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    full_on(&device.open()?, shape, value, dtype)
}

/// [`full`] on an open device.
pub(crate) fn full_on(
    device: &Arc<Device>,
    shape: impl Into<Shape>,
    value: Scalar,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    let out = RocmTensor::empty(device, shape, dtype)?;
    fill(&out, value)?;
    Ok(out)
}

/// Sets every element of a packed tensor.
fn fill(out: &RocmTensor, value: Scalar) -> hip::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let raw = bits(value, out.dtype_of())?;
    let value = match (out.dtype_of(), raw) {
        (DType::F32, Arg::U32(bits)) => Some(f32::from_bits(bits)),
        (DType::F16, Arg::U16(bits)) => Some(f16::from_bits(bits).to_f32()),
        (DType::BF16, Arg::U16(bits)) => Some(bf16::from_bits(bits).to_f32()),
        _ => None,
    };
    if let Some(value) = value
        && put_off("full", Functor::Fill, Operands::Value(value), out)?
    {
        return Ok(());
    }
    if matches!(raw, Arg::U64(0) | Arg::U32(0) | Arg::U16(0) | Arg::U8(0)) {
        let bytes = out.len() * out.dtype_size();
        return out.hip_device().fill_bytes(out.buffer(), out.byte_offset(), 0, bytes);
    }
    let kernel = Template::fill.ty(raw_type(out.kernel_type()?));
    flat("full", kernel, out.len(), &[], &[raw], &[out])
}

/// `start`, `start + step`, ... below `end`.
pub(crate) fn arange(
    device: &RocmDevice,
    range: core::ops::Range<i64>,
    step: usize,
    dtype: DType,
) -> hip::Result<RocmTensor> {
    if step == 0 {
        return invalid("int_arange_step", "a step from 1", "0");
    }
    // The distance may exceed i64.
    let span = if range.is_empty() { 0 } else { range.end.abs_diff(range.start) };
    let Ok(len) = usize::try_from(span.div_ceil(step as u64)) else {
        return invalid("int_arange_step", "a range that fits memory", format!("{range:?} by {step}"));
    };
    let out = RocmTensor::empty(&device.open()?, Shape::new([len]), dtype)?;
    if !out.is_empty() {
        let kernel = Template::arange.ty(out.kernel_type()?);
        let scalars = [Arg::I64(range.start), Arg::I64(step as i64)];
        flat("int_arange_step", kernel, out.len(), &[], &scalars, &[&out])?;
    }
    Ok(out)
}
