//! Data on its way to a device, in pinned memory: what `Backend::staging` makes of it.

use core::mem::MaybeUninit;
use std::sync::Arc;

use burn_backend::TensorData;
use burn_std::{AllocationProperty, Bytes};
use hip::{Buffer, Device, HostBuffer};

use crate::burn;

/// Bytes in pinned memory.
pub(crate) struct Pinned(HostBuffer);

impl Pinned {
    /// A page's.
    pub(crate) const ALIGNMENT: usize = 4096;

    /// The bytes.
    ///
    /// # Safety
    /// The caller writes nothing uninitialised.
    pub(crate) unsafe fn uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes = self.0.bytes_mut();
        // SAFETY: the same bytes under a type that asks for less; the caller writes nothing
        // uninitialised.
        unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    /// The bytes.
    pub(crate) fn uninit(&self) -> &[MaybeUninit<u8>] {
        let bytes = self.0.bytes();
        // SAFETY: the same bytes under a type that asks for less.
        unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
    }
}

/// Data of fewer bytes gains nothing: it is copied into a pinned page with others anyway.
const LEAST: usize = 64 << 10;

/// Moves the data into pinned memory, from which the device copies by itself. Data stays where it is if there is
/// too little.
pub(crate) fn pin(device: &Arc<Device>, data: &mut TensorData) {
    let bytes = burn::bytes(data);
    let length = bytes.len();
    if length <= LEAST || bytes.property() == AllocationProperty::Pinned {
        return;
    }
    if let Ok(mut pinned) = device.host_buffer(length) {
        pinned.bytes_mut().copy_from_slice(bytes);
        // SAFETY: the allocation has `length` bytes, all initialised by the copy.
        let pinned = unsafe { Bytes::from_controller(Box::new(Pinned(pinned)), length) };
        burn::set_bytes(data, pinned);
    }
}

/// Uploads bytes that lie in this device's pinned memory from there; others come back.
pub(crate) fn upload(device: &Arc<Device>, bytes: Bytes) -> Result<hip::Result<Buffer>, Bytes> {
    if bytes.property() != AllocationProperty::Pinned || !device.is_host_buffer(&bytes) {
        return Err(bytes);
    }
    // SAFETY: the bytes are a `HostBuffer`'s, whose memory stays until it is dropped; nobody else
    // has them.
    Ok(unsafe { device.upload_owned(bytes) })
}
