//! Buffers: memory of one device.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::memory::marks::{Marks, Set};
use crate::memory::pool::{PoolBlock, Purpose};

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

    /// Adds a set to the buffer's own.
    #[cold]
    pub(crate) fn add_marks(&self, set: &Option<Arc<Set>>) {
        self.marks.put(Set::join(self.marks.get(), set.clone()));
    }
}

impl Device {
    /// Memory from the pool: 256-byte aligned, contents undefined; 0 bytes are allowed.
    ///
    /// # Errors
    /// `OutOfMemory` where there is too little even with every cached block given back.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let block = self.allocate(bytes, Purpose::Compute)?;
        Ok(Buffer::new(self.clone(), block, bytes))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.device.give_back(block);
        }
    }
}

/// Tells that the buffers `to` are computed from the buffers `from` where a kernel's arguments
/// don't tell it: faults in any of `from` then count for all of `to`. Earlier faults of a buffer in
/// `to` stay its own; name it in `from` if they matter to the others.
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
