//! Element-wise ops of one tensor, with up to two scalars.

use burn_backend::Scalar;
use burn_std::DType;
use hip::{Functor, Template};

use super::binary::{dense_map, put_off_strided};
use super::launch::{Operand, Output, Walk, element_wise, flat};
use crate::arg::{Arg, compute, saturated};
use crate::tensor::RocmTensor;

/// Applies the functor to each element.
pub(crate) fn unary(op: &'static str, functor: Functor, tensor: RocmTensor) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    if let Some(out) = put_off_strided(op, functor, &tensor, &[])? {
        return Ok(out);
    }
    if tensor.layout().dense_order().is_none() {
        let out = tensor.empty_like()?;
        Walk::new(
            op,
            Template::unary_strided.functor(functor).ty(ty),
            tensor.dims(),
            &[Operand::whole(&tensor)],
            Output::Row(&out),
        )
        .launch()?;
        return Ok(out);
    }
    dense_map(op, tensor, |tensor, out| {
        let kernel = Template::unary_contiguous.functor(functor).ty(ty);
        element_wise(op, kernel, functor, &[tensor], &[], out)
    })
}

/// Applies the functor to each element and two scalars.
pub(crate) fn unary2(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    p: Scalar,
    q: Scalar,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let scalars = [compute(p, ty), compute(q, ty)];
    map2(op, functor, tensor, ty, scalars)
}

fn map2(
    op: &'static str,
    functor: Functor,
    tensor: RocmTensor,
    ty: hip::DType,
    scalars: [Arg; 2],
) -> hip::Result<RocmTensor> {
    if tensor.layout().dense_order().is_none() {
        let out = tensor.empty_like()?;
        Walk::new(
            op,
            Template::unary2_strided.functor(functor).ty(ty),
            tensor.dims(),
            &[Operand::whole(&tensor)],
            Output::Row(&out),
        )
        .scalars(&scalars)
        .launch()?;
        return Ok(out);
    }
    dense_map(op, tensor, |tensor, out| {
        let kernel = Template::unary2_contiguous.functor(functor).ty(ty);
        flat(op, kernel, out.len(), &[tensor], &scalars, &[out])
    })
}

/// Limits each element to the bounds; a missing bound is the type's own limit. NaN elements stay
/// NaN, and a NaN bound is ignored, as in Burn's definition of clamp, which masks the elements
/// below and above the bounds. If the lower bound exceeds the upper one, the upper one counts.
pub(crate) fn clamp(
    op: &'static str,
    tensor: RocmTensor,
    min: Option<Scalar>,
    max: Option<Scalar>,
) -> hip::Result<RocmTensor> {
    let ty = tensor.kernel_type()?;
    let scalars = [
        saturated(min.unwrap_or(Scalar::Float(f64::NEG_INFINITY)), ty),
        saturated(max.unwrap_or(Scalar::Float(f64::INFINITY)), ty),
    ];
    map2(op, Functor::Clamp, tensor, ty, scalars)
}

/// An exponent that the dtype of integers holds and that gives the same powers. Let the dtype have `b`
/// bits: from an exponent of `b` on, powers of even numbers are 0, and those of odd numbers repeat
/// after 2^(b - 2), a multiple of every odd number's order modulo 2^b. A negative power is 0 but for
/// the bases 1 and -1, where only the parity counts.
fn held(exponent: i64, dtype: DType) -> i64 {
    let bits = 8 * dtype.size() as i64;
    if exponent > bits {
        return bits + (exponent - bits) % (1 << (bits - 2));
    }
    // Its parity is that of 0.
    let least = i64::MIN >> (64 - bits);
    if exponent < least { least + exponent.rem_euclid(2) } else { exponent }
}

/// `x` to an integer power. Small exponents are computed by products, which round less than a power
/// function. Each product is one kernel.
pub(crate) fn powi_scalar(op: &'static str, tensor: RocmTensor, exponent: Scalar) -> hip::Result<RocmTensor> {
    use super::binary::{binary, scalar};
    let float = tensor.kernel_type()?.is_float();
    let whole = match exponent {
        // As long as it is as odd, a greater one gives the same powers of floats, and `held` of integers.
        Scalar::UInt(exponent) => {
            i64::try_from(exponent).unwrap_or((1 << 62) + (exponent % (1 << 62)) as i64)
        }
        other => other.elem::<i64>(),
    };
    let exponent = if float { exponent } else { held(whole, tensor.dtype_of()).into() };
    match whole {
        0 => super::create::full_on(
            tensor.hip_device(),
            tensor.layout().shape().clone(),
            1i64.into(),
            tensor.dtype_of(),
        ),
        1 => Ok(tensor),
        2 => binary(op, Functor::Mul, tensor.clone(), tensor),
        -1 if float => unary(op, Functor::Recip, tensor),
        3 | -2 if float => unary2(op, Functor::Powi, tensor, exponent, 0i64.into()),
        _ => scalar(op, Functor::Pow, tensor, exponent),
    }
}
