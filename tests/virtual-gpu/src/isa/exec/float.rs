//! Floating-point operations on one lane's values, under MODE's rules.
//!
//! Results that the guide specifies exactly (sums, products, fused products, conversions, divisions
//! by the `v_div_*` sequence, minima, comparisons) are bit-exact, except for the sign and payload
//! of NaN. Transcendentals are evaluated in 64 bits and rounded once: they lie within 0.5 + 2^-28
//! ulp of the true value where the hardware promises 1 ulp. As on hardware, the 32-bit ones read
//! and write denormals as 0 in every mode.

use super::mode::{Mode, Round, Rules};
use super::value::{F16, Pk};
use super::{half, soft};

/// A floating-point format.
pub(crate) trait Float: Copy {
    const ONE: Self;
    /// The largest value below 1.
    const BELOW_ONE: Self;
    fn rules<M: Mode>(m: M) -> Rules;
    /// Replaces a denormal by a zero of the same sign.
    fn flush(self) -> Self;
    fn add_raw(self, other: Self) -> Self;
    fn mul_raw(self, other: Self) -> Self;
    fn fma_raw(self, b: Self, c: Self) -> Self;
    fn add_soft(self, other: Self, r: Round) -> Self;
    fn mul_soft(self, other: Self, r: Round) -> Self;
    fn fma_soft(self, b: Self, c: Self, r: Round) -> Self;
    fn scale_soft(self, exponent: i32, r: Round) -> Self;
    fn scale_raw(self, exponent: i32) -> Self;
    fn neg(self) -> Self;
    fn lt(self, other: Self) -> bool;
    fn same(self, other: Self) -> bool;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    fn is_denormal(self) -> bool;
    fn is_signalling(self) -> bool;
    fn quiet(self) -> Self;
    fn is_negative(self) -> bool;
    /// Bitwise and, or: signs of zeros in minima and maxima.
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn rint(self) -> Self;
    fn to_f64(self) -> f64;
    /// Rounds to nearest.
    fn from_f64(x: f64) -> Self;
    fn from_f64_soft(x: f64, r: Round) -> Self;
}

