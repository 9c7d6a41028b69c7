//! VOP2: two sources, the second one a vector register.

use super::{Row, fp, int, lane_fn, saturating};
use crate::isa::exec::float as f;
use crate::isa::exec::int::{dot_i, i24, u24};
use crate::isa::exec::lanes::Carry;
use crate::isa::exec::value::{F16, Mask, Pk};
use crate::isa::inst::Flags;

/// A sum or difference with carries in and out.
macro_rules! carry {
    ($n:literal, |$a:ident, $b:ident, $c:ident| $e:expr) => {
        int!($n, |$a: u32, $b: u32, $c: Mask| -> Carry<u32> {
            let ($a, $b, $c) = (u64::from($a), u64::from($b), u64::from($c.0));
            let r: u64 = $e;
            Carry(r as u32, r >> 32 != 0)
        })
        .with(Flags::VCC_SOURCE)
    };
}

const MIDDLE: Flags = Flags::LITERAL_MIDDLE.union(Flags::NO_VOP3).union(Flags::NO_SDWA);
const LAST: Flags = Flags::LITERAL_LAST.union(Flags::NO_VOP3).union(Flags::NO_SDWA);
const DOT: Flags = Flags::ACCUMULATE.union(Flags::NO_VOP3);

pub(super) static VOP2: &[Row] = &[
    (
        0x01,
        int!("v_cndmask_b32", |a: u32, b: u32, c: Mask| -> u32 { if c.0 { b } else { a } })
            .with(Flags::VCC_SOURCE),
    ),
    (
        0x02,
        fp!("v_dot2c_f32_f16", |m, a: Pk<F16>, b: Pk<F16>, c: f32| -> f32 { f::dot2(m, a, b, c) }).with(DOT),
    ),
    (0x03, fp!("v_add_f32", |m, a: f32, b: f32| -> f32 { f::add(m, a, b) })),
    (0x04, fp!("v_sub_f32", |m, a: f32, b: f32| -> f32 { f::sub(m, a, b) })),
    (0x05, fp!("v_subrev_f32", |m, a: f32, b: f32| -> f32 { f::sub(m, b, a) })),
    (
        0x06,
        fp!("v_fmac_legacy_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::fma_legacy(m, a, b, c) })
            .with(Flags::ACCUMULATE),
    ),
    (0x07, fp!("v_mul_legacy_f32", |m, a: f32, b: f32| -> f32 { f::mul_legacy(m, a, b) })),
    (0x08, fp!("v_mul_f32", |m, a: f32, b: f32| -> f32 { f::mul(m, a, b) })),
    (0x09, int!("v_mul_i32_i24", |a: i32, b: i32| -> i32 { i24(a).wrapping_mul(i24(b)) })),
    (
        0x0a,
        int!("v_mul_hi_i32_i24", |a: i32, b: i32| -> i32 {
            ((i64::from(i24(a)) * i64::from(i24(b))) >> 32) as i32
        }),
    ),
    (0x0b, int!("v_mul_u32_u24", |a: u32, b: u32| -> u32 { u24(a).wrapping_mul(u24(b)) })),
    (
        0x0c,
        int!("v_mul_hi_u32_u24", |a: u32, b: u32| -> u32 {
            ((u64::from(u24(a)) * u64::from(u24(b))) >> 32) as u32
        }),
    ),
    (
        0x0d,
        int!("v_dot4c_i32_i8", |a: u32, b: u32, c: u32| -> u32 { c.wrapping_add(dot_i::<8>(a, b) as u32) })
            .with(DOT),
    ),
    (0x0f, fp!("v_min_f32", |m, a: f32, b: f32| -> f32 { f::min(m, a, b) })),
    (0x10, fp!("v_max_f32", |m, a: f32, b: f32| -> f32 { f::max(m, a, b) })),
    (0x11, int!("v_min_i32", |a: i32, b: i32| -> i32 { a.min(b) })),
    (0x12, int!("v_max_i32", |a: i32, b: i32| -> i32 { a.max(b) })),
    (0x13, int!("v_min_u32", |a: u32, b: u32| -> u32 { a.min(b) })),
    (0x14, int!("v_max_u32", |a: u32, b: u32| -> u32 { a.max(b) })),
    (0x16, int!("v_lshrrev_b32", |a: u32, b: u32| -> u32 { b >> (a & 31) })),
    (0x18, int!("v_ashrrev_i32", |a: u32, b: i32| -> i32 { b >> (a & 31) })),
    (0x1a, int!("v_lshlrev_b32", |a: u32, b: u32| -> u32 { b << (a & 31) })),
    (0x1b, int!("v_and_b32", |a: u32, b: u32| -> u32 { a & b })),
    (0x1c, int!("v_or_b32", |a: u32, b: u32| -> u32 { a | b })),
    (0x1d, int!("v_xor_b32", |a: u32, b: u32| -> u32 { a ^ b })),
    (0x1e, int!("v_xnor_b32", |a: u32, b: u32| -> u32 { !(a ^ b) })),
    (
        0x25,
        saturating!("v_add_nc_u32", |a: u32, b: u32| -> u32 { a.wrapping_add(b) }, { a.saturating_add(b) }),
    ),
    (
        0x26,
        saturating!("v_sub_nc_u32", |a: u32, b: u32| -> u32 { a.wrapping_sub(b) }, { a.saturating_sub(b) }),
    ),
    (
        0x27,
        saturating!("v_subrev_nc_u32", |a: u32, b: u32| -> u32 { b.wrapping_sub(a) }, {
            b.saturating_sub(a)
        }),
    ),
    (0x28, carry!("v_add_co_ci_u32", |a, b, c| a + b + c)),
    (0x29, carry!("v_sub_co_ci_u32", |a, b, c| a.wrapping_sub(b + c))),
    (0x2a, carry!("v_subrev_co_ci_u32", |a, b, c| b.wrapping_sub(a + c))),
    (
        0x2b,
        fp!("v_fmac_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::fma(m, a, b, c) }).with(Flags::ACCUMULATE),
    ),
    (0x2c, fp!("v_fmamk_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::fma(m, a, b, c) }).with(MIDDLE)),
    (0x2d, fp!("v_fmaak_f32", |m, a: f32, b: f32, c: f32| -> f32 { f::fma(m, a, b, c) }).with(LAST)),
    (
        0x2f,
        fp!("v_cvt_pkrtz_f16_f32", |m, a: f32, b: f32| -> Pk<F16> {
            Pk(f::narrow_to_zero(m, a), f::narrow_to_zero(m, b))
        }),
    ),
    (0x32, fp!("v_add_f16", |m, a: F16, b: F16| -> F16 { f::add(m, a, b) })),
    (0x33, fp!("v_sub_f16", |m, a: F16, b: F16| -> F16 { f::sub(m, a, b) })),
    (0x34, fp!("v_subrev_f16", |m, a: F16, b: F16| -> F16 { f::sub(m, b, a) })),
    (0x35, fp!("v_mul_f16", |m, a: F16, b: F16| -> F16 { f::mul(m, a, b) })),
    (
        0x36,
        fp!("v_fmac_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::fma(m, a, b, c) }).with(Flags::ACCUMULATE),
    ),
    (0x37, fp!("v_fmamk_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::fma(m, a, b, c) }).with(MIDDLE)),
    (0x38, fp!("v_fmaak_f16", |m, a: F16, b: F16, c: F16| -> F16 { f::fma(m, a, b, c) }).with(LAST)),
    (0x39, fp!("v_max_f16", |m, a: F16, b: F16| -> F16 { f::max(m, a, b) })),
    (0x3a, fp!("v_min_f16", |m, a: F16, b: F16| -> F16 { f::min(m, a, b) })),
    (0x3b, fp!("v_ldexp_f16", |m, a: F16, b: i16| -> F16 { f::ldexp(m, a, b.into()) })),
    (
        0x3c,
        fp!("v_pk_fmac_f16", |m, a: Pk<F16>, b: Pk<F16>, c: Pk<F16>| -> Pk<F16> {
            Pk(f::fma(m, a.0, b.0, c.0), f::fma(m, a.1, b.1, c.1))
        })
        .with(DOT),
    ),
];
