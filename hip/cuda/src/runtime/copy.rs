//! Copies and fills.

use super::{
    device::{context, ensure},
    error::from_cuda,
    memory::LIVE,
};
use cudarc::driver::sys as cuda;
use hip_provider::runtime::api;
use hip_sys::*;
use std::ffi::{c_int, c_void};

fn address(pointer: *const c_void) -> cuda::CUdeviceptr {
    pointer as cuda::CUdeviceptr
}

fn cuda_stream(stream: hipStream_t) -> cuda::CUstream {
    stream.cast()
}

pub(super) unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: hipMemcpyKind,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        ensure()?;
        if size == 0 {
            return Ok(());
        }
        LIVE.check_copy(to, from, size, kind)?;
        // SAFETY: device ranges were checked, host ranges are the caller's, by HIP's contract. The driver tells
        // from the addresses which is which, as both share one address space.
        from_cuda(unsafe { cuda::cuMemcpyAsync(address(to), address(from), size, cuda_stream(stream)) })
    })
}

pub(super) unsafe extern "C" fn hipMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    size: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        ensure()?;
        let (target, source) = (context(to_device)?, context(from_device)?);
        if size == 0 {
            return Ok(());
        }
        LIVE.check_copy(to, from, size, hipMemcpyDeviceToDevice)?;
        // SAFETY: checked above; retained contexts.
        from_cuda(unsafe {
            let stream = cuda_stream(stream);
            cuda::cuMemcpyPeerAsync(address(to), target.0, address(from), source.0, size, stream)
        })
    })
}

pub(super) unsafe extern "C" fn hipMemsetAsync(
    to: *mut c_void,
    value: c_int,
    size: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        ensure()?;
        match LIVE.check_fill(to, Some(size))? {
            0 => Ok(()),
            // SAFETY: checked above.
            bytes => from_cuda(unsafe {
                cuda::cuMemsetD8Async(address(to), value as u8, bytes, cuda_stream(stream))
            }),
        }
    })
}

pub(super) unsafe extern "C" fn hipMemsetD32Async(
    to: hipDeviceptr_t,
    value: c_int,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    api(|| {
        if !(to as usize).is_multiple_of(4) {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        match LIVE.check_fill(to, count.checked_mul(4))? {
            0 => Ok(()),
            // SAFETY: checked above.
            bytes => from_cuda(unsafe {
                cuda::cuMemsetD32Async(address(to), value as u32, bytes / 4, cuda_stream(stream))
            }),
        }
    })
}
