//! Races in global memory between waves of a launch, instruction by instruction.

use std::sync::Arc;

use virtual_gpu::isa::{Code, FaultKind, GlobalRaces, Lds, LdsInit, Stop, Wave, WaveInit};
use virtual_gpu::memory::{AllocationMap, Range};

/// `global_store_dword v[0:1], v2, off`
const STORE: &[u32] = &[0xdc70_8000, 0x007d_0200];
/// `global_store_byte v[0:1], v2, off`
const STORE_BYTE: &[u32] = &[0xdc60_8000, 0x007d_0200];
/// `global_store_byte v[0:1], v2, off offset:1`
const STORE_BYTE_1: &[u32] = &[0xdc60_8001, 0x007d_0200];
/// `global_store_short v[0:1], v2, off offset:2`
const STORE_SHORT_2: &[u32] = &[0xdc68_8002, 0x007d_0200];
/// `global_load_dword v3, v[0:1], off`
const LOAD: &[u32] = &[0xdc30_8000, 0x037d_0000];
/// `global_load_ubyte v3, v[0:1], off`
const LOAD_BYTE: &[u32] = &[0xdc20_8000, 0x037d_0000];
/// `buffer_load_dword v3, v2, s[8:11], 0 offen`
const BUFFER_LOAD: &[u32] = &[0xe030_1000, 0x8002_0302];
/// `global_atomic_add v[0:1], v2, off`
const ADD: &[u32] = &[0xdcc8_8000, 0x007d_0200];
/// `global_atomic_add v3, v[0:1], v2, off glc`
const ADD_RETURN: &[u32] = &[0xdcc9_8000, 0x037d_0200];
/// `global_atomic_cmpswap v3, v[0:1], v[2:3], off glc`
const CMPSWAP: &[u32] = &[0xdcc5_8000, 0x037d_0200];
/// `s_load_dword s6, s[4:5], 0x0`
const SCALAR_LOAD: &[u32] = &[0xf400_0182, 0xfa00_0000];
/// `s_load_dwordx16 s[16:31], s[4:5], 0x0`
const SCALAR_LOAD_16: &[u32] = &[0xf410_0402, 0xfa00_0000];
/// `buffer_gl0_inv`
const GL0_INV: &[u32] = &[0xe1c4_0000, 0];
/// `ds_add_u32 v4, v4`
const LDS_ADD: &[u32] = &[0xd800_0000, 0x0000_0404];
/// After these a wave may have seen a flag.
const ACQUIRING: [(&str, &[u32]); 10] = [
    ("global_load_dword v3, v[0:1], off glc dlc", &[0xdc31_9000, 0x037d_0000]),
    ("global_load_dword v3, v[0:1], off dlc", &[0xdc30_9000, 0x037d_0000]),
    ("global_load_dword v3, v[0:1], off slc", &[0xdc32_8000, 0x037d_0000]),
    ("buffer_load_dword v3, v2, s[8:11], 0 offen glc", &[0xe030_5000, 0x8002_0302]),
    ("buffer_load_dword v3, v2, s[8:11], 0 offen dlc", &[0xe030_9000, 0x8002_0302]),
    ("buffer_load_dword v3, v2, s[8:11], 0 offen slc", &[0xe030_1000, 0x8042_0302]),
    ("global_atomic_add v3, v[0:1], v2, off glc", ADD_RETURN),
    ("global_atomic_cmpswap v3, v[0:1], v[2:3], off glc", CMPSWAP),
    ("s_load_dword s6, s[4:5], 0x0 glc", &[0xf401_0182, 0xfa00_0000]),
    ("s_load_dword s6, s[4:5], 0x0 dlc", &[0xf400_4182, 0xfa00_0000]),
];
/// `s_sleep 0`, at the end of each step.
const SLEEP: u32 = 0xbf8e_0000;
/// Waves of a workgroup.
const WAVES: usize = 2;

/// What happens next.
#[derive(Clone, Copy)]
enum Do<'a> {
    /// A wave runs an instruction. Waves 0 and 1 are of workgroup 0, 2 and 3 of workgroup 1.
    Run(usize, &'a [u32]),
    /// The waves of a workgroup meet at a barrier.
    Meet(usize),
}
use Do::{Meet, Run};

/// A race: the address's offset, and the rest of [`FaultKind::GlobalRace`] with the other instruction's number among
/// those of its wave.
#[derive(Debug, PartialEq)]
struct Race {
    offset: u64,
    write: bool,
    wrote: bool,
    other: usize,
    instruction: usize,
}

/// Runs steps. Lane 0 of every wave is active and accesses the same zeros; each wave has other data.
fn run(steps: &[Do]) -> Option<Race> {
    run_in(false, steps)
}

