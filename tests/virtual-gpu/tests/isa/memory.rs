//! Memory: loads, stores and atomics of each space, against plain buffers.

use virtual_gpu::isa::{Lds, LdsInit};

use crate::harness::{Random, Rig, reg, reg64};

/// Lane addresses `stride` bytes apart.
fn addresses(base: u64, stride: u64) -> [u64; 32] {
    std::array::from_fn(|l| base + stride * l as u64)
}

fn bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.next() as u8).collect()
}

fn le(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |x, b| x << 8 | u32::from(*b))
}

#[test]
fn loads_extend_and_merge() {
    let mut data = bytes(1, 4096);
    let base = data.as_ptr() as u64;
    type Want = fn(&[u8], u32) -> u32;
    let cases: [(&str, Want); 12] = [
        ("ubyte", |b, _| b[0].into()),
        ("sbyte", |b, _| b[0] as i8 as u32),
        ("ushort", |b, _| le(&b[..2])),
        ("sshort", |b, _| le(&b[..2]) as i16 as u32),
        ("ubyte_d16", |b, old| old & 0xffff_0000 | u32::from(b[0])),
        ("sbyte_d16", |b, old| old & 0xffff_0000 | u32::from(b[0] as i8 as u16)),
        ("short_d16", |b, old| old & 0xffff_0000 | le(&b[..2])),
        ("ubyte_d16_hi", |b, old| old & 0xffff | u32::from(b[0]) << 16),
        ("sbyte_d16_hi", |b, old| old & 0xffff | u32::from(b[0] as i8 as u16) << 16),
        ("short_d16_hi", |b, old| old & 0xffff | le(&b[..2]) << 16),
        ("dword", |b, _| le(&b[..4])),
        ("dword", |b, _| le(&b[..4])),
    ];
    for (k, (name, want)) in cases.into_iter().enumerate() {
        // Contiguous dwords the last time, odd strides otherwise.
        let stride = if k == 11 { 4 } else { 21 };
        for exec in [u32::MAX, 0x1234_5678] {
            for segment in ["global", "flat"] {
                let off = if segment == "global" { ", off" } else { "" };
                let rig = Rig::default()
                    .memory(&mut data[..])
                    .v64(0, addresses(base, stride))
                    .v(3, [0x8765_4321; 32])
                    .exec(exec);
                let got = reg(&rig.run(&[&format!("{segment}_load_{name} v3, v[0:1]{off} offset:12")]), 3);
                for l in 0..32 {
                    let at = stride as usize * l + 12;
                    let expected =
                        if exec >> l & 1 == 1 { want(&data[at..], 0x8765_4321) } else { 0x8765_4321 };
                    assert_eq!(got[l], expected, "{segment}_load_{name} lane {l}");
                }
            }
        }
    }
    for n in 2..=4usize {
        let rig = Rig::default()
            .memory(&mut data[..])
            .v64(0, addresses(base, 48))
            .s64(4, base)
            .v(2, std::array::from_fn(|l| 48 * l as u32));
        let wave = rig.run(&[
            &format!("global_load_dwordx{n} v[4:{}], v[0:1], off", 3 + n),
            &format!("global_load_dwordx{n} v[10:{}], v2, s[4:5] offset:-0", 9 + n).replace(" offset:-0", ""),
        ]);
        for k in 0..n {
            let want: [u32; 32] = std::array::from_fn(|l| le(&data[48 * l + 4 * k..][..4]));
            assert_eq!((reg(&wave, 4 + k as u16), reg(&wave, 10 + k as u16)), (want, want));
        }
    }
}

