//! Why launches fail.

use std::fmt;

use crate::isa::{Fault, FaultKind};
use crate::memory::Nearest;

/// An allocation is reported with an address if it lies within this distance: 1 GiB.
const NEAR: u64 = 1 << 30;

/// Why a launch ended early, or never began.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The kernel object's address is not that of a loaded kernel.
    #[error("no kernel is loaded at {0:#x}")]
    NoKernel(u64),
    /// The packet can't be executed.
    #[error("{0}")]
    Invalid(&'static str),
    /// A wave failed.
    #[error("{0}")]
    Fault(Box<FaultReport>),
}

/// What is known about a wave's fault.
#[derive(Debug)]
pub struct FaultReport {
    /// The kernel's name.
    pub kernel: String,
    /// The kernel's first instruction.
    pub entry: u64,
    /// The workgroup of the other wave, if it is a race in global memory.
    pub other: Option<[u32; 3]>,
    /// The workgroup.
    pub group: [u32; 3],
    /// The wave within it.
    pub wave: u32,
    /// What happened.
    pub fault: Fault,
    /// For memory faults: the allocation nearest to the address.
    pub nearest: Option<Nearest>,
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, entry, group: [x, y, z], wave, fault, .. } = self;
        let place = |pc: u64| match pc.checked_sub(*entry) {
            Some(offset) => format!("+{offset:#x}"),
            None => format!("{pc:#x}"),
        };
        write!(f, "kernel {kernel}, pc {}", place(fault.pc))?;
        if let Some(instruction) = &fault.instruction {
            write!(f, " ({instruction})")?;
        }
        write!(f, ", workgroup {x},{y},{z} wave {wave}")?;
        if let Some(lane) = fault.lane {
            write!(f, " lane {lane}")?;
        }
        write!(f, ": {}", fault.kind)?;
        if let (FaultKind::GlobalRace { wave, pc, .. }, Some([x, y, z])) = (&fault.kind, self.other) {
            write!(f, "; the other wave: pc {}, workgroup {x},{y},{z} wave {wave}", place(*pc))?;
        }
        self.allocation(f)
    }
}

impl FaultReport {
    /// Where the allocation nearest to the address lies.
    fn allocation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(address), Some(Nearest { range, freed })) = (self.fault.kind.address(), self.nearest)
        else {
            return Ok(());
        };
        let size = range.end - range.start;
        // A null pointer or similar is not near any allocation.
        if range.start.saturating_sub(address).max(address.saturating_sub(range.end)) > NEAR {
            return Ok(());
        }
        if freed {
            write!(f, "; {size} bytes at {:#x} were freed", range.start)
        } else if address < range.start {
            write!(f, "; {} bytes before {size} bytes at {:#x}", range.start - address, range.start)
        } else if address >= range.end {
            write!(f, "; {} bytes past the end of {size} bytes at {:#x}", address - range.end, range.start)
        } else {
            write!(f, "; at byte {} of {size} bytes at {:#x}", address - range.start, range.start)
        }
    }
}
