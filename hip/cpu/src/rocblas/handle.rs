//! The handle, the version, the status strings.

use crate::numeric::device::{in_stream, is_device_memory};
use crate::numeric::guard::guarded;
use crate::settings::Failure;
use core::ffi::{c_char, c_void};
use hip_sys::hipStream_t;
use rocblas_sys::*;

/// What a `rocblas_handle` points to.
pub(super) struct Handle {
    stream: hipStream_t,
}

/// The version whose behaviour is followed: that of ROCm 7.2.
const VERSION: &core::ffi::CStr = c"5.2.0";

/// What the body of a function returns; the error is the C status.
pub(super) type Outcome<T = ()> = Result<T, rocblas_status>;

/// `Err(status)` unless `condition`.
pub(super) fn require(condition: bool, status: rocblas_status) -> Outcome {
    if condition { Ok(()) } else { Err(status) }
}

fn status(body: impl FnOnce() -> Outcome) -> rocblas_status {
    guarded(rocblas_status_internal_error, || match body() {
        Ok(()) => rocblas_status_success,
        Err(status) => status,
    })
}

/// Runs a computation in the handle's stream.
///
/// # Safety
/// A non-null `handle` came from `rocblas_create_handle` and is not destroyed.
pub(super) unsafe fn compute(handle: rocblas_handle, body: impl FnOnce() -> Outcome) -> rocblas_status {
    status(|| {
        // SAFETY: the caller vouches for it.
        let handle = unsafe { valid(handle) }?;
        require(!Failure::RocblasProducts.is_asked(), rocblas_status_arch_mismatch)?;
        in_stream(handle.stream, body).unwrap_or(Err(rocblas_status_internal_error))
    })
}

unsafe fn valid<'a>(handle: rocblas_handle) -> Outcome<&'a mut Handle> {
    // SAFETY: the caller vouches for it; rocBLAS's handles are for one thread at a time.
    unsafe { handle.cast::<Handle>().as_mut() }.ok_or(rocblas_status_invalid_handle)
}

/// Refuses a buffer of `len` elements that is not device memory. The span may lie before `pointer`.
pub(super) fn check<T>(pointer: *const T, (first, last): (i64, i64)) -> Outcome {
    let bytes = (last - first + 1).max(0) as usize * size_of::<T>();
    let start = pointer.wrapping_offset(first as isize);
    require(is_device_memory(start, bytes), rocblas_status_invalid_pointer)
}

/// The first and the last element of `batch` matrices of `rows` x `columns`, as offsets; none of them empty.
pub(super) fn span(rows: i32, columns: i32, ld: i32, stride: i64, batch: i32) -> Outcome<(i64, i64)> {
    let own = (i64::from(columns) - 1) * i64::from(ld) + i64::from(rows) - 1;
    let far = stride.checked_mul(i64::from(batch) - 1).ok_or(rocblas_status_invalid_size)?;
    let end = own.checked_add(far.max(0)).ok_or(rocblas_status_invalid_size)?;
    Ok((far.min(0), end))
}

pub(super) unsafe extern "C" fn rocblas_create_handle(handle: *mut rocblas_handle) -> rocblas_status {
    status(|| {
        require(!handle.is_null(), rocblas_status_invalid_handle)?;
        require(!Failure::RocblasHandle.is_asked(), rocblas_status_memory_error)?;
        let own = Box::new(Handle { stream: core::ptr::null_mut() });
        // SAFETY: the caller's out-pointer.
        unsafe { handle.write(Box::into_raw(own).cast()) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status {
    status(|| {
        require(!handle.is_null(), rocblas_status_invalid_handle)?;
        // SAFETY: `rocblas_create_handle` made it; the caller uses it no more.
        drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_set_stream(
    handle: rocblas_handle,
    stream: hipStream_t,
) -> rocblas_status {
    status(|| {
        // SAFETY: the caller's handle.
        unsafe { valid(handle) }?.stream = stream;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_get_stream(
    handle: rocblas_handle,
    stream: *mut hipStream_t,
) -> rocblas_status {
    status(|| {
        // SAFETY: the caller's handle.
        let own = unsafe { valid(handle) }?.stream;
        require(!stream.is_null(), rocblas_status_invalid_pointer)?;
        // SAFETY: the caller's out-pointer.
        unsafe { stream.write(own) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_set_pointer_mode(
    handle: rocblas_handle,
    pointer_mode: rocblas_pointer_mode,
) -> rocblas_status {
    status(|| {
        // SAFETY: the caller's handle. Host and device memory are one here, so that the mode changes nothing.
        unsafe { valid(handle) }?;
        require(pointer_mode.name().is_some(), rocblas_status_invalid_value)
    })
}

pub(super) unsafe extern "C" fn rocblas_set_atomics_mode(
    handle: rocblas_handle,
    atomics_mode: rocblas_atomics_mode,
) -> rocblas_status {
    status(|| {
        // SAFETY: the caller's handle. No function here uses atomics.
        unsafe { valid(handle) }?;
        require(atomics_mode.name().is_some(), rocblas_status_invalid_value)
    })
}

pub(super) unsafe extern "C" fn rocblas_initialize() {}

pub(super) unsafe extern "C" fn rocblas_status_to_string(status: rocblas_status) -> *const c_char {
    let text: &core::ffi::CStr = match status {
        rocblas_status_success => c"rocblas_status_success",
        rocblas_status_invalid_handle => c"rocblas_status_invalid_handle",
        rocblas_status_not_implemented => c"rocblas_status_not_implemented",
        rocblas_status_invalid_pointer => c"rocblas_status_invalid_pointer",
        rocblas_status_invalid_size => c"rocblas_status_invalid_size",
        rocblas_status_memory_error => c"rocblas_status_memory_error",
        rocblas_status_internal_error => c"rocblas_status_internal_error",
        rocblas_status_perf_degraded => c"rocblas_status_perf_degraded",
        rocblas_status_size_query_mismatch => c"rocblas_status_size_query_mismatch",
        rocblas_status_size_increased => c"rocblas_status_size_increased",
        rocblas_status_size_unchanged => c"rocblas_status_size_unchanged",
        rocblas_status_invalid_value => c"rocblas_status_invalid_value",
        rocblas_status_continue => c"rocblas_status_continue",
        rocblas_status_check_numerics_fail => c"rocblas_status_check_numerics_fail",
        rocblas_status_excluded_from_build => c"rocblas_status_excluded_from_build",
        rocblas_status_arch_mismatch => c"rocblas_status_arch_mismatch",
        _ => c"<undefined rocblas_status value>",
    };
    text.as_ptr()
}

pub(super) unsafe extern "C" fn rocblas_get_version_string_size(len: *mut usize) -> rocblas_status {
    status(|| {
        require(!len.is_null(), rocblas_status_invalid_pointer)?;
        // SAFETY: the caller's out-pointer.
        unsafe { len.write(VERSION.to_bytes_with_nul().len()) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> rocblas_status {
    status(|| {
        let text = VERSION.to_bytes_with_nul();
        require(!buf.is_null(), rocblas_status_invalid_pointer)?;
        require(len >= text.len(), rocblas_status_invalid_size)?;
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), text.len()) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_set_workspace(
    handle: rocblas_handle,
    addr: *mut c_void,
    size: usize,
) -> rocblas_status {
    status(|| {
        // SAFETY: the caller's handle. Scratch memory here is the threads' own; the workspace stays unused.
        unsafe { valid(handle) }?;
        require(addr.is_null() || is_device_memory(addr, size), rocblas_status_invalid_pointer)
    })
}
