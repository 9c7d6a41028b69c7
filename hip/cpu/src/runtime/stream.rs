//! Streams. Work in a stream runs at once, in the order of the device's lock, unless the stream is
//! captured.

use super::{
    Handles,
    capture::Capture,
    device::{Device, current},
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
    /// The stream, if it is captured.
    captured: Option<Arc<Stream>>,
}

impl Place {
    /// If the stream is captured: returns this status, for a call that can't be captured, and makes
    /// the capture fail.
    pub(super) fn refuse(&self, status: hipError_t) -> Status {
        self.captured.as_ref().map_or(Ok(()), |stream| stream.capture.refuse(status))
    }
}

/// The place where a stream's work goes. For the default stream it is the current device. `missing`
/// is the error for an unknown stream.
pub(super) fn place(stream: hipStream_t, missing: hipError_t) -> Status<Place> {
    if stream.is_null() {
        return Ok(Place { device: current()?, captured: None });
    }
    let stream = STREAMS.get(stream as usize).ok_or(missing)?;
    Ok(Place { device: stream.device, captured: stream.capture.is_on().then_some(stream) })
}

/// Runs a call's work in its place, or records it if the stream is captured. The device's other
/// work waits meanwhile. If an earlier kernel failed, returns that failure instead.
pub(super) fn ordered(place: &Place, work: impl FnOnce(&'static Device) -> Status) -> Status {
    let _order = place.device.lock();
    place.device.check()?;
    match &place.captured {
        Some(stream) => stream.capture.take_down(|| work(place.device)),
        None => work(place.device),
    }
}

/// As [`ordered`], in the place of a stream.
pub(crate) fn on_stream(stream: hipStream_t, work: impl FnOnce(&'static Device) -> Status) -> Status {
    ordered(&place(stream, hipErrorContextIsDestroyed)?, work)
}

/// Waits for a stream's work, and returns the index of its device. A captured stream refuses: the
/// caller's work can't be captured.
pub(crate) fn in_order(stream: hipStream_t) -> Status<usize> {
    let place = place(stream, hipErrorContextIsDestroyed)?;
    place.refuse(hipErrorStreamCaptureUnsupported)?;
    ordered(&place, |_| Ok(()))?;
    Ok(place.device.index)
}