#[test]
fn stores_write_what_they_should() {
    let value: [u32; 32] = std::array::from_fn(|l| 0x8100_0280 + 0x0101_0101 * l as u32);
    for (name, n, shift) in [
        ("byte", 1, 0),
        ("byte_d16_hi", 1, 16),
        ("short", 2, 0),
        ("short_d16_hi", 2, 16),
        ("dword", 4, 0),
        ("dwordx2", 8, 0),
        ("dwordx3", 12, 0),
        ("dwordx4", 16, 0),
    ] {
        let mut data = vec![0xeeu8; 1024];
        let base = data.as_ptr() as u64;
        let last = 3 + (n as u16).div_ceil(4);
        let regs = if last > 4 { format!("v[4:{last}]") } else { "v4".into() };
        let mut rig = Rig::default().memory(&mut data[..]).v64(0, addresses(base, 20)).exec(0xffff_0fff);
        for k in 4..=last {
            rig = rig.v(k, value.map(|x| x.wrapping_add(1000 * (u32::from(k) - 4))));
        }
        rig.run(&[&format!("global_store_{name} v[0:1], {regs}, off offset:1")]);
        let mut want = vec![0xeeu8; 1024];
        for l in (0..32).filter(|l| 0xffff_0fffu32 >> l & 1 == 1) {
            for k in 0..n {
                let word = value[l].wrapping_add(1000 * (k as u32 / 4)) >> shift;
                want[20 * l + 1 + k] = word.to_le_bytes()[k % 4];
            }
        }
        assert_eq!(data, want, "{name}");
    }
}

#[test]
fn scalar_loads() {
    let mut data = bytes(2, 256);
    let base = data.as_ptr() as u64 & !3;
    let at = (base - data.as_ptr() as u64) as usize;
    assert_eq!(at, 0, "the allocator aligns to words");
    let rig = Rig::default().memory(&mut data[..]).s64(4, base + 64).s(6, 8).s64(8, base).s(10, 20).s(11, 0);
    for (name, n) in [("dword", 1u16), ("dwordx2", 2), ("dwordx4", 4), ("dwordx8", 8), ("dwordx16", 16)] {
        let regs = if n == 1 { "s16".to_owned() } else { format!("s[16:{}]", 15 + n) };
        let wave = rig.run(&[&format!("s_load_{name} {regs}, s[4:5], 0x10")]);
        (0..n).for_each(|k| assert_eq!(wave.sgpr(16 + k), le(&data[80 + 4 * k as usize..][..4]), "{name}"));
    }
    let wave = rig.run(&["s_load_dword s16, s[4:5], s6", "s_load_dword s17, s[4:5], -0x10"]);
    assert_eq!((wave.sgpr(16), wave.sgpr(17)), (le(&data[72..76]), le(&data[48..52])));
    // A buffer of 20 bytes: dwords beyond it read as 0.
    let wave = rig.run(&["s_buffer_load_dwordx4 s[16:19], s[8:11], 0xc"]);
    assert_eq!([16, 17, 18].map(|r| wave.sgpr(r)), [le(&data[12..16]), le(&data[16..20]), 0]);
}

#[test]
fn buffers_check_their_range() {
    let mut data = bytes(3, 1024);
    let base = data.as_ptr() as u64;
    let raw = |size: u32| -> [u32; 4] { [base as u32, (base >> 32) as u32 & 0xffff, size, 0x3101_6000] };
    let lanes: [u32; 32] = std::array::from_fn(|l| 12 * l as u32);
    let rig = |d: [u32; 4], data: &mut Vec<u8>| {
        let mut rig = Rig::default().memory(&mut data[..]).v(0, lanes).v(1, [0; 32]).s(12, 8);
        for (k, x) in (4..).zip(d) {
            rig = rig.s(k, x);
        }
        rig
    };
    // 200 bytes: offset + 8 (scalar) + 4 (immediate) + 16 must lie inside, dword by dword.
    let wave = rig(raw(200), &mut data)
        .v(20, [9; 32])
        .run(&["buffer_load_dwordx4 v[20:23], v0, s[4:7], s12 offen offset:4"]);
    for l in 0..32 {
        for k in 0..4 {
            let at = 12 * l + 12 + 4 * k;
            let want = if at + 4 <= 200 { le(&data[at..at + 4]) } else { 0 };
            assert_eq!(reg(&wave, 20 + k as u16)[l], want, "lane {l} dword {k}");
        }
    }
    // Index with a stride of 32 bytes, structured: index < records and offset + bytes <= stride.
    let structured = [base as u32, (base >> 32) as u32 & 0xffff | 32 << 16, 20, 0x0101_6000];
    let index = std::array::from_fn(|l| l as u32);
    let wave = rig(structured, &mut data).v(0, index).run(&[
        "buffer_load_dword v20, v0, s[4:7], 0 idxen offset:28",
        "buffer_load_dword v21, v0, s[4:7], 0 idxen offset:30",
    ]);
    assert_eq!(
        reg(&wave, 20),
        std::array::from_fn(|l| if l < 20 { le(&data[32 * l + 28..][..4]) } else { 0 })
    );
    assert_eq!(reg(&wave, 21), [0; 32]);
    // Stores out of range do nothing.
    let before = data.clone();
    rig(raw(100), &mut data).v(20, [0; 32]).run(&["buffer_store_dword v20, v0, s[4:7], 0 offen"]);
    let mut want = before;
    (0..32).map(|l| 12 * l).filter(|at| at + 4 <= 100).for_each(|at| want[at..at + 4].fill(0));
    assert_eq!(data, want);
}

