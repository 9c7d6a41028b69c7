//! VOP3P: packed halves, dot products, mixed precision.

use super::{Row, fp, int, lane_fn, saturating};
use crate::isa::exec::float as f;
use crate::isa::exec::int::{dot_i, dot_u, saturate_i32, saturate_u32};
use crate::isa::exec::value::{F16, Mix, Pk};
use crate::isa::inst::Flags;

/// Both halves alike: two operands, or three.
macro_rules! pk {
    ($n:literal, $t:ty, |$a:ident, $b:ident| $e:expr) => {
        int!($n, |a: Pk<$t>, b: Pk<$t>| -> Pk<$t> {
            let half = |$a: $t, $b: $t| -> $t { $e };
            Pk(half(a.0, b.0), half(a.1, b.1))
        })
    };
    ($n:literal, $t:ty, |$a:ident, $b:ident| $e:expr, $s:expr) => {
        saturating!(
            $n,
            |a: Pk<$t>, b: Pk<$t>| -> Pk<$t> {
                let half = |$a: $t, $b: $t| -> $t { $e };
                Pk(half(a.0, b.0), half(a.1, b.1))
            },
            {
                let half = |$a: $t, $b: $t| -> $t { $s };
                Pk(half(a.0, b.0), half(a.1, b.1))
            }
        )
    };
    ($n:literal, $t:ty, |$a:ident, $b:ident, $c:ident| $e:expr, $s:expr) => {
        saturating!(
            $n,
            |a: Pk<$t>, b: Pk<$t>, c: Pk<$t>| -> Pk<$t> {
                let half = |$a: $t, $b: $t, $c: $t| -> $t { $e };
                Pk(half(a.0, b.0, c.0), half(a.1, b.1, c.1))
            },
            {
                let half = |$a: $t, $b: $t, $c: $t| -> $t { $s };
                Pk(half(a.0, b.0, c.0), half(a.1, b.1, c.1))
            }
        )
    };
}

/// Both halves as floats.
macro_rules! pk_f16 {
    ($n:literal, |$m:ident, $a:ident, $b:ident| $e:expr) => {
        fp!($n, |$m, a: Pk<F16>, b: Pk<F16>| -> Pk<F16> {
            let half = |$a: F16, $b: F16| -> F16 { $e };
            Pk(half(a.0, b.0), half(a.1, b.1))
        })
    };
}

/// A dot product of integers, with saturation by the clamp bit.
macro_rules! dot {
    ($n:literal, signed $bits:literal) => {
        saturating!($n, |a: u32, b: u32, c: u32| -> u32 { (dot_i::<$bits>(a, b) as u32).wrapping_add(c) }, {
            saturate_i32(dot_i::<$bits>(a, b) + i64::from(c as i32))
        })
    };
    ($n:literal, unsigned $bits:literal) => {
        saturating!($n, |a: u32, b: u32, c: u32| -> u32 { (dot_u::<$bits>(a, b) as u32).wrapping_add(c) }, {
            saturate_u32(dot_u::<$bits>(a, b) + u64::from(c))
        })
    };
    // Halves can be selected.
    ($n:literal, halves $t:ty, $wide:ty, $saturate:ident) => {
        saturating!(
            $n,
            |a: Pk<$t>, b: Pk<$t>, c: $wide| -> u32 {
                let product = |x: $t, y: $t| (i64::from(x) * i64::from(y)) as u32;
                product(a.0, b.0).wrapping_add(product(a.1, b.1)).wrapping_add(c as u32)
            },
            {
                let product = |x: $t, y: $t| i64::from(x) * i64::from(y);
                let sum = product(a.0, b.0) + product(a.1, b.1) + i64::from(c);
                $saturate(sum as _)
            }
        )
    };
}

