//! Floats of 8 bits: conversions on the host and on the device, tensors, and weights.
//!
//! MI300's chips have the FNUZ types, later ones OCP's. The types differ in the bias and in what
//! stands for NaN and infinity: see `hip/kernels/fp8.h`.

mod tensor;
mod weight;

use burn_std::DType;
use hip::{Error as RocmError, Functor, Template};

use super::copy::packed;
use super::launch::views;
use super::qweight::narrow_type;
use crate::arg::Arg;
use crate::error::invalid;
use crate::tensor::{RocmTensor, one_device};
pub use tensor::Fp8Tensor;
pub use weight::{Fp8Inputs, Fp8Weight};

/// A type of fp8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Type {
    /// OCP's E4M3: up to 448, NaN, no infinities.
    E4M3,
    /// OCP's E5M2: up to 57344, infinities and NaN.
    E5M2,
    /// E4M3 of gfx942: up to 240; 0x80 is NaN; no infinities, no -0.
    E4M3Fnuz,
    /// E5M2 of gfx942: up to 57344; 0x80 is NaN; no infinities, no -0.
    E5M2Fnuz,
}

impl Fp8Type {
    /// All types.
    pub const ALL: [Self; 4] = [Self::E4M3, Self::E5M2, Self::E4M3Fnuz, Self::E5M2Fnuz];

    fn functor(self) -> Functor {
        match self {
            Self::E4M3 => Functor::E4M3,
            Self::E5M2 => Functor::E5M2,
            Self::E4M3Fnuz => Functor::E4M3Fnuz,
            Self::E5M2Fnuz => Functor::E5M2Fnuz,
        }
    }

    /// The type in hipBLASLt's products.
    fn library(self) -> hip::Fp8 {
        match self {
            Self::E4M3 => hip::Fp8::E4M3,
            Self::E5M2 => hip::Fp8::E5M2,
            Self::E4M3Fnuz => hip::Fp8::E4M3Fnuz,
            Self::E5M2Fnuz => hip::Fp8::E5M2Fnuz,
        }
    }

    /// The type of what a weight of this type is multiplied by: the E4M3 of its family, because cuBLASLt has
    /// no products of two E5M2.
    fn of_inputs(self) -> Self {
        match self {
            Self::E4M3 | Self::E5M2 => Self::E4M3,
            Self::E4M3Fnuz | Self::E5M2Fnuz => Self::E4M3Fnuz,
        }
    }

    /// The bits of the fraction, the exponent's bias, and whether it is a FNUZ type.
    fn layout(self) -> (i32, i32, bool) {
        match self {
            Self::E4M3 => (3, 7, false),
            Self::E5M2 => (2, 15, false),
            Self::E4M3Fnuz => (3, 8, true),
            Self::E5M2Fnuz => (2, 16, true),
        }
    }

    /// The code of the greatest finite number.
    fn greatest(self) -> u8 {
        match self {
            Self::E4M3 => 0x7e,
            Self::E5M2 => 0x7b,
            Self::E4M3Fnuz | Self::E5M2Fnuz => 0x7f,
        }
    }

    /// The number of a code.
    pub fn decode(self, code: u8) -> f32 {
        let (fraction, bias, fnuz) = self.layout();
        let (magnitude, negative) = (code & 0x7f, code & 0x80 != 0);
        if fnuz && code == 0x80 || !fnuz && magnitude > self.greatest() && magnitude != 0x7c {
            return f32::NAN;
        }
        let size = if !fnuz && magnitude == 0x7c && self == Self::E5M2 {
            f32::INFINITY
        } else {
            let (exponent, low) =
                (i32::from(magnitude >> fraction), i32::from(magnitude) & ((1 << fraction) - 1));
            // Exact: few bits, and exponents within those of f32's normal numbers.
            let (whole, power) = match exponent {
                0 => (low, 1),
                _ => (low | 1 << fraction, exponent),
            };
            whole as f32 * f32::powi(2.0, power - bias - fraction)
        };
        if negative { -size } else { size }
    }

