//! What every MIOpen function shares: statuses as `Result`s, pointers as references, buffers that are checked.

use crate::runtime::is_device_memory;
use core::ffi::c_void;
use cudarc::cudnn::sys as cudnn;
use miopen_sys::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the body of a function returns; the error is the C status.
pub(super) type Outcome<T = ()> = Result<T, miopenStatus_t>;

/// Runs a body at the C boundary.
pub(super) fn status(body: impl FnOnce() -> Outcome) -> miopenStatus_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => miopenStatusSuccess,
        Ok(Err(status)) => status,
        Err(_) => miopenStatusInternalError,
    }
}

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

/// `Err(status)` unless `condition`.
pub(super) fn require(condition: bool, status: miopenStatus_t) -> Outcome {
    if condition { Ok(()) } else { Err(status) }
}

/// What an opaque pointer of the API points to; null is a bad parameter.
///
/// # Safety
/// A non-null `pointer` came from this library's create function for `T` and is not destroyed.
pub(super) unsafe fn object<'a, T, P>(pointer: *mut P) -> Outcome<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(miopenStatusBadParm)
}

/// As [`object`], to change it.
///
/// # Safety
/// As [`object`], and no other thread uses the object: MIOpen's descriptors are not for concurrent change.
pub(super) unsafe fn object_mut<'a, T, P>(pointer: *mut P) -> Outcome<&'a mut T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_mut() }.ok_or(miopenStatusBadParm)
}

/// Hands a new object to the caller through `to`.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub(super) unsafe fn give<T, P>(to: *mut *mut P, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(Box::into_raw(Box::new(value)).cast::<P>()) };
    Ok(())
}

/// Destroys what [`give`] made.
///
/// # Safety
/// As [`object`]; the pointer is not used again.
pub(super) unsafe fn take<T, P>(pointer: *mut P) -> Outcome {
    require(!pointer.is_null(), miopenStatusBadParm)?;
    // SAFETY: `give` made it with this type, by the caller's contract.
    drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
    Ok(())
}

/// Writes an answer through an out-pointer; null is a bad parameter.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub(super) unsafe fn answer<T>(to: *mut T, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(value) };
    Ok(())
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

/// A scalar argument (alpha, beta): host memory, `f64` for double tensors, else `f32`.
///
/// # Safety
/// A non-null `pointer` is valid for a read of that type.
pub(super) unsafe fn scalar(pointer: *const c_void, data: miopenDataType_t) -> Outcome<f64> {
    require(!pointer.is_null(), miopenStatusBadParm)?;
    // SAFETY: the caller vouches for the read.
    Ok(unsafe {
        if data == miopenDouble {
            pointer.cast::<f64>().read_unaligned()
        } else {
            f64::from(pointer.cast::<f32>().read_unaligned())
        }
    })
}

/// Refuses scalars other than alpha = 1, beta = 0, which is all that most of MIOpen's functions take.
///
/// # Safety
/// As [`scalar`].
pub(super) unsafe fn plain_scalars(
    alpha: *const c_void,
    beta: *const c_void,
    data: miopenDataType_t,
) -> Outcome {
    // SAFETY: the caller vouches for both.
    let (alpha, beta) = unsafe { (scalar(alpha, data)?, scalar(beta, data)?) };
    require(alpha == 1.0 && beta == 0.0, miopenStatusNotImplemented)
}

/// The scalars of a call with f32 or shorter data.
pub(super) static ONE: f32 = 1.0;
pub(super) static ZERO: f32 = 0.0;

pub(super) fn one() -> *const c_void {
    (&raw const ONE).cast()
}

pub(super) fn zero() -> *const c_void {
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
