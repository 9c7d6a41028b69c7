//! Selection by a bool tensor.

use burn_backend::Scalar;
use hip::{KernelName, Template};

use super::channels_last::{self, Operands};
use super::launch::{Operand, Output, Walk, flat, is_packed};
use crate::arg::bits;
use crate::dtype::raw_type;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device, one_dtype, one_shape};

/// Checks that the mask is a bool tensor.
pub(super) fn check_mask(op: &'static str, mask: &RocmTensor) -> hip::Result<()> {
    match mask.dtype_of() {
        burn_std::DType::Bool(_) => Ok(()),
        other => invalid(op, "a bool mask", other.name()),
    }
}

/// The tensor for the result: `tensor` itself if it may be overwritten, else a new one.
fn target(tensor: &mut RocmTensor, shape: &[usize]) -> hip::Result<RocmTensor> {
    if tensor.dims() == shape && is_packed(tensor) && tensor.can_overwrite() {
        return Ok(tensor.clone());
    }
    RocmTensor::empty(tensor.hip_device(), shape.to_vec(), tensor.dtype_of())
}

/// `value` where the mask is true, `tensor` elsewhere.
pub(crate) fn mask_where(
    op: &'static str,
    tensor: RocmTensor,
    mask: RocmTensor,
    value: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &mask, &value])?;
    one_dtype(op, &[&tensor, &value])?;
    check_mask(op, &mask)?;
    let shape = one_shape(op, &[&tensor, &mask, &value])?;
    let shape = shape.as_slice();
    let [mut tensor, mask, value] = match channels_last::operands([tensor, mask, value], shape)? {
        Operands::Rows([tensor, mask, value]) => {
            return channels_last::from_rows(mask_where(op, tensor, mask, value)?);
        }
        Operands::Given(given) => given,
    };
    let out = target(&mut tensor, shape)?;
    let ty = |template: Template| -> hip::Result<KernelName> {
        Ok(template.ty(raw_type(tensor.kernel_type()?)).ty(mask.kernel_type()?))
    };
    let operands = [&tensor, &mask, &value];
    if !out.is_empty() && operands.iter().all(|t| t.dims() == shape && is_packed(t)) {
        flat(op, ty(Template::mask_where_contiguous)?, out.len(), &operands, &[], &[&out])?;
        return Ok(out);
    }
    let (x, m, v) = (
        tensor.layout().expand(op, shape)?,
        mask.layout().expand(op, shape)?,
        value.layout().expand(op, shape)?,
    );
    let inputs = [
        Operand::new(&tensor, x.strides()),
        Operand::new(&mask, m.strides()),
        Operand::new(&value, v.strides()),
    ];
    Walk::new(op, ty(Template::mask_where)?, shape, &inputs, Output::Row(&out)).launch()?;
    Ok(out)
}

/// A scalar where the mask is true, `tensor` elsewhere.
pub(crate) fn mask_fill(
    op: &'static str,
    tensor: RocmTensor,
    mask: RocmTensor,
    value: Scalar,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&tensor, &mask])?;
    check_mask(op, &mask)?;
    let shape = one_shape(op, &[&tensor, &mask])?;
    let shape = shape.as_slice();
    let [mut tensor, mask] = match channels_last::operands([tensor, mask], shape)? {
        Operands::Rows([tensor, mask]) => {
            return channels_last::from_rows(mask_fill(op, tensor, mask, value)?);
        }
        Operands::Given(given) => given,
    };
    let value = bits(value, tensor.dtype_of())?;
    let out = target(&mut tensor, shape)?;
    let ty = |template: Template| -> hip::Result<KernelName> {
        Ok(template.ty(raw_type(tensor.kernel_type()?)).ty(mask.kernel_type()?))
    };
    let operands = [&tensor, &mask];
    if !out.is_empty() && operands.iter().all(|t| t.dims() == shape && is_packed(t)) {
        flat(op, ty(Template::mask_fill_contiguous)?, out.len(), &operands, &[value], &[&out])?;
        return Ok(out);
    }
    let (x, m) = (tensor.layout().expand(op, shape)?, mask.layout().expand(op, shape)?);
    let inputs = [Operand::new(&tensor, x.strides()), Operand::new(&mask, m.strides())];
    Walk::new(op, ty(Template::mask_fill)?, shape, &inputs, Output::Row(&out)).scalars(&[value]).launch()?;
    Ok(out)
}
