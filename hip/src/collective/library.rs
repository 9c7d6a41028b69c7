//! RCCL's statuses as results, and its handle of a rank.

use std::ffi::CStr;
use std::sync::Arc;

use rccl_sys::{Rccl, ncclComm_t, ncclInProgress, ncclResult_t, ncclSuccess};

use crate::device::Device;
use crate::error::{Error, Result, static_text};

/// RCCL's functions.
#[derive(Clone, Copy)]
pub(super) struct Library(pub(super) &'static Rccl);

impl Library {
    /// A status as a `Result`. `detail` says who called what.
    pub(super) fn check(
        self,
        call: &'static str,
        status: ncclResult_t,
        detail: impl FnOnce() -> String,
    ) -> Result<()> {
        if status == ncclSuccess { Ok(()) } else { Err(self.error(call, status, &detail())) }
    }

    /// As [`check`](Self::check), but `ncclInProgress` is no error: then a library that does not block
    /// continues the call after it has returned. Returns whether it does.
    pub(super) fn begun(
        self,
        call: &'static str,
        status: ncclResult_t,
        detail: impl FnOnce() -> String,
    ) -> Result<bool> {
        if status == ncclInProgress { Ok(true) } else { self.check(call, status, detail).map(|()| false) }
    }

    #[cold]
    pub(super) fn error(self, call: &'static str, status: ncclResult_t, detail: &str) -> Error {
        // SAFETY: RCCL returns a static text for any value.
        let meaning = unsafe { static_text((self.0.ncclGetErrorString)(status)) };
        let name = status.name().map_or_else(|| format!("status {}", status.0), str::to_owned);
        // The library's last words may be of an earlier call, or a warning.
        let said = self.0.ncclGetLastError.map(|last| {
            // SAFETY: the function is RCCL's; it takes null for "any communicator". The text is a
            // static buffer, whose last byte is always 0. Another thread's error may overwrite it
            // meanwhile, and then the text is a mixture.
            unsafe {
                let text = last(std::ptr::null_mut());
                if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into() }
            }
        });
        let said = said.unwrap_or_default();
        let said = if said.trim().is_empty() { said } else { format!("; it last said: {}", said.trim()) };
        Error::Collective { call, name, detail: format!("{detail}: {meaning}{said}") }
    }
}

/// RCCL's handle of one rank. Dropping it aborts the rank's work.
pub(super) struct Handle {
    library: Library,
    device: Arc<Device>,
    /// Null once it was given back.
    raw: ncclComm_t,
}

// SAFETY: RCCL allows any thread to use a communicator, one at a time, and to ask for its error
// meanwhile (NCCL user guide, "Thread Safety" and "Fault Tolerance").
unsafe impl Send for Handle {}

impl Handle {
    /// Owns what `ncclCommInitRank` made.
    pub(super) fn new(library: Library, device: Arc<Device>, raw: ncclComm_t) -> Self {
        Self { library, device, raw }
    }

    pub(super) fn raw(&self) -> ncclComm_t {
        self.raw
    }

    /// The error that the library found outside of calls.
    pub(super) fn asynchronous(&self) -> Result<()> {
        self.is_ready().map(|_| ())
    }

    /// Whether the library has finished the rank's last call. A library that does not block
    /// (`NCCL_COMM_BLOCKING=0`) continues a call in its own thread after the call has returned. Then no
    /// other thread may be in a call of the rank: here NCCL ends its thread without taking a lock.
    ///
    /// # Errors
    /// The error that the library found.
    pub(super) fn is_ready(&self) -> Result<bool> {
        let mut status = ncclSuccess;
        // SAFETY: the function is RCCL's, the handle is ours; it writes one status.
        let asked = unsafe { (self.library.0.ncclCommGetAsyncError)(self.raw, &mut status) };
        self.library.check("ncclCommGetAsyncError", asked, || "this rank's state is unknown".into())?;
        let beside = || String::from("an error beside this rank's calls");
        self.library.begun("ncclCommGetAsyncError", status, beside).map(|goes_on| !goes_on)
    }

    /// Gives the handle back after the rank's work has ended.
    pub(super) fn destroy(mut self) {
        self.give_back("ncclCommDestroy", self.library.0.ncclCommDestroy);
    }

    fn give_back(&mut self, call: &'static str, function: unsafe extern "C" fn(ncclComm_t) -> ncclResult_t) {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return;
        }
        let bound = self.device.context.bind();
        // SAFETY: the function is RCCL's. Nobody uses the handle after it. An abort beside a call of
        // another thread ends that call (`Member::may_abort_beside`).
        let status = unsafe { function(raw) };
        if let Err(error) = bound.and(self.library.begun(call, status, || "a rank ends".into())) {
            log::warn!("{error}");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.give_back("ncclCommAbort", self.library.0.ncclCommAbort);
    }
}
