//! What watched waves record of their instructions. Nothing here runs for others.

use super::Inst;
use super::access::Access;
use super::flat::{Kind, Targets, lanes};
use crate::isa::class::Class;
use crate::isa::lds::LdsAccess;
use crate::isa::races::{Conflict, GlobalAccess, Span, Stored};
use crate::isa::state::{Machine, Step};
use crate::isa::{FaultKind, LANES};

/// Where an address of the host lies.
enum Place {
    Global,
    /// The offset in LDS.
    Lds(u32),
    Scratch,
}

impl Machine<'_> {
    /// Records an instruction that is about to run.
    pub(crate) fn watch_instruction(&mut self, class: Class) {
        let exec = self.state.regs.exec();
        if let Some(counters) = self.state.watch.as_mut().and_then(|watch| watch.counters.as_mut()) {
            counters.instruction(class, exec);
        }
    }

    /// Records the accesses of a load or an atomic, which have been checked. A load has happened already.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_access(&mut self, i: &Inst, t: &Targets, kind: Kind) -> Step {
        let access = if kind.atomic {
            (!i.glc).then_some(GlobalAccess::Update)
        } else {
            (!i.coherent).then_some(GlobalAccess::Read)
        };
        let step = self.watch_spans(i, t, kind, access, &[Stored::default(); LANES]);
        if !kind.write && i.coherent {
            self.watch_acquire();
        }
        step
    }

    /// The same of a store.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_store<A: Access>(&mut self, i: &Inst, t: &Targets) -> Step {
        let kind = Kind { bytes: A::BYTES, write: true, atomic: false };
        let mut stored = [Stored::default(); LANES];
        if self.state.watch.as_ref().is_some_and(|watch| watch.races.is_some()) {
            let v = &self.state.regs.v[i.src[1].reg as usize..][..A::DWORDS as usize];
            for l in lanes(t.whole | t.part) {
                let mut new = [0u8; 16];
                // SAFETY: no access is longer than 16 bytes.
                unsafe { A::store(new.as_mut_ptr(), v, l) };
                stored[l].value = u128::from_le_bytes(new);
                for (byte, new) in new.iter().enumerate().take(t.length(l, kind) as usize) {
                    // SAFETY: the bytes have been checked.
                    let old = unsafe { (t.at[l] as *const u8).add(byte).read() };
                    stored[l].changes |= u16::from(old != *new) << byte;
                }
            }
        }
        self.watch_spans(i, t, kind, Some(GlobalAccess::Store), &stored)
    }

    fn watch_spans(
        &mut self,
        i: &Inst,
        t: &Targets,
        kind: Kind,
        access: Option<GlobalAccess>,
        stored: &[Stored; LANES],
    ) -> Step {
        let (mut global, mut shared, mut private) = (0, 0, 0);
        let mut offsets = [0; LANES];
        for l in lanes(t.whole | t.part) {
            match self.place(t.at[l]) {
                Place::Global => global |= 1 << l,
                Place::Scratch => private |= 1 << l,
                Place::Lds(offset) => {
                    offsets[l] = offset;
                    shared |= 1 << l;
                }
            }
        }
        let Some(watch) = &mut self.state.watch else { return Step::Next };
        if let Some(counters) = watch.counters.as_deref_mut() {
            let traffic = match (kind.atomic, kind.write) {
                (true, _) => &mut counters.atomics,
                (false, true) => &mut counters.stores,
                (false, false) => &mut counters.loads,
            };
            traffic.add(lanes(global).map(|l| (t.at[l], t.length(l, kind).into())), &mut counters.touched);
            counters.lds(&offsets, shared, kind.bytes, kind.atomic);
            for l in lanes(private) {
                counters.scratch_accesses += 1;
                counters.scratch_bytes += u64::from(t.length(l, kind));
            }
        }
        if let (Some(races), Some(access)) = (&mut watch.races, access) {
            let span = |l: usize| {
                let (at, bytes, stored) = (t.at[l], t.length(l, kind), stored[l]);
                let host = access == GlobalAccess::Store && self.memory.is_host(at, &self.state.hint);
                Span { lane: l, at, bytes, stored, host }
            };
            if let Err(conflict) = races.access(i.pc, access, lanes(global).map(span)) {
                return self.race(i, Some(conflict.lane), kind.write, &conflict);
            }
        }
        Step::Next
    }

    /// Records a scalar load, which has happened.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_scalar(&mut self, i: &Inst, address: u64, bytes: u32) -> Step {
        let Some(watch) = &mut self.state.watch else { return Step::Next };
        if let Some(counters) = watch.counters.as_deref_mut() {
            counters.scalar.add([(address, bytes.into())].into_iter(), &mut counters.touched);
        }
        if let Some(races) = &mut watch.races {
            if i.coherent {
                races.acquire();
                return Step::Next;
            }
            let span = Span { lane: 0, at: address, bytes, stored: Stored::default(), host: false };
            if let Err(conflict) = races.access(i.pc, GlobalAccess::ScalarRead, [span].into_iter()) {
                return self.race(i, None, false, &conflict);
            }
        }
        Step::Next
    }

    fn race(&mut self, i: &Inst, lane: Option<usize>, write: bool, conflict: &Conflict) -> Step {
        let &Conflict { address, wrote, group, wave, pc, .. } = conflict;
        self.fault(i, lane, FaultKind::GlobalRace { address, write, wrote, group, wave, pc })
    }

    /// Records that the wave has read what another wave may have released.
    pub(crate) fn watch_acquire(&mut self) {
        if let Some(races) = self.state.watch.as_mut().and_then(|watch| watch.races.as_mut()) {
            races.acquire();
        }
    }

    /// The same among the waves of its workgroup.
    pub(crate) fn watch_join(&mut self) {
        if let Some(races) = self.state.watch.as_mut().and_then(|watch| watch.races.as_mut()) {
            races.join();
        }
    }

    /// Records an access to LDS by the lanes in `mask`, which has been checked.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_lds(&mut self, at: &[u32; LANES], mask: u32, bytes: u32, access: LdsAccess) {
        if let Some(counters) = self.state.watch.as_mut().and_then(|watch| watch.counters.as_mut()) {
            counters.lds(at, mask, bytes, access == LdsAccess::Atomic);
        }
        if access == LdsAccess::Atomic {
            self.watch_join();
        }
    }

    /// FLAT instructions reach LDS and private memory too.
    fn place(&mut self, at: u64) -> Place {
        let scratch = self.state.scratch;
        if let Some(offset) = at.checked_sub(self.lds.base() as u64)
            && offset < self.lds.size().into()
        {
            Place::Lds(offset as u32)
        } else if at.wrapping_sub(scratch.base) < LANES as u64 * u64::from(scratch.stride) {
            Place::Scratch
        } else {
            Place::Global
        }
    }
}
