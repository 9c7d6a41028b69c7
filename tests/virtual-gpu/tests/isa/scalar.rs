//! Scalar instructions and control flow.

use virtual_gpu::isa::{FaultKind, Wave};

use crate::harness::{MODE, Random, Rig, reg};

const EDGES: [u32; 10] = [0, 1, 2, 31, 32, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff];

fn run2(text: &str, a: u32, b: u32, scc: bool) -> Wave {
    Rig::default().s(4, a).s(5, b).scc(scc).run(&[text])
}

/// Checks a 32-bit result and SCC on edges and random operands; `None` leaves SCC alone.
fn check(name: &str, oracle: impl Fn(i128, i128, u32, u32, bool) -> (u32, Option<bool>)) {
    let mut random = Random::new(1);
    let mut pairs: Vec<(u32, u32)> = EDGES.iter().flat_map(|a| EDGES.iter().map(|b| (*a, *b))).collect();
    pairs.extend((0..100).map(|_| (random.next(), random.next())));
    for (a, b) in pairs {
        for scc in [false, true] {
            let wave = run2(&format!("{name} s6, s4, s5"), a, b, scc);
            let (want, flag) = oracle((a as i32).into(), (b as i32).into(), a, b, scc);
            assert_eq!((wave.sgpr(6), wave.scc()), (want, flag.unwrap_or(scc)), "{name} {a:#x} {b:#x} {scc}");
        }
    }
}

#[test]
fn arithmetic() {
    let wide = |x: u32| i128::from(x);
    let fits_u = |x: i128| (0..1 << 32).contains(&x);
    let fits_i = |x: i128| (-(1 << 31)..1 << 31).contains(&x);
    check("s_add_u32", |_, _, a, b, _| ((wide(a) + wide(b)) as u32, Some(!fits_u(wide(a) + wide(b)))));
    check("s_sub_u32", |_, _, a, b, _| ((wide(a) - wide(b)) as u32, Some(!fits_u(wide(a) - wide(b)))));
    check("s_addc_u32", |_, _, a, b, c| {
        let sum = wide(a) + wide(b) + i128::from(c);
        (sum as u32, Some(!fits_u(sum)))
    });
    check("s_subb_u32", |_, _, a, b, c| {
        let difference = wide(a) - wide(b) - i128::from(c);
        (difference as u32, Some(!fits_u(difference)))
    });
    check("s_add_i32", |a, b, _, _, _| ((a + b) as u32, Some(!fits_i(a + b))));
    check("s_sub_i32", |a, b, _, _, _| ((a - b) as u32, Some(!fits_i(a - b))));
    check("s_mul_i32", |a, b, _, _, _| ((a * b) as u32, None));
    check("s_mul_hi_u32", |_, _, a, b, _| (((wide(a) * wide(b)) >> 32) as u32, None));
    check("s_mul_hi_i32", |a, b, _, _, _| (((a * b) >> 32) as u32, None));
    check("s_min_i32", |a, b, _, _, _| (a.min(b) as u32, Some(a < b)));
    check("s_max_u32", |_, _, a, b, _| (a.max(b), Some(a > b)));
    check("s_absdiff_i32", |a, b, _, _, _| {
        let r = ((a - b) as i32).unsigned_abs();
        (r, Some(r != 0))
    });
    for k in 1..=4 {
        check(&format!("s_lshl{k}_add_u32"), |_, _, a, b, _| {
            let sum = (wide(a) << k) + wide(b);
            (sum as u32, Some(!fits_u(sum)))
        });
    }
    check("s_lshl_b32", |_, _, a, b, _| {
        let r = (wide(a) << (b % 32)) as u32;
        (r, Some(r != 0))
    });
    check("s_ashr_i32", |a, _, _, b, _| {
        let r = (a >> (b % 32)) as u32;
        (r, Some(r != 0))
    });
    check("s_bfe_u32", |_, _, a, b, _| {
        let n = (b >> 16 & 0x7f).min(32);
        let r = ((wide(a) >> (b % 32)) % (1 << n)) as u32;
        (r, Some(r != 0))
    });
    check("s_cselect_b32", |_, _, a, b, c| (if c { a } else { b }, None));
    check("s_andn2_b32", |_, _, a, b, _| (a & !b, Some(a & !b != 0)));
    check("s_nor_b32", |_, _, a, b, _| (!(a | b), Some(!(a | b) != 0)));
    check("s_bfm_b32", |_, _, a, b, _| ((((1i128 << (a % 32)) - 1) << (b % 32)) as u32, None));
    check("s_pack_ll_b32_b16", |_, _, a, b, _| (a & 0xffff | b << 16, None));
    check("s_pack_lh_b32_b16", |_, _, a, b, _| (a & 0xffff | b & 0xffff_0000, None));
    check("s_pack_hh_b32_b16", |_, _, a, b, _| (a >> 16 | b & 0xffff_0000, None));
}

