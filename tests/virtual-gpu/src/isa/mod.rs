//! The RDNA 2 instruction set (gfx1030, wave32): decoding from the binary encoding, and execution on the CPU.
//!
//! Source of encodings and semantics: AMD, "RDNA 2" Instruction Set Architecture, Reference Guide, 30 November 2020.
//! Names are LLVM's, which differ from the guide's in a few cases.
//!
//! A [`Wave`] runs until it ends, reaches a barrier, sleeps, has run its share of instructions, or faults. Waves of one
//! workgroup share an [`Lds`]; all waves share a [`Code`], which decodes each basic block when a wave first enters it.

mod class;
mod code;
mod counters;
mod decode;
mod exec;
mod fault;
mod inst;
mod lds;
mod races;
mod state;
mod table;
mod watch;
mod wave;

pub use class::Class;
pub use code::Code;
pub use counters::{Counters, Traffic};
pub use decode::{Description, describe, operands};
pub use fault::{Fault, FaultKind};
pub use lds::{Lds, LdsInit};
pub use races::{GlobalRaces, GroupRaces};
pub use wave::{Stop, Wave, WaveInit};

/// The vector instructions of the host that waves use: `portable`, `avx2` or `avx512`. The host decides, and the
/// environment variable `VIRTUAL_GPU_LEVEL` may ask for less.
pub fn level() -> &'static str {
    exec::Level::host().name()
}

/// Lanes of a wave.
pub const LANES: usize = 32;
/// Upper halves of the addresses in the shared (LDS) aperture, as `src_shared_base` reads.
pub const SHARED_APERTURE: u32 = 0x1_0000;
/// Upper halves of the addresses in the private (scratch) aperture, as `src_private_base` reads.
pub const PRIVATE_APERTURE: u32 = 0x2_0000;
