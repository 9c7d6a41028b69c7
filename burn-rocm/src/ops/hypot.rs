//! The Euclidean length of a vector with two components.

use burn_backend::Scalar;
use burn_std::{BoolStore, DType};
use hip::Functor;

use super::binary::{binary, logic, scalar};
use super::cast::cast;
use super::compare::predicate;
use super::mask::mask_fill;
use super::unary::{clamp, unary};
use crate::tensor::{RocmTensor, one_dtype};

/// `sqrt(x^2 + y^2)`, computed from the larger component and the ratio of the two, so that no
/// square overflows or underflows. Infinite where either component is, even if the other is NaN
/// (IEEE 754-2019, section 9.2.1). Types narrower than f32 are computed in f32 and rounded once.
pub(crate) fn hypot(lhs: RocmTensor, rhs: RocmTensor) -> hip::Result<RocmTensor> {
    const OP: &str = "float_hypot";
    let dtype = one_dtype(OP, &[&lhs, &rhs])?;
    if matches!(dtype, DType::F16 | DType::BF16) {
        let [lhs, rhs] = [cast(lhs, DType::F32)?, cast(rhs, DType::F32)?];
        return cast(hypot(lhs, rhs)?, dtype);
    }
    let [lhs, rhs] = [unary(OP, Functor::Abs, lhs)?, unary(OP, Functor::Abs, rhs)?];
    let infinite = |side: &RocmTensor| predicate(OP, Functor::IsInf, side.clone(), BoolStore::U8);
    let infinite = logic(OP, Functor::LogicOr, infinite(&lhs)?, infinite(&rhs)?)?;
    let larger = binary(OP, Functor::Max, lhs.clone(), rhs.clone())?;
    let smaller = binary(OP, Functor::Min, lhs, rhs)?;
    // Avoids 0 / 0.
    let least = match dtype {
        DType::F64 => f64::from_bits(1),
        _ => f32::from_bits(1).into(),
    };
    let divisor = clamp(OP, larger.clone(), Some(Scalar::Float(least)), None)?;
    let ratio = binary(OP, Functor::Div, smaller, divisor)?;
    let square = binary(OP, Functor::Mul, ratio.clone(), ratio)?;
    let root = unary(OP, Functor::Sqrt, scalar(OP, Functor::Add, square, Scalar::Float(1.0))?)?;
    mask_fill(OP, binary(OP, Functor::Mul, larger, root)?, infinite, f64::INFINITY.into())
}
