//! Instructions that treat each lane alike: fetch operands, evaluate lane by lane, and write the
//! lanes that EXEC enables.

use std::marker::PhantomData;

use super::mode::{Class, Dynamic, Mode};
use super::value::{Clamp, Result, Value, View};
use super::{Body, Inst, half};
use crate::isa::LANES;
use crate::isa::inst::{Operand, Select, Source, Ty, Unused};
use crate::isa::state::{Machine, Regs, State, Step, Vgpr};

/// A lane's semantics.
pub(crate) trait LaneFn {
    type A: Value;
    type B: Value;
    type C: Value;
    type R: Output;
    /// Whether MODE's floating-point fields matter.
    const MODAL: bool;
    fn eval<M: Mode>(m: M, a: Self::A, b: Self::B, c: Self::C) -> Self::R;
}

/// What an evaluation yields: a vector result, a bit of a scalar mask, or both.
pub(crate) trait Output: Copy {
    const DST: Ty;
    const SDST: bool;
    fn lane(self) -> (u32, u32, bool);
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self;
}

impl<R: Result> Output for R {
    const DST: Ty = R::TY;
    const SDST: bool = false;
    #[inline(always)]
    fn lane(self) -> (u32, u32, bool) {
        let (lo, hi) = self.bits();
        (lo, hi, false)
    }
    #[inline(always)]
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
        Result::modify(self, scale, clamp)
    }
}

/// A vector result with a carry.
#[derive(Clone, Copy)]
pub(crate) struct Carry<R>(pub(crate) R, pub(crate) bool);

impl<R: Result> Output for Carry<R> {
    const DST: Ty = R::TY;
    const SDST: bool = true;
    #[inline(always)]
    fn lane(self) -> (u32, u32, bool) {
        let (lo, hi) = self.0.bits();
        (lo, hi, self.1)
    }
    #[inline(always)]
    fn modify(self, scale: f32, clamp: Option<Clamp>) -> Self {
        Self(self.0.modify(scale, clamp), self.1)
    }
}

/// A comparison's outcome.
#[derive(Clone, Copy)]
pub(crate) struct Outcome(pub(crate) bool);

impl Output for Outcome {
    const DST: Ty = Ty::None;
    const SDST: bool = true;
    #[inline(always)]
    fn lane(self) -> (u32, u32, bool) {
        (0, 0, self.0)
    }
    #[inline(always)]
    fn modify(self, _: f32, _: Option<Clamp>) -> Self {
        self
    }
}

/// The body of a lane function.
pub(crate) struct Lanes<F>(PhantomData<F>);

impl<F: LaneFn> Body for Lanes<F> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let state = &mut *m.state;
        let float = state.float;
        let modified = is_float(F::R::DST) && (i.clamp || i.omod != 0);
        if !modified
            && (!F::MODAL || float.class == Class::Keep || !single::<F>() && float.class == Class::Flush32)
        {
            each::<F, _, false>(state, i, float.keep());
        } else if !modified && single::<F>() && float.class == Class::Flush32 {
            each::<F, _, false>(state, i, float.flush32());
        } else if F::MODAL || is_float(F::R::DST) {
            rare::<F>(state, i);
        }
        Step::Next
    }
}

/// The body of an integer function that saturates if its clamp bit is set.
pub(crate) struct Saturating<F, G>(PhantomData<(F, G)>);

impl<F: LaneFn, G: LaneFn> Body for Saturating<F, G> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        if i.clamp { saturated::<G>(m, i) } else { Lanes::<F>::run(m, i) }
    }
}

#[inline(never)]
fn saturated<G: LaneFn>(m: &mut Machine<'_>, i: &Inst) -> Step {
    Lanes::<G>::run(m, i)
}

const fn is_float(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::F32 | Ty::F64 | Ty::PkF16)
}

const fn is_single(ty: Ty) -> bool {
    matches!(ty, Ty::F32 | Ty::Mix)
}

/// Whether the rules for 32-bit floats matter.
const fn single<F: LaneFn>() -> bool {
    is_single(F::A::TY) || is_single(F::B::TY) || is_single(F::C::TY) || is_single(F::R::DST)
}

/// Rare settings of MODE, and output modifiers.
#[inline(never)]
fn rare<F: LaneFn>(state: &mut State, i: &Inst) {
    each::<F, Dynamic, true>(state, i, state.float.dynamic);
}

