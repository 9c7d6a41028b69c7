//! Vector memory: the FLAT, GLOBAL and SCRATCH segments, and the code that they share with buffers.

use std::marker::PhantomData;

use super::access::Access;
use super::{Body, Inst};
use crate::isa::inst::Source;
use crate::isa::state::{Machine, Step};
use crate::isa::{FaultKind, LANES, PRIVATE_APERTURE, SHARED_APERTURE};

/// Where each lane's access goes.
pub(crate) struct Targets {
    /// Host addresses; 0 for inactive lanes.
    pub(crate) at: [u64; LANES],
    /// Lanes that access all their bytes.
    pub(crate) whole: u32,
    /// Lanes out of a buffer's range: they read 0 and write nothing.
    pub(crate) nothing: u32,
    /// Lanes of which only the first `bytes` are in a buffer's range.
    pub(crate) part: u32,
    pub(crate) bytes: [u8; LANES],
}

impl Targets {
    pub(crate) fn new() -> Self {
        Self { at: [0; LANES], whole: 0, nothing: 0, part: 0, bytes: [0; LANES] }
    }

    /// The bytes that a lane accesses.
    pub(crate) fn length(&self, lane: usize, kind: Kind) -> u32 {
        if self.part >> lane & 1 != 0 { self.bytes[lane].into() } else { kind.bytes }
    }
}

/// An access's size and direction.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) bytes: u32,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
}

/// A way to form addresses.
pub(crate) trait Space {
    /// Checks each lane's access and fills in `t`, which is new. `Err` is the step after a fault.
    fn targets(m: &mut Machine<'_>, i: &Inst, kind: Kind, t: &mut Targets) -> Result<(), Step>;
}

/// Device memory.
pub(crate) struct Global;
/// Device memory, or LDS or scratch through their apertures.
pub(crate) struct Flat;
/// The lane's private memory.
pub(crate) struct Scratch;

/// The lanes of a mask.
#[inline(always)]
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

/// The smallest and largest element of the lanes in `mask`.
#[inline(always)]
fn bounds(at: &[u64; LANES], mask: u32) -> (u64, u64) {
    let (mut low, mut high) = (u64::MAX, 0);
    for l in 0..LANES {
        let active = mask & 1 << l != 0;
        low = low.min(if active { at[l] } else { u64::MAX });
        high = high.max(if active { at[l] } else { 0 });
    }
    (low, high)
}

/// The same for 32 bits, which the host's vectors compute faster.
#[inline(always)]
pub(super) fn bounds32(at: &[u32; LANES], mask: u32) -> (u32, u32) {
    let (mut low, mut high) = (u32::MAX, 0);
    for l in 0..LANES {
        let active = mask & 1 << l != 0;
        low = low.min(if active { at[l] } else { u32::MAX });
        high = high.max(if active { at[l] } else { 0 });
    }
    (low, high)
}

impl Machine<'_> {
    /// Checks the accesses of the lanes in `mask` against the allocation map, as a single range if
    /// possible.
    #[inline(always)]
    pub(crate) fn check_global(
        &mut self,
        i: &Inst,
        at: &[u64; LANES],
        mask: u32,
        kind: Kind,
    ) -> Result<(), Step> {
        self.check_span(i, at, mask, bounds(at, mask), kind)
    }

    /// As [`Self::check_global`], with the lanes' smallest and largest address given.
    #[inline(always)]
    pub(super) fn check_span(
        &mut self,
        i: &Inst,
        at: &[u64; LANES],
        mask: u32,
        (low, high): (u64, u64),
        kind: Kind,
    ) -> Result<(), Step> {
        if mask == 0 {
            return Ok(());
        }
        let span = high.wrapping_sub(low).saturating_add(kind.bytes.into());
        if kind.atomic
            || span > 1 << 32
            || self.memory.check(low, span, kind.write, &mut self.state.hint).is_err()
        {
            return self.check_lanes(i, at, mask, kind);
        }
        Ok(())
    }

    #[inline(never)]
    fn check_lanes(&mut self, i: &Inst, at: &[u64; LANES], mask: u32, kind: Kind) -> Result<(), Step> {
        lanes(mask).try_for_each(|l| self.check_lane(i, l, at[l], kind))
    }

    fn check_lane(&mut self, i: &Inst, lane: usize, address: u64, kind: Kind) -> Result<(), Step> {
        let Kind { bytes, write, atomic } = kind;
        if let Err(error) = self.memory.check(address, bytes.into(), write, &mut self.state.hint) {
            return Err(self.fault(i, Some(lane), FaultKind::Memory { address, bytes, write, error }));
        }
        self.check_alignment(i, lane, address, bytes, atomic)
    }

    fn check_alignment(
        &mut self,
        i: &Inst,
        l: usize,
        address: u64,
        bytes: u32,
        atomic: bool,
    ) -> Result<(), Step> {
        if atomic && !address.is_multiple_of(bytes.into()) {
            return Err(self.fault(i, Some(l), FaultKind::Misaligned { address, bytes }));
        }
        Ok(())
    }

