//! LDS beyond plain reads and writes: atomics with and without a result, pairs of accesses, halves of registers.

use virtual_gpu::isa::{Lds, LdsInit};

use crate::harness::{Random, Rig, reg, reg64};

/// The new value from the old one, the first and the second data operand, and whether they have 64 bits.
type Atomic = fn(u64, u64, u64, bool) -> u64;

fn signed(x: u64, wide: bool) -> i64 {
    if wide { x as i64 } else { x as u32 as i32 as i64 }
}

/// Each operation as `ds_NAME_SUFFIX` and `ds_NAME_rtn_SUFFIX`, and whether it takes two data operands.
const ATOMICS: [(&str, &str, bool, Atomic); 14] = [
    ("add", "u", false, |o, d, _, _| o.wrapping_add(d)),
    ("sub", "u", false, |o, d, _, _| o.wrapping_sub(d)),
    ("rsub", "u", false, |o, d, _, _| d.wrapping_sub(o)),
    ("inc", "u", false, |o, d, _, _| if o >= d { 0 } else { o + 1 }),
    ("dec", "u", false, |o, d, _, _| if o == 0 || o > d { d } else { o - 1 }),
    ("min", "i", false, |o, d, _, w| if signed(o, w) < signed(d, w) { o } else { d }),
    ("max", "i", false, |o, d, _, w| if signed(o, w) > signed(d, w) { o } else { d }),
    ("min", "u", false, |o, d, _, _| o.min(d)),
    ("max", "u", false, |o, d, _, _| o.max(d)),
    ("and", "b", false, |o, d, _, _| o & d),
    ("or", "b", false, |o, d, _, _| o | d),
    ("xor", "b", false, |o, d, _, _| o ^ d),
    ("mskor", "b", true, |o, mask, d, _| o & !mask | d),
    // The comparison value comes first.
    ("cmpst", "b", true, |o, c, d, _| if o == c { d } else { o }),
];

/// Eight bytes for each lane.
fn places() -> [u32; 32] {
    std::array::from_fn(|l| 8 * l as u32)
}

/// Runs an atomic in both forms on `old`, and checks what it leaves and returns. Lanes that aren't active do nothing.
fn check(name: &str, suffix: &str, two: bool, wide: bool, data: [[u64; 32]; 3], want: impl Fn(usize) -> u64) {
    let [old, first, second] = data;
    let exec = 0xffff_0ff7u32;
    let active = |l: usize| exec >> l & 1 == 1;
    let (width, dst, one, other) =
        if wide { (64, "v[10:11]", "v[4:5]", ", v[6:7]") } else { (32, "v10", "v4", ", v6") };
    let operands = format!("v0, {one}{}", if two { other } else { "" });
    let after: [u64; 32] = std::array::from_fn(|l| if active(l) { want(l) } else { old[l] });
    for returns in [false, true] {
        let text = if returns {
            format!("ds_{name}_rtn_{suffix}{width} {dst}, {operands} offset:16")
        } else {
            format!("ds_{name}_{suffix}{width} {operands} offset:16")
        };
        let mut lds = Lds::new(&LdsInit { size: 1024, ..LdsInit::default() });
        let rig = || Rig::default().v(0, places()).v64(4, first).v64(6, second).v64(8, old).v64(10, [7; 32]);
        let run = |rig: Rig, program: &[&str], lds: &mut Lds| rig.run_with(program, lds).expect("no fault");
        run(rig(), &["ds_write_b64 v0, v[8:9] offset:16"], &mut lds);
        let wave = run(rig().exec(exec), &[&text], &mut lds);
        let left = reg64(&run(rig(), &["ds_read_b64 v[12:13], v0 offset:16"], &mut lds), 12);
        assert_eq!(left, after, "{text}");
        let result: [u64; 32] = std::array::from_fn(|l| if returns && active(l) { old[l] } else { 7 });
        assert_eq!(if wide { reg64(&wave, 10) } else { reg(&wave, 10).map(u64::from) }, result, "{text}");
    }
}

