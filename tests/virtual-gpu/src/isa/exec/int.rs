//! Integer operations on one lane's values.

/// `c` bits of `a` from bit `b` on.
#[inline(always)]
pub(crate) fn bfe_u32(a: u32, b: u32, c: u32) -> u32 {
    (a >> (b & 31)) & ((1 << (c & 31)) - 1)
}

/// The same, sign-extended.
#[inline(always)]
pub(crate) fn bfe_i32(a: i32, b: u32, c: u32) -> i32 {
    let (b, c) = (b & 31, c & 31);
    if c == 0 { 0 } else { ((a >> b) << (32 - c)) >> (32 - c) }
}

/// `v_perm_b32`: each byte of `select` names a byte of `high:low`, a sign (8 to 11), 0x00 (12) or 0xff.
#[inline(always)]
pub(crate) fn perm(high: u32, low: u32, select: u32) -> u32 {
    let data = u64::from(high) << 32 | u64::from(low);
    let byte = |k: u32| {
        let s = select >> (8 * k) & 0xff;
        match s {
            0..=7 => (data >> (8 * s)) as u32 & 0xff,
            8..=11 => ((data >> (16 * (s - 8) + 15) & 1) * 0xff) as u32,
            12 => 0,
            _ => 0xff,
        }
    };
    byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
}

/// Leading zeros; -1 for 0.
#[inline(always)]
pub(crate) fn find_high_u32(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.leading_zeros() }
}

/// Leading bits equal to the sign, the sign not counted; -1 for 0 and -1.
#[inline(always)]
pub(crate) fn find_high_i32(a: i32) -> u32 {
    find_high_u32((a ^ a >> 31) as u32)
}

/// Trailing zeros; -1 for 0.
#[inline(always)]
pub(crate) fn find_low(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.trailing_zeros() }
}

/// Sign-extended low 24 bits.
#[inline(always)]
pub(crate) fn i24(a: i32) -> i32 {
    a << 8 >> 8
}

/// Low 24 bits.
#[inline(always)]
pub(crate) fn u24(a: u32) -> u32 {
    a & 0xff_ffff
}

#[inline(always)]
fn bytes(a: u32, b: u32) -> impl Iterator<Item = (u32, u32)> {
    a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(|(x, y)| (x.into(), y.into()))
}

/// Sum of absolute differences of bytes.
#[inline(always)]
pub(crate) fn sad_u8(a: u32, b: u32) -> u32 {
    bytes(a, b).map(|(x, y)| x.abs_diff(y)).sum()
}

/// The same without the bytes whose reference is 0.
#[inline(always)]
pub(crate) fn msad_u8(a: u32, reference: u32) -> u32 {
    bytes(a, reference).map(|(x, y)| if y == 0 { 0 } else { x.abs_diff(y) }).sum()
}

/// Sum of absolute differences of halves.
#[inline(always)]
pub(crate) fn sad_u16(a: u32, b: u32) -> u32 {
    (a & 0xffff).abs_diff(b & 0xffff) + (a >> 16).abs_diff(b >> 16)
}

/// Means of bytes, rounded up where the bit of `round` is set.
#[inline(always)]
pub(crate) fn lerp_u8(a: u32, b: u32, round: u32) -> u32 {
    let byte = |k: u32| ((a >> k & 0xff) + (b >> k & 0xff) + (round >> k & 1)) >> 1 << k;
    byte(0) | byte(8) | byte(16) | byte(24)
}

/// Sum of products of unsigned fields of `BITS` bits.
#[inline(always)]
pub(crate) fn dot_u<const BITS: u32>(a: u32, b: u32) -> u64 {
    let field = |x: u32, k: u32| u64::from(x >> (k * BITS) & ((1 << BITS) - 1));
    (0..32 / BITS).map(|k| field(a, k) * field(b, k)).sum()
}

/// Sum of products of signed fields.
#[inline(always)]
pub(crate) fn dot_i<const BITS: u32>(a: u32, b: u32) -> i64 {
    let field = |x: u32, k: u32| i64::from((x << (32 - BITS - k * BITS)) as i32 >> (32 - BITS));
    (0..32 / BITS).map(|k| field(a, k) * field(b, k)).sum()
}

/// The nearest 32-bit integers.
#[inline(always)]
pub(crate) fn saturate_i32(x: i64) -> u32 {
    x.clamp(i32::MIN.into(), i32::MAX.into()) as u32
}

/// The nearest 32-bit unsigned integer.
#[inline(always)]
pub(crate) fn saturate_u32(x: u64) -> u32 {
    x.min(u32::MAX.into()) as u32
}