/// The same in the host's memory, or in device memory.
fn run_in(host: bool, steps: &[Do]) -> Option<Race> {
    let mut memory = [0u32; 64];
    let base = memory.as_mut_ptr() as u64;
    let map = AllocationMap::new();
    map.insert(Range { start: base, end: base + 256, writable: true, host });
    let (code, races) = (Code::new(), Arc::new(GlobalRaces::new(WAVES as u32)));
    // The waves' instructions, one wave after the other as in a code object.
    let (mut words, mut starts) = (Vec::<u32>::new(), [0; WAVES * 2]);
    for (wave, start) in starts.iter_mut().enumerate() {
        *start = words.len();
        for step in steps {
            if let Run(by, instruction) = step
                && *by == wave
            {
                words.extend(instruction.iter().chain([&SLEEP]));
            }
        }
    }
    let starts = starts.map(|start| words.as_ptr() as u64 + 4 * start as u64);
    code.add(words.as_ptr() as u64, 4 * words.len() as u64);
    let groups = [0, 1].map(|group| races.group(group).expect("few waves"));
    let mut waves: [Wave; 4] = std::array::from_fn(|k| {
        let mut wave = Wave::new(&WaveInit {
            pc: starts[k],
            sgprs: &[
                0,
                0,
                0,
                0,
                base as u32,
                (base >> 32) as u32,
                0,
                0,
                base as u32,
                (base >> 32) as u32,
                256,
                0,
            ],
            // 4, 8, 12 and 16 as data.
            vgprs: [[base as u32; 32], [(base >> 32) as u32; 32], [4 * k as u32 + 4; 32]],
            exec: 1,
            vgpr_count: 8,
            mode: 0x3f0,
            scratch: 0,
            scratch_stride: 0,
            index: (k % WAVES) as u32,
            poison: false,
        });
        wave.find_races(&groups[k / WAVES]);
        wave
    });
    let mut lds = [0, 1].map(|_| Lds::new(&LdsInit { size: 64, ..LdsInit::default() }));
    for step in steps {
        match *step {
            Meet(group) => waves[WAVES * group..][..WAVES].iter_mut().for_each(Wave::meet),
            Run(wave, _) => match waves[wave].run(&code, &mut lds[wave / WAVES], &map, 100) {
                Stop::Sleep => {}
                Stop::Fault(fault) => {
                    let FaultKind::GlobalRace { address, write, wrote, group, wave, pc } = fault.kind else {
                        panic!("{fault}")
                    };
                    let (other, offset) = (WAVES * group as usize + wave as usize, address - base);
                    // Every instruction here has two dwords and a third to stop.
                    let instruction = (pc - starts[other]) as usize / 12;
                    return Some(Race { offset, write, wrote, other, instruction });
                }
                stop => panic!("{stop:?}"),
            },
        }
    }
    None
}

/// Two waves of different workgroups.
fn two(first: &[u32], second: &[u32]) -> Option<Race> {
    run(&[Run(0, first), Run(2, second)])
}

#[test]
fn unordered_accesses_race() {
    let race = |write, wrote| Some(Race { offset: 0, write, wrote, other: 0, instruction: 0 });
    assert_eq!(two(STORE, LOAD), race(false, true));
    assert_eq!(two(LOAD, STORE), race(true, false));
    assert_eq!(two(STORE, STORE), race(true, true));
    assert_eq!(two(STORE, ADD), race(true, true));
    assert_eq!(two(ADD, STORE), race(true, true));
    assert_eq!(two(STORE, SCALAR_LOAD), race(false, true));
    assert_eq!(two(STORE, SCALAR_LOAD_16), race(false, true));
    assert_eq!(two(SCALAR_LOAD_16, STORE), race(true, false));
    // Waves of one workgroup too; and the right instruction is named.
    let steps = [Run(1, LOAD_BYTE), Run(1, STORE), Run(1, GL0_INV), Run(0, LOAD)];
    assert_eq!(run(&steps), Some(Race { offset: 0, write: false, wrote: true, other: 1, instruction: 1 }));
    for (first, second) in [(LOAD, LOAD), (ADD, ADD), (LOAD, SCALAR_LOAD), (BUFFER_LOAD, LOAD)] {
        assert_eq!(two(first, second), None);
    }
    let own = [Run(0, LOAD), Run(0, STORE), Run(0, STORE), Run(0, SCALAR_LOAD), Run(0, ADD), Run(0, LOAD)];
    assert_eq!(run(&own), None);
}

/// What gfx1030's code does not tell from an atomic store, or from what the compiler makes of an atomic.
#[test]
fn what_may_be_atomic_does_not_race() {
    for (name, acquiring) in ACQUIRING {
        // Scalar and global accesses are of the same dword, and buffer loads of one that nobody stores to.
        for (first, second) in [(STORE, acquiring), (acquiring, STORE)] {
            assert_eq!(two(first, second), None, "{name}");
        }
    }
    let add = [Run(0, LOAD), Run(2, LOAD), Run(2, CMPSWAP), Run(0, CMPSWAP), Run(1, LOAD)];
    assert_eq!(run(&add), None, "atomicAdd by a loop");
    assert_eq!(two(ADD, LOAD), None);
    let flag = [Run(0, STORE), Run(0, CMPSWAP), Run(2, CMPSWAP), Run(2, STORE)];
    assert_eq!(run(&flag), None, "a lock's release");
}

