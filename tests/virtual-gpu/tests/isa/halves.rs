//! 16-bit floats: transcendentals for every input, minima, conversions, and MODE's denormals. Oracles: 64-bit
//! arithmetic rounded once by `rustc_apfloat`, and that crate's own arithmetic.

use rustc_apfloat::ieee::{Double, Half, Single};
use rustc_apfloat::{Float as _, FloatConvert as _, Round};

use crate::harness::{MODE, Random, Rig, check3, reg, same16};

/// Nearest even.
pub(crate) const NEAREST: Round = Round::NearestTiesToEven;

fn h(x: u32) -> Half {
    Half::from_bits(u128::from(x & 0xffff))
}

fn bits(x: Half) -> u32 {
    x.to_bits() as u32
}

/// The value, exactly.
fn value(x: u32) -> f64 {
    half::f16::from_bits(x as u16).to_f64()
}

/// The nearest 16-bit float.
fn round(x: f64) -> u32 {
    let half: Half = Double::from_bits(x.to_bits().into()).convert_r(NEAREST, &mut false).value;
    bits(half)
}

/// A denormal as a zero of the same sign.
fn flushed(x: u32) -> u32 {
    if x & 0x7c00 == 0 { x & 0x8000 } else { x & 0xffff }
}

/// Whether the results are neighbours, or the same.
fn close(a: u32, b: u32) -> bool {
    let zero = |x: u32| x & 0x7fff == 0;
    same16(a, b) || zero(a) && zero(b) || a >> 15 == b >> 15 && a.abs_diff(b) == 1
}

/// Every 16-bit float.
fn all() -> Vec<u32> {
    (0..=0xffff).collect()
}

/// Pairs and triples of special values, then random ones, every second one of moderate size.
fn operands() -> [Vec<u32>; 3] {
    const SPECIAL: [u32; 15] = [
        0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x8400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
        0x7c01,
    ];
    let mut random = Random::new(21);
    let mut lists: [Vec<u32>; 3] = Default::default();
    for a in SPECIAL {
        for b in SPECIAL {
            lists.iter_mut().zip([a, b, SPECIAL[(a ^ b) as usize % 15]]).for_each(|(list, x)| list.push(x));
        }
    }
    for _ in 0..512 {
        lists.iter_mut().for_each(|list| list.push(random.next() & 0xffff));
        lists.iter_mut().for_each(|list| list.push(random.next() & 0x87ff | 0x3000));
    }
    lists
}

fn check(text: &str, oracle: impl Fn(u32, u32, u32) -> u32) {
    let [a, b, c] = operands();
    check3(Rig::default(), text, [&a, &b, &c], same16, oracle);
}

fn check_all(text: &str, same: fn(u32, u32) -> bool, oracle: impl Fn(u32) -> u32) {
    check3(Rig::default(), text, [&all(), &[0], &[0]], same, |a, _, _| oracle(a));
}

#[test]
fn transcendentals_of_every_half_are_within_one_unit() {
    type F = fn(f64) -> f64;
    let functions: [(&str, F); 7] = [
        ("rcp", |x| 1.0 / x),
        ("rsq", |x| 1.0 / x.sqrt()),
        ("sqrt", f64::sqrt),
        ("exp", f64::exp2),
        ("log", f64::log2),
        ("sin", |x| (x % 1.0 * std::f64::consts::TAU).sin()),
        ("cos", |x| (x % 1.0 * std::f64::consts::TAU).cos()),
    ];
    for (name, f) in functions {
        let text = format!("v_{name}_f16_e32 v3, v0");
        check_all(&text, close, |a| round(f(value(a))));
        // Denormals read and written as 0, as MODE says.
        check3(Rig::default().mode(MODE & !0xc0), &text, [&all(), &[0], &[0]], close, |a, _, _| {
            flushed(round(f(value(flushed(a)))))
        });
    }
    // The signs of zeros and infinities, which `close` leaves open or doesn't name.
    let one = |text: &str, x: u32| reg(&Rig::default().v(0, [x; 32]).run(&[text]), 3)[0];
    assert_eq!(one("v_rcp_f16_e32 v3, v0", 0x8000), 0xfc00);
    assert_eq!(one("v_rcp_f16_e32 v3, v0", 0xfc00), 0x8000);
    assert_eq!(one("v_sqrt_f16_e32 v3, v0", 0x8000), 0x8000);
    assert_eq!(one("v_log_f16_e32 v3, v0", 0), 0xfc00);
    assert_eq!(one("v_exp_f16_e32 v3, v0", 0xfc00), 0);
}

