//! Device memory and pinned host memory.

use super::{device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::{Allocations, api, put};
use hip_sys::*;
use std::{
    ffi::{c_uint, c_void},
    ptr,
};

/// Allocations, and whether each is not pinned host memory.
pub(super) static LIVE: Allocations<bool> = Allocations::new();

/// Whether the range lies inside one live allocation.
pub(crate) fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
    LIVE.holds(pointer, bytes)
}

pub(super) unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, size: usize) -> hipError_t {
    api(|| {
        ensure()?;
        let mut memory = 0;
        if size > 0 && !pointer.is_null() {
            // SAFETY: the function is the driver's, the pointer valid.
            from_cuda(unsafe { cuda::cuMemAlloc_v2(&mut memory, size) })?;
            LIVE.keep(memory as usize, size, true);
        }
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(pointer, memory as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn hipFree(pointer: *mut c_void) -> hipError_t {
    api(|| {
        ensure()?;
        if pointer.is_null() {
            return Ok(());
        }
        LIVE.forget(pointer, |&device| device)?;
        // SAFETY: `hipMalloc` got it, and nobody else finds it in the map any more. Waits for the device's work, as
        // AMD's does.
        from_cuda(unsafe { cuda::cuMemFree_v2(pointer as cuda::CUdeviceptr) })
    })
}

pub(super) unsafe extern "C" fn hipHostMalloc(
    pointer: *mut *mut c_void,
    size: usize,
    _flags: c_uint,
) -> hipError_t {
    /// Every device may reach it, by the same address.
    const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
    api(|| {
        ensure()?;
        let mut memory = ptr::null_mut();
        if size > 0 && !pointer.is_null() {
            // SAFETY: the function is the driver's, the pointer valid.
            from_cuda(unsafe { cuda::cuMemHostAlloc(&mut memory, size, PORTABLE_AND_MAPPED) })?;
            LIVE.keep(memory as usize, size, false);
        }
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(pointer, memory) }
    })
}

pub(super) unsafe extern "C" fn hipHostFree(pointer: *mut c_void) -> hipError_t {
    api(|| {
        ensure()?;
        if pointer.is_null() {
            return Ok(());
        }
        LIVE.forget(pointer, |&device| !device)?;
        // SAFETY: `hipHostMalloc` got it, and nobody else finds it in the map any more.
        from_cuda(unsafe { cuda::cuMemFreeHost(pointer) })
    })
}
