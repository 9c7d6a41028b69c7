//! The steps of exact division (`v_div_scale`, `v_div_fmas`, `v_div_fixup`), and of the reduction of large angles.

use std::marker::PhantomData;

use super::float::{self as f, Float};
use super::lanes::{Carry, fetch, write};
use super::mode::{Mode, Round};
use super::value::{Clamp, F16, Result, Value};
use super::{Body, Inst, soft};
use crate::isa::LANES;
use crate::isa::state::{Machine, Step, VCC};

/// The exponents that the steps compare.
pub(crate) trait Divide: Float {
    /// Numerator and denominator that lie further apart overflow unless scaled.
    const FAR: i32;
    /// Numerators with this biased exponent or less lose bits unless scaled.
    const TINY: i32;
    /// The exponent of scaling.
    const SCALE: i32;
    /// Quotients of exponents that lie further apart underflow.
    const UNDERFLOW: i32;
    const INFINITY: Self;
    const ZERO: Self;
    const NAN: Self;
    /// The biased exponent.
    fn exponent(self) -> i32;
    fn with_sign(self, negative: bool) -> Self;
}

impl Divide for f32 {
    const FAR: i32 = 96;
    const TINY: i32 = 23;
    const SCALE: i32 = 64;
    const UNDERFLOW: i32 = -150;
    const INFINITY: Self = f32::INFINITY;
    const ZERO: Self = 0.0;
    const NAN: Self = f32::NAN;
    #[inline(always)]
    fn exponent(self) -> i32 {
        (self.to_bits() >> 23 & 0xff) as i32
    }
    #[inline(always)]
    fn with_sign(self, negative: bool) -> Self {
        if negative { -self.abs() } else { self.abs() }
    }
}

impl Divide for f64 {
    const FAR: i32 = 768;
    const TINY: i32 = 53;
    const SCALE: i32 = 128;
    const UNDERFLOW: i32 = -1075;
    const INFINITY: Self = f64::INFINITY;
    const ZERO: Self = 0.0;
    const NAN: Self = f64::NAN;
    #[inline(always)]
    fn exponent(self) -> i32 {
        (self.to_bits() >> 52 & 0x7ff) as i32
    }
    #[inline(always)]
    fn with_sign(self, negative: bool) -> Self {
        if negative { -self.abs() } else { self.abs() }
    }
}

impl Divide for F16 {
    // 16-bit floats have only the fixup, because their quotients are computed in 32 bits.
    const FAR: i32 = i32::MAX;
    const TINY: i32 = -1;
    const SCALE: i32 = 0;
    const UNDERFLOW: i32 = i32::MIN;
    const INFINITY: Self = Self(0x7c00);
    const ZERO: Self = Self(0);
    const NAN: Self = Self(0x7e00);
    #[inline(always)]
    fn exponent(self) -> i32 {
        i32::from(self.0 >> 10 & 0x1f)
    }
    #[inline(always)]
    fn with_sign(self, negative: bool) -> Self {
        Self(self.0 & 0x7fff | u16::from(negative) << 15)
    }
}

/// Scales `a`, which is the denominator `b` or the numerator `c`, so that the quotient's iteration
/// stays in range. The carry tells `v_div_fmas` to scale back.
///
/// According to the guide's text, a denominator is scaled up if both its reciprocal and the
/// quotient are denormal, but that would overflow. Here it is scaled down, which is what the
/// sequence needs.
#[inline(always)]
pub(crate) fn scale<T: Divide + std::ops::Div<Output = T>>(a: T, b: T, c: T) -> Carry<T> {
    let up = |x: T| x.scale_soft(T::SCALE, Round::NearestEven);
    let down = |x: T| x.scale_soft(-T::SCALE, Round::NearestEven);
    let denominator = a.same(b);
    if b.same(T::ZERO) || c.same(T::ZERO) {
        return Carry(T::NAN, false);
    }
    if b.is_nan() || b.is_infinite() || c.is_nan() || c.is_infinite() {
        return Carry(a, false);
    }
    let reciprocal = (T::ONE / b).is_denormal();
    let quotient = (c / b).is_denormal() || (c / b).same(T::ZERO);
    if c.exponent() - b.exponent() >= T::FAR {
        Carry(if denominator { up(a) } else { a }, true)
    } else if b.is_denormal() {
        Carry(up(a), false)
    } else if reciprocal && quotient {
        Carry(if denominator { down(a) } else { a }, true)
    } else if reciprocal {
        Carry(down(a), false)
    } else if quotient {
        Carry(if a.same(c) { up(a) } else { a }, true)
    } else if c.exponent() <= T::TINY {
        Carry(up(a), false)
    } else {
        Carry(a, false)
    }
}

