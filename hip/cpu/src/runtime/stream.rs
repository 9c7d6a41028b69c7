//! Streams. Work in a stream runs at once, in the order of the device's lock.

use super::{
    Handles,
    device::{Device, current},
};
use hip_provider::runtime::Status;
use hip_sys::*;

pub(super) struct Stream {
    pub(super) device: &'static Device,
}

pub(super) static STREAMS: Handles<Stream> = Handles::new(0xa1);

/// The stream's device; the current device for the default stream. `missing` is the error for an
/// unknown stream.
pub(super) fn stream_device(stream: hipStream_t, missing: hipError_t) -> Result<&'static Device, hipError_t> {
    if stream.is_null() {
        return current();
    }
    STREAMS.get(stream as usize).map(|stream| stream.device).ok_or(missing)
}

/// Runs work in a stream, while the device's other work waits. If an earlier kernel failed, returns
/// that failure instead.
pub(crate) fn on_stream(stream: hipStream_t, work: impl FnOnce(&'static Device) -> Status) -> Status {
    let device = stream_device(stream, hipErrorContextIsDestroyed)?;
    let _order = device.lock();
    device.check()?;
    work(device)
}
