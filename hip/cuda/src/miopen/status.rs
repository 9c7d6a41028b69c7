//! Shared by all of MIOpen's functions: the translation of cuDNN's statuses, checks of buffers, and
//! scalars.

use crate::runtime::is_device_memory;
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::Outcome;
use hip_provider::require;
use miopen_sys::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// cuDNN's status as MIOpen's.
pub(super) fn answered(status: cudnn::cudnnStatus_t) -> Outcome {
    Err(match status as u32 {
        0 => return Ok(()),
        1001 => miopenStatusNotInitialized,
        1002 | 1003 => miopenStatusVersionMismatch,
        2001 => miopenStatusInvalidValue,
        2000..=2999 => miopenStatusBadParm,
        3000..=3999 => miopenStatusNotImplemented,
        4003 | 4004 => miopenStatusAllocFailed,
        4000..=5999 => miopenStatusInternalError,
        _ => miopenStatusUnknownError,
    })
}

/// A number that was not used before, which identifies the current state of a descriptor.
pub(super) fn stamp() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Refuses a range that is not inside one of the runtime's allocations.
pub(super) fn check_buffer(pointer: *const c_void, bytes: usize) -> Outcome {
    require(bytes == 0 || is_device_memory(pointer, bytes), miopenStatusBadParm)
}

/// The scalar 1 for a call with data of this type.
pub(super) fn one(data: miopenDataType_t) -> *const c_void {
    static ONES: (f32, f64) = (1.0, 1.0);
    if data == miopenDouble { (&raw const ONES.1).cast() } else { (&raw const ONES.0).cast() }
}

/// The scalar 0. Its bits are the same in both types.
pub(super) fn zero() -> *const c_void {
    static ZERO: f64 = 0.0;
    (&raw const ZERO).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_amds() {
        use cudnn::cudnnStatus_t::*;
        assert_eq!(answered(CUDNN_STATUS_SUCCESS), Ok(()));
        for (from, to) in [
            (CUDNN_STATUS_BAD_PARAM, miopenStatusBadParm),
            (CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, miopenStatusBadParm),
            (CUDNN_STATUS_NOT_SUPPORTED, miopenStatusNotImplemented),
            (CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, miopenStatusNotImplemented),
            (CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, miopenStatusAllocFailed),
            (CUDNN_STATUS_EXECUTION_FAILED, miopenStatusInternalError),
        ] {
            assert_eq!(answered(from), Err(to));
        }
    }
}
