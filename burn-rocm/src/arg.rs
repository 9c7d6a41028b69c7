//! Kernel arguments other than buffers, and the conversion of Burn's scalars to them.

use burn_backend::Scalar;
use burn_std::{BoolStore, DType, bf16, f16};
use hip::Launch;

use crate::dtype::kernel_type;

/// A kernel argument other than a buffer: a scalar, or a struct of numbers passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
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
    /// The fault flag of the op. The kernel raises it if a value has this fault.
    Flag(&'static str, hip::Fault),
    /// A struct of two 32-bit integers (attention's window).
    U32x2([u32; 2]),
    /// A struct of four 64-bit integers (strides of an operand of rank 4).
    I64x4([i64; 4]),
    /// A struct of six 64-bit integers (strides of a matrix product).
    I64x6([i64; 6]),
    /// A struct of seven 64-bit integers (attention's sizes).
    I64x7([i64; 7]),
    /// A struct of eight 64-bit integers (sizes of dims, strides).
    U64x8([u64; 8]),
    I64x8([i64; 8]),
    /// A struct of twelve numbers (an optimizer's settings for one step).
    F32x12([f32; 12]),
    F64x12([f64; 12]),
    /// A struct of twelve 32-bit integers (the window of a pooling).
    U32x12([u32; 12]),
    /// A struct of eighteen 32-bit integers (the window of a pooling in 3-D).
    U32x18([u32; 18]),
    /// A struct of twenty-one 32-bit integers (a convolution).
    U32x21([u32; 21]),
}

impl Arg {
    /// Appends this argument to the launch.
    pub(crate) fn push(self, launch: Launch<'_>) -> Launch<'_> {
        match self {
            Self::F64(v) => launch.value(v),
            Self::F32(v) => launch.value(v),
            Self::I64(v) => launch.value(v),
            Self::I32(v) => launch.value(v),
            Self::I16(v) => launch.value(v),
            Self::I8(v) => launch.value(v),
            Self::U64(v) => launch.value(v),
            Self::U32(v) => launch.value(v),
            Self::U16(v) => launch.value(v),
            Self::U8(v) => launch.value(v),
            Self::Flag(op, fault) => launch.flag(op, fault),
            Self::U32x2(v) => launch.value(v),
            Self::I64x4(v) => launch.value(v),
            Self::I64x6(v) => launch.value(v),
            Self::I64x7(v) => launch.value(v),
            Self::U64x8(v) => launch.value(v),
            Self::I64x8(v) => launch.value(v),
            Self::F32x12(v) => launch.value(v),
            Self::F64x12(v) => launch.value(v),
            Self::U32x12(v) => launch.value(v),
            Self::U32x18(v) => launch.value(v),
            Self::U32x21(v) => launch.value(v),
        }
    }
}

/// `value` converted as by Rust's `as` to the type that kernels over `dtype` compute in
/// (`compute_t` in `prelude.h`).
///
/// Arithmetic in f16 and bf16 takes its scalars in f32, so `x / 70000` of an f16 tensor is finite
/// although f16 can't hold 70000. Comparisons and remainders take an [`element`].
pub(crate) fn compute(value: Scalar, dtype: hip::DType) -> Arg {
    use hip::DType as D;
    match dtype {
        D::F64 => Arg::F64(value.elem()),
        D::F32 | D::F16 | D::BF16 => Arg::F32(value.elem::<f64>() as f32),
        D::I64 => Arg::I64(signed(value)),
        D::I32 => Arg::I32(signed(value) as i32),
        D::I16 => Arg::I16(signed(value) as i16),
        D::I8 => Arg::I8(signed(value) as i8),
        D::U64 => Arg::U64(unsigned(value)),
        D::U32 => Arg::U32(unsigned(value) as u32),
        D::U16 => Arg::U16(unsigned(value) as u16),
        D::U8 => Arg::U8(unsigned(value) as u8),
        D::Bool => Arg::U8(truth(value) as u8),
    }
}

/// `value` rounded to `dtype`, then widened to the compute type. So a comparison with 0.1 compares
/// with the dtype's 0.1, as in Burn's other backends.
pub(crate) fn element(value: Scalar, dtype: hip::DType) -> Arg {
    match dtype {
        hip::DType::F16 => Arg::F32(f16::from_f32(round_to_odd(value.elem())).to_f32()),
        hip::DType::BF16 => Arg::F32(bf16::from_f32(round_to_odd(value.elem())).to_f32()),
        _ => compute(value, dtype),
    }
}

/// An f32 that rounds to the same f16 or bf16 as `value` itself. If f32 does not hold `value`, this
/// is the one of its two neighbours whose last digit is 1, so a value beside a tie stays on its side
/// (`cast.hip`, `round_to_odd`).
///
/// `bf16::from_f64` ignores the lower 32 bits of its argument, and `f16::from_f64` may round twice.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let bits = nearest.to_bits();
    let toward_zero = if back.abs() > value.abs() { bits - 1 } else { bits };
    f32::from_bits(toward_zero | 1)
}

