//! Events: points in a stream that the host or another stream can wait for.

use std::ffi::c_uint;
use std::sync::Arc;

use hip_sys::{hipErrorNotReady, hipEvent_t, hipStream_t};

use crate::device::context::{Context, EventKind, count};
use crate::error::{Error, Result};

/// A point in a stream of one device.
pub struct Event {
    context: Arc<Context>,
    raw: hipEvent_t,
    kind: EventKind,
    /// Whether it was recorded in a capture. Such an event is not used again, because HIP does not say
    /// when an event stops belonging to the capture.
    captured: bool,
}

// SAFETY: "HIP APIs are thread safe" (HIP programming guide): an event's handle may be used from
// any thread.
unsafe impl Send for Event {}
// SAFETY: as above; every method takes the handle by value.
unsafe impl Sync for Event {}

impl Event {
    /// An event of this kind, recycled if one is kept.
    pub(crate) fn new(context: &Arc<Context>, kind: EventKind) -> Result<Self> {
        if let Some(raw) = context.take_event(kind) {
            return Ok(Self { context: context.clone(), raw, kind, captured: false });
        }
        Self::make(context, kind)
    }

    /// An event that is recorded in a capture. Streams can wait for it only in that capture, and the
    /// host can't query it.
    pub(crate) fn of_capture(context: &Arc<Context>) -> Result<Self> {
        let mut event = Self::make(context, EventKind::Ordering)?;
        event.captured = true;
        Ok(event)
    }

    fn make(context: &Arc<Context>, kind: EventKind) -> Result<Self> {
        let flags: c_uint = match kind {
            EventKind::Ordering => hip_sys::hipEventDisableTiming,
            EventKind::ToHost => hip_sys::hipEventDisableTiming | hip_sys::hipEventReleaseToSystem,
            EventKind::Timing => hip_sys::hipEventDefault,
        };
        context.bind()?;
        let mut event = Self { context: context.clone(), raw: std::ptr::null_mut(), kind, captured: false };
        // SAFETY: the function is HIP's; it writes one handle, owned here from then on.
        let status = unsafe { (context.hip().hipEventCreateWithFlags)(&mut event.raw, flags) };
        context.check("hipEventCreateWithFlags", status)?;
        Ok(event)
    }

    pub(crate) fn raw(&self) -> hipEvent_t {
        self.raw
    }

    /// Records the event after the work that HIP has received for the stream so far.
    pub(crate) fn record_on(&self, stream: hipStream_t) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the function is HIP's, both handles are alive.
        let status = unsafe { (self.context.hip().hipEventRecord)(self.raw, stream) };
        self.context.check("hipEventRecord", status)
    }

    /// Whether the stream has passed the event; true if the event was never recorded.
    ///
    /// # Errors
    ///
    /// `Device` if HIP reports a failure of the device's work. The functions below return it too.
    pub fn query(&self) -> Result<bool> {
        // SAFETY: the function is HIP's, the handle is ours.
        let status = unsafe { (self.context.hip().hipEventQuery)(self.raw) };
        if status == hipErrorNotReady {
            return Ok(false);
        }
        self.context.check("hipEventQuery", status).map(|()| true)
    }

    /// Waits until the stream has passed the event.
    pub fn synchronize(&self) -> Result<()> {
        count(&self.context.counters.waits);
        // SAFETY: the function is HIP's, the handle is ours.
        let status = unsafe { (self.context.hip().hipEventSynchronize)(self.raw) };
        self.context.check("hipEventSynchronize", status)
    }

    /// Milliseconds from an earlier event to this one. The streams must have passed both.
    ///
    /// # Errors
    /// `Invalid` if either event has no timing
    /// ([`Device::timing_event`](crate::Device::timing_event)).
    pub fn elapsed_since(&self, start: &Event) -> Result<f32> {
        if self.kind != EventKind::Timing || start.kind != EventKind::Timing {
            return Err(Error::invalid("elapsed_since", "two events with timing", "one without"));
        }
        let mut milliseconds = 0.0;
        // SAFETY: the function is HIP's, the handles are ours; it writes one f32.
        let status =
            unsafe { (self.context.hip().hipEventElapsedTime)(&mut milliseconds, start.raw, self.raw) };
        self.context.check("hipEventElapsedTime", status)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        if self.captured {
            // SAFETY: the function is HIP's; nobody else has the handle. The graph has the order
            // that the event stood for, not the event.
            let status = unsafe { (self.context.hip().hipEventDestroy)(self.raw) };
            return self.context.record_status("hipEventDestroy", status);
        }
        // A stream that waits for this event waits for the point that was recorded before the call.
        // A later recording does not move that point.
        self.context.keep_event(self.kind, self.raw);
    }
}
