//! Scalar instructions: arithmetic, branches, EXEC, the program counter, MODE.

use std::marker::PhantomData;

use super::{Body, Inst};
use crate::isa::FaultKind;
use crate::isa::inst::{Operand, Ty};
use crate::isa::state::{EXEC, Halt, Machine, Regs, Step, VCC};

/// A scalar operand or result.
pub(crate) trait Word: Copy {
    const TY: Ty;
    fn read(regs: &Regs, o: &Operand) -> Self;
    fn write(self, regs: &mut Regs, reg: u16);
}

impl Word for () {
    const TY: Ty = Ty::None;
    fn read(_: &Regs, _: &Operand) -> Self {}
    fn write(self, _: &mut Regs, _: u16) {}
}

macro_rules! word {
    ($($t:ty: $ty:ident, $read:ident, $write:ident as $bits:ty;)*) => { $(
        impl Word for $t {
            const TY: Ty = Ty::$ty;
            #[inline(always)]
            fn read(regs: &Regs, o: &Operand) -> Self {
                regs.$read(o) as $t
            }
            #[inline(always)]
            fn write(self, regs: &mut Regs, reg: u16) {
                regs.$write(reg, self as $bits);
            }
        }
    )* };
}

word! {
    u32: B32, scalar, set_sgpr as u32;
    i32: B32, scalar, set_sgpr as u32;
    u64: B64, scalar64, set_sgpr64 as u64;
    i64: I64, scalar64, set_sgpr64 as u64;
}

/// The semantics of scalar arithmetic. A function may read and write `scc`.
pub(crate) trait ScalarFn {
    type A: Word;
    type B: Word;
    type R: Word;
    fn eval(scc: &mut bool, a: Self::A, b: Self::B) -> Self::R;
}

/// The body of scalar arithmetic.
pub(crate) struct Scalar<F>(PhantomData<F>);

impl<F: ScalarFn> Body for Scalar<F> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let regs = &mut m.state.regs;
        let (a, b) = (F::A::read(regs, &i.src[0]), F::B::read(regs, &i.src[1]));
        let mut scc = regs.scc;
        let r = F::eval(&mut scc, a, b);
        regs.scc = scc;
        r.write(regs, i.dst);
        Step::Next
    }
}

/// The semantics of `s_*_saveexec` and `s_*_wrexec`: the new EXEC.
pub(crate) trait ExecFn {
    /// The destination gets the new EXEC, not the old one.
    const WRITE_NEW: bool;
    fn eval(s: u64, exec: u64) -> u64;
}

/// The body of one of them, on 32 bits or 64.
pub(crate) struct SaveExec<F, const WIDE: bool>(PhantomData<F>);

