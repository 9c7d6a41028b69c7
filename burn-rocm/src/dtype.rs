//! Burn's dtypes as the kernels' dtypes: the one table.

use burn_backend::Scalar;
use burn_std::{BoolStore, DType, bf16, f16};

use crate::error::unsupported;

/// The type that a kernel takes for `dtype`.
///
/// # Errors
/// `Unsupported` for a quantised type.
pub(crate) fn kernel_type(dtype: DType) -> hip::Result<hip::DType> {
    Ok(match dtype {
        DType::F64 => hip::DType::F64,
        // Flex32 is stored as f32; this backend never lowers its precision.
        DType::F32 | DType::Flex32 => hip::DType::F32,
        DType::F16 => hip::DType::F16,
        DType::BF16 => hip::DType::BF16,
        DType::I64 => hip::DType::I64,
        DType::I32 => hip::DType::I32,
        DType::I16 => hip::DType::I16,
        DType::I8 => hip::DType::I8,
        DType::U64 => hip::DType::U64,
        DType::U32 | DType::Bool(BoolStore::U32) => hip::DType::U32,
        DType::U16 => hip::DType::U16,
        DType::U8 => hip::DType::U8,
        DType::Bool(BoolStore::Native | BoolStore::U8) => hip::DType::Bool,
        DType::QFloat(_) => return unsupported("kernel_type", dtype.name()),
    })
}

/// What sums and statistics of the dtype are kept in.
pub(crate) fn compute_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The unsigned type of the same size: what moves elements without reading them.
pub(crate) fn raw_type(dtype: hip::DType) -> hip::DType {
    match dtype.size() {
        1 => hip::DType::U8,
        2 => hip::DType::U16,
        4 => hip::DType::U32,
        _ => hip::DType::U64,
    }
}

/// A scalar as a kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub(crate) enum Value {
    F64(f64),
    F32(f32),
    I64(i64),
    I32(i32),
    I16(i16),
    I8(i8),
    U64(u64),
    U32(u32),
    U16(u16),
    U8(u8),
    /// The flag of an op, raised where its values have that fault.
    Flag(&'static str, hip::Fault),
    /// A struct of four 64-bit integers (strides of an operand of rank 4).
    I64x4([i64; 4]),
    /// A struct of six 64-bit integers (strides of a matrix product).
    I64x6([i64; 6]),
    /// A struct of eight 64-bit integers (sizes of dims).
    U64x8([u64; 8]),
    /// A struct of twelve numbers (what a step of an optimizer takes).
    F32x12([f32; 12]),
    F64x12([f64; 12]),
    /// A struct of twelve 32-bit integers (the window of a pooling).
    U32x12([u32; 12]),
    /// A struct of eighteen 32-bit integers (the window of a pooling in 3-D).
    U32x18([u32; 18]),
    /// A struct of twenty-one 32-bit integers (a convolution).
    U32x21([u32; 21]),
}

/// `value` in the type that kernels over `dtype` compute in (`compute_t` in `prelude.h`), with the conversions of
/// Rust's `as`.
///
/// f16 and bf16 arithmetic takes its scalars in f32: `x / 70000` of f16 is finite, though f16 has
/// no 70000. Comparisons and remainders take an [`element`].
pub(crate) fn compute(value: Scalar, dtype: hip::DType) -> Value {
    use hip::DType as D;
    match dtype {
        D::F64 => Value::F64(value.elem()),
        D::F32 | D::F16 | D::BF16 => Value::F32(value.elem::<f64>() as f32),
        D::I64 => Value::I64(signed(value)),
        D::I32 => Value::I32(signed(value) as i32),
        D::I16 => Value::I16(signed(value) as i16),
        D::I8 => Value::I8(signed(value) as i8),
        D::U64 => Value::U64(unsigned(value)),
        D::U32 => Value::U32(unsigned(value) as u32),
        D::U16 => Value::U16(unsigned(value) as u16),
        D::U8 => Value::U8(unsigned(value) as u8),
        D::Bool => Value::U8(truth(value) as u8),
    }
}

/// `value` rounded to an element of `dtype`, in the compute type. A comparison with 0.1 so compares
/// with the dtype's 0.1, as in Burn's other backends.
pub(crate) fn element(value: Scalar, dtype: hip::DType) -> Value {
    match dtype {
        hip::DType::F16 => Value::F32(f16::from_f64(value.elem()).to_f32()),
        hip::DType::BF16 => Value::F32(bf16::from_f64(value.elem()).to_f32()),
        _ => compute(value, dtype),
    }
}

/// `value` in the compute type of `dtype`, at the type's nearer end where it is past it.
pub(crate) fn saturated(value: Scalar, dtype: hip::DType) -> Value {
    let wide = match value {
        Scalar::Float(v) => v as i128,
        Scalar::Int(v) => v.into(),
        Scalar::UInt(v) => v.into(),
        Scalar::Bool(v) => v.into(),
    };
    let bits = 8 * dtype.size() as u32;
    use hip::DType as D;
    match dtype {
        D::I64 | D::I32 | D::I16 | D::I8 => {
            let end = 1i128 << (bits - 1);
            compute(Scalar::Int(wide.clamp(-end, end - 1) as i64), dtype)
        }
        D::U64 | D::U32 | D::U16 | D::U8 => {
            compute(Scalar::UInt(wide.clamp(0, (1i128 << bits) - 1) as u64), dtype)
        }
        D::F64 | D::F32 | D::F16 | D::BF16 | D::Bool => compute(value, dtype),
    }
}

