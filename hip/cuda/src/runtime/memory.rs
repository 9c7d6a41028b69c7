//! Device memory and pinned host memory.

use super::{Driver, device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::{Allocations, Memory, Status};
use std::{
    ffi::{c_uint, c_void},
    ptr,
};

/// The live allocations. The flag is true for device memory and false for pinned host memory.
pub(super) static LIVE: Allocations<bool> = Allocations::new();

/// Whether the range lies inside one live allocation.
pub(crate) fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
    LIVE.holds(pointer, bytes)
}

impl Memory for Driver {
    fn ready() -> Status {
        ensure().map(|_| ())
    }

    fn allocate(bytes: usize) -> Status<*mut c_void> {
        let mut memory = 0;
        // SAFETY: the function is the driver's, the pointer valid.
        from_cuda(unsafe { cuda::cuMemAlloc_v2(&mut memory, bytes) })?;
        LIVE.keep(memory as usize, bytes, true);
        Ok(memory as *mut c_void)
    }

    fn free(pointer: *mut c_void) -> Status {
        LIVE.forget(pointer, |&device| device)?;
        // SAFETY: it came from `allocate`, and no other call finds it in the map any more.
        // `cuMemFree` waits for the device's work, as AMD's does.
        from_cuda(unsafe { cuda::cuMemFree_v2(pointer as cuda::CUdeviceptr) })
    }

    fn allocate_host(bytes: usize) -> Status<*mut c_void> {
        /// Every device can reach the memory, by the same address.
        const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
        let mut memory = ptr::null_mut();
        // SAFETY: the function is the driver's, the pointer valid.
        from_cuda(unsafe { cuda::cuMemHostAlloc(&mut memory, bytes, PORTABLE_AND_MAPPED) })?;
        LIVE.keep(memory as usize, bytes, false);
        Ok(memory)
    }

    fn free_host(pointer: *mut c_void) -> Status {
        LIVE.forget(pointer, |&device| !device)?;
        // SAFETY: it came from `allocate_host`, and no other call finds it in the map any more.
        from_cuda(unsafe { cuda::cuMemFreeHost(pointer) })
    }
}
