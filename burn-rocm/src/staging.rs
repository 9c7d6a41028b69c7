//! Data in pinned memory on its way to a device: the implementation of `Backend::staging`.

use std::sync::Arc;

use burn_backend::TensorData;
use burn_std::{AllocationProperty, Bytes};
use hip::{Buffer, Device};

use crate::burn;
use crate::pinned::Pinned;

/// Data of more bytes than this moves to pinned memory. Smaller data would gain nothing, because
/// its upload copies it into a shared pinned page anyway.
const LEAST: usize = 64 << 10;

/// Moves the data into pinned memory, from which the device can copy without the host's help. Data
/// of at most [`LEAST`] bytes stays where it is, and so does all data when pinned memory runs out.
pub(crate) fn pin(device: &Arc<Device>, data: &mut TensorData) {
    let bytes = burn::bytes(data);
    let length = bytes.len();
    if length <= LEAST || bytes.property() == AllocationProperty::Pinned {
        return;
    }
    if let Ok(mut pinned) = device.host_buffer(length) {
        pinned.bytes_mut().copy_from_slice(bytes);
        // SAFETY: the allocation has `length` bytes, all initialised by the copy.
        let pinned = unsafe { Bytes::from_controller(Box::new(Pinned::new(pinned)), length) };
        burn::set_bytes(data, pinned);
    }
}

/// Uploads bytes that lie in this device's pinned memory; gives other bytes back as `Err`.
pub(crate) fn upload(device: &Arc<Device>, bytes: Bytes) -> Result<hip::Result<Buffer>, Bytes> {
    if bytes.property() != AllocationProperty::Pinned || !device.is_host_buffer(&bytes) {
        return Err(bytes);
    }
    // SAFETY: the bytes lie in a `HostBuffer`, which keeps its memory until it is dropped, and
    // nobody else holds them.
    Ok(unsafe { device.upload_owned(bytes) })
}
