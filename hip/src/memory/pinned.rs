//! Pinned host memory, which the device's copy engine accesses directly. Events say when a block is
//! free again.

use std::collections::VecDeque;
use std::ffi::c_uint;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::context::{Context, count};
use crate::device::event::Event;
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::profile::work::{Load, WorkKind};
use crate::trace;

/// Uploads and reads up to this many bytes use the compute stream. Such copies take less time than
/// the events that a second stream would need.
pub(crate) const SMALL: usize = 64 << 10;
/// Small uploads fill a page of this size before one event is recorded for all of them.
const PAGE: usize = 1 << 20;
/// Larger copies are split into chunks, so that the host fills one while the device copies another.
pub(crate) const CHUNK: usize = 4 << 20;
/// At most this many bytes of blocks that callers freed are kept for the next caller.
const MOST_HOST: usize = 256 << 20;
/// Above this many bytes of chunks, an upload waits for a chunk in flight instead of pinning
/// another.
const MOST: usize = 64 << 20;

/// A block of pinned host memory.
pub(crate) struct PinnedBlock {
    context: Arc<Context>,
    address: NonNull<u8>,
    size: usize,
}

// SAFETY: it is plain memory that the block owns, and HIP lets every thread use it.
unsafe impl Send for PinnedBlock {}
// SAFETY: shared access only reads the address.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    /// Memory for copies. The host sees the device's writes after a wait for
    /// [`Stream::mark_for_host`]'s event or for the stream.
    pub(crate) fn new(context: &Arc<Context>, size: usize) -> Result<Self> {
        Self::allocate(context, size, hip_sys::hipHostMallocPortable)
    }

    /// Memory for words that kernels write and the host reads. The device does not cache it, so
    /// both see the same contents at any time, but copies are slow ("Coherence control" in AMD's
    /// HIP documentation).
    pub(crate) fn coherent(context: &Arc<Context>, size: usize) -> Result<Self> {
        Self::allocate(context, size, hip_sys::hipHostMallocPortable | hip_sys::hipHostMallocCoherent)
    }

    fn allocate(context: &Arc<Context>, size: usize, flags: c_uint) -> Result<Self> {
        context.bind()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the function is HIP's; it writes one pointer.
        let status = unsafe { (context.hip().hipHostMalloc)(&mut address, size, flags) };
        context.check("hipHostMalloc", status)?;
        match NonNull::new(address.cast::<u8>()) {
            Some(address) => {
                // SAFETY: HIP gave `size` bytes at this address. Rust requires initialised bytes,
                // so they are zeroed.
                unsafe { address.as_ptr().write_bytes(0, size) };
                Ok(Self { context: context.clone(), address, size })
            }
            None => Err(Error::Device {
                call: "hipHostMalloc",
                code: 0,
                name: "hipSuccess".into(),
                message: format!("no address for {size} bytes of pinned host memory"),
            }),
        }
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// The bytes, to be read.
    pub(crate) fn shared(&self) -> &[u8] {
        // SAFETY: the block owns `size` initialised bytes.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.size) }
    }

    /// The bytes, while no copy uses them.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block owns `size` initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.size) }
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        // SAFETY: the function is HIP's; the address is what hipHostMalloc gave, and no copy uses
        // it any more, because blocks in flight stay in `Staging` until their event has passed.
        let status = unsafe { (self.context.hip().hipHostFree)(self.address.as_ptr().cast()) };
        self.context.record_status("hipHostFree", status);
    }
}

/// A device's pinned blocks.
pub(crate) struct Staging {
    context: Arc<Context>,
    state: Mutex<State>,
}

struct State {
    /// The page that small uploads fill, and how much of it is filled.
    page: Option<(PinnedBlock, usize)>,
    /// Full pages and the events after their last copies, oldest first.
    full_pages: VecDeque<(PinnedBlock, Event)>,
    /// Chunks and the events after their copies, oldest first.
    in_flight: VecDeque<(PinnedBlock, Event)>,
    free_pages: Vec<PinnedBlock>,
    free_chunks: Vec<PinnedBlock>,
    chunks: usize,
    /// Blocks that callers gave back, and the addresses and sizes of the blocks that callers have.
    free_host: Vec<PinnedBlock>,
    used_host: Vec<(usize, usize)>,
    /// The owners of memory that copies read directly, and the events after these copies, oldest
    /// first.
    kept: VecDeque<(Box<dyn Send>, Event)>,
}