#[test]
fn roundings_and_parts_of_every_half() {
    check_all("v_floor_f16_e32 v3, v0", same16, |a| round(value(a).floor()));
    check_all("v_ceil_f16_e32 v3, v0", same16, |a| round(value(a).ceil()));
    check_all("v_trunc_f16_e32 v3, v0", same16, |a| round(value(a).trunc()));
    check_all("v_rndne_f16_e32 v3, v0", same16, |a| round(value(a).round_ties_even()));
    check_all("v_fract_f16_e32 v3, v0", same16, |a| {
        let f = value(a) - value(a).floor();
        // Below 1, where rounding would give 1.
        if f.is_nan() { 0x7e00 } else { round(f).min(0x3bff) }
    });
    let split = |a: u32| -> (u32, i32) {
        let x = value(a);
        if !x.is_finite() || x == 0.0 {
            return (a, 0);
        }
        // The exponent for which the mantissa lies in [0.5, 1).
        let e = (-30..20).find(|e| x.abs() < 2f64.powi(*e)).expect("a finite number");
        (round(x / 2f64.powi(e)), e)
    };
    check_all("v_frexp_mant_f16_e32 v3, v0", same16, |a| split(a).0);
    check_all("v_frexp_exp_i16_f16_e32 v3, v0", |a, b| a & 0xffff == b, |a| split(a).1 as u32 & 0xffff);
    let saturate = |x: f64, low: f64, high: f64| {
        if x.is_nan() { 0 } else { x.trunc().clamp(low, high) as i32 as u32 & 0xffff }
    };
    let low = |a: u32, b: u32| a & 0xffff == b;
    check_all("v_cvt_i16_f16_e32 v3, v0", low, |a| saturate(value(a), -32768.0, 32767.0));
    check_all("v_cvt_u16_f16_e32 v3, v0", low, |a| saturate(value(a), 0.0, 65535.0));
    let scaled = |a: u32, low: f64, scale: f64| -> u32 {
        let x = value(a);
        if x.is_nan() { 0 } else { (x.clamp(low, 1.0) * scale).round_ties_even() as i32 as u32 & 0xffff }
    };
    // Products of 11 and 16 bits, which 64 bits hold exactly.
    check_all("v_cvt_norm_i16_f16_e32 v3, v0", low, |a| scaled(a, -1.0, 32767.0));
    check_all("v_cvt_norm_u16_f16_e32 v3, v0", low, |a| scaled(a, 0.0, 65535.0));
    for (at, scale, low) in [("i16", 32767.0, -1.0), ("u16", 65535.0, 0.0)] {
        let text = format!("v_cvt_pknorm_{at}_f16 v3, v0, v1");
        check3(
            Rig::default(),
            &text,
            [&operands()[0], &operands()[1], &[0]],
            |a, b| a == b,
            |a, b, _| scaled(a, low, scale) | scaled(b, low, scale) << 16,
        );
    }
    for (field, r) in
        [NEAREST, Round::TowardPositive, Round::TowardNegative, Round::TowardZero].into_iter().enumerate()
    {
        let mode = MODE | (field as u32) << 2;
        let run = |text: &str, oracle: &dyn Fn(u32) -> i128| {
            check3(Rig::default().mode(mode), text, [&all(), &[0], &[0]], same16, |a, _, _| {
                bits(Half::from_i128_r(oracle(a), r).value)
            });
        };
        run("v_cvt_f16_u16_e32 v3, v0", &|a| a.into());
        run("v_cvt_f16_i16_e32 v3, v0", &|a| (a as u16 as i16).into());
    }
}

