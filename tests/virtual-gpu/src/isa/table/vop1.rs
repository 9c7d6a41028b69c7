//! VOP1: one source.

use super::{Row, fp, int, lane_fn};
use crate::isa::exec::Op;
use crate::isa::exec::crosslane as x;
use crate::isa::exec::float as f;
use crate::isa::exec::int;
use crate::isa::exec::scalar::Nop;
use crate::isa::exec::value::F16;
use crate::isa::inst::{Flags, Ty};

const B32: [Ty; 3] = [Ty::B32, Ty::None, Ty::None];
const NONE: [Ty; 3] = [Ty::None; 3];
const REGISTERS: Flags = Flags::VGPR_ONLY.union(Flags::NO_VOP3).union(Flags::NO_SDWA);

/// A transcendental on 32 bits, evaluated on 64.
macro_rules! transcendental {
    ($n:literal, |$x:ident| $e:expr) => {
        int!($n, |a: f32| -> f32 { f::transcendental(a, |$x: f64| $e) })
    };
}

/// A transcendental on 16 bits.
macro_rules! transcendental16 {
    ($n:literal, |$x:ident| $e:expr) => {
        fp!($n, |m, a: F16| -> F16 { f::transcendental16(m, a, |$x: f64| $e) })
    };
}

/// A rounding to integral values, in one of the three formats.
macro_rules! integral {
    ($n:literal, $t:ty, $f:ident) => {
        fp!($n, |m, a: $t| -> $t { f::integral(m, a, f::Float::$f) })
    };
}

