//! hipRTC: the boundary, the names of statuses.

use core::ffi::c_char;
use hip_sys::*;

/// What a call comes to.
pub type Status<T = ()> = Result<T, hiprtcResult>;

/// The body of an API function: nothing unwinds into the caller.
pub fn api(body: impl FnOnce() -> Status) -> hiprtcResult {
    crate::boundary(HIPRTC_SUCCESS, HIPRTC_ERROR_INTERNAL_ERROR, body)
}

/// A status's name.
///
/// # Safety
/// None is asked for: the signature is that of the table.
pub unsafe extern "C" fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char {
    let text = match result {
        HIPRTC_SUCCESS => c"HIPRTC_SUCCESS",
        HIPRTC_ERROR_OUT_OF_MEMORY => c"HIPRTC_ERROR_OUT_OF_MEMORY",
        HIPRTC_ERROR_PROGRAM_CREATION_FAILURE => c"HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
        HIPRTC_ERROR_INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        HIPRTC_ERROR_INVALID_PROGRAM => c"HIPRTC_ERROR_INVALID_PROGRAM",
        HIPRTC_ERROR_INVALID_OPTION => c"HIPRTC_ERROR_INVALID_OPTION",
        HIPRTC_ERROR_COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        7 => c"HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION => {
            c"HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION"
        }
        HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION => {
            c"HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION"
        }
        HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID => c"HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}
