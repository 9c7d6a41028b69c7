//! Scalar instructions: SOP2, SOP1, SOPK, SOPC, SOPP.

use super::Row;
use crate::isa::exec::int;
use crate::isa::exec::scalar::{self as s, ExecFn, SaveExec, ScalarFn};
use crate::isa::exec::{Exec, Op};
use crate::isa::inst::{Flags, Ty};

/// Scalar arithmetic: `arith!("name", |scc, a: u32, b: u32| -> u32 { .. })`.
macro_rules! arith {
    ($n:literal, |$scc:ident, $a:ident: $A:ty| -> $R:ty $e:block) => {
        arith!($n, |$scc, $a: $A, _b: ()| -> $R $e)
    };
    ($n:literal, |$scc:ident, $a:ident: $A:ty, $b:ident: $B:ty| -> $R:ty $e:block) => {{
        struct F;
        impl ScalarFn for F {
            type A = $A;
            type B = $B;
            type R = $R;
            #[inline(always)]
            #[allow(unused_variables, clippy::unused_unit)]
            fn eval($scc: &mut bool, $a: $A, $b: $B) -> $R $e
        }
        Op::scalar::<F>($n)
    }};
}

/// The same, but SCC says whether the result is not 0.
macro_rules! logic {
    ($n:literal, |$a:ident: $A:ty| -> $R:ty $e:block) => {
        arith!($n, |scc, $a: $A| -> $R {
            let r: $R = $e;
            *scc = r != 0;
            r
        })
    };
    ($n:literal, |$a:ident: $A:ty, $b:ident: $B:ty| -> $R:ty $e:block) => {
        arith!($n, |scc, $a: $A, $b: $B| -> $R {
            let r: $R = $e;
            *scc = r != 0;
            r
        })
    };
}

/// A comparison: only SCC.
macro_rules! compare {
    ($n:literal, |$a:ident: $A:ty, $b:ident: $B:ty| $e:expr) => {
        arith!($n, |scc, $a: $A, $b: $B| -> () {
            *scc = $e;
        })
    };
}

/// `s_lshlN_add_u32`: SCC is the carry out.
macro_rules! shift_add {
    ($n:literal, $k:literal) => {
        arith!($n, |scc, a: u32, b: u32| -> u32 {
            let sum = (u64::from(a) << $k) + u64::from(b);
            *scc = sum >> 32 != 0;
            sum as u32
        })
    };
}

