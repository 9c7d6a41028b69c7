//! 64-bit floats beyond sums and products, and what 32-bit floats have beside those: fused sums into the destination,
//! selections, packing conversions.

use rustc_apfloat::Float as _;
use rustc_apfloat::ieee::{Double, Single};

use crate::float::{doubles, operands};
use crate::halves::NEAREST;
use crate::harness::{MODE, Rig, check3, reg, reg64, same32, same64};

fn d(x: u64) -> Double {
    Double::from_bits(x.into())
}

fn bits(x: Double) -> u64 {
    x.to_bits() as u64
}

/// Blocks of 32 lanes of three lists of doubles. The first ones pair special values with each other.
fn blocks() -> Vec<[[u64; 32]; 3]> {
    let (a, b, c) = (doubles(31, 512), doubles(32, 512), doubles(33, 512));
    let special = &a[..12];
    let mut lists: [Vec<u64>; 3] = Default::default();
    for (k, x) in special.iter().enumerate() {
        for (j, y) in special.iter().enumerate() {
            let all = [*x, *y, special[(5 * k + 7 * j) % 12]];
            lists.iter_mut().zip(all).for_each(|(list, x)| list.push(x));
        }
    }
    lists.iter_mut().zip([a, b, c]).for_each(|(list, more)| list.extend(more));
    let n = lists[0].len() / 32;
    (0..n).map(|k| [0, 1, 2].map(|j| std::array::from_fn(|l| lists[j][32 * k + l]))).collect()
}

/// Checks a 64-bit result of v[0:1], v[2:3] and v[4:5].
fn check(mode: u32, text: &str, oracle: impl Fn(u64, u64, u64) -> u64) {
    for [x, y, z] in blocks() {
        let got = reg64(&Rig::default().mode(mode).v64(0, x).v64(2, y).v64(4, z).run(&[text]), 6);
        for l in 0..32 {
            let want = oracle(x[l], y[l], z[l]);
            assert!(
                same64(got[l], want),
                "{text}: {:#x} {:#x} {:#x} gives {:#x}, not {want:#x}",
                x[l],
                y[l],
                z[l],
                got[l]
            );
        }
    }
}

#[test]
fn minima_and_maxima_of_doubles() {
    // IEEE 754-2008's minNum and maxNum, -0 below +0; a signalling NaN makes a quiet one.
    let pick = |a: u64, b: u64, larger: bool| {
        let nan = |x: u64| f64::from_bits(x).is_nan();
        let signalling = |x: u64| nan(x) && x >> 51 & 1 == 0;
        let key = |x: u64| if x >> 63 == 1 { -i128::from(x & (u64::MAX >> 1)) - 1 } else { i128::from(x) };
        match (nan(a), nan(b)) {
            _ if signalling(a) || signalling(b) => f64::NAN.to_bits(),
            (true, _) => b,
            (_, true) => a,
            _ if (key(a) > key(b)) == larger => a,
            _ => b,
        }
    };
    check(MODE, "v_min_f64 v[6:7], v[0:1], v[2:3]", |a, b, _| pick(a, b, false));
    check(MODE, "v_max_f64 v[6:7], v[0:1], v[2:3]", |a, b, _| pick(a, b, true));
    check(MODE, "v_max_f64 v[6:7], -v[0:1], |v[2:3]|", |a, b, _| {
        pick(a ^ 1 << 63, b & (u64::MAX >> 1), true)
    });
}