impl<F: ExecFn, const WIDE: bool> Body for SaveExec<F, WIDE> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let regs = &mut m.state.regs;
        if WIDE {
            let (s, old) = (regs.scalar64(&i.src[0]), regs.sgpr64(EXEC));
            let new = F::eval(s, old);
            regs.set_sgpr64(i.dst, if F::WRITE_NEW { new } else { old });
            regs.set_sgpr64(EXEC, new);
            regs.scc = new != 0;
        } else {
            let (s, old) = (regs.scalar(&i.src[0]), regs.exec());
            let new = F::eval(s.into(), old.into()) as u32;
            regs.set_sgpr(i.dst, if F::WRITE_NEW { new } else { old });
            regs.set_exec(new);
            regs.scc = new != 0;
        }
        Step::Next
    }
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident |$m:ident, $i:ident| $body:block)*) => { $(
        $(#[$doc])*
        pub(crate) struct $name;
        impl Body for $name {
            #[inline(always)]
            fn run($m: &mut Machine<'_>, $i: &Inst) -> Step $body
        }
    )* };
}
pub(crate) use bodies;

#[inline(always)]
fn branch(m: &mut Machine<'_>, i: &Inst, taken: bool) -> Step {
    if !taken {
        return Step::Next;
    }
    m.state.pc = i.next().wrapping_add_signed(i64::from(i.imm) * 4);
    Step::Jump
}

bodies! {
    Nop |_m, _i| { Step::Next }
    InvalidateGl0 |m, _i| {
        m.watch_join();
        Step::Next
    }
    BranchAlways |m, i| { branch(m, i, true) }
    BranchScc0 |m, i| { let taken = !m.state.regs.scc; branch(m, i, taken) }
    BranchScc1 |m, i| { let taken = m.state.regs.scc; branch(m, i, taken) }
    BranchVccz |m, i| { let taken = m.state.regs.sgpr(VCC) == 0; branch(m, i, taken) }
    BranchVccnz |m, i| { let taken = m.state.regs.sgpr(VCC) != 0; branch(m, i, taken) }
    BranchExecz |m, i| { let taken = m.state.regs.exec() == 0; branch(m, i, taken) }
    BranchExecnz |m, i| { let taken = m.state.regs.exec() != 0; branch(m, i, taken) }
    Call |m, i| {
        m.state.regs.set_sgpr64(i.dst, i.next());
        branch(m, i, true)
    }
    End |m, i| { m.halt(i, Halt::End) }
    Barrier |m, i| { m.halt(i, Halt::Barrier) }
    /// Memory is always up to date here. The wave stops only so that other waves can run.
    WaitCount |m, i| {
        if m.state.waits == 0 {
            return Step::Next;
        }
        m.state.waits -= 1;
        m.halt(i, Halt::Wait)
    }
    Sleep |m, i| { m.halt(i, Halt::Sleep) }
    Trap |m, i| {
        // A debugger's breakpoint: without a debugger the wave goes on.
        if i.imm as u8 == 3 {
            m.state.pc = i.next();
            return Step::Jump;
        }
        m.fault(i, None, FaultKind::Trap(i.imm as u8))
    }
    /// Padding after a function.
    CodeEnd |m, i| { m.fault(i, None, FaultKind::Unsupported("runs past the end of a function")) }
    Unsupported |m, i| { m.fault(i, None, FaultKind::Unsupported("the virtual GPU lacks this instruction")) }
    /// A known instruction in a form that isn't executed.
    UnsupportedForm |m, i| {
        m.fault(i, None, FaultKind::Unsupported("the virtual GPU lacks this form of the instruction"))
    }
    Unknown |m, i| {
        let count = (i.size / 4).max(1);
        m.fault(i, None, FaultKind::UnknownInstruction { words: i.raw, count })
    }
    GetPc |m, i| { m.state.regs.set_sgpr64(i.dst, i.next()); Step::Next }
    SetPc |m, i| { m.state.pc = m.state.regs.scalar64(&i.src[0]); Step::Jump }
    SwapPc |m, i| {
        m.state.pc = m.state.regs.scalar64(&i.src[0]);
        m.state.regs.set_sgpr64(i.dst, i.next());
        Step::Jump
    }
    /// The time in units of 10 ns (`s_memrealtime` counts at 100 MHz), and `s_memtime`'s cycles alike.
    MemTime |m, i| {
        m.state.regs.set_sgpr64(i.dst, ticks());
        Step::Next
    }
    GetReg |m, i| {
        let (id, shift, mask) = hardware_register(i.imm);
        let value = match id {
            MODE => m.state.mode(),
            SHADER_CYCLES => m.state.steps as u32 & 0xf_ffff,
            FLAT_SCRATCH_LO => m.state.scratch.base as u32,
            FLAT_SCRATCH_HI => (m.state.scratch.base >> 32) as u32,
            _ => 0,
        };
        m.state.regs.set_sgpr(i.dst, value >> shift & mask);
        Step::Next
    }
    SetReg |m, i| {
        let (id, shift, mask) = hardware_register(i.imm);
        if id == MODE {
            let value = m.state.regs.scalar(&i.src[0]);
            let old = m.state.mode();
            m.state.set_mode(old & !(mask << shift) | (value & mask) << shift);
        }
        Step::Next
    }
    RoundMode |m, i| { let old = m.state.mode(); m.state.set_mode(old & !0xf | i.imm as u32 & 0xf); Step::Next }
    DenormMode |m, i| {
        let old = m.state.mode();
        m.state.set_mode(old & !0xf0 | (i.imm as u32 & 0xf) << 4);
        Step::Next
    }
    MovRelS32 |m, i| {
        let reg = relative(m, i.src[0].reg);
        let value = m.state.regs.sgpr(reg);
        m.state.regs.set_sgpr(i.dst, value);
        Step::Next
    }
    MovRelS64 |m, i| {
        let reg = relative(m, i.src[0].reg);
        let value = m.state.regs.sgpr64(reg);
        m.state.regs.set_sgpr64(i.dst, value);
        Step::Next
    }
    MovRelD32 |m, i| {
        let (reg, value) = (relative(m, i.dst), m.state.regs.scalar(&i.src[0]));
        m.state.regs.set_sgpr(reg, value);
        Step::Next
    }
    MovRelD64 |m, i| {
        let (reg, value) = (relative(m, i.dst), m.state.regs.scalar64(&i.src[0]));
        m.state.regs.set_sgpr64(reg, value);
        Step::Next
    }
    /// Source and destination are offset by M0\[9:0\] and M0\[25:16\].
    MovRelSd2 |m, i| {
        let m0 = m.state.regs.m0();
        let from = i.src[0].reg.wrapping_add(m0 as u16 & 0x3ff) & 127;
        let to = i.dst.wrapping_add((m0 >> 16) as u16 & 0x3ff) & 127;
        let value = m.state.regs.sgpr(from);
        m.state.regs.set_sgpr(to, value);
        Step::Next
    }
}

fn relative(m: &Machine<'_>, reg: u16) -> u16 {
    reg.wrapping_add(m.state.regs.m0() as u16) & 127
}

/// CLOCK_MONOTONIC, in units of 10 ns: the agent reports timestamps of 100 MHz.
fn ticks() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 100_000_000 + now.tv_nsec as u64 / 10
}

/// Hardware registers that `s_getreg_b32` reads.
const MODE: u32 = 1;
const FLAT_SCRATCH_LO: u32 = 20;
const FLAT_SCRATCH_HI: u32 = 21;
const SHADER_CYCLES: u32 = 29;

/// Id, shift and mask out of `hwreg(id, offset, size)`.
fn hardware_register(imm: i32) -> (u32, u32, u32) {
    let imm = imm as u32;
    let size = (imm >> 11 & 31) + 1;
    (imm & 63, imm >> 6 & 31, u32::MAX >> (32 - size))
}