#[test]
fn comparisons_and_immediates() {
    for a in EDGES {
        for b in EDGES {
            let (x, y) = (a as i32, b as i32);
            for (name, want) in [
                ("s_cmp_eq_i32", x == y),
                ("s_cmp_lg_u32", a != b),
                ("s_cmp_gt_i32", x > y),
                ("s_cmp_ge_u32", a >= b),
                ("s_cmp_lt_i32", x < y),
                ("s_cmp_le_u32", a <= b),
                ("s_bitcmp1_b32", a >> (b % 32) & 1 == 1),
            ] {
                assert_eq!(run2(&format!("{name} s4, s5"), a, b, false).scc(), want, "{name} {a:#x} {b:#x}");
            }
        }
        // Immediates of 16 bits: sign-extended for i32, zero-extended for u32.
        assert_eq!(run2("s_cmpk_lt_i32 s4, 0xfffe", a, 0, false).scc(), (a as i32) < -2);
        assert_eq!(run2("s_cmpk_lt_u32 s4, 0xfffe", a, 0, false).scc(), a < 0xfffe);
        assert_eq!(run2("s_addk_i32 s4, 0x8000", a, 0, false).sgpr(4), a.wrapping_sub(0x8000));
        assert_eq!(run2("s_mulk_i32 s4, 0xffff", a, 0, false).sgpr(4), a.wrapping_neg());
    }
    assert_eq!(run2("s_movk_i32 s4, 0x8000", 0, 0, false).sgpr(4), 0xffff_8000);
    assert_eq!(run2("s_cmovk_i32 s4, 0x7", 5, 0, false).sgpr(4), 5);
    assert_eq!(run2("s_cmovk_i32 s4, 0x7", 5, 0, true).sgpr(4), 7);
}

#[test]
fn one_operand() {
    let mut random = Random::new(2);
    for x in EDGES.into_iter().chain((0..50).map(|_| random.next())) {
        let one = |text: &str| Rig::default().s(4, x).s(6, 0x5555_5555).run(&[text]).sgpr(6);
        let bit = |k: u32| x >> k & 1;
        assert_eq!(one("s_not_b32 s6, s4"), !x);
        assert_eq!(one("s_brev_b32 s6, s4"), (0..32).map(|k| bit(k) << (31 - k)).sum());
        assert_eq!(one("s_bcnt1_i32_b32 s6, s4"), (0..32).map(bit).sum());
        assert_eq!(one("s_bcnt0_i32_b32 s6, s4"), (0..32).map(|k| 1 - bit(k)).sum());
        assert_eq!(one("s_ff1_i32_b32 s6, s4"), (0..32).find(|k| bit(*k) == 1).unwrap_or(u32::MAX));
        assert_eq!(one("s_ff0_i32_b32 s6, s4"), (0..32).find(|k| bit(*k) == 0).unwrap_or(u32::MAX));
        assert_eq!(one("s_flbit_i32_b32 s6, s4"), (0..32).find(|k| bit(31 - k) == 1).unwrap_or(u32::MAX));
        assert_eq!(one("s_flbit_i32 s6, s4"), (0..32).find(|k| bit(31 - k) != bit(31)).unwrap_or(u32::MAX));
        assert_eq!(one("s_abs_i32 s6, s4"), (x as i32).unsigned_abs());
        assert_eq!(one("s_sext_i32_i8 s6, s4"), x as i8 as u32);
        assert_eq!(one("s_sext_i32_i16 s6, s4"), x as i16 as u32);
        assert_eq!(one("s_bitset0_b32 s6, s4"), 0x5555_5555 & !(1 << (x % 32)));
        assert_eq!(one("s_bitset1_b32 s6, s4"), 0x5555_5555 | 1 << (x % 32));
        assert_eq!(one("s_wqm_b32 s6, s4"), (0..32).map(|k| u32::from(x >> (k & !3) & 15 != 0) << k).sum());
        assert_eq!(
            one("s_quadmask_b32 s6, s4"),
            (0..8).map(|k| u32::from(x >> (4 * k) & 15 != 0) << k).sum()
        );
    }
}

