//! Streams and events. An event is the time of its recording, because all earlier work has then
//! finished.

use super::{
    Handles, Host,
    capture::Capture,
    device::current,
    stream::{STREAMS, Stream, on_stream, ordered, place},
};
use crate::settings::Failure;
use hip_provider::require;
use hip_provider::runtime::{Status, Streams};
use hip_sys::*;
use std::{
    ffi::{c_int, c_uint},
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

impl Streams for Host {
    fn create_stream(_: c_uint) -> Status<hipStream_t> {
        Ok(STREAMS.insert(Arc::new(Stream { device: current()?, capture: Capture::default() }))
            as hipStream_t)
    }

    /// Work runs at once, so no stream goes before another.
    fn create_stream_of(flags: c_uint, _: c_int) -> Status<hipStream_t> {
        Self::create_stream(flags)
    }

    fn priorities() -> Status<[c_int; 2]> {
        current().map(|_| [0, 0])
    }

    unsafe fn destroy_stream(stream: hipStream_t) -> Status {
        STREAMS.remove(stream as usize).map(|_| ()).ok_or(hipErrorContextIsDestroyed)
    }

    unsafe fn synchronize_stream(stream: hipStream_t) -> Status {
        let place = place(stream, hipErrorContextIsDestroyed)?;
        // Captured work does not run, so nobody can wait for it.
        place.refuse(hipErrorStreamCaptureUnsupported)?;
        ordered(&place, |_| Ok(()))
    }

    fn synchronize_device() -> Status {
        on_stream(std::ptr::null_mut(), |_| Ok(()))
    }

    /// Does not wait, because a recorded event has always passed. It does not belong to a capture,
    /// so a captured stream can't wait for it.
    unsafe fn wait_for(stream: hipStream_t, event: hipEvent_t) -> Status {
        get(event)?;
        place(stream, hipErrorContextIsDestroyed)?.refuse(hipErrorStreamCaptureIsolation)
    }

    fn create_event(flags: c_uint) -> Status<hipEvent_t> {
        let handle = EVENTS.insert(Arc::new(Event {
            device: current()?.index,
            timed: flags & hipEventDisableTiming == 0,
            recorded: Mutex::new(None),
        }));
        Ok(handle as hipEvent_t)
    }

    unsafe fn destroy_event(event: hipEvent_t) -> Status {
        EVENTS.remove(event as usize).map(|_| ()).ok_or(hipErrorContextIsDestroyed)
    }

    /// Unlike AMD's, a captured stream here refuses events, because a graph here has no branches.
    unsafe fn record(event: hipEvent_t, stream: hipStream_t) -> Status {
        let event = get(event)?;
        require(!Failure::EventRecord.is_asked(), hipErrorOutOfMemory)?;
        let place = place(stream, hipErrorContextIsDestroyed)?;
        place.refuse(hipErrorStreamCaptureUnsupported)?;
        ordered(&place, |device| {
            require(device.index == event.device, hipErrorInvalidHandle)?;
            *event.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            Ok(())
        })
    }

    unsafe fn query(event: hipEvent_t) -> Status {
        get(event).map(|_| ())
    }

    unsafe fn synchronize_event(event: hipEvent_t) -> Status {
        get(event).map(|_| ())
    }

    unsafe fn elapsed(start: hipEvent_t, stop: hipEvent_t) -> Status<f32> {
        let time = |event: hipEvent_t| {
            let event = get(event)?;
            let recorded = *event.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            recorded.filter(|_| event.timed).map(|at| (at, event.device)).ok_or(hipErrorInvalidHandle)
        };
        let ((start, device), (stop, other)) = (time(start)?, time(stop)?);
        require(device == other, hipErrorInvalidHandle)?;
        let elapsed =
            if stop >= start { (stop - start).as_secs_f64() } else { -(start - stop).as_secs_f64() };
        Ok((elapsed * 1e3) as f32)
    }
}
