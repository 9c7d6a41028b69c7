//! Vectors of `f32`: one trait for three widths, chosen at run time.
//!
//! The crate is compiled for baseline x86-64. A loop is written once, generic over [`Vector`] and
//! `#[inline(always)]`. [`by_level`] instantiates it inside functions that enable one level's
//! instructions, so that the intrinsics are inlined.

use half::f16;
use std::sync::OnceLock;

/// The instructions that the hot loops may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// The instructions that the crate was compiled for.
    Baseline,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The level of this machine, or a lower one that `BURN_ROCM_CPU_ISA` sets; determined once.
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
            if allowed(&["v3", "v4"])
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Level::Avx2;
            }
        }
        Level::Baseline
    })
}

/// A vector of `f32`.
///
/// # Safety
/// The caller has checked [`level`], because every method may use the instructions of its type's
/// level. Pointers must be valid for [`Vector::LANES`] values, or for `count` floats in
/// [`Vector::store_lanes`].
pub(crate) trait Vector: Copy {
    /// The number of floats.
    const LANES: usize;
    /// The rows of the convolution's largest register tile, and the vectors in each row. Together
    /// with one row's vectors and the factors of two rows, they fit into the registers. With 4 x 3
    /// in 16 registers, the compiler keeps a sum in memory, which halves the speed.
    const TILE: (usize, usize);
    /// A vector of zeros.
    unsafe fn zero() -> Self;
    /// A vector with `value` in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Unaligned load.
    unsafe fn load(from: *const f32) -> Self;
    /// Unaligned store.
    unsafe fn store(self, to: *mut f32);
    /// Stores lanes `first..first + count` to `to..to + count`.
    unsafe fn store_lanes(self, to: *mut f32, first: usize, count: usize);
    /// `self * a + b`, fused if the level has the instruction.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// Lane-wise sum.
    unsafe fn add(self, other: Self) -> Self;
    /// The sum of the lanes, by repeated halving.
    unsafe fn sum(self) -> f32;
    /// Loads and widens `LANES` f16, given as their bits.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Rounds to f16 (nearest, ties to even) and stores; a NaN becomes quiet.
    unsafe fn store_f16(self, to: *mut u16);
    /// Loads and widens `LANES` bf16, given as their bits.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// Rounds to bf16 (nearest, ties to even) and stores; a NaN becomes quiet.
    unsafe fn store_bf16(self, to: *mut u16);
}

/// Four lanes without intrinsics, for the baseline.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

// SAFETY: uses no instruction beyond the baseline.
impl Vector for Portable {
    const LANES: usize = 4;
    const TILE: (usize, usize) = (6, 2);
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
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller vouches for four values.
        let bits = unsafe { from.cast::<[u16; 4]>().read_unaligned() };
        Portable(bits.map(|bits| f16::from_bits(bits).to_f32()))
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        let bits = self.0.map(|value| f16::from_f32(value).to_bits());
        // SAFETY: the caller vouches for four values.
        unsafe { to.cast::<[u16; 4]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller vouches for four values.
        let bits = unsafe { from.cast::<[u16; 4]>().read_unaligned() };
        Portable(bits.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // Without branches, so that the compiler vectorises the loop.
        let bits = self.0.map(|value| {
            let bits = value.to_bits();
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            ((if value.is_nan() { bits | 0x40_0000 } else { rounded }) >> 16) as u16
        });
        // SAFETY: the caller vouches for four values.
        unsafe { to.cast::<[u16; 4]>().write_unaligned(bits) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use core::arch::x86_64::*;

    // SAFETY throughout: by the trait's contract, `level` found the instructions and the caller
    // vouches for pointers.
    #[allow(clippy::undocumented_unsafe_blocks)]
    impl Vector for __m256 {
        const LANES: usize = 8;
        const TILE: (usize, usize) = (6, 2);
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
        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store_f16(self, to: *mut u16) {
            unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, to: *mut u16) {
            unsafe {
                let bits = _mm256_castps_si256(self);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self, self));
                let upper = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
                let packed =
                    _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256::<1>(upper));
                _mm_storeu_si128(to.cast(), packed)
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
            // A masked store touches only the lanes of its mask, so its base may lie before `to`.
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
        #[inline(always)]
        unsafe fn load_f16(from: *const u16) -> Self {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store_f16(self, to: *mut u16) {
            unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            }
        }
        #[inline(always)]
        unsafe fn store_bf16(self, to: *mut u16) {
            unsafe {
                let bits = _mm512_castps_si512(self);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self);
                let upper = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet));
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(upper))
            }
        }
    }
}

/// Declares `fn name(args)`, which runs `generic::<V>(args)` with the vector type of this machine's
/// level.
macro_rules! by_level {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:ident) => {
        $(#[$meta])*
        $vis unsafe fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
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
                // SAFETY: the caller vouches for the arguments; the level names instructions that
                // were found.
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