#[test]
fn scratch_is_private() {
    let mut data = vec![0u8; 32 * 64];
    let base = data.as_mut_ptr() as u64;
    let mut rig = Rig::default().v(0, [8; 32]).v(1, std::array::from_fn(|l| l as u32 + 1)).s(4, 16);
    rig.scratch = (base, 64);
    let wave = rig.run(&[
        "scratch_store_dword v0, v1, off offset:4",
        "scratch_store_byte off, v1, s4 offset:1",
        "scratch_load_dword v3, v0, off offset:4",
        "scratch_load_dword v4, off, s4",
    ]);
    assert_eq!(reg(&wave, 3), std::array::from_fn(|l| l as u32 + 1));
    assert_eq!(reg(&wave, 4), std::array::from_fn(|l| (l as u32 + 1) << 8));
    assert_eq!(le(&data[64 * 5 + 12..][..4]), 6);
    // By a flat address in the private aperture, and by the scratch resource.
    let flat = [0x2_0000_0000_0000u64 + 12; 32];
    let rig = Rig { scratch: (base, 64), ..Rig::default() }
        .v64(4, flat)
        .v(0, [8; 32])
        .s(8, base as u32)
        .s(9, (base >> 32) as u32 | 1 << 31)
        .s(10, 64 * 32)
        .s(11, 0x3180_4000)
        .s(12, 32 * 4);
    let wave = rig.run(&["flat_load_dword v6, v[4:5]", "buffer_load_dword v7, v0, s[8:11], s12 offen"]);
    let want = std::array::from_fn(|l| l as u32 + 1);
    assert_eq!((reg(&wave, 6), reg(&wave, 7)), (want, want));
}

#[test]
fn lds_reads_and_writes() {
    let at: [u32; 32] = std::array::from_fn(|l| 16 * l as u32);
    let x: [u32; 32] = std::array::from_fn(|l| 0x8001_0203 + 0x1111 * l as u32);
    let rig = || {
        Rig::default()
            .v(0, at)
            .v(1, x)
            .v(2, x.map(|x| !x))
            .v(3, x.map(|x| x ^ 0xff))
            .v(4, x.map(|x| x.rotate_left(8)))
    };
    let wave = rig().run(&[
        "ds_write_b128 v0, v[1:4] offset:16",
        "ds_read_b128 v[8:11], v0 offset:16",
        "ds_read_b96 v[12:14], v0 offset:20",
    ]);
    for k in 0..4 {
        assert_eq!(reg(&wave, 8 + k), reg(&wave, 1 + k));
        if k > 0 {
            assert_eq!(reg(&wave, 11 + k), reg(&wave, 1 + k));
        }
    }
    let wave = rig().run(&[
        "ds_write2_b32 v0, v1, v2 offset0:1 offset1:3",
        "ds_read2_b32 v[8:9], v0 offset0:3 offset1:1",
        "ds_read_b64 v[10:11], v0 offset:8",
    ]);
    assert_eq!(
        (reg(&wave, 8), reg(&wave, 9), reg(&wave, 10), reg(&wave, 11)),
        (x.map(|x| !x), x, [0; 32], x.map(|x| !x))
    );
    let wave = rig().v(0, [4; 32]).exec(1).run(&[
        "ds_write2st64_b32 v0, v1, v2 offset0:0 offset1:2",
        "ds_read_b32 v8, v0 offset:512",
        "ds_read2st64_b32 v[10:11], v0 offset0:2 offset1:0",
    ]);
    assert_eq!([8, 10, 11].map(|r| reg(&wave, r)[0]), [!x[0], !x[0], x[0]]);
    let wave = rig().v(9, [7; 32]).run(&[
        "ds_write_b64 v0, v[1:2]",
        "ds_read_u8 v5, v0 offset:1",
        "ds_read_i8 v6, v0 offset:3",
        "ds_read_u16 v7, v0 offset:2",
        "ds_read_i16 v8, v0 offset:2",
        "ds_read_u16_d16_hi v9, v0",
        "ds_write_b8 v0, v2 offset:8",
        "ds_write_b16_d16_hi v0, v1 offset:10",
        "ds_read_b32 v10, v0 offset:8",
    ]);
    let each = |f: &dyn Fn(u32) -> u32| x.map(f);
    assert_eq!(reg(&wave, 5), each(&|x| x >> 8 & 255));
    assert_eq!(reg(&wave, 6), each(&|x| (x >> 24) as i8 as u32));
    assert_eq!(reg(&wave, 7), each(&|x| x >> 16));
    assert_eq!(reg(&wave, 8), each(&|x| (x >> 16) as i16 as u32));
    assert_eq!(reg(&wave, 9), each(&|x| x << 16 | 7));
    assert_eq!(reg(&wave, 10), each(&|x| !x & 255 | x >> 16 << 16));
}

