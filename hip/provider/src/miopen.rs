//! MIOpen: statuses, objects behind pointers, scalars, and what descriptors hold.

mod descriptor;

pub use descriptor::*;

use crate::require;
use core::ffi::{c_char, c_void};
use miopen_sys::*;

/// What the body of a function returns; the error is the C status.
pub type Outcome<T = ()> = Result<T, miopenStatus_t>;

/// Runs a body at the C boundary.
pub fn status(body: impl FnOnce() -> Outcome) -> miopenStatus_t {
    crate::boundary(miopenStatusSuccess, miopenStatusInternalError, body)
}

/// A status's name.
///
/// # Safety
/// None is asked for: the signature is that of the table.
pub unsafe extern "C" fn miopenGetErrorString(error: miopenStatus_t) -> *const c_char {
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

/// What an opaque pointer of the API points to; null is a bad parameter.
///
/// # Safety
/// A non-null `pointer` came from this library's create function for `T` and is not destroyed.
pub unsafe fn object<'a, T, P>(pointer: *mut P) -> Outcome<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(miopenStatusBadParm)
}

/// As [`object`], to change it.
///
/// # Safety
/// As [`object`], and no other thread uses the object: MIOpen's descriptors are not for concurrent change.
pub unsafe fn object_mut<'a, T, P>(pointer: *mut P) -> Outcome<&'a mut T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_mut() }.ok_or(miopenStatusBadParm)
}

/// Hands a new object to the caller through `to`.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub unsafe fn give<T, P>(to: *mut *mut P, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(Box::into_raw(Box::new(value)).cast::<P>()) };
    Ok(())
}

/// Destroys what [`give`] made.
///
/// # Safety
/// As [`object`]; the pointer is not used again.
pub unsafe fn take<T, P>(pointer: *mut P) -> Outcome {
    require(!pointer.is_null(), miopenStatusBadParm)?;
    // SAFETY: `give` made it with this type, by the caller's contract.
    drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
    Ok(())
}

/// Writes an answer through an out-pointer; null is a bad parameter.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub unsafe fn answer<T>(to: *mut T, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// A scalar argument (alpha, beta): host memory, `f64` for double tensors, else `f32`.
///
/// # Safety
/// A non-null `pointer` is valid for a read of that type.
pub unsafe fn scalar(pointer: *const c_void, data: miopenDataType_t) -> Outcome<f64> {
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
pub unsafe fn plain_scalars(alpha: *const c_void, beta: *const c_void, data: miopenDataType_t) -> Outcome {
    // SAFETY: the caller vouches for both.
    let (alpha, beta) = unsafe { (scalar(alpha, data)?, scalar(beta, data)?) };
    require(alpha == 1.0 && beta == 0.0, miopenStatusNotImplemented)
}
