//! A wave's architectural state, and the loop that runs it.

use std::sync::Arc;

use super::code::Block;
use super::races::{GroupRaces, Tracker};
use super::state::{EXEC, Halt, Machine, NULL, Scratch, State, Step, Vgpr};
use super::watch::Watch;
use super::{Code, Counters, Fault, FaultKind, LANES, Lds};
use crate::memory::{AllocationMap, Hint};

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
    /// Host address of the private memory: lane `l` has `scratch_stride` bytes at `scratch + l * scratch_stride`.
    pub scratch: u64,
    /// Bytes of private memory per lane; 0 for none.
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
    /// The wave waits at a barrier; the next `run` continues after it.
    Barrier,
    /// The wave ran its share of instructions.
    Yield,
    /// The wave sleeps (`s_sleep`), most likely in a loop that waits for another wave.
    Sleep,
    /// The wave waits for its memory accesses (`s_waitcnt`), as [`Wave::set_waits`] asked.
    Wait,
    /// The wave can't continue.
    Fault(Fault),
}

/// A wave of 32 lanes.
#[derive(Debug)]
pub struct Wave {
    state: State,
}

impl Wave {
    /// A wave that has run nothing yet.
    pub fn new(init: &WaveInit<'_>) -> Self {
        let mut wave = Self { state: State::new(init.vgpr_count) };
        wave.reset(init);
        wave
    }

    /// Starts over for another wave, reusing the registers' memory.
    pub fn reset(&mut self, init: &WaveInit<'_>) {
        let state = &mut self.state;
        let fill = if init.poison { u32::MAX } else { 0 };
        let regs = &mut state.regs;
        regs.v.clear();
        regs.v.resize(init.vgpr_count, Vgpr([fill; LANES]));
        for (reg, ids) in regs.v.iter_mut().zip(&init.vgprs) {
            reg.0 = *ids;
        }
        regs.s = [fill; 128];
        for (reg, value) in (0..).zip(init.sgprs) {
            regs.set_sgpr(reg, *value);
        }
        regs.s[NULL as usize] = 0;
        regs.s[EXEC as usize + 1] = 0;
        regs.set_exec(init.exec);
        regs.scc = false;
        state.set_mode(init.mode);
        state.pc = init.pc;
        state.halt = None;
        state.hint = Hint::default();
        state.scratch = Scratch { base: init.scratch, stride: init.scratch_stride };
        state.index = init.index;
        state.steps = 0;
        state.waits = 0;
        state.watch = None;
    }

    /// Runs up to about `steps` instructions (to the end of the basic block that passes the limit).
    /// Every access is checked against `memory`, `lds` or the scratch of [`WaveInit`].
    pub fn run(&mut self, code: &Code, lds: &mut Lds, memory: &AllocationMap, steps: u64) -> Stop {
        let limit = self.state.steps.saturating_add(steps);
        let mut machine = Machine { state: &mut self.state, lds, memory };
        while let Some(region) = code.region(machine.state.pc) {
            while let Some(block) = region.block(machine.state.pc) {
                if block.vgprs > machine.state.regs.v.len() {
                    machine.too_many_registers(block);
                } else if machine.state.watch.is_some() {
                    machine.run_watched(block);
                } else {
                    machine.run(block);
                }
                if let Some(halt) = machine.state.halt.take() {
                    return match halt {
                        Halt::End => Stop::End,
                        Halt::Barrier => Stop::Barrier,
                        Halt::Sleep => Stop::Sleep,
                        Halt::Wait => Stop::Wait,
                        Halt::Fault(fault) => Stop::Fault(*fault),
                    };
                }
                if machine.state.steps >= limit {
                    return Stop::Yield;
                }
            }
        }
        let pc = self.state.pc;
        Stop::Fault(Fault { pc, lane: None, kind: FaultKind::WildJump, instruction: None })
    }

    /// Lets the next `count` executions of `s_waitcnt` stop the wave with [`Stop::Wait`], after the
    /// instruction. So other waves of the workgroup can catch up, as they would on hardware.
    pub fn set_waits(&mut self, count: u32) {
        self.state.waits = count;
    }