/// An atomic's oracle: the new value from the old one, the data and the comparison value.
type Atomic = fn(u64, u64, u64, bool) -> u64;

fn signed(x: u64, wide: bool) -> i64 {
    if wide { x as i64 } else { x as u32 as i32 as i64 }
}

const ATOMICS: [(&str, &str, Atomic); 13] = [
    ("swap", "ds_wrxchg_rtn_b", |_, d, _, _| d),
    ("add", "ds_add_rtn_u", |o, d, _, _| o.wrapping_add(d)),
    ("sub", "ds_sub_rtn_u", |o, d, _, _| o.wrapping_sub(d)),
    ("smin", "ds_min_rtn_i", |o, d, _, w| if signed(o, w) < signed(d, w) { o } else { d }),
    ("umin", "ds_min_rtn_u", |o, d, _, _| o.min(d)),
    ("smax", "ds_max_rtn_i", |o, d, _, w| if signed(o, w) > signed(d, w) { o } else { d }),
    ("umax", "ds_max_rtn_u", |o, d, _, _| o.max(d)),
    ("and", "ds_and_rtn_b", |o, d, _, _| o & d),
    ("or", "ds_or_rtn_b", |o, d, _, _| o | d),
    ("xor", "ds_xor_rtn_b", |o, d, _, _| o ^ d),
    ("inc", "ds_inc_rtn_u", |o, d, _, _| if o >= d { 0 } else { o + 1 }),
    ("dec", "ds_dec_rtn_u", |o, d, _, _| if o == 0 || o > d { d } else { o - 1 }),
    ("cmpswap", "ds_cmpst_rtn_b", |o, d, c, _| if o == c { d } else { o }),
];

