//! Streams: names for "run now, in this device's order".

use super::{
    Handles,
    device::{Device, current},
};
use hip_provider::runtime::{Status, api, put};
use hip_sys::*;
use std::{ffi::c_uint, sync::Arc};

struct Stream {
    device: &'static Device,
}

static STREAMS: Handles<Stream> = Handles::new(0xa1);

/// The stream's device: the current one for the default stream. `missing` is what a call says of a stream that is none.
pub(super) fn stream_device(stream: hipStream_t, missing: hipError_t) -> Result<&'static Device, hipError_t> {
    if stream.is_null() {
        return current();
    }
    STREAMS.get(stream as usize).map(|stream| stream.device).ok_or(missing)
}

/// Runs work in a stream: its device's other work waits, and a failure that an earlier kernel left is reported first.
pub(crate) fn on_stream(stream: hipStream_t, work: impl FnOnce(&'static Device) -> Status) -> Status {
    let device = stream_device(stream, hipErrorContextIsDestroyed)?;
    let _order = device.lock();
    device.check()?;
    work(device)
}

pub(super) unsafe extern "C" fn hipStreamCreateWithFlags(
    stream: *mut hipStream_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        if stream.is_null() || flags > hipStreamNonBlocking {
            return Err(hipErrorInvalidValue);
        }
        let handle = STREAMS.insert(Arc::new(Stream { device: current()? }));
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(stream, handle as hipStream_t) }
    })
}

pub(super) unsafe extern "C" fn hipStreamDestroy(stream: hipStream_t) -> hipError_t {
    api(|| {
        if stream.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        STREAMS.remove(stream as usize).map(|_| ()).ok_or(hipErrorContextIsDestroyed)
    })
}

pub(super) unsafe extern "C" fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t {
    api(|| on_stream(stream, |_| Ok(())))
}

pub(super) unsafe extern "C" fn hipDeviceSynchronize() -> hipError_t {
    api(|| on_stream(std::ptr::null_mut(), |_| Ok(())))
}
