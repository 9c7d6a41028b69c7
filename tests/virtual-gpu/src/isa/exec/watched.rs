//! What watched waves record of their instructions. Nothing here runs for others.

use super::Inst;
use super::flat::{Kind, Targets, lanes};
use crate::isa::LANES;
use crate::isa::class::Class;
use crate::isa::lds::LdsAccess;
use crate::isa::state::{Machine, Step};

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

    /// Records the accesses of a vector memory instruction, which have been checked.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_access(&mut self, _i: &Inst, t: &Targets, kind: Kind) -> Step {
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
        let Some(counters) = self.state.watch.as_mut().and_then(|watch| watch.counters.as_deref_mut()) else {
            return Step::Next;
        };
        let bytes = |l: usize| if t.part >> l & 1 != 0 { u64::from(t.bytes[l]) } else { kind.bytes.into() };
        let traffic = match (kind.atomic, kind.write) {
            (true, _) => &mut counters.atomics,
            (false, true) => &mut counters.stores,
            (false, false) => &mut counters.loads,
        };
        traffic.add(lanes(global).map(|l| (t.at[l], bytes(l))), &mut counters.touched);
        counters.lds(&offsets, shared, kind.bytes, kind.atomic);
        for l in lanes(private) {
            counters.scratch_accesses += 1;
            counters.scratch_bytes += bytes(l);
        }
        Step::Next
    }

    /// Records a scalar load.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_scalar(&mut self, _i: &Inst, address: u64, bytes: u32) -> Step {
        if let Some(counters) = self.state.watch.as_mut().and_then(|watch| watch.counters.as_deref_mut()) {
            counters.scalar.add([(address, bytes.into())].into_iter(), &mut counters.touched);
        }
        Step::Next
    }

    /// Records an access to LDS by the lanes in `mask`, which has been checked.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch_lds(&mut self, at: &[u32; LANES], mask: u32, bytes: u32, access: LdsAccess) {
        if let Some(counters) = self.state.watch.as_mut().and_then(|watch| watch.counters.as_mut()) {
            counters.lds(at, mask, bytes, access == LdsAccess::Atomic);
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
