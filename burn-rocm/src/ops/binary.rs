//! Element-wise ops of two tensors, or of a tensor and a scalar.

use burn_backend::Scalar;
use burn_std::DType;
use hip::{Fault, Functor, Template};

use super::cast::cast;
use super::channels_last::{self, Operands};
use super::copy::packed;
use super::launch::{Operand, Output, Walk, element_wise, is_packed, may_put_off, put_off_over};
use crate::arg::{Arg, compute, element, shift_amount};
use crate::dtype::compute_dtype;
use crate::error::invalid;
use crate::layout::inverse;
use crate::tensor::{RocmTensor, one_device, one_dtype, one_shape};

/// Applies the functor to two tensors, broadcast to one shape. Overwrites an operand that has no
/// other owner, if its layout allows.
pub(crate) fn binary(
    op: &'static str,
    functor: Functor,
    lhs: RocmTensor,
    rhs: RocmTensor,
) -> hip::Result<RocmTensor> {
    one_device(op, &[&lhs, &rhs])?;
    let dtype = one_dtype(op, &[&lhs, &rhs])?;
    let shape = one_shape(op, &[&lhs, &rhs])?;
    if let Some(order) = shared_order(&lhs, &rhs) {
        // Both operands are transposed alike: compute in their order in memory, and transpose the
        // result.
        let (l, r) = (lhs.layout().permute(op, &order)?, rhs.layout().permute(op, &order)?);
        let out = binary(op, functor, lhs.view(l), rhs.view(r))?;
        return super::view::permute(out, &inverse(&order));
    }
    let [mut lhs, mut rhs] = match channels_last::operands([lhs, rhs], shape.as_slice())? {
        Operands::Rows([lhs, rhs]) => return channels_last::from_rows(binary(op, functor, lhs, rhs)?),
        Operands::Given(given) => given,
    };
    let ty = lhs.kernel_type()?;
    let same = lhs.dims() == shape.as_slice() && rhs.dims() == shape.as_slice();
    let left = is_packed(&lhs) && lhs.dims() == shape.as_slice() && lhs.can_overwrite();
    let right = is_packed(&rhs) && rhs.dims() == shape.as_slice() && rhs.can_overwrite();
    let out = match (left, right) {
        (true, _) => lhs.clone(),
        (_, true) => rhs.clone(),
        _ => RocmTensor::empty(lhs.hip_device(), shape.clone(), dtype)?,
    };
    if out.is_empty() {
        return Ok(out);
    }
    // Kernels that divide integers raise the op's fault flag for a zero divisor.
    let flag = [Arg::Flag(op, Fault::Division)];
    let divides = matches!(functor, Functor::Div | Functor::Rem) && !ty.is_float();
    let [contiguous, strided] = match divides {
        true => [Template::divide_contiguous, Template::divide_strided],
        false => [Template::binary_contiguous, Template::binary_strided],
    };
    let scalars: &[Arg] = if divides { &flag } else { &[] };
    if same && is_packed(&lhs) && is_packed(&rhs) {
        let kernel = contiguous.functor(functor).ty(ty);
        element_wise(op, kernel, functor, &[&lhs, &rhs], scalars, &out)?;
        return Ok(out);
    }
    let (l, r) = (lhs.layout().expand(op, shape.as_slice())?, rhs.layout().expand(op, shape.as_slice())?);
    let inputs = [(&lhs, l.strides()), (&rhs, r.strides())];
    if !divides && put_off_over(op, functor, shape.as_slice(), &inputs, &[], &out)? {
        return Ok(out);
    }
    let operands = inputs.map(|(tensor, strides)| Operand::new(tensor, strides));
    let walk = Walk::new(op, strided.functor(functor).ty(ty), shape.as_slice(), &operands, Output::Row(&out))
        .scalars(scalars);
    if divides {
        walk.launch()?
    } else {
        walk.pieces().launch()?
    }
    Ok(out)
}

/// The order in memory of two tensors that are transposed alike and dense.
fn shared_order(lhs: &RocmTensor, rhs: &RocmTensor) -> Option<Vec<usize>> {
    if lhs.dims() != rhs.dims() || lhs.is_contiguous() {
        return None;
    }
    let order = lhs.layout().dense_order()?;
    let alike = lhs.layout() == rhs.layout()
        || rhs.layout().permute("binary", &order).is_ok_and(|layout| layout.is_contiguous());
    alike.then_some(order)
}

/// Applies the functor to each element and a scalar.
pub(crate) fn scalar(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    value: Scalar,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let value = match functor {
        // For an element near a multiple of the divisor, the rounding of the divisor decides whether
        // the remainder is 0 or almost the divisor.
        Functor::Rem => element(value, ty),
        Functor::Shl | Functor::Shr => shift_amount(value, ty),
        _ => compute(value, ty),
    };
    if let Some(out) = put_off_strided(op, functor, &tensor, &[value])? {
        return Ok(out);
    }
    dense_map(op, tensor, |tensor, out| {
        let kernel = Template::binary_scalar.functor(functor).ty(ty);
        element_wise(op, kernel, functor, &[tensor], &[value], out)
    })
}

/// Divides floats by a scalar. A division by 1 launches nothing: Burn divides by the number of
/// threads each time that it reads a running statistic.
pub(crate) fn divide_by_scalar(
    op: &'static str,
    tensor: RocmTensor,
    value: Scalar,
) -> hip::Result<RocmTensor> {
    if value.elem::<f64>() == 1.0 && tensor.kernel_type()?.is_float() {
        return Ok(tensor);
    }
    scalar(op, Functor::Div, tensor, value)
}

