//! Shared by all of MIOpen's functions: buffers as slices, and dispatch on data types.

use crate::numeric::device::is_device_memory;
use core::ffi::c_void;
use hip_provider::miopen::Outcome;
use hip_provider::require;
use miopen_sys::*;

/// A device buffer to read.
///
/// # Safety
/// No other code writes the buffer while the slice lives, which the stream's order ensures.
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
/// No other code uses the buffer while the slice lives, which the stream's order ensures. The
/// caller's arguments don't overlap where MIOpen forbids it.
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

/// Calls `$function::<T>($args)` with the Rust type of a data type: f32, f16 or bf16. Other types
/// are not implemented.
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

/// As [`by_float`], without bf16: MIOpen 3.5 has no bf16 solver for forward pooling, activations
/// and softmax.
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

/// `by_float!` and `by_single!` call this to refuse other types before a call is enqueued. A call
/// in a captured stream runs only when the graph is launched, which is too late to refuse it.
#[allow(clippy::extra_unused_type_parameters, reason = "whether there is one for the type is the question")]
pub(crate) fn known<T>() -> Outcome {
    Ok(())
}
