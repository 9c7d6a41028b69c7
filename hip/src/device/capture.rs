//! HIP's captures of a stream, and what they record.

use std::ptr;

use hip_sys::{hipGraph_t, hipGraphExec_t, hipStream_t};

use crate::device::context::Context;
use crate::error::{Error, Result};

pub(crate) fn no_graphs() -> Error {
    Error::Unsupported { op: "graphs", dtype: "this driver".into() }
}

/// Makes HIP record what the stream is given, instead of running it. Any thread may end it, because
/// it is relaxed: "A stream capture sequence not initiated with the hipStreamCaptureModeRelaxed
/// argument [...] was passed to hipStreamEndCapture in a different thread" is the error of the other
/// modes (`hip_runtime_api.h`, `hipErrorStreamCaptureWrongThread`).
pub(crate) fn begin(context: &Context, stream: hipStream_t) -> Result<()> {
    let Some(begin) = context.hip().hipStreamBeginCapture else { return Err(no_graphs()) };
    context.bind()?;
    // SAFETY: the function is HIP's, and the caller's stream is alive; only the caller has a turn.
    let status = unsafe { begin(stream, hip_sys::hipStreamCaptureModeRelaxed) };
    context.check("hipStreamBeginCapture", status)
}

/// What HIP recorded.
pub(crate) struct Template<'a> {
    context: &'a Context,
    raw: hipGraph_t,
}

impl<'a> Template<'a> {
    /// Ends the capture, also where this fails.
    pub(crate) fn end(context: &'a Context, stream: hipStream_t) -> Result<Self> {
        let Some(end) = context.hip().hipStreamEndCapture else { return Err(no_graphs()) };
        context.bind()?;
        let mut template = Self { context, raw: ptr::null_mut() };
        // SAFETY: the function is HIP's, and the caller's stream is alive; it writes one handle,
        // owned here from then on, or null.
        let status = unsafe { end(stream, &mut template.raw) };
        context.check("hipStreamEndCapture", status)?;
        Ok(template)
    }

    pub(crate) fn instantiate(&self) -> Result<hipGraphExec_t> {
        let Some(instantiate) = self.context.hip().hipGraphInstantiateWithFlags else {
            return Err(no_graphs());
        };
        self.context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the function is HIP's, the graph is alive; it writes one handle.
        let status = unsafe { instantiate(&mut raw, self.raw, 0) };
        self.context.check("hipGraphInstantiateWithFlags", status)?;
        Ok(raw)
    }
}

impl Drop for Template<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = self.context.hip().hipGraphDestroy.filter(|_| !self.raw.is_null()) {
            // SAFETY: the function is HIP's; nobody else has the handle.
            let status = unsafe { destroy(self.raw) };
            self.context.record_status("hipGraphDestroy", status);
        }
    }
}
