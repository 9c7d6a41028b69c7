//! Streams. Work in a stream runs at once, in the order of the device's lock, unless the stream is
//! captured or in late mode.

use super::{
    Handles,
    capture::{Capture, Mark, Work, take_down},
    device::{Device, current},
    late,
};
use hip_provider::runtime::Status;
use hip_sys::*;
use std::sync::Arc;

pub(super) struct Stream {
    pub(super) device: &'static Device,
    pub(super) capture: Capture,
}

pub(super) static STREAMS: Handles<Stream> = Handles::new(0xa1);

/// Where a call's work goes.
pub(super) struct Place {
    pub(super) device: &'static Device,
    stream: hipStream_t,
    /// The stream, if it is captured.
    captured: Option<Arc<Stream>>,
}

impl Place {
    /// If the stream is captured: returns this status, for a call that can't be captured, and makes
    /// the capture fail.
    pub(super) fn refuse(&self, status: hipError_t) -> Status {
        self.captured.as_ref().map_or(Ok(()), |stream| stream.capture.refuse(status))
    }

    /// If the stream is captured: its place in the capture.
    pub(super) fn mark(&self) -> Option<Mark> {
        self.captured.as_ref()?.capture.mark(self.stream)
    }
}

/// The place where a stream's work goes. For the default stream it is the current device. `missing`
/// is the error for an unknown stream.
pub(super) fn place(stream: hipStream_t, missing: hipError_t) -> Status<Place> {
    if stream.is_null() {
        return Ok(Place { device: current()?, stream, captured: None });
    }
    let known = STREAMS.get(stream as usize).ok_or(missing)?;
    Ok(Place { device: known.device, stream, captured: known.capture.is_on().then_some(known) })
}

/// Runs a call's work in its place, or records it if the stream is captured. The device's other
/// work waits meanwhile. If an earlier kernel failed, returns that failure instead.
pub(super) fn ordered(place: &Place, work: impl FnOnce(&'static Device) -> Status) -> Status {
    let _order = place.device.lock();
    place.device.check()?;
    // Another thread may have ended the capture before this one had the lock.
    match place.captured.as_ref().filter(|stream| stream.capture.is_on()) {
        Some(stream) => stream.capture.take_down(place.stream, || work(place.device)),
        None if !late::is_on() => work(place.device),
        None if place.stream.is_null() => {
            late::run_all();
            work(place.device)
        }
        None => {
            let taken = take_down(true, || work(place.device))?;
            late::give(place.stream, place.device, taken);
            Ok(())
        }
    }
}

/// As [`ordered`], for what does not enqueue its work: runs it behind all work of the stream.
pub(super) fn behind(place: &Place, work: impl FnOnce() -> Status) -> Status {
    let _order = place.device.lock();
    if late::is_on() {
        match place.stream.is_null() {
            true => late::run_all(),
            false => late::run_to(late::end_of(place.stream)),
        }
    }
    place.device.check()?;
    work()
}

/// As [`ordered`], in the place of a stream.
pub(crate) fn on_stream(stream: hipStream_t, work: impl FnOnce(&'static Device) -> Status) -> Status {
    ordered(&place(stream, hipErrorContextIsDestroyed)?, work)
}

/// A captured stream, for work that waits for other devices.
#[derive(Clone)]
pub(crate) struct Captured {
    stream: Arc<Stream>,
    handle: usize,
}

impl PartialEq for Captured {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Captured {
    /// Records work that returns whether it succeeded. Each launch of the graph runs it.
    ///
    /// # Safety
    /// As for [`enqueue`](super::enqueue).
    pub(crate) unsafe fn record(&self, work: impl Fn() -> bool + 'static) {
        // SAFETY: the caller's promise.
        let work = unsafe { Work::waiting(work) };
        self.stream.capture.record(self.handle as hipStream_t, vec![work]);
    }
}

/// For work that waits for other devices: waits for a stream's work, and returns the index of its
/// device. If the stream is captured, returns it instead of waiting.
pub(crate) fn in_order(stream: hipStream_t) -> Status<(usize, Option<Captured>)> {
    let place = place(stream, hipErrorContextIsDestroyed)?;
    let index = place.device.index;
    if let Some(captured) = place.captured {
        return Ok((index, Some(Captured { stream: captured, handle: stream as usize })));
    }
    behind(&place, || Ok(()))?;
    Ok((index, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{capture::enqueue, device::device};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn work_runs_if_another_thread_ends_the_capture_first() {
        let known = Arc::new(Stream { device: device(0).unwrap(), capture: Capture::default() });
        let stream = STREAMS.insert(known.clone()) as hipStream_t;
        known.capture.begin(hipStreamCaptureModeRelaxed).unwrap();
        let place = place(stream, hipErrorUnknown).unwrap();
        assert!(known.capture.end(stream, |_, _| ()).unwrap().is_empty());
        let ran = Arc::new(AtomicBool::new(false));
        let runs = ran.clone();
        let work = move || {
            runs.store(true, Ordering::Relaxed);
            Ok(())
        };
        // SAFETY: the work holds nothing but the flag.
        ordered(&place, |_| unsafe { enqueue(work) }).unwrap();
        // In late mode it runs when somebody waits for it.
        behind(&place, || Ok(())).unwrap();
        assert!(ran.load(Ordering::Relaxed));
        STREAMS.remove(stream as usize);
    }
}
