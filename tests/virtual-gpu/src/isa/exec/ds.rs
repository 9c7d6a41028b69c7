//! Local data share instructions.

use std::marker::PhantomData;

use super::access::Access;
use super::atomic::AtomicFn;
use super::flat::lanes;
use super::lanes::write;
use super::scalar::bodies;
use super::{Body, Inst};
use crate::isa::lds::LdsAccess;
use crate::isa::state::{Machine, Step};
use crate::isa::{FaultKind, LANES};

impl Machine<'_> {
    /// Checks one lane's access to LDS.
    pub(crate) fn lds_lane(
        &mut self,
        i: &Inst,
        lane: usize,
        offset: u64,
        bytes: u32,
        access: LdsAccess,
    ) -> Result<(), Step> {
        let size = self.lds.size();
        if offset + u64::from(bytes) > size.into() {
            return Err(self.fault(i, Some(lane), FaultKind::Lds { offset, bytes, size }));
        }
        if self.lds.tracks()
            && let Err(race) = self.lds.track(offset as u32, bytes, access, self.state.index)
        {
            let write = access != LdsAccess::Read;
            let kind = FaultKind::LdsRace { offset: race.offset, wave: race.wave, write, wrote: race.wrote };
            return Err(self.fault(i, Some(lane), kind));
        }
        Ok(())
    }

    /// Each lane's offset in LDS, checked for the active lanes.
    #[inline(always)]
    fn lds_offsets(
        &mut self,
        i: &Inst,
        offset: u32,
        bytes: u32,
        access: LdsAccess,
    ) -> Result<[u32; LANES], Step> {
        let exec = self.state.regs.exec();
        let address = &self.state.regs.v[i.src[0].reg as usize].0;
        let (mut at, mut last) = ([0u32; LANES], 0);
        for l in 0..LANES {
            at[l] = address[l].wrapping_add(offset);
            last = last.max(if exec & 1 << l != 0 { at[l] } else { 0 });
        }
        if u64::from(last) + u64::from(bytes) > self.lds.size().into() || self.lds.tracks() {
            self.lds_each(i, &at, exec, bytes, access)?;
        }
        if self.state.watch.is_some() {
            self.watch_lds(&at, exec, bytes, access);
        }
        Ok(at)
    }

    #[inline(never)]
    fn lds_each(
        &mut self,
        i: &Inst,
        at: &[u32; LANES],
        exec: u32,
        bytes: u32,
        kind: LdsAccess,
    ) -> Result<(), Step> {
        lanes(exec).try_for_each(|l| self.lds_lane(i, l, at[l].into(), bytes, kind))
    }

    #[inline(always)]
    fn lds_load<A: Access>(&mut self, at: &[u32; LANES], dst: u16) {
        let exec = self.state.regs.exec();
        let base = self.lds.base().cast_const();
        let v = &mut self.state.regs.v[dst as usize..][..A::DWORDS as usize];
        if exec == u32::MAX {
            for l in 0..LANES {
                // SAFETY: `lds_offsets` checked `A::BYTES` bytes at each active lane's offset.
                unsafe { A::load(base.add(at[l] as usize), v, l) };
            }
        } else {
            for l in lanes(exec) {
                // SAFETY: as above.
                unsafe { A::load(base.add(at[l] as usize), v, l) };
            }
        }
    }

    #[inline(always)]
    fn lds_store<A: Access>(&mut self, at: &[u32; LANES], src: u16) {
        let exec = self.state.regs.exec();
        let base = self.lds.base();
        let v = &self.state.regs.v[src as usize..][..A::DWORDS as usize];
        for l in lanes(exec) {
            // SAFETY: `lds_offsets` checked `A::BYTES` bytes at each active lane's offset.
            unsafe { A::store(base.add(at[l] as usize), v, l) };
        }
    }
}

macro_rules! offsets {
    ($m:ident, $i:ident, $offset:expr, $bytes:expr, $access:ident) => {
        match $m.lds_offsets($i, $offset, $bytes, LdsAccess::$access) {
            Ok(at) => at,
            Err(step) => return step,
        }
    };
}

/// `ds_read*`.
pub(crate) struct Read<A>(PhantomData<A>);

impl<A: Access> Body for Read<A> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let at = offsets!(m, i, i.imm as u32, A::BYTES, Read);
        m.lds_load::<A>(&at, i.dst);
        Step::Next
    }
}

/// `ds_write*`.
pub(crate) struct Write<A>(PhantomData<A>);

