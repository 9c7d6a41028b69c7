//! The local data share of a workgroup.

/// How to set up an [`Lds`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LdsInit {
    /// Bytes.
    pub size: u32,
    /// Fills with 0xff (NaN) instead of 0.
    pub poison: bool,
    /// Finds conflicting accesses by different waves with no barrier between them.
    pub races: bool,
}

/// A workgroup's local data share, checked to the byte.
#[derive(Debug)]
pub struct Lds {
    /// Eight bytes each, so that 64-bit atomics are aligned.
    words: Vec<u64>,
    size: u32,
    /// One entry for each byte, if races are looked for: waves may write halves of one dword.
    shadow: Vec<Shadow>,
    /// Counts barriers and workgroups.
    epoch: u32,
}

/// What an instruction does to LDS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LdsAccess {
    Read,
    Write,
    /// Atomics don't conflict with each other.
    Atomic,
}

impl LdsAccess {
    /// Of an instruction that writes or is atomic.
    pub(crate) fn of(write: bool, atomic: bool) -> Self {
        match (write, atomic) {
            (_, true) => Self::Atomic,
            (true, _) => Self::Write,
            _ => Self::Read,
        }
    }
}

/// Who accessed a byte since the last barrier.
#[derive(Clone, Copy, Debug, Default)]
struct Shadow {
    /// The epoch that the other fields are about.
    epoch: u32,
    /// Waves that read, wrote, and updated atomically, one bit each.
    read: u32,
    wrote: u32,
    updated: u32,
}

/// A conflict with another wave's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Race {
    pub(crate) offset: u32,
    pub(crate) wave: u32,
    pub(crate) wrote: bool,
}

impl Lds {
    /// A fresh LDS.
    pub fn new(init: &LdsInit) -> Self {
        let mut lds = Self { words: Vec::new(), size: 0, shadow: Vec::new(), epoch: 0 };
        lds.reset(init);
        lds
    }

    /// Prepares for another workgroup.
    pub fn reset(&mut self, init: &LdsInit) {
        self.size = init.size;
        self.words.clear();
        self.words.resize(init.size.div_ceil(8) as usize, if init.poison { u64::MAX } else { 0 });
        // A new epoch forgets the last workgroup's accesses, which is quicker than clearing them.
        self.shadow.resize(if init.races { init.size as usize } else { 0 }, Shadow::default());
        self.barrier();
    }

    /// Records that all waves of the workgroup have reached a barrier. Accesses before it can't
    /// race with later ones.
    pub fn barrier(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The first byte's address.
    pub(crate) fn base(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    /// Whether accesses are tracked.
    pub(crate) fn tracks(&self) -> bool {
        !self.shadow.is_empty()
    }

    /// Records an access in range by `wave`.
    pub(crate) fn track(
        &mut self,
        offset: u32,
        bytes: u32,
        access: LdsAccess,
        wave: u32,
    ) -> Result<(), Race> {
        let epoch = self.epoch;
        let own = 1u32 << (wave & 31);
        let touched = self.shadow.iter_mut().enumerate().skip(offset as usize).take(bytes as usize);
        for (offset, shadow) in touched {
            if shadow.epoch != epoch {
                *shadow = Shadow { epoch, ..Shadow::default() };
            }
            let conflicts = match access {
                LdsAccess::Read => shadow.wrote | shadow.updated,
                LdsAccess::Write => shadow.wrote | shadow.updated | shadow.read,
                LdsAccess::Atomic => shadow.wrote | shadow.read,
            } & !own;
            if conflicts != 0 {
                let wave = conflicts.trailing_zeros();
                let wrote = (shadow.wrote | shadow.updated) >> wave & 1 != 0;
                return Err(Race { offset: offset as u32, wave, wrote });
            }
            match access {
                LdsAccess::Read => shadow.read |= own,
                LdsAccess::Write => shadow.wrote |= own,
                LdsAccess::Atomic => shadow.updated |= own,
            }
        }
        Ok(())
    }
}
