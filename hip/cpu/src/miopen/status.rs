//! What every MIOpen function shares: statuses as `Result`s, pointers as references, buffers as slices.

use crate::numeric::device::is_device_memory;
use crate::numeric::guard::guarded;
use core::ffi::c_void;
use miopen_sys::*;

/// What the body of a function returns; the error is the C status.
pub(crate) type Outcome<T = ()> = Result<T, miopenStatus_t>;

/// Runs a body at the C boundary.
pub(crate) fn status(body: impl FnOnce() -> Outcome) -> miopenStatus_t {
    guarded(miopenStatusInternalError, || match body() {
        Ok(()) => miopenStatusSuccess,
        Err(status) => status,
    })
}

/// `Err(status)` unless `condition`.
pub(crate) fn require(condition: bool, status: miopenStatus_t) -> Outcome {
    if condition { Ok(()) } else { Err(status) }
}

/// What an opaque pointer of the API points to; null is a bad parameter.
///
/// # Safety
/// A non-null `pointer` came from this library's create function for `T` and is not destroyed.
pub(crate) unsafe fn object<'a, T, P>(pointer: *mut P) -> Outcome<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or(miopenStatusBadParm)
}

/// As [`object`], to change it.
///
/// # Safety
/// As [`object`], and no other thread uses the object: MIOpen's descriptors are not for concurrent change.
pub(crate) unsafe fn object_mut<'a, T, P>(pointer: *mut P) -> Outcome<&'a mut T> {
    // SAFETY: the caller vouches for it.
    unsafe { pointer.cast::<T>().as_mut() }.ok_or(miopenStatusBadParm)
}

/// Hands a new object to the caller through `to`.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub(crate) unsafe fn give<T, P>(to: *mut *mut P, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(Box::into_raw(Box::new(value)).cast::<P>()) };
    Ok(())
}

/// Destroys what [`give`] made.
///
/// # Safety
/// As [`object`]; the pointer is not used again.
pub(crate) unsafe fn take<T, P>(pointer: *mut P) -> Outcome {
    require(!pointer.is_null(), miopenStatusBadParm)?;
    // SAFETY: `give` made it with this type, by the caller's contract.
    drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
    Ok(())
}

/// Writes an answer through an out-pointer; null is a bad parameter.
///
/// # Safety
/// A non-null `to` is valid for a write.
pub(crate) unsafe fn answer<T>(to: *mut T, value: T) -> Outcome {
    require(!to.is_null(), miopenStatusBadParm)?;
    // SAFETY: not null, so valid by the caller's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// A device buffer to read.
///
/// # Safety
/// No one writes the buffer while the slice lives: the stream's order says so.
pub(crate) unsafe fn input<'a, T>(pointer: *const c_void, len: usize) -> Outcome<&'a [T]> {
    require(!pointer.is_null() || len == 0, miopenStatusBadParm)?;
    if len == 0 {
        return Ok(&[]);
    }
    require(pointer.cast::<T>().is_aligned(), miopenStatusBadParm)?;
    require(is_device_memory(pointer, len * size_of::<T>()), miopenStatusBadParm)?;
    // SAFETY: aligned and inside one live allocation; the caller vouches for the rest.
    Ok(unsafe { core::slice::from_raw_parts(pointer.cast::<T>(), len) })
}

/// A device buffer to write.
///
/// # Safety
/// No one else uses the buffer while the slice lives: the stream's order says so, and the caller's arguments
/// don't overlap where MIOpen forbids it.
pub(crate) unsafe fn output<'a, T>(pointer: *mut c_void, len: usize) -> Outcome<&'a mut [T]> {
    require(!pointer.is_null() || len == 0, miopenStatusBadParm)?;
    if len == 0 {
        return Ok(&mut []);
    }
    require(pointer.cast::<T>().is_aligned(), miopenStatusBadParm)?;
    require(is_device_memory(pointer, len * size_of::<T>()), miopenStatusBadParm)?;
    // SAFETY: aligned and inside one live allocation; the caller vouches for the rest.
    Ok(unsafe { core::slice::from_raw_parts_mut(pointer.cast::<T>(), len) })
}

/// A scalar argument (alpha, beta): host memory, `f64` for double tensors, else `f32`.
///
/// # Safety
/// A non-null `pointer` is valid for a read of that type.
pub(crate) unsafe fn scalar(pointer: *const c_void, data: miopenDataType_t) -> Outcome<f64> {
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
pub(crate) unsafe fn plain_scalars(
    alpha: *const c_void,
    beta: *const c_void,
    data: miopenDataType_t,
) -> Outcome {
    // SAFETY: the caller vouches for both.
    let (alpha, beta) = unsafe { (scalar(alpha, data)?, scalar(beta, data)?) };
    require(alpha == 1.0 && beta == 0.0, miopenStatusNotImplemented)
}

/// Calls `$function::<T>($args)` with the Rust type of a floating-point data type; others are not implemented.
macro_rules! by_float {
    ($data:expr, $function:ident($($arg:expr),* $(,)?)) => {
        match $data {
            miopenFloat => $function::<f32>($($arg),*),
            miopenHalf => $function::<half::f16>($($arg),*),
            miopenBFloat16 => $function::<half::bf16>($($arg),*),
            _ => Err(miopenStatusNotImplemented),
        }
    };
}
pub(crate) use by_float;

/// As [`by_float`], for the functions that have no bf16: MIOpen 3.5 finds no solver for it in the forward pass of
/// pooling, in activations and in softmax.
macro_rules! by_single {
    ($data:expr, $function:ident($($arg:expr),* $(,)?)) => {
        match $data {
            miopenFloat => $function::<f32>($($arg),*),
            miopenHalf => $function::<half::f16>($($arg),*),
            _ => Err(miopenStatusNotImplemented),
        }
    };
}
pub(crate) use by_single;
