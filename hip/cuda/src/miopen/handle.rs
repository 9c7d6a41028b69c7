//! The handle and the version.

use super::conv::Same;
use super::replay::Replays;
use super::status::answered;
use crate::runtime::{ensure, uncaptured};
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{Outcome, give, object, status, take};
use miopen_sys::*;
use std::ptr;

/// What a `miopenHandle_t` points to.
pub(super) struct Handle {
    pub(super) raw: cudnn::cudnnHandle_t,
    pub(super) stream: miopenAcceleratorQueue_t,
    /// Convolutions that were run.
    pub(super) convolutions: Replays<Same>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: cuDNN's handle, used by nobody else.
        let _ = unsafe { cudnn::cudnnDestroy(self.raw) };
    }
}

/// cuDNN's version: major * 10,000 + minor * 100 + patch.
pub(super) unsafe extern "C" fn miopenGetVersion(
    major: *mut usize,
    minor: *mut usize,
    patch: *mut usize,
) -> miopenStatus_t {
    status(|| {
        // SAFETY: no precondition.
        let version = unsafe { cudnn::cudnnGetVersion() };
        // Each may be null: a caller asks for what it wants.
        for (to, value) in [(major, version / 10_000), (minor, version / 100 % 100), (patch, version % 100)] {
            if !to.is_null() {
                // SAFETY: the caller's out-pointer.
                unsafe { to.write(value) };
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn miopenCreateWithStream(
    handle: *mut miopenHandle_t,
    stream: miopenAcceleratorQueue_t,
) -> miopenStatus_t {
    status(|| {
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        let _held = uncaptured();
        let mut raw = ptr::null_mut();
        // SAFETY: the functions are cuDNN's, the pointer valid, the stream the caller's; the handle has an owner at
        // once.
        unsafe {
            answered(cudnn::cudnnCreate(&mut raw))?;
            let own = Handle { raw, stream, convolutions: Replays::default() };
            answered(cudnn::cudnnSetStream(own.raw, stream.cast()))?;
            give(handle, own)
        }
    })
}

pub(super) unsafe extern "C" fn miopenDestroy(handle: miopenHandle_t) -> miopenStatus_t {
    status(|| {
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        let _held = uncaptured();
        // SAFETY: the caller's handle, from `miopenCreateWithStream`.
        unsafe { take::<Handle, _>(handle) }
    })
}

/// Runs the body of a call with its handle, the thread's device made current.
///
/// # Safety
/// A non-null handle comes from [`miopenCreateWithStream`] and is not destroyed.
pub(super) unsafe fn with(handle: miopenHandle_t, body: impl FnOnce(&Handle) -> Outcome) -> miopenStatus_t {
    status(|| {
        // SAFETY: the caller vouches for the handle.
        let handle = unsafe { object::<Handle, _>(handle) }?;
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        body(handle)
    })
}
