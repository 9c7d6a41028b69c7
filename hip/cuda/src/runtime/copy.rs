//! Copies and fills.

use super::{
    Driver,
    device::{context, ensure},
    error::from_cuda,
    memory::LIVE,
};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::{Allocations, Copies, Status};
use hip_sys::hipStream_t;
use std::ffi::{c_int, c_void};

fn address(pointer: *const c_void) -> cuda::CUdeviceptr {
    pointer as cuda::CUdeviceptr
}

impl Copies for Driver {
    type Own = bool;

    fn live() -> &'static Allocations<bool> {
        &LIVE
    }

    fn ordered(_: hipStream_t, body: impl FnOnce() -> Status) -> Status {
        ensure()?;
        body()
    }

    fn check_devices(devices: [c_int; 2]) -> Status {
        ensure()?;
        devices.into_iter().try_for_each(|device| context(device).map(|_| ()))
    }

    unsafe fn copy(to: *mut c_void, from: *const c_void, bytes: usize, stream: hipStream_t) -> Status {
        // SAFETY: the caller's ranges. Host and device share one address space, so the driver
        // infers the direction from the addresses.
        from_cuda(unsafe { cuda::cuMemcpyAsync(address(to), address(from), bytes, stream.cast()) })
    }

    unsafe fn copy_between(
        [to_device, from_device]: [c_int; 2],
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        stream: hipStream_t,
    ) -> Status {
        let (target, source) = (context(to_device)?.0, context(from_device)?.0);
        // SAFETY: the caller's ranges; retained contexts.
        from_cuda(unsafe {
            cuda::cuMemcpyPeerAsync(address(to), target, address(from), source, bytes, stream.cast())
        })
    }

    unsafe fn fill(to: *mut c_void, value: u8, bytes: usize, stream: hipStream_t) -> Status {
        // SAFETY: the caller's range.
        from_cuda(unsafe { cuda::cuMemsetD8Async(address(to), value, bytes, stream.cast()) })
    }

    unsafe fn fill_words(to: *mut c_void, value: u32, bytes: usize, stream: hipStream_t) -> Status {
        // SAFETY: the caller's range.
        from_cuda(unsafe { cuda::cuMemsetD32Async(address(to), value, bytes / 4, stream.cast()) })
    }
}
