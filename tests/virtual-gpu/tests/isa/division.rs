//! The division sequences that compilers emit, against the host's division.

use crate::float::{doubles, operands};
use crate::harness::{Rig, reg, reg64, same32, same64};

/// The sequence that compilers emit for `v0 / v1` in 32 bits.
const DIVIDE32: [&str; 10] = [
    "v_div_scale_f32 v4, s6, v1, v1, v0",
    "v_rcp_f32_e32 v5, v4",
    "v_fma_f32 v6, -v4, v5, 1.0",
    "v_fma_f32 v5, v6, v5, v5",
    "v_div_scale_f32 v7, vcc_lo, v0, v1, v0",
    "v_mul_f32_e32 v8, v7, v5",
    "v_fma_f32 v9, -v4, v8, v7",
    "v_fma_f32 v8, v9, v5, v8",
    "v_fma_f32 v4, -v4, v8, v7",
    "v_div_fmas_f32 v4, v4, v5, v8",
];

#[test]
fn divisions_are_correctly_rounded() {
    let [a, b, _] = operands(15);
    let mut program = DIVIDE32.to_vec();
    program.push("v_div_fixup_f32 v3, v4, v1, v0");
    for at in (0..a.len() - 31).step_by(32) {
        let (x, y): ([u32; 32], [u32; 32]) =
            (std::array::from_fn(|l| a[at + l]), std::array::from_fn(|l| b[at + l]));
        let got = reg(&Rig::default().v(0, x).v(1, y).run(&program), 3);
        for l in 0..32 {
            let want = (f32::from_bits(x[l]) / f32::from_bits(y[l])).to_bits();
            assert!(same32(got[l], want), "{:#x} / {:#x} = {:#x}, not {want:#x}", x[l], y[l], got[l]);
        }
    }
}

#[test]
fn divisions_of_doubles_are_correctly_rounded() {
    let program = [
        "v_div_scale_f64 v[4:5], s6, v[2:3], v[2:3], v[0:1]",
        "v_rcp_f64_e32 v[6:7], v[4:5]",
        "v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0",
        "v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]",
        "v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0",
        "v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]",
        "v_div_scale_f64 v[8:9], vcc_lo, v[0:1], v[2:3], v[0:1]",
        "v_mul_f64 v[10:11], v[8:9], v[6:7]",
        "v_fma_f64 v[4:5], -v[4:5], v[10:11], v[8:9]",
        "v_div_fmas_f64 v[4:5], v[4:5], v[6:7], v[10:11]",
        "v_div_fixup_f64 v[4:5], v[4:5], v[2:3], v[0:1]",
    ];
    let (a, mut b) = (doubles(16, 1024), doubles(17, 1024));
    for turn in [0, 1, 5, 7] {
        b.rotate_left(turn);
        for at in (0..a.len()).step_by(32) {
            let (x, y): ([u64; 32], [u64; 32]) =
                (std::array::from_fn(|l| a[at + l]), std::array::from_fn(|l| b[at + l]));
            let got = reg64(&Rig::default().v64(0, x).v64(2, y).run(&program), 4);
            for l in 0..32 {
                let want = (f64::from_bits(x[l]) / f64::from_bits(y[l])).to_bits();
                assert!(same64(got[l], want), "{:#x} / {:#x} = {:#x}, not {want:#x}", x[l], y[l], got[l]);
            }
        }
    }
}

#[test]
fn trig_preop_gives_digits_of_two_over_pi() {
    let run = |x: f64, segment: u32| {
        let wave = Rig::default()
            .v64(0, [x.to_bits(); 32])
            .run(&[&format!("v_trig_preop_f64 v[6:7], v[0:1], {segment}")]);
        f64::from_bits(reg64(&wave, 6)[0])
    };
    let sum = run(1.0, 0) + run(1.0, 1) + run(1.0, 2);
    assert_eq!(sum, std::f64::consts::FRAC_2_PI);
    // The first two segments together have 106 digits: 2/pi minus the first one is the second.
    // 2/pi as a double is rounded up.
    assert_eq!(run(1.0, 0), std::f64::consts::FRAC_2_PI - 2f64.powi(-53));
    assert!(run(1.0, 1) > 0.0 && run(1.0, 1) < 2f64.powi(-53));
}