    /// The host address of `offset` in a lane's private memory.
    pub(crate) fn private(&mut self, i: &Inst, lane: usize, offset: u64, bytes: u32) -> Result<u64, Step> {
        let scratch = self.state.scratch;
        if offset + u64::from(bytes) > scratch.stride.into() {
            let kind = FaultKind::Scratch { offset, bytes, size: scratch.stride };
            return Err(self.fault(i, Some(lane), kind));
        }
        Ok(scratch.base + lane as u64 * u64::from(scratch.stride) + offset)
    }

    /// The host address of an access through an aperture, or of device memory.
    #[inline(never)]
    fn flat_lane(&mut self, i: &Inst, lane: usize, address: u64, kind: Kind) -> Result<u64, Step> {
        let (aperture, offset) = ((address >> 32) as u32, address & 0xffff_ffff);
        match aperture {
            SHARED_APERTURE => {
                self.check_alignment(i, lane, offset, kind.bytes, kind.atomic)?;
                let access = crate::isa::lds::LdsAccess::of(kind.write, kind.atomic);
                self.lds_lane(i, lane, offset, kind.bytes, access)?;
                Ok(self.lds.base() as u64 + offset)
            }
            PRIVATE_APERTURE => self.private(i, lane, offset, kind.bytes),
            _ => self.check_lane(i, lane, address, kind).map(|()| address),
        }
    }

    /// The addresses of a GLOBAL or FLAT instruction, before any check, and the smallest and largest one of the active
    /// lanes.
    #[inline(always)]
    fn flat_addresses(&self, i: &Inst, at: &mut [u64; LANES], exec: u32) -> (u64, u64) {
        let regs = &self.state.regs;
        let offset = i64::from(i.imm);
        let address = &i.src[0];
        let reg = address.reg as usize;
        if i.src[2].source == Source::Sgpr {
            let base = regs.sgpr64(i.src[2].reg).wrapping_add_signed(offset);
            if address.source == Source::Vgpr {
                let low = &regs.v[reg].0;
                for l in 0..LANES {
                    at[l] = base.wrapping_add(low[l].into());
                }
                let (first, last) = bounds32(low, exec);
                (base.wrapping_add(first.into()), base.wrapping_add(last.into()))
            } else {
                // `*_addtid`: a dword per lane.
                for (l, at) in at.iter_mut().enumerate() {
                    *at = base.wrapping_add(4 * l as u64);
                }
                (base, base.wrapping_add(4 * LANES as u64 - 4))
            }
        } else {
            let (low, high) = (&regs.v[reg].0, &regs.v[reg + 1].0);
            for l in 0..LANES {
                at[l] = (u64::from(low[l]) | u64::from(high[l]) << 32).wrapping_add_signed(offset);
            }
            let top = high[exec.trailing_zeros() as usize % LANES];
            if (0..LANES).any(|l| exec & 1 << l != 0 && high[l] != top) {
                return bounds(at, exec);
            }
            let (first, last) = bounds32(low, exec);
            let whole = |low: u32| (u64::from(low) | u64::from(top) << 32).wrapping_add_signed(offset);
            (whole(first), whole(last))
        }
    }
}

impl Space for Global {
    #[inline(always)]
    fn targets(m: &mut Machine<'_>, i: &Inst, kind: Kind, t: &mut Targets) -> Result<(), Step> {
        t.whole = m.state.regs.exec();
        let span = m.flat_addresses(i, &mut t.at, t.whole);
        m.check_span(i, &t.at, t.whole, span, kind)
    }
}

impl Space for Flat {
    #[inline(always)]
    fn targets(m: &mut Machine<'_>, i: &Inst, kind: Kind, t: &mut Targets) -> Result<(), Step> {
        t.whole = m.state.regs.exec();
        let span = m.flat_addresses(i, &mut t.at, t.whole);
        if span.1 >> 48 == 0 {
            return m.check_span(i, &t.at, t.whole, span, kind);
        }
        for l in lanes(t.whole) {
            t.at[l] = m.flat_lane(i, l, t.at[l], kind)?;
        }
        Ok(())
    }
}

impl Space for Scratch {
    #[inline(always)]
    fn targets(m: &mut Machine<'_>, i: &Inst, kind: Kind, t: &mut Targets) -> Result<(), Step> {
        t.whole = m.state.regs.exec();
        let base = if i.src[2].source == Source::Sgpr { m.state.regs.sgpr(i.src[2].reg) } else { 0 };
        let base = base.wrapping_add(i.imm as u32);
        for l in lanes(t.whole) {
            let own =
                if i.src[0].source == Source::Vgpr { m.state.regs.v[i.src[0].reg as usize].0[l] } else { 0 };
            t.at[l] = m.private(i, l, base.wrapping_add(own).into(), kind.bytes)?;
        }
        Ok(())
    }
}

/// A load.
pub(crate) struct Load<S, A>(PhantomData<(S, A)>);

impl<S: Space, A: Access> Body for Load<S, A> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let mut targets = Targets::new();
        let kind = Kind { bytes: A::BYTES, write: false, atomic: false };
        if let Err(step) = S::targets(m, i, kind, &mut targets) {
            return step;
        }
        let step = if i.to_lds { m.load_to_lds::<A>(i, &targets) } else { Self::fetch(m, i, &targets) };
        if m.state.watch.is_some() && step == Step::Next {
            return m.watch_access(i, &targets, kind);
        }
        step
    }
}