fn signed(value: Scalar) -> i64 {
    match value {
        Scalar::Int(v) => v,
        Scalar::UInt(v) => v as i64,
        Scalar::Float(v) => v as i64,
        Scalar::Bool(v) => v as i64,
    }
}

fn unsigned(value: Scalar) -> u64 {
    match value {
        Scalar::UInt(v) => v,
        // A negative scalar wraps, as a cast of the tensor's element would.
        Scalar::Int(v) => v as u64,
        Scalar::Float(v) => v as u64,
        Scalar::Bool(v) => v as u64,
    }
}

/// Whether a scalar counts as true.
pub(crate) fn truth(value: Scalar) -> bool {
    match value {
        Scalar::Bool(v) => v,
        Scalar::Int(v) => v != 0,
        Scalar::UInt(v) => v != 0,
        Scalar::Float(v) => v != 0.0,
    }
}

/// `value` as an element of `dtype`: its bits in the unsigned type of that size.
pub(crate) fn bits(value: Scalar, dtype: DType) -> hip::Result<Value> {
    Ok(match (dtype, compute(value, kernel_type(dtype)?)) {
        (DType::F16, _) => Value::U16(f16::from_f64(value.elem()).to_bits()),
        (DType::BF16, _) => Value::U16(bf16::from_f64(value.elem()).to_bits()),
        (DType::Bool(BoolStore::U32), _) => Value::U32(truth(value) as u32),
        (_, Value::F64(v)) => Value::U64(v.to_bits()),
        (_, Value::F32(v)) => Value::U32(v.to_bits()),
        (_, Value::I64(v)) => Value::U64(v as u64),
        (_, Value::I32(v)) => Value::U32(v as u32),
        (_, Value::I16(v)) => Value::U16(v as u16),
        (_, Value::I8(v)) => Value::U8(v as u8),
        (_, raw) => raw,
    })
}

/// The dtypes whose indices the kernels read as they are.
pub(crate) fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_agree() {
        for dtype in [
            DType::F64,
            DType::F32,
            DType::Flex32,
            DType::F16,
            DType::BF16,
            DType::I64,
            DType::I32,
            DType::I16,
            DType::I8,
            DType::U64,
            DType::U32,
            DType::U16,
            DType::U8,
            DType::Bool(BoolStore::Native),
            DType::Bool(BoolStore::U8),
            DType::Bool(BoolStore::U32),
        ] {
            let kernel = kernel_type(dtype).unwrap();
            assert_eq!(kernel.size(), dtype.size(), "{dtype:?}");
            assert_eq!(raw_type(kernel).size(), dtype.size(), "{dtype:?}");
        }
    }

    #[test]
    fn scalars_as_elements() {
        assert_eq!(bits(1f32.into(), DType::F16).unwrap(), Value::U16(0x3c00));
        assert_eq!(bits(1f32.into(), DType::BF16).unwrap(), Value::U16(0x3f80));
        assert_eq!(bits(1f32.into(), DType::F32).unwrap(), Value::U32(0x3f80_0000));
        assert_eq!(bits((-1i32).into(), DType::I8).unwrap(), Value::U8(0xff));
        assert_eq!(bits((-1i32).into(), DType::U16).unwrap(), Value::U16(0xffff));
        assert_eq!(bits(300i32.into(), DType::U8).unwrap(), Value::U8(44));
        assert_eq!(bits(u64::MAX.into(), DType::U64).unwrap(), Value::U64(u64::MAX));
        assert_eq!(bits(7u8.into(), DType::Bool(BoolStore::U32)).unwrap(), Value::U32(1));
        assert_eq!(compute(2.5f64.into(), hip::DType::I32), Value::I32(2));
        assert_eq!(compute(0.1f64.into(), hip::DType::F16), Value::F32(0.1));
        assert_eq!(element(0.1f64.into(), hip::DType::F16), Value::F32(0.099_975_586));
        assert_eq!(element(0.1f64.into(), hip::DType::BF16), Value::F32(0.100_097_656));
        assert_eq!(element(7e4f64.into(), hip::DType::F16), Value::F32(f32::INFINITY));
        assert_eq!(element(300i32.into(), hip::DType::U8), Value::U8(44));
        assert_eq!(saturated(f64::INFINITY.into(), hip::DType::I8), Value::I8(127));
        assert_eq!(saturated((-1i32).into(), hip::DType::U64), Value::U64(0));
        assert_eq!(saturated(f64::INFINITY.into(), hip::DType::F32), Value::F32(f32::INFINITY));
        assert_eq!(compute(true.into(), hip::DType::F32), Value::F32(1.0));
    }
}
