//! Streams and events.

use super::{Status, api, put};
use crate::require;
use core::ffi::{c_int, c_uint};
use hip_sys::*;

/// All flags of an event in `hip_runtime_api.h`: blocking sync, no timing, interprocess, and the
/// three for memory fences.
const EVENT_FLAGS: c_uint = 1 | 2 | 4 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

/// A provider's streams and events. No event passed to these methods is null; a null stream is the
/// default stream.
pub trait Streams {
    /// Creates a stream of the calling thread's device.
    fn create_stream(flags: c_uint) -> Status<hipStream_t>;

    /// Creates a stream of this priority, or of the nearest one that the device has.
    fn create_stream_of(flags: c_uint, priority: c_int) -> Status<hipStream_t>;

    /// The least and the greatest priority of the calling thread's device.
    fn priorities() -> Status<[c_int; 2]>;

    /// Destroys a stream, which is not null.
    ///
    /// # Safety
    /// By HIP's contract, streams and events are live. The same holds for the methods below.
    unsafe fn destroy_stream(stream: hipStream_t) -> Status;

    /// Waits for a stream's work.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn synchronize_stream(stream: hipStream_t) -> Status;

    /// Waits for the work of the calling thread's device.
    fn synchronize_device() -> Status;

    /// Makes a stream's later work wait for an event.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn wait_for(stream: hipStream_t, event: hipEvent_t) -> Status;

    /// Creates an event.
    fn create_event(flags: c_uint) -> Status<hipEvent_t>;

    /// Destroys an event.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn destroy_event(event: hipEvent_t) -> Status;

    /// Records an event after the work of a stream.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn record(event: hipEvent_t, stream: hipStream_t) -> Status;

    /// `Ok` if the work before an event has finished, else `hipErrorNotReady`.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn query(event: hipEvent_t) -> Status;

    /// Waits for the work before an event.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn synchronize_event(event: hipEvent_t) -> Status;

    /// Milliseconds from one event to another.
    ///
    /// # Safety
    /// As [`Streams::destroy_stream`].
    unsafe fn elapsed(start: hipEvent_t, stop: hipEvent_t) -> Status<f32>;
}

fn checked(event: hipEvent_t) -> Status<hipEvent_t> {
    if event.is_null() { Err(hipErrorInvalidHandle) } else { Ok(event) }
}

pub(super) unsafe extern "C" fn hipStreamCreateWithFlags<S: Streams>(
    stream: *mut hipStream_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        require(!stream.is_null() && flags <= hipStreamNonBlocking, hipErrorInvalidValue)?;
        // SAFETY: the caller's streams, events and out-pointers, by HIP's contract, here and below.
        unsafe { put(stream, S::create_stream(flags)?) }
    })
}

pub(super) unsafe extern "C" fn hipStreamCreateWithPriority<S: Streams>(
    stream: *mut hipStream_t,
    flags: c_uint,
    priority: c_int,
) -> hipError_t {
    api(|| {
        require(!stream.is_null() && flags <= hipStreamNonBlocking, hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { put(stream, S::create_stream_of(flags, priority)?) }
    })
}

/// Gives the range. Either pointer may be null.
///
/// # Safety
/// The caller's out-pointers.
pub(super) unsafe extern "C" fn hipDeviceGetStreamPriorityRange<S: Streams>(
    least: *mut c_int,
    greatest: *mut c_int,
) -> hipError_t {
    api(|| {
        let range = S::priorities()?;
        for (to, value) in [least, greatest].into_iter().zip(range) {
            if !to.is_null() {
                // SAFETY: the caller's, by HIP's contract.
                unsafe { put(to, value)? };
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn hipStreamDestroy<S: Streams>(stream: hipStream_t) -> hipError_t {
    api(|| {
        require(!stream.is_null(), hipErrorInvalidHandle)?;
        // SAFETY: as above.
        unsafe { S::destroy_stream(stream) }
    })
}

pub(super) unsafe extern "C" fn hipStreamSynchronize<S: Streams>(stream: hipStream_t) -> hipError_t {
    // SAFETY: as above.
    api(|| unsafe { S::synchronize_stream(stream) })
}

pub(super) unsafe extern "C" fn hipDeviceSynchronize<S: Streams>() -> hipError_t {
    api(S::synchronize_device)
}

pub(super) unsafe extern "C" fn hipStreamWaitEvent<S: Streams>(
    stream: hipStream_t,
    event: hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        let event = checked(event)?;
        require(flags <= 1, hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { S::wait_for(stream, event) }
    })
}

pub(super) unsafe extern "C" fn hipEventCreateWithFlags<S: Streams>(
    event: *mut hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        require(!event.is_null() && flags & !EVENT_FLAGS == 0, hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { put(event, S::create_event(flags)?) }
    })
}

pub(super) unsafe extern "C" fn hipEventDestroy<S: Streams>(event: hipEvent_t) -> hipError_t {
    // SAFETY: as above.
    api(|| unsafe { S::destroy_event(checked(event)?) })
}

pub(super) unsafe extern "C" fn hipEventRecord<S: Streams>(
    event: hipEvent_t,
    stream: hipStream_t,
) -> hipError_t {
    // SAFETY: as above.
    api(|| unsafe { S::record(checked(event)?, stream) })
}

pub(super) unsafe extern "C" fn hipEventQuery<S: Streams>(event: hipEvent_t) -> hipError_t {
    // SAFETY: as above.
    api(|| unsafe { S::query(checked(event)?) })
}

pub(super) unsafe extern "C" fn hipEventSynchronize<S: Streams>(event: hipEvent_t) -> hipError_t {
    // SAFETY: as above.
    api(|| unsafe { S::synchronize_event(checked(event)?) })
}

pub(super) unsafe extern "C" fn hipEventElapsedTime<S: Streams>(
    ms: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    api(|| {
        require(!ms.is_null(), hipErrorInvalidValue)?;
        // SAFETY: as above.
        unsafe { put(ms, S::elapsed(checked(start)?, checked(stop)?)?) }
    })
}
