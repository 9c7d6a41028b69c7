//! Pinned host memory as Burn's bytes.

use core::mem::MaybeUninit;

use hip::HostBuffer;

/// Bytes in pinned memory.
pub(crate) struct Pinned(HostBuffer);

impl Pinned {
    pub(crate) fn new(buffer: HostBuffer) -> Self {
        Self(buffer)
    }

    /// The size of a page, to which pinned memory is aligned.
    pub(crate) const ALIGNMENT: usize = 4096;

    /// The bytes.
    ///
    /// # Safety
    /// The caller writes no uninitialised byte.
    pub(crate) unsafe fn uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes = self.0.bytes_mut();
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`. The caller promises to write no
        // uninitialised byte.
        unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    /// The bytes.
    pub(crate) fn uninit(&self) -> &[MaybeUninit<u8>] {
        let bytes = self.0.bytes();
        // SAFETY: `MaybeUninit<u8>` has the layout of `u8`.
        unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
    }
}