impl State {
    /// Takes back the pages and chunks whose copies have finished.
    fn collect(&mut self) {
        let over = |(_, event): &(PinnedBlock, Event)| event.query().unwrap_or(false);
        while self.full_pages.front().is_some_and(over) {
            self.free_pages.extend(self.full_pages.pop_front().map(|(page, _)| page));
        }
        while self.in_flight.front().is_some_and(over) {
            self.free_chunks.extend(self.in_flight.pop_front().map(|(chunk, _)| chunk));
        }
    }

    /// Takes out all blocks that no copy uses.
    fn take_free(&mut self) -> Vec<PinnedBlock> {
        self.collect();
        let mut free = std::mem::take(&mut self.free_chunks);
        self.chunks -= free.len();
        free.append(&mut self.free_host);
        free.append(&mut self.free_pages);
        free
    }
}

/// New pinned memory. If the host can pin no more, calls `give_back`, which frees cached blocks and
/// returns their bytes, and tries again.
fn pin(context: &Arc<Context>, size: usize, give_back: impl FnOnce() -> usize) -> Result<PinnedBlock> {
    const FULL: i32 = hip_sys::hipErrorOutOfMemory as i32;
    let full = |error: &Error| matches!(error, Error::Device { code: FULL, .. });
    match PinnedBlock::new(context, size) {
        Err(error) if full(&error) && give_back() > 0 => PinnedBlock::new(context, size),
        result => result,
    }
}

/// Frees blocks and returns their bytes.
fn freed(blocks: Vec<PinnedBlock>) -> usize {
    blocks.iter().map(|block| block.size).sum()
}

/// The size of a caller's block: a power of two, so that the block fits later requests, or exactly
/// `bytes` if it is too large to be kept.
fn host_size(bytes: usize) -> usize {
    match bytes.max(SMALL).checked_next_power_of_two() {
        Some(size) if size <= MOST_HOST => size,
        _ => bytes,
    }
}

