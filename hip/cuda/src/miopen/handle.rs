//! MIOpen's handle and version.

use super::replay::Replays;
use super::status::{answered, check_buffer};
use super::tensor::Raw;
use crate::runtime::{ensure, uncaptured};
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::{self as provider, Outcome, object, take};
use miopen_sys::*;
use std::cell::Cell;
use std::ptr;

/// What a `miopenHandle_t` points to.
pub(super) struct Handle {
    pub(super) raw: cudnn::cudnnHandle_t,
    stream: Cell<miopenAcceleratorQueue_t>,
    /// The captured graphs of repeated convolutions.
    pub(super) convolutions: Replays,
}

/// A tensor of a call.
pub(super) type Operand<'a> = provider::Operand<'a, Handle>;

impl Handle {
    pub(super) fn stream(&self) -> miopenAcceleratorQueue_t {
        self.stream.get()
    }

    fn set(&self, stream: miopenAcceleratorQueue_t) -> Outcome {
        // SAFETY: the handle is alive, the stream the caller's.
        answered(unsafe { cudnn::cudnnSetStream(self.raw, stream.cast()) })?;
        self.stream.set(stream);
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: cuDNN's handle, which no other code uses.
        let _ = unsafe { cudnn::cudnnDestroy(self.raw) };
    }
}

impl provider::Handle for Handle {
    type Tensor = Raw;

    /// cuDNN's version: major * 10,000 + minor * 100 + patch.
    fn version() -> [usize; 3] {
        // SAFETY: no precondition.
        let version = unsafe { cudnn::cudnnGetVersion() };
        [version / 10_000, version / 100 % 100, version % 100]
    }

    fn create(stream: miopenAcceleratorQueue_t) -> Outcome<miopenHandle_t> {
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        let _held = uncaptured();
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuDNN's, the pointer valid.
        answered(unsafe { cudnn::cudnnCreate(&mut raw) })?;
        // Owned from here on, even if a later call fails.
        let own = Handle { raw, stream: Cell::new(stream), convolutions: Replays::default() };
        own.set(stream)?;
        Ok(Box::into_raw(Box::new(own)).cast())
    }

    unsafe fn set_stream(handle: miopenHandle_t, stream: miopenAcceleratorQueue_t) -> Outcome {
        // SAFETY: the caller vouches for the handle.
        let handle = unsafe { object::<Handle, _>(handle) }?;
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        handle.set(stream)
    }

    unsafe fn destroy(handle: miopenHandle_t) -> Outcome {
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        let _held = uncaptured();
        // SAFETY: the caller's handle, from `create`.
        unsafe { take::<Handle, _>(handle) }
    }

    unsafe fn with(handle: miopenHandle_t, body: impl FnOnce(&Self) -> Outcome) -> Outcome {
        // SAFETY: the caller vouches for the handle.
        let handle = unsafe { object::<Handle, _>(handle) }?;
        ensure().map_err(|_| miopenStatusNotInitialized)?;
        body(handle)
    }
}

/// Refuses operands whose address has no memory of their size.
pub(super) fn check(operands: &[&Operand<'_>]) -> Outcome {
    operands.iter().try_for_each(|operand| check_buffer(operand.at, operand.bytes()))
}
