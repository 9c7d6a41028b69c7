//! The values of a lane's operands: reads numbers from the bits of one or two registers, and turns
//! results back into bits.

use super::half;
use crate::isa::inst::Ty;

/// The registers of an operand: each lane's low and high dword.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) lo: &'a [u32; 32],
    pub(crate) hi: &'a [u32; 32],
}

/// A source operand of one lane.
pub(crate) trait Value: Copy {
    const TY: Ty;
    fn get(view: View<'_>, lane: usize) -> Self;
}

/// A vector result of one lane.
pub(crate) trait Result: Copy {
    const TY: Ty;
    fn bits(self) -> (u32, u32);
    /// Applies MODE's output modifier `omod` and `clamp`; integers have neither.
    #[inline(always)]
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
        let _ = (scale, clamp);
        self
    }
}

/// How clamping to \[0, 1\] treats NaN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clamp {
    /// DX10_CLAMP: 0, not NaN.
    pub(crate) nan_to_zero: bool,
}

impl Clamp {
    #[inline(always)]
    fn apply32(self, x: f32) -> f32 {
        if x.is_nan() && !self.nan_to_zero {
            x
        } else if x > 0.0 {
            if x < 1.0 { x } else { 1.0 }
        } else {
            0.0
        }
    }
}

impl Value for () {
    const TY: Ty = Ty::None;
    #[inline(always)]
    fn get(_: View<'_>, _: usize) -> Self {}
}

macro_rules! word {
    ($($t:ty: $ty:ident, |$x:ident| $from:expr, |$y:ident| $to:expr;)*) => { $(
        impl Value for $t {
            const TY: Ty = Ty::$ty;
            #[inline(always)]
            fn get(view: View<'_>, lane: usize) -> Self {
                let $x = view.lo[lane];
                $from
            }
        }
        impl Result for $t {
            const TY: Ty = Ty::$ty;
            #[inline(always)]
            fn bits(self) -> (u32, u32) {
                let $y = self;
                ($to, 0)
            }
        }
    )* };
}

word! {
    u32: B32, |x| x, |y| y;
    i32: B32, |x| x as i32, |y| y as u32;
    u16: B16, |x| x as u16, |y| u32::from(y);
    i16: B16, |x| x as i16, |y| u32::from(y as u16);
}

impl Value for f32 {
    const TY: Ty = Ty::F32;
    #[inline(always)]
    fn get(view: View<'_>, lane: usize) -> Self {
        f32::from_bits(view.lo[lane])
    }
}

impl Result for f32 {
    const TY: Ty = Ty::F32;
    #[inline(always)]
    fn bits(self) -> (u32, u32) {
        (self.to_bits(), 0)
    }
    #[inline(always)]
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
        let x = self * scale;
        clamp.map_or(x, |c| c.apply32(x))
    }
}

/// A 16-bit float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct F16(pub(crate) u16);

impl F16 {
    #[inline(always)]
    pub(crate) fn f32(self) -> f32 {
        half::to_f32(self.0)
    }

    /// Rounds to nearest even.
    #[inline(always)]
    pub(crate) fn of(x: f32) -> Self {
        Self(half::from_f32(x))
    }
}

impl Value for F16 {
    const TY: Ty = Ty::F16;
    #[inline(always)]
    fn get(view: View<'_>, lane: usize) -> Self {
        Self(view.lo[lane] as u16)
    }
}

impl Result for F16 {
    const TY: Ty = Ty::F16;
    #[inline(always)]
    fn bits(self) -> (u32, u32) {
        (u32::from(self.0), 0)
    }
    #[inline(always)]
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
        let x = self.f32() * scale;
        Self::of(clamp.map_or(x, |c| c.apply32(x)))
    }
}

/// Two 16-bit halves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pk<T>(pub(crate) T, pub(crate) T);

macro_rules! packed {
    ($($t:ty: $ty:ident, |$x:ident| $from:expr, |$y:ident| $to:expr;)*) => { $(
        impl Value for Pk<$t> {
            const TY: Ty = Ty::$ty;
            #[inline(always)]
            fn get(view: View<'_>, lane: usize) -> Self {
                let from = |$x: u16| $from;
                let bits = view.lo[lane];
                Self(from(bits as u16), from((bits >> 16) as u16))
            }
        }
        impl Result for Pk<$t> {
            const TY: Ty = Ty::$ty;
            #[inline(always)]
            fn bits(self) -> (u32, u32) {
                let to = |$y: $t| -> u16 { $to };
                (u32::from(to(self.0)) | u32::from(to(self.1)) << 16, 0)
            }
            #[inline(always)]
            fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
                Self(self.0.modify(scale, clamp), self.1.modify(scale, clamp))
            }
        }
    )* };
}

packed! {
    F16: PkF16, |x| F16(x), |y| y.0;
    u16: PkB16, |x| x, |y| y;
    i16: PkB16, |x| x as i16, |y| y as u16;
}

/// A source of `v_fma_mix*`: a 32-bit float, or one half of the register as a 16-bit float. Fetching the
/// operand has converted it.
#[derive(Clone, Copy)]
pub(crate) struct Mix(pub(crate) f32);

impl Value for Mix {
    const TY: Ty = Ty::Mix;
    #[inline(always)]
    fn get(view: View<'_>, lane: usize) -> Self {
        Self(f32::from_bits(view.lo[lane]))
    }
}

/// The lane's bit of a scalar mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(pub(crate) bool);

impl Value for Mask {
    const TY: Ty = Ty::Mask;
    #[inline(always)]
    fn get(view: View<'_>, lane: usize) -> Self {
        Self(view.lo[lane] & 1 << lane != 0)
    }
}

macro_rules! double_word {
    ($($t:ty: $ty:ident, |$x:ident| $from:expr;)*) => { $(
        impl Value for $t {
            const TY: Ty = Ty::$ty;
            #[inline(always)]
            fn get(view: View<'_>, lane: usize) -> Self {
                let $x = u64::from(view.lo[lane]) | u64::from(view.hi[lane]) << 32;
                $from
            }
        }
    )* };
}

double_word! {
    u64: B64, |x| x;
    i64: I64, |x| x as i64;
    f64: F64, |x| f64::from_bits(x);
}

#[inline(always)]
fn split(x: u64) -> (u32, u32) {
    (x as u32, (x >> 32) as u32)
}

impl Result for u64 {
    const TY: Ty = Ty::B64;
    #[inline(always)]
    fn bits(self) -> (u32, u32) {
        split(self)
    }
}

impl Result for i64 {
    const TY: Ty = Ty::I64;
    #[inline(always)]
    fn bits(self) -> (u32, u32) {
        split(self as u64)
    }
}

impl Result for f64 {
    const TY: Ty = Ty::F64;
    #[inline(always)]
    fn bits(self) -> (u32, u32) {
        split(self.to_bits())
    }
    #[inline(always)]
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
        let x = self * f64::from(scale);
        match clamp {
            Some(c) if !x.is_nan() || c.nan_to_zero => {
                if x > 0.0 {
                    x.min(1.0)
                } else {
                    0.0
                }
            }
            _ => x,
        }
    }
}

/// Not an operand: the lane's number.
#[derive(Clone, Copy)]
pub(crate) struct LaneIndex(pub(crate) u32);

impl Value for LaneIndex {
    const TY: Ty = Ty::None;
    #[inline(always)]
    fn get(_: View<'_>, lane: usize) -> Self {
        Self(lane as u32)
    }
}