#[test]
fn atomics_return_the_old_value() {
    let mut random = Random::new(4);
    let mut word = || u64::from(random.next()) << 32 | u64::from(random.next());
    for (name, ds, oracle) in ATOMICS {
        for wide in [false, true] {
            let mask = if wide { u64::MAX } else { u32::MAX.into() };
            let old: [u64; 32] = std::array::from_fn(|l| if l % 4 == 0 { l as u64 } else { word() & mask });
            let data: [u64; 32] =
                std::array::from_fn(
                    |l| if l % 8 == 0 { old[l].wrapping_add(1) & mask } else { word() & mask },
                );
            let other: [u64; 32] = std::array::from_fn(|l| if l % 2 == 0 { old[l] } else { word() & mask });
            let want: [u64; 32] = std::array::from_fn(|l| oracle(old[l], data[l], other[l], wide) & mask);
            let rig = |comparison_first: bool| {
                let (first, second) = if comparison_first { (other, data) } else { (data, other) };
                let rig = Rig::default();
                if wide {
                    rig.v64(4, first).v64(6, second)
                } else {
                    rig.v(4, first.map(|x| x as u32)).v(5, second.map(|x| x as u32))
                }
            };
            let compares = name == "cmpswap";
            // Device memory.
            let mut buffer = old;
            let registers = match (wide, compares) {
                (false, false) => "v4",
                (true, true) => "v[4:7]",
                _ => "v[4:5]",
            };
            let (suffix, dst) = if wide { ("_x2", "v[10:11]") } else { ("", "v10") };
            let base = buffer.as_ptr() as u64;
            let wave = rig(false)
                .memory(&mut buffer[..])
                .v64(0, addresses(base, 8))
                .run(&[&format!("global_atomic_{name}{suffix} {dst}, v[0:1], {registers}, off glc")]);
            let returned = if wide { reg64(&wave, 10) } else { reg(&wave, 10).map(u64::from) };
            assert_eq!((returned, buffer), (old, want), "{name}{suffix}");
            // LDS.
            let at: [u32; 32] = std::array::from_fn(|l| 8 * l as u32);
            let bits = if wide { 64 } else { 32 };
            let (one, two) = if wide { ("v[4:5]", "v[6:7]") } else { ("v4", "v5") };
            let sources = if compares { format!("{one}, {two}") } else { one.to_owned() };
            let wave = rig(compares).v(0, at).v64(8, old).run(&[
                "ds_write_b64 v0, v[8:9]",
                &format!("{ds}{bits} {dst}, v0, {sources}"),
                "ds_read_b64 v[12:13], v0",
            ]);
            let returned = if wide { reg64(&wave, 10) } else { reg(&wave, 10).map(u64::from) };
            assert_eq!((returned, reg64(&wave, 12)), (old, want), "{ds}{bits}");
        }
    }
}

#[test]
fn float_atomics() {
    let old = [1.0f32, -1.0, f32::NAN, 5.0, f32::NEG_INFINITY, 0.0, -0.0, 3.5];
    let new = [2.0f32, f32::NAN, 7.0, -5.0, 1.0, -0.0, 0.0, 3.5];
    let lanes = |x: [f32; 8]| -> [u32; 32] { std::array::from_fn(|l| x[l % 8].to_bits()) };
    for (name, want) in [
        ("fmin", [1.0, -1.0, 7.0, -5.0, f32::NEG_INFINITY, -0.0, -0.0, 3.5]),
        ("fmax", [2.0, -1.0, 7.0, 5.0, 1.0, 0.0, 0.0, 3.5]),
    ] {
        let mut buffer = lanes(old);
        let base = buffer.as_ptr() as u64;
        Rig::default()
            .memory(&mut buffer[..])
            .v64(0, addresses(base, 4))
            .v(2, lanes(new))
            .run(&[&format!("global_atomic_{name} v[0:1], v2, off")]);
        assert_eq!(buffer, lanes(want), "{name}");
    }
    // All lanes add 0.5 to one dword.
    let wave = Rig::default()
        .v(0, [0; 32])
        .v(1, [0.5f32.to_bits(); 32])
        .run(&["ds_add_f32 v0, v1", "ds_read_b32 v3, v0"]);
    assert_eq!(reg(&wave, 3), [16f32.to_bits(); 32]);
}

#[test]
fn lds_by_flat_address_and_counters() {
    let at = addresses(0x1_0000_0000_0000, 4);
    let x: [u32; 32] = std::array::from_fn(|l| 3 * l as u32);
    let mut lds = Lds::new(&LdsInit { size: 256, ..LdsInit::default() });
    let rig = Rig::default().v64(0, at).v(2, x).v(4, [8; 32]).s(124, 128).exec(0x0fff_ffff);
    let wave = rig
        .run_with(
            &[
                "flat_store_dword v[0:1], v2",
                "ds_read_b32 v3, v4",
                "ds_append v5 offset:4",
                "ds_consume v6 offset:4",
                "flat_atomic_add v7, v[0:1], v2 glc",
            ],
            &mut lds,
        )
        .expect("no fault");
    assert_eq!((reg(&wave, 3)[0], reg(&wave, 5)[0], reg(&wave, 6)[0]), (6, 0, 28));
    assert_eq!(reg(&wave, 7)[..28], x[..28]);
}
