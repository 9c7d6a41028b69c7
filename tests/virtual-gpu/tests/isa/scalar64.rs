//! Scalar instructions on 64 bits, all comparisons, EXEC masks of 64 bits, moves by index, and what does nothing.

use virtual_gpu::isa::{FaultKind, Wave};

use crate::harness::{MODE, Random, Rig, reg};

const EDGES: [u64; 12] = [
    0,
    1,
    31,
    32,
    63,
    64,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Edges with each other, then random numbers.
fn pairs() -> Vec<(u64, u64)> {
    let mut random = Random::new(51);
    let mut word = || u64::from(random.next()) << 32 | u64::from(random.next());
    let mut list: Vec<_> = EDGES.iter().flat_map(|a| EDGES.iter().map(|b| (*a, *b))).collect();
    list.extend((0..50).map(|_| (word(), word())));
    list
}

fn pair(wave: &Wave, reg: u16) -> u64 {
    u64::from(wave.sgpr(reg)) | u64::from(wave.sgpr(reg + 1)) << 32
}

/// The result in s[8:9], whose upper half is 0x5555 before, and SCC: of `a` in s[4:5] and `b` in s[6:7].
fn check(text: &str, oracle: impl Fn(u64, u64, bool) -> (u64, bool)) {
    for (a, b) in pairs() {
        for scc in [false, true] {
            let wave = Rig::default().s64(4, a).s64(6, b).s64(8, 0x5555_0000_1234).scc(scc).run(&[text]);
            let got = (pair(&wave, 8), wave.scc());
            assert_eq!(got, oracle(a, b, scc), "{text}: {a:#x} {b:#x} {scc}");
        }
    }
}

/// A result of 32 bits in s8: what s9 held stays.
fn low(x: u32) -> u64 {
    0x5555_0000_0000 | u64::from(x)
}

#[test]
fn bitwise_pairs() {
    type Bits = fn(u64, u64) -> u64;
    let functions: [(&str, Bits); 8] = [
        ("and", |a, b| a & b),
        ("or", |a, b| a | b),
        ("xor", |a, b| a ^ b),
        ("andn2", |a, b| a & !b),
        ("orn2", |a, b| a | !b),
        ("nand", |a, b| !(a & b)),
        ("nor", |a, b| !(a | b)),
        ("xnor", |a, b| !(a ^ b)),
    ];
    for (name, f) in functions {
        check(&format!("s_{name}_b64 s[8:9], s[4:5], s[6:7]"), |a, b, _| (f(a, b), f(a, b) != 0));
        check(&format!("s_{name}_b32 s8, s4, s6"), |a, b, _| {
            let r = f(a, b) as u32;
            (low(r), r != 0)
        });
    }
    check("s_cselect_b64 s[8:9], s[4:5], s[6:7]", |a, b, c| (if c { a } else { b }, c));
    check("s_cmov_b64 s[8:9], s[4:5]", |a, _, c| (if c { a } else { 0x5555_0000_1234 }, c));
    check("s_cmov_b32 s8, s4", |a, _, c| (low(if c { a as u32 } else { 0x1234 }), c));
}

#[test]
fn shifts_and_fields_of_pairs() {
    let wide = |x: u64| u128::from(x);
    let sign = |x: u64| i128::from(x as i64);
    check("s_lshl_b64 s[8:9], s[4:5], s6", |a, b, _| {
        let r = (wide(a) << (b % 64)) as u64;
        (r, r != 0)
    });
    check("s_lshr_b64 s[8:9], s[4:5], s6", |a, b, _| {
        let r = (wide(a) >> (b % 64)) as u64;
        (r, r != 0)
    });
    check("s_ashr_i64 s[8:9], s[4:5], s6", |a, b, _| {
        let r = (sign(a) >> (b % 64)) as u64;
        (r, r != 0)
    });
    check("s_lshr_b32 s8, s4, s6", |a, b, _| {
        let r = ((a & 0xffff_ffff) >> (b % 32)) as u32;
        (low(r), r != 0)
    });
    let count = |b: u64, most: u64| (b >> 16 & 0x7f).min(most);
    check("s_bfe_u64 s[8:9], s[4:5], s6", |a, b, _| {
        let r = ((wide(a) >> (b % 64)) % (1 << count(b, 64))) as u64;
        (r, r != 0)
    });
    // The low `n` bits as a signed number.
    let extend = |x: i128, n: u64| if n == 0 { 0 } else { x << (128 - n) >> (128 - n) };
    check("s_bfe_i64 s[8:9], s[4:5], s6", |a, b, _| {
        let r = extend(sign(a) >> (b % 64), count(b, 64)) as u64;
        (r, r != 0)
    });
    check("s_bfe_i32 s8, s4, s6", |a, b, _| {
        let r = extend(i128::from(a as i32) >> (b % 32), count(b, 32)) as u32;
        (low(r), r != 0)
    });
    check("s_bfm_b64 s[8:9], s4, s6", |a, b, c| ((((1u128 << (a % 64)) - 1) << (b % 64)) as u64, c));
    check("s_bitset0_b64 s[8:9], s4", |a, _, c| (0x5555_0000_1234 & !(1 << (a % 64)), c));
    check("s_bitset1_b64 s[8:9], s4", |a, _, c| (0x5555_0000_1234 | 1 << (a % 64), c));
    check("s_bitreplicate_b64_b32 s[8:9], s4", |a, _, c| ((0..64).map(|k| (a >> (k / 2) & 1) << k).sum(), c));
}

#[test]
fn counts_in_pairs() {
    let find = |x: u64, set: bool| (0..64).find(|k| (x >> k & 1 == 1) == set).unwrap_or(u32::MAX);
    let ones = |x: u64| (0..64).map(|k| (x >> k & 1) as u32).sum::<u32>();
    check("s_bcnt1_i32_b64 s8, s[4:5]", |a, _, _| (low(ones(a)), ones(a) != 0));
    check("s_bcnt0_i32_b64 s8, s[4:5]", |a, _, _| (low(64 - ones(a)), ones(a) != 64));
    check("s_ff1_i32_b64 s8, s[4:5]", |a, _, c| (low(find(a, true)), c));
    check("s_ff0_i32_b64 s8, s[4:5]", |a, _, c| (low(find(a, false)), c));
    let highest = |x: u64| (0..64).find(|k| x >> (63 - k) & 1 == 1).unwrap_or(u32::MAX);
    check("s_flbit_i32_b64 s8, s[4:5]", |a, _, c| (low(highest(a)), c));
    // The first bit that isn't the sign.
    check("s_flbit_i32_i64 s8, s[4:5]", |a, _, c| (low(highest(if a >> 63 == 1 { !a } else { a })), c));
    let quads = |a: u64| (0..16).map(|k| u64::from(a >> (4 * k) & 15 != 0) << k).sum::<u64>();
    check("s_quadmask_b64 s[8:9], s[4:5]", |a, _, _| (quads(a), a != 0));
    check("s_wqm_b64 s[8:9], s[4:5]", |a, _, _| {
        ((0..64).map(|k| (quads(a) >> (k / 4) & 1) << k).sum(), a != 0)
    });
    check("s_max_i32 s8, s4, s6", |a, b, _| {
        let (a, b) = (a as i32, b as i32);
        (low(if a > b { a } else { b } as u32), a > b)
    });
    check("s_min_u32 s8, s4, s6", |a, b, _| {
        let (a, b) = (a as u32, b as u32);
        (low(if a < b { a } else { b }), a < b)
    });
}

#[test]
fn all_comparisons() {
    let unchanged = 0x5555_0000_1234;
    type Holds = fn(i128, i128) -> bool;
    let orders: [(&str, Holds); 6] = [
        ("eq", |a, b| a == b),
        ("lg", |a, b| a != b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
    ];
    for (name, holds) in orders {
        check(&format!("s_cmp_{name}_i32 s4, s6"), |a, b, _| {
            (unchanged, holds((a as i32).into(), (b as i32).into()))
        });
        check(&format!("s_cmp_{name}_u32 s4, s6"), |a, b, _| {
            (unchanged, holds((a as u32).into(), (b as u32).into()))
        });
        // Immediates: -3 for signed numbers, 65533 for others.
        check(&format!("s_cmpk_{name}_i32 s4, 0xfffd"), |a, _, _| (unchanged, holds((a as i32).into(), -3)));
        check(&format!("s_cmpk_{name}_u32 s4, 0xfffd"), |a, _, _| {
            (unchanged, holds((a as u32).into(), 65533))
        });
    }
    check("s_cmp_eq_u64 s[4:5], s[6:7]", |a, b, _| (unchanged, a == b));
    check("s_cmp_lg_u64 s[4:5], s[6:7]", |a, b, _| (unchanged, a != b));
    check("s_bitcmp0_b32 s4, s6", |a, b, _| (unchanged, a as u32 >> (b % 32) & 1 == 0));
    check("s_bitcmp1_b32 s4, s6", |a, b, _| (unchanged, a as u32 >> (b % 32) & 1 == 1));
    check("s_bitcmp0_b64 s[4:5], s6", |a, b, _| (unchanged, a >> (b % 64) & 1 == 0));
    check("s_bitcmp1_b64 s[4:5], s6", |a, b, _| (unchanged, a >> (b % 64) & 1 == 1));
}

#[test]
fn exec_masks_of_both_widths() {
    type Bits = fn(u64, u64) -> u64;
    // The new mask from the source and the old one; the last two give the destination the new mask.
    let functions: [(&str, Bits, bool); 12] = [
        ("and_saveexec", |s, e| s & e, false),
        ("or_saveexec", |s, e| s | e, false),
        ("xor_saveexec", |s, e| s ^ e, false),
        ("andn2_saveexec", |s, e| s & !e, false),
        ("orn2_saveexec", |s, e| s | !e, false),
        ("nand_saveexec", |s, e| !(s & e), false),
        ("nor_saveexec", |s, e| !(s | e), false),
        ("xnor_saveexec", |s, e| !(s ^ e), false),
        ("andn1_saveexec", |s, e| !s & e, false),
        ("orn1_saveexec", |s, e| !s | e, false),
        ("andn1_wrexec", |s, e| !s & e, true),
        ("andn2_wrexec", |s, e| s & !e, true),
    ];
    for (name, f, new) in functions {
        for (source, exec) in
            [(0x0ff0_1234_0000_0ff0, 0xff00u32), (0xff00, 0xff00), (0, 0), (u64::MAX, u32::MAX)]
        {
            let rig = || Rig::default().exec(exec).s64(4, source);
            let old = pair(&rig().run(&["s_mov_b64 s[8:9], exec"]), 8);
            let want = f(source, old);
            let wave = rig().run(&[&format!("s_{name}_b64 s[6:7], s[4:5]"), "s_mov_b64 s[8:9], exec"]);
            let got = (pair(&wave, 6), pair(&wave, 8), wave.scc());
            assert_eq!(
                got,
                (if new { want } else { old }, want, want != 0),
                "{name}_b64 {source:#x} {exec:#x}"
            );
            let want = f(source, exec.into()) as u32;
            let wave = rig().run(&[&format!("s_{name}_b32 s6, s4")]);
            let got = (wave.sgpr(6), wave.sgpr(126), wave.scc());
            assert_eq!(
                got,
                (if new { want } else { exec }, want, want != 0),
                "{name}_b32 {source:#x} {exec:#x}"
            );
        }
    }
}

#[test]
fn moves_by_index() {
    let rig = |m0: u32| Rig::default().s(124, m0).s64(20, 0x1111_2222_3333).s64(4, 0x7777_8888_9999);
    // M0 counts registers.
    let wave = rig(16).run(&["s_movrels_b64 s[8:9], s[4:5]"]);
    assert_eq!(pair(&wave, 8), 0x1111_2222_3333);
    let wave = rig(16).run(&["s_movreld_b64 s[8:9], s[4:5]"]);
    assert_eq!(pair(&wave, 24), 0x7777_8888_9999);
    // The source's index in M0's low bits, the destination's from bit 16 on.
    let wave = rig(30 << 16 | 16).run(&["s_movrelsd_2_b32 s8, s4"]);
    assert_eq!(wave.sgpr(38), 0x2222_3333);
    let vector = |m0: u32, text: &str| {
        Rig::default().s(124, m0).v(3, [5; 32]).v(1, [6; 32]).v(8, [8; 32]).exec(0xff).run(&[text])
    };
    let lanes = |x: u32, y: u32| -> [u32; 32] { std::array::from_fn(|l| if l < 8 { x } else { y }) };
    let wave = vector(2, "v_movrelsd_b32_e32 v8, v1");
    assert_eq!(reg(&wave, 10), lanes(5, 0));
    let wave = vector(4 << 16 | 2, "v_movrelsd_2_b32_e32 v8, v1");
    assert_eq!(reg(&wave, 12), lanes(5, 0));
    // v8 is two registers before v10, and v1 two before v3.
    let wave = vector(2 << 16 | 2, "v_swaprel_b32 v6, v1");
    assert_eq!((reg(&wave, 8), reg(&wave, 3)), (lanes(5, 8), lanes(8, 5)));
}

#[test]
fn mode_by_a_register() {
    let wave = Rig::default().s(4, 0x9).run(&[
        "s_setreg_b32 hwreg(HW_REG_MODE, 4, 4), s4",
        "s_getreg_b32 s5, hwreg(HW_REG_MODE)",
        "s_setreg_b32 hwreg(HW_REG_MODE, 0, 2), s4",
        "s_getreg_b32 s6, hwreg(HW_REG_MODE)",
    ]);
    assert_eq!((wave.sgpr(5), wave.sgpr(6)), (MODE & !0xf0 | 0x90, MODE & !0xf3 | 0x91));
}

#[test]
fn scalar_buffer_loads_of_all_sizes() {
    let mut data: Vec<u32> = (0..64).map(|k| 0x0101_0101 * k).collect();
    let base = data.as_ptr() as u64;
    let rig = Rig::default().memory(&mut data[..]).s64(4, base).s(6, 4 * 20).s(7, 0).s(8, 8);
    for (suffix, n) in [("", 1u16), ("x2", 2), ("x4", 4), ("x8", 8), ("x16", 16)] {
        let regs = if n == 1 { "s16".to_owned() } else { format!("s[16:{}]", 15 + n) };
        for (offset, first) in [("0x10", 4), ("s8", 2)] {
            let wave = rig.run(&[&format!("s_buffer_load_dword{suffix} {regs}, s[4:7], {offset}")]);
            for k in 0..n {
                // Twenty dwords are in range.
                let at = first + usize::from(k);
                let want = if at < 20 { 0x0101_0101 * at as u32 } else { 0 };
                assert_eq!(wave.sgpr(16 + k), want, "{suffix} {offset} {k}");
            }
        }
    }
}

#[test]
fn what_does_nothing() {
    let before = |rig: Rig| rig.s64(4, 0x1234_5678_9abc).s(106, 0x55).scc(true).exec(0xf0f0).v(1, [9; 32]);
    for text in [
        "s_nop 3",
        "s_wakeup",
        "s_sethalt 0",
        "s_setprio 2",
        "s_sendmsg sendmsg(MSG_INTERRUPT)",
        "s_icache_inv",
        "s_incperflevel 1",
        "s_decperflevel 1",
        "s_ttracedata",
        "s_ttracedata_imm 1",
        "s_cbranch_cdbgsys 1",
        "s_cbranch_cdbguser 1",
        "s_cbranch_cdbgsys_or_user 1",
        "s_cbranch_cdbgsys_and_user 1",
        "s_inst_prefetch 0x1",
        "s_clause 0x1",
        "s_wait_idle",
        "s_waitcnt_depctr 0xffff",
        "s_waitcnt_vscnt null, 0x0",
        "s_waitcnt_vmcnt null, 0x0",
        "s_waitcnt_expcnt null, 0x0",
        "s_waitcnt_lgkmcnt null, 0x0",
        "s_sleep 1",
        "s_gl1_inv",
        "s_dcache_inv",
        "s_version 0x1",
        "s_atc_probe 7, s[4:5], 0x0",
        "s_atc_probe_buffer 7, s[4:7], 0x0",
        "v_nop",
        "v_pipeflush",
        "v_clrexcp",
        "ds_nop",
    ] {
        // The instruction behind it runs.
        let wave = before(Rig::default()).run(&[text, "s_mov_b32 s20, 7"]);
        let state = (pair(&wave, 4), wave.sgpr(106), wave.scc(), wave.sgpr(126), wave.sgpr(20));
        assert_eq!(state, (0x1234_5678_9abc, 0x55, true, 0xf0f0, 7), "{text}");
        assert_eq!(reg(&wave, 1), [9; 32], "{text}");
    }
    // Ends of a wave: what follows doesn't run.
    for text in ["s_endpgm", "s_endpgm_saved", "s_endpgm_ordered_ps_done"] {
        assert_eq!(Rig::default().run(&[text, "s_mov_b32 s20, 7"]).sgpr(20), 0, "{text}");
    }
    let fault = Rig::default().try_run(&["s_code_end"]).expect_err("a fault");
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
}

#[test]
fn clocks_go_on() {
    let wave = Rig::default().run(&["s_memtime s[4:5]", "s_memrealtime s[6:7]", "s_memtime s[8:9]"]);
    let (first, second, third) = (pair(&wave, 4), pair(&wave, 6), pair(&wave, 8));
    assert!(0 < first && first <= second && second <= third, "{first} {second} {third}");
}
