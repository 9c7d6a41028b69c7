//! Pinned host memory: what the device's copy engine reads and writes by itself, recycled by events.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::{Context, count};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::stream::Stream;
use crate::trace;

/// Uploads and reads up to this many bytes go through the compute stream: shorter than the events that another stream would need.
pub(crate) const SMALL: usize = 64 << 10;
/// Small uploads fill a page of this size before one event is recorded for all of them.
const PAGE: usize = 1 << 20;
/// Larger copies go in chunks, so that filling one overlaps copying the one before.
pub(crate) const CHUNK: usize = 4 << 20;
/// Bytes of callers' blocks that are kept for the next caller.
const MOST_HOST: usize = 256 << 20;
/// Above this many pinned bytes a large upload waits for a chunk of its own to come back.
const MOST: usize = 64 << 20;

/// A block of pinned host memory.
pub(crate) struct PinnedBlock {
    context: Arc<Context>,
    address: NonNull<u8>,
    size: usize,
}

// SAFETY: it is plain memory, owned by the block, which HIP lets every thread use.
unsafe impl Send for PinnedBlock {}
// SAFETY: shared access only reads the address.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    pub(crate) fn new(context: &Arc<Context>, size: usize) -> Result<Self> {
        context.bind()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the function is HIP's; it writes one pointer.
        let status =
            unsafe { (context.hip().hipHostMalloc)(&mut address, size, hip_sys::hipHostMallocPortable) };
        context.check("hipHostMalloc", status)?;
        match NonNull::new(address.cast::<u8>()) {
            Some(address) => {
                // SAFETY: HIP gave `size` bytes at this address. Zeroed, so that they are initialised for Rust.
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
        // SAFETY: the function is HIP's; the address is what hipHostMalloc gave, and no copy uses it any more: blocks
        // wait in the staging's queue for their event.
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
    /// Full pages and the events behind their last copy, oldest first.
    full_pages: VecDeque<(PinnedBlock, Event)>,
    /// Chunks and the events behind their copy, oldest first.
    in_flight: VecDeque<(PinnedBlock, Event)>,
    free_pages: Vec<PinnedBlock>,
    free_chunks: Vec<PinnedBlock>,
    chunks: usize,
    /// Blocks that callers gave back, and the addresses and sizes of those that they have.
    free_host: Vec<PinnedBlock>,
    used_host: Vec<(usize, usize)>,
    /// What copies read that did not go through a block of ours, and the events behind them, oldest first.
    kept: VecDeque<(Box<dyn Send>, Event)>,
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
        // Held until the copy is enqueued: the page's event must come behind it.
        let mut state = self.state();
        let room = state.page.as_ref().is_some_and(|(_, used)| used + bytes.len() <= PAGE);
        if !room {
            if state.page.is_some() {
                // Before the page is taken: without an event behind its copies it must not be freed.
                let event = stream.mark()?;
                let page = state.page.take();
                state.full_pages.extend(page.map(|(page, _)| (page, event)));
            }
            while state.full_pages.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
                let page = state.full_pages.pop_front();
                state.free_pages.extend(page.map(|(page, _)| page));
            }
            let page = match state.free_pages.pop() {
                Some(page) => page,
                None => PinnedBlock::new(&self.context, PAGE)?,
            };
            state.page = Some((page, 0));
        }
        let Some((page, used)) = &mut state.page else { unreachable!("filled above") };
        let at = *used;
        // The next copy starts on a boundary that every copy engine likes.
        *used = (at + bytes.len()).next_multiple_of(64);
        // SAFETY: `at..at + bytes.len()` is inside the page, and no copy in flight uses that part.
        let source = unsafe {
            let source = page.address().add(at);
            source.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            source
        };
        // SAFETY: the source stays until the page's event has passed; the caller vouches for the destination.
        unsafe { self.copy_to_device(stream, destination, source, bytes.len()) }
    }

    /// Copies any number of bytes to the device on the copy stream, and returns the event behind them.
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
            // SAFETY: the block goes into the queue with the event behind the copy; the caller vouches for the destination.
            let copied = unsafe {
                self.copy_to_device(stream, destination + index * CHUNK, block.address(), chunk.len())
            };
            let event = copied.and_then(|()| stream.mark());
            match event {
                Ok(event) => self.state().in_flight.push_back((block, event)),
                Err(error) => {
                    // Without an event nobody knows when the copy is over: wait before the block is freed.
                    let _ = stream.synchronize();
                    self.give_chunk(block);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// Both addresses hold as many bytes; the source stays until the copy is over.
    pub(crate) unsafe fn copy_to_device(
        &self,
        stream: &Stream,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        count(&self.context.counters.host_to_device);
        trace::served(trace::Kind::Transfer, || "copy to the device");
        // SAFETY: the function is HIP's; the caller vouches for the addresses.
        let status = unsafe {
            (self.context.hip().hipMemcpyAsync)(
                destination as *mut _,
                source.cast(),
                bytes,
                hip_sys::hipMemcpyHostToDevice,
                stream.raw(),
            )
        };
        self.context.check("hipMemcpyAsync", status)
    }

    /// A block of [`CHUNK`] bytes that no copy uses.
    pub(crate) fn take_chunk(&self) -> Result<PinnedBlock> {
        let mut state = self.state();
        while state.in_flight.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
            let chunk = state.in_flight.pop_front();
            state.free_chunks.extend(chunk.map(|(chunk, _)| chunk));
        }
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
        PinnedBlock::new(&self.context, CHUNK).inspect_err(|_| self.state().chunks -= 1)
    }

    /// Gives back a block that no copy uses.
    pub(crate) fn give_chunk(&self, block: PinnedBlock) {
        self.state().free_chunks.push(block);
    }

    /// A block of at least so many bytes for a caller.
    pub(crate) fn take_host_block(&self, bytes: usize) -> Result<PinnedBlock> {
        self.drop_kept();
        // Few sizes, so that a block fits the next request too.
        let size = bytes.max(SMALL).checked_next_power_of_two().unwrap_or(bytes);
        let found = {
            let mut state = self.state();
            let at = state.free_host.iter().position(|block| block.size == size);
            at.map(|at| state.free_host.swap_remove(at))
        };
        let block = match found {
            Some(block) => block,
            None => PinnedBlock::new(&self.context, size)?,
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
        // hipHostFree may wait for the device: not under the lock.
        drop(state);
        drop(block);
    }

    /// Whether the bytes lie in a caller's block.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr() as usize;
        let blocks = &self.state().used_host;
        blocks.iter().any(|&(address, size)| start >= address && start + bytes.len() <= address + size)
    }

    /// Keeps what a copy reads until the event behind it has passed.
    pub(crate) fn keep(&self, owner: Box<dyn Send>, event: Event) {
        self.state().kept.push_back((owner, event));
        self.drop_kept();
    }

    /// Drops what no copy reads any more.
    fn drop_kept(&self) {
        let mut over = Vec::new();
        let mut state = self.state();
        while state.kept.front().is_some_and(|(_, event)| event.query().unwrap_or(false)) {
            over.extend(state.kept.pop_front());
        }
        // Owners may give blocks back.
        drop(state);
    }

    /// Frees the blocks that no copy uses.
    pub(crate) fn clear(&self) {
        self.drop_kept();
        let mut state = self.state();
        let host = std::mem::take(&mut state.free_host);
        let chunks = std::mem::take(&mut state.free_chunks);
        let pages = std::mem::take(&mut state.free_pages);
        state.chunks -= chunks.len();
        drop(state);
        drop((chunks, pages, host));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