#[test]
fn a_store_of_what_is_there_does_not_race() {
    // v4 is 0, as memory is: global_store_dword v[0:1], v4, off
    let store = &[0xdc70_8000, 0x007d_0400];
    assert_eq!(two(store, STORE), None);
    assert_eq!(two(LOAD, store), None);
    assert!(run(&[Run(0, STORE), Run(2, store)]).is_some(), "the value changes");
}

/// Any report of a fault may remain.
#[test]
fn stores_to_host_memory_do_not_race() {
    let both = [Run(0, STORE), Run(2, STORE)];
    assert_eq!(run_in(true, &both), None);
    assert!(run_in(false, &both).is_some());
    assert!(run_in(true, &[Run(0, STORE), Run(2, LOAD)]).is_some(), "loads are compared");
    assert!(run_in(true, &[Run(0, LOAD), Run(2, STORE)]).is_some(), "loads are compared");
    assert!(run_in(true, &[Run(0, ADD), Run(2, STORE)]).is_some(), "so are atomics");
}

#[test]
fn an_acquiring_access_orders_what_follows() {
    for (name, acquiring) in ACQUIRING {
        assert_eq!(run(&[Run(0, STORE), Run(2, acquiring), Run(2, LOAD)]), None, "{name}");
        assert_eq!(run(&[Run(0, LOAD), Run(2, acquiring), Run(2, STORE)]), None, "{name}");
        let early = run(&[Run(2, acquiring), Run(0, STORE), Run(2, LOAD)]);
        let instruction = 0;
        let race = Race { offset: 0, write: false, wrote: true, other: 0, instruction };
        assert_eq!(early, Some(race), "{name} came before the store");
        assert!(run(&[Run(0, STORE), Run(0, acquiring), Run(2, LOAD)]).is_some(), "{name} of the other wave");
        assert!(run(&[Run(0, STORE), Run(3, acquiring), Run(2, LOAD)]).is_some(), "{name} without a barrier");
        let last = run(&[Run(0, STORE), Run(3, acquiring), Meet(1), Run(2, LOAD)]);
        assert_eq!(last, None, "{name} and a barrier");
    }
    assert!(run(&[Run(0, STORE), Run(2, BUFFER_LOAD), Run(2, LOAD)]).is_some(), "a plain load");
    assert!(run(&[Run(0, STORE), Run(2, SCALAR_LOAD_16)]).is_some(), "a plain scalar load");
}

#[test]
fn barriers_order_a_workgroup() {
    let orders: [(&str, &[Do]); 3] =
        [("a barrier", &[Meet(0)]), ("an atomic", &[Run(1, LDS_ADD)]), ("a fence", &[Run(1, GL0_INV)])];
    for (name, order) in orders {
        for (first, second) in [(STORE, LOAD), (LOAD, STORE), (STORE, STORE), (ADD, STORE)] {
            let after = |wave| run(&[&[Run(0, first)], order, &[Run(wave, second)]].concat());
            assert_eq!(after(1), None, "{name}");
            assert!(after(2).is_some(), "{name} of another workgroup");
            assert!(run(&[order, &[Run(0, first), Run(1, second)]].concat()).is_some(), "{name} before both");
        }
    }
    assert!(run(&[Run(0, STORE), Meet(1), Meet(1), Run(2, LOAD)]).is_some());
}

#[test]
fn bytes_are_told_apart() {
    assert_eq!(two(STORE_BYTE, STORE_BYTE_1), None);
    assert_eq!(two(STORE_BYTE_1, LOAD_BYTE), None);
    assert_eq!(run(&[Run(0, STORE_BYTE_1), Run(1, STORE_BYTE), Run(2, STORE_SHORT_2)]), None);
    let dword = |wave, first| run(&[Run(wave, first), Run(2, LOAD)]).map(|race| (race.offset, race.other));
    assert_eq!(dword(0, STORE_BYTE), Some((0, 0)));
    assert_eq!(dword(1, STORE_BYTE_1), Some((1, 1)));
    assert_eq!(dword(0, STORE_SHORT_2), Some((2, 0)));
    // A dword that was tracked as a whole, then byte by byte.
    let split =
        run(&[Run(0, LOAD), Run(0, LOAD_BYTE), Run(2, STORE_BYTE_1)]).expect("the dword's second byte");
    assert_eq!((split.offset, split.instruction), (1, 0));
    // Scalar loads of bytes are of dwords, and an atomic may update one byte.
    assert_eq!(two(STORE_BYTE, SCALAR_LOAD), None);
    assert_eq!(two(SCALAR_LOAD, STORE_BYTE), None);
    assert_eq!(two(STORE_BYTE, ADD), None);
    assert_eq!(two(ADD, STORE_BYTE), None);
}

#[test]
fn two_readers_are_remembered() {
    for owner in [0, 2] {
        let other = 2 - owner;
        let race = run(&[Run(0, LOAD), Run(2, LOAD), Run(owner, LOAD), Run(owner, STORE)]);
        assert_eq!(race, Some(Race { offset: 0, write: true, wrote: false, other, instruction: 0 }));
    }
}