/// minNum or maxNum of IEEE 754-2008, -0 below +0, where a signalling NaN wins.
fn pick(a: u32, b: u32, larger: bool) -> u32 {
    let nan = |x: u32| x & 0x7fff > 0x7c00;
    let key = |x: u32| if x & 0x8000 == 0 { x as i32 } else { -((x & 0x7fff) as i32) - 1 };
    match (nan(a), nan(b)) {
        _ if nan(a) && a & 0x200 == 0 || nan(b) && b & 0x200 == 0 => 0x7e00,
        (true, _) => b,
        (_, true) => a,
        _ if (key(a) > key(b)) == larger => a,
        _ => b,
    }
}

#[test]
fn minima_and_maxima() {
    check("v_max_f16_e32 v3, v0, v1", |a, b, _| pick(a, b, true));
    check("v_min_f16_e32 v3, v0, v1", |a, b, _| pick(a, b, false));
    check("v_max3_f16 v3, v0, v1, v2", |a, b, c| pick(pick(a, b, true), c, true));
    check("v_min3_f16 v3, v0, v1, v2", |a, b, c| pick(pick(a, b, false), c, false));
    check("v_med3_f16 v3, v0, v1, v2", |a, b, c| {
        if [a, b, c].iter().any(|x| x & 0x7fff > 0x7c00) {
            return pick(pick(a, b, false), c, false);
        }
        // Without the smallest and the largest one.
        let (low, high) = (pick(pick(a, b, false), c, false), pick(pick(a, b, true), c, true));
        a ^ b ^ c ^ low ^ high
    });
    let both = |x: u32, y: u32| same16(x, y) && same16(x >> 16, y >> 16);
    let [a, b, _] = operands();
    let pairs = |list: &[u32]| -> Vec<u32> {
        list.iter().zip(list.iter().rev()).map(|(low, high)| low | high << 16).collect()
    };
    let (a, b) = (pairs(&a), pairs(&b));
    let run = |text: &str, oracle: &dyn Fn(u32, u32) -> u32| {
        check3(Rig::default(), text, [&a, &b, &[0]], both, |a, b, _| {
            oracle(a & 0xffff, b & 0xffff) | oracle(a >> 16, b >> 16) << 16
        });
    };
    run("v_pk_max_f16 v3, v0, v1", &|a, b| pick(a, b, true));
    run("v_pk_min_f16 v3, v0, v1", &|a, b| pick(a, b, false));
    run("v_pk_mul_f16 v3, v0, v1", &|a, b| bits(h(a).mul_r(h(b), NEAREST).value));
}

#[test]
fn sums_into_the_destination() {
    let [a, b, c] = operands();
    let run = |text: &str, oracle: &dyn Fn(u32, u32, u32) -> u32| {
        // The addend is the destination's old value: v2 moves there first.
        for at in (0..a.len() - 31).step_by(32) {
            let pick = |list: &[u32]| -> [u32; 32] { std::array::from_fn(|l| list[at + l]) };
            let (x, y, z) = (pick(&a), pick(&b), pick(&c));
            let got = reg(&Rig::default().v(0, x).v(1, y).v(2, z).v(3, z).run(&[text]), 3);
            for l in 0..32 {
                let want = oracle(x[l], y[l], z[l]);
                assert!(same16(got[l], want), "{text}: {:#x} {:#x} {:#x}: {:#x}", x[l], y[l], z[l], got[l]);
            }
        }
    };
    let fma = |a: u32, b: u32, c: u32| bits(h(a).mul_add_r(h(b), h(c), NEAREST).value);
    run("v_fmac_f16_e32 v3, v0, v1", &fma);
    run("v_pk_fmac_f16 v3, v0, v1", &fma);
    // 0x3e00 is 1.5.
    run("v_fmamk_f16 v3, v0, 0x3e00, v1", &|a, b, _| fma(a, 0x3e00, b));
    run("v_fmaak_f16 v3, v0, v1, 0x3e00", &|a, b, _| fma(a, b, 0x3e00));
    run("v_subrev_f16_e32 v3, v0, v1", &|a, b, _| bits(h(b).sub_r(h(a), NEAREST).value));
}

