//! What the checker finds: accesses out of bounds, misaligned atomics, races, poison, bad code.

use virtual_gpu::isa::{Code, FaultKind, Lds, LdsInit, Stop, Wave, WaveInit};
use virtual_gpu::memory::{AccessError, AllocationMap, Range};

use crate::harness::{Rig, encode, reg};

#[test]
fn one_byte_beyond_an_allocation_faults() {
    let mut data = vec![0u32; 32];
    let (base, size) = (data.as_mut_ptr() as u64, 4 * data.len() as u64);
    let run = |offset: u64, text: &str, exec: u32| {
        let rig = Rig::default()
            .exec(exec)
            .v64(0, std::array::from_fn(|l| base + offset + 4 * l as u64))
            .s64(4, base + size - 4);
        rig.memory.insert(Range {
            start: base,
            end: base + size,
            writable: text.contains("store"),
            host: false,
        });
        rig.try_run(&[text])
    };
    run(0, "global_load_dword v3, v[0:1], off", u32::MAX).expect("inside");
    run(1, "global_load_dword v3, v[0:1], off", 0x7fff_ffff).expect("inside but for an inactive lane");
    let fault = run(1, "global_load_dword v3, v[0:1], off", u32::MAX).expect_err("a byte too far");
    assert_eq!(
        (fault.lane, fault.kind.address(), fault.instruction),
        (Some(31), Some(base + size - 3), Some("global_load_dword"))
    );
    assert!(matches!(
        fault.kind,
        FaultKind::Memory { bytes: 4, write: false, error: AccessError::Outside, .. }
    ));
    let fault = run(2, "global_store_dwordx2 v[0:1], v[4:5], off", u32::MAX).expect_err("too far");
    assert!(
        matches!(fault.kind, FaultKind::Memory { bytes: 8, write: true, .. }) && fault.lane == Some(30),
        "{fault}"
    );
    run(0, "s_load_dword s6, s[4:5], 0x0", 0).expect("inside");
    let fault = run(0, "s_load_dwordx2 s[6:7], s[4:5], 0x0", 0).expect_err("four bytes too far");
    assert_eq!((fault.lane, fault.kind.address()), (None, Some(base + size - 4)));
    // Writes to what may only be read.
    let rig = Rig::default().v64(0, [base; 32]);
    rig.memory.insert(Range { start: base, end: base + size, writable: false, host: false });
    let fault = rig.try_run(&["global_store_byte v[0:1], v4, off"]).expect_err("read-only");
    assert!(matches!(fault.kind, FaultKind::Memory { error: AccessError::ReadOnly, .. }), "{fault}");
}

#[test]
fn other_spaces_are_bounded_too() {
    let rig = |at: u32| {
        let mut rig = Rig::default().v(0, [at; 32]).v64(2, [0x1_0000_0000_0000 + u64::from(at); 32]);
        rig.lds = LdsInit { size: 100, ..LdsInit::default() };
        rig
    };
    rig(96).try_run(&["ds_read_b32 v5, v0"]).expect("inside");
    let fault = rig(97).try_run(&["ds_read_b32 v5, v0"]).expect_err("a byte too far");
    assert!(matches!(fault.kind, FaultKind::Lds { offset: 97, bytes: 4, size: 100 }), "{fault}");
    let fault = rig(90).try_run(&["ds_write_b128 v0, v[4:7]"]).expect_err("too far");
    assert!(matches!(fault.kind, FaultKind::Lds { offset: 90, bytes: 16, .. }), "{fault}");
    let fault = rig(97).try_run(&["flat_load_dword v5, v[2:3]"]).expect_err("a byte too far");
    assert!(matches!(fault.kind, FaultKind::Lds { offset: 97, .. }), "{fault}");
    let mut memory = vec![0u8; 32 * 16];
    let rig = Rig { scratch: (memory.as_mut_ptr() as u64, 16), ..rig(13) };
    let fault = rig.try_run(&["scratch_load_dword v5, v0, off"]).expect_err("a byte too far");
    assert!(matches!(fault.kind, FaultKind::Scratch { offset: 13, bytes: 4, size: 16 }), "{fault}");
}

#[test]
fn misaligned_atomics_fault() {
    let mut data = vec![0u64; 4];
    let base = data.as_mut_ptr() as u64;
    let fault = Rig::default()
        .memory(&mut data[..])
        .v64(0, [base + 4; 32])
        .try_run(&["global_atomic_add_x2 v[0:1], v[2:3], off"]);
    assert!(matches!(fault.expect_err("misaligned").kind, FaultKind::Misaligned { bytes: 8, .. }));
    let fault = Rig::default().v(0, [2; 32]).try_run(&["ds_add_u32 v0, v1"]).expect_err("misaligned");
    assert!(matches!(fault.kind, FaultKind::Misaligned { address: 2, bytes: 4 }), "{fault}");
}

