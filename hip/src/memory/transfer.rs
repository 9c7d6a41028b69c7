//! Copies to a device, from it, within it and between two devices.

use std::sync::{Arc, PoisonError};

use crate::device::Device;
use crate::device::context::count;
use crate::device::event::Event;
use crate::error::{Error, Result};
use crate::memory::buffer::{Buffer, carry_faults};
use crate::memory::pinned::{CHUNK, PinnedBlock, SMALL};
use crate::memory::pool::Purpose;
use crate::profile::work::{Load, WorkKind};
use crate::trace;

/// How many blocks a read of many ranges fills before it waits.
const WAVE: usize = (64 << 20) / CHUNK;

/// Why a read can't be captured.
const NOT_YET: &str = "captured work has not run yet";

/// Why a read from a dry device is refused.
const NO_VALUE: &str = "there is no value to read";

/// The names of copies in the trace and in profiles.
const TO_HOST: &str = "copy to the host";
const COPY: &str = "copy on the device";
const FROM_PEER: &str = "copy from another device";

/// One range of [`Device::read_all`]: `out.len()` bytes of a buffer from `byte_offset` on.
#[derive(Debug)]
pub struct Read<'a> {
    /// The source.
    pub buffer: &'a Buffer,
    /// The source's first byte.
    pub byte_offset: usize,
    /// The destination.
    pub out: &'a mut [u8],
}

/// A part of a read that lies in one pinned block.
struct Piece {
    read: usize,
    at: usize,
    bytes: usize,
    block: usize,
    offset: usize,
}