#[test]
fn roots_fractions_and_parts_of_doubles() {
    let f = f64::from_bits;
    check(MODE, "v_rsq_f64_e32 v[6:7], v[0:1]", |a, _, _| (1.0 / f(a).sqrt()).to_bits());
    check(MODE, "v_fract_f64_e32 v[6:7], v[0:1]", |a, _, _| {
        let x = f(a) - f(a).floor();
        if x.is_nan() { x } else { x.min(1.0f64.next_down()) }.to_bits()
    });
    for [x, ..] in blocks() {
        let wave = Rig::default()
            .v64(0, x)
            .run(&["v_frexp_mant_f64_e32 v[6:7], v[0:1]", "v_frexp_exp_i32_f64_e32 v8, v[0:1]"]);
        for l in 0..32 {
            let (mantissa, exponent) = (reg64(&wave, 6)[l], reg(&wave, 8)[l] as i32);
            if !f(x[l]).is_finite() || f(x[l]) == 0.0 {
                assert!(same64(mantissa, x[l]) && exponent == 0, "{:#x}", x[l]);
            } else {
                // The mantissa is exact, so that scaling it back is.
                let back = bits(d(mantissa).scalbn_r(exponent, NEAREST));
                assert!((0.5..1.0).contains(&f(mantissa).abs()) && back == x[l], "{:#x}: {exponent}", x[l]);
            }
        }
    }
    // Exponents that overflow, underflow, and make denormals.
    for e in [-2200, -1100, -1074, -1023, -53, -1, 0, 1, 52, 1023, 1024, 2100, i32::MIN, i32::MAX] {
        for [x, ..] in blocks() {
            let got = reg64(
                &Rig::default().v64(0, x).v(2, [e as u32; 32]).run(&["v_ldexp_f64 v[6:7], v[0:1], v2"]),
                6,
            );
            for l in 0..32 {
                let want = bits(d(x[l]).scalbn_r(e.clamp(-5000, 5000), NEAREST));
                assert!(same64(got[l], want), "{:#x} * 2^{e} is {:#x}, not {want:#x}", x[l], got[l]);
            }
        }
    }
    for bit in 0..10 {
        for [x, ..] in blocks() {
            let member = |x: u64| {
                let (negative, exponent, fraction) = (x >> 63 == 1, x >> 52 & 0x7ff, x << 12);
                let side = |below: u32, above: u32| if negative { below } else { above };
                match (exponent, fraction) {
                    (0x7ff, 0) => side(2, 9),
                    (0x7ff, f) => (f >> 63) as u32,
                    (0, 0) => side(5, 6),
                    (0, _) => side(4, 7),
                    _ => side(3, 8),
                }
            };
            let wave =
                Rig::default().v64(0, x).v(2, [1 << bit; 32]).run(&["v_cmp_class_f64_e64 s5, v[0:1], v2"]);
            assert_eq!(
                wave.sgpr(5),
                (0..32).map(|l| u32::from(member(x[l]) == bit) << l).sum(),
                "class {bit}"
            );
        }
    }
}

#[test]
fn conversions_of_doubles() {
    let [a, ..] = operands(34);
    for at in (0..a.len() - 31).step_by(32) {
        let x: [u32; 32] = std::array::from_fn(|l| a[at + l]);
        let wave = Rig::default().v(0, x).run(&[
            "v_cvt_f64_f32_e32 v[4:5], v0",
            "v_cvt_f64_i32_e32 v[6:7], v0",
            "v_cvt_f64_u32_e32 v[8:9], v0",
        ]);
        for l in 0..32 {
            assert!(same64(reg64(&wave, 4)[l], f64::from(f32::from_bits(x[l])).to_bits()));
            assert_eq!(reg64(&wave, 6)[l], f64::from(x[l] as i32).to_bits());
            assert_eq!(reg64(&wave, 8)[l], f64::from(x[l]).to_bits());
        }
    }
    let edges = [-1.0, -0.5, 0.99, 1.0, 4294967295.0, 4294967295.5, 4294967296.0, 2147483648.5, f64::NAN];
    let edges = std::array::from_fn(|l| f64::to_bits(edges[l % edges.len()]));
    for x in blocks().into_iter().map(|[x, ..]| x).chain([edges]) {
        let got = reg(&Rig::default().v64(0, x).run(&["v_cvt_u32_f64_e32 v6, v[0:1]"]), 6);
        for l in 0..32 {
            let f = f64::from_bits(x[l]);
            let want = if f.is_nan() { 0 } else { f.trunc().clamp(0.0, 4294967295.0) as u64 as u32 };
            assert_eq!(got[l], want, "{f}");
        }
    }
}

