//! Instructions that cross lanes, and the SDWA and DPP forms.

use crate::harness::{Random, Rig, reg};

fn numbered() -> [u32; 32] {
    std::array::from_fn(|l| 100 + l as u32)
}

/// Runs a DPP move of v0 (100 + lane) into v3, which holds 7.
fn dpp(text: &str, exec: u32) -> [u32; 32] {
    reg(&Rig::default().v(0, numbered()).v(3, [7; 32]).exec(exec).run(&[text]), 3)
}

/// The expected result: for each lane the lane that it reads, or what it holds otherwise.
fn expect(got: [u32; 32], from: impl Fn(usize) -> Option<usize>, otherwise: u32) {
    let want = std::array::from_fn(|l| from(l).map_or(otherwise, |f| 100 + f as u32));
    assert_eq!(got, want);
}

#[test]
fn dpp_rows() {
    let all = u32::MAX;
    let row = |l: usize, to: i32| (0..16).contains(&to).then_some(l & 16 | to as usize);
    expect(
        dpp("v_mov_b32_dpp v3, v0 quad_perm:[3,0,1,1] row_mask:0xf bank_mask:0xf", all),
        |l| Some(l & !3 | [3, 0, 1, 1][l & 3]),
        0,
    );
    expect(
        dpp("v_mov_b32_dpp v3, v0 row_shl:3 row_mask:0xf bank_mask:0xf", all),
        |l| row(l, (l & 15) as i32 + 3),
        7,
    );
    expect(
        dpp("v_mov_b32_dpp v3, v0 row_shr:3 row_mask:0xf bank_mask:0xf", all),
        |l| row(l, (l & 15) as i32 - 3),
        7,
    );
    expect(
        dpp("v_mov_b32_dpp v3, v0 row_shr:3 row_mask:0xf bank_mask:0xf bound_ctrl:1", all),
        |l| row(l, (l & 15) as i32 - 3),
        0,
    );
    expect(
        dpp("v_mov_b32_dpp v3, v0 row_ror:5 row_mask:0xf bank_mask:0xf", all),
        |l| Some(l & 16 | (l + 11) & 15),
        0,
    );
    expect(
        dpp("v_mov_b32_dpp v3, v0 row_mirror row_mask:0xf bank_mask:0xf", all),
        |l| Some(l & 16 | (15 - (l & 15))),
        0,
    );
    expect(
        dpp("v_mov_b32_dpp v3, v0 row_half_mirror row_mask:0xf bank_mask:0xf", all),
        |l| Some(l & !7 | (7 - (l & 7))),
        0,
    );
    expect(dpp("v_mov_b32_dpp v3, v0 row_share:9 row_mask:0xf bank_mask:0xf", all), |l| Some(l & 16 | 9), 0);
    expect(dpp("v_mov_b32_dpp v3, v0 row_xmask:6 row_mask:0xf bank_mask:0xf", all), |l| Some(l ^ 6), 0);
    // Masks: rows, then banks of four lanes.
    expect(
        dpp("v_mov_b32_dpp v3, v0 quad_perm:[0,1,2,3] row_mask:0x2 bank_mask:0x5", all),
        |l| (l >= 16 && (l / 4) % 2 == 0).then_some(l),
        7,
    );
}

#[test]
fn dpp_and_inactive_lanes() {
    // Lane 1 is inactive: lane 0 reads it and keeps its value, or gets 0 by bound_ctrl, or reads it by fi.
    let exec = 0xffff_fffd;
    let lane0 = |rest: &str| {
        dpp(&format!("v_mov_b32_dpp v3, v0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf{rest}"), exec)[0]
    };
    assert_eq!((lane0(""), lane0(" bound_ctrl:1"), lane0(" fi:1")), (7, 0, 101));
    expect(dpp("v_mov_b32_dpp v3, v0 dpp8:[7,6,5,4,3,2,1,0]", u32::MAX), |l| Some(l & !7 | (7 - (l & 7))), 0);
    // In groups of 8 lane 0 gets 0, or reads it by fi.
    let lane0 = |rest: &str| dpp(&format!("v_mov_b32_dpp v3, v0 dpp8:[1,0,3,2,5,4,7,6]{rest}"), exec)[0];
    assert_eq!((lane0(""), lane0(" fi:1")), (0, 101));
    // Arithmetic takes the permuted first source and its modifiers.
    let rig = Rig::default().v(0, numbered().map(|x| (x as f32).to_bits())).v(1, [1f32.to_bits(); 32]);
    let got = reg(&rig.run(&["v_add_f32_dpp v3, -v0, v1 row_share:0 row_mask:0xf bank_mask:0xf"]), 3);
    assert_eq!(got.map(f32::from_bits), std::array::from_fn(|l| 1.0 - (100 + (l & 16)) as f32));
}

