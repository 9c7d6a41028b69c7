//! Counters of single instructions, against counts by hand.

use virtual_gpu::isa::{Class, Counters, Traffic};

use crate::harness::Rig;

/// A buffer whose first byte begins a line of 64 bytes.
#[repr(align(64))]
struct Lines([u8; 8192]);

impl Lines {
    fn new() -> Box<Self> {
        Box::new(Self([0; 8192]))
    }

    fn start(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}

/// What a program of one wave counts.
fn count(rig: Rig, program: &[&str]) -> Counters {
    let wave = Rig { count: true, ..rig }.run(program);
    wave.counters().expect("the wave was counted").clone()
}

fn stride(start: u64, bytes: u64) -> [u64; 32] {
    std::array::from_fn(|l| start + bytes * l as u64)
}

#[test]
fn lines_of_global_memory() {
    let load = "global_load_dword v4, v[0:1], off";
    let cases: [(&str, u64, u64, u32, Traffic); 9] = [
        // The instruction, the stride, the first byte, the active lanes; bytes and lines.
        (load, 4, 0, u32::MAX, Traffic { bytes: 128, lines: 2 }),
        (load, 4, 4, u32::MAX, Traffic { bytes: 128, lines: 3 }),
        (load, 8, 0, u32::MAX, Traffic { bytes: 128, lines: 4 }),
        (load, 128, 0, u32::MAX, Traffic { bytes: 128, lines: 32 }),
        // All lanes read the same dword.
        (load, 0, 0, u32::MAX, Traffic { bytes: 128, lines: 1 }),
        // Every other lane, and none.
        (load, 64, 0, 0x5555_5555, Traffic { bytes: 64, lines: 16 }),
        (load, 64, 0, 0, Traffic { bytes: 0, lines: 0 }),
        // Each lane's dword lies in two lines, which its neighbours have too.
        (load, 64, 62, u32::MAX, Traffic { bytes: 128, lines: 33 }),
        ("global_load_dwordx4 v[4:7], v[0:1], off", 16, 0, u32::MAX, Traffic { bytes: 512, lines: 8 }),
    ];
    for (text, step, first, exec, traffic) in cases {
        let mut data = Lines::new();
        let rig = Rig::default().v64(0, stride(data.start() + first, step)).memory(&mut data.0).exec(exec);
        let counters = count(rig, &[text]);
        assert_eq!(counters.loads, traffic, "{text}, {step} bytes apart from {first}, lanes {exec:#x}");
        assert_eq!((counters.stores, counters.atomics), (Traffic::default(), Traffic::default()));
        assert_eq!(counters.instructions(Class::Load), 1);
        assert_eq!(counters.lanes(Class::Load), u64::from(exec.count_ones()));
    }
}

#[test]
fn directions_are_apart() {
    let mut data = Lines::new();
    let rig = Rig::default().v64(0, stride(data.start(), 64)).s64(4, data.start() + 60).memory(&mut data.0);
    let counters = count(
        rig,
        &[
            "global_store_byte v[0:1], v4, off",
            "global_atomic_add v[0:1], v4, off",
            "s_load_dwordx2 s[6:7], s[4:5], 0x0",
        ],
    );
    assert_eq!(counters.loads, Traffic::default());
    assert_eq!(counters.stores, Traffic { bytes: 32, lines: 32 });
    assert_eq!(counters.atomics, Traffic { bytes: 128, lines: 32 });
    assert_eq!(counters.scalar, Traffic { bytes: 8, lines: 2 });
}

#[test]
fn a_line_is_distinct_once() {
    // Offsets of the first byte from the buffer's, and the distinct lines.
    let cases: [(&[&str], u64); 6] = [
        (&["global_load_dword v4, v[0:1], off"], 2),
        // The same two lines again, by another direction.
        (&["global_load_dword v4, v[0:1], off", "global_store_dword v[0:1], v4, off"], 2),
        // The scalar load reads the second of them.
        (&["global_load_dword v4, v[0:1], off", "s_load_dwordx2 s[6:7], s[4:5], 0x0"], 2),
        (&["s_load_dwordx2 s[6:7], s[4:5], 0x0"], 1),
        (&["global_load_dwordx4 v[4:7], v[0:1], off"], 3),
        (&["v_rcp_f32_e32 v3, v0"], 0),
    ];
    for (program, lines) in cases {
        let mut data = Lines::new();
        let rig =
            Rig::default().v64(0, stride(data.start(), 4)).s64(4, data.start() + 64).memory(&mut data.0);
        assert_eq!(count(rig, program).distinct_lines(), lines, "{program:?}");
    }
}

/// Waves that touch the same lines, or the same numbers of lines in pages far apart.
#[test]
fn lines_of_several_waves_are_merged() {
    let mut data = Lines::new();
    let start = data.start();
    let mut sum = Counters::default();
    for (first, distinct) in [(0, 32), (0, 32), (1024, 48), (4096, 80)] {
        let rig = Rig::default().v64(0, stride(start + first, 64)).memory(&mut data.0);
        sum.merge(&count(rig, &["global_load_dword v4, v[0:1], off"]));
        assert_eq!(sum.distinct_lines(), distinct, "from {first}");
    }
    assert_eq!(sum.loads.lines, 4 * 32);
}

#[test]
fn lanes_beyond_a_buffer_move_nothing() {
    let mut data = Lines::new();
    let base = data.start();
    // 100 bytes: 25 lanes are inside.
    let rig = Rig::default()
        .v(0, std::array::from_fn(|l| 4 * l as u32))
        .s64(4, base)
        .s(6, 100)
        .s(7, 0x3101_4000)
        .memory(&mut data.0);
    let counters = count(rig, &["buffer_load_dword v4, v0, s[4:7], 0 offen"]);
    assert_eq!(counters.loads, Traffic { bytes: 100, lines: 2 });
}

#[test]
fn conflicts_in_banks() {
    let all = u32::MAX;
    let cases: [(&str, u32, u32, u64, u64); 11] = [
        // The instruction, the stride, the active lanes; bytes and extra cycles.
        ("ds_read_b32 v4, v0", 4, all, 128, 0),
        ("ds_read_b32 v4, v0", 0, all, 128, 0),
        // Two lanes a bank, in different dwords.
        ("ds_read_b32 v4, v0", 8, all, 128, 1),
        ("ds_read_b32 v4, v0", 8, 0x0000_ffff, 64, 0),
        ("ds_write_b32 v0, v4", 16, all, 128, 3),
        ("ds_read_b32 v4, v0", 128, all, 128, 31),
        // 64 dwords need two cycles at least.
        ("ds_read_b64 v[4:5], v0", 8, all, 256, 0),
        ("ds_read_b64 v[4:5], v0", 16, all, 256, 2),
        // Two accesses of a conflict each.
        ("ds_read2_b32 v[4:5], v0 offset1:1", 8, all, 256, 2),
        ("ds_add_u32 v0, v4", 4, all, 128, 0),
        // An atomic takes a cycle a lane.
        ("ds_add_u32 v0, v4", 0, all, 128, 31),
    ];
    for (text, step, exec, bytes, conflicts) in cases {
        let mut rig = Rig::default().v(0, std::array::from_fn(|l| step * l as u32)).exec(exec);
        rig.lds.size = 8192;
        let counters = count(rig, &[text]);
        let found = (counters.lds_bytes, counters.lds_conflicts);
        assert_eq!(found, (bytes, conflicts), "{text}, {step} bytes apart, lanes {exec:#x}");
        assert_eq!(counters.instructions(Class::Lds), 1);
    }
}

#[test]
fn flat_accesses_count_where_they_go() {
    let mut private = vec![0u8; 32 * 16];
    let rig = |upper: u64| {
        let mut rig = Rig::default().v64(0, std::array::from_fn(|l| (upper << 32) + 8 * l as u64 % 16));
        rig.scratch = (private.as_ptr() as u64, 16);
        rig
    };
    let shared = count(rig(0x1_0000), &["flat_load_dword v4, v[0:1]"]);
    assert_eq!((shared.lds_bytes, shared.scratch_accesses, shared.loads.bytes), (128, 0, 0));
    let scratch = count(rig(0x2_0000), &["flat_store_dword v[0:1], v4", "scratch_load_dword v4, v0, off"]);
    assert_eq!((scratch.lds_bytes, scratch.scratch_accesses, scratch.scratch_bytes), (0, 64, 256));
    assert_eq!((scratch.loads.bytes, scratch.stores.bytes), (0, 0));
    private.fill(0);
}

#[test]
fn divergence_is_told_by_lanes() {
    let rig = Rig::default().s(4, 0x0000_ffff);
    let counters = count(
        rig,
        &[
            "v_fma_f32 v3, v0, v1, v2",
            "s_mov_b32 exec_lo, s4",
            "v_fma_f32 v3, v0, v1, v2",
            "v_mul_lo_u32 v3, v0, v1",
            "v_rcp_f32_e32 v3, v0",
        ],
    );
    assert_eq!((counters.instructions(Class::F32), counters.lanes(Class::F32)), (2, 48));
    assert_eq!(counters.instructions(Class::IntegerProduct), 1);
    assert_eq!(
        (counters.instructions(Class::Transcendental), counters.lanes(Class::Transcendental)),
        (1, 16)
    );
    // `s_endpgm` is the other one.
    assert_eq!((counters.instructions(Class::Scalar), counters.instructions(Class::Other)), (1, 1));
    assert_eq!(counters.waves, 1);
}