    /// Counts from now on what the wave does.
    pub fn count(&mut self) {
        let starts = self.state.regs.exec() != 0;
        self.watch().counters = Some(Box::new(Counters::of_wave(starts)));
    }

    /// What the wave has done, if it was counted.
    pub fn counters(&self) -> Option<&Counters> {
        self.state.watch.as_ref()?.counters.as_deref()
    }

    /// Looks from now on for races in global memory with other waves of the launch. This wave is of workgroup `group`.
    pub fn find_races(&mut self, group: &Arc<GroupRaces>) {
        let index = self.state.index;
        self.watch().races = Some(Box::new(Tracker::new(group, index)));
    }

    /// Records that all waves of its workgroup have reached a barrier: what they have accessed does not race with what
    /// this wave accesses later.
    pub fn meet(&mut self) {
        if let Some(races) = self.state.watch.as_mut().and_then(|watch| watch.races.as_mut()) {
            races.join();
        }
    }

    fn watch(&mut self) -> &mut Watch {
        self.state.watch.get_or_insert_default()
    }

    /// Instructions run so far.
    pub fn steps(&self) -> u64 {
        self.state.steps
    }

    /// Host address of the next instruction.
    pub fn pc(&self) -> u64 {
        self.state.pc
    }

    /// A scalar register: 0 to 105 s0 to s105, 106 VCC, 124 M0, 126 EXEC.
    pub fn sgpr(&self, reg: u16) -> u32 {
        self.state.regs.sgpr(reg)
    }

    /// SCC.
    pub fn scc(&self) -> bool {
        self.state.regs.scc
    }

    /// A vector register's lanes; `None` beyond the allocated ones.
    pub fn vgpr(&self, reg: u16) -> Option<&[u32; LANES]> {
        self.state.regs.v.get(reg as usize).map(|v| &v.0)
    }

    /// Sets a vector register's lanes, if it is allocated.
    pub fn set_vgpr(&mut self, reg: u16, value: &[u32; LANES]) {
        if let Some(v) = self.state.regs.v.get_mut(reg as usize) {
            v.0 = *value;
        }
    }

    /// Sets a scalar register, numbered as in [`Wave::sgpr`].
    pub fn set_sgpr(&mut self, reg: u16, value: u32) {
        self.state.regs.set_sgpr(reg, value);
    }

    /// Sets SCC.
    pub fn set_scc(&mut self, scc: bool) {
        self.state.regs.scc = scc;
    }
}

impl Machine<'_> {
    /// Runs a block, up to its end or where control leaves it.
    #[inline]
    fn run(&mut self, block: &Block) {
        let mut ran = 0;
        let mut step = Step::Next;
        for inst in &block.insts {
            ran += 1;
            // SAFETY: decoding picked the handler for this host.
            step = unsafe { (inst.run.0)(self, inst) };
            if step != Step::Next {
                break;
            }
        }
        self.state.steps += ran;
        if step == Step::Next {
            self.state.pc = block.end;
        }
    }

    /// The same, recording each instruction.
    #[cold]
    fn run_watched(&mut self, block: &Block) {
        for (inst, class) in block.insts.iter().zip(block.classes()) {
            self.watch_instruction(*class);
            self.state.steps += 1;
            // SAFETY: decoding picked the handler for this host.
            if unsafe { (inst.run.0)(self, inst) } != Step::Next {
                return;
            }
        }
        self.state.pc = block.end;
    }

    /// Faults at the first instruction that uses a register beyond the allocated ones. The
    /// instructions before it are run.
    #[cold]
    fn too_many_registers(&mut self, block: &Block) {
        let allocated = self.state.regs.v.len();
        for inst in &block.insts {
            let count = usize::from(inst.vgprs);
            if count > allocated {
                let kind = FaultKind::Register { count: count as u32, allocated: allocated as u32 };
                self.fault(inst, None, kind);
                return;
            }
            // SAFETY: decoding picked the handler for this host.
            if unsafe { (inst.run.0)(self, inst) } != Step::Next {
                return;
            }
        }
    }
}