/// Defers an op of one tensor that the contiguous kernels don't take as it lies, if it can join a
/// chain of deferred ops.
pub(crate) fn put_off_strided(
    op: &'static str,
    functor: Functor,
    tensor: &RocmTensor,
    scalars: &[Arg],
) -> hip::Result<Option<RocmTensor>> {
    let dense =
        if tensor.is_contiguous() { is_packed(tensor) } else { tensor.layout().dense_order().is_some() };
    if dense || !may_put_off(functor, tensor) {
        return Ok(None);
    }
    let out = tensor.empty_like()?;
    let inputs = [(tensor, tensor.layout().strides())];
    Ok(put_off_over(op, functor, tensor.dims(), &inputs, scalars, &out)?.then_some(out))
}

/// An element-wise map over packed elements, in place if nobody else holds them. A transposed view
/// is mapped in the order in which its elements lie in memory.
pub(crate) fn dense_map(
    op: &'static str,
    tensor: RocmTensor,
    map: impl Fn(&RocmTensor, &RocmTensor) -> hip::Result<()>,
) -> hip::Result<RocmTensor> {
    if let Some(order) = tensor.layout().dense_order()
        && !tensor.is_contiguous()
    {
        let layout = tensor.layout().permute(op, &order)?;
        let out = dense_map(op, tensor.view(layout), map)?;
        return super::view::permute(out, &inverse(&order));
    }
    let mut tensor = packed(tensor)?;
    let out = match tensor.can_overwrite() {
        true => tensor.clone(),
        false => tensor.empty_like()?,
    };
    if !out.is_empty() {
        map(&tensor, &out)?;
    }
    Ok(out)
}

/// Integer division or remainder by a scalar.
///
/// # Errors
/// `Invalid` for a divisor that is zero in the tensor's dtype.
pub(crate) fn divide(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    divisor: Scalar,
) -> hip::Result<RocmTensor> {
    let zero = match compute(divisor, tensor.kernel_type()?) {
        Arg::I64(v) => v == 0,
        Arg::I32(v) => v == 0,
        Arg::I16(v) => v == 0,
        Arg::I8(v) => v == 0,
        Arg::U64(v) => v == 0,
        Arg::U32(v) => v == 0,
        Arg::U16(v) => v == 0,
        Arg::U8(v) => v == 0,
        _ => false,
    };
    if zero {
        let given = shown(divisor);
        let found = match given.as_str() {
            "0" => given,
            _ => format!("{given}, which is 0 in {}", tensor.dtype_of().name()),
        };
        return invalid(op, "a divisor other than 0", found);
    }
    scalar(op, functor, tensor, divisor)
}

/// A scalar as its user wrote it.
fn shown(value: Scalar) -> String {
    match value {
        Scalar::Float(v) => v.to_string(),
        Scalar::Int(v) => v.to_string(),
        Scalar::UInt(v) => v.to_string(),
        Scalar::Bool(v) => v.to_string(),
    }
}

/// Floats to the power of integers, which broadcast. The parity of an exponent decides the sign.
/// f16 holds no odd integer above 2048, and bf16 none above 256. So halves are computed in f32 and
/// rounded once.
pub(crate) fn powi(op: &'static str, lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    let dtype = lhs.dtype_of();
    let wide = compute_dtype(dtype);
    cast(binary(op, Functor::Pow, cast(lhs, wide)?, cast(rhs, wide)?)?, dtype)
}

/// A logical op of two bool tensors.
pub(crate) fn logic(
    op: &'static str,
    functor: Functor,
    lhs: RocmTensor,
    rhs: RocmTensor,
) -> hip::Result<RocmTensor> {
    // The two one-byte stores hold the same bytes. The result has the left operand's store.
    let rhs = match (lhs.dtype_of(), rhs.dtype_of()) {
        (DType::Bool(l), DType::Bool(r)) if l != r => cast(rhs, DType::Bool(l))?,
        _ => rhs,
    };
    binary(op, functor, lhs, rhs)
}

/// The cross product of 3-vectors along an axis, broadcast along the others.
pub(crate) fn cross(lhs: RocmTensor, rhs: RocmTensor, axis: usize) -> hip::Result<RocmTensor> {
    const OP: &str = "float_cross";
    one_device(OP, &[&lhs, &rhs])?;
    let dtype = one_dtype(OP, &[&lhs, &rhs])?;
    let shape = one_shape(OP, &[&lhs, &rhs])?;
    if shape.as_slice().get(axis) != Some(&3) {
        return invalid(OP, "an axis of size 3", format!("axis {axis} of {:?}", shape.as_slice()));
    }
    let lhs = super::view::expand(lhs, shape.as_slice())?;
    let rhs = super::view::expand(rhs, shape.as_slice())?;
    let out = RocmTensor::empty(lhs.hip_device(), shape.clone(), dtype)?;
    // The launch covers all axes but this one; the kernel itself steps along this axis.
    let mut dims = shape.as_slice().to_vec();
    dims.remove(axis);
    let mut steps = [0isize; 3];
    let strides: Vec<Vec<isize>> = [&lhs, &rhs, &out]
        .into_iter()
        .zip(&mut steps)
        .map(|(tensor, step)| {
            let mut strides = tensor.layout().strides().to_vec();
            *step = strides.remove(axis);
            strides
        })
        .collect();
    let kernel = Template::cross.ty(out.kernel_type()?);
    let inputs = [Operand::new(&lhs, &strides[0]), Operand::new(&rhs, &strides[1])];
    Walk::new(OP, kernel, &dims, &inputs, Output::Last(Operand::new(&out, &strides[2])))
        .scalars(&steps.map(|step| Arg::I64(step as i64)))
        .launch()?;
    Ok(out)
}