/// The integer part of `value`.
fn whole(value: Scalar) -> i128 {
    match value {
        Scalar::Float(v) => v as i128,
        Scalar::Int(v) => v.into(),
        Scalar::UInt(v) => v.into(),
        Scalar::Bool(v) => v.into(),
    }
}

/// `value` as the amount of a shift of integers of `dtype`. A negative amount, and one that the
/// dtype does not hold, become its largest number, by which a shift moves all bits out.
pub(crate) fn shift_amount(value: Scalar, dtype: hip::DType) -> Arg {
    let amount = u64::try_from(whole(value)).unwrap_or(u64::MAX);
    saturated(Scalar::UInt(amount), dtype)
}

/// `value` in the compute type of `dtype`. A value outside the range of `dtype` becomes the nearer
/// end of that range.
pub(crate) fn saturated(value: Scalar, dtype: hip::DType) -> Arg {
    let wide = whole(value);
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
        // A negative scalar wraps, as a cast of a tensor's elements does.
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
pub(crate) fn bits(value: Scalar, dtype: DType) -> hip::Result<Arg> {
    Ok(match (dtype, compute(value, kernel_type(dtype)?)) {
        (DType::F16, _) => Arg::U16(f16::from_f32(round_to_odd(value.elem())).to_bits()),
        (DType::BF16, _) => Arg::U16(bf16::from_f32(round_to_odd(value.elem())).to_bits()),
        (DType::Bool(BoolStore::U32), _) => Arg::U32(truth(value) as u32),
        (_, Arg::F64(v)) => Arg::U64(v.to_bits()),
        (_, Arg::F32(v)) => Arg::U32(v.to_bits()),
        (_, Arg::I64(v)) => Arg::U64(v as u64),
        (_, Arg::I32(v)) => Arg::U32(v as u32),
        (_, Arg::I16(v)) => Arg::U16(v as u16),
        (_, Arg::I8(v)) => Arg::U8(v as u8),
        (_, raw) => raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_as_elements() {
        assert_eq!(bits(1f32.into(), DType::F16).unwrap(), Arg::U16(0x3c00));
        assert_eq!(bits(1f32.into(), DType::BF16).unwrap(), Arg::U16(0x3f80));
        assert_eq!(bits(1f32.into(), DType::F32).unwrap(), Arg::U32(0x3f80_0000));
        assert_eq!(bits((-1i32).into(), DType::I8).unwrap(), Arg::U8(0xff));
        assert_eq!(bits((-1i32).into(), DType::U16).unwrap(), Arg::U16(0xffff));
        assert_eq!(bits(300i32.into(), DType::U8).unwrap(), Arg::U8(44));
        assert_eq!(bits(u64::MAX.into(), DType::U64).unwrap(), Arg::U64(u64::MAX));
        assert_eq!(bits(7u8.into(), DType::Bool(BoolStore::U32)).unwrap(), Arg::U32(1));
        assert_eq!(compute(2.5f64.into(), hip::DType::I32), Arg::I32(2));
        assert_eq!(compute(0.1f64.into(), hip::DType::F16), Arg::F32(0.1));
        assert_eq!(element(0.1f64.into(), hip::DType::F16), Arg::F32(0.099_975_586));
        assert_eq!(element(0.1f64.into(), hip::DType::BF16), Arg::F32(0.100_097_656));
        assert_eq!(element(7e4f64.into(), hip::DType::F16), Arg::F32(f32::INFINITY));
        assert_eq!(element(300i32.into(), hip::DType::U8), Arg::U8(44));
        assert_eq!(saturated(f64::INFINITY.into(), hip::DType::I8), Arg::I8(127));
        assert_eq!(saturated((-1i32).into(), hip::DType::U64), Arg::U64(0));
        assert_eq!(saturated(f64::INFINITY.into(), hip::DType::F32), Arg::F32(f32::INFINITY));
        assert_eq!(compute(true.into(), hip::DType::F32), Arg::F32(1.0));
    }

    /// A shift by the number of bits or more moves all of them out, also if the amount's low bits
    /// would shift by less.
    #[test]
    fn amounts_of_shifts() {
        for (amount, expected) in
            [(0i64, 0), (7, 7), (200, 200), (256, 255), (257, 255), (-1, 255), (-256, 255)]
        {
            assert_eq!(shift_amount(amount.into(), hip::DType::U8), Arg::U8(expected), "{amount}");
        }
        assert_eq!(shift_amount(256i64.into(), hip::DType::I8), Arg::I8(127));
        assert_eq!(shift_amount((-1i64).into(), hip::DType::I32), Arg::I32(i32::MAX));
        assert_eq!(shift_amount((1i64 << 32).into(), hip::DType::I32), Arg::I32(i32::MAX));
        assert_eq!(shift_amount(u64::MAX.into(), hip::DType::U64), Arg::U64(u64::MAX));
        assert_eq!(shift_amount(3.9f64.into(), hip::DType::I64), Arg::I64(3));
    }

    /// A value just above the middle of two numbers is rounded up, one just below it down, and the
    /// middle itself to the number whose last digit is 0.
    #[test]
    fn halves_are_rounded_once() {
        let bf16 = |v: f64| (bits(v.into(), DType::BF16).unwrap(), element(v.into(), hip::DType::BF16));
        let f16 = |v: f64| (bits(v.into(), DType::F16).unwrap(), element(v.into(), hip::DType::F16));
        let bf16_of = |bits| (Arg::U16(bits), Arg::F32(bf16::from_bits(bits).to_f32()));
        let f16_of = |bits| (Arg::U16(bits), Arg::F32(f16::from_bits(bits).to_f32()));
        for sign in [0, 0x8000] {
            let signed = |v: f64| if sign == 0 { v } else { -v };
            for (middle, low, high) in [
                (1.0 + 2f64.powi(-8), 0x3f80, 0x3f81),
                (1.0 + 3.0 * 2f64.powi(-8), 0x3f81, 0x3f82),
                // Numbers below the normal ones.
                (1.5 * 2f64.powi(-133), 1, 2),
                (0.5 * 2f64.powi(-133), 0, 1),
            ] {
                let even = if low % 2 == 0 { low } else { high };
                assert_eq!(bf16(signed(middle)), bf16_of(sign | even), "{middle:e}");
                assert_eq!(bf16(signed(middle.next_up())), bf16_of(sign | high), "above {middle:e}");
                assert_eq!(bf16(signed(middle.next_down())), bf16_of(sign | low), "below {middle:e}");
            }
            for (middle, low, high) in [
                (1.0 + 2f64.powi(-11), 0x3c00, 0x3c01),
                (1.0 + 3.0 * 2f64.powi(-11), 0x3c01, 0x3c02),
                (1.5 * 2f64.powi(-24), 1, 2),
                (0.5 * 2f64.powi(-24), 0, 1),
            ] {
                let even = if low % 2 == 0 { low } else { high };
                assert_eq!(f16(signed(middle)), f16_of(sign | even), "{middle:e}");
                assert_eq!(f16(signed(middle.next_up())), f16_of(sign | high), "above {middle:e}");
                assert_eq!(f16(signed(middle.next_down())), f16_of(sign | low), "below {middle:e}");
            }
        }
        // The largest finite numbers, and the middle between them and the power of two above.
        assert_eq!(f16(65519.99).0, Arg::U16(0x7bff));
        assert_eq!(f16(65520.0).0, Arg::U16(0x7c00));
        assert_eq!(bf16(f64::from(f32::MAX)).0, Arg::U16(0x7f80));
        assert_eq!(bf16(1e300).0, Arg::U16(0x7f80));
        assert_eq!(bf16(f64::NEG_INFINITY).0, Arg::U16(0xff80));
        assert_eq!(bf16(1e-300).0, Arg::U16(0));
        assert_eq!(f16(-1e-300).0, Arg::U16(0x8000));
        let nan = |arg| matches!(arg, Arg::U16(bits) if bf16::from_bits(bits).is_nan());
        assert!(nan(bf16(f64::NAN).0));
    }
}
