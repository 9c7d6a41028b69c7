//! Floating-point VALU. Oracles: 64-bit arithmetic rounded once where that is exact, the `half` crate's conversions,
//! and `rustc_apfloat` for the other rounding modes.

use rustc_apfloat::ieee::{Double, Half, Single};
use rustc_apfloat::{Float as _, FloatConvert as _, Round};

use crate::harness::{MODE, Random, Rig, check3, reg, reg64, same16, same32, same64};

const SPECIAL: [u32; 20] = [
    0x0000_0000,
    0x8000_0000,
    0x0000_0001,
    0x807f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f7f_ffff,
    0x4b00_0001,
    0xcb80_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0x4f00_0000,
    0xcf00_0000,
    0x4f80_0000,
    0x3f00_0000,
];

/// Pairs of special values, values near 1, and random bits.
pub(crate) fn operands(seed: u64) -> [Vec<u32>; 3] {
    let mut random = Random::new(seed);
    let mut lists: [Vec<u32>; 3] = Default::default();
    for (k, a) in SPECIAL.into_iter().enumerate() {
        for (j, b) in SPECIAL.into_iter().enumerate() {
            lists.iter_mut().zip([a, b, SPECIAL[(7 * k + 3 * j) % 20]]).for_each(|(list, x)| list.push(x));
        }
    }
    for _ in 0..512 {
        lists.iter_mut().for_each(|list| {
            let x = random.next();
            // Every second triple has close exponents, so that sums cancel and round.
            list.push(if random.next() & 1 == 0 { x } else { x & 0x83ff_ffff | 0x3e00_0000 });
        });
    }
    lists
}

fn check(text: &str, oracle: impl Fn(f64, f64, f64) -> f64) {
    let [a, b, c] = operands(1);
    let f = |x: u32| f64::from(f32::from_bits(x));
    check3(Rig::default(), text, [&a, &b, &c], same32, |a, b, c| (oracle(f(a), f(b), f(c)) as f32).to_bits());
}

fn single(x: u32) -> Single {
    Single::from_bits(x.into())
}

const ROUNDS: [(u32, Round); 4] = [
    (0, Round::NearestTiesToEven),
    (1, Round::TowardPositive),
    (2, Round::TowardNegative),
    (3, Round::TowardZero),
];

#[test]
fn sums_and_products_in_each_rounding_mode() {
    let [a, b, c] = operands(2);
    for (field, r) in ROUNDS {
        let rig = || Rig::default().mode(MODE | field);
        let run = |text: &str, oracle: &dyn Fn(Single, Single, Single) -> Single| {
            check3(rig(), text, [&a, &b, &c], same32, |a, b, c| {
                oracle(single(a), single(b), single(c)).to_bits() as u32
            });
        };
        run("v_add_f32_e32 v3, v0, v1", &|a, b, _| a.add_r(b, r).value);
        run("v_sub_f32_e32 v3, v0, v1", &|a, b, _| a.sub_r(b, r).value);
        run("v_subrev_f32_e32 v3, v0, v1", &|a, b, _| b.sub_r(a, r).value);
        run("v_mul_f32_e32 v3, v0, v1", &|a, b, _| a.mul_r(b, r).value);
        run("v_fma_f32 v3, v0, v1, v2", &|a, b, c| a.mul_add_r(b, c, r).value);
        run("v_fma_f32 v3, -v0, |v1|, -|v2|", &|a, b, c| {
            let abs = |x: Single| if x.is_negative() { -x } else { x };
            (-a).mul_add_r(abs(b), -abs(c), r).value
        });
    }
}