#[test]
fn sixty_four_bit_denormals_flush() {
    for bits67 in 0..4u32 {
        let zero = |x: u64| if x >> 52 & 0x7ff == 0 { x & 1 << 63 } else { x };
        let reads = |x: u64| d(if bits67 & 1 == 0 { zero(x) } else { x });
        let writes = |x: Double| if bits67 & 2 == 0 { zero(bits(x)) } else { bits(x) };
        let mode = MODE & !0xc0 | bits67 << 6;
        check(mode, "v_add_f64 v[6:7], v[0:1], v[2:3]", |a, b, _| {
            writes(reads(a).add_r(reads(b), NEAREST).value)
        });
        check(mode, "v_mul_f64 v[6:7], v[0:1], v[2:3]", |a, b, _| {
            writes(reads(a).mul_r(reads(b), NEAREST).value)
        });
        check(mode, "v_fma_f64 v[6:7], v[0:1], v[2:3], v[4:5]", |a, b, c| {
            writes(reads(a).mul_add_r(reads(b), reads(c), NEAREST).value)
        });
        // 32-bit operations don't follow these bits.
        let got = reg(&Rig::default().mode(mode).v(0, [1; 32]).run(&["v_add_f32_e32 v3, v0, v0"]), 3);
        assert_eq!(got, [2; 32]);
    }
}

#[test]
fn sums_into_the_destination_and_literals() {
    let [a, b, c] = operands(35);
    let s = |x: u32| Single::from_bits(x.into());
    let fma = |a: u32, b: u32, c: u32| s(a).mul_add_r(s(b), s(c), NEAREST).value.to_bits() as u32;
    // 0 times anything is 0.
    let zero = |x: u32| x << 1 == 0;
    let legacy = |a: u32, b: u32, c: u32| if zero(a) || zero(b) { c } else { fma(a, b, c) };
    for at in (0..a.len() - 31).step_by(32) {
        let pick = |list: &[u32]| -> [u32; 32] { std::array::from_fn(|l| list[at + l]) };
        let (x, y, z) = (pick(&a), pick(&b), pick(&c));
        let run = |text: &str, oracle: &dyn Fn(u32, u32, u32) -> u32| {
            let got = reg(&Rig::default().v(0, x).v(1, y).v(2, z).v(3, z).run(&[text]), 3);
            for l in 0..32 {
                let want = oracle(x[l], y[l], z[l]);
                assert!(same32(got[l], want), "{text}: {:#x} {:#x} {:#x}: {:#x}", x[l], y[l], z[l], got[l]);
            }
        };
        run("v_fmac_f32_e32 v3, v0, v1", &fma);
        run("v_fmac_f32_e64 v3, -v0, |v1|", &|a, b, c| fma(a ^ 1 << 31, b & (u32::MAX >> 1), c));
        // 0xc0490fdb is -pi.
        run("v_fmamk_f32 v3, v0, 0xc0490fdb, v1", &|a, b, _| fma(a, 0xc049_0fdb, b));
        run("v_fmaak_f32 v3, v0, v1, 0xc0490fdb", &|a, b, _| fma(a, b, 0xc049_0fdb));
        run("v_fma_legacy_f32 v3, v0, v1, v2", &legacy);
        run("v_fmac_legacy_f32_e32 v3, v0, v1", &legacy);
    }
}

