//! The caching pool over plain `hipMalloc`.
//!
//! It does not use `hipMallocAsync`, whose ordering bugs are open (ROCm/rocm-systems#10943,
//! #11690). A device has one compute stream, so the pool can give out a freed block at once: work
//! that still reads it comes earlier in the same stream.

mod graphs;
mod stats;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::memory::arena::{Arena, BlockId, Taken, rounded};
use crate::memory::ledger::{self, Entry, Ledger, Start};
use crate::memory::record::MemoryRecord;
use crate::memory::summary::{MemorySnapshot, MemorySummary, MemoryUse, bytes_of};
use crate::watch::thread_number;
use graphs::Graphs;
pub use stats::{PoolStats, SegmentStats};

/// The source of the pool's memory: the driver, or an imitation in tests.
pub(crate) trait Backing: Send + Sync {
    /// The address of a new region, or `None` if there is too little memory.
    fn allocate(&self, bytes: usize) -> Result<Option<usize>>;
    /// Gives a region back. Failures are recorded, not returned.
    fn release(&self, address: usize);
    /// Waits until the device has finished all work, which may use freed blocks.
    fn wait(&self) -> Result<()>;
    /// Free and total bytes.
    fn free_and_total(&self) -> Result<(usize, usize)>;
    /// The bytes that are managed memory.
    fn managed(&self) -> usize {
        0
    }
}

/// How a pool works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// The most bytes that it may hold from the driver; `None` is no limit.
    pub(crate) limit: Option<usize>,
    /// Whether it keeps freed memory and cuts it into blocks. Otherwise each block is a region of
    /// its own from the driver, and goes back before the next allocation.
    pub(crate) pooled: bool,
    /// Larger requests get regions of their own, which smaller requests don't use.
    pub(crate) split: usize,
}

/// Which stream writes a block first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Written by the compute stream.
    Compute,
    /// Written by the copy stream. These blocks are kept apart, and each has a fence after its last
    /// use, so that an upload waits for that fence only.
    Transfer,
    /// Written by work that this thread captures into a graph.
    Captured,
}

/// A block in use. The owner hands it back to [`MemoryPool::free`].
#[derive(Debug)]
pub(crate) struct PoolBlock {
    pub(crate) address: usize,
    /// The fence that was passed to [`MemoryPool::free`] after the last use of the memory.
    pub(crate) fence: u64,
    arena: usize,
    id: BlockId,
    /// The requested bytes.
    requested: usize,
    entry: Entry,
}

impl PoolBlock {
    /// Whether the copy stream may write this memory next, so that [`MemoryPool::free`] needs a
    /// fence.
    pub(crate) fn fenced(&self) -> bool {
        matches!(self.arena, TRANSFER | PERSISTENT)
    }

    /// Whether the memory was allocated by a capture, for its graph.
    #[inline]
    pub(crate) fn is_graphs_own(&self) -> bool {
        self.arena >= ARENAS
    }
}

/// Requests up to this size share segments of [`SEGMENTS`]`[0]` bytes. Most tensors of a model are
/// small, and a small one that stays for the whole run must not split a large segment.
const SMALL: usize = 1 << 20;
/// Bytes asked from the driver at once, by arena: small, large, transfer, persistent. Larger
/// requests get a segment of their own. The last arena has only such segments, and does not split
/// them.
const SEGMENTS: [usize; ARENAS] = [8 << 20, 64 << 20, 32 << 20, 8 << 20, 0];
const ARENAS: usize = 5;
const TRANSFER: usize = 2;
const PERSISTENT: usize = 3;
const WHOLE: usize = 4;