#[test]
fn quotients_by_fixup() {
    // As compilers divide: in 32 bits, rounded to 16, and special cases by the fixup.
    let [a, b, c] = operands();
    for at in (0..a.len() - 31).step_by(32) {
        let pick = |list: &[u32]| -> [u32; 32] { std::array::from_fn(|l| list[at + l]) };
        let (x, y) = (pick(&a), pick(&b));
        let wave = Rig::default().v(0, x).v(1, y).v(2, pick(&c)).run(&[
            "v_cvt_f32_f16_e32 v4, v1",
            "v_rcp_f32_e32 v4, v4",
            "v_cvt_f32_f16_e32 v5, v0",
            "v_mul_f32_e32 v4, v5, v4",
            "v_cvt_f16_f32_e32 v4, v4",
            "v_div_fixup_f16 v3, v4, v1, v0",
        ]);
        for l in 0..32 {
            let (got, want) = (reg(&wave, 3)[l], bits(h(x[l]).div_r(h(y[l]), NEAREST).value));
            // The reciprocal and the product are each rounded to 24 bits, which may decide a tie differently.
            assert!(close(got & 0xffff, want), "{:#x} / {:#x} = {got:#x}, not {want:#x}", x[l], y[l]);
            let zero_or_infinite = [0, 0x7c00].contains(&(want & 0x7fff));
            assert!(!zero_or_infinite || got & 0xffff == want, "{:#x} / {:#x} = {got:#x}", x[l], y[l]);
        }
    }
}

#[test]
fn sixteen_bit_denormals_flush() {
    // MODE's bits 6 and 7: denormals of 16 and 64 bits as operands, and as results.
    let [mut a, mut b, mut c] = operands();
    for k in 0..512 {
        // Denormal operands, and products that are denormal.
        [&mut a, &mut b, &mut c].into_iter().zip([k, 0x3c00, 2 * k]).for_each(|(list, x)| list.push(x));
        [&mut a, &mut b, &mut c]
            .into_iter()
            .zip([0x400 + k, 0x3000 + k, 0x8000])
            .for_each(|(list, x)| list.push(x));
    }
    for bits67 in 0..4u32 {
        let flush = |on: bool, x: u32| if on { flushed(x) } else { x & 0xffff };
        let (reads, writes) = (bits67 & 1 == 0, bits67 & 2 == 0);
        let mode = MODE & !0xc0 | bits67 << 6;
        let run = |text: &str, oracle: &dyn Fn(Half, Half, Half) -> Half| {
            check3(Rig::default().mode(mode), text, [&a, &b, &c], same16, |a, b, c| {
                let [a, b, c] = [a, b, c].map(|x| h(flush(reads, x)));
                flush(writes, bits(oracle(a, b, c)))
            });
        };
        run("v_add_f16_e32 v3, v0, v1", &|a, b, _| a.add_r(b, NEAREST).value);
        run("v_mul_f16_e32 v3, v0, v1", &|a, b, _| a.mul_r(b, NEAREST).value);
        run("v_fma_f16 v3, v0, v1, v2", &|a, b, c| a.mul_add_r(b, c, NEAREST).value);
        run("v_pk_fma_f16 v3, v0, v1, v2", &|a, b, c| a.mul_add_r(b, c, NEAREST).value);
        check3(Rig::default().mode(mode), "v_max_f16_e32 v3, v0, v1", [&a, &b, &c], same16, |a, b, _| {
            flush(writes, pick(flush(reads, a), flush(reads, b), true))
        });
        // Conversions read 16 bits, or write them.
        check3(
            Rig::default().mode(mode),
            "v_cvt_f32_f16_e32 v3, v0",
            [&a, &b, &c],
            crate::harness::same32,
            |a, _, _| half::f16::from_bits(flush(reads, a) as u16).to_f32().to_bits(),
        );
        let singles: Vec<u32> =
            a.iter().map(|a| half::f16::from_bits(*a as u16).to_f32().to_bits()).collect();
        check3(
            Rig::default().mode(mode),
            "v_cvt_f16_f32_e32 v3, v0",
            [&singles, &b, &c],
            same16,
            |a, _, _| {
                let half: Half = Single::from_bits(a.into()).convert_r(NEAREST, &mut false).value;
                flush(writes, bits(half))
            },
        );
        // Moves and comparisons: a comparison reads as arithmetic does.
        let got = Rig::default().mode(mode).v(0, [1; 32]).run(&["v_cmp_gt_f16_e64 s5, v0, 0"]).sgpr(5);
        assert_eq!(got, if reads { 0 } else { u32::MAX });
    }
}

