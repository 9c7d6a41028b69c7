//! GPUs, their pools, and allocations.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{AllocationMap, Pages, Range};

/// A GPU.
#[derive(Debug, Default)]
pub(super) struct Gpu {
    /// What it may access.
    pub(super) memory: AllocationMap,
    /// The bytes of its memory that are allocated.
    pub(super) used: AtomicU64,
}

impl Gpu {
    /// Counts memory as used, unless more than `limit` bytes would then be in use.
    pub(super) fn reserve(&self, size: usize, limit: u64) -> bool {
        let more = |used: u64| used.checked_add(size as u64).filter(|&total| total <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts memory as free again.
    pub(super) fn release(&self, size: usize) {
        self.used.fetch_sub(size as u64, Ordering::Relaxed);
    }
}

/// A memory pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    Host(Grain),
    Device(usize, Grain),
    Lds(usize),
}

/// A pool's coherence (`hsa_amd_memory_pool_global_flag_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Grain {
    Fine = 2,
    FineKernarg = 3,
    Coarse = 4,
    Extended = 8,
}

impl Grain {
    pub(super) const ALL: [Self; 4] = [Self::Fine, Self::FineKernarg, Self::Coarse, Self::Extended];
}

impl Pool {
    /// The GPU whose pool it is.
    pub(super) fn gpu(self) -> Option<usize> {
        match self {
            Self::Host(_) => None,
            Self::Device(gpu, _) | Self::Lds(gpu) => Some(gpu),
        }
    }

    pub(super) fn flags(self) -> u32 {
        match self {
            Self::Host(grain) | Self::Device(_, grain) => grain as u32,
            Self::Lds(_) => 0,
        }
    }
}

/// Memory without an address.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) file: OwnedFd,
    pub(super) size: usize,
    pub(super) pool: Pool,
    /// The GPU whose memory it is part of.
    pub(super) gpu: Option<&'static Gpu>,
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(gpu) = self.gpu {
            gpu.release(self.size);
        }
    }
}

/// The memory behind an allocation.
#[derive(Debug)]
pub(super) enum Backing {
    /// Pages of its own.
    Pages(Pages),
    /// The application's memory, and how often it was pinned.
    Pinned(usize),
    /// Memory mapped by `hsa_amd_vmem_map`.
    Mapped(Arc<Physical>),
    /// A loaded code object, whose executable holds the pages.
    Code,
}

/// An allocation that `hsa_amd_pointer_info` knows.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) start: u64,
    pub(super) size: usize,
    pub(super) pool: Pool,
    pub(super) backing: Backing,
    /// The GPUs that may access it, a bit for each.
    pub(super) access: u32,
}

impl Allocation {
    pub(super) fn end(&self) -> u64 {
        self.start + self.size as u64
    }

    /// Lets exactly the GPUs of `access` access it.
    pub(super) fn allow(&mut self, gpus: &[Gpu], access: u32) {
        for (number, gpu) in gpus.iter().enumerate() {
            let bit = |mask: u32| mask >> number & 1 != 0;
            match (&self.backing, bit(self.access), bit(access)) {
                (Backing::Pinned(_), false, true) => gpu.memory.pin(self.start, self.end()),
                (Backing::Pinned(_), true, false) => gpu.memory.unpin(self.start, self.end()),
                (_, false, true) => {
                    let (start, end, host) = (self.start, self.end(), self.pool.gpu().is_none());
                    gpu.memory.insert(Range { start, end, writable: true, host });
                }
                (_, true, false) => drop(gpu.memory.remove(self.start)),
                _ => {}
            }
        }
        self.access = access;
    }
}