pub(super) static VOP1: &[Row] = &[
    (0x00, Op::special::<Nop>("v_nop", Ty::None, NONE)),
    (0x01, int!("v_mov_b32", |a: u32| -> u32 { a })),
    (
        0x02,
        Op::special::<x::ReadFirstLane>("v_readfirstlane_b32", Ty::B32, B32)
            .with(Flags::SCALAR_DST.union(Flags::NO_SDWA).union(Flags::NO_VOP3)),
    ),
    (0x03, int!("v_cvt_i32_f64", |a: f64| -> i32 { a as i32 })),
    (0x04, int!("v_cvt_f64_i32", |a: i32| -> f64 { a.into() })),
    (0x05, fp!("v_cvt_f32_i32", |m, a: i32| -> f32 { f::round_from(m, a.into()) })),
    (0x06, fp!("v_cvt_f32_u32", |m, a: u32| -> f32 { f::round_from(m, a.into()) })),
    (0x07, fp!("v_cvt_u32_f32", |m, a: f32| -> u32 { f::input(m, a) as u32 })),
    (0x08, fp!("v_cvt_i32_f32", |m, a: f32| -> i32 { f::input(m, a) as i32 })),
    (0x0a, fp!("v_cvt_f16_f32", |m, a: f32| -> F16 { f::narrow(m, a) })),
    (0x0b, fp!("v_cvt_f32_f16", |m, a: F16| -> f32 { f::widen(m, a) })),
    (0x0c, int!("v_cvt_rpi_i32_f32", |a: f32| -> i32 { (f64::from(a) + 0.5).floor() as i32 })),
    (0x0d, int!("v_cvt_flr_i32_f32", |a: f32| -> i32 { a.floor() as i32 })),
    (0x0e, int!("v_cvt_off_f32_i4", |a: i32| -> f32 { (a << 28 >> 28) as f32 / 16.0 })),
    (0x0f, fp!("v_cvt_f32_f64", |m, a: f64| -> f32 { f::round_from(m, f::input(m, a)) })),
    (0x10, fp!("v_cvt_f64_f32", |m, a: f32| -> f64 { f::input(m, a).into() })),
    (0x11, int!("v_cvt_f32_ubyte0", |a: u32| -> f32 { (a & 0xff) as f32 })),
    (0x12, int!("v_cvt_f32_ubyte1", |a: u32| -> f32 { (a >> 8 & 0xff) as f32 })),
    (0x13, int!("v_cvt_f32_ubyte2", |a: u32| -> f32 { (a >> 16 & 0xff) as f32 })),
    (0x14, int!("v_cvt_f32_ubyte3", |a: u32| -> f32 { (a >> 24) as f32 })),
    (0x15, int!("v_cvt_u32_f64", |a: f64| -> u32 { a as u32 })),
    (0x16, int!("v_cvt_f64_u32", |a: u32| -> f64 { a.into() })),
    (0x17, integral!("v_trunc_f64", f64, trunc)),
    (0x18, integral!("v_ceil_f64", f64, ceil)),
    (0x19, integral!("v_rndne_f64", f64, rint)),
    (0x1a, integral!("v_floor_f64", f64, floor)),
    (0x1b, Op::special::<Nop>("v_pipeflush", Ty::None, NONE)),
    (0x20, fp!("v_fract_f32", |m, a: f32| -> f32 { f::fract(m, a) })),
    (0x21, integral!("v_trunc_f32", f32, trunc)),
    (0x22, integral!("v_ceil_f32", f32, ceil)),
    (0x23, integral!("v_rndne_f32", f32, rint)),
    (0x24, integral!("v_floor_f32", f32, floor)),
    (0x25, transcendental!("v_exp_f32", |x| x.exp2())),
    (0x27, transcendental!("v_log_f32", |x| x.log2())),
    (0x2a, transcendental!("v_rcp_f32", |x| 1.0 / x)),
    (0x2b, transcendental!("v_rcp_iflag_f32", |x| 1.0 / x)),
    (0x2e, transcendental!("v_rsq_f32", |x| 1.0 / x.sqrt())),
    (0x2f, int!("v_rcp_f64", |a: f64| -> f64 { 1.0 / a })),
    (0x31, int!("v_rsq_f64", |a: f64| -> f64 { 1.0 / a.sqrt() })),
    (0x33, transcendental!("v_sqrt_f32", |x| x.sqrt())),
    (0x34, int!("v_sqrt_f64", |a: f64| -> f64 { a.sqrt() })),
    (0x35, transcendental!("v_sin_f32", |x| f::sin_turns(x))),
    (0x36, transcendental!("v_cos_f32", |x| f::cos_turns(x))),
    (0x37, int!("v_not_b32", |a: u32| -> u32 { !a })),
    (0x38, int!("v_bfrev_b32", |a: u32| -> u32 { a.reverse_bits() })),
    (0x39, int!("v_ffbh_u32", |a: u32| -> u32 { int::find_high_u32(a) })),
    (0x3a, int!("v_ffbl_b32", |a: u32| -> u32 { int::find_low(a) })),
    (0x3b, int!("v_ffbh_i32", |a: i32| -> u32 { int::find_high_i32(a) })),
    (0x3c, fp!("v_frexp_exp_i32_f64", |m, a: f64| -> i32 { f::frexp_exponent(m, a) })),
    (0x3d, fp!("v_frexp_mant_f64", |m, a: f64| -> f64 { f::frexp_mantissa(m, a) })),
    (0x3e, fp!("v_fract_f64", |m, a: f64| -> f64 { f::fract(m, a) })),
    (0x3f, fp!("v_frexp_exp_i32_f32", |m, a: f32| -> i32 { f::frexp_exponent(m, a) })),
    (0x40, fp!("v_frexp_mant_f32", |m, a: f32| -> f32 { f::frexp_mantissa(m, a) })),
    (0x41, Op::special::<Nop>("v_clrexcp", Ty::None, NONE)),
    (0x42, Op::special::<x::MovRelD>("v_movreld_b32", Ty::B32, B32)),
    (0x43, Op::special::<x::MovRelS>("v_movrels_b32", Ty::B32, B32)),
    (0x44, Op::special::<x::MovRelSd>("v_movrelsd_b32", Ty::B32, B32)),
    (0x48, Op::special::<x::MovRelSd2>("v_movrelsd_2_b32", Ty::B32, B32)),
    (0x50, fp!("v_cvt_f16_u16", |m, a: u16| -> F16 { f::round_from(m, a.into()) })),
    (0x51, fp!("v_cvt_f16_i16", |m, a: i16| -> F16 { f::round_from(m, a.into()) })),
    (0x52, fp!("v_cvt_u16_f16", |m, a: F16| -> u16 { f::widen(m, a) as u16 })),
    (0x53, fp!("v_cvt_i16_f16", |m, a: F16| -> i16 { f::widen(m, a) as i16 })),
    (0x54, transcendental16!("v_rcp_f16", |x| 1.0 / x)),
    (0x55, transcendental16!("v_sqrt_f16", |x| x.sqrt())),
    (0x56, transcendental16!("v_rsq_f16", |x| 1.0 / x.sqrt())),
    (0x57, transcendental16!("v_log_f16", |x| x.log2())),
    (0x58, transcendental16!("v_exp_f16", |x| x.exp2())),
    (0x59, fp!("v_frexp_mant_f16", |m, a: F16| -> F16 { f::frexp_mantissa(m, a) })),
    (0x5a, fp!("v_frexp_exp_i16_f16", |m, a: F16| -> i16 { f::frexp_exponent(m, a) as i16 })),
    (0x5b, integral!("v_floor_f16", F16, floor)),
    (0x5c, integral!("v_ceil_f16", F16, ceil)),
    (0x5d, integral!("v_trunc_f16", F16, trunc)),
    (0x5e, integral!("v_rndne_f16", F16, rint)),
    (0x5f, fp!("v_fract_f16", |m, a: F16| -> F16 { f::fract(m, a) })),
    (0x60, transcendental16!("v_sin_f16", |x| f::sin_turns(x))),
    (0x61, transcendental16!("v_cos_f16", |x| f::cos_turns(x))),
    (
        0x62,
        int!("v_sat_pk_u8_i16", |a: u32| -> u16 {
            let byte = |x: u32| (x as i16).clamp(0, 255) as u16;
            byte(a) | byte(a >> 16) << 8
        }),
    ),
    (0x63, fp!("v_cvt_norm_i16_f16", |m, a: F16| -> u16 { f::normalised(f::widen(m, a), -1.0, 32767.0) })),
    (0x64, fp!("v_cvt_norm_u16_f16", |m, a: F16| -> u16 { f::normalised(f::widen(m, a), 0.0, 65535.0) })),
    (0x65, Op::special::<x::Swap>("v_swap_b32", Ty::B32, B32).with(REGISTERS)),
    (0x68, Op::special::<x::SwapRel>("v_swaprel_b32", Ty::B32, B32).with(REGISTERS)),
];
