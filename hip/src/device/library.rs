//! The handle of one of AMD's libraries, for one call.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hip_sys::hipStream_t;

use crate::device::Device;
use crate::device::stream::{Stream, Timed};
use crate::error::Result;
use crate::profile::work::{Load, WorkKind};
use crate::watch::profiled;

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
    timed: bool,
}

thread_local! {
    /// The thread's call of a library, from before it is made, if it is profiled.
    static CALL: RefCell<Option<(Arc<Stream>, Timed)>> = const { RefCell::new(None) };
}

/// Ends the profiled call of a library, which has computed something. Its name has what tells it
/// from others of the function.
#[inline]
pub(crate) fn computed<N: AsRef<str>>(name: impl FnOnce() -> N, load: Load) {
    if profiled()
        && let Ok(Some((stream, timed))) = CALL.try_with(RefCell::take)
    {
        stream.end_work(Some(timed), WorkKind::Library, name, load);
    }
}

impl Device {
    /// Launches all deferred ops, makes the device current and locks the handle for one call.
    pub(crate) fn call<'a, H: Bound>(&'a self, handle: &'a Mutex<H>) -> Result<Call<'a, H>> {
        self.make_current()?;
        let captured = self.captures.here();
        // A panic while the handle was locked leaves the handle itself intact.
        let handle = handle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut call = Call { handle, device: self, captured: captured.is_some(), timed: false };
        if let Some(stream) = captured {
            call.bind(stream.handle())?;
        }
        let stream = captured.unwrap_or(&self.compute);
        if let Some(timed) = stream.begin_work() {
            // `try_with` fails only while the thread ends; the call is then not profiled.
            call.timed = CALL.try_with(|call| call.replace(Some((stream.clone(), timed)))).is_ok();
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
        if self.timed {
            // What is left has computed nothing, or failed.
            drop(CALL.try_with(RefCell::take));
        }
        if self.captured
            && let Err(error) = self.handle.bind(self.device.compute.handle())
        {
            self.device.record(error);
        }
    }
}