#[test]
fn atomics_with_and_without_a_result() {
    let mut random = Random::new(41);
    for (name, suffix, two, oracle) in ATOMICS {
        for wide in [false, true] {
            let mask = if wide { u64::MAX } else { u32::MAX.into() };
            let mut word = || (u64::from(random.next()) << 32 | u64::from(random.next())) & mask;
            let edges = [0, 1, mask, mask >> 1, mask / 2 + 1];
            let old: [u64; 32] = std::array::from_fn(|l| edges.get(l).copied().unwrap_or_else(&mut word));
            // Equal to the old value, one more, an edge, or anything.
            let first: [u64; 32] = std::array::from_fn(|l| match l % 4 {
                0 => old[l],
                1 => old[l].wrapping_add(1) & mask,
                2 => edges[l / 4 % 5],
                _ => word(),
            });
            let second: [u64; 32] = std::array::from_fn(|_| word());
            check(name, suffix, two, wide, [old, first, second], |l| {
                oracle(old[l], first[l], second[l], wide) & mask
            });
        }
    }
}

#[test]
fn float_atomics_with_and_without_a_result() {
    // Ordered by the float, -0 below +0; a number beats NaN.
    let old = [1.0, -1.0, f64::NAN, 5.0, f64::NEG_INFINITY, 0.0, -0.0, 3.5];
    let new = [2.0, f64::NAN, 7.0, -5.0, 1.0, -0.0, 0.0, 3.5];
    let least = [1.0, -1.0, 7.0, -5.0, f64::NEG_INFINITY, -0.0, -0.0, 3.5];
    let most = [2.0, -1.0, 7.0, 5.0, 1.0, 0.0, 0.0, 3.5];
    let stored = [9.0; 8];
    // Zeros are equal whatever their signs, and NaN to nothing: the fourth and the second lane keep their values.
    let swapped = [1.0, -1.0, f64::NAN, 5.0, f64::NEG_INFINITY, 9.0, 9.0, 9.0];
    for wide in [false, true] {
        let lanes = |x: [f64; 8]| -> [u64; 32] {
            std::array::from_fn(|l| {
                if wide { x[l % 8].to_bits() } else { u64::from((x[l % 8] as f32).to_bits()) }
            })
        };
        for (name, two, want) in [("min", false, least), ("max", false, most), ("cmpst", true, swapped)] {
            let want = lanes(want);
            check(name, "f", two, wide, [lanes(old), lanes(new), lanes(stored)], |l| want[l]);
        }
    }
    // Sums exist in 32 bits only; infinities and zeros included, without NaN, whose payload is anybody's.
    let number = |x: f64| if x.is_nan() { 0.25 } else { x as f32 };
    let lanes = |x: [f64; 8]| -> [u64; 32] { std::array::from_fn(|l| number(x[l % 8]).to_bits().into()) };
    check("add", "f", false, false, [lanes(old), lanes(new), [0; 32]], |l| {
        (number(old[l % 8]) + number(new[l % 8])).to_bits().into()
    });
}

