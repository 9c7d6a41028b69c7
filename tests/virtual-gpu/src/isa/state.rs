//! The architectural state of a wave, and what its instructions act on.

use super::exec::mode::FloatMode;
use super::inst::{Instruction, Operand, Source};
use super::watch::Watch;
use super::{Fault, FaultKind, LANES, Lds};
use crate::memory::{AllocationMap, Hint};

/// Scalar register numbers with a meaning of their own.
pub(crate) const VCC: u16 = 106;
pub(crate) const M0: u16 = 124;
pub(crate) const NULL: u16 = 125;
pub(crate) const EXEC: u16 = 126;

/// A vector register.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Vgpr(pub(crate) [u32; LANES]);

impl Vgpr {
    pub(crate) const ZERO: Self = Self([0; LANES]);
}

/// The registers that operands name.
#[derive(Debug)]
pub(crate) struct Regs {
    pub(crate) v: Vec<Vgpr>,
    /// s0 to s105, VCC, TTMPs, M0, NULL (always 0), EXEC.
    pub(crate) s: [u32; 128],
    pub(crate) scc: bool,
    /// The first source as DPP permuted it.
    pub(crate) permuted: Vgpr,
}

impl Regs {
    pub(crate) fn exec(&self) -> u32 {
        self.s[EXEC as usize]
    }

    pub(crate) fn set_exec(&mut self, mask: u32) {
        self.s[EXEC as usize] = mask;
    }

    pub(crate) fn m0(&self) -> u32 {
        self.s[M0 as usize]
    }

    pub(crate) fn sgpr(&self, reg: u16) -> u32 {
        self.s[reg as usize & 127]
    }

    pub(crate) fn sgpr64(&self, reg: u16) -> u64 {
        if reg == NULL {
            return 0;
        }
        u64::from(self.sgpr(reg)) | u64::from(self.sgpr(reg + 1)) << 32
    }

    /// Writes a scalar register. A write to NULL is discarded.
    pub(crate) fn set_sgpr(&mut self, reg: u16, value: u32) {
        if reg != NULL {
            self.s[reg as usize & 127] = value;
        }
    }

    pub(crate) fn set_sgpr64(&mut self, reg: u16, value: u64) {
        if reg != NULL {
            self.set_sgpr(reg, value as u32);
            self.set_sgpr(reg + 1, (value >> 32) as u32);
        }
    }

    /// A scalar operand, 32 bits.
    pub(crate) fn scalar(&self, o: &Operand) -> u32 {
        match o.source {
            Source::Sgpr => self.sgpr(o.reg),
            Source::Constant => o.value as u32,
            Source::Vccz => u32::from(self.s[VCC as usize] == 0),
            Source::Execz => u32::from(self.exec() == 0),
            Source::Scc => u32::from(self.scc),
            Source::Vgpr => self.v[o.reg as usize].0[0],
            Source::Permuted | Source::None => 0,
        }
    }

    /// A scalar operand, 64 bits.
    pub(crate) fn scalar64(&self, o: &Operand) -> u64 {
        match o.source {
            Source::Sgpr => self.sgpr64(o.reg),
            Source::Constant => o.value,
            _ => u64::from(self.scalar(o)),
        }
    }
}

/// Why a wave stopped.
#[derive(Debug)]
pub(crate) enum Halt {
    End,
    Barrier,
    Sleep,
    Wait,
    Fault(Box<Fault>),
}

/// A lane's private memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scratch {
    /// Host address of lane 0's private memory.
    pub(crate) base: u64,
    /// Bytes per lane.
    pub(crate) stride: u32,
}

/// A wave's state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) regs: Regs,
    /// Room into which operands that aren't plain registers are expanded, two registers each.
    pub(crate) spread: [[Vgpr; 2]; 3],
    /// The MODE register.
    mode: u32,
    /// MODE's floating-point fields, decoded.
    pub(crate) float: FloatMode,
    pub(crate) pc: u64,
    pub(crate) halt: Option<Halt>,
    pub(crate) hint: Hint,
    pub(crate) scratch: Scratch,
    /// Number of the wave in its workgroup.
    pub(crate) index: u32,
    pub(crate) steps: u64,
    /// How many more times `s_waitcnt` stops the wave.
    pub(crate) waits: u32,
    /// What is recorded of the wave, if anything is.
    pub(crate) watch: Option<Box<Watch>>,
}

impl State {
    pub(crate) fn new(vgprs: usize) -> Self {
        Self {
            regs: Regs { v: vec![Vgpr::ZERO; vgprs], s: [0; 128], scc: false, permuted: Vgpr::ZERO },
            spread: [[Vgpr::ZERO; 2]; 3],
            mode: 0,
            float: FloatMode::new(0),
            pc: 0,
            halt: None,
            hint: Hint::default(),
            scratch: Scratch::default(),
            index: 0,
            steps: 0,
            waits: 0,
            watch: None,
        }
    }

    pub(crate) fn mode(&self) -> u32 {
        self.mode
    }

    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.mode = mode;
        self.float = FloatMode::new(mode);
    }
}

/// What the run loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The following instruction.
    Next,
    /// Control is at `State::pc`.
    Jump,
    /// The wave stops; `State::stop` says why.
    Stop,
}

/// A wave's state and the memories around it.
pub(crate) struct Machine<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) lds: &'a mut Lds,
    pub(crate) memory: &'a AllocationMap,
}

impl Machine<'_> {
    /// Stops the wave after this instruction.
    pub(crate) fn halt<H, E>(&mut self, i: &Instruction<H, E>, halt: Halt) -> Step {
        self.state.pc = i.next();
        self.state.halt = Some(halt);
        Step::Stop
    }

    /// Stops the wave at this instruction with a fault.
    #[cold]
    #[inline(never)]
    pub(crate) fn fault<H, E>(
        &mut self,
        i: &Instruction<H, E>,
        lane: Option<usize>,
        kind: FaultKind,
    ) -> Step {
        let name = i.op.name;
        self.state.pc = i.pc;
        self.state.halt = Some(Halt::Fault(Box::new(Fault {
            pc: i.pc,
            lane: lane.map(|l| l as u8),
            kind,
            instruction: (!name.is_empty()).then_some(name),
        })));
        Step::Stop
    }
}