pub(super) static VOP3P: &[Row] = &[
    (
        0x00,
        pk!("v_pk_mad_i16", i16, |a, b, c| a.wrapping_mul(b).wrapping_add(c), {
            (i64::from(a) * i64::from(b) + i64::from(c)).clamp(i16::MIN.into(), i16::MAX.into()) as i16
        }),
    ),
    (0x01, pk!("v_pk_mul_lo_u16", u16, |a, b| a.wrapping_mul(b))),
    (0x02, pk!("v_pk_add_i16", i16, |a, b| a.wrapping_add(b), a.saturating_add(b))),
    (0x03, pk!("v_pk_sub_i16", i16, |a, b| a.wrapping_sub(b), a.saturating_sub(b))),
    (0x04, pk!("v_pk_lshlrev_b16", u16, |a, b| b << (a & 15))),
    (0x05, pk!("v_pk_lshrrev_b16", u16, |a, b| b >> (a & 15))),
    (0x06, pk!("v_pk_ashrrev_i16", i16, |a, b| b >> (a & 15))),
    (0x07, pk!("v_pk_max_i16", i16, |a, b| a.max(b))),
    (0x08, pk!("v_pk_min_i16", i16, |a, b| a.min(b))),
    (
        0x09,
        pk!("v_pk_mad_u16", u16, |a, b, c| a.wrapping_mul(b).wrapping_add(c), {
            (u32::from(a) * u32::from(b)).saturating_add(c.into()).min(0xffff) as u16
        }),
    ),
    (0x0a, pk!("v_pk_add_u16", u16, |a, b| a.wrapping_add(b), a.saturating_add(b))),
    (0x0b, pk!("v_pk_sub_u16", u16, |a, b| a.wrapping_sub(b), a.saturating_sub(b))),
    (0x0c, pk!("v_pk_max_u16", u16, |a, b| a.max(b))),
    (0x0d, pk!("v_pk_min_u16", u16, |a, b| a.min(b))),
    (
        0x0e,
        fp!("v_pk_fma_f16", |m, a: Pk<F16>, b: Pk<F16>, c: Pk<F16>| -> Pk<F16> {
            Pk(f::fma(m, a.0, b.0, c.0), f::fma(m, a.1, b.1, c.1))
        }),
    ),
    (0x0f, pk_f16!("v_pk_add_f16", |m, a, b| f::add(m, a, b))),
    (0x10, pk_f16!("v_pk_mul_f16", |m, a, b| f::mul(m, a, b))),
    (0x11, pk_f16!("v_pk_min_f16", |m, a, b| f::min(m, a, b))),
    (0x12, pk_f16!("v_pk_max_f16", |m, a, b| f::max(m, a, b))),
    (0x13, fp!("v_dot2_f32_f16", |m, a: Pk<F16>, b: Pk<F16>, c: f32| -> f32 { f::dot2(m, a, b, c) })),
    (0x14, dot!("v_dot2_i32_i16", halves i16, i32, saturate_i32)),
    (0x15, dot!("v_dot2_u32_u16", halves u16, u32, saturate_u32)),
    (0x16, dot!("v_dot4_i32_i8", signed 8)),
    (0x17, dot!("v_dot4_u32_u8", unsigned 8)),
    (0x18, dot!("v_dot8_i32_i4", signed 4)),
    (0x19, dot!("v_dot8_u32_u4", unsigned 4)),
    (0x20, fp!("v_fma_mix_f32", |m, a: Mix, b: Mix, c: Mix| -> f32 { f::fma(m, a.0, b.0, c.0) })),
    // The sum is rounded to 32 bits first, as by the instructions that this one replaces.
    (
        0x21,
        fp!("v_fma_mixlo_f16", |m, a: Mix, b: Mix, c: Mix| -> F16 { f::narrow(m, f::fma(m, a.0, b.0, c.0)) }),
    ),
    (
        0x22,
        fp!("v_fma_mixhi_f16", |m, a: Mix, b: Mix, c: Mix| -> F16 { f::narrow(m, f::fma(m, a.0, b.0, c.0)) })
            .with(Flags::HIGH_HALF),
    ),
];