pub(super) static SOP2: &[Row] = &[
    (
        0x00,
        arith!("s_add_u32", |scc, a: u32, b: u32| -> u32 {
            let (r, carry) = a.overflowing_add(b);
            *scc = carry;
            r
        }),
    ),
    (
        0x01,
        arith!("s_sub_u32", |scc, a: u32, b: u32| -> u32 {
            let (r, borrow) = a.overflowing_sub(b);
            *scc = borrow;
            r
        }),
    ),
    (
        0x02,
        arith!("s_add_i32", |scc, a: i32, b: i32| -> i32 {
            let (r, overflow) = a.overflowing_add(b);
            *scc = overflow;
            r
        }),
    ),
    (
        0x03,
        arith!("s_sub_i32", |scc, a: i32, b: i32| -> i32 {
            let (r, overflow) = a.overflowing_sub(b);
            *scc = overflow;
            r
        }),
    ),
    (
        0x04,
        arith!("s_addc_u32", |scc, a: u32, b: u32| -> u32 {
            let sum = u64::from(a) + u64::from(b) + u64::from(*scc);
            *scc = sum >> 32 != 0;
            sum as u32
        }),
    ),
    (
        0x05,
        arith!("s_subb_u32", |scc, a: u32, b: u32| -> u32 {
            let difference = u64::from(a).wrapping_sub(u64::from(b) + u64::from(*scc));
            *scc = difference >> 32 != 0;
            difference as u32
        }),
    ),
    (
        0x06,
        arith!("s_min_i32", |scc, a: i32, b: i32| -> i32 {
            *scc = a < b;
            a.min(b)
        }),
    ),
    (
        0x07,
        arith!("s_min_u32", |scc, a: u32, b: u32| -> u32 {
            *scc = a < b;
            a.min(b)
        }),
    ),
    (
        0x08,
        arith!("s_max_i32", |scc, a: i32, b: i32| -> i32 {
            *scc = a > b;
            a.max(b)
        }),
    ),
    (
        0x09,
        arith!("s_max_u32", |scc, a: u32, b: u32| -> u32 {
            *scc = a > b;
            a.max(b)
        }),
    ),
    (0x0a, arith!("s_cselect_b32", |scc, a: u32, b: u32| -> u32 { if *scc { a } else { b } })),
    (0x0b, arith!("s_cselect_b64", |scc, a: u64, b: u64| -> u64 { if *scc { a } else { b } })),
    (0x0e, logic!("s_and_b32", |a: u32, b: u32| -> u32 { a & b })),
    (0x0f, logic!("s_and_b64", |a: u64, b: u64| -> u64 { a & b })),
    (0x10, logic!("s_or_b32", |a: u32, b: u32| -> u32 { a | b })),
    (0x11, logic!("s_or_b64", |a: u64, b: u64| -> u64 { a | b })),
    (0x12, logic!("s_xor_b32", |a: u32, b: u32| -> u32 { a ^ b })),
    (0x13, logic!("s_xor_b64", |a: u64, b: u64| -> u64 { a ^ b })),
    (0x14, logic!("s_andn2_b32", |a: u32, b: u32| -> u32 { a & !b })),
    (0x15, logic!("s_andn2_b64", |a: u64, b: u64| -> u64 { a & !b })),
    (0x16, logic!("s_orn2_b32", |a: u32, b: u32| -> u32 { a | !b })),
    (0x17, logic!("s_orn2_b64", |a: u64, b: u64| -> u64 { a | !b })),
    (0x18, logic!("s_nand_b32", |a: u32, b: u32| -> u32 { !(a & b) })),
    (0x19, logic!("s_nand_b64", |a: u64, b: u64| -> u64 { !(a & b) })),
    (0x1a, logic!("s_nor_b32", |a: u32, b: u32| -> u32 { !(a | b) })),
    (0x1b, logic!("s_nor_b64", |a: u64, b: u64| -> u64 { !(a | b) })),
    (0x1c, logic!("s_xnor_b32", |a: u32, b: u32| -> u32 { !(a ^ b) })),
    (0x1d, logic!("s_xnor_b64", |a: u64, b: u64| -> u64 { !(a ^ b) })),
    (0x1e, logic!("s_lshl_b32", |a: u32, b: u32| -> u32 { a << (b & 31) })),
    (0x1f, logic!("s_lshl_b64", |a: u64, b: u32| -> u64 { a << (b & 63) })),
    (0x20, logic!("s_lshr_b32", |a: u32, b: u32| -> u32 { a >> (b & 31) })),
    (0x21, logic!("s_lshr_b64", |a: u64, b: u32| -> u64 { a >> (b & 63) })),
    (0x22, logic!("s_ashr_i32", |a: i32, b: u32| -> i32 { a >> (b & 31) })),
    (0x23, logic!("s_ashr_i64", |a: i64, b: u32| -> i64 { a >> (b & 63) })),
    (0x24, arith!("s_bfm_b32", |scc, a: u32, b: u32| -> u32 { ((1 << (a & 31)) - 1) << (b & 31) })),
    (0x25, arith!("s_bfm_b64", |scc, a: u32, b: u32| -> u64 { ((1 << (a & 63)) - 1) << (b & 63) })),
    (0x26, arith!("s_mul_i32", |scc, a: u32, b: u32| -> u32 { a.wrapping_mul(b) })),
    (0x27, logic!("s_bfe_u32", |a: u32, b: u32| -> u32 { bfe(u64::from(a) >> (b & 31), b, 32) as u32 })),
    (
        0x28,
        logic!("s_bfe_i32", |a: i32, b: u32| -> i32 { bfe_signed(i64::from(a) >> (b & 31), b, 32) as i32 }),
    ),
    (0x29, logic!("s_bfe_u64", |a: u64, b: u32| -> u64 { bfe(a >> (b & 63), b, 64) })),
    (0x2a, logic!("s_bfe_i64", |a: i64, b: u32| -> i64 { bfe_signed(a >> (b & 63), b, 64) })),
    (0x2c, logic!("s_absdiff_i32", |a: i32, b: i32| -> i32 { a.wrapping_sub(b).wrapping_abs() })),
    (0x2e, shift_add!("s_lshl1_add_u32", 1)),
    (0x2f, shift_add!("s_lshl2_add_u32", 2)),
    (0x30, shift_add!("s_lshl3_add_u32", 3)),
    (0x31, shift_add!("s_lshl4_add_u32", 4)),
    (0x32, arith!("s_pack_ll_b32_b16", |scc, a: u32, b: u32| -> u32 { a & 0xffff | b << 16 })),
    (0x33, arith!("s_pack_lh_b32_b16", |scc, a: u32, b: u32| -> u32 { a & 0xffff | b & 0xffff_0000 })),
    (0x34, arith!("s_pack_hh_b32_b16", |scc, a: u32, b: u32| -> u32 { a >> 16 | b & 0xffff_0000 })),
    (
        0x35,
        arith!("s_mul_hi_u32", |scc, a: u32, b: u32| -> u32 { ((u64::from(a) * u64::from(b)) >> 32) as u32 }),
    ),
    (
        0x36,
        arith!("s_mul_hi_i32", |scc, a: i32, b: i32| -> i32 { ((i64::from(a) * i64::from(b)) >> 32) as i32 }),
    ),
];

