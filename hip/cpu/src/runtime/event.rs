//! Events: the moment at which they were recorded, since all work is then done.

use super::{
    Handles,
    device::current,
    stream::{on_stream, stream_device},
};
use crate::settings::Failure;
use hip_provider::runtime::{EVENT_FLAGS, Status, api, put};
use hip_sys::*;
use std::{
    ffi::c_uint,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

struct Event {
    device: usize,
    timed: bool,
    recorded: Mutex<Option<Instant>>,
}

static EVENTS: Handles<Event> = Handles::new(0xa2);

fn get(event: hipEvent_t) -> Result<Arc<Event>, hipError_t> {
    EVENTS.get(event as usize).ok_or(hipErrorInvalidHandle)
}

/// Whether this is an event.
fn check(event: hipEvent_t) -> Status {
    get(event).map(|_| ())
}

pub(super) unsafe extern "C" fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    api(|| {
        if event.is_null() || flags & !EVENT_FLAGS != 0 {
            return Err(hipErrorInvalidValue);
        }
        let handle = EVENTS.insert(Arc::new(Event {
            device: current()?.index,
            timed: flags & hipEventDisableTiming == 0,
            recorded: Mutex::new(None),
        }));
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(event, handle as hipEvent_t) }
    })
}

pub(super) unsafe extern "C" fn hipEventDestroy(event: hipEvent_t) -> hipError_t {
    api(|| {
        if event.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        EVENTS.remove(event as usize).map(|_| ()).ok_or(hipErrorContextIsDestroyed)
    })
}

pub(super) unsafe extern "C" fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> hipError_t {
    api(|| {
        let event = get(event)?;
        if Failure::EventRecord.is_asked() {
            return Err(hipErrorOutOfMemory);
        }
        on_stream(stream, |device| {
            if device.index != event.device {
                return Err(hipErrorInvalidHandle);
            }
            *event.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            Ok(())
        })
    })
}

pub(super) unsafe extern "C" fn hipEventQuery(event: hipEvent_t) -> hipError_t {
    api(|| check(event))
}

pub(super) unsafe extern "C" fn hipEventSynchronize(event: hipEvent_t) -> hipError_t {
    api(|| check(event))
}

pub(super) unsafe extern "C" fn hipEventElapsedTime(
    ms: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    api(|| {
        if ms.is_null() {
            return Err(hipErrorInvalidValue);
        }
        let time = |event: hipEvent_t| {
            let event = get(event)?;
            let recorded = *event.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            recorded.filter(|_| event.timed).map(|at| (at, event.device)).ok_or(hipErrorInvalidHandle)
        };
        let ((start, device), (stop, other)) = (time(start)?, time(stop)?);
        if device != other {
            return Err(hipErrorInvalidHandle);
        }
        let elapsed =
            if stop >= start { (stop - start).as_secs_f64() } else { -(start - stop).as_secs_f64() };
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(ms, (elapsed * 1e3) as f32) }
    })
}

pub(super) unsafe extern "C" fn hipStreamWaitEvent(
    stream: hipStream_t,
    event: hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        check(event)?;
        if flags > 1 {
            return Err(hipErrorInvalidValue);
        }
        // What was recorded has happened.
        stream_device(stream, hipErrorContextIsDestroyed).map(|_| ())
    })
}