/// A product of a low and a high half, into the high half; the low one stays.
const MERGED_PRODUCT: &str = concat!(
    "v_mul_f16_sdwa v3, v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE ",
    "src0_sel:WORD_1 src1_sel:WORD_0"
);

#[test]
fn sdwa_selects_and_merges() {
    let mut random = Random::new(1);
    let (a, b, old) = (random.lanes(), random.lanes(), random.lanes());
    let run = |text: &str| reg(&Rig::default().v(0, a).v(1, b).v(3, old).run(&[text]), 3);
    let each =
        |f: &dyn Fn(u32, u32, u32) -> u32| -> [u32; 32] { std::array::from_fn(|l| f(a[l], b[l], old[l])) };
    assert_eq!(
        run(
            "v_add_nc_u32_sdwa v3, v0, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2 src1_sel:WORD_1"
        ),
        each(&|a, b, _| (a >> 16 & 255) + (b >> 16))
    );
    assert_eq!(
        run(
            "v_add_nc_u32_sdwa v3, sext(v0), v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:DWORD"
        ),
        each(&|a, b, _| ((a >> 24) as i8 as u32).wrapping_add(b))
    );
    assert_eq!(
        run(
            "v_or_b32_sdwa v3, v0, v1 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD"
        ),
        each(&|a, b, old| old & !0xff00 | ((a | b) & 255) << 8)
    );
    assert_eq!(
        run("v_or_b32_sdwa v3, v0, v1 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD"),
        each(&|a, b, _| (a | b) << 16)
    );
    assert_eq!(
        run("v_or_b32_sdwa v3, v0, v1 dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:DWORD"),
        each(&|a, b, _| ((a | b) as i8 as u32) << 8)
    );
    let wave =
        Rig::default().v(0, a).v(1, b).run(&["v_cmp_lt_u32_sdwa s8, v0, v1 src0_sel:BYTE_0 src1_sel:BYTE_0"]);
    assert_eq!(wave.sgpr(8), (0..32).map(|l| u32::from(a[l] & 255 < b[l] & 255) << l).sum());
    // A 16-bit result: SDWA's destination decides about the other half.
    let h = |x: f32| u32::from(half::f16::from_f32(x).to_bits());
    let rig = Rig::default().v(0, [h(2.0) << 16; 32]).v(1, [h(3.0); 32]).v(3, [0xabcd_1234; 32]);
    let got = reg(&rig.run(&[MERGED_PRODUCT]), 3);
    assert_eq!(got, [h(6.0) << 16 | 0x1234; 32]);
    // Without SDWA the upper half stays.
    assert_eq!(reg(&rig.run(&["v_mul_f16_e32 v3, v1, v1"]), 3), [0xabcd_0000 | h(9.0); 32]);
}

#[test]
fn single_lanes() {
    let rig = || Rig::default().v(0, numbered()).s(4, 37);
    assert_eq!(rig().exec(0xff0).run(&["v_readfirstlane_b32 s5, v0"]).sgpr(5), 104);
    assert_eq!(rig().exec(0).run(&["v_readfirstlane_b32 s5, v0"]).sgpr(5), 100);
    assert_eq!(rig().exec(0).run(&["v_readlane_b32 s5, v0, s4"]).sgpr(5), 105);
    let wave = rig().exec(0).run(&["v_writelane_b32 v0, s4, 3"]);
    assert_eq!(reg(&wave, 0), std::array::from_fn(|l| if l == 3 { 37 } else { 100 + l as u32 }));
    let wave = rig().run(&["v_mbcnt_lo_u32_b32 v3, s4, 1", "v_mbcnt_hi_u32_b32 v4, -1, v3"]);
    // 37 is 0b100101.
    let want = std::array::from_fn(|l| 1 + (0..l).filter(|k| 37u64 >> k & 1 == 1).count() as u32);
    assert_eq!((reg(&wave, 3), reg(&wave, 4)), (want, want));
    let wave = rig().v(1, [9; 32]).exec(0xffff).run(&["v_swap_b32 v0, v1"]);
    assert_eq!((reg(&wave, 0)[..2].to_vec(), reg(&wave, 1)[31]), (vec![9, 9], 9));
}