/// The low bits of `a`: as many as bits 16 to 22 of `b` say, at most `max`.
fn bfe(a: u64, b: u32, max: u32) -> u64 {
    match (b >> 16 & 0x7f).min(max) {
        0 => 0,
        n => a & u64::MAX >> (64 - n),
    }
}

/// The same, sign-extended.
fn bfe_signed(a: i64, b: u32, max: u32) -> i64 {
    match (b >> 16 & 0x7f).min(max) {
        0 => 0,
        n => a << (64 - n) >> (64 - n),
    }
}

/// `s_OP_saveexec` or `s_OP_wrexec` in both widths.
macro_rules! exec {
    ($n:literal, $wide:literal, $new:literal, |$s:ident, $e:ident| $r:expr) => {{
        struct F;
        impl ExecFn for F {
            const WRITE_NEW: bool = $new;
            #[inline(always)]
            fn eval($s: u64, $e: u64) -> u64 {
                $r
            }
        }
        const TY: Ty = if $wide { Ty::B64 } else { Ty::B32 };
        Op {
            exec: Exec::scalar::<SaveExec<F, $wide>>(),
            ..Op::special::<s::Nop>($n, TY, [TY, Ty::None, Ty::None])
        }
    }};
}

const B32: [Ty; 3] = [Ty::B32, Ty::None, Ty::None];
const B64: [Ty; 3] = [Ty::B64, Ty::None, Ty::None];
const NONE: [Ty; 3] = [Ty::None; 3];