#[test]
fn thirty_two_bit_denormals_flush() {
    // What the assembler sets for kernels that say nothing: 32-bit denormals are 0, in and out.
    let flush = |x: f32| if x.is_subnormal() { 0.0_f32.copysign(x) } else { x };
    let [mut a, mut b, c] = operands(3);
    for k in 0..64 {
        // Denormal operands and denormal results.
        a.push(0x0000_1000 * k);
        b.push(0x3f80_0000);
        a.push(0x0080_0000 | k << 8);
        b.push(0x3e80_0000);
    }
    let c: Vec<u32> = a.iter().enumerate().map(|(k, _)| c[k % c.len()]).collect();
    let mode = 0x3c0;
    let f = |x| flush(f32::from_bits(x));
    let run = |text: &str, oracle: &dyn Fn(f32, f32, f32) -> f32| {
        check3(Rig::default().mode(mode), text, [&a, &b, &c], same32, |a, b, c| {
            flush(oracle(f(a), f(b), f(c))).to_bits()
        });
    };
    run("v_add_f32_e32 v3, v0, v1", &|a, b, _| a + b);
    run("v_mul_f32_e32 v3, v0, v1", &|a, b, _| a * b);
    run("v_fma_f32 v3, v0, v1, v2", &|a, b, c| a.mul_add(b, c));
    run("v_max_f32_e32 v3, v0, v0", &|a, _, _| a);
    // Flushing the output alone, and the input alone.
    check3(Rig::default().mode(0x3d0), "v_add_f32_e32 v3, v0, v1", [&a, &b, &c], same32, |a, b, _| {
        flush(f32::from_bits(a) + f32::from_bits(b)).to_bits()
    });
    check3(Rig::default().mode(0x3e0), "v_mul_f32_e32 v3, v0, v1", [&a, &b, &c], same32, |a, b, _| {
        (f(a) * f(b)).to_bits()
    });
    // Moves and selections keep denormals.
    check3(Rig::default().mode(mode), "v_mov_b32_e32 v3, v0", [&a, &b, &c], |x, y| x == y, |a, _, _| a);
}

#[test]
fn legacy_products() {
    check("v_mul_legacy_f32_e32 v3, v0, v1", |a, b, _| if a == 0.0 || b == 0.0 { 0.0 } else { a * b });
}

#[test]
fn minima_and_maxima() {
    // IEEE 754-2008 minNum and maxNum, with -0 below +0; signalling NaNs become quiet (MODE.IEEE).
    let signalling = |x: u32| f32::from_bits(x).is_nan() && x & 0x40_0000 == 0;
    let key = |x: u32| if x >> 31 == 1 { -i64::from(x & 0x7fff_ffff) - 1 } else { i64::from(x) };
    let pick = move |a: u32, b: u32, larger: bool| {
        let nan = |x: u32| f32::from_bits(x).is_nan();
        if signalling(a) || signalling(b) {
            return f32::NAN.to_bits();
        }
        match (nan(a), nan(b)) {
            (true, _) => b,
            (_, true) => a,
            _ if (key(a) > key(b)) == larger => a,
            _ => b,
        }
    };
    let [a, b, c] = operands(4);
    let run = |text: &str, oracle: &dyn Fn(u32, u32, u32) -> u32| {
        check3(Rig::default(), text, [&a, &b, &c], same32, oracle);
    };
    run("v_max_f32_e32 v3, v0, v1", &|a, b, _| pick(a, b, true));
    run("v_min_f32_e32 v3, v0, v1", &|a, b, _| pick(a, b, false));
    run("v_max3_f32 v3, v0, v1, v2", &|a, b, c| pick(pick(a, b, true), c, true));
    run("v_min3_f32 v3, v0, v1, v2", &|a, b, c| pick(pick(a, b, false), c, false));
    run("v_med3_f32 v3, v0, v1, v2", &|a, b, c| {
        if [a, b, c].iter().any(|x| f32::from_bits(*x).is_nan()) {
            return pick(pick(a, b, false), c, false);
        }
        let mut all = [a, b, c];
        all.sort_by_key(|x| key(*x));
        all[1]
    });
}

#[test]
fn roundings_to_integers() {
    check("v_floor_f32_e32 v3, v0", |a, _, _| a.floor());
    check("v_ceil_f32_e32 v3, v0", |a, _, _| a.ceil());
    check("v_trunc_f32_e32 v3, v0", |a, _, _| a.trunc());
    check("v_rndne_f32_e32 v3, v0", |a, _, _| a.round_ties_even());
    check("v_fract_f32_e32 v3, v0", |a, _, _| {
        let f = a - a.floor();
        if f.is_nan() { f } else { f.min(f64::from(1.0f32.next_down())) }
    });
}