#[test]
fn comparisons_and_classes() {
    type Order = fn(f64, f64) -> bool;
    let orders: [(&str, Order); 16] = [
        ("f", |_, _| false),
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
        ("tru", |_, _| true),
    ];
    let [a, b, _] = operands();
    for at in (0..a.len() - 31).step_by(32) {
        let pick = |list: &[u32]| -> [u32; 32] { std::array::from_fn(|l| list[at + l]) };
        let (x, y) = (pick(&a), pick(&b));
        let rig = || Rig::default().v(0, x).v(1, y);
        // The same numbers in 64 bits: NaN and denormals are what they were.
        let wide = |x: [u32; 32]| x.map(|x| value(x).to_bits());
        let double = || Rig::default().v64(0, wide(x)).v64(2, wide(y));
        for (name, holds) in orders {
            let want = (0..32).map(|l| u32::from(holds(value(x[l]), value(y[l]))) << l).sum::<u32>();
            assert_eq!(rig().run(&[&format!("v_cmp_{name}_f16_e64 s5, v0, v1")]).sgpr(5), want, "{name}");
            assert_eq!(rig().run(&[&format!("v_cmpx_{name}_f16_e32 v0, v1")]).sgpr(126), want, "{name}");
            let text = format!("v_cmp_{name}_f64_e64 s5, v[0:1], v[2:3]");
            assert_eq!(double().run(&[&text]).sgpr(5), want, "{name}");
            let text = format!("v_cmpx_{name}_f64_e32 v[0:1], v[2:3]");
            assert_eq!(double().run(&[&text]).sgpr(126), want, "{name}");
        }
        for bit in 0..10 {
            let mask = [1u32 << bit; 32];
            let member = |x: u32| {
                let (negative, exponent, fraction) = (x & 0x8000 != 0, x >> 10 & 31, x & 0x3ff);
                let side = |below: u32, above: u32| if negative { below } else { above };
                match (exponent, fraction) {
                    (31, 0) => side(2, 9),
                    (31, f) => u32::from(f & 0x200 != 0),
                    (0, 0) => side(5, 6),
                    (0, _) => side(4, 7),
                    _ => side(3, 8),
                }
            };
            let want = (0..32).map(|l| u32::from(member(x[l]) == bit) << l).sum::<u32>();
            let got = rig().v(4, mask).run(&["v_cmp_class_f16_e64 s5, v0, v4"]).sgpr(5);
            assert_eq!(got, want, "class {bit}");
            let got = rig().v(4, mask).run(&["v_cmpx_class_f16_e32 v0, v4"]).sgpr(126);
            assert_eq!(got, want, "class {bit}");
        }
    }
}