pub(super) static SOP1: &[Row] = &[
    (0x03, arith!("s_mov_b32", |scc, a: u32| -> u32 { a })),
    (0x04, arith!("s_mov_b64", |scc, a: u64| -> u64 { a })),
    (
        0x05,
        arith!("s_cmov_b32", |scc, a: u32, d: u32| -> u32 { if *scc { a } else { d } })
            .with(Flags::ACCUMULATE),
    ),
    (
        0x06,
        arith!("s_cmov_b64", |scc, a: u64, d: u64| -> u64 { if *scc { a } else { d } })
            .with(Flags::ACCUMULATE),
    ),
    (0x07, logic!("s_not_b32", |a: u32| -> u32 { !a })),
    (0x08, logic!("s_not_b64", |a: u64| -> u64 { !a })),
    (0x09, logic!("s_wqm_b32", |a: u32| -> u32 { whole_quads(a.into()) as u32 })),
    (0x0a, logic!("s_wqm_b64", |a: u64| -> u64 { whole_quads(a) })),
    (0x0b, arith!("s_brev_b32", |scc, a: u32| -> u32 { a.reverse_bits() })),
    (0x0c, arith!("s_brev_b64", |scc, a: u64| -> u64 { a.reverse_bits() })),
    (0x0d, logic!("s_bcnt0_i32_b32", |a: u32| -> u32 { a.count_zeros() })),
    (0x0e, logic!("s_bcnt0_i32_b64", |a: u64| -> u32 { a.count_zeros() })),
    (0x0f, logic!("s_bcnt1_i32_b32", |a: u32| -> u32 { a.count_ones() })),
    (0x10, logic!("s_bcnt1_i32_b64", |a: u64| -> u32 { a.count_ones() })),
    (0x11, arith!("s_ff0_i32_b32", |scc, a: u32| -> u32 { int::find_low(!a) })),
    (0x12, arith!("s_ff0_i32_b64", |scc, a: u64| -> u32 { find_low64(!a) })),
    (0x13, arith!("s_ff1_i32_b32", |scc, a: u32| -> u32 { int::find_low(a) })),
    (0x14, arith!("s_ff1_i32_b64", |scc, a: u64| -> u32 { find_low64(a) })),
    (0x15, arith!("s_flbit_i32_b32", |scc, a: u32| -> u32 { int::find_high_u32(a) })),
    (0x16, arith!("s_flbit_i32_b64", |scc, a: u64| -> u32 { find_high64(a) })),
    (0x17, arith!("s_flbit_i32", |scc, a: i32| -> u32 { int::find_high_i32(a) })),
    (0x18, arith!("s_flbit_i32_i64", |scc, a: i64| -> u32 { find_high64((a ^ a >> 63) as u64) })),
    (0x19, arith!("s_sext_i32_i8", |scc, a: u32| -> i32 { a as i8 as i32 })),
    (0x1a, arith!("s_sext_i32_i16", |scc, a: u32| -> i32 { a as i16 as i32 })),
    (
        0x1b,
        arith!("s_bitset0_b32", |scc, a: u32, d: u32| -> u32 { d & !(1 << (a & 31)) })
            .with(Flags::ACCUMULATE),
    ),
    (
        0x1c,
        arith!("s_bitset0_b64", |scc, a: u32, d: u64| -> u64 { d & !(1 << (a & 63)) })
            .with(Flags::ACCUMULATE),
    ),
    (
        0x1d,
        arith!("s_bitset1_b32", |scc, a: u32, d: u32| -> u32 { d | 1 << (a & 31) }).with(Flags::ACCUMULATE),
    ),
    (
        0x1e,
        arith!("s_bitset1_b64", |scc, a: u32, d: u64| -> u64 { d | 1 << (a & 63) }).with(Flags::ACCUMULATE),
    ),
    (0x1f, Op::special::<s::GetPc>("s_getpc_b64", Ty::B64, NONE)),
    (0x20, Op::special::<s::SetPc>("s_setpc_b64", Ty::None, B64).with(Flags::BRANCH)),
    (0x21, Op::special::<s::SwapPc>("s_swappc_b64", Ty::B64, B64).with(Flags::BRANCH)),
    (0x22, Op::lacking("s_rfe_b64", Ty::None, B64)),
    (0x24, exec!("s_and_saveexec_b64", true, false, |s, e| s & e)),
    (0x25, exec!("s_or_saveexec_b64", true, false, |s, e| s | e)),
    (0x26, exec!("s_xor_saveexec_b64", true, false, |s, e| s ^ e)),
    (0x27, exec!("s_andn2_saveexec_b64", true, false, |s, e| s & !e)),
    (0x28, exec!("s_orn2_saveexec_b64", true, false, |s, e| s | !e)),
    (0x29, exec!("s_nand_saveexec_b64", true, false, |s, e| !(s & e))),
    (0x2a, exec!("s_nor_saveexec_b64", true, false, |s, e| !(s | e))),
    (0x2b, exec!("s_xnor_saveexec_b64", true, false, |s, e| !(s ^ e))),
    (0x2c, logic!("s_quadmask_b32", |a: u32| -> u32 { quad_mask(a.into()) as u32 })),
    (0x2d, logic!("s_quadmask_b64", |a: u64| -> u64 { quad_mask(a) })),
    (0x2e, Op::special::<s::MovRelS32>("s_movrels_b32", Ty::B32, B32)),
    (0x2f, Op::special::<s::MovRelS64>("s_movrels_b64", Ty::B64, B64)),
    (0x30, Op::special::<s::MovRelD32>("s_movreld_b32", Ty::B32, B32)),
    (0x31, Op::special::<s::MovRelD64>("s_movreld_b64", Ty::B64, B64)),
    (0x34, logic!("s_abs_i32", |a: i32| -> i32 { a.wrapping_abs() })),
    (0x37, exec!("s_andn1_saveexec_b64", true, false, |s, e| !s & e)),
    (0x38, exec!("s_orn1_saveexec_b64", true, false, |s, e| !s | e)),
    (0x39, exec!("s_andn1_wrexec_b64", true, true, |s, e| !s & e)),
    (0x3a, exec!("s_andn2_wrexec_b64", true, true, |s, e| s & !e)),
    (
        0x3b,
        arith!("s_bitreplicate_b64_b32", |scc, a: u32| -> u64 {
            (0..32).fold(0, |r, k| r | (u64::from(a >> k & 1) * 3) << (2 * k))
        }),
    ),
    (0x3c, exec!("s_and_saveexec_b32", false, false, |s, e| s & e)),
    (0x3d, exec!("s_or_saveexec_b32", false, false, |s, e| s | e)),
    (0x3e, exec!("s_xor_saveexec_b32", false, false, |s, e| s ^ e)),
    (0x3f, exec!("s_andn2_saveexec_b32", false, false, |s, e| s & !e)),
    (0x40, exec!("s_orn2_saveexec_b32", false, false, |s, e| s | !e)),
    (0x41, exec!("s_nand_saveexec_b32", false, false, |s, e| !(s & e))),
    (0x42, exec!("s_nor_saveexec_b32", false, false, |s, e| !(s | e))),
    (0x43, exec!("s_xnor_saveexec_b32", false, false, |s, e| !(s ^ e))),
    (0x44, exec!("s_andn1_saveexec_b32", false, false, |s, e| !s & e)),
    (0x45, exec!("s_orn1_saveexec_b32", false, false, |s, e| !s | e)),
    (0x46, exec!("s_andn1_wrexec_b32", false, true, |s, e| !s & e)),
    (0x47, exec!("s_andn2_wrexec_b32", false, true, |s, e| s & !e)),
    (0x49, Op::special::<s::MovRelSd2>("s_movrelsd_2_b32", Ty::B32, B32)),
];

