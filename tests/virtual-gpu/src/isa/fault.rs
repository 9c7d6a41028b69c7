//! Faults, which stop a wave.

use std::fmt;

use crate::memory::AccessError;

/// A fault, and where it happened.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Host address of the instruction.
    pub pc: u64,
    /// Lowest lane that caused it; `None` for scalar instructions.
    pub lane: Option<u8>,
    /// What happened.
    pub kind: FaultKind,
    /// The mnemonic, if the instruction is known.
    pub instruction: Option<&'static str>,
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FaultKind {
    /// An encoding that the decoder doesn't know; `words[..count]`, first dword first.
    UnknownInstruction {
        /// The dwords at the program counter.
        words: [u32; 5],
        /// How many of them could be read.
        count: u8,
    },
    /// A known instruction (or a use of one) that this virtual GPU doesn't execute, and why.
    Unsupported(&'static str),
    /// An access that the allocation map refuses.
    Memory {
        /// First byte.
        address: u64,
        /// Bytes.
        bytes: u32,
        /// Whether it writes.
        write: bool,
        /// Why.
        error: AccessError,
    },
    /// An atomic whose address is not a multiple of its size.
    Misaligned {
        /// First byte.
        address: u64,
        /// Bytes.
        bytes: u32,
    },
    /// An access beyond the end of LDS.
    Lds {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
        /// Size of LDS.
        size: u32,
    },
    /// An access beyond a lane's private memory.
    Scratch {
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u32,
        /// A lane's private memory, bytes.
        size: u32,
    },
    /// Two waves accessed an LDS dword with no barrier between the accesses, and at least one of
    /// them wrote it.
    LdsRace {
        /// First byte of the dword.
        offset: u32,
        /// The other wave, by its number in the workgroup.
        wave: u32,
        /// Whether this access writes.
        write: bool,
        /// Whether the other access wrote.
        wrote: bool,
    },
    /// Two waves of a launch accessed a byte of global memory, at least one of them wrote it, and nothing orders the
    /// accesses.
    GlobalRace {
        /// The byte.
        address: u64,
        /// Whether this access writes.
        write: bool,
        /// Whether the other access wrote.
        wrote: bool,
        /// The other wave's workgroup, by its number in the launch.
        group: u64,
        /// The other wave, by its number in that workgroup.
        wave: u32,
        /// Host address of the other wave's instruction.
        pc: u64,
    },
    /// A vector register beyond those that the kernel allocates.
    Register {
        /// One more than the register's number.
        count: u32,
        /// How many are allocated.
        allocated: u32,
    },
    /// `s_trap` with this trap id (2: `llvm.trap`, that is abort or a failed assertion).
    Trap(u8),
    /// A jump to an address that holds no code, or to the code's last dword.
    WildJump,
}

impl FaultKind {
    /// The address of a memory fault.
    pub fn address(&self) -> Option<u64> {
        match *self {
            Self::Memory { address, .. }
            | Self::Misaligned { address, .. }
            | Self::GlobalRace { address, .. } => Some(address),
            _ => None,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = |write: bool| if write { "writes" } else { "reads" };
        match self {
            Self::UnknownInstruction { words, count } => {
                write!(f, "unknown instruction")?;
                words[..*count as usize].iter().try_for_each(|w| write!(f, " {w:08x}"))
            }
            Self::Unsupported(why) => write!(f, "not supported: {why}"),
            Self::Memory { address, bytes, write, error } => {
                write!(f, "{} {bytes} bytes at {address:#x}: {error}", verb(*write))
            }
            Self::Misaligned { address, bytes } => {
                write!(f, "{bytes}-byte atomic at {address:#x}, which is no multiple of {bytes}")
            }
            Self::Lds { offset, bytes, size } => {
                write!(f, "accesses {bytes} bytes at offset {offset:#x} of {size} bytes of LDS")
            }
            Self::Scratch { offset, bytes, size } => {
                write!(f, "accesses {bytes} bytes at offset {offset:#x} of {size} bytes of scratch")
            }
            Self::LdsRace { offset, wave, write, wrote } => write!(
                f,
                "{} LDS at {offset:#x}, which wave {wave} {} since the last barrier",
                verb(*write),
                if *wrote { "wrote" } else { "read" }
            ),
            Self::GlobalRace { address, write, wrote, .. } => write!(
                f,
                "{} memory at {address:#x}, which another wave {}, and nothing orders the two",
                verb(*write),
                if *wrote { "wrote" } else { "read" }
            ),
            Self::Register { count, allocated } => {
                write!(f, "uses v{}, but the kernel allocates {allocated} vector registers", count - 1)
            }
            Self::Trap(id) => write!(f, "s_trap {id} (abort, assert or __builtin_trap)"),
            Self::WildJump => write!(f, "jump to an address without code"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.instruction {
            write!(f, "{name} ")?;
        }
        write!(f, "at pc {:#x}", self.pc)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        write!(f, ": {}", self.kind)
    }
}
