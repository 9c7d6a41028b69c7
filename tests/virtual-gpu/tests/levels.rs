//! The host's vector instructions make no difference to results.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

use virtual_gpu::isa::{Code, Lds, LdsInit, Stop, Wave, WaveInit, level};
use virtual_gpu::memory::AllocationMap;

#[path = "isa/random.rs"]
mod random;
use random::{Random, seed};

/// If this is set, the test is the process that it started itself, and it only prints results.
const RUN: &str = "VIRTUAL_GPU_TEST_RUN";
/// `s_endpgm`
const END: u32 = 0xbf81_0000;
/// Vector registers, of which random numbers fill all.
const REGISTERS: u16 = 64;
/// Runs of each instruction.
const ROUNDS: usize = 8;

/// Floats that are special, as are their neighbours.
const SPECIAL: [u32; 8] =
    [0, 0x8000_0000, 0x3f80_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x0000_0001, 0x7c00_fc00];

/// The texts and encodings of the instruction tests that see neither an address, which differs from process to process,
/// nor the clock.
fn instructions() -> impl Iterator<Item = (&'static str, Vec<u32>)> {
    let lines = include_str!("isa/encodings.txt").lines().filter_map(|line| line.split_once('\t'));
    let apart = [
        "global_",
        "flat_",
        "scratch_",
        "buffer_",
        "s_load_",
        "s_buffer_",
        "s_mem",
        "s_getpc",
        "s_swappc",
        "s_call",
    ];
    let lines = lines.filter(move |(text, _)| !apart.iter().any(|name| text.starts_with(name)));
    lines.map(|(text, words)| {
        let words = words.split(' ').map(|word| u32::from_str_radix(word, 16).expect("a dword"));
        (text, words.chain([END]).collect())
    })
}

/// Random bits; every fourth number is close to a special float.
fn number(random: &mut Random) -> u32 {
    match random.next() % 4 {
        0 => {
            let special = SPECIAL[random.next() as usize % SPECIAL.len()];
            special.wrapping_add(random.next() % 5).wrapping_sub(2)
        }
        _ => random.next(),
    }
}

/// Makes NaNs of an instruction's types alike: the sign and payload of a result are the host's.
fn alike(text: &str, mut registers: Vec<[u32; 32]>) -> Vec<[u32; 32]> {
    if text.contains("f64") {
        for high in 1..registers.len() {
            let [low, high] = &mut registers[high - 1..=high] else { continue };
            for (low, high) in low.iter_mut().zip(high) {
                if f64::from_bits(u64::from(*high) << 32 | u64::from(*low)).is_nan() {
                    (*high, *low) = (0x7ff8_0000, 0);
                }
            }
        }
    }
    for x in registers.iter_mut().flatten() {
        if text.contains("f32") && f32::from_bits(*x).is_nan() {
            *x = 0x7fc0_0000;
        }
        for half in [0, 16].into_iter().filter(|_| text.contains("f16")) {
            if *x >> half & 0x7fff > 0x7c00 {
                *x = *x & !(0xffff << half) | 0x7e00 << half;
            }
        }
    }
    registers
}

/// What an instruction leaves of random registers and LDS.
fn result(text: &str, words: &[u32], random: &mut Random) -> u64 {
    let code = Code::new();
    code.add(words.as_ptr() as u64, 4 * words.len() as u64);
    let mut lds = Lds::new(&LdsInit { size: 64 << 10, poison: true, ..LdsInit::default() });
    let exec = if random.next() & 1 == 0 { u32::MAX } else { random.next() };
    let modes = [0x3f0, 0x300, 0x3ff];
    let mut wave = Wave::new(&WaveInit {
        pc: words.as_ptr() as u64,
        sgprs: &std::array::from_fn::<u32, 106, _>(|_| number(random)),
        vgprs: [[0; 32]; 3],
        exec,
        vgpr_count: REGISTERS.into(),
        mode: modes[random.next() as usize % modes.len()],
        scratch: 0,
        scratch_stride: 0,
        index: 0,
        poison: false,
    });
    for reg in 0..REGISTERS {
        wave.set_vgpr(reg, &std::array::from_fn(|_| number(random)));
    }
    // Offsets in LDS, aligned for every access.
    let lds_offsets = random.lanes().map(|bits| bits & 0xfff0);
    if words[0] >> 26 == 0b11_0110 {
        wave.set_vgpr(0, &lds_offsets);
    }
    wave.set_scc(random.next() & 1 == 0);
    let mut hash = DefaultHasher::new();
    loop {
        match wave.run(&code, &mut lds, &AllocationMap::new(), 100) {
            Stop::End => break,
            Stop::Fault(fault) => {
                format!("{:?}", fault.kind).hash(&mut hash);
                break;
            }
            _ => {}
        }
    }
    let registers: Vec<_> = (0..REGISTERS).map(|reg| *wave.vgpr(reg).expect("allocated")).collect();
    alike(text, registers).hash(&mut hash);
    (0..128).for_each(|reg| wave.sgpr(reg).hash(&mut hash));
    (wave.scc(), wave.steps()).hash(&mut hash);
    hash.finish()
}

/// A line with the level, and one for each instruction.
fn results() -> String {
    let (mut lines, seed) = (format!("level {}\n", level()), seed());
    for (text, words) in instructions() {
        let mut random = Random::new(seed);
        let results: Vec<u64> = (0..ROUNDS).map(|_| result(text, &words, &mut random)).collect();
        writeln!(lines, "result {text}\t{results:x?}").expect("a string takes every line");
    }
    lines
}

#[test]
fn every_level_gives_the_same_bits() {
    if std::env::var_os(RUN).is_some() {
        // libtest has begun a line.
        print!("\n{}", results());
        return;
    }
    let at = |level: Option<&str>| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["every_level_gives_the_same_bits", "--exact", "--nocapture"]).env(RUN, "1");
        match level {
            Some(level) => command.env("VIRTUAL_GPU_LEVEL", level),
            None => command.env_remove("VIRTUAL_GPU_LEVEL"),
        };
        let output = command.output().expect("this program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        let with = |prefix: &str| {
            text.lines().filter_map(|line| Some(line.strip_prefix(prefix)?.to_owned())).collect::<Vec<_>>()
        };
        (with("level "), with("result "))
    };
    let (best, expected) = at(None);
    println!("the host's best: {best:?}");
    assert_eq!(expected.len(), instructions().count());
    let levels = ["portable", "avx2", "avx512"];
    let best_of_host = levels.iter().position(|&level| best == [level]).expect("a known level");
    for (wish, level) in levels.into_iter().enumerate() {
        let (used, found) = at(Some(level));
        // A host without the level has a lower one.
        assert_eq!(used, [levels[wish.min(best_of_host)]]);
        assert_eq!(found.len(), expected.len());
        let wrong: Vec<_> =
            found.iter().zip(&expected).filter(|(found, expected)| found != expected).collect();
        assert!(wrong.is_empty(), "{level} and {best:?} differ: {wrong:#?}");
    }
}
