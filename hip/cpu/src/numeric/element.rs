//! Element types: stored in 2, 4 or 8 bytes, computed in `f32` or `f64`.

use super::simd::{Vector, by_level};
use half::{bf16, f16};

/// A floating-point element type.
pub(crate) trait Element: Copy + Send + Sync + PartialEq + 'static {
    /// The type of sums.
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

/// The number of lanes of the widest vector.
const ROOM: usize = 16;

/// Implements [`Single`] for a 16-bit type, from the methods that load and store one vector of it.
macro_rules! single {
    ($t:ty, $load:ident $widen:ident $widen_all:ident, $store:ident $narrow:ident $narrow_all:ident) => {
        #[inline(always)]
        unsafe fn $widen_all<V: Vector>(from: *const $t, to: *mut f32, len: usize) {
            let whole = len - len % V::LANES;
            // SAFETY: the caller vouches for `len` values of both, and for the level.
            unsafe {
                let mut i = 0;
                while i < whole {
                    V::$load(from.add(i).cast()).store(to.add(i));
                    i += V::LANES;
                }
                if whole == len {
                    return;
                }
                // The last vector ends at the slice's end and converts some values twice.
                if whole > 0 {
                    return V::$load(from.add(len - V::LANES).cast()).store(to.add(len - V::LANES));
                }
                // Fewer values than lanes go through a buffer of one vector, because `half` would
                // check the CPU's features for each value.
                let (mut stored, mut wide) = ([<$t>::ZERO; ROOM], [0.0; ROOM]);
                core::ptr::copy_nonoverlapping(from.add(whole), stored.as_mut_ptr(), len - whole);
                V::$load(stored.as_ptr().cast()).store(wide.as_mut_ptr());
                core::ptr::copy_nonoverlapping(wide.as_ptr(), to.add(whole), len - whole);
            }
        }

        #[inline(always)]
        unsafe fn $narrow_all<V: Vector>(from: *const f32, to: *mut $t, len: usize) {
            let whole = len - len % V::LANES;
            // SAFETY: the caller vouches for `len` values of both, and for the level.
            unsafe {
                let mut i = 0;
                while i < whole {
                    V::load(from.add(i)).$store(to.add(i).cast());
                    i += V::LANES;
                }
                if whole == len {
                    return;
                }
                if whole > 0 {
                    return V::load(from.add(len - V::LANES)).$store(to.add(len - V::LANES).cast());
                }
                let (mut wide, mut stored) = ([0.0; ROOM], [<$t>::ZERO; ROOM]);
                core::ptr::copy_nonoverlapping(from.add(whole), wide.as_mut_ptr(), len - whole);
                V::load(wide.as_ptr()).$store(stored.as_mut_ptr().cast());
                core::ptr::copy_nonoverlapping(stored.as_ptr(), to.add(whole), len - whole);
            }
        }

        by_level! {
            /// # Safety
            /// Both are valid for `len` values.
            unsafe fn $widen(from: *const $t, to: *mut f32, len: usize) = $widen_all
        }
        by_level! {
            /// # Safety
            /// Both are valid for `len` values.
            unsafe fn $narrow(from: *const f32, to: *mut $t, len: usize) = $narrow_all
        }

        impl Single for $t {
            fn widen_slice(src: &[$t], dst: &mut [f32]) {
                assert_eq!(src.len(), dst.len());
                // SAFETY: the slices' own length.
                unsafe { $widen(src.as_ptr(), dst.as_mut_ptr(), src.len()) }
            }
            fn narrow_slice(src: &[f32], dst: &mut [$t]) {
                assert_eq!(src.len(), dst.len());
                // SAFETY: the slices' own length.
                unsafe { $narrow(src.as_ptr(), dst.as_mut_ptr(), src.len()) }
            }
            const IS_F32: bool = false;
        }
    };
}
single!(f16, load_f16 widen_f16 widen_all_f16, store_f16 narrow_f16 narrow_all_f16);
single!(bf16, load_bf16 widen_bf16 widen_all_bf16, store_bf16 narrow_bf16 narrow_all_bf16);

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks against the crate `half`: every 16-bit value, and f32 values around each midpoint
    /// between two.
    fn agrees<T: Single>(of: impl Fn(u16) -> T, bits: impl Fn(T) -> u16) {
        let all: Vec<T> = (0..=u16::MAX).map(of).collect();
        let mut wide = vec![0.0; all.len()];
        T::widen_slice(&all, &mut wide);
        let mut values = Vec::new();
        for (half, wide) in all.iter().zip(&wide) {
            let expected = half.widen();
            assert!(
                wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan()),
                "{expected}"
            );
            let middle = wide.to_bits() | 0x1000;
            values.extend([
                *wide,
                f32::from_bits(middle),
                f32::from_bits(middle - 1),
                f32::from_bits(middle + 1),
            ]);
            values.extend([0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(wide.to_bits() | low)));
        }
        // Lengths with a remainder after the whole vectors.
        for len in (0..40).chain([values.len()]) {
            let mut narrow = vec![T::narrow(0.0); len];
            T::narrow_slice(&values[..len], &mut narrow);
            for (value, narrow) in values.iter().zip(narrow) {
                let expected = T::narrow(*value);
                let nan = narrow.widen().is_nan() && value.is_nan();
                assert!(bits(narrow) == bits(expected) || nan, "{value}");
            }
        }
    }

    #[test]
    fn slices_convert_as_their_elements_do() {
        agrees(f16::from_bits, f16::to_bits);
        agrees(bf16::from_bits, bf16::to_bits);
    }
}