impl<A: Access> Body for Write<A> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let at = offsets!(m, i, i.imm as u32, A::BYTES, Write);
        m.lds_store::<A>(&at, i.src[1].reg);
        Step::Next
    }
}

/// `ds_read2*`: two offsets in units of `UNIT` elements.
pub(crate) struct Read2<A, const UNIT: u32>(PhantomData<A>);

impl<A: Access, const UNIT: u32> Body for Read2<A, UNIT> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let unit = UNIT * A::BYTES;
        let first = offsets!(m, i, i.imm as u32 * unit, A::BYTES, Read);
        let second = offsets!(m, i, i.imm1 as u32 * unit, A::BYTES, Read);
        m.lds_load::<A>(&first, i.dst);
        m.lds_load::<A>(&second, i.dst + A::DWORDS);
        Step::Next
    }
}

/// `ds_write2*`.
pub(crate) struct Write2<A, const UNIT: u32>(PhantomData<A>);

impl<A: Access, const UNIT: u32> Body for Write2<A, UNIT> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let unit = UNIT * A::BYTES;
        let first = offsets!(m, i, i.imm as u32 * unit, A::BYTES, Write);
        let second = offsets!(m, i, i.imm1 as u32 * unit, A::BYTES, Write);
        m.lds_store::<A>(&first, i.src[1].reg);
        m.lds_store::<A>(&second, i.src[2].reg);
        Step::Next
    }
}

/// Atomics: the comparison value of `ds_cmpst*` comes first, unlike in global memory.
pub(crate) struct Update<F, const RETURN: bool, const SWAPPED: bool>(PhantomData<F>);

impl<F: AtomicFn, const RETURN: bool, const SWAPPED: bool> Body for Update<F, RETURN, SWAPPED> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let at = offsets!(m, i, i.imm as u32, F::BYTES, Atomic);
        let (mut data, mut other) = (i.src[1].reg, i.src[2].reg);
        if SWAPPED {
            std::mem::swap(&mut data, &mut other);
        }
        m.lds_update::<F>(&at, i, data, other, RETURN.then_some(i.dst))
    }
}

impl Machine<'_> {
    #[inline(always)]
    fn lds_update<F: AtomicFn>(
        &mut self,
        at: &[u32; LANES],
        i: &Inst,
        data: u16,
        other: u16,
        dst: Option<u16>,
    ) -> Step {
        for l in lanes(self.state.regs.exec()) {
            if !at[l].is_multiple_of(F::BYTES) {
                let kind = FaultKind::Misaligned { address: at[l].into(), bytes: F::BYTES };
                return self.fault(i, Some(l), kind);
            }
            let v = &mut self.state.regs.v;
            let (data, other) = (F::read(v, data, l), F::read(v, other, l));
            // SAFETY: `lds_offsets` checked the bytes, and the address is aligned: `Lds` is, and the offset.
            let old = unsafe { F::update(self.lds.base().add(at[l] as usize), data, other) };
            if let Some(dst) = dst {
                F::write(old, v, dst, l);
            }
        }
        Step::Next
    }
}

/// `ds_wrxchg2*_rtn`: two exchanges.
pub(crate) struct Exchange2<F, const UNIT: u32>(PhantomData<F>);

impl<F: AtomicFn, const UNIT: u32> Body for Exchange2<F, UNIT> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let unit = UNIT * F::BYTES;
        let first = offsets!(m, i, i.imm as u32 * unit, F::BYTES, Atomic);
        let second = offsets!(m, i, i.imm1 as u32 * unit, F::BYTES, Atomic);
        let (one, two) = (i.src[1].reg, i.src[2].reg);
        match m.lds_update::<F>(&first, i, one, one, Some(i.dst)) {
            Step::Next => m.lds_update::<F>(&second, i, two, two, Some(i.dst + F::BYTES as u16 / 4)),
            step => step,
        }
    }
}

/// The dword per lane at M0 + offset (`*_addtid`).
fn thread_offsets(m: &mut Machine<'_>, i: &Inst, access: LdsAccess) -> [u64; LANES] {
    let base = u64::from(m.state.regs.m0() & 0xffff) + i.imm as u64;
    let at = std::array::from_fn(|l| base + 4 * l as u64);
    if m.state.watch.is_some() {
        m.watch_lds(&at.map(|at| at as u32), m.state.regs.exec(), 4, access);
    }
    at
}

