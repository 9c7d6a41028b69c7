//! A wave's architectural state, and the loop that runs it.

use super::{Code, Fault, LANES, Lds};
use crate::memory::AllocationMap;

/// The state that a wave starts with.
#[derive(Clone, Debug)]
pub struct WaveInit<'a> {
    /// Host address of the first instruction.
    pub pc: u64,
    /// Presets of s0, s1 and so on; the others are 0, or poison.
    pub sgprs: &'a [u32],
    /// Presets of v0, v1, v2: the work-item ids.
    pub vgprs: [[u32; LANES]; 3],
    /// The lanes that run.
    pub exec: u32,
    /// Vector registers that the kernel allocates.
    pub vgpr_count: usize,
    /// The MODE register: \[3:0\] rounding, \[7:4\] denormals, \[8\] DX10_CLAMP, \[9\] IEEE.
    pub mode: u32,
    /// Host address of the wave's private memory: lane `l` has `scratch_stride` bytes at `scratch + l * scratch_stride`.
    pub scratch: u64,
    /// Bytes of private memory a lane; 0 for none.
    pub scratch_stride: u32,
    /// The wave's number in its workgroup.
    pub index: u32,
    /// Fills registers that aren't preset with 0xffff_ffff (NaN) instead of 0.
    pub poison: bool,
}

/// Why [`Wave::run`] returned.
#[derive(Debug)]
pub enum Stop {
    /// The wave ended.
    End,
    /// The wave waits at a barrier; the next `run` goes on behind it.
    Barrier,
    /// The wave ran its share of instructions.
    Yield,
    /// The wave sleeps (`s_sleep`), most likely in a loop that waits for another wave.
    Sleep,
    /// The wave can't go on.
    Fault(Fault),
}

/// A wave of 32 lanes.
#[derive(Debug)]
pub struct Wave {}

impl Wave {
    /// A wave that has run nothing yet.
    pub fn new(init: &WaveInit<'_>) -> Self {
        let _ = init;
        Self {}
    }

    /// Starts over for another wave, reusing the registers' memory.
    pub fn reset(&mut self, init: &WaveInit<'_>) {
        *self = Self::new(init);
    }

    /// Runs up to about `steps` instructions (to the end of the basic block that passes the limit).
    ///
    /// # Safety
    /// None needed: every access is held against `memory`, `lds` or the scratch of [`WaveInit`].
    pub fn run(&mut self, code: &Code, lds: &mut Lds, memory: &AllocationMap, steps: u64) -> Stop {
        let _ = (code, lds, memory, steps);
        Stop::End
    }

    /// Instructions run so far.
    pub fn steps(&self) -> u64 {
        0
    }
}
