//! Buffers: memory of one device.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::memory::arena::ALIGN;
use crate::memory::foreign::{Foreign, ForeignMemory};
use crate::memory::last_use::LastUse;
use crate::memory::marks::{Marks, Set};
use crate::memory::pool::{PoolBlock, Purpose};

/// Where a buffer's memory is from.
enum Origin {
    /// The device's pool.
    Pool(PoolBlock),
    /// Somebody else.
    Foreign(Arc<Foreign>),
}

/// Memory of one device, from its pool, which gets it back on drop. Or memory that somebody else
/// allocated ([`Device::adopt`]). Not `Clone`; share it by an `Arc`.
pub struct Buffer {
    device: Arc<Device>,
    /// `None` only while the buffer is dropped.
    origin: Option<Origin>,
    address: usize,
    bytes: usize,
    /// The tickets of the faults that its contents may have.
    pub(crate) marks: Marks,
    pub(crate) last_use: LastUse,
}

impl Buffer {
    pub(crate) fn new(device: Arc<Device>, block: PoolBlock, bytes: usize) -> Self {
        let address = block.address;
        let (marks, last_use) = (Marks::default(), LastUse::never());
        Self { device, origin: Some(Origin::Pool(block)), address, bytes, marks, last_use }
    }

    /// Whether somebody else allocated the memory, so that others may read it at any time.
    #[inline]
    pub fn is_foreign(&self) -> bool {
        matches!(self.origin, Some(Origin::Foreign(_)))
    }

    /// Whether nobody may write the memory.
    pub fn is_read_only(&self) -> bool {
        matches!(&self.origin, Some(Origin::Foreign(foreign)) if foreign.read_only)
    }

    /// Whether both have common memory.
    pub fn overlaps(&self, other: &Self) -> bool {
        let within = |a: &Self, b: &Self| (b.address..b.address.saturating_add(b.bytes)).contains(&a.address);
        Arc::ptr_eq(&self.device, &other.device) && (within(self, other) || within(other, self))
    }

    /// The addresses of the memory, to compare. Work that uses the memory takes
    /// [`address`](Self::address), which notes the use.
    pub fn addresses(&self) -> Range<usize> {
        self.address..self.address.saturating_add(self.bytes)
    }

    /// The length in bytes, as requested.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The device whose memory it is.
    #[inline]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The address on the device; never null, even for 0 bytes. A kernel that gets addresses in a
    /// table needs a call of [`carry_faults`](crate::carry_faults) for these buffers.
    ///
    /// If this thread is capturing a graph, the graph keeps the memory, because a caller that asks
    /// for the address passes it to captured work.
    ///
    /// In a [`Pass`](crate::Pass), the work that uses the address must be enqueued by the op that
    /// asks for it. If it may be enqueued later, call [`lend`](Self::lend) first.
    #[inline]
    pub fn address(&self) -> usize {
        if self.device.captures.any() {
            self.used();
        }
        self.place()
    }

