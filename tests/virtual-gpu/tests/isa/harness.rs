//! Runs single instructions: encodings by their text, registers in, registers out.

pub(crate) use crate::random::Random;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use virtual_gpu::isa::{Code, Fault, Lds, LdsInit, Stop, Wave, WaveInit};
use virtual_gpu::memory::{AllocationMap, Range};

/// MODE as HIP's compiler sets it: round to nearest, keep denormals, DX10_CLAMP, IEEE.
pub(crate) const MODE: u32 = 0x3f0;
/// `s_endpgm`.
const END: u32 = 0xbf81_0000;

/// The encodings: a text in LLVM's assembly, a tab, dwords. `encodings.txt` is written by the assembler, see `encode`.
static ENCODINGS: LazyLock<Mutex<HashMap<String, Vec<u32>>>> = LazyLock::new(|| {
    let table = include_str!("encodings.txt").lines().filter_map(crate::llvm::parse).collect();
    Mutex::new(table)
});

/// The encoding of an instruction, from the table beside this file. With `ROOT` set, a missing one is assembled there
/// and appended.
pub(crate) fn encode(text: &str) -> Vec<u32> {
    let mut table = ENCODINGS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(words) = table.get(text) {
        return words.clone();
    }
    assert!(std::env::var_os("ROOT").is_some(), "encodings.txt lacks {text:?}: run this test with ROOT");
    let words = crate::llvm::assemble(&crate::llvm::root(), text);
    let line =
        format!("{text}\t{}\n", words.iter().map(|w| format!("{w:08x}")).collect::<Vec<_>>().join(" "));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/isa/encodings.txt");
    let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("encodings.txt");
    std::io::Write::write_all(&mut file, line.as_bytes()).expect("encodings.txt");
    table.insert(text.to_owned(), words.clone());
    words
}

/// A machine that runs short programs.
pub(crate) struct Rig {
    pub(crate) mode: u32,
    pub(crate) exec: u32,
    pub(crate) vgprs: HashMap<u16, [u32; 32]>,
    pub(crate) sgprs: HashMap<u16, u32>,
    pub(crate) scc: bool,
    pub(crate) lds: LdsInit,
    pub(crate) scratch: (u64, u32),
    pub(crate) memory: AllocationMap,
    pub(crate) vgpr_count: usize,
    /// How many times `s_waitcnt` stops the wave.
    pub(crate) waits: u32,
    /// Whether the wave counts what it does.
    pub(crate) count: bool,
}

impl Default for Rig {
    fn default() -> Self {
        Self {
            mode: MODE,
            exec: u32::MAX,
            vgprs: HashMap::new(),
            sgprs: HashMap::new(),
            scc: false,
            lds: LdsInit { size: 1024, ..LdsInit::default() },
            scratch: (0, 0),
            memory: AllocationMap::new(),
            vgpr_count: 32,
            waits: 0,
            count: false,
        }
    }
}

impl Rig {
    pub(crate) fn v(mut self, reg: u16, lanes: [u32; 32]) -> Self {
        self.vgprs.insert(reg, lanes);
        self
    }

    pub(crate) fn v64(self, reg: u16, lanes: [u64; 32]) -> Self {
        self.v(reg, lanes.map(|x| x as u32)).v(reg + 1, lanes.map(|x| (x >> 32) as u32))
    }

    pub(crate) fn s(mut self, reg: u16, value: u32) -> Self {
        self.sgprs.insert(reg, value);
        self
    }

    pub(crate) fn s64(self, reg: u16, value: u64) -> Self {
        self.s(reg, value as u32).s(reg + 1, (value >> 32) as u32)
    }

    pub(crate) fn exec(mut self, exec: u32) -> Self {
        self.exec = exec;
        self
    }

    pub(crate) fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub(crate) fn scc(mut self, scc: bool) -> Self {
        self.scc = scc;
        self
    }

    /// Allows access to a buffer.
    pub(crate) fn memory<T>(self, buffer: &mut [T]) -> Self {
        let range = buffer.as_mut_ptr_range();
        let (start, end) = (range.start as u64, range.end as u64);
        self.memory.insert(Range { start, end, writable: true, host: false });
        self
    }

