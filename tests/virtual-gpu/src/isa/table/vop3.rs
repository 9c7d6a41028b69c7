//! What only the VOP3 encoding has.

use super::{Row, fp, int, lane_fn, saturating};
use crate::isa::exec::Op;
use crate::isa::exec::crosslane as x;
use crate::isa::exec::division as d;
use crate::isa::exec::float as f;
use crate::isa::exec::int::*;
use crate::isa::exec::lanes::Carry;
use crate::isa::exec::value::{F16, LaneIndex, Pk};
use crate::isa::inst::{Flags, Ty};

const B32_X3: [Ty; 3] = [Ty::B32; 3];
const B32_X2: [Ty; 3] = [Ty::B32, Ty::B32, Ty::None];

/// A three-operand instruction of integers of one type.
macro_rules! three {
    ($n:literal, $t:ty, |$a:ident, $b:ident, $c:ident| $e:expr) => {
        int!($n, |$a: $t, $b: $t, $c: $t| -> $t { $e })
    };
}

/// A known instruction without an implementation.
macro_rules! absent {
    ($n:literal) => {
        Op::lacking($n, Ty::B32, B32_X3)
    };
    ($n:literal, $dst:expr, $src:expr) => {
        Op::lacking($n, $dst, $src)
    };
}

pub(super) static VOP3: &[Row] = &[
    (0x140, fp!("v_fma_legacy_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::fma_legacy(m, a, b, c) })),
    (
        0x142,
        int!("v_mad_i32_i24", |a: i32, b: i32, c: i32| -> i32 {
            i24(a).wrapping_mul(i24(b)).wrapping_add(c)
        }),
    ),
    (0x143, three!("v_mad_u32_u24", u32, |a, b, c| u24(a).wrapping_mul(u24(b)).wrapping_add(c))),
    (0x144, absent!("v_cubeid_f32")),
    (0x145, absent!("v_cubesc_f32")),
    (0x146, absent!("v_cubetc_f32")),
    (0x147, absent!("v_cubema_f32")),
    (0x148, three!("v_bfe_u32", u32, |a, b, c| bfe_u32(a, b, c))),
    (0x149, int!("v_bfe_i32", |a: i32, b: u32, c: u32| -> i32 { bfe_i32(a, b, c) })),
    (0x14a, three!("v_bfi_b32", u32, |a, b, c| a & b | !a & c)),
    (0x14b, fp!("v_fma_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::fma(m, a, b, c) })),
    (0x14c, fp!("v_fma_f64", |m, a: f64, b: f64, c: f64| -> f64 { f::fma(m, a, b, c) })),
    (0x14d, three!("v_lerp_u8", u32, |a, b, c| lerp_u8(a, b, c))),
    (0x14e, three!("v_alignbit_b32", u32, |a, b, c| align(a, b, c & 31))),
    (0x14f, three!("v_alignbyte_b32", u32, |a, b, c| align(a, b, 8 * (c & 3)))),
    (0x150, absent!("v_mullit_f32")),
    (0x151, fp!("v_min3_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::min3(m, a, b, c) })),
    (0x152, three!("v_min3_i32", i32, |a, b, c| a.min(b).min(c))),
    (0x153, three!("v_min3_u32", u32, |a, b, c| a.min(b).min(c))),
    (0x154, fp!("v_max3_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::max3(m, a, b, c) })),
    (0x155, three!("v_max3_i32", i32, |a, b, c| a.max(b).max(c))),
    (0x156, three!("v_max3_u32", u32, |a, b, c| a.max(b).max(c))),
    (0x157, fp!("v_med3_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::med3(m, a, b, c) })),
    (0x158, three!("v_med3_i32", i32, |a, b, c| median(a, b, c))),
    (0x159, three!("v_med3_u32", u32, |a, b, c| median(a, b, c))),
    (0x15a, three!("v_sad_u8", u32, |a, b, c| sad_u8(a, b).wrapping_add(c))),
    (0x15b, three!("v_sad_hi_u8", u32, |a, b, c| (sad_u8(a, b) << 16).wrapping_add(c))),
    (0x15c, three!("v_sad_u16", u32, |a, b, c| sad_u16(a, b).wrapping_add(c))),
    (0x15d, three!("v_sad_u32", u32, |a, b, c| a.abs_diff(b).wrapping_add(c))),
    (
        0x15e,
        fp!("v_cvt_pk_u8_f32", |m, a: f32, b: u32, c: u32| -> u32 {
            let byte = f::input(m, a).round_ties_even() as u8;
            let shift = 8 * (b & 3);
            c & !(0xff << shift) | u32::from(byte) << shift
        }),
    ),
    (0x15f, fp!("v_div_fixup_f32", |m, a: f32, b: f32, c: f32| -> f32 { d::fixup(m, a, b, c) })),
    (0x160, fp!("v_div_fixup_f64", |m, a: f64, b: f64, c: f64| -> f64 { d::fixup(m, a, b, c) })),
    (0x164, fp!("v_add_f64", |m, a: f64, b: f64| -> f64 { f::add(m, a, b) })),
    (0x165, fp!("v_mul_f64", |m, a: f64, b: f64| -> f64 { f::mul(m, a, b) })),
    (0x166, fp!("v_min_f64", |m, a: f64, b: f64| -> f64 { f::min(m, a, b) })),
    (0x167, fp!("v_max_f64", |m, a: f64, b: f64| -> f64 { f::max(m, a, b) })),
    (0x168, fp!("v_ldexp_f64", |m, a: f64, b: i32| -> f64 { f::ldexp(m, a, b) })),
    (0x169, int!("v_mul_lo_u32", |a: u32, b: u32| -> u32 { a.wrapping_mul(b) })),
    (0x16a, int!("v_mul_hi_u32", |a: u32, b: u32| -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 })),
    (0x16c, int!("v_mul_hi_i32", |a: i32, b: i32| -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 })),
    (0x16d, int!("v_div_scale_f32", |a: f32, b: f32, c: f32| -> Carry<f32> { d::scale(a, b, c) })),
    (0x16e, int!("v_div_scale_f64", |a: f64, b: f64, c: f64| -> Carry<f64> { d::scale(a, b, c) })),
    (0x16f, Op::wide::<d::FmasBody<f32>>("v_div_fmas_f32", Ty::F32, [Ty::F32; 3])),
    (0x170, Op::wide::<d::FmasBody<f64>>("v_div_fmas_f64", Ty::F64, [Ty::F64; 3])),
    (0x171, three!("v_msad_u8", u32, |a, b, c| msad_u8(a, b).wrapping_add(c))),
    (0x172, int!("v_qsad_pk_u16_u8", |a: u64, b: u32, c: u64| -> u64 { qsad(a, b, c, sad_u8) })),
    (0x173, int!("v_mqsad_pk_u16_u8", |a: u64, b: u32, c: u64| -> u64 { qsad(a, b, c, msad_u8) })),
    (0x174, int!("v_trig_preop_f64", |a: f64, b: u32| -> f64 { d::trig_preop(a, b) })),
    (0x175, absent!("v_mqsad_u32_u8", Ty::Wide(4), [Ty::B64, Ty::B32, Ty::Wide(4)])),
    (
        0x176,
        int!("v_mad_u64_u32", |a: u32, b: u32, c: u64| -> Carry<u64> {
            let (r, carry) = (u64::from(a) * u64::from(b)).overflowing_add(c);
            Carry(r, carry)
        }),
    ),
    (
        0x177,
        int!("v_mad_i64_i32", |a: i32, b: i32, c: i64| -> Carry<i64> {
            let (r, carry) = (i64::from(a) * i64::from(b)).overflowing_add(c);
            Carry(r, carry)
        }),
    ),
    (0x178, three!("v_xor3_b32", u32, |a, b, c| a ^ b ^ c)),
    (0x2ff, int!("v_lshlrev_b64", |a: u32, b: u64| -> u64 { b << (a & 63) })),
    (0x300, int!("v_lshrrev_b64", |a: u32, b: u64| -> u64 { b >> (a & 63) })),
    (0x301, int!("v_ashrrev_i64", |a: u32, b: i64| -> i64 { b >> (a & 63) })),
    (
        0x303,
        saturating!("v_add_nc_u16", |a: u16, b: u16| -> u16 { a.wrapping_add(b) }, { a.saturating_add(b) }),
    ),
    (
        0x304,
        saturating!("v_sub_nc_u16", |a: u16, b: u16| -> u16 { a.wrapping_sub(b) }, { a.saturating_sub(b) }),
    ),
    (0x305, int!("v_mul_lo_u16", |a: u16, b: u16| -> u16 { a.wrapping_mul(b) })),
    (0x307, int!("v_lshrrev_b16", |a: u16, b: u16| -> u16 { b >> (a & 15) })),
    (0x308, int!("v_ashrrev_i16", |a: u16, b: i16| -> i16 { b >> (a & 15) })),
    (0x309, int!("v_max_u16", |a: u16, b: u16| -> u16 { a.max(b) })),
    (0x30a, int!("v_max_i16", |a: i16, b: i16| -> i16 { a.max(b) })),
    (0x30b, int!("v_min_u16", |a: u16, b: u16| -> u16 { a.min(b) })),
    (0x30c, int!("v_min_i16", |a: i16, b: i16| -> i16 { a.min(b) })),
    (
        0x30d,
        saturating!("v_add_nc_i16", |a: i16, b: i16| -> i16 { a.wrapping_add(b) }, { a.saturating_add(b) }),
    ),
    (
        0x30e,
        saturating!("v_sub_nc_i16", |a: i16, b: i16| -> i16 { a.wrapping_sub(b) }, { a.saturating_sub(b) }),
    ),
    (
        0x30f,
        saturating!("v_add_co_u32", |a: u32, b: u32| -> Carry<u32> { add_carry(a, b) }, {
            let Carry(r, carry) = add_carry(a, b);
            Carry(if carry { u32::MAX } else { r }, carry)
        }),
    ),
    (
        0x310,
        saturating!("v_sub_co_u32", |a: u32, b: u32| -> Carry<u32> { sub_borrow(a, b) }, {
            let Carry(r, borrow) = sub_borrow(a, b);
            Carry(if borrow { 0 } else { r }, borrow)
        }),
    ),
    (0x311, int!("v_pack_b32_f16", |a: F16, b: F16| -> u32 { u32::from(a.0) | u32::from(b.0) << 16 })),
    (
        0x312,
        fp!("v_cvt_pknorm_i16_f16", |m, a: F16, b: F16| -> Pk<u16> {
            let half = |x| f::normalised(f::widen(m, x), -1.0, 32767.0);
            Pk(half(a), half(b))
        }),
    ),
    (
        0x313,
        fp!("v_cvt_pknorm_u16_f16", |m, a: F16, b: F16| -> Pk<u16> {
            let half = |x| f::normalised(f::widen(m, x), 0.0, 65535.0);
            Pk(half(a), half(b))
        }),
    ),
    (0x314, int!("v_lshlrev_b16", |a: u16, b: u16| -> u16 { b << (a & 15) })),
    (
        0x319,
        saturating!("v_subrev_co_u32", |a: u32, b: u32| -> Carry<u32> { sub_borrow(b, a) }, {
            let Carry(r, borrow) = sub_borrow(b, a);
            Carry(if borrow { 0 } else { r }, borrow)
        }),
    ),
    (
        0x340,
        saturating!("v_mad_u16", |a: u16, b: u16, c: u16| -> u16 { a.wrapping_mul(b).wrapping_add(c) }, {
            (u32::from(a) * u32::from(b)).saturating_add(c.into()).min(0xffff) as u16
        }),
    ),
    (0x344, three!("v_perm_b32", u32, |a, b, c| perm(a, b, c))),
    (0x345, three!("v_xad_u32", u32, |a, b, c| (a ^ b).wrapping_add(c))),
    (0x346, three!("v_lshl_add_u32", u32, |a, b, c| (a << (b & 31)).wrapping_add(c))),
    (0x347, three!("v_add_lshl_u32", u32, |a, b, c| a.wrapping_add(b) << (c & 31))),
    (0x34b, fp!("v_fma_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::fma(m, a, b, c) })),
    (0x351, fp!("v_min3_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::min3(m, a, b, c) })),
    (0x352, three!("v_min3_i16", i16, |a, b, c| a.min(b).min(c))),
    (0x353, three!("v_min3_u16", u16, |a, b, c| a.min(b).min(c))),
    (0x354, fp!("v_max3_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::max3(m, a, b, c) })),
    (0x355, three!("v_max3_i16", i16, |a, b, c| a.max(b).max(c))),
    (0x356, three!("v_max3_u16", u16, |a, b, c| a.max(b).max(c))),
    (0x357, fp!("v_med3_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::med3(m, a, b, c) })),
    (0x358, three!("v_med3_i16", i16, |a, b, c| median(a, b, c))),
    (0x359, three!("v_med3_u16", u16, |a, b, c| median(a, b, c))),
    (
        0x35e,
        saturating!("v_mad_i16", |a: i16, b: i16, c: i16| -> i16 { a.wrapping_mul(b).wrapping_add(c) }, {
            (i64::from(a) * i64::from(b) + i64::from(c)).clamp(i16::MIN.into(), i16::MAX.into()) as i16
        }),
    ),
    (0x35f, fp!("v_div_fixup_f16", |m, a: F16, b: F16, c: F16| -> F16 { d::fixup(m, a, b, c) })),
    (0x360, Op::special::<x::ReadLane>("v_readlane_b32", Ty::B32, B32_X2).with(Flags::SCALAR_DST)),
    (0x361, Op::special::<x::WriteLane>("v_writelane_b32", Ty::B32, B32_X2)),
    (0x362, fp!("v_ldexp_f32", |m, a: f32, b: i32| -> f32 { f::ldexp(m, a, b) })),
    (0x363, int!("v_bfm_b32", |a: u32, b: u32| -> u32 { ((1 << (a & 31)) - 1) << (b & 31) })),
    (0x364, int!("v_bcnt_u32_b32", |a: u32, b: u32| -> u32 { a.count_ones().wrapping_add(b) })),
    (
        0x365,
        int!("v_mbcnt_lo_u32_b32", |a: u32, b: u32, l: LaneIndex| -> u32 {
            (a & ((1 << l.0) - 1)).count_ones().wrapping_add(b)
        }),
    ),
    // Counts in the upper 32 lanes of a wave of 64, which a wave of 32 does not have.
    (0x366, int!("v_mbcnt_hi_u32_b32", |_a: u32, b: u32| -> u32 { b })),
    (
        0x368,
        fp!("v_cvt_pknorm_i16_f32", |m, a: f32, b: f32| -> Pk<u16> {
            let half = |x| f::normalised(f::input(m, x), -1.0, 32767.0);
            Pk(half(a), half(b))
        }),
    ),
    (
        0x369,
        fp!("v_cvt_pknorm_u16_f32", |m, a: f32, b: f32| -> Pk<u16> {
            let half = |x| f::normalised(f::input(m, x), 0.0, 65535.0);
            Pk(half(a), half(b))
        }),
    ),
    (0x36a, int!("v_cvt_pk_u16_u32", |a: u32, b: u32| -> u32 { a.min(0xffff) | b.min(0xffff) << 16 })),
    (
        0x36b,
        int!("v_cvt_pk_i16_i32", |a: i32, b: i32| -> u32 {
            let half = |x: i32| u32::from(x.clamp(i16::MIN.into(), i16::MAX.into()) as u16);
            half(a) | half(b) << 16
        }),
    ),
    (0x36d, three!("v_add3_u32", u32, |a, b, c| a.wrapping_add(b).wrapping_add(c))),
    (0x36f, three!("v_lshl_or_b32", u32, |a, b, c| a << (b & 31) | c)),
    (0x371, three!("v_and_or_b32", u32, |a, b, c| a & b | c)),
    (0x372, three!("v_or3_b32", u32, |a, b, c| a | b | c)),
    (
        0x373,
        saturating!(
            "v_mad_u32_u16",
            |a: u16, b: u16, c: u32| -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) },
            { (u32::from(a) * u32::from(b)).saturating_add(c) }
        ),
    ),
    (
        0x375,
        saturating!(
            "v_mad_i32_i16",
            |a: i16, b: i16, c: i32| -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) },
            { (i32::from(a) * i32::from(b)).saturating_add(c) }
        ),
    ),
    (
        0x376,
        saturating!("v_sub_nc_i32", |a: i32, b: i32| -> i32 { a.wrapping_sub(b) }, { a.saturating_sub(b) }),
    ),
    (0x377, Op::special::<x::PermLane16>("v_permlane16_b32", Ty::B32, B32_X3).with(Flags::VGPR_ONLY)),
    (0x378, Op::special::<x::PermLaneX16>("v_permlanex16_b32", Ty::B32, B32_X3).with(Flags::VGPR_ONLY)),
    (
        0x37f,
        saturating!("v_add_nc_i32", |a: i32, b: i32| -> i32 { a.wrapping_add(b) }, { a.saturating_add(b) }),
    ),
];

#[inline(always)]
fn add_carry(a: u32, b: u32) -> Carry<u32> {
    let (r, carry) = a.overflowing_add(b);
    Carry(r, carry)
}

#[inline(always)]
fn sub_borrow(a: u32, b: u32) -> Carry<u32> {
    let (r, borrow) = a.overflowing_sub(b);
    Carry(r, borrow)
}

/// The middle one of three.
#[inline(always)]
fn median<T: Ord + Copy>(a: T, b: T, c: T) -> T {
    a.min(b).max(a.max(b).min(c))
}

/// 32 bits of `a:b`, from bit `shift` on.
#[inline(always)]
fn align(a: u32, b: u32, shift: u32) -> u32 {
    ((u64::from(a) << 32 | u64::from(b)) >> shift) as u32
}

/// Four sums of absolute differences, of `reference` and of `a` from byte 0, 1, 2, 3 on, added to `c`'s halves.
#[inline(always)]
fn qsad(a: u64, reference: u32, c: u64, sum: impl Fn(u32, u32) -> u32) -> u64 {
    let half = |k: u32| {
        let differences = sum((a >> (8 * k)) as u32, reference);
        u64::from(((c >> (16 * k)) as u16).saturating_add(differences as u16)) << (16 * k)
    };
    half(0) | half(1) | half(2) | half(3)
}