impl Staging {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: context.clone(),
            state: Mutex::new(State {
                page: None,
                full_pages: VecDeque::new(),
                in_flight: VecDeque::new(),
                free_pages: Vec::new(),
                free_chunks: Vec::new(),
                chunks: 0,
                free_host: Vec::new(),
                used_host: Vec::new(),
                kept: VecDeque::new(),
            }),
        }
    }

    /// Copies up to [`SMALL`] bytes to the device on the compute stream.
    ///
    /// # Safety
    /// The device memory at `destination` holds as many bytes.
    pub(crate) unsafe fn upload_small(
        &self,
        stream: &Stream,
        destination: usize,
        bytes: &[u8],
    ) -> Result<()> {
        debug_assert!(bytes.len() <= SMALL);
        self.context.bind()?;
        // Held until the copy is enqueued, because the page's event must come after the copy.
        let mut state = self.state();
        let room = state.page.as_ref().is_some_and(|(_, used)| used + bytes.len() <= PAGE);
        if !room {
            if state.page.is_some() {
                // Recorded before `take`, because without an event after its copies the page must
                // not be freed.
                let event = stream.mark()?;
                let page = state.page.take();
                state.full_pages.extend(page.map(|(page, _)| (page, event)));
            }
            state.collect();
            let page = match state.free_pages.pop() {
                Some(page) => page,
                // This frees blocks under the lock, but only if no memory is left.
                None => pin(&self.context, PAGE, || freed(state.take_free()))?,
            };
            state.page = Some((page, 0));
        }
        let Some((page, used)) = &mut state.page else { unreachable!("filled above") };
        let at = *used;
        // The next copy starts at a multiple of 64 bytes, an alignment that suits every copy
        // engine.
        *used = (at + bytes.len()).next_multiple_of(64);
        // SAFETY: `at..at + bytes.len()` is inside the page, and no copy in flight uses that part.
        let source = unsafe {
            let source = page.address().add(at);
            source.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            source
        };
        // SAFETY: the source stays until the page's event has passed; the caller vouches for the
        // destination.
        unsafe { self.copy_to_device(stream, destination, source, bytes.len()) }
    }

    /// Copies any number of bytes to the device on `stream`, the copy stream, through chunks.
    ///
    /// # Safety
    /// The device memory at `destination` holds as many bytes.
    pub(crate) unsafe fn upload_large(
        &self,
        stream: &Stream,
        destination: usize,
        bytes: &[u8],
    ) -> Result<()> {
        for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
            let mut block = self.take_chunk()?;
            block.bytes()[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: the block goes into the queue with the event after the copy; the caller
            // vouches for the destination.
            let copied = unsafe {
                self.copy_to_device(stream, destination + index * CHUNK, block.address(), chunk.len())
            };
            let event = copied.and_then(|()| stream.mark());
            match event {
                Ok(event) => self.state().in_flight.push_back((block, event)),
                Err(error) => {
                    // Without an event the host can't know when the copy has finished, so it waits
                    // before the block is freed.
                    let _ = stream.synchronize();
                    self.give_chunk(block);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// Both addresses hold `bytes` bytes; the source lives until the copy has finished.
    pub(crate) unsafe fn copy_to_device(
        &self,
        stream: &Stream,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        count(&self.context.counters.host_to_device);
        trace::served(WorkKind::Transfer, || "copy to the device");
        let handle = stream.raw();
        let timed = stream.begin_work();
        // SAFETY: the function is HIP's; the caller vouches for the addresses.
        let status = unsafe {
            (self.context.hip().hipMemcpyAsync)(
                destination as *mut _,
                source.cast(),
                bytes,
                hip_sys::hipMemcpyHostToDevice,
                handle,
            )
        };
        self.context.check("hipMemcpyAsync", status)?;
        stream.end_work(timed, WorkKind::Transfer, || "copy to the device", Load::bytes(bytes));
        Ok(())
    }

    /// A block of [`CHUNK`] bytes that no copy uses.
    pub(crate) fn take_chunk(&self) -> Result<PinnedBlock> {
        let mut state = self.state();
        state.collect();
        if let Some(chunk) = state.free_chunks.pop() {
            return Ok(chunk);
        }
        if state.chunks * CHUNK >= MOST
            && let Some((chunk, event)) = state.in_flight.pop_front()
        {
            drop(state);
            return match event.synchronize() {
                Ok(()) => Ok(chunk),
                Err(error) => {
                    self.give_chunk(chunk);
                    Err(error)
                }
            };
        }
        state.chunks += 1;
        drop(state);
        pin(&self.context, CHUNK, || self.clear()).inspect_err(|_| self.state().chunks -= 1)
    }

    /// `count` blocks of [`CHUNK`] bytes that no copy uses, or none.
    pub(crate) fn take_chunks(&self, count: usize) -> Result<Vec<PinnedBlock>> {
        let mut chunks = Vec::with_capacity(count);
        for _ in 0..count {
            match self.take_chunk() {
                Ok(chunk) => chunks.push(chunk),
                Err(error) => {
                    // `chunks` already counts them, so they are kept for the next caller.
                    self.state().free_chunks.extend(chunks);
                    return Err(error);
                }
            }
        }
        Ok(chunks)
    }

    /// Gives back a block that no copy uses.
    pub(crate) fn give_chunk(&self, block: PinnedBlock) {
        self.state().free_chunks.push(block);
    }

    /// A block of at least `bytes` bytes for a caller.
    pub(crate) fn take_host_block(&self, bytes: usize) -> Result<PinnedBlock> {
        self.drop_kept();
        let size = host_size(bytes);
        let found = {
            let mut state = self.state();
            let at = state.free_host.iter().position(|block| block.size == size);
            at.map(|at| state.free_host.swap_remove(at))
        };
        let block = match found {
            Some(block) => block,
            None => pin(&self.context, size, || self.clear())?,
        };
        self.state().used_host.push((block.address() as usize, block.size));
        Ok(block)
    }

    /// Takes back a caller's block.
    pub(crate) fn give_host_block(&self, block: PinnedBlock) {
        let mut state = self.state();
        state.used_host.retain(|&(address, _)| address != block.address() as usize);
        let held: usize = state.free_host.iter().map(|block| block.size).sum();
        if held + block.size <= MOST_HOST {
            state.free_host.push(block);
            return;
        }
        // Outside the lock, because hipHostFree may wait for the device.
        drop(state);
        drop(block);
    }

    /// Whether the bytes lie in a caller's block.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr() as usize;
        let blocks = &self.state().used_host;
        blocks.iter().any(|&(address, size)| start >= address && start + bytes.len() <= address + size)
    }

    /// Keeps the owner of memory that a copy reads until the stream has passed the event after the
    /// copy.
    pub(crate) fn keep(&self, owner: Box<dyn Send>, event: Event) {
        self.state().kept.push_back((owner, event));
        self.drop_kept();
    }

    /// Drops the owners of memory that no copy reads any more.
    fn drop_kept(&self) {
        let mut over = Vec::new();
        let mut state = self.state();
        while state.kept.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
            over.extend(state.kept.pop_front());
        }
        // Unlock before the owners drop, as they may give blocks back.
        drop(state);
    }

    /// Frees the blocks that no copy uses, and returns their bytes.
    pub(crate) fn clear(&self) -> usize {
        self.drop_kept();
        let free = self.state().take_free();
        // Outside the lock, because hipHostFree may wait for the device.
        freed(free)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::memory::transfer::Read;
    use crate::provider::Provider;
    use hip_sys::*;
    use std::cell::{Cell, RefCell};
    use std::ffi::c_void;

    thread_local! {
        /// The arguments of each `hipHostMalloc` call.
        static ASKED: RefCell<Vec<(usize, c_uint)>> = const { RefCell::new(Vec::new()) };
        /// The number of live pinned blocks, and its limit.
        static LIVE: Cell<usize> = const { Cell::new(0) };
        static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
        /// Once there are more live pinned blocks than this, device memory runs out.
        static SHARED: Cell<usize> = const { Cell::new(usize::MAX) };
        /// The flags of each event, and of each event that the host waited for.
        static EVENTS: RefCell<Vec<(usize, c_uint)>> = const { RefCell::new(Vec::new()) };
        static WAITED: RefCell<Vec<c_uint>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn host_malloc(to: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t {
        ASKED.with_borrow_mut(|asked| asked.push((size, flags)));
        if LIVE.get() >= ROOM.get() {
            return hipErrorOutOfMemory;
        }
        LIVE.set(LIVE.get() + 1);
        // SAFETY: the caller's.
        unsafe { (hip_cpu::hip_table().hipHostMalloc)(to, size, flags) }
    }

    unsafe extern "C" fn host_free(address: *mut c_void) -> hipError_t {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: the caller's.
        unsafe { (hip_cpu::hip_table().hipHostFree)(address) }
    }

    unsafe extern "C" fn malloc(to: *mut *mut c_void, size: usize) -> hipError_t {
        if LIVE.get() > SHARED.get() {
            return hipErrorOutOfMemory;
        }
        // SAFETY: the caller's.
        unsafe { (hip_cpu::hip_table().hipMalloc)(to, size) }
    }

    unsafe extern "C" fn event_create(event: *mut hipEvent_t, flags: c_uint) -> hipError_t {
        // SAFETY: the caller's.
        unsafe {
            let status = (hip_cpu::hip_table().hipEventCreateWithFlags)(event, flags);
            EVENTS.with_borrow_mut(|events| events.push((*event as usize, flags)));
            status
        }
    }

    unsafe extern "C" fn event_wait(event: hipEvent_t) -> hipError_t {
        let flags = EVENTS.with_borrow(|events| events.iter().find(|(e, _)| *e == event as usize).copied());
        WAITED.with_borrow_mut(|waited| waited.extend(flags.map(|(_, flags)| flags)));
        // SAFETY: the caller's.
        unsafe { (hip_cpu::hip_table().hipEventSynchronize)(event) }
    }

    fn provider() -> &'static Provider {
        Provider::altered(|hip| {
            hip.hipHostMalloc = host_malloc;
            hip.hipHostFree = host_free;
            hip.hipMalloc = malloc;
            hip.hipEventCreateWithFlags = event_create;
            hip.hipEventSynchronize = event_wait;
        })
    }

    fn staging() -> Staging {
        Staging::new(&Arc::new(Context::new(provider(), 0)))
    }

    #[test]
    fn a_large_block_is_as_large_as_asked_for() {
        let staging = staging();
        for (asked, pinned) in [(1, SMALL), (3 << 20, 4 << 20), (MOST_HOST, MOST_HOST)] {
            assert_eq!(staging.take_host_block(asked).unwrap().size, pinned);
        }
        let large = MOST_HOST + (1 << 20) + 1;
        assert_eq!(staging.take_host_block(large).unwrap().size, large);
        assert_eq!(host_size(33 << 30), 33 << 30);
        assert_eq!(host_size(usize::MAX), usize::MAX);
    }

    #[test]
    fn memory_that_is_kept_goes_back_before_a_failure_is_reported() {
        let staging = staging();
        ROOM.set(3);
        let kept: Vec<_> = (0..3).map(|_| staging.take_host_block(SMALL).unwrap()).collect();
        let refused = staging.take_host_block(SMALL);
        assert!(matches!(refused, Err(Error::Device { call: "hipHostMalloc", .. })), "nothing is kept yet");
        for block in kept {
            staging.give_host_block(block);
        }
        assert_eq!(LIVE.get(), 3);
        let larger = staging.take_host_block(4 * SMALL).expect("three blocks were free");
        assert_eq!((larger.size, LIVE.get()), (4 * SMALL, 1));
        staging.give_chunk(staging.take_chunk().unwrap());
        staging.give_chunk(staging.take_chunk().unwrap());
        assert_eq!(LIVE.get(), 2, "one block and one chunk");
        assert!(staging.take_host_block(8 * SMALL).is_ok());
        ROOM.set(usize::MAX);
    }

    #[test]
    fn pinned_memory_that_is_kept_goes_back_before_an_allocation_fails() {
        let device = Arc::new(Device::new(provider(), 0).unwrap());
        let in_use = LIVE.get();
        let chunk = device.staging.take_chunk().unwrap();
        SHARED.set(in_use);
        let refused = device.alloc(100 << 20);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "the chunk is in use");
        device.staging.give_chunk(chunk);
        assert_eq!(LIVE.get(), in_use + 1, "it is kept");
        assert!(device.alloc(100 << 20).is_ok());
        assert_eq!(LIVE.get(), in_use);
        SHARED.set(usize::MAX);
    }

    #[test]
    fn chunks_of_reads_that_fail_are_not_counted() {
        let device = Arc::new(Device::new(provider(), 0).unwrap());
        let buffer = device.alloc(10 * CHUNK).unwrap();
        let mut out = vec![0; 10 * CHUNK];
        // There is room for one more chunk. A read takes two, and a read of several buffers takes
        // ten.
        ROOM.set(LIVE.get() + 1);
        for _ in 0..20 {
            assert!(device.read(&buffer, 0, &mut out).is_err());
            assert!(device.read_all(vec![Read { buffer: &buffer, byte_offset: 0, out: &mut out }]).is_err());
        }
        let state = device.staging.state();
        assert_eq!((state.chunks, state.free_chunks.len()), (1, 1));
        drop(state);
        ROOM.set(usize::MAX);
        device.read(&buffer, 0, &mut out).unwrap();
    }

    #[test]
    fn what_the_device_writes_for_the_host_is_visible_to_it() {
        let device = Arc::new(Device::new(provider(), 0).unwrap());
        // Kernels write fault words directly, and nothing has to wait for them.
        let words = ASKED.take();
        assert!(!words.is_empty() && words.iter().all(|(_, flags)| flags & hipHostMallocCoherent != 0));
        let mut out = vec![0; 3 * CHUNK];
        let buffer = device.upload(&out).unwrap();
        device.read(&buffer, 0, &mut out[..100]).unwrap();
        device.read(&buffer, 0, &mut out).unwrap();
        device.read_all(vec![Read { buffer: &buffer, byte_offset: 0, out: &mut out }]).unwrap();
        let copies = ASKED.take();
        assert!(copies.iter().all(|(_, flags)| *flags == hipHostMallocPortable), "{copies:?}");
        let waited = WAITED.take();
        assert!(waited.len() >= 5, "{waited:?}");
        assert!(waited.iter().all(|flags| flags & hipEventReleaseToSystem != 0), "{waited:x?}");
        let ordering = EVENTS.with_borrow(|events| events.iter().filter(|(_, flags)| *flags == 2).count());
        assert!(ordering > 0, "streams wait for events without that fence");
    }
}