#[test]
fn pairs() {
    let (a, b) = (0x8123_4567_89ab_cdef_u64, 0x0ff0_1234_f0f0_5678_u64);
    let run = |text: &str| {
        let wave = Rig::default().s64(4, a).s64(6, b).s(10, 37).run(&[text]);
        (u64::from(wave.sgpr(8)) | u64::from(wave.sgpr(9)) << 32, wave.scc())
    };
    assert_eq!(run("s_and_b64 s[8:9], s[4:5], s[6:7]"), (a & b, true));
    assert_eq!(run("s_xnor_b64 s[8:9], s[4:5], s[6:7]"), (!(a ^ b), true));
    assert_eq!(run("s_lshl_b64 s[8:9], s[4:5], s10"), (a << 37, true));
    assert_eq!(run("s_lshr_b64 s[8:9], s[4:5], s10"), (a >> 37, true));
    assert_eq!(run("s_ashr_i64 s[8:9], s[4:5], s10"), ((a as i64 >> 37) as u64, true));
    assert_eq!(run("s_not_b64 s[8:9], s[4:5]").0, !a);
    assert_eq!(run("s_brev_b64 s[8:9], s[4:5]").0, a.reverse_bits());
    assert_eq!(run("s_mov_b64 s[8:9], -2").0, -2i64 as u64);
    assert_eq!(run("s_mov_b64 s[8:9], 0.5").0, 0.5f64.to_bits());
    assert_eq!(run("s_bfe_i64 s[8:9], s[4:5], 0x40000a").0, (a as i64 >> 10) as u64);
    assert_eq!(run("s_bfm_b64 s[8:9], 5, s10").0, 31 << 37);
    // The apertures, and NULL.
    assert_eq!(run("s_mov_b64 s[8:9], src_shared_base").0 >> 32, 0x1_0000);
    assert_eq!(run("s_mov_b64 s[8:9], src_private_base").0 >> 32, 0x2_0000);
    assert_eq!(Rig::default().run(&["s_mov_b32 null, 5", "s_mov_b32 s8, null"]).sgpr(8), 0);
}

#[test]
fn exec_masks() {
    let rig = || Rig::default().exec(0xff00).s(4, 0x0ff0);
    for (name, want) in [
        ("and", 0x0f00u32),
        ("or", 0xfff0),
        ("xor", 0xf0f0),
        ("andn2", 0x00f0),
        ("orn2", 0xffff_0ff0 | 0xff),
        ("nand", !0x0f00),
        ("nor", !0xfff0),
        ("xnor", !0xf0f0),
        ("andn1", 0xf000),
        ("orn1", !0x0ff0 | 0xff00),
    ] {
        let want = if name == "orn2" { 0x0ff0 | !0xff00 } else { want };
        let wave = rig().run(&[&format!("s_{name}_saveexec_b32 s6, s4")]);
        assert_eq!((wave.sgpr(6), wave.sgpr(126), wave.scc()), (0xff00, want, want != 0), "{name}");
    }
    let wave = rig().run(&["s_andn2_wrexec_b32 s6, s4"]);
    assert_eq!((wave.sgpr(6), wave.sgpr(126)), (0x00f0, 0x00f0));
    // Inactive lanes keep their values.
    let wave = rig().v(3, [7; 32]).run(&["v_mov_b32_e32 v3, 9"]);
    assert_eq!(reg(&wave, 3), std::array::from_fn(|l| if 0xff00 >> l & 1 == 1 { 9 } else { 7 }));
}

#[test]
fn branches_loop_and_skip() {
    // Sums 1 to 10; the branch skips four bytes on each way.
    let wave = Rig::default().s(4, 10).run(&[
        "s_add_u32 s5, s5, s4",
        "s_sub_u32 s4, s4, 1",
        "s_cmp_lg_u32 s4, 0",
        "s_cbranch_scc1 65532",
        "s_cbranch_scc0 1",
        "s_mov_b32 s5, 0",
        "s_mov_b32 s6, 1",
    ]);
    assert_eq!((wave.sgpr(5), wave.sgpr(6)), (55, 1));
    for (text, vcc, exec, taken) in [
        ("s_cbranch_vccz 1", 0, 1, true),
        ("s_cbranch_vccz 1", 4, 1, false),
        ("s_cbranch_vccnz 1", 4, 1, true),
        ("s_cbranch_execz 1", 0, 0, true),
        ("s_cbranch_execnz 1", 0, 8, true),
        ("s_cbranch_execnz 1", 0, 0, false),
    ] {
        let wave = Rig::default().s(106, vcc).exec(exec).run(&[text, "s_mov_b32 s5, 7"]);
        assert_eq!(wave.sgpr(5) == 0, taken, "{text}");
    }
}

