//! The handle and the version.

use super::conv::Found;
use crate::numeric::device::in_stream;
use crate::runtime::Handles;
use crate::settings::Failure;
use hip_provider::miopen::{Outcome, answer, status};
use hip_provider::require;
use miopen_sys::*;
use std::sync::{Arc, Mutex};

/// What a `miopenHandle_t` refers to.
pub(crate) struct Handle {
    /// The handle of its stream, which is a number too.
    stream: usize,
    /// The convolutions that find mode has been run for.
    pub(crate) found: Mutex<Vec<Found>>,
}

static HANDLES: Handles<Handle> = Handles::new(0xa5);

/// The version whose behaviour is followed: that of ROCm 7.2.
const VERSION: (usize, usize, usize) = (3, 5, 1);

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
        require(!handle.is_null(), miopenStatusBadParm)?;
        let new = HANDLES.insert(Arc::new(Handle { stream: stream as usize, found: Mutex::default() }));
        // SAFETY: the caller's out-pointer.
        unsafe { answer(handle, new as miopenHandle_t) }
    })
}

pub(super) unsafe extern "C" fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t {
    status(|| HANDLES.remove(handle as usize).map(drop).ok_or(miopenStatusBadParm))
}

/// Runs the body of a call in its handle's stream, in order with the device's other work. An
/// unknown handle is a bad parameter.
pub(super) fn in_order(handle: miopenHandle_t, body: impl FnOnce(&Handle) -> Outcome) -> miopenStatus_t {
    status(|| {
        let handle = HANDLES.get(handle as usize).ok_or(miopenStatusBadParm)?;
        require(!Failure::MiopenKernels.is_asked(), miopenStatusUnknownError)?;
        in_stream(handle.stream as miopenAcceleratorQueue_t, || body(&handle))
            .unwrap_or(Err(miopenStatusInternalError))
    })
}