#[test]
fn permutations() {
    let select = [0x7654_3210u32, 0xfedc_ba98];
    let rig = |s: [u32; 2]| Rig::default().v(0, numbered()).v(3, [7; 32]).s(4, s[0]).s(5, s[1]);
    let got = reg(&rig(select).run(&["v_permlane16_b32 v3, v0, s4, s5"]), 3);
    assert_eq!(got, numbered());
    let got = reg(&rig(select).run(&["v_permlanex16_b32 v3, v0, s4, s5"]), 3);
    assert_eq!(got, std::array::from_fn(|l| 100 + (l ^ 16) as u32));
    let got = reg(&rig([0x1111_1111; 2]).exec(0xffff_fffd).run(&["v_permlane16_b32 v3, v0, s4, s5"]), 3);
    // Lane 1 is inactive: its row keeps its values.
    assert_eq!(got, std::array::from_fn(|l| if l < 16 { 7 } else { 117 }));
    let got = reg(
        &rig([0x1111_1111; 2]).exec(0xffff_fffd).run(&["v_permlane16_b32 v3, v0, s4, s5 op_sel:[1,0]"]),
        3,
    );
    assert_eq!(got, std::array::from_fn(|l| if l == 1 { 7 } else { 101 + (l as u32 & 16) }));
}

#[test]
fn lds_permutations() {
    let reversed: [u32; 32] = std::array::from_fn(|l| 4 * (31 - l as u32));
    let rig = || Rig::default().v(0, numbered()).v(1, reversed).v(3, [7; 32]);
    let run = |text: &str, exec: u32| reg(&rig().exec(exec).run(&[text]), 3);
    assert_eq!(run("ds_bpermute_b32 v3, v1, v0", u32::MAX), std::array::from_fn(|l| 131 - l as u32));
    assert_eq!(run("ds_permute_b32 v3, v1, v0", u32::MAX), std::array::from_fn(|l| 131 - l as u32));
    assert_eq!(
        run("ds_bpermute_b32 v3, v1, v0 offset:4", u32::MAX),
        std::array::from_fn(|l| 100 + (32 - l as u32) % 32)
    );
    // An inactive lane's data reads as 0.
    assert_eq!(run("ds_bpermute_b32 v3, v1, v0", 0x7fff_ffff)[0], 0);
    assert_eq!(
        run("ds_swizzle_b32 v3, v0 offset:swizzle(QUAD_PERM,1,0,3,2)", u32::MAX),
        std::array::from_fn(|l| 100 + (l as u32 ^ 1))
    );
    assert_eq!(
        run("ds_swizzle_b32 v3, v0 offset:swizzle(SWAP,16)", u32::MAX),
        std::array::from_fn(|l| 100 + (l as u32 ^ 16))
    );
    assert_eq!(
        run("ds_swizzle_b32 v3, v0 offset:swizzle(BROADCAST,8,3)", u32::MAX),
        std::array::from_fn(|l| 103 + (l as u32 & 24))
    );
    assert_eq!(
        run("ds_swizzle_b32 v3, v0 offset:swizzle(REVERSE,32)", u32::MAX),
        std::array::from_fn(|l| 131 - l as u32)
    );
    // FFT: bits in reverse order.
    assert_eq!(
        run("ds_swizzle_b32 v3, v0 offset:0xe000", u32::MAX),
        std::array::from_fn(|l| 100 + ((l as u32).reverse_bits() >> 27))
    );
}
