//! Buffers: memory of one device.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::memory::marks::Marks;
use crate::memory::pool::PoolBlock;

/// Memory of one device, from its pool; given back when dropped. Not `Clone`: share an `Arc`.
pub struct Buffer {
    device: Arc<Device>,
    /// `None` only while the buffer is dropped.
    block: Option<PoolBlock>,
    address: usize,
    bytes: usize,
    /// The faults that may be in its contents.
    pub(crate) marks: Marks,
}

impl Buffer {
    pub(crate) fn new(device: Arc<Device>, block: PoolBlock, bytes: usize) -> Self {
        let address = block.address;
        Self { device, block: Some(block), address, bytes, marks: Marks::default() }
    }

    /// Bytes asked for.
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

    /// The address on the device; never null, even for 0 bytes. For tables of tensors that a kernel
    /// takes by value; call [`carry_faults`](crate::carry_faults) for those too.
    #[inline]
    pub fn address(&self) -> usize {
        self.address
    }

    /// The address on the device as AMD's libraries take it.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.address as *mut c_void
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.device.give_back(block);
        }
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
