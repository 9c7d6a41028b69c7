//! Streams and events, which are the driver's.

use super::{device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::{EVENT_FLAGS, api, put};
use hip_sys::*;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{ffi::c_uint, ptr};

/// Written while this provider captures a stream of its own, unknown to its callers.
static CAPTURES: RwLock<()> = RwLock::new(());

/// Nothing is captured as long as this is held: to wait for the whole device, as NVIDIA's libraries may where
/// handles are made and destroyed. That would fail, and spoil the capture.
pub(crate) fn uncaptured() -> RwLockReadGuard<'static, ()> {
    CAPTURES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Nobody waits for the whole device as long as this is held: to capture a stream.
pub(crate) fn capturing() -> RwLockWriteGuard<'static, ()> {
    CAPTURES.write().unwrap_or_else(PoisonError::into_inner)
}

fn cuda_event(event: hipEvent_t) -> cuda::CUevent {
    event.cast()
}

pub(super) unsafe extern "C" fn hipStreamCreateWithFlags(
    stream: *mut hipStream_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        if stream.is_null() || flags > hipStreamNonBlocking {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: the function is the driver's, the pointer valid; HIP's flags are CUDA's.
        from_cuda(unsafe { cuda::cuStreamCreate(&mut made, flags) })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(stream, made.cast()) }
    })
}

pub(super) unsafe extern "C" fn hipStreamDestroy(stream: hipStream_t) -> hipError_t {
    api(|| {
        if stream.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        ensure()?;
        // SAFETY: the caller's stream, by HIP's contract.
        from_cuda(unsafe { cuda::cuStreamDestroy_v2(stream.cast()) })
    })
}

pub(super) unsafe extern "C" fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t {
    api(|| {
        ensure()?;
        // SAFETY: the caller's stream, by HIP's contract.
        from_cuda(unsafe { cuda::cuStreamSynchronize(stream.cast()) })
    })
}

pub(super) unsafe extern "C" fn hipDeviceSynchronize() -> hipError_t {
    api(|| {
        ensure()?;
        let _held = uncaptured();
        // SAFETY: no precondition but the context, which `ensure` made current.
        from_cuda(unsafe { cuda::cuCtxSynchronize() })
    })
}

pub(super) unsafe extern "C" fn hipStreamWaitEvent(
    stream: hipStream_t,
    event: hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        if event.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        if flags > 1 {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        // SAFETY: the caller's stream and event, by HIP's contract.
        from_cuda(unsafe { cuda::cuStreamWaitEvent(stream.cast(), cuda_event(event), 0) })
    })
}

pub(super) unsafe extern "C" fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    api(|| {
        if event.is_null() || flags & !EVENT_FLAGS != 0 {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        let mut made = ptr::null_mut();
        // SAFETY: the function is the driver's, the pointer valid; the first three flags are CUDA's.
        from_cuda(unsafe { cuda::cuEventCreate(&mut made, flags & 7) })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(event, made.cast()) }
    })
}

macro_rules! of_event {
    ($( $hip:ident($($more:ident: $type:ty)?) => $cuda:ident; )*) => { $(
        pub(super) unsafe extern "C" fn $hip(event: hipEvent_t $(, $more: $type)?) -> hipError_t {
            api(|| {
                if event.is_null() {
                    return Err(hipErrorInvalidHandle);
                }
                ensure()?;
                // SAFETY: the caller's event and stream, by HIP's contract.
                from_cuda(unsafe { cuda::$cuda(cuda_event(event) $(, $more.cast())?) })
            })
        }
    )* };
}
of_event! {
    hipEventDestroy() => cuEventDestroy_v2;
    hipEventRecord(stream: hipStream_t) => cuEventRecord;
    hipEventQuery() => cuEventQuery;
    hipEventSynchronize() => cuEventSynchronize;
}

pub(super) unsafe extern "C" fn hipEventElapsedTime(
    ms: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    api(|| {
        if ms.is_null() {
            return Err(hipErrorInvalidValue);
        }
        if start.is_null() || stop.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        ensure()?;
        // SAFETY: the caller's events and out-pointer, by HIP's contract.
        from_cuda(unsafe { cuda::cuEventElapsedTime_v2(ms, cuda_event(start), cuda_event(stop)) })
    })
}