    /// The address, for a caller that knows that no thread captures a graph.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        self.last_use.note(Arc::as_ptr(&self.device).addr());
        self.address
    }

    /// Says that work which uses the memory may be enqueued at any time from now on, for instance
    /// by another library.
    pub fn lend(&self) {
        self.last_use.note_unknown();
    }

    /// Keeps the memory for the graph that this thread captures. If another thread captures one and
    /// the buffer is among its results, these are not computed yet. The next read or sync then
    /// reports their use.
    #[cold]
    fn used(&self) {
        let Device { captures, pool, .. } = &*self.device;
        let captured = captures.here();
        if captured.is_none() {
            self.lend();
        }
        match (&self.origin, captured) {
            (Some(Origin::Pool(block)), Some(_)) => pool.hold(block),
            (Some(Origin::Pool(block)), None) if pool.is_captured(block) => {
                self.device.record(captures.others("the use of a captured tensor"));
            }
            (Some(Origin::Foreign(foreign)), Some(captured)) => captured.keep(foreign.clone()),
            _ => {}
        }
    }

    /// Whether a graph's work uses the memory or may use it again. If so, a replay may overwrite
    /// it.
    pub fn is_of_graph(&self) -> bool {
        match &self.origin {
            Some(Origin::Pool(block)) => self.device.pool.is_of_graph(block),
            // The other owners are graphs.
            Some(Origin::Foreign(foreign)) => Arc::strong_count(foreign) > 1,
            None => false,
        }
    }

    /// Whether the memory belongs to a living graph itself, as that of the graph's results does. A
    /// replay overwrites whatever others wrote there. `false` for the thread that captures the graph,
    /// because what it writes is part of the replays. Memory that a graph only uses, such as its
    /// inputs, does not belong to it.
    #[inline]
    pub fn is_replayed(&self) -> bool {
        match &self.origin {
            Some(Origin::Pool(block)) if block.is_graphs_own() => {
                self.device.pool.is_replayed(block, self.device.captures.here().is_some())
            }
            _ => false,
        }
    }

    /// Whether the memory is part of the graph that is being captured on its device: the graph's
    /// work computes its contents anew in each replay.
    pub fn is_captured(&self) -> bool {
        match &self.origin {
            Some(Origin::Pool(block)) => self.device.pool.is_captured(block),
            _ => false,
        }
    }

    /// The address on the device as AMD's libraries take it.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.address() as *mut c_void
    }

    /// Adds a set of tickets to the buffer's own.
    #[cold]
    pub(crate) fn add_marks(&self, set: &Option<Arc<Set>>) {
        self.marks.put(Set::join(self.marks.get(), set.clone()));
    }
}

impl Device {
    /// Memory from the pool, aligned to 256 bytes, with undefined contents. 0 bytes are allowed.
    ///
    /// # Errors
    /// `OutOfMemory` if there is too little memory even after the pool gave back every cached
    /// block.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let block = self.allocate(bytes, Purpose::Compute)?;
        Ok(Buffer::new(self.clone(), block, bytes))
    }

    /// A buffer over memory that somebody else allocated, and the byte of the buffer at which this
    /// memory begins. The pool never gets the memory.
    ///
    /// The buffer begins at the last multiple of 256 that is not above the memory's address,
    /// because the pool's blocks are aligned so, and ops look at offsets to find out what is
    /// aligned. Nothing may access the bytes in between.
    ///
    /// # Errors
    /// `Invalid` for an empty or null range; `Device` if HIP can't make host memory accessible. The
    /// keeper is then dropped without being called.
    ///
    /// # Safety
    /// The range is memory of this kind ([`DeviceInfo::memory`](crate::DeviceInfo::memory)) that
    /// this device can access. It stays until the keeper is called. What others do with it is
    /// ordered with the device's work.
    pub unsafe fn adopt(self: &Arc<Self>, memory: ForeignMemory) -> Result<(Buffer, usize)> {
        self.releases.poll(self.captures.any());
        let skipped = memory.address % ALIGN;
        let (address, bytes) = (memory.address - skipped, memory.bytes.saturating_add(skipped));
        let origin = Some(Origin::Foreign(Arc::new(Foreign::new(self, memory)?)));
        let (marks, last_use) = (Marks::default(), LastUse::unknown());
        Ok((Buffer { device: self.clone(), origin, address, bytes, marks, last_use }, skipped))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(Origin::Pool(block)) = self.origin.take() {
            // A graph reads its memory again.
            let of_graph = || self.device.pool.is_of_graph(&block);
            self.device.stream().forget(self.address, self.address + self.bytes, of_graph);
            self.device.give_back(block);
        }
    }
}

/// Declares that the buffers `to` are computed from the buffers `from`, for a launch whose
/// arguments don't show it. Each buffer of `to` then takes over the faults of all of `from`, and
/// keeps its own earlier faults. If those affect the other buffers of `to` too, name that buffer in
/// `from` as well.
#[inline]
pub fn carry_faults<'a>(
    from: impl IntoIterator<Item = &'a Buffer>,
    to: impl IntoIterator<Item = &'a Buffer>,
) {
    let mut set = None;
    for buffer in from {
        if buffer.marks.any() {
            set = Set::join(set, buffer.marks.get());
        }
    }
    if set.is_some() {
        to.into_iter().for_each(|buffer| buffer.add_marks(&set));
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("device", &self.device.info().index)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