/// The quotient `q` of `c / b`, corrected if `b` or `c` is special or the quotient is out of range.
#[inline(always)]
pub(crate) fn fixup<M: Mode, T: Divide>(m: M, q: T, b: T, c: T) -> T {
    let (b, c) = (f::input(m, b), f::input(m, c));
    let negative = b.is_negative() != c.is_negative();
    let (b_zero, c_zero) = (b.same(T::ZERO), c.same(T::ZERO));
    if c.is_nan() {
        c.quiet()
    } else if b.is_nan() {
        b.quiet()
    } else if b_zero && c_zero || b.is_infinite() && c.is_infinite() {
        T::NAN.with_sign(true)
    } else if b_zero || c.is_infinite() {
        T::INFINITY.with_sign(negative)
    } else if b.is_infinite() || c_zero || c.exponent() - b.exponent() < T::UNDERFLOW {
        T::ZERO.with_sign(negative)
    } else if q.is_nan() {
        // The iteration met inf - inf: the quotient overflows.
        T::INFINITY.with_sign(negative)
    } else {
        f::output(m, q.with_sign(negative))
    }
}

/// `v_div_fmas`: a fused product, scaled back in the lanes that VCC names.
pub(crate) struct FmasBody<T>(PhantomData<T>);

/// A fused product that is scaled before it is rounded.
pub(crate) trait ScaledFma: Divide + Value + Result {
    fn scaled_fma(a: Self, b: Self, c: Self, exponent: i32, r: Round) -> Self;
}

impl ScaledFma for f32 {
    fn scaled_fma(a: Self, b: Self, c: Self, exponent: i32, r: Round) -> Self {
        let wide = soft::scaled_fma(a.into(), b.into(), c.into(), exponent, Round::NearestEven);
        f32::from_f64_soft(wide, r)
    }
}

impl ScaledFma for f64 {
    fn scaled_fma(a: Self, b: Self, c: Self, exponent: i32, r: Round) -> Self {
        soft::scaled_fma(a, b, c, exponent, r)
    }
}

impl<T: ScaledFma> Body for FmasBody<T> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let state = &mut *m.state;
        let (mode, float) = (state.float.dynamic, state.float);
        let single = size_of::<T>() == 4;
        let clamp = i.clamp.then_some(Clamp { nan_to_zero: float.dx10_clamp });
        let scale = float.scale(i.omod, single);
        let (vcc, exec) = (state.regs.sgpr(VCC), state.regs.exec());
        let [sa, sb, sc] = &mut state.spread;
        let a = fetch::<T>(&state.regs, &i.src[0], sa);
        let b = fetch::<T>(&state.regs, &i.src[1], sb);
        let c = fetch::<T>(&state.regs, &i.src[2], sc);
        let (mut lo, mut hi) = ([0; LANES], [0; LANES]);
        for l in 0..LANES {
            let (a, b, c) = (T::get(a, l), T::get(b, l), T::get(c, l));
            let r = if vcc >> l & 1 == 0 {
                f::fma(mode, a, b, c)
            } else {
                let large = c.exponent() > T::ONE.exponent();
                let exponent = if large { T::SCALE } else { -T::SCALE };
                f::output(mode, T::scaled_fma(a, b, c, exponent, T::rules(mode).round))
            };
            (lo[l], hi[l]) = if i.clamp || i.omod != 0 { r.modify(scale, clamp) } else { r }.bits();
        }
        write(&mut state.regs.v[i.dst as usize], &lo, exec);
        if !single {
            write(&mut state.regs.v[i.dst as usize + 1], &hi, exec);
        }
        Step::Next
    }
}

/// The binary digits of 2/pi.
const TWO_OVER_PI: [u32; 37] = [
    0xa2f9_836e,
    0x4e44_1529,
    0xfc27_57d1,
    0xf534_ddc0,
    0xdb62_9599,
    0x3c43_9041,
    0xfe51_63ab,
    0xdebb_c561,
    0xb724_6e3a,
    0x424d_d2e0,
    0x0649_2eea,
    0x09d1_921c,
    0xfe1d_eb1c,
    0xb129_a73e,
    0xe882_35f5,
    0x2ebb_4484,
    0xe99c_7026,
    0xb45f_7e41,
    0x3991_d639,
    0x8353_39f4,
    0x9c84_5f8b,
    0xbdf9_283b,
    0x1ff8_97ff,
    0xde05_980f,
    0xef2f_118b,
    0x5a0a_6d1f,
    0x6d36_7ecf,
    0x27cb_09b7,
    0x4f46_3f66,
    0x9e5f_ea2d,
    0x7527_bac7,
    0xebe5_f17b,
    0x3d07_39f7,
    0x8a52_92ea,
    0x6bfb_5fb1,
    0x1f8d_5d08,
    0x5603_3046,
];

/// 53 binary digits of 2/pi: the `segment`-th group of those that the reduction of an angle of
/// `x`'s size needs.
pub(crate) fn trig_preop(x: f64, segment: u32) -> f64 {
    let exponent = x.exponent();
    let shift = (segment & 31) as i32 * 53 + (exponent - 1077).max(0);
    let (word, bit) = ((shift / 32) as usize, shift % 32);
    let Some(&[a, b, c]) = TWO_OVER_PI.get(word..word + 3).and_then(|w| w.first_chunk()) else { return 0.0 };
    let digits = u128::from(a) << 64 | u128::from(b) << 32 | u128::from(c);
    let digits = (digits >> (32 - bit)) as u64 >> 11;
    let scale = if exponent >= 1968 { 128 } else { 0 };
    (digits as f64).scale_soft(scale - 53 - shift, Round::NearestEven)
}