#[inline(always)]
fn each<F: LaneFn, M: Mode, const MODIFY: bool>(state: &mut State, i: &Inst, mode: M) {
    let float = state.float;
    let scale = if MODIFY { float.scale(i.omod, F::R::DST == Ty::F32) } else { 1.0 };
    let clamp = (MODIFY && i.clamp).then_some(Clamp { nan_to_zero: float.dx10_clamp });
    let wide = F::R::DST.dwords() == 2;
    let (mut lo, mut hi, mut mask) = ([0; LANES], [0; LANES], 0u32);
    let [sa, sb, sc] = &mut state.spread;
    let a = fetch::<F::A>(&state.regs, &i.src[0], sa);
    let b = fetch::<F::B>(&state.regs, &i.src[1], sb);
    let c = fetch::<F::C>(&state.regs, &i.src[2], sc);
    for l in 0..LANES {
        let mut r = F::eval(mode, F::A::get(a, l), F::B::get(b, l), F::C::get(c, l));
        if MODIFY {
            r = r.modify(scale, clamp);
        }
        let (low, high, bit) = r.lane();
        lo[l] = low;
        if wide {
            hi[l] = high;
        }
        if F::R::SDST {
            mask |= u32::from(bit) << l;
        }
    }
    let exec = state.regs.exec();
    if F::R::DST != Ty::None {
        let dst = i.dst as usize;
        if F::R::DST.is_half() {
            write_half(&mut state.regs.v[dst], &lo, exec, i);
        } else if i.dst_select != Select::Dword {
            write_selected(&mut state.regs.v[dst], &lo, exec, i);
        } else {
            write(&mut state.regs.v[dst], &lo, exec);
        }
        if wide {
            write(&mut state.regs.v[dst + 1], &hi, exec);
        }
    }
    if F::R::SDST {
        state.regs.set_sgpr(i.sdst, mask & exec);
    }
}

/// The registers of an operand. An operand that isn't a plain register is expanded into `spread`.
#[inline(always)]
pub(crate) fn fetch<'a, T: Value>(regs: &'a Regs, o: &Operand, spread: &'a mut [Vgpr; 2]) -> View<'a> {
    if T::TY == Ty::None {
        return View { lo: &Vgpr::ZERO.0, hi: &Vgpr::ZERO.0 };
    }
    if o.plain {
        let reg = o.reg as usize;
        let hi = if T::TY.dwords() == 2 { reg + 1 } else { reg };
        return View { lo: &regs.v[reg].0, hi: &regs.v[hi].0 };
    }
    if o.uniform {
        let double = T::TY.dwords() == 2;
        let x = match o.source {
            Source::Constant => o.value,
            _ if double => regs.sgpr64(o.reg),
            _ => regs.sgpr(o.reg).into(),
        };
        spread[0].0 = [x as u32; LANES];
        if double {
            spread[1].0 = [(x >> 32) as u32; LANES];
        }
    } else {
        spread_operand(regs, o, T::TY, spread);
    }
    View { lo: &spread[0].0, hi: &spread[1].0 }
}

/// Expands an operand that has modifiers or is of a rare kind.
#[inline(never)]
pub(crate) fn spread_operand(regs: &Regs, o: &Operand, ty: Ty, spread: &mut [Vgpr; 2]) {
    let [lo, hi] = spread;
    let double = ty.dwords() == 2;
    match o.source {
        Source::Vgpr => {
            *lo = regs.v[o.reg as usize];
            if double {
                *hi = regs.v[o.reg as usize + 1];
            }
        }
        Source::Permuted => *lo = regs.permuted,
        _ if double => {
            let x = regs.scalar64(o);
            lo.0 = [x as u32; LANES];
            hi.0 = [(x >> 32) as u32; LANES];
        }
        _ => lo.0 = [regs.scalar(o); LANES],
    }
    match ty {
        Ty::PkB16 | Ty::PkF16 => select_halves(lo, o.packed),
        Ty::Mix => select_mix(lo, o),
        _ => select(lo, o),
    }
    if (o.neg || o.abs) && !matches!(ty, Ty::PkB16 | Ty::PkF16 | Ty::Mix) {
        let top = if ty.is_half() { 0x8000 } else { 0x8000_0000 };
        let (keep, flip) = (if o.abs { !top } else { u32::MAX }, if o.neg { top } else { 0 });
        let signed = if double { hi } else { lo };
        signed.0.iter_mut().for_each(|x| *x = *x & keep ^ flip);
    }
}

