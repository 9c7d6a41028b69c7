//! Comparisons. Their results are bool tensors of the store that the caller asks for.

use std::sync::Arc;

use burn_backend::Scalar;
use burn_std::{BoolDType, BoolStore, DType, Shape};
use hip::{Device, Functor, Template};

use super::cast::cast;
use super::channels_last::{self, Operands, from_rows, is_channels_last, rows_of};
use super::copy::packed;
use super::launch::{Operand, Output, Walk, flat, is_packed};
use crate::arg::element;
use crate::tensor::{RocmTensor, one_device, one_dtype, one_shape};

/// A new one-byte bool tensor, which is what the kernels write.
fn answer(device: &Arc<Device>, shape: Shape) -> hip::Result<RocmTensor> {
    RocmTensor::empty(device, shape, DType::Bool(BoolStore::Native))
}

/// Compares two tensors, broadcast to one shape, by the functor.
pub(crate) fn compare(
    op: &'static str,
    functor: Functor,
    lhs: RocmTensor,
    rhs: RocmTensor,
    store: BoolDType,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&lhs, &rhs])?;
    one_dtype(op, &[&lhs, &rhs])?;
    // `a > b` is `b < a`, also with NaN.
    let (functor, lhs, rhs) = match functor {
        Functor::Greater => (Functor::Less, rhs, lhs),
        Functor::GreaterEqual => (Functor::LessEqual, rhs, lhs),
        _ => (functor, lhs, rhs),
    };
    let shape = one_shape(op, &[&lhs, &rhs])?;
    let [lhs, rhs] = match channels_last::operands([lhs, rhs], shape.as_slice())? {
        Operands::Rows([lhs, rhs]) => {
            return channels_last::from_rows(compare(op, functor, lhs, rhs, store)?);
        }
        Operands::Given(given) => given,
    };
    let ty = lhs.kernel_type()?;
    let out = answer(lhs.hip_device(), shape.clone())?;
    let kernel = |template: Template| template.functor(functor).ty(ty);
    if lhs.dims() == rhs.dims() && is_packed(&lhs) && is_packed(&rhs) {
        if !out.is_empty() {
            flat(op, kernel(Template::compare_contiguous), out.len(), &[&lhs, &rhs], &[], &[&out])?;
        }
    } else {
        let (l, r) = (lhs.layout().expand(op, shape.as_slice())?, rhs.layout().expand(op, shape.as_slice())?);
        let inputs = [Operand::new(&lhs, l.strides()), Operand::new(&rhs, r.strides())];
        Walk::new(op, kernel(Template::compare_strided), shape.as_slice(), &inputs, Output::Row(&out))
            .launch()?;
    }
    cast(out, store.into())
}

/// Compares each element with a scalar by the functor. The scalar is first rounded to the tensor's
/// dtype.
pub(crate) fn scalar(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    value: Scalar,
    store: BoolDType,
) -> hip::Result<RocmTensor> {
    if is_channels_last(&tensor) {
        return from_rows(scalar(op, functor, rows_of(tensor)?, value, store)?);
    }
    let ty = tensor.kernel_type()?;
    let tensor = packed(tensor)?;
    let out = answer(tensor.hip_device(), tensor.layout().shape().clone())?;
    if !out.is_empty() {
        let kernel = Template::compare_scalar.functor(functor).ty(ty);
        flat(op, kernel, out.len(), &[&tensor], &[element(value, ty)], &[&out])?;
    }
    cast(out, store.into())
}

/// Whether each element is NaN, or infinite.
pub(crate) fn predicate(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    store: BoolDType,
) -> hip::Result<RocmTensor> {
    if is_channels_last(&tensor) {
        return from_rows(predicate(op, functor, rows_of(tensor)?, store)?);
    }
    let ty = tensor.kernel_type()?;
    let tensor = packed(tensor)?;
    let out = answer(tensor.hip_device(), tensor.layout().shape().clone())?;
    if !out.is_empty() {
        let kernel = Template::predicate_contiguous.functor(functor).ty(ty);
        flat(op, kernel, out.len(), &[&tensor], &[], &[&out])?;
    }
    cast(out, store.into())
}

/// Whether the elements of two bool tensors are equal (`not` = false) or differ, in the left
/// tensor's store.
pub(crate) fn bools(
    op: &'static str,
    lhs: RocmTensor,
    rhs: RocmTensor,
    not: bool,
) -> hip::Result<RocmTensor> {
    let differ = super::binary::logic(op, Functor::LogicXor, lhs, rhs)?;
    if not { Ok(differ) } else { super::unary::unary(op, Functor::LogicNot, differ) }
}

/// Whether each bool equals `value`: the tensor itself or its negation.
pub(crate) fn bool_scalar(op: &'static str, tensor: RocmTensor, value: bool) -> hip::Result<RocmTensor> {
    if value { Ok(tensor) } else { super::unary::unary(op, Functor::LogicNot, tensor) }
}
