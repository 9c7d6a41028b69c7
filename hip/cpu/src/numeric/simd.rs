//! Vectors of `f32`: one trait, three widths, chosen at run time.
//!
//! The crate is compiled for baseline x86-64. A kernel is written once, generic over [`Vector`] and
//! `#[inline(always)]`, and instantiated inside functions that enable the instructions of one level, so that
//! the intrinsics are inlined into code that may use them.

use std::sync::OnceLock;

/// The instructions that the hot loops may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// Whatever the crate was compiled for.
    Baseline,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The level of this machine, or the lower one that `BURN_ROCM_CPU_ISA` asks for; looked up once.
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let limit = crate::settings::settings().ok().and_then(|settings| settings.isa.as_deref());
            let allowed = |isa: &[&str]| limit.is_none_or(|limit| isa.contains(&limit));
            if allowed(&["v4"])
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return Level::Avx512;
            }
            if allowed(&["v3", "v4"]) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Level::Avx2;
            }
        }
        Level::Baseline
    })
}

/// A vector of `f32`.
///
/// # Safety
/// Every method may use the instructions of the implementing type's level: the caller has checked [`level`].
/// Pointers must be valid for [`Vector::LANES`] floats, or for the lanes that the mask names.
pub(crate) trait Vector: Copy {
    /// How many floats.
    const LANES: usize;
    /// Rows of the convolution's largest register tile, and vectors in a row of it: what fits the registers.
    const TILE: (usize, usize);
    /// All lanes zero.
    unsafe fn zero() -> Self;
    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self;
    /// Unaligned load.
    unsafe fn load(from: *const f32) -> Self;
    /// Unaligned store.
    unsafe fn store(self, to: *mut f32);
    /// Stores lanes `first..first + count` at `to..to + count`.
    unsafe fn store_lanes(self, to: *mut f32, first: usize, count: usize);
    /// `self * a + b`, fused where the level has it.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// Lane-wise sum.
    unsafe fn add(self, other: Self) -> Self;
    /// The lanes' sum, halves by halves.
    unsafe fn sum(self) -> f32;
}

/// Four lanes without intrinsics: what the compiler makes of it at the baseline.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

// SAFETY: (trait contract) no instruction beyond the baseline.
impl Vector for Portable {
    const LANES: usize = 4;
    const TILE: (usize, usize) = (4, 3);
    #[inline(always)]
    unsafe fn zero() -> Self {
        Portable([0.0; 4])
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Portable([value; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four floats.
        Portable(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for four floats.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_lanes(self, to: *mut f32, first: usize, count: usize) {
        for lane in 0..count {
            // SAFETY: the caller vouches for `count` floats.
            unsafe { *to.add(lane) = self.0[first + lane] }
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        Portable(core::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Portable(core::array::from_fn(|i| self.0[i] + other.0[i]))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        (self.0[0] + self.0[2]) + (self.0[1] + self.0[3])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use core::arch::x86_64::*;

    // SAFETY throughout: `level` found the instructions, by the trait's contract; the caller vouches for pointers.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Vector for __m256 {
        const LANES: usize = 8;
        const TILE: (usize, usize) = (4, 3);
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { _mm256_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            unsafe { _mm256_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_lanes(self, to: *mut f32, first: usize, count: usize) {
            if count == 8 {
                return unsafe { _mm256_storeu_ps(to, self) };
            }
            let mut lanes = [0.0f32; 8];
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), self) };
            for lane in 0..count {
                unsafe { *to.add(lane) = lanes[first + lane] }
            }
        }
        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            unsafe { _mm256_fmadd_ps(self, a, b) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { _mm256_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
        }
    }

    // SAFETY throughout: as above.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Vector for __m512 {
        const LANES: usize = 16;
        const TILE: (usize, usize) = (8, 3);
        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_lanes(self, to: *mut f32, first: usize, count: usize) {
            let mask = (((1u32 << count) - 1) << first) as __mmask16;
            // A masked store touches only the lanes of its mask, so its base may lie before the row.
            unsafe { _mm512_mask_storeu_ps(to.wrapping_sub(first), mask, self) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            unsafe { _mm512_fmadd_ps(self, a, b) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { _mm512_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            unsafe { _mm512_reduce_add_ps(self) }
        }
    }
}

/// Declares `fn name(args)` that runs `generic::<V>(args)` with the vector of this machine's level.
macro_rules! by_level {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident) => {
        $(#[$meta])*
        $vis unsafe fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $ty),*) {
                // SAFETY: the outer function's contract; the level was checked.
                unsafe { $generic::<core::arch::x86_64::__m256>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            unsafe fn avx512($($arg: $ty),*) {
                // SAFETY: the outer function's contract; the level was checked.
                unsafe { $generic::<core::arch::x86_64::__m512>($($arg),*) }
            }
            match $crate::numeric::simd::level() {
                // SAFETY: the caller vouches for the arguments; the level names instructions that were found.
                $crate::numeric::simd::Level::Baseline => unsafe {
                    $generic::<$crate::numeric::simd::Portable>($($arg),*)
                },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::numeric::simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::numeric::simd::Level::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
pub(crate) use by_level;