/// A byte or half, zero- or sign-extended.
fn select(reg: &mut Vgpr, o: &Operand) {
    if o.select == Select::Dword {
        return;
    }
    let (shift, mask) = o.select.field();
    let up = mask.leading_zeros();
    for x in &mut reg.0 {
        let field = *x >> shift & mask;
        *x = if o.sext { ((field << up) as i32 >> up) as u32 } else { field };
    }
}

/// `op_sel`, `op_sel_hi`, `neg_lo` and `neg_hi` of a packed operand.
fn select_halves(reg: &mut Vgpr, packed: u8) {
    let shift = |bit: u8| u32::from(packed >> bit & 1) * 16;
    let flip = u32::from(packed >> 2 & 1) << 15 | u32::from(packed >> 3 & 1) << 31;
    for x in &mut reg.0 {
        *x = ((*x >> shift(0) & 0xffff) | (*x >> shift(1)) << 16) ^ flip;
    }
}

/// A source of `v_fma_mix*`: `packed` 0 or 1 asks for a 16-bit float, from the lower or the upper half.
fn select_mix(reg: &mut Vgpr, o: &Operand) {
    for x in &mut reg.0 {
        let mut f = match o.packed {
            0 => half::to_f32(*x as u16),
            1 => half::to_f32((*x >> 16) as u16),
            _ => f32::from_bits(*x),
        };
        if o.abs {
            f = f.abs();
        }
        *x = if o.neg { -f } else { f }.to_bits();
    }
}

/// Writes the active lanes.
#[inline(always)]
pub(crate) fn write(dst: &mut Vgpr, value: &[u32; LANES], exec: u32) {
    if exec == u32::MAX {
        dst.0 = *value;
        return;
    }
    for l in 0..LANES {
        dst.0[l] = if exec & 1 << l != 0 { value[l] } else { dst.0[l] };
    }
}

/// Writes a 16-bit result into one half and keeps the other one.
#[inline(always)]
fn write_half(dst: &mut Vgpr, value: &[u32; LANES], exec: u32, i: &Inst) {
    if i.dst_select != Select::Word(0) || i.dst_unused != Unused::Preserve {
        return write_selected(dst, value, exec, i);
    }
    for l in 0..LANES {
        let merged = dst.0[l] & 0xffff_0000 | value[l] & 0xffff;
        dst.0[l] = if exec & 1 << l != 0 { merged } else { dst.0[l] };
    }
}

/// Writes as SDWA's destination fields say.
#[inline(never)]
fn write_selected(dst: &mut Vgpr, value: &[u32; LANES], exec: u32, i: &Inst) {
    let (shift, mask) = i.dst_select.field();
    for l in 0..LANES {
        if exec & 1 << l == 0 {
            continue;
        }
        let field = (value[l] & mask) << shift;
        dst.0[l] = match i.dst_unused {
            Unused::Preserve => dst.0[l] & !(mask << shift) | field,
            Unused::Zero => field,
            Unused::SignExtend => {
                let up = mask.leading_zeros();
                (((value[l] << up) as i32 >> up) as u32) << shift
            }
        };
    }
}

/// Permutes the first source as DPP says, then runs the instruction with the lanes that DPP lets write.
pub(crate) fn dpp(m: &mut Machine<'_>, i: &Inst) -> Step {
    let Some(dpp) = i.dpp.as_deref() else { return Step::Next };
    let regs = &mut m.state.regs;
    let exec = regs.exec();
    let mut writes = 0;
    for l in 0..LANES {
        let from = dpp.from[l] as usize;
        let valid = from < LANES && (dpp.fetch_inactive || exec >> from & 1 != 0);
        regs.permuted.0[l] = if valid { regs.v[dpp.reg as usize].0[from] } else { 0 };
        writes |= u32::from(valid || dpp.bound_ctrl) << l;
    }
    regs.set_exec(exec & writes & dpp.enabled);
    // SAFETY: `inner` was picked for this host when the instruction was decoded.
    let step = unsafe { (dpp.inner.0)(m, i) };
    m.state.regs.set_exec(exec);
    step
}