macro_rules! native {
    ($t:ty, $bits:ty, $soft:ident, $rules:ident, exponent $exponent:expr, quiet $quiet:expr) => {
        impl Float for $t {
            const ONE: Self = 1.0;
            const BELOW_ONE: Self = <$t>::from_bits(<$t>::to_bits(1.0) - 1);
            #[inline(always)]
            fn rules<M: Mode>(m: M) -> Rules {
                m.$rules()
            }
            #[inline(always)]
            fn flush(self) -> Self {
                if self.to_bits() & $exponent == 0 {
                    Self::from_bits(self.to_bits() & !(<$bits>::MAX >> 1))
                } else {
                    self
                }
            }
            #[inline(always)]
            fn add_raw(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul_raw(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn fma_raw(self, b: Self, c: Self) -> Self {
                self.mul_add(b, c)
            }
            fn add_soft(self, other: Self, r: Round) -> Self {
                Self::from_bits(soft::$soft::add(self.to_bits(), other.to_bits(), r))
            }
            fn mul_soft(self, other: Self, r: Round) -> Self {
                Self::from_bits(soft::$soft::mul(self.to_bits(), other.to_bits(), r))
            }
            fn fma_soft(self, b: Self, c: Self, r: Round) -> Self {
                Self::from_bits(soft::$soft::fma(self.to_bits(), b.to_bits(), c.to_bits(), r))
            }
            fn scale_soft(self, exponent: i32, r: Round) -> Self {
                Self::from_bits(soft::$soft::scale(self.to_bits(), exponent, r))
            }
            #[inline(always)]
            fn scale_raw(self, exponent: i32) -> Self {
                scale(
                    self.to_f64(),
                    exponent,
                    |x| Self::from_f64(x),
                    || self.scale_soft(exponent, Round::NearestEven),
                )
            }
            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }
            #[inline(always)]
            fn lt(self, other: Self) -> bool {
                self < other
            }
            #[inline(always)]
            fn same(self, other: Self) -> bool {
                self == other
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
            #[inline(always)]
            fn is_infinite(self) -> bool {
                self.abs() == Self::INFINITY
            }
            #[inline(always)]
            fn is_denormal(self) -> bool {
                self.to_bits() & $exponent == 0 && self != 0.0
            }
            #[inline(always)]
            fn is_signalling(self) -> bool {
                self != self && self.to_bits() & $quiet == 0
            }
            #[inline(always)]
            fn quiet(self) -> Self {
                Self::from_bits(self.to_bits() | $quiet)
            }
            #[inline(always)]
            fn is_negative(self) -> bool {
                self.is_sign_negative()
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                Self::from_bits(self.to_bits() & other.to_bits())
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                Self::from_bits(self.to_bits() | other.to_bits())
            }
            #[inline(always)]
            fn floor(self) -> Self {
                <$t>::floor(self)
            }
            #[inline(always)]
            fn ceil(self) -> Self {
                <$t>::ceil(self)
            }
            #[inline(always)]
            fn trunc(self) -> Self {
                <$t>::trunc(self)
            }
            #[inline(always)]
            fn rint(self) -> Self {
                self.round_ties_even()
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as Self
            }
            fn from_f64_soft(x: f64, r: Round) -> Self {
                Self::from_bits(soft::$soft::from_f64(x, r))
            }
        }
    };
}

native!(f32, u32, single, single, exponent 0x7f80_0000, quiet 0x0040_0000);
native!(f64, u64, double, wide, exponent 0x7ff0_0000_0000_0000, quiet 0x0008_0000_0000_0000);

/// `x * 2^exponent`, rounded once: by an exact 64-bit product where that can't overflow or become denormal.
#[inline(always)]
fn scale<T>(x: f64, exponent: i32, narrow: impl Fn(f64) -> T, soft: impl Fn() -> T) -> T {
    if size_of::<T>() < 8 {
        let e = exponent.clamp(-400, 400);
        return narrow(x * f64::from_bits(((1023 + e) as u64) << 52));
    }
    soft()
}

impl Float for F16 {
    const ONE: Self = Self(0x3c00);
    const BELOW_ONE: Self = Self(0x3bff);
    #[inline(always)]
    fn rules<M: Mode>(m: M) -> Rules {
        m.wide()
    }
    #[inline(always)]
    fn flush(self) -> Self {
        Self(if self.0 & 0x7c00 == 0 { self.0 & 0x8000 } else { self.0 })
    }
    #[inline(always)]
    fn add_raw(self, other: Self) -> Self {
        // 24 bits are enough for sums and products of 11-bit numbers to be rounded twice with the
        // result of a single rounding.
        Self::of(self.f32() + other.f32())
    }
    #[inline(always)]
    fn mul_raw(self, other: Self) -> Self {
        Self::of(self.f32() * other.f32())
    }
    #[inline(always)]
    fn fma_raw(self, b: Self, c: Self) -> Self {
        Self(half::fma(self.0, b.0, c.0))
    }
    fn add_soft(self, other: Self, r: Round) -> Self {
        Self(soft::half::add(self.0, other.0, r))
    }
    fn mul_soft(self, other: Self, r: Round) -> Self {
        Self(soft::half::mul(self.0, other.0, r))
    }
    fn fma_soft(self, b: Self, c: Self, r: Round) -> Self {
        Self(soft::half::fma(self.0, b.0, c.0, r))
    }
    fn scale_soft(self, exponent: i32, r: Round) -> Self {
        Self(soft::half::scale(self.0, exponent, r))
    }
    #[inline(always)]
    fn scale_raw(self, exponent: i32) -> Self {
        scale(self.to_f64(), exponent, Self::from_f64, || self)
    }
    #[inline(always)]
    fn neg(self) -> Self {
        Self(self.0 ^ 0x8000)
    }
    #[inline(always)]
    fn lt(self, other: Self) -> bool {
        self.f32() < other.f32()
    }
    #[inline(always)]
    fn same(self, other: Self) -> bool {
        self.f32() == other.f32()
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.0 & 0x7fff > 0x7c00
    }
    #[inline(always)]
    fn is_infinite(self) -> bool {
        self.0 & 0x7fff == 0x7c00
    }
    #[inline(always)]
    fn is_denormal(self) -> bool {
        self.0 & 0x7c00 == 0 && self.0 & 0x7fff != 0
    }
    #[inline(always)]
    fn is_signalling(self) -> bool {
        self.is_nan() && self.0 & 0x200 == 0
    }
    #[inline(always)]
    fn quiet(self) -> Self {
        Self(self.0 | 0x200)
    }
    #[inline(always)]
    fn is_negative(self) -> bool {
        self.0 & 0x8000 != 0
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    #[inline(always)]
    fn floor(self) -> Self {
        Self::of(self.f32().floor())
    }
    #[inline(always)]
    fn ceil(self) -> Self {
        Self::of(self.f32().ceil())
    }
    #[inline(always)]
    fn trunc(self) -> Self {
        Self::of(self.f32().trunc())
    }
    #[inline(always)]
    fn rint(self) -> Self {
        Self::of(self.f32().round_ties_even())
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.f32())
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Self(half::from_f64(x))
    }
    fn from_f64_soft(x: f64, r: Round) -> Self {
        Self(soft::half::from_f64(x, r))
    }
}

/// An operand as the operation sees it.
#[inline(always)]
pub(crate) fn input<M: Mode, T: Float>(m: M, x: T) -> T {
    if T::rules(m).flush_in { x.flush() } else { x }
}

/// A result as it is written.
#[inline(always)]
pub(crate) fn output<M: Mode, T: Float>(m: M, x: T) -> T {
    if T::rules(m).flush_out { x.flush() } else { x }
}

#[inline(always)]
pub(crate) fn add<M: Mode, T: Float>(m: M, a: T, b: T) -> T {
    let (a, b) = (input(m, a), input(m, b));
    let r = T::rules(m).round;
    output(m, if r == Round::NearestEven { a.add_raw(b) } else { a.add_soft(b, r) })
}

#[inline(always)]
pub(crate) fn sub<M: Mode, T: Float>(m: M, a: T, b: T) -> T {
    add(m, a, b.neg())
}

#[inline(always)]
pub(crate) fn mul<M: Mode, T: Float>(m: M, a: T, b: T) -> T {
    let (a, b) = (input(m, a), input(m, b));
    let r = T::rules(m).round;
    output(m, if r == Round::NearestEven { a.mul_raw(b) } else { a.mul_soft(b, r) })
}

#[inline(always)]
pub(crate) fn fma<M: Mode, T: Float>(m: M, a: T, b: T, c: T) -> T {
    let (a, b, c) = (input(m, a), input(m, b), input(m, c));
    let r = T::rules(m).round;
    output(m, if r == Round::NearestEven { a.fma_raw(b, c) } else { a.fma_soft(b, c, r) })
}

/// Products where 0 times anything is 0 (`*_legacy`).
#[inline(always)]
pub(crate) fn mul_legacy<M: Mode>(m: M, a: f32, b: f32) -> f32 {
    if input(m, a) == 0.0 || input(m, b) == 0.0 { 0.0 } else { mul(m, a, b) }
}

#[inline(always)]
pub(crate) fn fma_legacy<M: Mode>(m: M, a: f32, b: f32, c: f32) -> f32 {
    if input(m, a) == 0.0 || input(m, b) == 0.0 { output(m, input(m, c)) } else { fma(m, a, b, c) }
}

/// A result that the guide specifies exactly: rounds it, then flushes it.
#[inline(always)]
pub(crate) fn round_from<M: Mode, T: Float>(m: M, x: f64) -> T {
    let r = T::rules(m).round;
    output(m, if r == Round::NearestEven { T::from_f64(x) } else { T::from_f64_soft(x, r) })
}

/// `v_cvt_f16_f32`: the source follows the 32-bit rules, the result the 16-bit ones.
#[inline(always)]
pub(crate) fn narrow<M: Mode>(m: M, x: f32) -> F16 {
    let x = input(m, x);
    let r = m.wide().round;
    output(m, if r == Round::NearestEven { F16::of(x) } else { F16::from_f64_soft(f64::from(x), r) })
}

#[inline(always)]
pub(crate) fn widen<M: Mode>(m: M, x: F16) -> f32 {
    input(m, x).f32()
}

/// Rounds towards zero (`v_cvt_pkrtz_f16_f32`); beyond the range that is the largest finite value.
#[inline(always)]
pub(crate) fn narrow_to_zero<M: Mode>(m: M, x: f32) -> F16 {
    let x = input(m, x);
    let near = F16::of(x);
    let beyond = near.f32().abs() > x.abs() && x.abs() != f32::INFINITY;
    output(m, if beyond { F16(near.0 - 1) } else { near })
}

/// The larger operand; a number beats NaN, +0 beats -0.
#[inline(always)]
pub(crate) fn max<M: Mode, T: Float>(m: M, a: T, b: T) -> T {
    pick(m, a, b, |a, b| b.lt(a), T::and)
}

/// The smaller operand; a number beats NaN, -0 beats +0.
#[inline(always)]
pub(crate) fn min<M: Mode, T: Float>(m: M, a: T, b: T) -> T {
    pick(m, a, b, |a, b| a.lt(b), T::or)
}

#[inline(always)]
fn pick<M: Mode, T: Float>(m: M, a: T, b: T, first: impl Fn(T, T) -> bool, equal: impl Fn(T, T) -> T) -> T {
    let (a, b) = (input(m, a), input(m, b));
    let number = if first(a, b) || b.is_nan() {
        a
    } else if a.same(b) {
        equal(a, b)
    } else {
        b
    };
    output(
        m,
        if m.ieee() && a.is_signalling() {
            a.quiet()
        } else if m.ieee() && b.is_signalling() {
            b.quiet()
        } else {
            number
        },
    )
}

#[inline(always)]
pub(crate) fn max3<M: Mode, T: Float>(m: M, a: T, b: T, c: T) -> T {
    max(m, max(m, a, b), c)
}

#[inline(always)]
pub(crate) fn min3<M: Mode, T: Float>(m: M, a: T, b: T, c: T) -> T {
    min(m, min(m, a, b), c)
}

/// The median; with a NaN the minimum of the others.
#[inline(always)]
pub(crate) fn med3<M: Mode, T: Float>(m: M, a: T, b: T, c: T) -> T {
    if a.is_nan() || b.is_nan() || c.is_nan() {
        min3(m, a, b, c)
    } else {
        max(m, min(m, a, b), min(m, max(m, a, b), c))
    }
}

/// One of the rounding functions, and flushing.
#[inline(always)]
pub(crate) fn integral<M: Mode, T: Float>(m: M, x: T, f: impl Fn(T) -> T) -> T {
    f(input(m, x))
}

/// `x - floor(x)`, below 1.
#[inline(always)]
pub(crate) fn fract<M: Mode, T: Float>(m: M, x: T) -> T {
    let x = input(m, x);
    let f = x.add_raw(x.floor().neg());
    output(m, if f.lt(T::ONE) || f.is_nan() { f } else { T::BELOW_ONE })
}

#[inline(always)]
pub(crate) fn ldexp<M: Mode, T: Float>(m: M, x: T, exponent: i32) -> T {
    let x = input(m, x);
    let r = T::rules(m).round;
    output(m, if r == Round::NearestEven { x.scale_raw(exponent) } else { x.scale_soft(exponent, r) })
}

/// Mantissa in \[0.5, 1) and exponent of a finite, nonzero number.
fn frexp(x: f64) -> (f64, i32) {
    // Denormals are normalised by a power of two first.
    let (y, bias) = if x.is_denormal() { (x * f64::from_bits(0x4350_0000_0000_0000), 54) } else { (x, 0) };
    let bits = y.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022 - bias;
    (f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52), exponent)
}

#[inline(always)]
pub(crate) fn frexp_mantissa<M: Mode, T: Float>(m: M, x: T) -> T {
    let x = input(m, x);
    let d = x.to_f64();
    if !d.is_finite() || d == 0.0 { x } else { T::from_f64(frexp(d).0) }
}

#[inline(always)]
pub(crate) fn frexp_exponent<M: Mode, T: Float>(m: M, x: T) -> i32 {
    let d = input(m, x).to_f64();
    if !d.is_finite() || d == 0.0 { 0 } else { frexp(d).1 }
}

/// The bit of `v_cmp_class` that describes `x`.
#[inline(always)]
pub(crate) fn class<T: Float>(x: T) -> u32 {
    let negative = x.is_negative();
    let side = |below: u32, above: u32| if negative { below } else { above };
    if x.is_nan() {
        if x.is_signalling() { 1 } else { 2 }
    } else if x.is_infinite() {
        side(1 << 2, 1 << 9)
    } else if x.is_denormal() {
        side(1 << 4, 1 << 7)
    } else if x.to_f64() == 0.0 {
        side(1 << 5, 1 << 6)
    } else {
        side(1 << 3, 1 << 8)
    }
}

/// A transcendental of 32 bits.
#[inline(always)]
pub(crate) fn transcendental(x: f32, f: impl Fn(f64) -> f64) -> f32 {
    (f(f64::from(x.flush())) as f32).flush()
}

/// A transcendental of 16 bits.
#[inline(always)]
pub(crate) fn transcendental16<M: Mode>(m: M, x: F16, f: impl Fn(f64) -> f64) -> F16 {
    output(m, F16::from_f64(f(input(m, x).to_f64())))
}

/// `sin(2 pi x)`; the turns are taken off exactly.
pub(crate) fn sin_turns(x: f64) -> f64 {
    (std::f64::consts::TAU * (x - x.round_ties_even())).sin()
}

/// `cos(2 pi x)`.
pub(crate) fn cos_turns(x: f64) -> f64 {
    (std::f64::consts::TAU * (x - x.round_ties_even())).cos()
}

/// A normalised 16-bit integer: `x` within \[low, 1\], times `scale`, rounded to nearest even; 0 for NaN.
#[inline(always)]
pub(crate) fn normalised(x: f32, low: f32, scale: f32) -> u16 {
    let inside = if x < low {
        low
    } else if x > 1.0 {
        1.0
    } else {
        x
    };
    // Exact in 64 bits, so that only the integer is rounded. `as` makes NaN 0.
    (f64::from(inside) * f64::from(scale)).round_ties_even() as i32 as u16
}

/// `a.0 * b.0 + a.1 * b.1 + c`, by two fused products, the low halves first. The guide leaves the order and the
/// intermediate rounding open.
#[inline(always)]
pub(crate) fn dot2<M: Mode>(m: M, a: Pk<F16>, b: Pk<F16>, c: f32) -> f32 {
    let wide = |x: F16| input(m, x).f32();
    fma(m, wide(a.1), wide(b.1), fma(m, wide(a.0), wide(b.0), c))
}
