//! Streams and events. An event is the time of its recording, because all earlier work has then
//! finished.

use super::{
    Handles, Host,
    capture::{Capture, Mark},
    device::current,
    late,
    stream::{STREAMS, Stream, behind, on_stream, ordered, place},
};
use crate::settings::Failure;
use hip_provider::require;
use hip_provider::runtime::{Status, Streams};
use hip_sys::*;
use std::{
    ffi::{c_int, c_uint},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

struct Event {
    device: usize,
    timed: bool,
    recorded: Mutex<Option<Instant>>,
    /// In late mode, the place of its recording.
    point: Mutex<Option<late::Point>>,
    /// The place in a capture, if it was recorded in one.
    captured: Mutex<Option<Mark>>,
    /// How often the host asked for it since.
    asked: AtomicU32,
}

impl Event {
    fn captured(&self) -> MutexGuard<'_, Option<Mark>> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a call of the host on an event of a capture, which is never recorded outside the graph.
    fn refuse_captured(&self) -> Status {
        require(self.captured().is_none(), hipErrorCapturedEvent)
    }

    fn point(&self) -> Option<late::Point> {
        *self.point.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In late mode, work that nobody waits for runs all the same if the host asks this often whether it
/// has: the host may wait by asking.
const ASKED: u32 = 100;

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
        if late::is_on() {
            let _order = late::lock();
            late::forget(stream);
        }
        STREAMS.remove(stream as usize).map(|_| ()).ok_or(hipErrorContextIsDestroyed)
    }

    unsafe fn synchronize_stream(stream: hipStream_t) -> Status {
        let place = place(stream, hipErrorContextIsDestroyed)?;
        // Captured work does not run, so nobody can wait for it.
        place.refuse(hipErrorStreamCaptureUnsupported)?;
        behind(&place, || Ok(()))
    }

    fn synchronize_device() -> Status {
        on_stream(std::ptr::null_mut(), |_| Ok(()))
    }

    /// Does not wait, because a recorded event has passed, except in late mode. A captured stream can
    /// only wait for an event of its capture.
    unsafe fn wait_for(stream: hipStream_t, event: hipEvent_t) -> Status {
        let event = get(event)?;
        if let Some(mark) = &*event.captured() {
            // The default stream can't be captured.
            let known = STREAMS.get(stream as usize).ok_or(hipErrorStreamCaptureImplicit)?;
            let _order = known.device.lock();
            return known.capture.wait(stream, mark);
        }
        let place = place(stream, hipErrorContextIsDestroyed)?;
        place.refuse(hipErrorStreamCaptureIsolation)?;
        if let Some(point) = event.point() {
            let _order = place.device.lock();
            match stream.is_null() {
                true => late::run_to(point),
                false => late::wait(stream, point),
            }
        }
        Ok(())
    }

    fn create_event(flags: c_uint) -> Status<hipEvent_t> {
        let handle = EVENTS.insert(Arc::new(Event {
            device: current()?.index,
            timed: flags & hipEventDisableTiming == 0,
            recorded: Mutex::new(None),
            point: Mutex::new(None),
            captured: Mutex::new(None),
            asked: AtomicU32::new(0),
        }));
        Ok(handle as hipEvent_t)
    }

    unsafe fn destroy_event(event: hipEvent_t) -> Status {
        EVENTS.remove(event as usize).map(|_| ()).ok_or(hipErrorContextIsDestroyed)
    }

    unsafe fn record(event: hipEvent_t, stream: hipStream_t) -> Status {
        let event = get(event)?;
        require(!Failure::EventRecord.is_asked(), hipErrorOutOfMemory)?;
        let place = place(stream, hipErrorContextIsDestroyed)?;
        require(place.device.index == event.device, hipErrorInvalidHandle)?;
        let mark = place.mark();
        let is_captured = mark.is_some();
        *event.captured() = mark;
        if is_captured {
            return Ok(());
        }
        ordered(&place, |_| {
            let point = (late::is_on() && !stream.is_null()).then(|| late::end_of(stream));
            *event.point.lock().unwrap_or_else(PoisonError::into_inner) = point;
            event.asked.store(0, Ordering::Relaxed);
            *event.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            Ok(())
        })
    }

    unsafe fn query(event: hipEvent_t) -> Status {
        let event = get(event)?;
        event.refuse_captured()?;
        let Some(point) = event.point() else { return Ok(()) };
        let _order = late::lock();
        if event.asked.fetch_add(1, Ordering::Relaxed) >= ASKED {
            late::run_to(point);
        }
        require(late::is_past(point), hipErrorNotReady)
    }

    unsafe fn synchronize_event(event: hipEvent_t) -> Status {
        let event = get(event)?;
        event.refuse_captured()?;
        if let Some(point) = event.point() {
            let _order = late::lock();
            late::run_to(point);
        }
        Ok(())
    }

    unsafe fn elapsed(start: hipEvent_t, stop: hipEvent_t) -> Status<f32> {
        let time = |event: hipEvent_t| -> Status<(Instant, usize)> {
            let event = get(event)?;
            event.refuse_captured()?;
            let recorded = *event.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            let at = recorded.filter(|_| event.timed).ok_or(hipErrorInvalidHandle)?;
            require(event.point().is_none_or(late::is_past), hipErrorNotReady)?;
            Ok((at, event.device))
        };
        let ((start, device), (stop, other)) = (time(start)?, time(stop)?);
        require(device == other, hipErrorInvalidHandle)?;
        let elapsed =
            if stop >= start { (stop - start).as_secs_f64() } else { -(start - stop).as_secs_f64() };
        Ok((elapsed * 1e3) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::capture::{enqueue, take_down};

    #[test]
    fn a_time_is_not_ready_before_the_work_ran() {
        // A handle that no other test has.
        let stream = 24 as hipStream_t;
        let _order = late::lock();
        // SAFETY: the work holds nothing.
        let work = take_down(true, || unsafe { enqueue(|| Ok(())) }).unwrap();
        late::give(stream, current().unwrap(), work);
        let event = || Event {
            device: 0,
            timed: true,
            recorded: Mutex::new(Some(Instant::now())),
            point: Mutex::new(Some(late::end_of(stream))),
            captured: Mutex::new(None),
            asked: AtomicU32::new(0),
        };
        let [start, stop] = [event(), event()].map(|event| EVENTS.insert(Arc::new(event)) as hipEvent_t);
        // SAFETY: the events are live.
        let elapsed = || unsafe { Host::elapsed(start, stop) };
        assert_eq!(elapsed(), Err(hipErrorNotReady));
        late::run_to(late::end_of(stream));
        assert!(elapsed().is_ok());
        late::forget(stream);
        for event in [start, stop] {
            assert!(EVENTS.remove(event as usize).is_some());
        }
    }
}
