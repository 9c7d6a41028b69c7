//! The handle of one of AMD's libraries, for one call.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hip_sys::hipStream_t;

use crate::device::Device;
use crate::error::Result;

/// A handle that is bound to a stream.
pub(crate) trait Bound {
    /// Binds it to another stream, which the caller keeps alive.
    fn bind(&self, stream: hipStream_t) -> Result<()>;
}

/// A locked handle, bound to the stream of the calling thread. Between calls it is bound to the
/// compute stream.
///
/// The handle may move to the captured stream and back because that stream runs nothing. Graphs run
/// on the compute stream, so only that stream uses what the handle owns, such as its workspace.
pub(crate) struct Call<'a, H: Bound> {
    handle: MutexGuard<'a, H>,
    device: &'a Device,
    captured: bool,
}

impl Device {
    /// Launches all deferred ops, makes the device current and locks the handle for one call.
    pub(crate) fn call<'a, H: Bound>(&'a self, handle: &'a Mutex<H>) -> Result<Call<'a, H>> {
        self.make_current()?;
        let captured = self.captures.here();
        // A panic while the handle was locked leaves the handle itself intact.
        let handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        let call = Call { handle, device: self, captured: captured.is_some() };
        if let Some(stream) = captured {
            call.bind(stream.handle())?;
        }
        Ok(call)
    }
}

impl<H: Bound> Deref for Call<'_, H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.handle
    }
}

impl<H: Bound> Drop for Call<'_, H> {
    fn drop(&mut self) {
        if self.captured
            && let Err(error) = self.handle.bind(self.device.compute.handle())
        {
            self.device.record(error);
        }
    }
}
