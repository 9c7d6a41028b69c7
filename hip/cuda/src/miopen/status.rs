//! What every MIOpen function shares: cuDNN's statuses as MIOpen's, buffers that are checked.

use crate::runtime::is_device_memory;
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use hip_provider::miopen::Outcome;
use hip_provider::require;
use miopen_sys::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// cuDNN's answer as MIOpen's.
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

/// A number that no call before was given: of a descriptor as it is now.
pub(super) fn stamp() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Refuses what is no buffer of so many bytes of the runtime's memory.
pub(super) fn check_buffer(pointer: *const c_void, bytes: usize) -> Outcome {
    require(bytes == 0 || is_device_memory(pointer, bytes), miopenStatusBadParm)
}

/// One, as a call with data of a type takes it.
pub(super) fn one(data: miopenDataType_t) -> *const c_void {
    static ONES: (f32, f64) = (1.0, 1.0);
    if data == miopenDouble { (&raw const ONES.1).cast() } else { (&raw const ONES.0).cast() }
}

/// Zero, likewise: its bits are the same in both types.
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