/// Sets all bits of each quad that has any bit set.
fn whole_quads(a: u64) -> u64 {
    (0..16).fold(0, |r, k| if a >> (4 * k) & 15 != 0 { r | 15 << (4 * k) } else { r })
}

/// One bit for each quad: whether any of its bits is set.
fn quad_mask(a: u64) -> u64 {
    (0..16).fold(0, |r, k| if a >> (4 * k) & 15 != 0 { r | 1 << k } else { r })
}

fn find_low64(a: u64) -> u32 {
    if a == 0 { u32::MAX } else { a.trailing_zeros() }
}

fn find_high64(a: u64) -> u32 {
    if a == 0 { u32::MAX } else { a.leading_zeros() }
}

/// SOPK: the destination's old value first, then the immediate, sign-extended unless flagged otherwise.
pub(super) static SOPK: &[Row] = &[
    (0x00, arith!("s_movk_i32", |scc, _d: u32, k: u32| -> u32 { k })),
    (0x01, Op::special::<s::Nop>("s_version", Ty::None, NONE)),
    (0x02, arith!("s_cmovk_i32", |scc, d: u32, k: u32| -> u32 { if *scc { k } else { d } })),
    (0x03, compare!("s_cmpk_eq_i32", |d: i32, k: i32| d == k)),
    (0x04, compare!("s_cmpk_lg_i32", |d: i32, k: i32| d != k)),
    (0x05, compare!("s_cmpk_gt_i32", |d: i32, k: i32| d > k)),
    (0x06, compare!("s_cmpk_ge_i32", |d: i32, k: i32| d >= k)),
    (0x07, compare!("s_cmpk_lt_i32", |d: i32, k: i32| d < k)),
    (0x08, compare!("s_cmpk_le_i32", |d: i32, k: i32| d <= k)),
    (0x09, compare!("s_cmpk_eq_u32", |d: u32, k: u32| d == k).with(Flags::UNSIGNED)),
    (0x0a, compare!("s_cmpk_lg_u32", |d: u32, k: u32| d != k).with(Flags::UNSIGNED)),
    (0x0b, compare!("s_cmpk_gt_u32", |d: u32, k: u32| d > k).with(Flags::UNSIGNED)),
    (0x0c, compare!("s_cmpk_ge_u32", |d: u32, k: u32| d >= k).with(Flags::UNSIGNED)),
    (0x0d, compare!("s_cmpk_lt_u32", |d: u32, k: u32| d < k).with(Flags::UNSIGNED)),
    (0x0e, compare!("s_cmpk_le_u32", |d: u32, k: u32| d <= k).with(Flags::UNSIGNED)),
    (
        0x0f,
        arith!("s_addk_i32", |scc, d: i32, k: i32| -> i32 {
            let (r, overflow) = d.overflowing_add(k);
            *scc = overflow;
            r
        }),
    ),
    (0x10, arith!("s_mulk_i32", |scc, d: i32, k: i32| -> i32 { d.wrapping_mul(k) })),
    (0x12, Op::special::<s::GetReg>("s_getreg_b32", Ty::B32, NONE)),
    (0x13, Op::special::<s::SetReg>("s_setreg_b32", Ty::None, B32)),
    (0x15, Op::special::<s::SetReg>("s_setreg_imm32_b32", Ty::None, B32).with(Flags::LITERAL)),
    (0x16, Op::special::<s::Call>("s_call_b64", Ty::B64, NONE).with(Flags::BRANCH)),
    (0x17, Op::special::<s::Nop>("s_waitcnt_vscnt", Ty::None, B32)),
    (0x18, Op::special::<s::Nop>("s_waitcnt_vmcnt", Ty::None, B32)),
    (0x19, Op::special::<s::Nop>("s_waitcnt_expcnt", Ty::None, B32)),
    (0x1a, Op::special::<s::Nop>("s_waitcnt_lgkmcnt", Ty::None, B32)),
    (0x1b, Op::lacking("s_subvector_loop_begin", Ty::B32, NONE)),
    (0x1c, Op::lacking("s_subvector_loop_end", Ty::B32, NONE)),
];