    /// The code nearest to a number; of two equally near ones, the even one. Infinities and numbers
    /// that round beyond the greatest become the greatest with `saturate`. Without it, they become
    /// infinities in E5M2 and NaN in the other types. NaN stays NaN.
    pub fn encode(self, number: f32, saturate: bool) -> u8 {
        let (fraction, bias, fnuz) = self.layout();
        let sign = if number.is_sign_negative() { 0x80 } else { 0 };
        let beyond = match (saturate, self) {
            (true, _) => self.greatest(),
            (false, Self::E5M2) => 0x7c,
            (false, Self::E4M3) => 0x7f,
            (false, _) => 0x80,
        };
        let size = f64::from(number).abs();
        let code = if size.is_nan() {
            match self {
                Self::E4M3 => 0x7f,
                Self::E5M2 => 0x7e,
                _ => 0x80,
            }
        } else if size.is_infinite() {
            beyond
        } else {
            // The exponent that decides the spacing; subnormal numbers have that of the least normal.
            let least = 1 - bias;
            let exponent = if size == 0.0 { least } else { (size.log2().floor() as i32).max(least) };
            // `log2` may be off by one at a power of two. Then the steps are 2^fraction or twice as
            // many, which the sum below carries into the exponent.
            let steps = (size * f64::powi(2.0, fraction - exponent)).round_ties_even() as i64;
            let code = (i64::from(exponent - least) << fraction) + steps;
            if code > self.greatest().into() { beyond } else { code as u8 }
        };
        match fnuz {
            true if code == 0 || code == 0x80 => code,
            _ => code | sign,
        }
    }

    /// The FNUZ type of as many bits of exponent, whose numbers are half of those of the same codes.
    pub fn fnuz(self) -> Self {
        match self {
            Self::E4M3 | Self::E4M3Fnuz => Self::E4M3Fnuz,
            Self::E5M2 | Self::E5M2Fnuz => Self::E5M2Fnuz,
        }
    }

    /// A code of this type as a code of the FNUZ type, for twice the scale: -0 becomes 0, and
    /// infinities and NaN become NaN.
    pub fn to_fnuz(self, code: u8) -> u8 {
        match self {
            Self::E4M3Fnuz | Self::E5M2Fnuz => code,
            _ if code == 0x80 => 0,
            _ if code & 0x7f > self.greatest() => 0x80,
            _ => code,
        }
    }
}

/// The codes of a tensor's numbers, u8: see [`Fp8Type::encode`].
///
/// # Errors
/// `Unsupported` for a dtype other than f32, f16 and bf16; an error of the device.
pub fn fp8_encode(x: RocmTensor, ty: Fp8Type, saturate: bool) -> Result<RocmTensor, RocmError> {
    const OP: &str = "fp8_encode";
    let kernel = Template::fp8_encode.functor(ty.functor()).ty(narrow_type(OP, &x)?);
    let x = packed(x)?;
    let out = RocmTensor::empty(x.hip_device(), x.layout().shape().clone(), DType::U8)?;
    if !out.is_empty() {
        let dims = [Arg::U64(out.len() as u64), Arg::U32(saturate.into())];
        views(OP, x.hip_device(), kernel, x.hip_device().grid(out.len()), &dims, &[Some(&x)], &[], &out)?;
    }
    Ok(out)
}

/// The numbers of codes (u8), each times the scale of its row if there are scales (f32, `[rows]`): see
/// [`Fp8Type::decode`].
///
/// # Errors
/// `Invalid` for codes of another dtype, and for scales of another dtype or number; `Unsupported` for
/// a dtype other than f32, f16 and bf16; an error of the device.
pub fn fp8_decode(
    codes: RocmTensor,
    ty: Fp8Type,
    scales: Option<RocmTensor>,
    dtype: DType,
) -> Result<RocmTensor, RocmError> {
    const OP: &str = "fp8_decode";
    if codes.dtype_of() != DType::U8 {
        return invalid(OP, "codes of u8", codes.dtype_of().name());
    }
    let rows = codes.dims().first().copied().unwrap_or(1);
    if let Some(scales) = &scales {
        one_device(OP, &[&codes, scales])?;
        if scales.dims() != [rows] || scales.dtype_of() != DType::F32 {
            let found = format!("{:?} of {}", scales.dims(), scales.dtype_of().name());
            return invalid(OP, format!("scales [{rows}] of f32"), found);
        }
    }
    let (codes, scales) = (packed(codes)?, scales.map(packed).transpose()?);
    let device = codes.hip_device();
    let out = RocmTensor::empty(device, codes.layout().shape().clone(), dtype)?;
    let kernel = Template::fp8_decode.functor(ty.functor()).ty(narrow_type(OP, &out)?);
    if !out.is_empty() {
        let dims = [Arg::U64(out.len() as u64), Arg::U64((out.len() / rows) as u64)];
        let inputs = [Some(&codes), scales.as_ref()];
        views(OP, device, kernel, device.grid(out.len()), &dims, &inputs, &[], &out)?;
    }
    Ok(out)
}
