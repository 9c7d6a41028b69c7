//! 16-bit floats, by branch-free conversions that vectorise.
//!
//! The crate `half` queries the host's features at each conversion, which prevents loops over lanes
//! from being vectorised. The tests use its conversions as the oracle.

/// The value of a 16-bit float, exact.
#[inline(always)]
pub(crate) fn to_f32(h: u16) -> f32 {
    let h = u32::from(h);
    let magnitude = (h & 0x7fff) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, and normalises denormals.
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7f80_0000;
    f32::from_bits((if h & 0x7c00 == 0x7c00 { special } else { finite }) | (h & 0x8000) << 16)
}

/// Rounds to nearest even. A NaN keeps its sign and upper payload, and becomes quiet.
#[inline(always)]
pub(crate) fn from_f32(f: f32) -> u16 {
    let bits = f.to_bits();
    let sign = bits >> 16 & 0x8000;
    let u = bits & 0x7fff_ffff;
    let nan = 0x7e00 | (u >> 13 & 0x3ff);
    let large = if u > 0x7f80_0000 { nan } else { 0x7c00 };
    // Below 2^-14: adding 2^-14 * 2^10 * 1/2 leaves the rounded result in the low bits.
    const DENORMAL: f32 = f32::from_bits(((127 - 15) + (23 - 10) + 1) << 23);
    let small = (f32::from_bits(u) + DENORMAL).to_bits().wrapping_sub(DENORMAL.to_bits());
    let normal = u.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + (u >> 13 & 1)) >> 13;
    let magnitude = if u >= 0x4780_0000 {
        large
    } else if u < 0x3880_0000 {
        small
    } else {
        normal
    };
    (magnitude | sign) as u16
}

/// `a * b + c` with a single rounding.
#[inline(always)]
pub(crate) fn fma(a: u16, b: u16, c: u16) -> u16 {
    // The product of two 11-bit significands is exact in 24 bits.
    from_f32(add_to_odd(to_f32(a) * to_f32(b), to_f32(c)))
}

/// `p + c`, inexact results rounded to the odd neighbour, so that a further rounding to 22 bits or
/// fewer gives what a single rounding would.
///
/// Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Comp. 57 (2008).
#[inline(always)]
fn add_to_odd(p: f32, c: f32) -> f32 {
    let sum = p + c;
    let virtual_c = sum - p;
    let error = (p - (sum - virtual_c)) + (c - virtual_c);
    let bits = sum.to_bits();
    // Away from zero if the error has the sum's sign, else towards it.
    let odd = if (error.to_bits() ^ bits) >> 31 == 0 { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if error.abs() > 0.0 && bits & 1 == 0 { odd } else { bits })
}

/// Rounds to nearest even, with a single rounding.
#[inline(always)]
pub(crate) fn from_f64(d: f64) -> u16 {
    let f = d as f32;
    let back = f64::from(f);
    let bits = f.to_bits();
    let odd = if back.abs() < d.abs() { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    from_f32(f32::from_bits(if back != d && !d.is_nan() && f.is_finite() && bits & 1 == 0 {
        odd
    } else {
        bits
    }))
}