pub(super) static SOPC: &[Row] = &[
    (0x00, compare!("s_cmp_eq_i32", |a: i32, b: i32| a == b)),
    (0x01, compare!("s_cmp_lg_i32", |a: i32, b: i32| a != b)),
    (0x02, compare!("s_cmp_gt_i32", |a: i32, b: i32| a > b)),
    (0x03, compare!("s_cmp_ge_i32", |a: i32, b: i32| a >= b)),
    (0x04, compare!("s_cmp_lt_i32", |a: i32, b: i32| a < b)),
    (0x05, compare!("s_cmp_le_i32", |a: i32, b: i32| a <= b)),
    (0x06, compare!("s_cmp_eq_u32", |a: u32, b: u32| a == b)),
    (0x07, compare!("s_cmp_lg_u32", |a: u32, b: u32| a != b)),
    (0x08, compare!("s_cmp_gt_u32", |a: u32, b: u32| a > b)),
    (0x09, compare!("s_cmp_ge_u32", |a: u32, b: u32| a >= b)),
    (0x0a, compare!("s_cmp_lt_u32", |a: u32, b: u32| a < b)),
    (0x0b, compare!("s_cmp_le_u32", |a: u32, b: u32| a <= b)),
    (0x0c, compare!("s_bitcmp0_b32", |a: u32, b: u32| a >> (b & 31) & 1 == 0)),
    (0x0d, compare!("s_bitcmp1_b32", |a: u32, b: u32| a >> (b & 31) & 1 != 0)),
    (0x0e, compare!("s_bitcmp0_b64", |a: u64, b: u32| a >> (b & 63) & 1 == 0)),
    (0x0f, compare!("s_bitcmp1_b64", |a: u64, b: u32| a >> (b & 63) & 1 != 0)),
    (0x12, compare!("s_cmp_eq_u64", |a: u64, b: u64| a == b)),
    (0x13, compare!("s_cmp_lg_u64", |a: u64, b: u64| a != b)),
];

