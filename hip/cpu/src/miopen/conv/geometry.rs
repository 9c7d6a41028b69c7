//! The register tiles of this machine's vectors.

use crate::numeric::simd::{Level, Vector, level};

/// Lanes and largest register tile of this machine's vectors.
pub(super) fn geometry() -> (usize, (usize, usize)) {
    fn of<V: Vector>() -> (usize, (usize, usize)) {
        (V::LANES, V::TILE)
    }
    match level() {
        Level::Baseline => of::<crate::numeric::simd::Portable>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => of::<core::arch::x86_64::__m256>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => of::<core::arch::x86_64::__m512>(),
    }
}

/// The output channels of the next register tile: those of the largest tile, or the largest of 4, 2
/// and 1 that is at most `left`.
#[inline(always)]
pub(super) fn block(left: usize, tile: (usize, usize)) -> usize {
    [tile.0, 4, 2].into_iter().find(|&rows| rows <= left).unwrap_or(1)
}