impl Piece {
    /// Lays the reads one after the other into blocks of [`CHUNK`] bytes, and cuts them where a
    /// block ends.
    fn cut(reads: &[Read<'_>]) -> Vec<Self> {
        let mut pieces = Vec::new();
        let mut filled = 0;
        for (read, Read { out, .. }) in reads.iter().enumerate() {
            let mut at = 0;
            while at < out.len() {
                let offset = filled % CHUNK;
                let bytes = (out.len() - at).min(CHUNK - offset);
                pieces.push(Self { read, at, bytes, block: filled / CHUNK, offset });
                at += bytes;
                filled += bytes;
            }
            // Aligns the next copy for the copy engines; `CHUNK` is a multiple of this alignment.
            filled = filled.next_multiple_of(64);
        }
        pieces
    }
}

/// Waits for the copies of [`Device::enqueue_pieces`], and moves the bytes on to where the reads want
/// them.
fn take_pieces(
    copied: &Event,
    pieces: &[Piece],
    reads: &mut [Read<'_>],
    chunks: &mut [PinnedBlock],
) -> Result<()> {
    copied.synchronize()?;
    // Visible by the event's `hipEventReleaseToSystem`, as in `read_small`.
    for piece in pieces {
        let from = &chunks[piece.block % WAVE].bytes()[piece.offset..][..piece.bytes];
        reads[piece.read].out[piece.at..][..piece.bytes].copy_from_slice(from);
    }
    Ok(())
}

impl Device {
    /// Copies bytes into a new buffer through pinned memory, normally without waiting for the
    /// device. Uploads of more than 64 KiB use the copy stream and overlap computation.
    ///
    /// If this thread captures a graph, the graph keeps a copy of the bytes, and each launch of the
    /// graph uploads them again.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`; `Device` if HIP fails.
    pub fn upload(self: &Arc<Self>, bytes: &[u8]) -> Result<Buffer> {
        if let Some(captured) = self.captures.here() {
            let mut copy = self.host_buffer(bytes.len())?;
            copy.bytes_mut().copy_from_slice(bytes);
            let source = copy.bytes().as_ptr();
            // SAFETY: the bytes are the copy's own, and moving the owner does not move them.
            return unsafe { self.upload_captured(captured, source, bytes.len(), copy) };
        }
        if bytes.len() <= SMALL {
            let buffer = self.alloc(bytes.len())?;
            if !bytes.is_empty() {
                // SAFETY: the buffer has just as many bytes.
                unsafe { self.staging.upload_small(&self.compute, buffer.address(), bytes)? };
            }
            return Ok(buffer);
        }
        let block = self.allocate(bytes.len(), Purpose::Transfer)?;
        let fence = block.fence;
        let buffer = Buffer::new(self.clone(), block, bytes.len());
        let queued = self.fences.wait(&self.copies, fence).and_then(|()| {
            // SAFETY: the buffer has as many bytes. The copy stream has waited for their last use
            // by the fence.
            unsafe { self.staging.upload_large(&self.copies, buffer.address(), bytes)? };
            self.compute.wait(&self.copies.mark()?)
        });
        self.joined(queued)?;
        Ok(buffer)
    }

    /// Writes up to 64 KiB into a buffer, in stream order, without waiting for the device. Others that
    /// share the buffer see the bytes too.
    ///
    /// # Errors
    /// `Invalid` for more bytes, a range past the end or a buffer of another device; `Capture` if
    /// this thread is capturing a graph; `Device` if HIP fails.
    pub fn write(&self, buffer: &Buffer, byte_offset: usize, bytes: &[u8]) -> Result<()> {
        self.check_range("write", buffer, byte_offset, bytes.len())?;
        self.refuse_captured("a write from the host", "a replay would write the same bytes again")?;
        if bytes.len() > SMALL {
            return Err(Error::invalid(
                "write",
                format!("at most {SMALL} bytes"),
                format!("{}", bytes.len()),
            ));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.compute.catch_up();
        // SAFETY: the buffer has the bytes, checked above.
        unsafe { self.staging.upload_small(&self.compute, buffer.address() + byte_offset, bytes)? };
        self.written(buffer, bytes.len());
        Ok(())
    }

    /// Returns `queued`, the result of enqueueing copies and the compute stream's wait for them. If
    /// it is an error, the compute stream may not wait for the copies. So the host waits here,
    /// before their memory goes back to the pool.
    pub(crate) fn joined(&self, queued: Result<()>) -> Result<()> {
        queued.inspect_err(|_| {
            if let Err(error) = self.copies.synchronize() {
                log::error!("copies that failed can't be waited for: {error}");
            }
        })
    }

    /// Copies `out.len()` bytes of a buffer, from `byte_offset` on, to the host, and waits for the
    /// copy. If a graph uses the memory, other threads' replays come before the read or after it.
    /// A [`Graph::replay`](crate::Graph::replay) waits while more than 64 MiB of such memory are
    /// read.
    ///
    /// # Errors
    /// `Invalid` for a range past the end or a buffer of another device. An error that `Drop`
    /// recorded, once. Every read also returns `Invalid` if a kernel found a fault while it
    /// computed the buffer or anything that the buffer was computed from. `Capture` if this thread
    /// is capturing a graph, or if another thread is capturing the work that computes the buffer.
    pub fn read(&self, buffer: &Buffer, byte_offset: usize, out: &mut [u8]) -> Result<()> {
        self.read_with_fault(buffer, byte_offset, out)?.map_or(Ok(()), Err)
    }

    /// As [`Device::read`], but copies the bytes even if there is a fault, and returns that fault
    /// as `Some`.
    pub fn read_with_fault(
        &self,
        buffer: &Buffer,
        byte_offset: usize,
        out: &mut [u8],
    ) -> Result<Option<Error>> {
        self.read_quietly(buffer, byte_offset, out)?;
        self.context.take_error()?;
        Ok(buffer.marks.fault())
    }

    /// As [`Device::read`], for this crate's own use. It leaves an error that `Drop` recorded, and
    /// a fault of the data, to the program's next read.
    pub(crate) fn read_quietly(&self, buffer: &Buffer, byte_offset: usize, out: &mut [u8]) -> Result<()> {
        self.check_range("read", buffer, byte_offset, out.len())?;
        self.refuse_captured("a read", NOT_YET)?;
        self.refuse_dry("a read", NO_VALUE)?;
        let launched = self.faults.launched();
        count(&self.context.counters.device_to_host);
        trace::served(WorkKind::Transfer, || TO_HOST);
        if out.len() <= SMALL {
            if !out.is_empty() {
                let mut block = self.staging.take_chunk()?;
                let result = self.read_small(buffer.address() + byte_offset, out, &mut block);
                if result.is_err() {
                    // The copy may still be in flight, and the block is about to be used again.
                    let _ = self.compute.synchronize();
                }
                self.staging.give_chunk(block);
                result?;
            }
        } else if buffer.is_of_graph() {
            // On the copy stream, a replay could write during a copy.
            self.read_waves(&mut [Read { buffer, byte_offset, out: &mut *out }])?;
        } else {
            // Uses the copy stream, so that the compute stream continues with other threads' work.
            self.copies.wait(&self.compute.mark()?)?;
            self.read_large(buffer.address() + byte_offset, out)?;
        }
        if !out.is_empty() {
            self.faults.pass(launched);
        }
        self.releases.poll(self.captures.any());
        Ok(())
    }

    fn read_small(&self, source: usize, out: &mut [u8], block: &mut PinnedBlock) -> Result<()> {
        self.context.bind()?;
        let stream = self.compute.raw();
        let timed = self.compute.begin_work();
        // SAFETY: the source was checked by `read`, the block is larger than `SMALL`; both stay
        // until the wait below is over.
        let status = unsafe {
            (self.context.hip().hipMemcpyAsync)(
                block.address().cast(),
                source as *const _,
                out.len(),
                hip_sys::hipMemcpyDeviceToHost,
                stream,
            )
        };
        self.context.check("hipMemcpyAsync", status)?;
        self.compute.end_work(timed, WorkKind::Transfer, || TO_HOST, Load::bytes(out.len()));
        self.compute.mark_for_host()?.synchronize()?;
        // The block's memory is not coherent. The event has `hipEventReleaseToSystem`, with which
        // HIP guarantees that after this wait the host sees what the copy wrote.
        out.copy_from_slice(&block.bytes()[..out.len()]);
        Ok(())
    }

    /// Alternates two chunks: the device fills one while the host copies the other to `out`.
    fn read_large(&self, source: usize, out: &mut [u8]) -> Result<()> {
        let mut blocks = self.staging.take_chunks(2)?;
        let result = self.read_chunks(source, out, &mut blocks);
        if result.is_err() {
            // A copy may still be in flight, and the blocks are about to be used again.
            let _ = self.copies.synchronize();
        }
        for block in blocks {
            self.staging.give_chunk(block);
        }
        result
    }

    fn read_chunks(&self, source: usize, out: &mut [u8], blocks: &mut [PinnedBlock]) -> Result<()> {
        self.context.bind()?;
        let length = out.len();
        let start = |index: usize, block: &PinnedBlock| {
            let at = index * CHUNK;
            let bytes = (length - at).min(CHUNK);
            let stream = self.copies.raw();
            let timed = self.copies.begin_work();
            // SAFETY: the source range was checked by `read`; the block has CHUNK bytes and is read
            // only after the event.
            let status = unsafe {
                (self.context.hip().hipMemcpyAsync)(
                    block.address().cast(),
                    (source + at) as *const _,
                    bytes,
                    hip_sys::hipMemcpyDeviceToHost,
                    stream,
                )
            };
            self.context.check("hipMemcpyAsync", status)?;
            self.copies.end_work(timed, WorkKind::Transfer, || TO_HOST, Load::bytes(bytes));
            self.copies.mark_for_host()
        };
        let count = length.div_ceil(CHUNK);
        let mut event = start(0, &blocks[0])?;
        for (index, part) in out.chunks_mut(CHUNK).enumerate() {
            let next = match index + 1 {
                next if next < count => Some(start(next, &blocks[next % 2])?),
                _ => None,
            };
            event.synchronize()?;
            // Visible by the event's `hipEventReleaseToSystem`, as in `read_small`.
            part.copy_from_slice(&blocks[index % 2].bytes()[..part.len()]);
            if let Some(next) = next {
                event = next;
            }
        }
        Ok(())
    }

    /// As [`Device::read`] for several ranges, with one wait for each 64 MiB. If a graph uses one of
    /// the buffers, no other thread's replay comes between the ranges: one that another thread
    /// begins meanwhile waits, for all but the last 64 MiB, until they are read.
    ///
    /// # Errors
    /// As for [`Device::read`]. If a range is invalid, nothing is read.
    pub fn read_all(&self, mut reads: Vec<Read<'_>>) -> Result<()> {
        for read in &reads {
            self.check_range("read", read.buffer, read.byte_offset, read.out.len())?;
        }
        self.refuse_captured("a read", NOT_YET)?;
        self.refuse_dry("a read", NO_VALUE)?;
        for _ in &reads {
            count(&self.context.counters.device_to_host);
            trace::count(WorkKind::Transfer);
        }
        let launched = self.faults.launched();
        self.read_waves(&mut reads)?;
        if reads.iter().any(|read| !read.out.is_empty()) {
            self.faults.pass(launched);
        }
        self.releases.poll(self.captures.any());
        self.context.take_error()?;
        reads.iter().find_map(|read| read.buffer.marks.fault()).map_or(Ok(()), Err)
    }

    /// Reads on the compute stream, with one wait for each wave.
    fn read_waves(&self, reads: &mut [Read<'_>]) -> Result<()> {
        let pieces = Piece::cut(reads);
        let is_torn_by_replays = pieces.len() > 1 && reads.iter().any(|read| read.buffer.is_of_graph());
        let mut no_replay = None;
        let mut waves = pieces.chunk_by(|a, b| a.block / WAVE == b.block / WAVE).peekable();
        while let Some(wave) = waves.next() {
            let blocks = wave.last().map_or(0, |piece| piece.block % WAVE + 1);
            let mut chunks = self.staging.take_chunks(blocks)?;
            if is_torn_by_replays && no_replay.is_none() {
                // Before, because deferred ops may compile their kernels.
                self.compute.catch_up();
                no_replay = Some(self.keep_replays_out());
            }
            let copied = self.enqueue_pieces(wave, reads, &chunks);
            if waves.peek().is_none() {
                // Without a wait: a replay that is launched now comes after all copies.
                drop(no_replay.take());
            }
            let result = copied.and_then(|copied| take_pieces(&copied, wave, reads, &mut chunks));
            if result.is_err() {
                // A copy may still be in flight, and the blocks are about to be used again.
                let _ = self.compute.synchronize();
            }
            for chunk in chunks {
                self.staging.give_chunk(chunk);
            }
            result?;
        }
        Ok(())
    }

    /// Copies pieces to the pinned blocks. The event is behind the copies.
    fn enqueue_pieces(&self, pieces: &[Piece], reads: &[Read<'_>], chunks: &[PinnedBlock]) -> Result<Event> {
        self.context.bind()?;
        for piece in pieces {
            let read = &reads[piece.read];
            let stream = self.compute.raw();
            let timed = self.compute.begin_work();
            // SAFETY: the source was checked by `read_all` or `read_quietly`, the piece lies inside
            // its block; both stay until the wait of `take_pieces` or, after an error, of
            // `read_waves`.
            let status = unsafe {
                (self.context.hip().hipMemcpyAsync)(
                    chunks[piece.block % WAVE].address().add(piece.offset).cast(),
                    (read.buffer.address() + read.byte_offset + piece.at) as *const _,
                    piece.bytes,
                    hip_sys::hipMemcpyDeviceToHost,
                    stream,
                )
            };
            self.context.check("hipMemcpyAsync", status)?;
            self.compute.end_work(timed, WorkKind::Transfer, || TO_HOST, Load::bytes(piece.bytes));
        }
        self.compute.mark_for_host()
    }

    /// Copies within the device, in stream order.
    ///
    /// # Errors
    /// `Invalid` for a range past the end, a buffer of another device or overlapping ranges.
    pub fn copy(
        &self,
        source: &Buffer,
        source_offset: usize,
        destination: &Buffer,
        destination_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.check_range("copy", source, source_offset, bytes)?;
        self.check_range("copy", destination, destination_offset, bytes)?;
        let (from, to) = (source.address() + source_offset, destination.address() + destination_offset);
        if bytes == 0 {
            return Ok(());
        }
        if from < to + bytes && to < from + bytes {
            return Err(Error::invalid("copy", "ranges apart", "ranges that overlap"));
        }
        self.context.bind()?;
        let stream = self.stream();
        let handle = stream.raw();
        let timed = stream.begin_work();
        // SAFETY: the function is HIP's; both ranges lie inside their buffers, whose memory the
        // pool gives out again only to work that comes later in this stream.
        let status = unsafe {
            (self.context.hip().hipMemcpyAsync)(
                to as *mut _,
                from as *const _,
                bytes,
                hip_sys::hipMemcpyDeviceToDevice,
                handle,
            )
        };
        self.context.check("hipMemcpyAsync", status)?;
        // It reads and writes each byte.
        stream.end_work(timed, WorkKind::Copy, || COPY, Load::bytes(2 * bytes));
        trace::served(WorkKind::Copy, || COPY);
        self.written(destination, bytes);
        carry_faults([source], [destination]);
        Ok(())
    }

    /// Forgets a buffer's faults if all its bytes were overwritten.
    fn written(&self, buffer: &Buffer, bytes: usize) {
        if buffer.marks.any() && bytes == buffer.len() {
            buffer.marks.put(None);
        }
    }

    /// Copies `bytes` bytes from a buffer of another device into a new buffer of this device.
    /// Events order the copy after the work that computes the source. The host does not wait.
    ///
    /// # Errors
    /// `Invalid` for a range past the end; `OutOfMemory`; `Device` if HIP fails; `Capture` if
    /// this thread captures a graph on either device, or if a capture in progress computes the
    /// source.
    pub fn copy_from_device(
        self: &Arc<Self>,
        source: &Buffer,
        source_offset: usize,
        bytes: usize,
    ) -> Result<Buffer> {
        let other = source.device().clone();
        other.check_range("copy_from_device", source, source_offset, bytes)?;
        let buffer = self.alloc(bytes)?;
        if bytes == 0 {
            return Ok(buffer);
        }
        if Arc::ptr_eq(&other, self) {
            self.copy(source, source_offset, &buffer, 0, bytes)?;
            return Ok(buffer);
        }
        for device in [self, &other] {
            device.refuse_captured("a copy between devices", "a graph is of one device")?;
        }
        if source.is_captured() {
            return Err(other.captures.others("the use of a captured tensor"));
        }
        other.refuse_dry("a copy to another device", NO_VALUE)?;
        if self.is_dry() {
            // Its stream and events are none of the other device's.
            return Ok(buffer);
        }
        self.reach(&other);
        // The other device's replays come before the copy or wait for it in its stream.
        let no_replay = source.is_of_graph().then(|| other.keep_replays_out());
        self.compute.wait(&other.compute.mark()?)?;
        self.context.bind()?;
        let stream = self.compute.raw();
        let timed = self.compute.begin_work();
        // SAFETY: the function is HIP's; both ranges lie inside their buffers, each on the device
        // named. The new buffer's memory is reused only later in this stream, the source's only
        // after the event below.
        let status = unsafe {
            (self.context.hip().hipMemcpyPeerAsync)(
                buffer.address() as *mut _,
                self.context.ordinal as i32,
                (source.address() + source_offset) as *const _,
                other.context.ordinal as i32,
                bytes,
                stream,
            )
        };
        self.context.check("hipMemcpyPeerAsync", status)?;
        self.compute.end_work(timed, WorkKind::Copy, || FROM_PEER, Load::bytes(bytes));
        trace::served(WorkKind::Copy, || FROM_PEER);
        // The tickets' words are in host memory, so reads on both devices can check them.
        carry_faults([source], [&buffer]);
        other.compute.wait(&self.compute.mark()?)?;
        drop(no_replay);
        Ok(buffer)
    }

    /// Enables direct access to a peer's memory if the hardware has it. Otherwise HIP copies
    /// through the host.
    fn reach(&self, other: &Device) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.contains(&other.context.index) {
            return;
        }
        peers.push(other.context.index);
        let (own, peer) = (self.context.ordinal as i32, other.context.ordinal as i32);
        let mut can = 0;
        // SAFETY: the functions are HIP's; the first writes one int, the last only clears the
        // thread's last error.
        unsafe {
            let hip = self.context.hip();
            let asked = (hip.hipDeviceCanAccessPeer)(&mut can, own, peer);
            if asked == hip_sys::hipSuccess && can != 0 && self.context.bind().is_ok() {
                let status = (hip.hipDeviceEnablePeerAccess)(peer, 0);
                log::debug!("peer access from device {own} to {peer}: status {status}");
            }
            (hip.hipGetLastError)();
        }
    }

    /// Fills `bytes` bytes with `value`, in stream order.
    ///
    /// # Errors
    /// `Invalid` for a range past the end or a buffer of another device.
    pub fn fill_bytes(&self, buffer: &Buffer, byte_offset: usize, value: u8, bytes: usize) -> Result<()> {
        self.check_range("fill_bytes", buffer, byte_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.context.bind()?;
        let stream = self.stream();
        let handle = stream.raw();
        let timed = stream.begin_work();
        // SAFETY: the function is HIP's; the range lies inside the buffer.
        let status = unsafe {
            (self.context.hip().hipMemsetAsync)(
                (buffer.address() + byte_offset) as *mut _,
                i32::from(value),
                bytes,
                handle,
            )
        };
        self.context.check("hipMemsetAsync", status)?;
        stream.end_work(timed, WorkKind::Copy, || "memset", Load::bytes(bytes));
        self.written(buffer, bytes);
        trace::served(WorkKind::Copy, || "memset");
        Ok(())
    }

    /// Checks that a range lies inside a buffer of this device.
    pub(crate) fn check_range(
        &self,
        op: &'static str,
        buffer: &Buffer,
        offset: usize,
        bytes: usize,
    ) -> Result<()> {
        if !std::ptr::eq(Arc::as_ptr(buffer.device()), self) {
            return Err(Error::invalid(
                op,
                format!("a buffer of device {}", self.info().index),
                format!("one of device {}", buffer.device().info().index),
            ));
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= buffer.len() => Ok(()),
            _ => Err(Error::invalid(
                op,
                format!("a range inside {} bytes", buffer.len()),
                format!("{bytes} bytes from offset {offset}"),
            )),
        }
    }
}
