//! Device memory and pinned host memory.

use super::{Driver, device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::{Allocations, Memory, Status};
use std::{
    ffi::{c_uint, c_void},
    ptr,
};

/// The live allocations. The flag is true for device memory and false for pinned host memory.
pub(super) static LIVE: Allocations<bool> = Allocations::new(is_of_driver);

/// Whether the driver knows the range's first and last byte: other libraries in the process
/// allocate memory too.
fn is_of_driver(pointer: *const c_void, bytes: usize) -> bool {
    let known = |address: usize| {
        let mut kind: c_uint = 0;
        // SAFETY: the function is the driver's, which only looks the address up; the attribute is
        // an unsigned int.
        let status = unsafe {
            cuda::cuPointerGetAttribute(
                (&raw mut kind).cast(),
                cuda::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                address as cuda::CUdeviceptr,
            )
        };
        from_cuda(status).is_ok()
    };
    let first = pointer as usize;
    let last = first.checked_add(bytes.saturating_sub(1));
    ensure().is_ok() && known(first) && last.is_some_and(known)
}

/// Whether devices may access the range.
pub(crate) fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
    LIVE.holds(pointer, bytes)
}

/// Every device can reach the memory, by the same address. The two flags have the same values for
/// allocated and for registered memory.
const PORTABLE_AND_MAPPED: c_uint = 1 | 2;

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

    unsafe fn register_host(pointer: *mut c_void, bytes: usize) -> Status {
        // SAFETY: the caller's memory.
        from_cuda(unsafe { cuda::cuMemHostRegister_v2(pointer, bytes, PORTABLE_AND_MAPPED) })
    }

    fn unregister_host(pointer: *mut c_void) -> Status {
        // SAFETY: the driver refuses memory that is not registered.
        from_cuda(unsafe { cuda::cuMemHostUnregister(pointer) })
    }
}
