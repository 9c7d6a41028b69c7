//! The handle, the version, the status strings.

use crate::runtime::{ensure, uncaptured};
use crate::settings::tf32;
use core::ffi::{c_char, c_void};
use cudarc::cublas::sys as cublas;
use hip_sys::hipStream_t;
use rocblas_sys::*;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

/// What a `rocblas_handle` points to.
pub(super) struct Handle {
    pub(super) raw: cublas::cublasHandle_t,
    pub(super) stream: hipStream_t,
    pub(super) scalars_on_host: bool,
}

impl Handle {
    /// Destroys cuBLAS's handle, once.
    fn destroy(&mut self) -> Outcome {
        match std::mem::replace(&mut self.raw, ptr::null_mut()) {
            raw if raw.is_null() => Ok(()),
            // SAFETY: cuBLAS made it, and nobody uses it any more.
            raw => answer(unsafe { cublas::cublasDestroy_v2(raw) }),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(status) = self.destroy() {
            log::warn!("cublasDestroy_v2 failed: {status:?}");
        }
    }
}

/// What the body of a function returns; the error is the C status.
pub(super) type Outcome<T = ()> = Result<T, rocblas_status>;

/// `Err(status)` unless `condition`.
pub(super) fn require(condition: bool, status: rocblas_status) -> Outcome {
    if condition { Ok(()) } else { Err(status) }
}

/// cuBLAS's answer as rocBLAS's.
pub(super) fn answer(status: cublas::cublasStatus_t) -> Outcome {
    Err(match status as u32 {
        0 => return Ok(()),
        1 => rocblas_status_invalid_handle,
        3 => rocblas_status_memory_error,
        7 => rocblas_status_invalid_value,
        8 => rocblas_status_arch_mismatch,
        15 => rocblas_status_not_implemented,
        _ => rocblas_status_internal_error,
    })
}

pub(super) fn status(body: impl FnOnce() -> Outcome) -> rocblas_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => rocblas_status_success,
        Ok(Err(status)) => status,
        Err(_) => rocblas_status_internal_error,
    }
}

/// Runs a call with its handle, the thread's device made current.
///
/// # Safety
/// A non-null `handle` came from `rocblas_create_handle` and is not destroyed.
pub(super) unsafe fn with(
    handle: rocblas_handle,
    body: impl FnOnce(&mut Handle) -> Outcome,
) -> rocblas_status {
    status(|| {
        // SAFETY: the caller vouches for it; rocBLAS's handles are for one thread at a time.
        let handle = unsafe { handle.cast::<Handle>().as_mut() }.ok_or(rocblas_status_invalid_handle)?;
        ensure().map_err(|_| rocblas_status_internal_error)?;
        body(handle)
    })
}