#[test]
fn wrapping_and_exchanges() {
    // `ds_wrap`: old - first where that isn't negative, else old + second.
    let old: [u32; 32] = std::array::from_fn(|l| 3 * l as u32);
    let rig = || Rig::default().v(0, places()).v(4, [40; 32]).v(5, [1000; 32]).v(8, old);
    let wave = rig().run(&["ds_write_b32 v0, v8", "ds_wrap_rtn_b32 v10, v0, v4, v5", "ds_read_b32 v11, v0"]);
    assert_eq!(reg(&wave, 10), old);
    assert_eq!(reg(&wave, 11), old.map(|x| if x >= 40 { x - 40 } else { x + 1000 }));
    // Two exchanges, in units of an element and of 64.
    let (x, y): ([u64; 32], [u64; 32]) = (
        std::array::from_fn(|l| 0x1111_0000_2222 + l as u64),
        std::array::from_fn(|l| 0x3333_0000_4444 * l as u64),
    );
    let at = |stride: u32| -> [u32; 32] { std::array::from_fn(|l| stride * l as u32) };
    let big = |stride: u32| {
        let mut rig = Rig::default().v(0, at(stride)).v64(4, x).v64(6, y);
        rig.lds = LdsInit { size: 4096, ..LdsInit::default() };
        rig
    };
    let wave = big(32).run(&[
        "ds_write2_b64 v0, v[4:5], v[6:7] offset0:1 offset1:2",
        "ds_wrxchg2_rtn_b64 v[8:11], v0, v[6:7], v[4:5] offset0:1 offset1:2",
        "ds_read2_b64 v[12:15], v0 offset0:1 offset1:2",
        "ds_read_b64 v[16:17], v0 offset:16",
    ]);
    assert_eq!([8, 10, 12, 14, 16].map(|r| reg64(&wave, r)), [x, y, y, x, x]);
    let wave = big(8).run(&[
        "ds_write2st64_b64 v0, v[4:5], v[6:7] offset0:1 offset1:3",
        "ds_wrxchg2st64_rtn_b64 v[8:11], v0, v[6:7], v[4:5] offset0:1 offset1:3",
        "ds_read2st64_b64 v[12:15], v0 offset0:1 offset1:3",
        "ds_read_b64 v[16:17], v0 offset:1536",
    ]);
    assert_eq!([8, 10, 12, 14, 16].map(|r| reg64(&wave, r)), [x, y, y, x, x]);
    let (low, high) = (x.map(|x| x as u32), y.map(|y| y as u32));
    let wave = big(16).run(&[
        "ds_write2_b32 v0, v4, v6 offset0:1 offset1:3",
        "ds_wrxchg2_rtn_b32 v[8:9], v0, v6, v4 offset0:1 offset1:3",
        "ds_read_b32 v10, v0 offset:4",
        "ds_read_b32 v11, v0 offset:12",
    ]);
    assert_eq!([8, 9, 10, 11].map(|r| reg(&wave, r)), [low, high, high, low]);
    let wave = big(4).run(&[
        "ds_write2st64_b32 v0, v4, v6 offset0:1 offset1:2",
        "ds_wrxchg2st64_rtn_b32 v[8:9], v0, v6, v4 offset0:1 offset1:2",
        "ds_read2st64_b32 v[10:11], v0 offset0:1 offset1:2",
    ]);
    assert_eq!([8, 9, 10, 11].map(|r| reg(&wave, r)), [low, high, high, low]);
}

#[test]
fn halves_and_three_dwords() {
    let x: [u32; 32] = std::array::from_fn(|l| 0x8091_a2b3u32.wrapping_add(0x0707_0707 * l as u32));
    let at: [u32; 32] = std::array::from_fn(|l| 16 * l as u32);
    let mut rig = Rig::default().v(0, at).v(1, x).v(2, x.map(|x| !x)).v(3, x.map(|x| x ^ 0x00ff_ff00));
    for r in 20..26 {
        rig = rig.v(r, [0xdead_beef; 32]);
    }
    let wave = rig.run(&[
        "ds_nop",
        "ds_write_b96 v0, v[1:3] offset:4",
        "ds_read_b96 v[8:10], v0 offset:4",
        "ds_read_b32 v11, v0 offset:12",
        "ds_write_b16 v0, v1 offset:4",
        "ds_write_b8_d16_hi v0, v1 offset:10",
        "ds_read_b64 v[12:13], v0 offset:4",
        "ds_write_b32 v0, v1",
        "ds_read_u8_d16 v20, v0 offset:1",
        "ds_read_u8_d16_hi v21, v0 offset:1",
        "ds_read_i8_d16 v22, v0 offset:3",
        "ds_read_i8_d16_hi v23, v0 offset:3",
        "ds_read_u16_d16 v24, v0 offset:2",
        "ds_read_u16_d16_hi v25, v0 offset:2",
    ]);
    assert_eq!(
        [8, 9, 10, 11].map(|r| reg(&wave, r)),
        [x, x.map(|x| !x), x.map(|x| x ^ 0x00ff_ff00), x.map(|x| x ^ 0x00ff_ff00)]
    );
    let byte = |x: u32, k: usize| u32::from(x.to_le_bytes()[k]);
    for l in 0..32 {
        let x = x[l];
        assert_eq!(reg(&wave, 12)[l], x, "the low half is the same");
        // Bytes 8 and 9 of the lane's 16 hold the second dword's low half; byte 10 is x's third byte.
        assert_eq!(reg(&wave, 13)[l], !x & 0xff00_ffff | byte(x, 2) << 16);
        let extended = u32::from(byte(x, 3) as u8 as i8 as i16 as u16);
        let want = [
            0xdead_0000 | byte(x, 1),
            0xbeef | byte(x, 1) << 16,
            0xdead_0000 | extended,
            0xbeef | extended << 16,
            0xdead_0000 | x >> 16,
            0xbeef | x & 0xffff_0000,
        ];
        assert_eq!(std::array::from_fn::<u32, 6, _>(|k| reg(&wave, 20 + k as u16)[l]), want);
    }
}

