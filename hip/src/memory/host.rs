//! Pinned host memory in a caller's hands: the device copies from it by itself, without a copy of the host's in
//! between.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::memory::buffer::Buffer;
use crate::memory::pinned::PinnedBlock;
use crate::memory::pool::Purpose;

/// Pinned memory of the host. Kept for the next that needs some when dropped.
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
    /// Pinned memory of the host, for data that is going to be uploaded. Its contents are whatever they were.
    ///
    /// # Errors
    /// `Device` where the host has too little.
    pub fn host_buffer(self: &Arc<Self>, bytes: usize) -> Result<HostBuffer> {
        let block = self.staging.take_host_block(bytes)?;
        Ok(HostBuffer { device: self.clone(), block: Some(block), bytes })
    }

    /// Whether these bytes lie in a [`HostBuffer`] of this device that is in use.
    pub fn is_host_buffer(&self, bytes: &[u8]) -> bool {
        self.staging.holds(bytes)
    }

    /// Copies pinned bytes into a new buffer, without waiting and without a copy of the host's. The owner is
    /// dropped some time after the copy is over.
    ///
    /// # Safety
    /// The bytes stay where they are, and as they are, until the owner is dropped, also where the owner is moved.
    pub unsafe fn upload_owned<O>(self: &Arc<Self>, owner: O) -> Result<Buffer>
    where
        O: Deref<Target = [u8]> + Send + 'static,
    {
        let length = owner.len();
        let block = self.allocate(length, Purpose::Transfer)?;
        let fence = block.fence;
        let buffer = Buffer::new(self.clone(), block, length);
        if length == 0 {
            return Ok(buffer);
        }
        let source = owner.as_ptr();
        let queued = self.fences.wait(&self.copies, fence).and_then(|()| {
            // SAFETY: the buffer has just as many bytes; the source stays until the owner is
            // dropped, which is kept until the event behind the copy has passed, or else until
            // `joined` has waited.
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
