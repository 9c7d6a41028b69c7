//! Conversions between dtypes.

use burn_std::{BoolStore, DType};
use hip::Template;

use super::copy::packed;
use super::launch::{flat, put_off_cast};
use crate::layout::inverse;
use crate::tensor::RocmTensor;

/// The tensor's elements as `dtype`. Floats saturate to integers, and NaN becomes 0. Integers wrap.
/// As a bool, every number but 0 is true.
pub(crate) fn cast(tensor: RocmTensor, dtype: DType) -> hip::Result<RocmTensor> {
    const OP: &str = "cast";
    let from = tensor.dtype_of();
    if from == dtype {
        return Ok(tensor);
    }
    let (source, target) = (tensor.kernel_type()?, crate::dtype::kernel_type(dtype)?);
    let four_byte_bool = |dtype| matches!(dtype, DType::Bool(BoolStore::U32));
    // Another library's words may be others than 0 and 1, and each of those is 1 as a number.
    if four_byte_bool(from) && !matches!(dtype, DType::Bool(_)) {
        return cast(cast(tensor, DType::Bool(BoolStore::Native))?, dtype);
    }
    // Types with the same bits: the two one-byte bool stores, f32 and flex32, a four-byte bool read
    // as u32.
    if source == target && !four_byte_bool(dtype) {
        return Ok(tensor.reinterpret(dtype));
    }
    if let Some(order) = tensor.layout().dense_order()
        && !tensor.is_contiguous()
    {
        let layout = tensor.layout().permute(OP, &order)?;
        return super::view::permute(cast(tensor.view(layout), dtype)?, &inverse(&order));
    }
    let tensor = packed(tensor)?;
    let out = RocmTensor::empty(tensor.hip_device(), tensor.layout().shape().clone(), dtype)?;
    if !out.is_empty() && !put_off_cast(OP, &tensor, &out)? {
        let kernel = match four_byte_bool(dtype) {
            true => Template::cast_bool.ty(source),
            false => Template::cast_contiguous.ty(source).ty(target),
        };
        flat(OP, kernel, out.len(), &[&tensor], &[], &[&out])?;
    }
    Ok(out)
}