#[test]
fn selections_by_lane() {
    let [a, b, _] = operands(36);
    let mask = 0x5a3c_0ff1u32;
    let (x, y): ([u32; 32], [u32; 32]) = (std::array::from_fn(|l| a[l]), std::array::from_fn(|l| b[l]));
    let rig = || Rig::default().v(0, x).v(1, y).v(3, [7; 32]).s(106, mask).s(8, !mask);
    let want = |mask: u32, exec: u32| -> [u32; 32] {
        std::array::from_fn(|l| match (exec >> l & 1, mask >> l & 1) {
            (0, _) => 7,
            (_, 0) => x[l],
            _ => y[l],
        })
    };
    for exec in [u32::MAX, 0xf0f0_1234] {
        let got = rig().exec(exec).run(&["v_cndmask_b32_e32 v3, v0, v1, vcc_lo"]);
        assert_eq!(reg(&got, 3), want(mask, exec));
        let got = rig().exec(exec).run(&["v_cndmask_b32_e64 v3, v0, v1, s8"]);
        assert_eq!(reg(&got, 3), want(!mask, exec));
    }
    // Signs of floats may change on the way.
    let got = reg(&rig().run(&["v_cndmask_b32_e64 v3, -v0, |v1|, s8"]), 3);
    let want: [u32; 32] =
        std::array::from_fn(|l| if mask >> l & 1 == 0 { y[l] & (u32::MAX >> 1) } else { x[l] ^ 1 << 31 });
    assert_eq!(got, want);
}

#[test]
fn conversions_that_round_or_pack() {
    let [mut a, b, c] = operands(37);
    // Numbers where roundings differ.
    a.extend([0.5f32, 1.5, 2.5, -0.5, -1.5, -2.5, 254.5, 255.5, 256.0, -0.49, 127.49].map(f32::to_bits));
    let f = |x: u32| f64::from(f32::from_bits(x));
    let run = |text: &str, same: fn(u32, u32) -> bool, oracle: &dyn Fn(u32, u32, u32) -> u32| {
        check3(Rig::default(), text, [&a, &b, &c], same, oracle);
    };
    let equal = |a: u32, b: u32| a == b;
    run("v_cvt_rpi_i32_f32_e32 v3, v0", equal, &|a, _, _| {
        let x = (f(a) + 0.5).floor();
        if x.is_nan() { 0 } else { x.clamp(-2147483648.0, 2147483647.0) as i64 as u32 }
    });
    run("v_cvt_off_f32_i4_e32 v3, v0", equal, &|a, _, _| {
        let n = (a & 15) as i32;
        (f64::from(if n > 7 { n - 16 } else { n }) as f32 / 16.0).to_bits()
    });
    run("v_rcp_iflag_f32_e32 v3, v0", same32, &|a, _, _| {
        let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
        flush((1.0 / f64::from(flush(f32::from_bits(a)))) as f32).to_bits()
    });
    run("v_cvt_pk_u8_f32 v3, v0, v1, v2", equal, &|a, b, c| {
        let x = f(a);
        let byte = if x.is_nan() { 0 } else { x.round_ties_even().clamp(0.0, 255.0) as u8 };
        let mut bytes = c.to_le_bytes();
        bytes[b as usize % 4] = byte;
        u32::from_le_bytes(bytes)
    });
    let norm = |got: u32, x: f64, low: f64, scale: f64, signed: bool| {
        let got = if signed { f64::from(got as u16 as i16) } else { f64::from(got as u16) };
        got == if x.is_nan() { 0.0 } else { (x.clamp(low, 1.0) * scale).round_ties_even() }
    };
    for (name, low, scale, signed) in [("i16", -1.0, 32767.0, true), ("u16", 0.0, 65535.0, false)] {
        for at in (0..a.len().min(b.len()) - 31).step_by(32) {
            // Every second lane within or near [-1, 1].
            let near = |l: usize, x: u32| if l.is_multiple_of(2) { x } else { x & 0x807f_ffff | 0x3f00_0000 };
            let (x, y): ([u32; 32], [u32; 32]) =
                (std::array::from_fn(|l| near(l, a[at + l])), std::array::from_fn(|l| near(l, b[at + l])));
            let got = reg(
                &Rig::default().v(0, x).v(1, y).run(&[&format!("v_cvt_pknorm_{name}_f32 v3, v0, v1")]),
                3,
            );
            for l in 0..32 {
                assert!(norm(got[l], f(x[l]), low, scale, signed), "{name}: {:#x} gives {:#x}", x[l], got[l]);
                assert!(
                    norm(got[l] >> 16, f(y[l]), low, scale, signed),
                    "{name}: {:#x}, {:#x}",
                    y[l],
                    got[l]
                );
            }
        }
    }
}
