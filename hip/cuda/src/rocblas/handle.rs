//! rocBLAS's handle and version.

use crate::runtime::{ensure, is_device_memory, uncaptured};
use core::ffi::{CStr, c_void};
use cudarc::cublas::sys as cublas;
use hip_provider::rocblas::Outcome;
use hip_sys::hipStream_t;
use rocblas_sys::*;
use std::ffi::CString;
use std::ptr;
use std::sync::OnceLock;

/// What a `rocblas_handle` points to.
pub(super) struct Handle {
    pub(super) raw: cublas::cublasHandle_t,
    pub(super) stream: hipStream_t,
    pub(super) scalars_on_host: bool,
    /// The workspace that the caller set, as address and bytes; null for cuBLAS's own.
    workspace: (*mut c_void, usize),
}

impl Handle {
    /// Destroys cuBLAS's handle, once.
    fn end(&mut self) -> Outcome {
        match std::mem::replace(&mut self.raw, ptr::null_mut()) {
            raw if raw.is_null() => Ok(()),
            // SAFETY: cuBLAS made the handle, and no other code uses it any more.
            raw => answer(unsafe { cublas::cublasDestroy_v2(raw) }),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(status) = self.end() {
            log::warn!("cublasDestroy_v2 failed: {status:?}");
        }
    }
}

/// cuBLAS's status as rocBLAS's.
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

/// cuBLAS's version, such as `13.0.2`, from major * 10,000 + minor * 100 + patch.
fn version() -> &'static CString {
    static VERSION: OnceLock<CString> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut number = 0;
        // SAFETY: the function is cuBLAS's, which needs no handle here; the pointer is valid.
        let status = unsafe { cublas::cublasGetVersion_v2(ptr::null_mut(), &mut number) };
        let number = if answer(status).is_ok() { number } else { 0 };
        let text = format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100);
        CString::new(text).unwrap_or_default()
    })
}

/// Makes the thread's device current.
fn current() -> Outcome {
    ensure().map(|_| ()).map_err(|_| rocblas_status_internal_error)
}

impl hip_provider::rocblas::Handle for Handle {
    fn version() -> &'static CStr {
        version()
    }

    fn create() -> Outcome<Self> {
        current()?;
        let _held = uncaptured();
        let mut raw = ptr::null_mut();
        // SAFETY: the function is cuBLAS's, the pointer valid.
        answer(unsafe { cublas::cublasCreate_v2(&mut raw) }).map_err(|status| match status {
            // Here cuBLAS's "not initialised" means that there is no driver or no resources,
            // because no handle exists yet.
            rocblas_status_invalid_handle => rocblas_status_internal_error,
            other => other,
        })?;
        // Owned from here on, even if a later call fails.
        let own =
            Handle { raw, stream: ptr::null_mut(), scalars_on_host: true, workspace: (ptr::null_mut(), 0) };
        // If cuBLAS splits a product, it must sum the parts of f16 and bf16 in f32. cudarc's enum has no
        // value that combines this mode with TF32, so products of f32 ask for TF32 by their compute type
        // (`gemm.rs`).
        let mode = cublas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle is alive.
        answer(unsafe { cublas::cublasSetMathMode(raw, mode) })?;
        Ok(own)
    }

    fn destroy(mut self) -> Outcome {
        let _held = uncaptured();
        self.end()
    }

    fn ready(&mut self) -> Outcome {
        current()
    }

    fn stream(&self) -> hipStream_t {
        self.stream
    }

    fn set_stream(&mut self, stream: hipStream_t) -> Outcome {
        // SAFETY: the handle is alive, the stream the caller's.
        answer(unsafe { cublas::cublasSetStream_v2(self.raw, stream.cast()) })?;
        self.stream = stream;
        // cuBLAS goes back to its own workspace when the stream changes. rocBLAS does not.
        match self.workspace {
            (at, _) if at.is_null() => Ok(()),
            (at, bytes) => self.set_workspace(at, bytes),
        }
    }

    fn scalars_on_host(&self) -> bool {
        self.scalars_on_host
    }

    fn set_scalars_on_host(&mut self, on_host: bool) -> Outcome {
        use cublas::cublasPointerMode_t::*;
        let mode = if on_host { CUBLAS_POINTER_MODE_HOST } else { CUBLAS_POINTER_MODE_DEVICE };
        // SAFETY: the handle is alive.
        answer(unsafe { cublas::cublasSetPointerMode_v2(self.raw, mode) })?;
        self.scalars_on_host = on_host;
        Ok(())
    }

    fn allow_atomics(&mut self, allowed: bool) -> Outcome {
        use cublas::cublasAtomicsMode_t::*;
        let mode = if allowed { CUBLAS_ATOMICS_ALLOWED } else { CUBLAS_ATOMICS_NOT_ALLOWED };
        // SAFETY: the handle is alive.
        answer(unsafe { cublas::cublasSetAtomicsMode(self.raw, mode) })
    }

    fn set_workspace(&mut self, at: *mut c_void, bytes: usize) -> Outcome {
        // SAFETY: the handle is alive, the memory the caller's.
        answer(unsafe { cublas::cublasSetWorkspace_v2(self.raw, at, bytes) })?;
        self.workspace = (at, bytes);
        Ok(())
    }

    fn compute(&mut self, body: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        body(self)
    }

    fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
        is_device_memory(pointer, bytes)
    }
}