#[test]
fn places_by_lane() {
    // M0's low half, the offset, and four bytes for each lane.
    let x: [u32; 32] = std::array::from_fn(|l| 100 + l as u32);
    let at: [u32; 32] = std::array::from_fn(|l| 4 * l as u32);
    let wave = Rig::default().v(0, at).v(1, x).s(124, 0xffff_0040).exec(0xffff_fffe).run(&[
        "ds_write_addtid_b32 v1 offset:8",
        "ds_read_b32 v4, v0 offset:72",
        "ds_read_addtid_b32 v5 offset:12",
    ]);
    for l in 1..32 {
        assert_eq!(reg(&wave, 4)[l], x[l]);
        assert_eq!(reg(&wave, 5)[l], if l < 31 { x[l + 1] } else { 0 });
    }
    assert_eq!(reg(&wave, 4)[0], 0, "not active");
    // In device memory there is no M0.
    let mut data: Vec<u32> = (0..64).map(|k| 7 * k).collect();
    let base = data.as_ptr() as u64;
    let wave = Rig::default().memory(&mut data[..]).s64(4, base).v(1, x).run(&[
        "global_load_dword_addtid v4, s[4:5] offset:16",
        "global_store_dword_addtid v1, s[4:5] offset:128",
    ]);
    assert_eq!(reg(&wave, 4), std::array::from_fn(|l| 7 * (l as u32 + 4)));
    assert_eq!(data[32..], x);
}

#[test]
fn clamped_subtraction_in_memory() {
    let old: [u32; 32] = std::array::from_fn(|l| 10 * l as u32);
    let mut data = old;
    let base = data.as_ptr() as u64;
    let place = std::array::from_fn(|l| base + 4 * l as u64);
    let wave = Rig::default()
        .memory(&mut data[..])
        .v64(0, place)
        .v(2, [55; 32])
        .run(&["global_atomic_csub v3, v[0:1], v2, off glc"]);
    assert_eq!((reg(&wave, 3), data), (old, old.map(|x| x.saturating_sub(55))));
    let mut data = old;
    let base = data.as_ptr() as u64;
    let offsets = std::array::from_fn(|l| 4 * l as u32);
    let wave = Rig::default()
        .memory(&mut data[..])
        .v(0, offsets)
        .v(2, [55; 32])
        .s64(4, base)
        .s(6, 128)
        .s(7, 0x3101_6000)
        .run(&["buffer_atomic_csub v2, v0, s[4:7], 0 offen glc", "buffer_gl0_inv", "buffer_gl1_inv"]);
    assert_eq!((reg(&wave, 2), data), (old, old.map(|x| x.saturating_sub(55))));
}