#[test]
fn steps_count_what_ran() {
    let program =
        ["s_mov_b32 s5, 1", "s_waitcnt 0", "s_mov_b32 s6, 2", "s_barrier", "s_cbranch_execz 1", "s_nop 0"];
    assert_eq!(Rig::default().run(&program).steps(), 7, "six, and s_endpgm");
    assert_eq!(Rig::default().exec(0).run(&program).steps(), 6, "one is skipped");
    let rig = Rig { waits: 1, ..Rig::default() };
    assert_eq!(rig.run(&program).steps(), 7, "stopping at s_waitcnt makes no difference");
}

#[test]
fn calls_return() {
    // The callee stands behind the caller's end: `s_getpc` gives the address behind itself.
    let wave = Rig::default().run(&[
        "s_getpc_b64 s[4:5]",
        "s_add_u32 s4, s4, 20",
        "s_addc_u32 s5, s5, 0",
        "s_swappc_b64 s[6:7], s[4:5]",
        "s_mov_b32 s9, 1",
        "s_endpgm",
        "s_mov_b32 s8, 3",
        "s_setpc_b64 s[6:7]",
    ]);
    assert_eq!((wave.sgpr(8), wave.sgpr(9)), (3, 1));
}

#[test]
fn relative_calls_return() {
    let wave = Rig::default().run(&[
        "s_call_b64 s[6:7], 2",
        "s_mov_b32 s9, 1",
        "s_endpgm",
        "s_mov_b32 s8, 3",
        "s_setpc_b64 s[6:7]",
    ]);
    assert_eq!((wave.sgpr(8), wave.sgpr(9)), (3, 1));
}

#[test]
fn mode_is_a_register() {
    let wave = Rig::default()
        .run(&["s_getreg_b32 s4, hwreg(HW_REG_MODE, 4, 4)", "s_getreg_b32 s5, hwreg(HW_REG_MODE)"]);
    assert_eq!((wave.sgpr(4), wave.sgpr(5)), (15, MODE));
    // 1 + 2^-24 rounds down to nearest, and up towards infinity.
    let tiny = 2f32.powi(-24).to_bits();
    let wave = Rig::default().v(0, [tiny; 32]).run(&[
        "v_add_f32_e32 v3, 1.0, v0",
        "s_round_mode 0x1",
        "v_add_f32_e32 v4, 1.0, v0",
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0",
        "v_add_f32_e32 v5, 1.0, v0",
        "s_denorm_mode 0",
        "v_add_f32_e32 v6, 1, v6",
        "s_getreg_b32 s5, hwreg(HW_REG_MODE)",
    ]);
    let one = 1f32.to_bits();
    assert_eq!(
        [reg(&wave, 3)[0], reg(&wave, 4)[0], reg(&wave, 5)[0], reg(&wave, 6)[0]],
        [one, one + 1, one, 0]
    );
    assert_eq!(wave.sgpr(5), MODE & !0xf0);
}

#[test]
fn relative_moves() {
    let wave =
        Rig::default().s(124, 3).s(7, 42).s(4, 9).run(&["s_movrels_b32 s8, s4", "s_movreld_b32 s10, s4"]);
    assert_eq!((wave.sgpr(8), wave.sgpr(13)), (42, 9));
    let wave = Rig::default()
        .s(124, 2)
        .v(3, [5; 32])
        .v(1, [6; 32])
        .run(&["v_movrels_b32_e32 v8, v1", "v_movreld_b32_e32 v10, v1"]);
    assert_eq!((reg(&wave, 8), reg(&wave, 12)), ([5; 32], [6; 32]));
    let fault = Rig::default().s(124, 1000).try_run(&["v_movrels_b32_e32 v8, v1"]).expect_err("a fault");
    assert!(matches!(fault.kind, FaultKind::Register { allocated: 32, .. }), "{fault}");
}
