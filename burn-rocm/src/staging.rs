//! Data on its way to a device, in pinned memory: what `Backend::staging` makes of it.

use core::mem::MaybeUninit;
use std::sync::Arc;

use burn_backend::TensorData;
use burn_std::{AllocationController, AllocationProperty, Bytes};
use hip::{Buffer, Device, HostBuffer};

/// Bytes in pinned memory.
struct Pinned(HostBuffer);

impl AllocationController for Pinned {
    fn alloc_align(&self) -> usize {
        // A page's.
        4096
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Pinned
    }

    unsafe fn memory_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes = self.0.bytes_mut();
        // SAFETY: the same bytes under a type that asks for less; the caller promises to write
        // nothing uninitialised.
        unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    fn memory(&self) -> &[MaybeUninit<u8>] {
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
    let length = data.bytes.len();
    if length <= LEAST || data.bytes.property() == AllocationProperty::Pinned {
        return;
    }
    if let Ok(mut pinned) = device.host_buffer(length) {
        pinned.bytes_mut().copy_from_slice(&data.bytes);
        // SAFETY: the allocation has `length` bytes, all initialised by the copy.
        data.bytes = unsafe { Bytes::from_controller(Box::new(Pinned(pinned)), length) };
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
