//! Element types as the libraries see them: stored in 2, 4 or 8 bytes, computed in `f32` or `f64`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A floating-point element type.
pub(crate) trait Element: Copy + Send + Sync + PartialEq + 'static {
    /// The type that sums are kept in.
    type Acc: Real;
    /// Widens one value.
    fn widen(self) -> Self::Acc;
    /// Rounds one value to nearest even.
    fn narrow(value: Self::Acc) -> Self;
}

/// The arithmetic of an accumulator.
pub(crate) trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Default
    + core::ops::Add<Output = Self>
    + core::ops::Sub<Output = Self>
    + core::ops::Mul<Output = Self>
    + core::ops::Div<Output = Self>
    + core::ops::Neg<Output = Self>
    + core::ops::AddAssign
    + core::iter::Sum
    + 'static
{
    const ONE: Self;
    const MIN: Self;
    const MAX: Self;
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    fn is_nan(self) -> bool;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            const ONE: Self = 1.0;
            const MIN: Self = <$t>::MIN;
            const MAX: Self = <$t>::MAX;
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            fn abs(self) -> Self {
                self.abs()
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
        }
    };
}
real!(f32);
real!(f64);

impl Element for f32 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl Element for f64 {
    type Acc = f64;
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(value: f64) -> f64 {
        value
    }
}

impl Element for f16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

impl Element for bf16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

/// An element type that is computed in `f32`, with conversions of whole slices.
pub(crate) trait Single: Element<Acc = f32> {
    /// Widens `src` into `dst`, which has the same length.
    fn widen_slice(src: &[Self], dst: &mut [f32]);
    /// Rounds `src` into `dst`, which has the same length.
    fn narrow_slice(src: &[f32], dst: &mut [Self]);
    /// Whether the stored form is `f32` itself.
    const IS_F32: bool;
}

impl Single for f32 {
    #[inline(always)]
    fn widen_slice(src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }
    #[inline(always)]
    fn narrow_slice(src: &[f32], dst: &mut [f32]) {
        dst.copy_from_slice(src);
    }
    const IS_F32: bool = true;
}

impl Single for f16 {
    fn widen_slice(src: &[f16], dst: &mut [f32]) {
        src.convert_to_f32_slice(dst);
    }
    fn narrow_slice(src: &[f32], dst: &mut [f16]) {
        dst.convert_from_f32_slice(src);
    }
    const IS_F32: bool = false;
}

impl Single for bf16 {
    fn widen_slice(src: &[bf16], dst: &mut [f32]) {
        src.convert_to_f32_slice(dst);
    }
    fn narrow_slice(src: &[f32], dst: &mut [bf16]) {
        dst.convert_from_f32_slice(src);
    }
    const IS_F32: bool = false;
}