pub(super) unsafe extern "C" fn rocblas_create_handle(handle: *mut rocblas_handle) -> rocblas_status {
    status(|| {
        require(!handle.is_null(), rocblas_status_invalid_handle)?;
        ensure().map_err(|_| rocblas_status_internal_error)?;
        let _held = uncaptured();
        let mut raw = ptr::null_mut();
        // SAFETY: the functions are cuBLAS's, the pointer valid, the handle alive; the out-pointer is the caller's.
        unsafe {
            answer(cublas::cublasCreate_v2(&mut raw)).map_err(|status| match status {
                // cuBLAS's "not initialised": no driver, or no resources. There is no handle that could be wrong.
                rocblas_status_invalid_handle => rocblas_status_internal_error,
                other => other,
            })?;
            // Owned from here on, also where the rest fails.
            let own = Box::new(Handle { raw, stream: ptr::null_mut(), scalars_on_host: true });
            let mode = if tf32() {
                cublas::cublasMath_t::CUBLAS_TF32_TENSOR_OP_MATH
            } else {
                // Sums of f16 and bf16 stay in f32 where a product is split.
                cublas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
            };
            answer(cublas::cublasSetMathMode(raw, mode))?;
            handle.write(Box::into_raw(own).cast());
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status {
    status(|| {
        require(!handle.is_null(), rocblas_status_invalid_handle)?;
        ensure().map_err(|_| rocblas_status_internal_error)?;
        let _held = uncaptured();
        // SAFETY: `rocblas_create_handle` made it; the caller uses it no more.
        let mut own = unsafe { Box::from_raw(handle.cast::<Handle>()) };
        own.destroy()
    })
}

pub(super) unsafe extern "C" fn rocblas_set_stream(
    handle: rocblas_handle,
    stream: hipStream_t,
) -> rocblas_status {
    // SAFETY: the caller's handle and stream.
    unsafe {
        with(handle, |handle| {
            answer(cublas::cublasSetStream_v2(handle.raw, stream.cast()))?;
            handle.stream = stream;
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn rocblas_get_stream(
    handle: rocblas_handle,
    stream: *mut hipStream_t,
) -> rocblas_status {
    // SAFETY: the caller's handle and out-pointer.
    unsafe {
        with(handle, |handle| {
            require(!stream.is_null(), rocblas_status_invalid_pointer)?;
            stream.write(handle.stream);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn rocblas_set_pointer_mode(
    handle: rocblas_handle,
    pointer_mode: rocblas_pointer_mode,
) -> rocblas_status {
    // SAFETY: the caller's handle.
    unsafe {
        with(handle, |handle| {
            let mode = match pointer_mode {
                rocblas_pointer_mode_host => cublas::cublasPointerMode_t::CUBLAS_POINTER_MODE_HOST,
                rocblas_pointer_mode_device => cublas::cublasPointerMode_t::CUBLAS_POINTER_MODE_DEVICE,
                _ => return Err(rocblas_status_invalid_value),
            };
            answer(cublas::cublasSetPointerMode_v2(handle.raw, mode))?;
            handle.scalars_on_host = pointer_mode == rocblas_pointer_mode_host;
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn rocblas_set_atomics_mode(
    handle: rocblas_handle,
    atomics_mode: rocblas_atomics_mode,
) -> rocblas_status {
    // SAFETY: the caller's handle.
    unsafe {
        with(handle, |handle| {
            let mode = match atomics_mode {
                rocblas_atomics_not_allowed => cublas::cublasAtomicsMode_t::CUBLAS_ATOMICS_NOT_ALLOWED,
                rocblas_atomics_allowed => cublas::cublasAtomicsMode_t::CUBLAS_ATOMICS_ALLOWED,
                _ => return Err(rocblas_status_invalid_value),
            };
            answer(cublas::cublasSetAtomicsMode(handle.raw, mode))
        })
    }
}

pub(super) unsafe extern "C" fn rocblas_set_workspace(
    handle: rocblas_handle,
    addr: *mut c_void,
    size: usize,
) -> rocblas_status {
    // SAFETY: the caller's handle and memory.
    unsafe {
        with(handle, |handle| {
            require(!addr.is_null() || size == 0, rocblas_status_invalid_pointer)?;
            answer(cublas::cublasSetWorkspace_v2(handle.raw, addr, size))
        })
    }
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

/// cuBLAS's version, as `13.0.2`: major * 10,000 + minor * 100 + patch, which it tells without a handle.
fn version() -> &'static CString {
    static VERSION: OnceLock<CString> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut number = 0;
        // SAFETY: the function is cuBLAS's, which takes no handle for this; the pointer is valid.
        let status = unsafe { cublas::cublasGetVersion_v2(ptr::null_mut(), &mut number) };
        let number = if answer(status).is_ok() { number } else { 0 };
        let text = format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100);
        CString::new(text).unwrap_or_default()
    })
}

pub(super) unsafe extern "C" fn rocblas_get_version_string_size(len: *mut usize) -> rocblas_status {
    status(|| {
        require(!len.is_null(), rocblas_status_invalid_pointer)?;
        // SAFETY: the caller's out-pointer.
        unsafe { len.write(version().as_bytes_with_nul().len()) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> rocblas_status {
    status(|| {
        let text = version().as_bytes_with_nul();
        require(!buf.is_null(), rocblas_status_invalid_pointer)?;
        require(len >= text.len(), rocblas_status_invalid_size)?;
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), text.len()) };
        Ok(())
    })
}