thread_local! {
    /// The addresses of the pools for which this thread runs [`MemoryPool::persistently`].
    static PERSISTENTLY: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

struct State {
    arenas: [Arena; ARENAS],
    segments: [SegmentStats; ARENAS],
    graphs: Graphs,
    stats: PoolStats,
    /// The most bytes held from the driver at once.
    peak_reserved: usize,
    ledger: Ledger,
    /// Memory that other libraries own and tensors use.
    imported: MemoryUse,
    limit: Option<usize>,
    /// The allocations that failed and that nobody made up for, oldest first, each with its
    /// thread's number.
    failures: Vec<(u32, Error)>,
    /// How many failures there were after the list was full.
    unlisted: u64,
}

/// A device's memory pool. It keeps freed blocks and gives them out again.
pub struct MemoryPool {
    backing: Box<dyn Backing>,
    state: Mutex<State>,
    pooled: bool,
    split: usize,
    /// Locked while segments go back to the driver.
    clearing: Mutex<()>,
    /// How many allocations a test still allows; [`ANY`] is any number.
    allowed: AtomicU64,
    /// How many of the next allocations fail in a test.
    failing: AtomicU64,
}

/// The most failed allocations whose errors are kept.
const FAILURES: usize = 64;

/// No test limits the number of allocations.
const ANY: u64 = u64::MAX;

impl MemoryPool {
    pub(crate) fn new(backing: Box<dyn Backing>, options: Options) -> Self {
        let Options { limit, pooled, split } = options;
        let arenas = std::array::from_fn(|_| Arena::new());
        let segments = SEGMENTS.map(|size| SegmentStats { size, ..SegmentStats::default() });
        let (graphs, stats) = (Graphs::default(), PoolStats::default());
        let (peak_reserved, ledger, imported) = (0, Ledger::default(), MemoryUse::default());
        let (failures, unlisted) = (Vec::new(), 0);
        let state = State {
            arenas,
            segments,
            graphs,
            stats,
            peak_reserved,
            ledger,
            imported,
            limit,
            failures,
            unlisted,
        };
        let state = Mutex::new(state);
        Self {
            backing,
            state,
            pooled,
            split,
            clearing: Mutex::new(()),
            allowed: AtomicU64::new(ANY),
            failing: AtomicU64::new(0),
        }
    }

    /// The pool's statistics so far.
    pub fn stats(&self) -> PoolStats {
        self.state().stats
    }

    /// The segments that the pool cuts into blocks: for small blocks, for large ones, for uploads,
    /// and for [persistent allocations](Self::persistently). A block that has a segment of its own
    /// is not counted.
    pub fn segments(&self) -> Vec<SegmentStats> {
        self.state().segments[..WHOLE].to_vec()
    }

    /// Sums over the pool's memory, also by size, label, thread and op. The memory of a captured
    /// graph counts as the blocks that the graph is made of, under the label of the capture.
    pub fn summary(&self) -> MemorySummary {
        let managed = self.backing.managed();
        let state = self.state();
        let State { arenas, stats, ledger, .. } = &*state;
        let free = || arenas.iter().flat_map(Arena::free_blocks);
        MemorySummary {
            allocated: ledger.all(),
            reserved: stats.reserved,
            peak_reserved: state.peak_reserved,
            managed,
            imported: state.imported,
            padding: stats.padding,
            free: free().sum(),
            largest_free: free().max().unwrap_or(0),
            classes: ledger.classes(),
            labels: ledger.labels(),
            threads: ledger.threads(),
            ops: ledger.ops(),
        }
    }

    /// Every block in use.
    pub fn snapshot(&self) -> MemorySnapshot {
        let state = self.state();
        let PoolStats { allocated, reserved, .. } = state.stats;
        MemorySnapshot { allocated, reserved, imported: state.imported, blocks: state.ledger.blocks() }
    }

    /// Counts memory that another library owns and a tensor uses.
    pub(crate) fn import(&self, bytes: usize) {
        self.state().imported.add(bytes);
    }

    /// Counts the end of such a use.
    pub(crate) fn end_import(&self, bytes: usize) {
        self.state().imported.remove(bytes);
    }

    pub(crate) fn free_and_total(&self) -> Result<(usize, usize)> {
        self.backing.free_and_total()
    }

    /// The bytes that are managed memory.
    pub(crate) fn managed(&self) -> usize {
        self.backing.managed()
    }

    /// Runs `body`, and records the blocks that all threads allocate and free meanwhile. Records may
    /// overlap. If `body` panics, so does this function.
    pub fn record<T>(&self, body: impl FnOnce() -> T) -> (T, MemoryRecord) {
        /// Ends the record if the body panics.
        struct Ends<'a> {
            pool: &'a MemoryPool,
            start: Start,
            ended: bool,
        }
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                if !self.ended {
                    self.pool.state().ledger.end_record(&self.start);
                }
            }
        }
        let start = self.state().ledger.begin_record();
        let mut ends = Ends { pool: self, start, ended: false };
        let result = body();
        ends.ended = true;
        let end = self.state().ledger.end_record(&ends.start);
        (result, ledger::record(&ends.start, &end))
    }

    /// Limits how many bytes the pool may hold from the driver; `None` means no limit. If the pool
    /// already holds more, it keeps them.
    pub fn set_limit(&self, bytes: Option<usize>) {
        self.state().limit = bytes;
    }

    /// For tests of what programs do when memory runs out. After this many more allocations, by any
    /// thread, each one fails with `OutOfMemory`; `None` ends this.
    #[doc(hidden)]
    pub fn fail_after(&self, allocations: impl Into<Option<u64>>) {
        // Relaxed: the number publishes no other data.
        self.allowed.store(allocations.into().unwrap_or(ANY), Ordering::Relaxed);
    }

    /// For tests too. The next allocations, so many, fail with `OutOfMemory`.
    #[doc(hidden)]
    pub fn fail_next(&self, allocations: u64) {
        // Relaxed, as above.
        self.failing.store(allocations, Ordering::Relaxed);
    }

    /// Counts an allocation, and says whether a test makes it fail.
    fn is_to_fail(&self) -> bool {
        let number = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let one_less = |allowed| (allowed != ANY).then(|| u64::saturating_sub(allowed, 1));
        let relaxed = Ordering::Relaxed;
        number(&self.allowed) != ANY && self.allowed.fetch_update(relaxed, relaxed, one_less) == Ok(0)
            || number(&self.failing) > 0
                && self.failing.fetch_update(relaxed, relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// The most bytes that the pool may hold from the driver; `None` is no limit.
    pub fn limit(&self) -> Option<usize> {
        self.state().limit
    }

    /// Sets every peak to the bytes in use, or held from the driver, now.
    pub fn reset_peak(&self) {
        let mut state = self.state();
        state.stats.peak = state.stats.allocated;
        state.peak_reserved = state.stats.reserved;
        state.imported.peak = state.imported.bytes;
        state.ledger.reset_peaks();
    }

    /// Waits for the device, then gives every segment without a block in use back to the driver.
    /// Returns the bytes given back.
    ///
    /// If another thread is in this function, this call waits for that thread first.
    ///
    /// # Errors
    ///
    /// `Device` if HIP fails.
    pub fn clear(&self) -> Result<usize> {
        // Held to the end. Otherwise a second thread would find neither free segments nor free
        // memory, and report out of memory.
        let _one_at_a_time = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        // Segments are removed under the lock and freed outside it, because waiting and hipFree may
        // take long.
        let mut state = self.state();
        let State { arenas, segments, stats, .. } = &mut *state;
        let mut removed = Vec::new();
        for (arena, (free, cut)) in arenas.iter_mut().zip(segments).enumerate() {
            let free = free.remove_free_segments();
            cut.held -= free.iter().filter(|(_, size)| *size == cut.size).count() as u64;
            if arena == PERSISTENT {
                stats.persistent_reserved -= free.iter().map(|(_, size)| size).sum::<usize>();
            }
            removed.extend(free);
        }
        drop(state);
        if removed.is_empty() {
            return Ok(0);
        }
        let waited = self.backing.wait();
        let mut bytes = 0;
        for (address, size) in removed {
            self.backing.release(address);
            bytes += size;
        }
        self.state().stats.reserved -= bytes;
        waited?;
        Ok(bytes)
    }

    /// Runs `body`, whose allocations on this thread come from segments of their own. Only other
    /// persistent allocations reuse that memory. So long-lived buffers, such as parameters, do not
    /// fragment the memory of short-lived ones.
    pub fn persistently<T>(&self, body: impl FnOnce() -> T) -> T {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                PERSISTENTLY.with_borrow_mut(|pools| pools.pop());
            }
        }
        PERSISTENTLY.with_borrow_mut(|pools| pools.push(std::ptr::from_ref(self).addr()));
        let _leave = Leave;
        body()
    }

    fn is_persistent(&self) -> bool {
        // `try_with` fails only when the thread is ending and its values are gone.
        PERSISTENTLY
            .try_with(|pools| pools.borrow().contains(&std::ptr::from_ref(self).addr()))
            .unwrap_or(false)
    }

    pub(crate) fn allocate(&self, bytes: usize, purpose: Purpose) -> Result<PoolBlock> {
        let size = match rounded(bytes) {
            Some(size) if !self.is_to_fail() => size,
            _ => return Err(self.out_of_memory(bytes)),
        };
        let arena = match purpose {
            Purpose::Captured => return self.allocate_captured(bytes, size),
            _ if self.is_persistent() => PERSISTENT,
            Purpose::Compute if size > self.split => WHOLE,
            Purpose::Compute => usize::from(size > SMALL),
            Purpose::Transfer => TRANSFER,
        };
        self.allocate_in(arena, bytes, size)
    }

    fn allocate_in(&self, arena: usize, bytes: usize, size: usize) -> Result<PoolBlock> {
        let mut state = self.state();
        if let Some(taken) = self.pooled.then(|| state.take(arena, size)).flatten() {
            state.stats.hits += 1;
            return Ok(state.hand_out(taken, arena, bytes));
        }
        state.stats.misses += 1;
        let captures = state.graphs.captures();
        drop(state);
        // A capture forbids to wait for the device.
        if !self.pooled && !captures {
            self.clear()?;
        }
        let segment = if self.pooled { SEGMENTS[arena].max(size) } else { size };
        let (address, segment) = match self.new_segment(segment, bytes)? {
            Some(address) => (address, segment),
            None => self.squeeze(bytes, size)?,
        };
        let mut state = self.state();
        if arena == PERSISTENT {
            state.stats.persistent_reserved += segment;
        }
        let taken = state.arenas[arena].add_segment(address, segment, size);
        if segment == SEGMENTS[arena] {
            let segments = &mut state.segments[arena];
            segments.held += 1;
            segments.peak = segments.peak.max(segments.held);
        }
        Ok(state.hand_out(taken, arena, bytes))
    }

    /// Frees a block, once no graph holds it. The next block from the same memory carries `fence`.
    pub(crate) fn free(&self, block: PoolBlock, fence: u64) {
        let mut state = self.state();
        if let Some(block) = state.graphs.keep(block, fence) {
            state.free(block, fence);
        }
    }

    /// Asks the driver for a segment; `None` if it has too little memory or the limit forbids it.
    /// The lock is not held meanwhile, so that other threads can continue. The bytes are counted
    /// beforehand, so that all threads together stay below the limit.
    fn new_segment(&self, bytes: usize, requested: usize) -> Result<Option<usize>> {
        {
            let mut state = self.state();
            let reserved = state.stats.reserved.saturating_add(bytes);
            if state.limit.is_some_and(|limit| reserved > limit) {
                return Ok(None);
            }
            state.stats.reserved = reserved;
        }
        // Without pooling, the driver gets the request as it is, so that a memory checker sees its
        // bounds.
        let address = self.backing.allocate(if self.pooled { bytes } else { requested.max(1) });
        let mut state = self.state();
        match address {
            Ok(Some(_)) => state.peak_reserved = state.peak_reserved.max(state.stats.reserved),
            _ => state.stats.reserved -= bytes,
        }
        drop(state);
        address
    }

    /// A segment of exactly `size` bytes. If there is too little memory, gives back all cached
    /// segments and tries again.
    fn squeeze(&self, requested: usize, size: usize) -> Result<(usize, usize)> {
        if let Some(address) = self.new_segment(size, requested)? {
            return Ok((address, size));
        }
        self.clear()?;
        match self.new_segment(size, requested)? {
            Some(address) => Ok((address, size)),
            None => Err(self.out_of_memory(requested)),
        }
    }

    /// The error of the first allocation that has failed so far and that nobody made up for.
    pub fn failure(&self) -> Option<Error> {
        self.state().failures.first().map(|(_, error)| error.clone())
    }

    /// Takes the calling thread's last `failed` failures off the list, because it works without
    /// these allocations.
    #[doc(hidden)]
    pub fn made_up_for(&self, failed: u64) {
        let mut state = self.state();
        let State { failures, unlisted, .. } = &mut *state;
        let unnamed = failed.min(*unlisted);
        *unlisted -= unnamed;
        let thread = thread_number();
        for _ in unnamed..failed {
            let Some(last) = failures.iter().rposition(|(of, _)| *of == thread) else { return };
            failures.remove(last);
        }
    }

    fn out_of_memory(&self, requested: usize) -> Error {
        let (free, total) = self.backing.free_and_total().unwrap_or((0, 0));
        let mut state = self.state();
        let limit = state.limit.filter(|&limit| limit < total);
        let held = state.held(requested, limit);
        let error = match limit {
            Some(limit) => Error::OutOfMemory {
                requested,
                free: limit.saturating_sub(state.stats.reserved).min(free),
                total: limit,
                held,
            },
            None => Error::OutOfMemory { requested, free, total, held },
        };
        match state.failures.len() < FAILURES {
            true => state.failures.push((thread_number(), error.clone())),
            false => state.unlisted += 1,
        }
        error
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock (a block freed twice) leaves the lists as they were before it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A free block of an arena.
    fn take(&mut self, arena: usize, size: usize) -> Option<Taken> {
        match arena {
            // Memory that is not split is wasted if it is much larger than the request.
            WHOLE => self.arenas[WHOLE].take_whole(size, size + size / 8),
            _ => self.arenas[arena].take(size),
        }
    }

    /// What holds the memory, and what to do, for the error of a failed allocation.
    fn held(&self, requested: usize, limit: Option<usize>) -> String {
        let mut text = self.ledger.blame();
        let free = || self.arenas.iter().flat_map(Arena::free_blocks);
        let bytes: usize = free().sum();
        if bytes >= requested {
            let largest = free().max().unwrap_or(0);
            text += &format!(
                "; {} are free between blocks in use, at most {} in one piece",
                bytes_of(bytes),
                bytes_of(largest)
            );
        }
        if let Some(limit) = limit {
            text += &format!(
                "; the pool's limit is {} (BURN_ROCM_MEMORY_LIMIT, BURN_ROCM_MEMORY_PERCENT)",
                bytes_of(limit)
            );
        }
        text + "; drop tensors, lower the batch size, or see docs/guide/memory.md"
    }

    fn hand_out(&mut self, taken: Taken, arena: usize, requested: usize) -> PoolBlock {
        self.stats.allocated += taken.size;
        self.stats.blocks += 1;
        self.stats.padding += taken.size - requested;
        self.stats.peak = self.stats.peak.max(self.stats.allocated);
        if arena == PERSISTENT {
            self.stats.persistent += taken.size;
        }
        if requested <= SEGMENTS[arena] {
            let largest = &mut self.segments[arena].largest;
            *largest = (*largest).max(requested);
        }
        let entry = self.ledger.add(taken.size, requested);
        PoolBlock { address: taken.address, fence: taken.fence, arena, id: taken.id, requested, entry }
    }

    fn free(&mut self, block: PoolBlock, fence: u64) {
        if block.arena >= ARENAS {
            return self.free_captured(block);
        }
        let size = self.arenas[block.arena].free(block.id, fence);
        self.stats.allocated -= size;
        self.stats.blocks -= 1;
        self.stats.padding -= size - block.requested;
        self.ledger.remove(block.entry);
        if block.arena == PERSISTENT {
            self.stats.persistent -= size;
        }
    }
}