#[test]
fn conversions() {
    let [a, b, c] = operands(5);
    let run = |text: &str, oracle: &dyn Fn(u32) -> u32, same: fn(u32, u32) -> bool| {
        check3(Rig::default(), text, [&a, &b, &c], same, |a, _, _| oracle(a));
    };
    let f = |x: u32| f64::from(f32::from_bits(x));
    // Truncation with saturation; NaN is 0.
    let saturate = |x: f64, low: f64, high: f64| if x.is_nan() { 0.0 } else { x.trunc().clamp(low, high) };
    run(
        "v_cvt_i32_f32_e32 v3, v0",
        &|a| saturate(f(a), -2147483648.0, 2147483647.0) as i64 as u32,
        |x, y| x == y,
    );
    run("v_cvt_u32_f32_e32 v3, v0", &|a| saturate(f(a), 0.0, 4294967295.0) as i64 as u32, |x, y| x == y);
    run(
        "v_cvt_flr_i32_f32_e32 v3, v0",
        &|a| saturate(f(a).floor(), -2147483648.0, 2147483647.0) as i64 as u32,
        |x, y| x == y,
    );
    run("v_cvt_f32_i32_e32 v3, v0", &|a| (f64::from(a as i32) as f32).to_bits(), same32);
    run("v_cvt_f32_u32_e32 v3, v0", &|a| (f64::from(a) as f32).to_bits(), same32);
    run("v_cvt_f16_f32_e32 v3, v0", &|a| half::f16::from_f32(f32::from_bits(a)).to_bits().into(), same16);
    run("v_cvt_f32_f16_e32 v3, v0", &|a| half::f16::from_bits(a as u16).to_f32().to_bits(), same32);
    for k in 0..4 {
        run(&format!("v_cvt_f32_ubyte{k}_e32 v3, v0"), &|a| f32::from(a.to_le_bytes()[k]).to_bits(), same32);
    }
    for (field, r) in ROUNDS {
        let mode = MODE | field << 2 | field;
        let mut lost = false;
        check3(Rig::default().mode(mode), "v_cvt_f16_f32_e32 v3, v0", [&a, &b, &c], same16, |a, _, _| {
            let h: Half = single(a).convert_r(r, &mut false).value;
            h.to_bits() as u32
        });
        check3(Rig::default().mode(mode), "v_cvt_f32_i32_e32 v3, v0", [&a, &b, &c], same32, |a, _, _| {
            Single::from_i128_r((a as i32).into(), r).value.to_bits() as u32
        });
        let _ = &mut lost;
    }
    check3(
        Rig::default(),
        "v_cvt_pkrtz_f16_f32_e32 v3, v0, v1",
        [&a, &b, &c],
        |x, y| same16(x, y) && same16(x >> 16, y >> 16),
        |a, b, _| {
            let h = |x: u32| -> u32 {
                let h: Half = single(x).convert_r(Round::TowardZero, &mut false).value;
                h.to_bits() as u32
            };
            h(a) | h(b) << 16
        },
    );
}

#[test]
fn every_half_converts_exactly() {
    for base in (0..=0xffffu32).step_by(32) {
        let wave = Rig::default()
            .v(0, std::array::from_fn(|l| base + l as u32))
            .run(&["v_cvt_f32_f16_e32 v3, v0", "v_cvt_f16_f32_e32 v4, v3"]);
        for l in 0..32 {
            let h = half::f16::from_bits(base as u16 + l as u16);
            assert!(same32(reg(&wave, 3)[l], h.to_f32().to_bits()), "{:#x}", h.to_bits());
            assert!(same16(reg(&wave, 4)[l], h.to_bits().into()), "{:#x}", h.to_bits());
        }
    }
}