#[test]
fn bad_code_faults() {
    let fault = Rig::default().try_run(&["s_trap 2"]).expect_err("a trap");
    assert!(matches!(fault.kind, FaultKind::Trap(2)), "{fault}");
    // A debugger's breakpoint, without a debugger.
    let out = Rig::default().run(&["s_trap 3", "v_mov_b32_e32 v3, 5"]);
    assert_eq!(reg(&out, 3), [5; 32]);
    let fault = Rig::default().try_run(&["s_branch 100"]).expect_err("a jump to nowhere");
    assert!(matches!(fault.kind, FaultKind::WildJump), "{fault}");
    let fault = Rig::default().try_run(&["v_mov_b32_e32 v40, 0"]).expect_err("too many registers");
    assert!(matches!(fault.kind, FaultKind::Register { count: 41, allocated: 32 }), "{fault}");
    let words = [0xbf80_0000u32, 0xffff_ffff, 0];
    let code = Code::new();
    code.add(words.as_ptr() as u64, 12);
    let mut wave = bare(words.as_ptr() as u64, 0);
    let Stop::Fault(fault) = wave.run(&code, &mut Lds::new(&LdsInit::default()), &AllocationMap::new(), 100)
    else {
        panic!("no fault")
    };
    assert_eq!(fault.pc, words.as_ptr() as u64 + 4);
    assert!(
        matches!(fault.kind, FaultKind::UnknownInstruction { words: [0xffff_ffff, 0, ..], count: 2 }),
        "{fault:?}"
    );
}

fn bare(pc: u64, index: u32) -> Wave {
    Wave::new(&WaveInit {
        pc,
        sgprs: &[],
        vgprs: [std::array::from_fn(|l| 4 * l as u32), [0; 32], [0; 32]],
        exec: u32::MAX,
        vgpr_count: 8,
        mode: 0x3f0,
        scratch: 0,
        scratch_stride: 0,
        index,
        poison: false,
    })
}

/// Runs two waves of a workgroup one after the other, up to each barrier.
fn two_waves(program: [&[&str]; 2]) -> Result<(), FaultKind> {
    let words = program.map(|texts| {
        let mut words: Vec<u32> = texts.iter().flat_map(|t| encode(t)).collect();
        words.push(0xbf81_0000);
        words
    });
    let code = Code::new();
    words.iter().for_each(|w| code.add(w.as_ptr() as u64, 4 * w.len() as u64));
    let mut waves = [0, 1].map(|k| bare(words[k as usize].as_ptr() as u64, k));
    let mut lds = Lds::new(&LdsInit { size: 256, races: true, ..LdsInit::default() });
    loop {
        let mut ended = 0;
        for wave in &mut waves {
            match wave.run(&code, &mut lds, &AllocationMap::new(), 100) {
                Stop::End => ended += 1,
                Stop::Fault(fault) => return Err(fault.kind),
                _ => {}
            }
        }
        if ended == 2 {
            return Ok(());
        }
        lds.barrier();
    }
}

#[test]
fn lds_races_between_barriers() {
    let (write, read, add) = ("ds_write_b32 v0, v0", "ds_read_b32 v1, v0", "ds_add_u32 v0, v0");
    two_waves([&[write, "s_barrier", read], &["s_barrier", read]]).expect("a barrier between");
    two_waves([&[read], &[read]]).expect("two reads");
    two_waves([&[add], &[add]]).expect("two atomics");
    two_waves([&[write], &["ds_write_b32 v0, v0 offset:128"]]).expect("different dwords");
    let half = "ds_write_b16_d16_hi v0, v1 offset:10";
    two_waves([&[half], &["ds_write_b8 v0, v2 offset:8"]]).expect("different bytes of a dword");
    let race = |a: &str, b: &str| two_waves([&[a], &[b]]).expect_err("a race");
    assert!(matches!(
        race(write, read),
        FaultKind::LdsRace { offset: 0, wave: 0, write: false, wrote: true }
    ));
    assert!(matches!(race(read, write), FaultKind::LdsRace { wave: 0, write: true, wrote: false, .. }));
    assert!(matches!(race(write, write), FaultKind::LdsRace { write: true, wrote: true, .. }));
    assert!(matches!(race(add, read), FaultKind::LdsRace { .. }));
    let late =
        two_waves([&["s_barrier", write], &["s_barrier", read]]).expect_err("a race behind the barrier");
    assert!(matches!(late, FaultKind::LdsRace { .. }));
    let dword = two_waves([&[half], &["ds_write_b32 v0, v0 offset:8"]]).expect_err("its upper half");
    assert!(matches!(dword, FaultKind::LdsRace { offset: 10, wave: 0, write: true, wrote: true }), "{dword}");
}

/// A workgroup's accesses don't race with those of the next one.
#[test]
fn workgroups_do_not_race_in_the_same_lds() {
    let words = [encode("ds_write_b32 v0, v0"), vec![0xbf81_0000]].concat();
    let code = Code::new();
    code.add(words.as_ptr() as u64, 4 * words.len() as u64);
    let init = LdsInit { size: 256, races: true, ..LdsInit::default() };
    let mut lds = Lds::new(&init);
    let run =
        |index, lds: &mut Lds| bare(words.as_ptr() as u64, index).run(&code, lds, &AllocationMap::new(), 100);
    assert!(matches!(run(0, &mut lds), Stop::End));
    lds.reset(&init);
    assert!(matches!(run(1, &mut lds), Stop::End));
    assert!(matches!(run(0, &mut lds), Stop::Fault(_)));
}

#[test]
fn poison_fills_what_nobody_wrote() {
    let words = [0xbf81_0000u32];
    let init = WaveInit {
        pc: words.as_ptr() as u64,
        sgprs: &[1, 2],
        vgprs: [[3; 32]; 3],
        exec: 1,
        vgpr_count: 5,
        mode: 0,
        scratch: 0,
        scratch_stride: 0,
        index: 0,
        poison: true,
    };
    let wave = Wave::new(&init);
    assert_eq!((wave.sgpr(1), wave.sgpr(2), wave.sgpr(125), wave.sgpr(126)), (2, u32::MAX, 0, 1));
    assert_eq!((wave.vgpr(2), wave.vgpr(4), wave.vgpr(5)), (Some(&[3; 32]), Some(&[u32::MAX; 32]), None));
}