/// A program-control instruction.
macro_rules! control {
    ($n:literal, $body:ident) => {
        Op::special::<s::$body>($n, Ty::None, NONE)
    };
    ($n:literal, $body:ident, branch) => {
        control!($n, $body).with(Flags::BRANCH)
    };
}

pub(super) static SOPP: &[Row] = &[
    (0x00, control!("s_nop", Nop)),
    (0x01, control!("s_endpgm", End, branch)),
    (0x02, control!("s_branch", BranchAlways, branch)),
    (0x03, control!("s_wakeup", Nop)),
    (0x04, control!("s_cbranch_scc0", BranchScc0, branch)),
    (0x05, control!("s_cbranch_scc1", BranchScc1, branch)),
    (0x06, control!("s_cbranch_vccz", BranchVccz, branch)),
    (0x07, control!("s_cbranch_vccnz", BranchVccnz, branch)),
    (0x08, control!("s_cbranch_execz", BranchExecz, branch)),
    (0x09, control!("s_cbranch_execnz", BranchExecnz, branch)),
    (0x0a, control!("s_barrier", Barrier, branch)),
    (0x0b, Op::lacking("s_setkill", Ty::None, NONE)),
    (0x0c, control!("s_waitcnt", WaitCount)),
    (0x0d, control!("s_sethalt", Nop)),
    (0x0e, control!("s_sleep", Sleep, branch)),
    (0x0f, control!("s_setprio", Nop)),
    (0x10, control!("s_sendmsg", Nop)),
    (0x11, Op::lacking("s_sendmsghalt", Ty::None, NONE)),
    (0x12, control!("s_trap", Trap, branch)),
    (0x13, control!("s_icache_inv", Nop)),
    (0x14, control!("s_incperflevel", Nop)),
    (0x15, control!("s_decperflevel", Nop)),
    (0x16, control!("s_ttracedata", Nop)),
    // Never taken, because no debugger is attached.
    (0x17, control!("s_cbranch_cdbgsys", Nop)),
    (0x18, control!("s_cbranch_cdbguser", Nop)),
    (0x19, control!("s_cbranch_cdbgsys_or_user", Nop)),
    (0x1a, control!("s_cbranch_cdbgsys_and_user", Nop)),
    (0x1b, control!("s_endpgm_saved", End, branch)),
    (0x1e, control!("s_endpgm_ordered_ps_done", End, branch)),
    (0x1f, control!("s_code_end", CodeEnd, branch)),
    (0x20, control!("s_inst_prefetch", Nop)),
    (0x21, control!("s_clause", Nop)),
    (0x22, control!("s_wait_idle", Nop)),
    (0x23, control!("s_waitcnt_depctr", Nop)),
    (0x24, control!("s_round_mode", RoundMode)),
    (0x25, control!("s_denorm_mode", DenormMode)),
    (0x28, control!("s_ttracedata_imm", Nop)),
];
