//! Statuses: CUDA's as HIP's, and the calling thread's last error.

use super::Status;
use cudarc::driver::sys::CUresult;
use hip_sys::*;
use std::{
    cell::Cell,
    ffi::{CStr, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static LAST: Cell<hipError_t> = const { Cell::new(hipSuccess) };
}

/// The driver's answer. HIP took most of CUDA's numbers over; those that it has no name for become the one that comes nearest.
pub(crate) fn from_cuda(result: CUresult) -> Status {
    match result as u32 {
        0 => Ok(()),
        code => Err(translate(code)),
    }
}

fn translate(code: u32) -> hipError_t {
    match code {
        // Named alike.
        1..=4 | 100 | 101 | 200 | 209 | 217 | 400 | 500 | 600 | 700 | 704 | 709 | 710 | 719 | 801 => code,
        // A device that another process has for itself, or that is lost or needs a reset.
        46 | 102 => hipErrorInvalidDevice,
        201 | 202 => hipErrorInvalidValue,
        // PTX that is damaged or too new, and a compiler that is missing.
        218 | 221..=223 | 300 => hipErrorInvalidImage,
        // Too many registers or too much shared memory for the block.
        701 => hipErrorInvalidConfiguration,
        // Timeouts, illegal instructions, misaligned and foreign addresses, ECC errors: the context is lost.
        214 | 220 | 702 | 714..=718 | 721 => hipErrorLaunchFailure,
        800 => hipErrorNotSupported,
        _ => hipErrorUnknown,
    }
}

/// The body of an API function: nothing unwinds into the caller, a failure becomes the thread's last error.
#[inline]
pub(super) fn api(body: impl FnOnce() -> Status) -> hipError_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => hipSuccess,
        Ok(Err(status)) => failed(status),
        Err(_) => failed(hipErrorUnknown),
    }
}

#[cold]
fn failed(status: hipError_t) -> hipError_t {
    // Not finished is an answer.
    if status != hipErrorNotReady {
        LAST.set(status);
    }
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
    100 hipErrorNoDevice "no device is detected";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_amds() {
        assert_eq!(from_cuda(CUresult::CUDA_SUCCESS), Ok(()));
        for (cuda, hip) in [
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory),
            (CUresult::CUDA_ERROR_NO_DEVICE, hipErrorNoDevice),
            (CUresult::CUDA_ERROR_INVALID_PTX, hipErrorInvalidImage),
            (CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, hipErrorInvalidConfiguration),
            (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, hipErrorLaunchFailure),
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, hipErrorIllegalAddress),
            (CUresult::CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported),
            (CUresult::CUDA_ERROR_TIMEOUT, hipErrorUnknown),
        ] {
            assert_eq!(from_cuda(cuda), Err(hip));
        }
    }

    #[test]
    fn a_failure_is_the_threads_last_error_once() {
        assert_eq!(api(|| Err(hipErrorInvalidValue)), hipErrorInvalidValue);
        assert_eq!(api(|| Err(hipErrorNotReady)), hipErrorNotReady);
        // SAFETY: no precondition.
        let twice = unsafe { [hipGetLastError(), hipGetLastError()] };
        assert_eq!(twice, [hipErrorInvalidValue, hipSuccess]);
        assert_eq!(api(|| panic!("must not unwind into C")), hipErrorUnknown);
    }
}
