//! The handle, the version, the status strings.

use super::conv::Found;
use super::status::{Outcome, give, object, require, status, take};
use crate::numeric::device::in_stream;
use crate::settings::Failure;
use core::ffi::c_char;
use miopen_sys::*;
use std::sync::Mutex;

/// What a `miopenHandle_t` points to.
pub(crate) struct Handle {
    stream: miopenAcceleratorQueue_t,
    /// The convolutions that find mode has been run for.
    pub(crate) found: Mutex<Vec<Found>>,
}

/// The version whose behaviour is followed: that of ROCm 7.2.
const VERSION: (usize, usize, usize) = (3, 5, 1);

pub(super) unsafe extern "C" fn miopenGetErrorString(error: miopenStatus_t) -> *const c_char {
    let text: &core::ffi::CStr = match error {
        miopenStatusSuccess => c"miopenStatusSuccess",
        miopenStatusNotInitialized => c"miopenStatusNotInitialized",
        miopenStatusInvalidValue => c"miopenStatusInvalidValue",
        miopenStatusBadParm => c"miopenStatusBadParm",
        miopenStatusAllocFailed => c"miopenStatusAllocFailed",
        miopenStatusInternalError => c"miopenStatusInternalError",
        miopenStatusNotImplemented => c"miopenStatusNotImplemented",
        miopenStatusUnsupportedOp => c"miopenStatusUnsupportedOp",
        miopenStatusGpuOperationsSkipped => c"miopenStatusGpuOperationsSkipped",
        miopenStatusVersionMismatch => c"miopenStatusVersionMismatch",
        _ => c"miopenStatusUnknownError",
    };
    text.as_ptr()
}

pub(super) unsafe extern "C" fn miopenGetVersion(
    major: *mut usize,
    minor: *mut usize,
    patch: *mut usize,
) -> miopenStatus_t {
    // Each may be null: a caller asks for what it wants.
    for (to, value) in [(major, VERSION.0), (minor, VERSION.1), (patch, VERSION.2)] {
        if !to.is_null() {
            // SAFETY: the caller's out-pointer.
            unsafe { to.write(value) };
        }
    }
    miopenStatusSuccess
}

pub(super) unsafe extern "C" fn miopenCreateWithStream(
    handle: *mut miopenHandle_t,
    stream: miopenAcceleratorQueue_t,
) -> miopenStatus_t {
    status(|| {
        require(!Failure::MiopenHandle.is_asked(), miopenStatusNotInitialized)?;
        // SAFETY: the caller's out-pointer.
        unsafe { give(handle, Handle { stream, found: Mutex::default() }) }
    })
}

pub(super) unsafe extern "C" fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t {
    // SAFETY: the caller's handle, from `miopenCreateWithStream`.
    status(|| unsafe { take::<Handle, _>(handle) })
}

/// Runs the body of a call in its handle's stream: the device's other work waits.
///
/// A safe function, as every entry of the table is unsafe already: its caller vouches for the handle.
pub(super) fn in_order(handle: miopenHandle_t, body: impl FnOnce(&Handle) -> Outcome) -> miopenStatus_t {
    status(|| {
        // SAFETY: a non-null handle came from `miopenCreateWithStream` and is not destroyed, by MIOpen's contract.
        let handle = unsafe { valid(handle) }?;
        require(!Failure::MiopenKernels.is_asked(), miopenStatusUnknownError)?;
        in_stream(handle.stream, || body(handle)).unwrap_or(Err(miopenStatusInternalError))
    })
}

unsafe fn valid<'a>(handle: miopenHandle_t) -> Outcome<&'a Handle> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<Handle, _>(handle) }
}
