//! Arithmetic in rounding modes that the host's instructions don't use, by `rustc_apfloat`.

use rustc_apfloat::ieee::{Double, Half, Quad, Single};
use rustc_apfloat::{Float as _, FloatConvert as _, Round as ApRound};

use super::mode::Round;

fn round(r: Round) -> ApRound {
    match r {
        Round::NearestEven => ApRound::NearestTiesToEven,
        Round::Up => ApRound::TowardPositive,
        Round::Down => ApRound::TowardNegative,
        Round::Zero => ApRound::TowardZero,
    }
}

macro_rules! soft {
    ($name:ident: $bits:ty, $ap:ty) => {
        /// One format's operations, on bits.
        pub(crate) mod $name {
            use super::*;

            type Bits = $bits;

            fn of(bits: Bits) -> $ap {
                <$ap>::from_bits(u128::from(bits))
            }

            #[inline(never)]
            pub(crate) fn add(a: Bits, b: Bits, r: Round) -> Bits {
                of(a).add_r(of(b), round(r)).value.to_bits() as Bits
            }

            #[inline(never)]
            pub(crate) fn mul(a: Bits, b: Bits, r: Round) -> Bits {
                of(a).mul_r(of(b), round(r)).value.to_bits() as Bits
            }

            #[inline(never)]
            pub(crate) fn fma(a: Bits, b: Bits, c: Bits, r: Round) -> Bits {
                of(a).mul_add_r(of(b), of(c), round(r)).value.to_bits() as Bits
            }

            #[inline(never)]
            pub(crate) fn scale(a: Bits, exponent: i32, r: Round) -> Bits {
                of(a).scalbn_r(exponent.clamp(-5000, 5000), round(r)).to_bits() as Bits
            }

            #[inline(never)]
            pub(crate) fn from_f64(x: f64, r: Round) -> Bits {
                let mut exact = false;
                let value: $ap =
                    Double::from_bits(u128::from(x.to_bits())).convert_r(round(r), &mut exact).value;
                value.to_bits() as Bits
            }
        }
    };
}

soft!(half: u16, Half);
soft!(single: u32, Single);
soft!(double: u64, Double);

/// `(a * b + c) * 2^exponent` with one rounding beyond 113 bits.
#[inline(never)]
pub(crate) fn scaled_fma(a: f64, b: f64, c: f64, exponent: i32, r: Round) -> f64 {
    let mut exact = false;
    let mut quad = |x: f64| -> Quad { Double::from_bits(u128::from(x.to_bits())).convert(&mut exact).value };
    let (a, b, c) = (quad(a), quad(b), quad(c));
    let sum =
        a.mul_add_r(b, c, ApRound::NearestTiesToEven).value.scalbn_r(exponent, ApRound::NearestTiesToEven);
    let value: Double = sum.convert_r(round(r), &mut exact).value;
    f64::from_bits(value.to_bits() as u64)
}
