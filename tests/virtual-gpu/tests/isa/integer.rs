//! Integer VALU against `i128` and bit arithmetic: random operands and the edges of the range.

use crate::harness::{Random, Rig, check3, reg, reg64};

/// The values where shifts, signs and carries turn.
const EDGES: [u32; 16] =
    [0, 1, 2, 15, 16, 31, 32, 33, 63, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// All triples of some edges, then random ones.
fn operands(seed: u64) -> [Vec<u32>; 3] {
    let mut random = Random::new(seed);
    let mut lists: [Vec<u32>; 3] = Default::default();
    for (k, a) in EDGES.into_iter().enumerate() {
        for (j, b) in EDGES.into_iter().enumerate() {
            for (list, x) in lists.iter_mut().zip([a, b, EDGES[(3 * k + 5 * j) % 16]]) {
                list.push(x);
            }
        }
    }
    for _ in 0..256 {
        lists.iter_mut().for_each(|list| list.push(random.next()));
    }
    lists
}

fn check(text: &str, oracle: impl Fn(u32, u32, u32) -> u32) {
    let [a, b, c] = operands(1);
    check3(Rig::default(), text, [&a, &b, &c], |x, y| x == y, oracle);
}

fn s(x: u32) -> i128 {
    (x as i32).into()
}

fn u(x: u32) -> i128 {
    x.into()
}

fn clamp(x: i128, low: i128, high: i128) -> u32 {
    x.max(low).min(high) as u32
}

const I32: (i128, i128) = (-(1 << 31), (1 << 31) - 1);
const U32: (i128, i128) = (0, (1 << 32) - 1);

/// `x * 2^-n`, rounded down.
fn shr(x: i128, n: u32) -> i128 {
    x.div_euclid(1 << n)
}

/// The low `n` bits of `x` as a signed number.
fn sext(x: u32, n: u32) -> i128 {
    let low = u(x).rem_euclid(1 << n);
    if low >= 1 << (n - 1) { low - (1 << n) } else { low }
}

#[test]
fn sums_and_products() {
    check("v_add_nc_u32_e32 v3, v0, v1", |a, b, _| (u(a) + u(b)) as u32);
    check("v_sub_nc_u32_e32 v3, v0, v1", |a, b, _| (u(a) - u(b)) as u32);
    check("v_subrev_nc_u32_e32 v3, v0, v1", |a, b, _| (u(b) - u(a)) as u32);
    check("v_add_nc_u32_e64 v3, v0, v1 clamp", |a, b, _| clamp(u(a) + u(b), U32.0, U32.1));
    check("v_sub_nc_u32_e64 v3, v0, v1 clamp", |a, b, _| clamp(u(a) - u(b), U32.0, U32.1));
    check("v_add_nc_i32 v3, v0, v1 clamp", |a, b, _| clamp(s(a) + s(b), I32.0, I32.1));
    check("v_sub_nc_i32 v3, v0, v1 clamp", |a, b, _| clamp(s(a) - s(b), I32.0, I32.1));
    check("v_add_nc_i32 v3, v0, v1", |a, b, _| (s(a) + s(b)) as u32);
    check("v_mul_lo_u32 v3, v0, v1", |a, b, _| (u(a) * u(b)) as u32);
    check("v_mul_hi_u32 v3, v0, v1", |a, b, _| shr(u(a) * u(b), 32) as u32);
    check("v_mul_hi_i32 v3, v0, v1", |a, b, _| shr(s(a) * s(b), 32) as u32);
    check("v_mul_u32_u24_e32 v3, v0, v1", |a, b, _| (u(a % (1 << 24)) * u(b % (1 << 24))) as u32);
    check("v_mul_i32_i24_e32 v3, v0, v1", |a, b, _| (sext(a, 24) * sext(b, 24)) as u32);
    check("v_mul_hi_u32_u24_e32 v3, v0, v1", |a, b, _| shr(u(a % (1 << 24)) * u(b % (1 << 24)), 32) as u32);
    check("v_mul_hi_i32_i24_e32 v3, v0, v1", |a, b, _| shr(sext(a, 24) * sext(b, 24), 32) as u32);
    check("v_mad_u32_u24 v3, v0, v1, v2", |a, b, c| (u(a % (1 << 24)) * u(b % (1 << 24)) + u(c)) as u32);
    check("v_mad_i32_i24 v3, v0, v1, v2", |a, b, c| (sext(a, 24) * sext(b, 24) + s(c)) as u32);
    check("v_add3_u32 v3, v0, v1, v2", |a, b, c| (u(a) + u(b) + u(c)) as u32);
    check("v_mad_u32_u16 v3, v0, v1, v2", |a, b, c| (u(a & 0xffff) * u(b & 0xffff) + u(c)) as u32);
    check("v_mad_i32_i16 v3, v0, v1, v2", |a, b, c| (sext(a, 16) * sext(b, 16) + s(c)) as u32);
    check("v_mad_u32_u16 v3, v0, v1, v2 op_sel:[1,0,0,0]", |a, b, c| {
        (u(a >> 16) * u(b & 0xffff) + u(c)) as u32
    });
    check("v_sad_u32 v3, v0, v1, v2", |a, b, c| ((u(a) - u(b)).abs() + u(c)) as u32);
    check("v_sad_u16 v3, v0, v1, v2", |a, b, c| {
        let d = |k: u32| (u(a >> k & 0xffff) - u(b >> k & 0xffff)).abs();
        (d(0) + d(16) + u(c)) as u32
    });
    let sad8 = |a: u32, b: u32, masked: bool| -> i128 {
        (0..4)
            .map(|k| (u(a >> (8 * k) & 255), u(b >> (8 * k) & 255)))
            .map(|(x, y)| if masked && y == 0 { 0 } else { (x - y).abs() })
            .sum()
    };
    check("v_sad_u8 v3, v0, v1, v2", |a, b, c| (sad8(a, b, false) + u(c)) as u32);
    check("v_msad_u8 v3, v0, v1, v2", |a, b, c| (sad8(a, b, true) + u(c)) as u32);
    check("v_sad_hi_u8 v3, v0, v1, v2", |a, b, c| (sad8(a, b, false) * 65536 + u(c)) as u32);
    check("v_lerp_u8 v3, v0, v1, v2", |a, b, c| {
        (0..4)
            .map(|k| {
                (a >> (8 * k) & 255).wrapping_add(b >> (8 * k) & 255).wrapping_add(c >> (8 * k) & 1) / 2
                    * (1 << (8 * k))
            })
            .sum()
    });
}

#[test]
fn shifts_and_fields() {
    check("v_lshlrev_b32_e32 v3, v0, v1", |a, b, _| (u(b) << (a % 32)) as u32);
    check("v_lshrrev_b32_e32 v3, v0, v1", |a, b, _| shr(u(b), a % 32) as u32);
    check("v_ashrrev_i32_e32 v3, v0, v1", |a, b, _| shr(s(b), a % 32) as u32);
    check("v_lshl_add_u32 v3, v0, v1, v2", |a, b, c| ((u(a) << (b % 32)) + u(c)) as u32);
    check("v_add_lshl_u32 v3, v0, v1, v2", |a, b, c| ((u(a) + u(b)) << (c % 32)) as u32);
    check("v_lshl_or_b32 v3, v0, v1, v2", |a, b, c| (u(a) << (b % 32)) as u32 | c);
    check("v_bfe_u32 v3, v0, v1, v2", |a, b, c| (shr(u(a), b % 32) % (1 << (c % 32))) as u32);
    check("v_bfe_i32 v3, v0, v1, v2", |a, b, c| match c % 32 {
        0 => 0,
        n => sext(shr(s(a), b % 32) as u32, n) as u32,
    });
    check("v_bfm_b32 v3, v0, v1", |a, b, _| (((1i128 << (a % 32)) - 1) << (b % 32)) as u32);
    check("v_bfi_b32 v3, v0, v1, v2", |a, b, c| {
        (0..32).map(|k| (if a >> k & 1 == 1 { b } else { c }) & 1 << k).sum()
    });
    check("v_alignbit_b32 v3, v0, v1, v2", |a, b, c| shr(u(a) << 32 | u(b), c % 32) as u32);
    check("v_alignbyte_b32 v3, v0, v1, v2", |a, b, c| shr(u(a) << 32 | u(b), 8 * (c % 4)) as u32);
    check("v_perm_b32 v3, v0, v1, v2", |a, b, c| {
        let bytes: Vec<u32> = [b, a].iter().flat_map(|x| x.to_le_bytes()).map(u32::from).collect();
        (0..4)
            .map(|k| {
                let byte = match c >> (8 * k) & 255 {
                    n @ 0..=7 => bytes[n as usize],
                    n @ 8..=11 => {
                        if bytes[2 * (n as usize - 8) + 1] >= 128 {
                            255
                        } else {
                            0
                        }
                    }
                    12 => 0,
                    _ => 255,
                };
                byte << (8 * k)
            })
            .sum()
    });
    check("v_lshlrev_b16 v3, v0, v1", |a, b, _| ((b & 0xffff) << (a % 16)) & 0xffff);
    check("v_lshrrev_b16 v3, v0, v1", |a, b, _| (b & 0xffff) >> (a % 16));
    check("v_ashrrev_i16 v3, v0, v1", |a, b, _| shr(sext(b, 16), a % 16) as u32 & 0xffff);
}

#[test]
fn bits() {
    check("v_and_b32_e32 v3, v0, v1", |a, b, _| a & b);
    check("v_or_b32_e32 v3, v0, v1", |a, b, _| a | b);
    check("v_xor_b32_e32 v3, v0, v1", |a, b, _| a ^ b);
    check("v_xnor_b32_e32 v3, v0, v1", |a, b, _| !(a ^ b));
    check("v_not_b32_e32 v3, v0", |a, _, _| !a);
    check("v_or3_b32 v3, v0, v1, v2", |a, b, c| a | b | c);
    check("v_xor3_b32 v3, v0, v1, v2", |a, b, c| a ^ b ^ c);
    check("v_and_or_b32 v3, v0, v1, v2", |a, b, c| a & b | c);
    check("v_xad_u32 v3, v0, v1, v2", |a, b, c| (u(a ^ b) + u(c)) as u32);
    let ones = |a: u32| (0..32).filter(|k| a >> k & 1 == 1).count() as u32;
    check("v_bcnt_u32_b32 v3, v0, v1", |a, b, _| ones(a).wrapping_add(b));
    check("v_bfrev_b32_e32 v3, v0", |a, _, _| (0..32).map(|k| (a >> k & 1) << (31 - k)).sum());
    let lowest = |a: u32| (0..32).find(|k| a >> k & 1 == 1).unwrap_or(u32::MAX);
    let highest = |a: u32| (0..32).find(|k| a >> (31 - k) & 1 == 1).unwrap_or(u32::MAX);
    check("v_ffbl_b32_e32 v3, v0", |a, _, _| lowest(a));
    check("v_ffbh_u32_e32 v3, v0", |a, _, _| highest(a));
    check("v_ffbh_i32_e32 v3, v0", |a, _, _| highest(if s(a) < 0 { !a } else { a }));
}

#[test]
fn orders() {
    let w = |x: i128| x as u32 & 0xffff;
    check("v_min_i16 v3, v0, v1", |a, b, _| w(sext(a, 16).min(sext(b, 16))));
    check("v_max_i16 v3, v0, v1", |a, b, _| w(sext(a, 16).max(sext(b, 16))));
    check("v_min_u16 v3, v0, v1", |a, b, _| (a & 0xffff).min(b & 0xffff));
    check("v_max_u16 v3, v0, v1", |a, b, _| (a & 0xffff).max(b & 0xffff));
    check("v_min_i32_e32 v3, v0, v1", |a, b, _| s(a).min(s(b)) as u32);
    check("v_max_i32_e32 v3, v0, v1", |a, b, _| s(a).max(s(b)) as u32);
    check("v_min_u32_e32 v3, v0, v1", |a, b, _| a.min(b));
    check("v_max_u32_e32 v3, v0, v1", |a, b, _| a.max(b));
    let sorted = |mut x: [i128; 3]| {
        x.sort_unstable();
        x
    };
    for (k, name) in ["min3", "med3", "max3"].into_iter().enumerate() {
        check(&format!("v_{name}_i32 v3, v0, v1, v2"), |a, b, c| sorted([s(a), s(b), s(c)])[k] as u32);
        check(&format!("v_{name}_u32 v3, v0, v1, v2"), |a, b, c| sorted([u(a), u(b), u(c)])[k] as u32);
        check(&format!("v_{name}_i16 v3, v0, v1, v2"), |a, b, c| {
            sorted([sext(a, 16), sext(b, 16), sext(c, 16)])[k] as u32 & 0xffff
        });
        check(&format!("v_{name}_u16 v3, v0, v1, v2"), |a, b, c| {
            sorted([u(a & 0xffff), u(b & 0xffff), u(c & 0xffff)])[k] as u32
        });
    }
}

#[test]
fn halves() {
    let i16s = (-(1 << 15), (1 << 15) - 1);
    let w = |x: i128| x as u32 & 0xffff;
    check("v_add_nc_u16 v3, v0, v1", |a, b, _| w(u(a) + u(b)));
    check("v_sub_nc_u16 v3, v0, v1", |a, b, _| w(u(a) - u(b)));
    check("v_add_nc_u16 v3, v0, v1 clamp", |a, b, _| clamp(u(a & 0xffff) + u(b & 0xffff), 0, 0xffff));
    check("v_sub_nc_u16 v3, v0, v1 clamp", |a, b, _| clamp(u(a & 0xffff) - u(b & 0xffff), 0, 0xffff));
    check("v_add_nc_i16 v3, v0, v1 clamp", |a, b, _| w((sext(a, 16) + sext(b, 16)).clamp(i16s.0, i16s.1)));
    check("v_sub_nc_i16 v3, v0, v1 clamp", |a, b, _| w((sext(a, 16) - sext(b, 16)).clamp(i16s.0, i16s.1)));
    check("v_mul_lo_u16 v3, v0, v1", |a, b, _| w(u(a & 0xffff) * u(b & 0xffff)));
    check("v_mad_u16 v3, v0, v1, v2", |a, b, c| w(u(a & 0xffff) * u(b & 0xffff) + u(c)));
    check("v_mad_i16 v3, v0, v1, v2", |a, b, c| w(sext(a, 16) * sext(b, 16) + s(c)));
    check("v_mad_u16 v3, v0, v1, v2 op_sel:[1,0,1,0]", |a, b, c| w(u(a >> 16) * u(b & 0xffff) + u(c >> 16)));
    // The result goes to the upper half; the lower one stays.
    check("v_add_nc_u16 v3, v0, v1 op_sel:[0,0,1]", |a, b, _| w(u(a) + u(b)) << 16);
    check("v_cvt_pk_u16_u32 v3, v0, v1", |a, b, _| a.min(0xffff) | b.min(0xffff) << 16);
    check("v_cvt_pk_i16_i32 v3, v0, v1", |a, b, _| {
        w(s(a).clamp(i16s.0, i16s.1)) | w(s(b).clamp(i16s.0, i16s.1)) << 16
    });
    check("v_sat_pk_u8_i16_e32 v3, v0", |a, _, _| {
        clamp(sext(a, 16), 0, 255) | clamp(sext(a >> 16, 16), 0, 255) << 8
    });
    check("v_pack_b32_f16 v3, v0, v1 op_sel:[0,1,0]", |a, b, _| a & 0xffff | b & 0xffff_0000);
}

/// A packed operation's oracle on both halves.
fn halved(f: impl Fn(i128, i128, i128) -> i128, signed: bool) -> impl Fn(u32, u32, u32) -> u32 {
    move |a, b, c| {
        let half = |x: u32, k: u32| if signed { sext(x >> k, 16) } else { u(x >> k & 0xffff) };
        let r = |k: u32| f(half(a, k), half(b, k), half(c, k)) as u32 & 0xffff;
        r(0) | r(16) << 16
    }
}

#[test]
fn packed() {
    check("v_pk_add_u16 v3, v0, v1", halved(|a, b, _| a + b, false));
    check("v_pk_sub_i16 v3, v0, v1", halved(|a, b, _| a - b, true));
    check("v_pk_add_u16 v3, v0, v1 clamp", halved(|a, b, _| (a + b).min(0xffff), false));
    check("v_pk_sub_u16 v3, v0, v1 clamp", halved(|a, b, _| (a - b).max(0), false));
    check("v_pk_add_i16 v3, v0, v1 clamp", halved(|a, b, _| (a + b).clamp(-32768, 32767), true));
    check("v_pk_sub_i16 v3, v0, v1 clamp", halved(|a, b, _| (a - b).clamp(-32768, 32767), true));
    check("v_pk_mul_lo_u16 v3, v0, v1", halved(|a, b, _| a * b, false));
    check("v_pk_mad_u16 v3, v0, v1, v2", halved(|a, b, c| a * b + c, false));
    check("v_pk_mad_i16 v3, v0, v1, v2", halved(|a, b, c| a * b + c, true));
    check("v_pk_max_i16 v3, v0, v1", halved(|a, b, _| a.max(b), true));
    check("v_pk_min_i16 v3, v0, v1", halved(|a, b, _| a.min(b), true));
    check("v_pk_max_u16 v3, v0, v1", halved(|a, b, _| a.max(b), false));
    check("v_pk_min_u16 v3, v0, v1", halved(|a, b, _| a.min(b), false));
    check("v_pk_lshlrev_b16 v3, v0, v1", halved(|a, b, _| b << (a & 15), false));
    check("v_pk_lshrrev_b16 v3, v0, v1", halved(|a, b, _| b >> (a & 15), false));
    check("v_pk_ashrrev_i16 v3, v0, v1", halved(|a, b, _| b >> (a & 15), true));
    check("v_pk_add_u16 v3, v0, v1 op_sel:[1,0] op_sel_hi:[0,1]", |a, b, _| {
        halved(|a, b, _| a + b, false)(a.rotate_left(16), b, 0)
    });
    // An inline constant is in the low half; `op_sel_hi` 0 gives it to both results.
    check("v_pk_add_u16 v3, v0, 7 op_sel_hi:[1,0]", halved(|a, _, _| a + 7, false));
    // An inline float is an f32: 2.0 has 0x4000 in the high half, and 0 in the low one.
    check("v_pk_add_u16 v3, v0, 2.0 op_sel:[0,1]", halved(|a, _, _| a + 0x4000, false));
}

#[test]
fn dot_products() {
    let dot = |a: u32, b: u32, n: u32, signed: bool| -> i128 {
        (0..32 / n)
            .map(|k| {
                let field = |x: u32| if signed { sext(x >> (k * n), n) } else { shr(u(x), k * n) % (1 << n) };
                field(a) * field(b)
            })
            .sum()
    };
    for (name, n, signed) in [
        ("v_dot2_i32_i16", 16, true),
        ("v_dot2_u32_u16", 16, false),
        ("v_dot4_i32_i8", 8, true),
        ("v_dot4_u32_u8", 8, false),
        ("v_dot8_i32_i4", 4, true),
        ("v_dot8_u32_u4", 4, false),
    ] {
        check(&format!("{name} v3, v0, v1, v2"), |a, b, c| (dot(a, b, n, signed) + u(c)) as u32);
        check(&format!("{name} v3, v0, v1, v2 clamp"), |a, b, c| {
            let sum = dot(a, b, n, signed) + if signed { s(c) } else { u(c) };
            if signed { clamp(sum, I32.0, I32.1) } else { clamp(sum, U32.0, U32.1) }
        });
    }
    let [a, b, _] = operands(2);
    for at in (0..a.len()).step_by(32) {
        let (x, y) = (std::array::from_fn(|l| a[at + l]), std::array::from_fn(|l| b[at + l]));
        let got = reg(&Rig::default().v(0, x).v(1, y).v(3, y).run(&["v_dot4c_i32_i8_e32 v3, v0, v1"]), 3);
        assert_eq!(got, std::array::from_fn(|l| (dot(x[l], y[l], 8, true) + u(y[l])) as u32));
    }
}

#[test]
fn carries() {
    let [a, b, _] = operands(3);
    for at in (0..a.len()).step_by(32) {
        let (x, y): ([u32; 32], [u32; 32]) =
            (std::array::from_fn(|l| a[at + l]), std::array::from_fn(|l| b[at + l]));
        let carries = 0xa5a5_1234;
        let rig = || Rig::default().v(0, x).v(1, y).s(106, carries).s(4, carries);
        let c = |l: usize| i128::from(carries >> l & 1);
        type Oracle<'a> = &'a dyn Fn(usize) -> i128;
        let cases: [(&str, u16, Oracle); 6] = [
            ("v_add_co_u32 v3, s6, v0, v1", 6, &|l| u(x[l]) + u(y[l])),
            ("v_sub_co_u32 v3, s6, v0, v1", 6, &|l| u(x[l]) - u(y[l])),
            ("v_subrev_co_u32 v3, s6, v0, v1", 6, &|l| u(y[l]) - u(x[l])),
            ("v_add_co_ci_u32_e32 v3, vcc_lo, v0, v1, vcc_lo", 106, &|l| u(x[l]) + u(y[l]) + c(l)),
            ("v_sub_co_ci_u32_e64 v3, s6, v0, v1, s4", 6, &|l| u(x[l]) - u(y[l]) - c(l)),
            ("v_subrev_co_ci_u32_e64 v3, s6, v0, v1, s4", 6, &|l| u(y[l]) - u(x[l]) - c(l)),
        ];
        for (text, sdst, oracle) in cases {
            for exec in [u32::MAX, 0x0ff0_1001] {
                let wave = rig().exec(exec).run(&[text]);
                let got = reg(&wave, 3);
                let mut mask = 0;
                for l in 0..32 {
                    let (active, want) = (exec >> l & 1 != 0, oracle(l));
                    assert_eq!(got[l], if active { want as u32 } else { 0 }, "{text}");
                    mask |= u32::from(active && !(0..1 << 32).contains(&want)) << l;
                }
                assert_eq!(wave.sgpr(sdst), mask, "{text}");
            }
        }
    }
}

#[test]
fn sixty_four_bits() {
    let mut random = Random::new(4);
    for round in 0..20 {
        let (a, b): ([u32; 32], [u32; 32]) = (random.lanes(), random.lanes());
        let c: [u64; 32] = std::array::from_fn(|l| match (round, l) {
            (0, l) if l < 16 => u64::MAX - l as u64,
            _ => u64::from(random.next()) << 32 | u64::from(random.next()),
        });
        let rig = || Rig::default().v(0, a).v(1, b).v64(4, c);
        let wave = rig().run(&["v_mad_u64_u32 v[6:7], s6, v0, v1, v[4:5]"]);
        let exact = |l: usize| u(a[l]) * u(b[l]) + i128::from(c[l]);
        assert_eq!(reg64(&wave, 6), std::array::from_fn(|l| exact(l) as u64));
        assert_eq!(wave.sgpr(6), (0..32).map(|l| u32::from(exact(l) >> 64 != 0) << l).sum());
        let wave = rig().run(&["v_mad_i64_i32 v[6:7], s6, v0, v1, v[4:5]"]);
        assert_eq!(
            reg64(&wave, 6),
            std::array::from_fn(|l| (s(a[l]) * s(b[l]) + i128::from(c[l] as i64)) as u64)
        );
        let wave = rig().run(&["v_lshlrev_b64 v[6:7], v0, v[4:5]"]);
        assert_eq!(reg64(&wave, 6), std::array::from_fn(|l| (i128::from(c[l]) << (a[l] % 64)) as u64));
        let wave = rig().run(&["v_lshrrev_b64 v[6:7], v0, v[4:5]"]);
        assert_eq!(reg64(&wave, 6), std::array::from_fn(|l| shr(c[l].into(), a[l] % 64) as u64));
        let wave = rig().run(&["v_ashrrev_i64 v[6:7], v0, v[4:5]"]);
        assert_eq!(reg64(&wave, 6), std::array::from_fn(|l| shr((c[l] as i64).into(), a[l] % 64) as u64));
        // Literals: sign-extended for i64, zero-extended for others; inline integers always sign-extended.
        let wave = rig().run(&["v_ashrrev_i64 v[6:7], 4, 0x87654320"]);
        assert_eq!(reg64(&wave, 6)[0], 0xffff_ffff_f876_5432);
        let wave = rig().run(&["v_lshrrev_b64 v[6:7], 4, 0x87654320"]);
        assert_eq!(reg64(&wave, 6)[0], 0x0876_5432);
        let wave = rig().run(&["v_lshrrev_b64 v[6:7], 4, -3"]);
        assert_eq!(reg64(&wave, 6)[0], 0x0fff_ffff_ffff_ffff);
    }
}

#[test]
fn comparisons() {
    let [a, b, _] = operands(5);
    for at in (0..a.len()).step_by(32) {
        let (x, y): ([u32; 32], [u32; 32]) =
            (std::array::from_fn(|l| a[at + l]), std::array::from_fn(|l| b[at + l]));
        type Order = fn(i128, i128) -> bool;
        let orders: [(&str, Order); 6] = [
            ("lt", |a, b| a < b),
            ("eq", |a, b| a == b),
            ("le", |a, b| a <= b),
            ("gt", |a, b| a > b),
            ("ne", |a, b| a != b),
            ("ge", |a, b| a >= b),
        ];
        type Read = fn(u32) -> i128;
        let types: [(&str, Read); 4] =
            [("i32", s), ("u32", u), ("i16", |x| sext(x, 16)), ("u16", |x| u(x & 0xffff))];
        for (order, holds) in orders {
            for (ty, read) in types {
                let exec = 0xf0ff_ff0f;
                let want = (0..32)
                    .map(|l| u32::from(exec >> l & 1 != 0 && holds(read(x[l]), read(y[l]))) << l)
                    .sum::<u32>();
                let rig = || Rig::default().v(0, x).v(1, y).exec(exec);
                assert_eq!(rig().run(&[&format!("v_cmp_{order}_{ty}_e64 s5, v0, v1")]).sgpr(5), want);
                assert_eq!(rig().run(&[&format!("v_cmp_{order}_{ty}_e32 vcc_lo, v0, v1")]).sgpr(106), want);
                assert_eq!(rig().run(&[&format!("v_cmpx_{order}_{ty}_e32 v0, v1")]).sgpr(126), want);
            }
            let wide =
                |l: usize| (u64::from(x[l]) << 32 | u64::from(y[l]), u64::from(y[l]) << 32 | u64::from(x[l]));
            let rig = || {
                Rig::default()
                    .v64(0, std::array::from_fn(|l| wide(l).0))
                    .v64(2, std::array::from_fn(|l| wide(l).1))
            };
            let mask = |f: &dyn Fn(u64, u64) -> bool| {
                (0..32).map(|l| u32::from(f(wide(l).0, wide(l).1)) << l).sum::<u32>()
            };
            let signed = mask(&|a, b| holds((a as i64).into(), (b as i64).into()));
            assert_eq!(rig().run(&[&format!("v_cmp_{order}_i64_e64 s5, v[0:1], v[2:3]")]).sgpr(5), signed);
            let unsigned = mask(&|a, b| holds(a.into(), b.into()));
            assert_eq!(rig().run(&[&format!("v_cmp_{order}_u64_e64 s5, v[0:1], v[2:3]")]).sgpr(5), unsigned);
        }
    }
}

#[test]
fn sums_of_differences_in_four_places() {
    let mut random = Random::new(6);
    for round in 0..20 {
        let (reference, low, high) = (random.lanes(), random.lanes(), random.lanes());
        // Some bytes of the reference are 0, which the masked form leaves out.
        let reference = reference.map(|x| if round % 2 == 0 { x & 0xff00_ffff } else { x });
        let a: [u64; 32] = std::array::from_fn(|l| u64::from(high[l]) << 32 | u64::from(low[l]));
        // Small enough that no sum overflows.
        let sums = a.map(|x| x & 0x0fff_0fff_0fff_0fff);
        for (name, masked) in [("qsad", false), ("mqsad", true)] {
            let rig = Rig::default().v64(0, a).v(2, reference).v64(4, sums);
            let got = reg64(&rig.run(&[&format!("v_{name}_pk_u16_u8 v[6:7], v[0:1], v2, v[4:5]")]), 6);
            for l in 0..32 {
                let bytes = a[l].to_le_bytes();
                let want: u64 = (0..4)
                    .map(|k| {
                        let differences: u64 = (0..4)
                            .map(|j| (bytes[k + j], reference[l].to_le_bytes()[j]))
                            .filter(|(_, y)| !masked || *y != 0)
                            .map(|(x, y)| u64::from(x.abs_diff(y)))
                            .sum();
                        ((sums[l] >> (16 * k) & 0xffff) + differences) << (16 * k)
                    })
                    .sum();
                assert_eq!(got[l], want, "{name}");
            }
        }
    }
}