#[test]
fn sixteen_bits() {
    let mut random = Random::new(6);
    let specials = [
        0u32, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
        0x3800, 0x3801, 0x6400,
    ];
    let mut lists: [Vec<u32>; 3] = Default::default();
    for a in specials {
        for b in specials {
            lists.iter_mut().zip([a, b, specials[(a ^ b) as usize % 16]]).for_each(|(list, x)| list.push(x));
        }
    }
    for _ in 0..4096 {
        lists.iter_mut().for_each(|list| list.push(random.next() & 0xffff));
        // Close exponents, where fused products round twice if done carelessly.
        lists.iter_mut().for_each(|list| list.push(random.next() & 0x87ff | 0x3000));
    }
    let h = |x: u32| Half::from_bits(u128::from(x & 0xffff));
    for (field, r) in ROUNDS {
        let run = |text: &str, oracle: &dyn Fn(Half, Half, Half) -> Half| {
            let [a, b, c] = &lists;
            check3(Rig::default().mode(MODE | field << 2), text, [a, b, c], same16, |a, b, c| {
                oracle(h(a), h(b), h(c)).to_bits() as u32
            });
        };
        run("v_add_f16_e32 v3, v0, v1", &|a, b, _| a.add_r(b, r).value);
        run("v_sub_f16_e32 v3, v0, v1", &|a, b, _| a.sub_r(b, r).value);
        run("v_mul_f16_e32 v3, v0, v1", &|a, b, _| a.mul_r(b, r).value);
        run("v_fma_f16 v3, v0, v1, v2", &|a, b, c| a.mul_add_r(b, c, r).value);
    }
    let [a, b, c] = &lists;
    check3(Rig::default(), "v_pk_fma_f16 v3, v0, v1, v2", [a, b, c], same16, |a, b, c| {
        h(a).mul_add_r(h(b), h(c), Round::NearestTiesToEven).value.to_bits() as u32
    });
    check3(
        Rig::default(),
        "v_pk_add_f16 v3, v0, v1 op_sel_hi:[0,0] neg_lo:[0,1] neg_hi:[0,1]",
        [a, b, c],
        |x, y| same16(x, y) && same16(x >> 16, y),
        |a, b, _| h(a).sub_r(h(b), Round::NearestTiesToEven).value.to_bits() as u32,
    );
    check3(
        Rig::default(),
        "v_ldexp_f16_e32 v3, v0, v1",
        [a, &b.iter().map(|x| x & 63).collect::<Vec<_>>(), c],
        same16,
        |a, b, _| h(a).scalbn_r(b as i32, Round::NearestTiesToEven).to_bits() as u32,
    );
}

/// Random doubles: every second one of moderate size.
pub(crate) fn doubles(seed: u64, n: usize) -> Vec<u64> {
    let mut random = Random::new(seed);
    let mut list = vec![
        0,
        1 << 63,
        1,
        0xf_ffff_ffff_ffff,
        0x10_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x41df_ffff_ffff_ffff,
        0xc1e0_0000_0000_0000,
    ];
    while list.len() < n {
        let x = u64::from(random.next()) << 32 | u64::from(random.next());
        list.push(if list.len() % 2 == 0 { x } else { x & 0x803f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000 });
    }
    list
}

