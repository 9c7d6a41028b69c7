//! HIP's statuses: their texts, how functions return them, and the calling thread's last error.

use hip_sys::*;
use std::{
    cell::Cell,
    ffi::{CStr, c_char},
};

/// The result of a call of the runtime; the error is HIP's status.
pub type Status<T = ()> = Result<T, hipError_t>;

thread_local! {
    static LAST: Cell<hipError_t> = const { Cell::new(hipSuccess) };
}

/// Runs the body of an API function, so that no panic unwinds into the caller. A failure becomes
/// the thread's last error.
#[inline]
pub fn api(body: impl FnOnce() -> Status) -> hipError_t {
    match crate::boundary(hipSuccess, hipErrorUnknown, body) {
        // `hipErrorNotReady` is an answer, not a failure.
        status @ (hipSuccess | hipErrorNotReady) => status,
        status => failed(status),
    }
}

#[cold]
fn failed(status: hipError_t) -> hipError_t {
    LAST.set(status);
    status
}

/// Gives the calling thread's last error and clears it.
///
/// # Safety
/// There is no precondition, here or for the two functions that return texts; they are `unsafe`
/// only because the table's signatures are.
pub(super) unsafe extern "C" fn hipGetLastError() -> hipError_t {
    LAST.replace(hipSuccess)
}

macro_rules! errors {
    ($( $name:ident $text:literal; )*) => {
        /// The name and the description of a status; `None` for a number that HIP lacks.
        fn describe(error: hipError_t) -> Option<(&'static CStr, &'static CStr)> {
            match error {
                $( $name => Some((
                    const { c_string(concat!(stringify!($name), "\0")) },
                    const { c_string(concat!($text, "\0")) },
                )), )*
                _ => None,
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
    hipSuccess "no error";
    hipErrorInvalidValue "invalid argument";
    hipErrorOutOfMemory "out of memory";
    hipErrorNotInitialized "initialization error";
    hipErrorDeinitialized "driver shutting down";
    hipErrorInvalidConfiguration "invalid configuration argument";
    hipErrorInvalidDevicePointer "invalid device pointer";
    hipErrorInvalidMemcpyDirection "invalid copy direction for memcpy";
    hipErrorInvalidDeviceFunction "invalid device function";
    hipErrorNoDevice "no ROCm-capable device is detected";
    hipErrorInvalidDevice "invalid device ordinal";
    hipErrorInvalidImage "device kernel image is invalid";
    hipErrorInvalidContext "invalid device context";
    hipErrorContextAlreadyCurrent "context is already current context";
    hipErrorNoBinaryForGpu "no kernel image is available for execution on the device";
    hipErrorECCNotCorrectable "uncorrectable ECC error encountered";
    hipErrorPeerAccessUnsupported "peer access is not supported between these two devices";
    hipErrorInvalidKernelFile "invalid kernel file";
    hipErrorInvalidSource "device kernel image is invalid";
    hipErrorFileNotFound "file not found";
    hipErrorInvalidHandle "invalid resource handle";
    hipErrorIllegalState "the operation cannot be performed in the present state";
    hipErrorNotFound "named symbol not found";
    hipErrorNotReady "device not ready";
    hipErrorIllegalAddress "an illegal memory access was encountered";
    hipErrorLaunchOutOfResources "too many resources requested for launch";
    hipErrorLaunchTimeOut "the launch timed out and was terminated";
    hipErrorPeerAccessAlreadyEnabled "peer access is already enabled";
    hipErrorContextIsDestroyed "context is destroyed";
    hipErrorAssert "device-side assert triggered";
    hipErrorLaunchFailure "unspecified launch failure";
    hipErrorCooperativeLaunchTooLarge "too many blocks in cooperative launch";
    hipErrorNotSupported "operation not supported";
    hipErrorStreamCaptureUnsupported "operation not permitted when stream is capturing";
    hipErrorStreamCaptureInvalidated "operation failed due to a previous error during capture";
    hipErrorStreamCaptureMerge "operation would result in a merge of separate capture sequences";
    hipErrorStreamCaptureUnmatched "capture was not ended in the same stream as it began";
    hipErrorStreamCaptureUnjoined "capturing stream has unjoined work";
    hipErrorStreamCaptureIsolation "dependency created on uncaptured work in another stream";
    hipErrorStreamCaptureImplicit "operation would make the legacy stream depend on a capturing blocking stream";
    hipErrorCapturedEvent "operation not permitted on an event last recorded in a capturing stream";
    hipErrorStreamCaptureWrongThread "attempt to terminate a thread-local capture sequence from another thread";
    hipErrorGraphExecUpdateFailure
        "the graph update was not performed because it included changes which violated \
         constraints specific to instantiated graph update";
    hipErrorUnknown "unknown error";
}

/// Whether HIP has a name for a status.
pub fn is_named(error: hipError_t) -> bool {
    describe(error).is_some()
}

/// A status's name.
///
/// # Safety
/// As [`hipGetLastError`].
pub(super) unsafe extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    describe(error).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr()
}

/// A status's description.
///
/// # Safety
/// As [`hipGetLastError`].
pub(super) unsafe extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    describe(error).map_or(c"unknown error", |(_, text)| text).as_ptr()
}

/// Writes a result through the caller's out-pointer; null is an invalid value.
///
/// # Safety
/// `out` is null or may be written to.
pub unsafe fn put<T>(out: *mut T, value: T) -> Status {
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { out.write(value) };
    Ok(())
}
