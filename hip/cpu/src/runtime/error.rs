//! Statuses, the last error, and what became of kernels that failed.

use super::Status;
use hip_sys::*;
use std::{
    cell::Cell,
    ffi::{CStr, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// A kernel's failure, as lockstep found it.
#[cfg_attr(not(lockstep), allow(dead_code))]
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) status: hipError_t,
    pub(crate) text: String,
}

thread_local! {
    static LAST: Cell<hipError_t> = const { Cell::new(hipSuccess) };
}

static LAST_FAULT: Mutex<Option<String>> = Mutex::new(None);

/// What the last failed kernel did, in words; `None` if none failed. Lockstep alone finds such failures.
pub fn last_fault() -> Option<String> {
    LAST_FAULT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[cfg(lockstep)]
pub(super) fn keep_fault(fault: &Fault) {
    log::error!("hip-cpu: {}", fault.text);
    *LAST_FAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.text.clone());
}

/// The body of an API function: nothing unwinds into the caller, a failure becomes the thread's last error.
pub(super) fn api(body: impl FnOnce() -> Status) -> hipError_t {
    let status = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return hipSuccess,
        Ok(Err(status)) => status,
        Err(_) => hipErrorUnknown,
    };
    LAST.set(status);
    status
}

pub(super) unsafe extern "C" fn hipGetLastError() -> hipError_t {
    LAST.replace(hipSuccess)
}

macro_rules! errors {
    ($( $value:literal $name:ident $text:literal; )*) => {
        fn describe(error: hipError_t) -> (&'static CStr, &'static CStr) {
            match error {
                $( $value => (
                    const { c_string(concat!(stringify!($name), "\0")) },
                    const { c_string(concat!($text, "\0")) },
                ), )*
                _ => (c"hipErrorUnknown", c"unknown error"),
            }
        }
    };
}

const fn c_string(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("one NUL, at the end"),
    }
}

errors! {
    0 hipSuccess "no error";
    1 hipErrorInvalidValue "invalid argument";
    2 hipErrorOutOfMemory "out of memory";
    3 hipErrorNotInitialized "initialization error";
    4 hipErrorDeinitialized "driver shutting down";
    9 hipErrorInvalidConfiguration "invalid configuration argument";
    17 hipErrorInvalidDevicePointer "invalid device pointer";
    21 hipErrorInvalidMemcpyDirection "invalid copy direction for memcpy";
    98 hipErrorInvalidDeviceFunction "invalid device function";
    100 hipErrorNoDevice "no ROCm-capable device is detected";
    101 hipErrorInvalidDevice "invalid device ordinal";
    200 hipErrorInvalidImage "device kernel image is invalid";
    209 hipErrorNoBinaryForGpu "no kernel image is available for execution on the device";
    217 hipErrorPeerAccessUnsupported "peer access is not supported between these two devices";
    400 hipErrorInvalidHandle "invalid resource handle";
    500 hipErrorNotFound "named symbol not found";
    600 hipErrorNotReady "device not ready";
    700 hipErrorIllegalAddress "an illegal memory access was encountered";
    704 hipErrorPeerAccessAlreadyEnabled "peer access is already enabled";
    709 hipErrorContextIsDestroyed "context is destroyed";
    710 hipErrorAssert "device-side assert triggered";
    719 hipErrorLaunchFailure "unspecified launch failure";
    801 hipErrorNotSupported "operation not supported";
    999 hipErrorUnknown "unknown error";
}

pub(super) unsafe extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    describe(error).0.as_ptr()
}

pub(super) unsafe extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    describe(error).1.as_ptr()
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `out` is null or may be written to.
pub(super) unsafe fn put<T>(out: *mut T, value: T) -> Status {
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { out.write(value) };
    Ok(())
}