    fn wave(&self, pc: u64) -> Wave {
        let mut wave = Wave::new(&WaveInit {
            pc,
            sgprs: &[],
            vgprs: [[0; 32]; 3],
            exec: self.exec,
            vgpr_count: self.vgpr_count,
            mode: self.mode,
            scratch: self.scratch.0,
            scratch_stride: self.scratch.1,
            index: 0,
            poison: false,
        });
        self.vgprs.iter().for_each(|(reg, lanes)| wave.set_vgpr(*reg, lanes));
        self.sgprs.iter().for_each(|(reg, value)| wave.set_sgpr(*reg, *value));
        wave.set_scc(self.scc);
        wave.set_waits(self.waits);
        if self.count {
            wave.count();
        }
        wave
    }

    /// Runs instructions to their end, with this LDS.
    pub(crate) fn run_with(&self, program: &[&str], lds: &mut Lds) -> Result<Wave, Fault> {
        let mut words: Vec<u32> = program.iter().flat_map(|text| encode(text)).collect();
        words.push(END);
        let code = Code::new();
        code.add(words.as_ptr() as u64, 4 * words.len() as u64);
        let mut wave = self.wave(words.as_ptr() as u64);
        loop {
            match wave.run(&code, lds, &self.memory, 10_000) {
                Stop::End => return Ok(wave),
                Stop::Fault(fault) => return Err(fault),
                Stop::Barrier => lds.barrier(),
                Stop::Yield | Stop::Sleep | Stop::Wait => {}
            }
        }
    }

    /// Runs instructions to their end.
    pub(crate) fn try_run(&self, program: &[&str]) -> Result<Wave, Fault> {
        self.run_with(program, &mut Lds::new(&self.lds))
    }

    /// Runs instructions that don't fault.
    pub(crate) fn run(&self, program: &[&str]) -> Wave {
        self.try_run(program).unwrap_or_else(|fault| panic!("{program:?}: {fault}"))
    }
}

/// A vector register.
pub(crate) fn reg(wave: &Wave, reg: u16) -> [u32; 32] {
    *wave.vgpr(reg).expect("an allocated register")
}

/// A pair of vector registers.
pub(crate) fn reg64(wave: &Wave, number: u16) -> [u64; 32] {
    let (lo, hi) = (reg(wave, number), reg(wave, number + 1));
    std::array::from_fn(|l| u64::from(lo[l]) | u64::from(hi[l]) << 32)
}

/// Whether two bit patterns are the same 32-bit float: NaNs are all alike.
pub(crate) fn same32(a: u32, b: u32) -> bool {
    a == b || f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan()
}

/// The same for 64 bits.
pub(crate) fn same64(a: u64, b: u64) -> bool {
    a == b || f64::from_bits(a).is_nan() && f64::from_bits(b).is_nan()
}

/// The same for 16 bits.
pub(crate) fn same16(a: u32, b: u32) -> bool {
    let nan = |x: u32| x & 0x7fff > 0x7c00;
    a & 0xffff == b & 0xffff || nan(a) && nan(b)
}

/// Runs a lane instruction on lanes of operands v0, v1, v2 (destination v3) and compares each lane.
pub(crate) fn check3(
    rig: Rig,
    text: &str,
    sources: [&[u32]; 3],
    same: fn(u32, u32) -> bool,
    oracle: impl Fn(u32, u32, u32) -> u32,
) {
    let n = sources[0].len();
    for at in (0..n).step_by(32) {
        let pick = |k: usize| {
            std::array::from_fn(|l| sources[k].get(at + l).or(sources[k].first()).copied().unwrap_or(0))
        };
        let (a, b, c): ([u32; 32], [u32; 32], [u32; 32]) = (pick(0), pick(1), pick(2));
        let rig = Rig { mode: rig.mode, ..Rig::default() }.v(0, a).v(1, b).v(2, c);
        let got = reg(&rig.run(&[text]), 3);
        for l in 0..32.min(n - at) {
            let want = oracle(a[l], b[l], c[l]);
            assert!(
                same(got[l], want),
                "{text}: ({:#x}, {:#x}, {:#x}) gives {:#x}, not {want:#x}",
                a[l],
                b[l],
                c[l],
                got[l]
            );
        }
    }
}