impl<S: Space, A: Access> Load<S, A> {
    /// Loads what `targets` has checked.
    #[inline(always)]
    fn fetch(m: &mut Machine<'_>, i: &Inst, targets: &Targets) -> Step {
        let v = &mut m.state.regs.v[i.dst as usize..][..A::DWORDS as usize];
        if targets.whole == u32::MAX {
            let at = &targets.at;
            if A::DWORDS == 1 && A::BYTES == 4 && (0..LANES).all(|l| at[l] == at[0] + 4 * l as u64) {
                // SAFETY: the 32 dwords were checked, and follow each other. The guest may race; the bits of
                // a torn value are still bits.
                v[0].0 = unsafe { (at[0] as *const [u32; LANES]).read_unaligned() };
                return Step::Next;
            }
            for l in 0..LANES {
                // SAFETY: `targets` checked `A::BYTES` bytes at each lane's address.
                unsafe { A::load(at[l] as *const u8, v, l) };
            }
            return Step::Next;
        }
        for l in lanes(targets.whole) {
            // SAFETY: as above.
            unsafe { A::load(targets.at[l] as *const u8, v, l) };
        }
        if targets.nothing | targets.part != 0 {
            load_partly::<A>(v, targets);
        }
        Step::Next
    }
}

/// Lanes that a buffer's range cuts off: the missing bytes read as 0.
#[inline(never)]
fn load_partly<A: Access>(v: &mut [crate::isa::state::Vgpr], targets: &Targets) {
    for l in lanes(targets.nothing | targets.part) {
        let mut bytes = [0u8; 16];
        if targets.part & 1 << l != 0 {
            let n = targets.bytes[l] as usize;
            // SAFETY: `targets` checked the first `n` bytes of a partial lane.
            unsafe { std::ptr::copy_nonoverlapping(targets.at[l] as *const u8, bytes.as_mut_ptr(), n) };
        }
        // SAFETY: no access is longer than 16 bytes.
        unsafe { A::load(bytes.as_ptr(), v, l) };
    }
}

impl Machine<'_> {
    /// Buffer loads with LDS as destination: lane `l` writes at M0 + offset + 4 l.
    #[inline(never)]
    fn load_to_lds<A: Access>(&mut self, i: &Inst, targets: &Targets) -> Step {
        let base = u64::from(self.state.regs.m0() & 0xffff) + i.imm as u64;
        let mut reg = [crate::isa::state::Vgpr::ZERO; 4];
        load_partly::<A>(&mut reg, targets);
        for l in lanes(targets.whole) {
            // SAFETY: `targets` checked `A::BYTES` bytes at each lane's address.
            unsafe { A::load(targets.at[l] as *const u8, &mut reg, l) };
        }
        for l in lanes(targets.whole | targets.nothing | targets.part) {
            let offset = base + 4 * l as u64;
            if let Err(step) = self.lds_lane(i, l, offset, 4, crate::isa::lds::LdsAccess::of(true, false)) {
                return step;
            }
            // SAFETY: `lds_lane` checked the four bytes.
            unsafe { self.lds.base().add(offset as usize).cast::<u32>().write_unaligned(reg[0].0[l]) };
        }
        Step::Next
    }
}

/// A store.
pub(crate) struct Store<S, A>(PhantomData<(S, A)>);

impl<S: Space, A: Access> Body for Store<S, A> {
    #[inline(always)]
    fn run(m: &mut Machine<'_>, i: &Inst) -> Step {
        let mut targets = Targets::new();
        let kind = Kind { bytes: A::BYTES, write: true, atomic: false };
        if let Err(step) = S::targets(m, i, kind, &mut targets) {
            return step;
        }
        if m.state.watch.is_some()
            && let stop @ (Step::Jump | Step::Stop) = m.watch_store::<A>(i, &targets)
        {
            return stop;
        }
        let v = &m.state.regs.v[i.src[1].reg as usize..][..A::DWORDS as usize];
        let at = &targets.at;
        if A::DWORDS == 1
            && A::BYTES == 4
            && targets.whole == u32::MAX
            && (0..LANES).all(|l| at[l] == at[0] + 4 * l as u64)
        {
            // SAFETY: the 32 dwords were checked, and follow each other.
            unsafe { (at[0] as *mut [u32; LANES]).write_unaligned(v[0].0) };
            return Step::Next;
        }
        for l in lanes(targets.whole) {
            // SAFETY: `targets` checked `A::BYTES` bytes at each lane's address.
            unsafe { A::store(at[l] as *mut u8, v, l) };
        }
        for l in lanes(targets.part) {
            let mut bytes = [0u8; 16];
            // SAFETY: no access is longer than 16 bytes; `targets` checked the first `bytes[l]` of a partial lane.
            unsafe {
                A::store(bytes.as_mut_ptr(), v, l);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), at[l] as *mut u8, targets.bytes[l] as usize);
            }
        }
        Step::Next
    }
}