bodies! {
    ReadThread |m, i| {
        let at = thread_offsets(m, i, LdsAccess::Read);
        for l in lanes(m.state.regs.exec()) {
            if let Err(step) = m.lds_lane(i, l, at[l], 4, LdsAccess::Read) {
                return step;
            }
            // SAFETY: `lds_lane` checked the four bytes.
            let x = unsafe { m.lds.base().add(at[l] as usize).cast::<u32>().read_unaligned() };
            m.state.regs.v[i.dst as usize].0[l] = x;
        }
        Step::Next
    }
    WriteThread |m, i| {
        let at = thread_offsets(m, i, LdsAccess::Write);
        for l in lanes(m.state.regs.exec()) {
            if let Err(step) = m.lds_lane(i, l, at[l], 4, LdsAccess::Write) {
                return step;
            }
            let x = m.state.regs.v[i.src[1].reg as usize].0[l];
            // SAFETY: `lds_lane` checked the four bytes.
            unsafe { m.lds.base().add(at[l] as usize).cast::<u32>().write_unaligned(x) };
        }
        Step::Next
    }
    Append |m, i| { count(m, i, u32::wrapping_add) }
    Consume |m, i| { count(m, i, u32::wrapping_sub) }
    /// Each lane reads the data of the lane that its address names; inactive lanes give 0.
    BackPermute |m, i| {
        let regs = &mut m.state.regs;
        let exec = regs.exec();
        let (address, data) = (&regs.v[i.src[0].reg as usize].0, &regs.v[i.src[1].reg as usize].0);
        let value = std::array::from_fn(|l| {
            let from = (address[l].wrapping_add(i.imm as u32) >> 2 & 31) as usize;
            if exec >> from & 1 != 0 { data[from] } else { 0 }
        });
        write(&mut regs.v[i.dst as usize], &value, exec);
        Step::Next
    }
    /// Each active lane gives its data to the lane that its address names; the highest one wins.
    Permute |m, i| {
        let regs = &mut m.state.regs;
        let exec = regs.exec();
        let (address, data) = (&regs.v[i.src[0].reg as usize].0, &regs.v[i.src[1].reg as usize].0);
        let mut value = [0; LANES];
        for l in lanes(exec) {
            value[(address[l].wrapping_add(i.imm as u32) >> 2 & 31) as usize] = data[l];
        }
        write(&mut regs.v[i.dst as usize], &value, exec);
        Step::Next
    }
    Swizzle |m, i| {
        let regs = &mut m.state.regs;
        let exec = regs.exec();
        let data = &regs.v[i.src[0].reg as usize].0;
        let value = std::array::from_fn(|l| {
            let from = swizzle(i.imm as u32, l as u32) as usize;
            if exec >> from & 1 != 0 { data[from] } else { 0 }
        });
        write(&mut regs.v[i.dst as usize], &value, exec);
        Step::Next
    }
}

/// The lane that `lane` reads: FFT, rotation, quad permutation, or bit masks.
fn swizzle(offset: u32, lane: u32) -> u32 {
    if offset >> 13 == 7 {
        let mask = offset & 31;
        (lane.reverse_bits() >> 27) >> mask.count_ones() | lane & mask
    } else if offset >> 14 == 3 {
        let (count, keep) = (offset >> 5 & 31, offset & 31);
        let moved = if offset >> 10 & 1 != 0 { lane.wrapping_sub(count) } else { lane + count };
        lane & keep | moved & 31 & !keep
    } else if offset >> 15 != 0 {
        lane & !3 | offset >> (2 * (lane & 3)) & 3
    } else {
        ((lane & offset & 31) | offset >> 5 & 31) ^ offset >> 10 & 31
    }
}

/// Adds or subtracts the number of active lanes; they all get the old value.
fn count(m: &mut Machine<'_>, i: &Inst, f: impl Fn(u32, u32) -> u32) -> Step {
    let exec = m.state.regs.exec();
    let offset = u64::from(m.state.regs.m0() & 0xffff) + i.imm as u64;
    if exec == 0 {
        return Step::Next;
    }
    if let Err(step) = m.lds_lane(i, exec.trailing_zeros() as usize, offset, 4, LdsAccess::Atomic) {
        return step;
    }
    if m.state.watch.is_some() {
        m.watch_lds(&[offset as u32; LANES], exec & exec.wrapping_neg(), 4, LdsAccess::Atomic);
    }
    let at = m.lds.base().wrapping_add(offset as usize).cast::<u32>();
    // SAFETY: `lds_lane` checked the four bytes.
    let old = unsafe { at.read_unaligned() };
    // SAFETY: as above.
    unsafe { at.write_unaligned(f(old, exec.count_ones())) };
    write(&mut m.state.regs.v[i.dst as usize], &[old; LANES], exec);
    Step::Next
}