#[test]
fn sixty_four_bits() {
    let (a, mut b, mut c) = (doubles(7, 1024), doubles(8, 1024), doubles(9, 1024));
    b.rotate_left(5);
    c.rotate_left(17);
    let d = |x: u64| Double::from_bits(x.into());
    for at in (0..a.len()).step_by(32) {
        let pick = |list: &[u64]| -> [u64; 32] { std::array::from_fn(|l| list[at + l]) };
        let (x, y, z) = (pick(&a), pick(&b), pick(&c));
        for (field, r) in ROUNDS {
            let rig = Rig::default().mode(MODE | field << 2).v64(0, x).v64(2, y).v64(4, z);
            let check = |text: &str, oracle: &dyn Fn(usize) -> Double| {
                let got = reg64(&rig.run(&[text]), 6);
                for l in 0..32 {
                    let want = oracle(l).to_bits() as u64;
                    assert!(
                        same64(got[l], want),
                        "{text}: {:#x} {:#x} {:#x} gives {:#x}, not {want:#x}",
                        x[l],
                        y[l],
                        z[l],
                        got[l]
                    );
                }
            };
            check("v_add_f64 v[6:7], v[0:1], v[2:3]", &|l| d(x[l]).add_r(d(y[l]), r).value);
            check("v_mul_f64 v[6:7], v[0:1], v[2:3]", &|l| d(x[l]).mul_r(d(y[l]), r).value);
            check("v_fma_f64 v[6:7], v[0:1], v[2:3], v[4:5]", &|l| {
                d(x[l]).mul_add_r(d(y[l]), d(z[l]), r).value
            });
            let narrow = reg(&rig.run(&["v_cvt_f32_f64_e32 v8, v[0:1]"]), 8);
            for l in 0..32 {
                let want: Single = d(x[l]).convert_r(Round::NearestTiesToEven, &mut false).value;
                if field == 0 {
                    assert!(same32(narrow[l], want.to_bits() as u32), "{:#x}", x[l]);
                }
            }
        }
        let rig = Rig::default().v64(0, x).v64(2, y);
        let f = |l: usize| f64::from_bits(x[l]);
        let check = |text: &str, oracle: &dyn Fn(f64) -> f64| {
            let got = reg64(&rig.run(&[text]), 6);
            (0..32).for_each(|l| assert!(same64(got[l], oracle(f(l)).to_bits()), "{text} {:#x}", x[l]));
        };
        check("v_floor_f64_e32 v[6:7], v[0:1]", &f64::floor);
        check("v_ceil_f64_e32 v[6:7], v[0:1]", &f64::ceil);
        check("v_trunc_f64_e32 v[6:7], v[0:1]", &f64::trunc);
        check("v_rndne_f64_e32 v[6:7], v[0:1]", &f64::round_ties_even);
        check("v_rcp_f64_e32 v[6:7], v[0:1]", &|x| 1.0 / x);
        check("v_sqrt_f64_e32 v[6:7], v[0:1]", &f64::sqrt);
        let got = reg(&rig.run(&["v_cvt_i32_f64_e32 v8, v[0:1]"]), 8);
        (0..32).for_each(|l| {
            assert_eq!(
                got[l],
                if f(l).is_nan() { 0 } else { f(l).trunc().clamp(-2147483648.0, 2147483647.0) as i64 as u32 }
            )
        });
    }
}

#[test]
fn frexp_ldexp_class() {
    let [a, b, c] = operands(10);
    let f = |x: u32| f64::from(f32::from_bits(x));
    // Bit-exact: mantissa times 2^exponent is the number, and the mantissa lies in [0.5, 1).
    for at in (0..a.len()).step_by(32) {
        let x: [u32; 32] = std::array::from_fn(|l| a[(at + l) % a.len()]);
        let wave =
            Rig::default().v(0, x).run(&["v_frexp_mant_f32_e32 v3, v0", "v_frexp_exp_i32_f32_e32 v4, v0"]);
        for l in 0..32 {
            let (m, e) = (f(reg(&wave, 3)[l]), reg(&wave, 4)[l] as i32);
            if !f(x[l]).is_finite() || f(x[l]) == 0.0 {
                assert!(same32(reg(&wave, 3)[l], x[l]) && e == 0, "{:#x}", x[l]);
            } else {
                assert!((0.5..1.0).contains(&m.abs()) && m * 2f64.powi(e) == f(x[l]), "{:#x}: {m} {e}", x[l]);
            }
        }
    }
    let exponents: Vec<u32> = b.iter().map(|b| ((b % 600) as i32 - 300) as u32).collect();
    check3(Rig::default(), "v_ldexp_f32 v3, v0, v1", [&a, &exponents, &c], same32, |a, e, _| {
        single(a).scalbn_r(e as i32, Round::NearestTiesToEven).to_bits() as u32
    });
    for bit in 0..10 {
        let masks = vec![1u32 << bit; a.len()];
        for at in (0..a.len()).step_by(32) {
            let x: [u32; 32] = std::array::from_fn(|l| a[(at + l) % a.len()]);
            let wave = Rig::default().v(0, x).v(1, [masks[0]; 32]).run(&["v_cmp_class_f32_e64 s5, v0, v1"]);
            let want = (0..32).map(|l| u32::from(class(x[l]) == bit) << l).sum::<u32>();
            assert_eq!(wave.sgpr(5), want, "class {bit}");
        }
    }
}

/// The class's bit number: sNaN, qNaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
fn class(x: u32) -> u32 {
    use std::num::FpCategory as C;
    let (f, negative) = (f32::from_bits(x), x >> 31 == 1);
    match (f.classify(), negative) {
        (C::Nan, _) => u32::from(x & 0x40_0000 != 0),
        (C::Infinite, n) => {
            if n {
                2
            } else {
                9
            }
        }
        (C::Normal, n) => {
            if n {
                3
            } else {
                8
            }
        }
        (C::Subnormal, n) => {
            if n {
                4
            } else {
                7
            }
        }
        (C::Zero, n) => {
            if n {
                5
            } else {
                6
            }
        }
    }
}

