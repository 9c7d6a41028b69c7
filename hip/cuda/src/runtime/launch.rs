//! Modules, the kernels in them, and launches.

use super::{Driver, device::ensure, error::from_cuda, overlap};
use cudarc::driver::sys as cuda;
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use hip_provider::runtime::{Launch, Modules, Status};
use hip_sys::*;
use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
};

/// The dynamic shared memory that a kernel may use without setting a function attribute.
const PLAIN_SHARED: u32 = 48 << 10;

impl Modules for Driver {
    unsafe fn load(image: *const c_void) -> Status<hipModule_t> {
        ensure()?;
        // Accepts only compiled code. The driver would read anything else as PTX text up to a NUL,
        // which may be missing. SAFETY: a code object has at least these bytes, by HIP's contract.
        if unsafe { image.cast::<[u8; 4]>().read_unaligned() } != *b"\x7fELF" {
            return Err(hipErrorInvalidImage);
        }
        let mut made = ptr::null_mut();
        // SAFETY: the caller's code object.
        from_cuda(unsafe { cuda::cuModuleLoadData(&mut made, image) })?;
        Ok(made.cast())
    }

    unsafe fn unload(module: hipModule_t) -> Status {
        ensure()?;
        overlap::forget(module.cast());
        // SAFETY: the caller's module.
        from_cuda(unsafe { cuda::cuModuleUnload(module.cast()) })
    }

    unsafe fn function(module: hipModule_t, name: &CStr) -> Status<hipFunction_t> {
        ensure()?;
        let mut found = ptr::null_mut();
        // SAFETY: the caller's module.
        from_cuda(unsafe { cuda::cuModuleGetFunction(&mut found, module.cast(), name.as_ptr()) })?;
        // SAFETY: the caller's module, and a function of it.
        unsafe { overlap::note(module.cast(), found) };
        Ok(found.cast())
    }

    unsafe fn launch(launch: &Launch) -> Status {
        ensure()?;
        launch.check(65535)?;
        let Launch { grid, block, shared_bytes: shared, stream, params, .. } = *launch;
        let (function, stream) = (launch.function.cast(), stream.cast());
        if shared > PLAIN_SHARED {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the caller's function.
            let set = unsafe { cuda::cuFuncSetAttribute(function, attribute, shared as c_int) };
            from_cuda(set).map_err(|_| hipErrorInvalidValue)?;
        }
        // The driver takes the same list as HIP, except that it ends with null.
        let mut list = launch.packed()?.map(|(buffer, size)| {
            let [of_buffer, of_size] = [1, 2].map(ptr::without_provenance_mut);
            [of_buffer, buffer, of_size, size.cast(), ptr::null_mut()]
        });
        let extra = list.as_mut().map_or(ptr::null_mut(), |list| list.as_mut_ptr());
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the caller's function, stream and one pointer for each parameter, by HIP's
        // contract, which is also CUDA's.
        from_cuda(unsafe {
            match overlap::may_overlap(function, stream) {
                true => overlap::launch(launch, params, extra),
                false => {
                    cuda::cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
                }
            }
        })
    }

    unsafe fn occupancy(function: hipFunction_t, threads: c_int, shared_bytes: usize) -> Status<c_int> {
        ensure()?;
        let (mut count, function) = (0, function.cast());
        // SAFETY: the caller's function.
        from_cuda(unsafe {
            cuda::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut count, function, threads, shared_bytes)
        })?;
        Ok(count)
    }
}
