//! Pinned host memory, which the device's copy engine accesses directly. Events say when a block is
//! free again.

#[cfg(all(test, feature = "cpu"))]
mod tests;

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

    /// Bytes of the blocks that callers gave back.
    fn held_host(&self) -> usize {
        self.free_host.iter().map(|block| block.size).sum()
    }

    /// Keeps a caller's block for the next caller. Returns it if that would be too much.
    fn keep_host(&mut self, block: PinnedBlock) -> Option<PinnedBlock> {
        self.used_host.retain(|&(address, _)| address != block.address() as usize);
        if self.held_host() + block.size > MOST_HOST {
            return Some(block);
        }
        self.free_host.push(block);
        None
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
        let refused = self.state().keep_host(block);
        // Outside the lock, because hipHostFree may wait for the device.
        drop(refused);
    }

    /// Keeps a block for a caller of each of these sizes, all at the same time. Pins what is not
    /// there yet. Frees kept blocks of other sizes, those given back first, if together they are
    /// too much to keep.
    ///
    /// # Errors
    /// `Invalid` if the blocks are too much to keep; `Device` if the host can't pin that much
    /// memory.
    pub(crate) fn reserve_host(&self, sizes: &[usize]) -> Result<()> {
        let total = sizes.iter().try_fold(0, |sum: usize, &bytes| sum.checked_add(host_size(bytes)));
        if total.is_none_or(|total| total > MOST_HOST) {
            let expected = format!("blocks of at most {MOST_HOST} bytes, each rounded up to a power of two");
            let found = total.map_or("more".into(), |total| format!("{total} bytes"));
            return Err(Error::invalid("warm_up_pinned", expected, found));
        }
        // Held together, so that no two sizes count the same block.
        let mut blocks = Vec::with_capacity(sizes.len());
        let pinned = sizes.iter().try_for_each(|&bytes| {
            blocks.push(self.take_host_block(bytes)?);
            Ok(())
        });
        let room = MOST_HOST - blocks.iter().map(|block| block.size).sum::<usize>();
        let mut over = Vec::new();
        let mut state = self.state();
        while state.held_host() > room {
            over.push(state.free_host.remove(0));
        }
        over.extend(blocks.into_iter().filter_map(|block| state.keep_host(block)));
        drop(state);
        drop(over);
        pinned
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