#[test]
fn comparisons_with_nan() {
    let [a, b, _] = operands(11);
    type Order = fn(f32, f32) -> bool;
    let orders: [(&str, Order); 14] = [
        ("lt", |a, b| a < b),
        ("eq", |a, b| a == b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("lg", |a, b| a < b || a > b),
        ("ge", |a, b| a >= b),
        ("o", |a, b| !a.is_nan() && !b.is_nan()),
        ("u", |a, b| a.is_nan() || b.is_nan()),
        ("nge", |a, b| !(a >= b)),
        ("nlg", |a, b| !(a < b || a > b)),
        ("ngt", |a, b| !(a > b)),
        ("nle", |a, b| !(a <= b)),
        ("neq", |a, b| a != b),
        ("nlt", |a, b| !(a < b)),
    ];
    for at in (0..a.len() - 31).step_by(32) {
        let (x, y): ([u32; 32], [u32; 32]) =
            (std::array::from_fn(|l| a[at + l]), std::array::from_fn(|l| b[at + l]));
        for (name, holds) in orders {
            let wave = Rig::default().v(0, x).v(1, y).run(&[&format!("v_cmp_{name}_f32_e64 s5, v0, v1")]);
            let want = (0..32)
                .map(|l| u32::from(holds(f32::from_bits(x[l]), f32::from_bits(y[l]))) << l)
                .sum::<u32>();
            assert_eq!(wave.sgpr(5), want, "{name}");
        }
    }
}

#[test]
fn transcendentals_are_within_one_unit() {
    let mut random = Random::new(12);
    type F = fn(f64) -> f64;
    let functions: [(&str, F, f32, f32); 7] = [
        ("rcp", |x| 1.0 / x, -1e30, 1e30),
        ("rsq", |x| 1.0 / x.sqrt(), 1e-30, 1e30),
        ("sqrt", f64::sqrt, 0.0, 1e30),
        ("exp", f64::exp2, -120.0, 120.0),
        ("log", f64::log2, 1e-30, 1e30),
        ("sin", |x| (x * std::f64::consts::TAU).sin(), -1.0, 1.0),
        ("cos", |x| (x * std::f64::consts::TAU).cos(), -1.0, 1.0),
    ];
    for (name, f, low, high) in functions {
        for _ in 0..16 {
            let x: [f32; 32] =
                std::array::from_fn(|_| low + (high - low) * (random.next() as f32 / 4294967296.0));
            let wave = Rig::default().v(0, x.map(f32::to_bits)).run(&[&format!("v_{name}_f32_e32 v3, v0")]);
            for l in 0..32 {
                let (got, want) = (f64::from(f32::from_bits(reg(&wave, 3)[l])), f(f64::from(x[l])));
                // One unit in the last place, at most 2^-23 relative; sines and cosines near 0 are measured absolutely.
                assert!(
                    (got - want).abs() <= want.abs().max(1e-6) * 2f64.powi(-23),
                    "{name}({}) {got} {want}",
                    x[l]
                );
            }
        }
    }
    let bits = |text: &str, x: u32| reg(&Rig::default().v(0, [x; 32]).run(&[text]), 3)[0];
    assert_eq!(bits("v_rcp_f32_e32 v3, v0", 0), 0x7f80_0000);
    assert_eq!(bits("v_rcp_f32_e32 v3, v0", 0xff80_0000), 0x8000_0000);
    assert_eq!(bits("v_log_f32_e32 v3, v0", 0), 0xff80_0000);
    assert!(f32::from_bits(bits("v_sqrt_f32_e32 v3, v0", 0xbf80_0000)).is_nan());
    assert_eq!(bits("v_exp_f32_e32 v3, v0", 0xc300_0000), 0, "2^-128 is denormal: flushed");
}

#[test]
fn clamp_and_output_modifiers() {
    let lanes = |x: [f32; 4]| -> [u32; 32] { std::array::from_fn(|l| x[l % 4].to_bits()) };
    let x = lanes([-1.0, 0.25, 3.0, f32::NAN]);
    let run =
        |mode: u32, text: &str| reg(&Rig::default().mode(mode).v(0, x).run(&[text]), 3).map(f32::from_bits);
    let got = run(MODE, "v_add_f32_e64 v3, v0, 0 clamp");
    assert_eq!(got[..4], [0.0, 0.25, 1.0, 0.0]);
    // Without DX10_CLAMP NaN stays.
    assert!(run(MODE & !0x100, "v_add_f32_e64 v3, v0, 0 clamp")[3].is_nan());
    // Output modifiers work without IEEE and with denormals flushed, and are ignored otherwise.
    assert_eq!(run(0x1c0, "v_add_f32_e64 v3, v0, 0 mul:4")[..3], [-4.0, 1.0, 12.0]);
    assert_eq!(run(0x1c0, "v_add_f32_e64 v3, v0, 0 div:2")[..3], [-0.5, 0.125, 1.5]);
    assert_eq!(run(MODE, "v_add_f32_e64 v3, v0, 0 mul:4")[..3], [-1.0, 0.25, 3.0]);
}

#[test]
fn fma_mix_takes_halves_and_floats() {
    let mut random = Random::new(13);
    let h = |x: u32| f64::from(half::f16::from_bits(x as u16).to_f32());
    for _ in 0..32 {
        // Moderate values: exponents that 32 bits hold exactly in the oracle's 64.
        let halves = random.lanes().map(|x| x & 0x87ff_87ff | 0x3800_3800);
        let floats = random.lanes().map(|x| x & 0x807f_ffff | 0x3f80_0000);
        let rig = Rig::default().v(0, halves).v(1, floats).v(2, halves);
        let got = reg(&rig.run(&["v_fma_mix_f32 v3, v0, v1, v2 op_sel:[1,0,0] op_sel_hi:[1,0,1]"]), 3);
        for l in 0..32 {
            let (a, b, c) = (h(halves[l] >> 16), f64::from(f32::from_bits(floats[l])), h(halves[l]));
            // 11 + 24 bits: the product and the sum are exact in 64.
            assert_eq!(got[l], ((a * b + c) as f32).to_bits());
        }
        let wave = rig.run(&[
            "v_fma_mixlo_f16 v3, v0, v1, v2 op_sel_hi:[1,0,1]",
            "v_fma_mixhi_f16 v3, -v0, v1, |v2| op_sel_hi:[1,0,1]",
        ]);
        for l in 0..32 {
            let (a, b, c) = (h(halves[l]), f64::from(f32::from_bits(floats[l])), h(halves[l]));
            let round = |x: f64| u32::from(half::f16::from_f32(x as f32).to_bits());
            assert_eq!(reg(&wave, 3)[l], round(a * b + c) | round(-a * b + c.abs()) << 16);
        }
    }
}

#[test]
fn dot_of_halves() {
    let mut random = Random::new(14);
    let h = |x: u32| f64::from(half::f16::from_bits(x as u16).to_f32());
    for _ in 0..32 {
        // Small integers: every order and rounding gives the same.
        let small = |x: u32| -> u32 { u32::from(half::f16::from_f32((x % 17) as f32 - 8.0).to_bits()) };
        let pair = |random: &mut Random| random.lanes().map(|x| small(x) | small(x >> 8) << 16);
        let (a, b) = (pair(&mut random), pair(&mut random));
        let c = random.lanes().map(|x| ((x % 1000) as f32).to_bits());
        let want: [u32; 32] = std::array::from_fn(|l| {
            ((h(a[l]) * h(b[l]) + h(a[l] >> 16) * h(b[l] >> 16) + f64::from(f32::from_bits(c[l]))) as f32)
                .to_bits()
        });
        let rig = Rig::default().v(0, a).v(1, b).v(2, c).v(3, c);
        assert_eq!(reg(&rig.run(&["v_dot2_f32_f16 v3, v0, v1, v2"]), 3), want);
        assert_eq!(reg(&rig.run(&["v_dot2c_f32_f16_e32 v3, v0, v1"]), 3), want);
    }
}
