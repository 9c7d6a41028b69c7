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

/// The driver's answer. HIP took most of CUDA's numbers over; those that it has no name for become the one that
/// comes nearest.
pub(crate) fn from_cuda(result: CUresult) -> Status {
    match result as u32 {
        0 => Ok(()),
        code => Err(translate(code)),
    }
}

fn translate(code: u32) -> hipError_t {
    match code {
        // A device that another process has for itself, or that is lost or needs a reset.
        46 | 102 => hipErrorInvalidDevice,
        // PTX that is too new, and a compiler that is missing.
        221..=223 => hipErrorInvalidImage,
        // Links between devices, illegal instructions, misaligned and foreign addresses: the context is lost.
        220 | 714..=718 | 721 => hipErrorLaunchFailure,
        800 => hipErrorNotSupported,
        named if describe(named).is_some() => named,
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
    ($( $name:ident $text:literal; )*) => {
        /// The name and the description of HIP's statuses.
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
    hipErrorNoDevice "no device is detected";
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
    hipErrorGraphExecUpdateFailure "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    hipErrorUnknown "unknown error";
}

pub(super) unsafe extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    describe(error).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr()
}

pub(super) unsafe extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    describe(error).map_or(c"unknown error", |(_, text)| text).as_ptr()
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
            (CUresult::CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext),
            (CUresult::CUDA_ERROR_CONTEXT_ALREADY_CURRENT, hipErrorContextAlreadyCurrent),
            (CUresult::CUDA_ERROR_ECC_UNCORRECTABLE, hipErrorECCNotCorrectable),
            (CUresult::CUDA_ERROR_INVALID_PTX, hipErrorInvalidKernelFile),
            (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, hipErrorInvalidImage),
            (CUresult::CUDA_ERROR_INVALID_SOURCE, hipErrorInvalidSource),
            (CUresult::CUDA_ERROR_FILE_NOT_FOUND, hipErrorFileNotFound),
            (CUresult::CUDA_ERROR_ILLEGAL_STATE, hipErrorIllegalState),
            (CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, hipErrorLaunchOutOfResources),
            (CUresult::CUDA_ERROR_LAUNCH_TIMEOUT, hipErrorLaunchTimeOut),
            (CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, hipErrorCooperativeLaunchTooLarge),
            (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, hipErrorStreamCaptureUnsupported),
            (CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, hipErrorStreamCaptureWrongThread),
            (CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, hipErrorLaunchFailure),
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, hipErrorIllegalAddress),
            (CUresult::CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported),
            (CUresult::CUDA_ERROR_TIMEOUT, hipErrorUnknown),
        ] {
            assert_eq!(from_cuda(cuda), Err(hip));
        }
        // SAFETY: a static text for any status.
        let name = |status| unsafe { CStr::from_ptr(hipGetErrorName(status)) };
        assert_eq!(name(hipErrorLaunchOutOfResources), c"hipErrorLaunchOutOfResources");
        assert_eq!(name(12345), c"hipErrorUnknown");
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
