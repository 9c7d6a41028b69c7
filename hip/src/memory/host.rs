//! Pinned host memory for callers. The device reads it directly, so an upload needs no copy to a
//! staging buffer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::device::Device;
use crate::device::stream::Stream;
use crate::error::Result;
use crate::memory::buffer::Buffer;
use crate::memory::pinned::PinnedBlock;
use crate::memory::pool::Purpose;

/// Pinned host memory. When it is dropped, the device keeps it for the next caller.
pub struct HostBuffer {
    device: Arc<Device>,
    /// `None` only while the buffer is dropped.
    block: Option<PinnedBlock>,
    bytes: usize,
}

impl HostBuffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| &block.shared()[..self.bytes])
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.block {
            Some(block) => &mut block.bytes()[..self.bytes],
            None => &mut [],
        }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.device.staging.give_host_block(block);
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Device {
    /// Pinned host memory for data to upload. Its contents are unspecified.
    ///
    /// # Errors
    /// `Device` if the host can't pin that much memory.
    pub fn host_buffer(self: &Arc<Self>, bytes: usize) -> Result<HostBuffer> {
        let block = self.staging.take_host_block(bytes)?;
        Ok(HostBuffer { device: self.clone(), block: Some(block), bytes })
    }

    /// Pins memory ahead, so that [`host_buffer`](Self::host_buffer) has a buffer for each of these
    /// sizes in bytes at the same time without pinning more. The device keeps up to 256 MiB of such
    /// memory. Buffers of other sizes that it kept may go.
    ///
    /// # Errors
    /// `Invalid` for sizes of more than 256 MiB together, each rounded up to a power of two (at
    /// least 64 KiB); `Device` if the host can't pin that much memory.
    pub fn reserve_host(&self, sizes: &[usize]) -> Result<()> {
        self.staging.reserve_host(sizes)
    }

    /// Whether these bytes lie in a live [`HostBuffer`] of this device.
    pub fn is_host_buffer(&self, bytes: &[u8]) -> bool {
        self.staging.holds(bytes)
    }

    /// Makes each launch of the graph that this thread captures copy bytes into a new buffer. The
    /// graph keeps the owner.
    ///
    /// # Safety
    ///
    /// There are `length` bytes at `source`. They stay there unchanged until the owner is dropped,
    /// even if the owner is moved.
    pub(crate) unsafe fn upload_captured<O: Send + 'static>(
        self: &Arc<Self>,
        captured: &Stream,
        source: *const u8,
        length: usize,
        owner: O,
    ) -> Result<Buffer> {
        let buffer = self.alloc(length)?;
        if length > 0 {
            // SAFETY: the buffer has just as many bytes; the graph keeps the owner.
            unsafe { self.staging.copy_to_device(captured, buffer.address(), source, length)? };
        }
        captured.keep(owner);
        Ok(buffer)
    }

    /// Copies bytes into a new buffer directly, without waiting and without a staging buffer. The
    /// bytes should be pinned, as those of a [`HostBuffer`] are. The owner is dropped some time
    /// after the copy has finished. A graph that this thread captures keeps the owner.
    ///
    /// # Safety
    /// The bytes neither move nor change until the owner is dropped, even if the owner itself is
    /// moved.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`; `Device` if HIP fails.
    pub unsafe fn upload_owned<O>(self: &Arc<Self>, owner: O) -> Result<Buffer>
    where
        O: Deref<Target = [u8]> + Send + 'static,
    {
        let length = owner.len();
        if let Some(captured) = self.captures.here() {
            let source = owner.as_ptr();
            // SAFETY: the caller's promise.
            return unsafe { self.upload_captured(captured, source, length, owner) };
        }
        let block = self.allocate(length, Purpose::Transfer)?;
        let fence = block.fence;
        let buffer = Buffer::new(self.clone(), block, length);
        if length == 0 {
            return Ok(buffer);
        }
        let source = owner.as_ptr();
        let queued = self.fences.wait(&self.copies, fence).and_then(|()| {
            // SAFETY: the buffer has `length` bytes. The source lives until the owner is dropped,
            // which is after the stream has passed the copy's event, or after `joined` has waited.
            unsafe { self.staging.copy_to_device(&self.copies, buffer.address(), source, length)? };
            let event = self.copies.mark()?;
            self.compute.wait(&event)?;
            Ok(event)
        });
        match queued {
            Ok(event) => self.staging.keep(Box::new(owner), event),
            Err(error) => self.joined(Err(error))?,
        }
        Ok(buffer)
    }
}
