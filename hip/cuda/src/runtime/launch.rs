//! Modules, the kernels in them, and launches.

use super::{device::ensure, error::from_cuda};
use cudarc::driver::sys as cuda;
use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
use hip_provider::runtime::{api, check_launch, put};
use hip_sys::*;
use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
};

/// Dynamic shared memory that a function has without asking for it.
const PLAIN_SHARED: u32 = 48 << 10;

fn cuda_function(function: hipFunction_t) -> cuda::CUfunction {
    function.cast()
}

pub(super) unsafe extern "C" fn hipModuleLoadData(
    module: *mut hipModule_t,
    image: *const c_void,
) -> hipError_t {
    api(|| {
        if module.is_null() || image.is_null() {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        // Only compiled code: the driver takes anything else for the text of an assembler program, whose end nobody
        // gives. SAFETY: a code object has at least these bytes, by HIP's contract.
        if unsafe { image.cast::<[u8; 4]>().read_unaligned() } != *b"\x7fELF" {
            return Err(hipErrorInvalidImage);
        }
        let mut made = ptr::null_mut();
        // SAFETY: the caller's code object, by HIP's contract.
        from_cuda(unsafe { cuda::cuModuleLoadData(&mut made, image) })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(module, made.cast()) }
    })
}

pub(super) unsafe extern "C" fn hipModuleUnload(module: hipModule_t) -> hipError_t {
    api(|| {
        if module.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        ensure()?;
        // SAFETY: the caller's module, by HIP's contract.
        from_cuda(unsafe { cuda::cuModuleUnload(module.cast()) })
    })
}

pub(super) unsafe extern "C" fn hipModuleGetFunction(
    function: *mut hipFunction_t,
    module: hipModule_t,
    name: *const c_char,
) -> hipError_t {
    api(|| {
        // SAFETY: a text where not null, by HIP's contract.
        if function.is_null() || name.is_null() || unsafe { *name } == 0 {
            return Err(hipErrorInvalidValue);
        }
        if module.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        ensure()?;
        let mut found = ptr::null_mut();
        // SAFETY: the caller's module and text, by HIP's contract.
        from_cuda(unsafe { cuda::cuModuleGetFunction(&mut found, module.cast(), name) })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(function, found.cast()) }
    })
}

#[allow(clippy::too_many_arguments, reason = "AMD's signature")]
pub(super) unsafe extern "C" fn hipModuleLaunchKernel(
    function: hipFunction_t,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: hipStream_t,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    api(|| {
        if function.is_null() {
            return Err(hipErrorInvalidHandle);
        }
        ensure()?;
        check_launch([grid_x, grid_y, grid_z], [block_x, block_y, block_z], 65535)?;
        let function = cuda_function(function);
        if shared_bytes > PLAIN_SHARED {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the caller's function, by HIP's contract.
            let set = unsafe { cuda::cuFuncSetAttribute(function, attribute, shared_bytes as c_int) };
            from_cuda(set).map_err(|_| hipErrorInvalidValue)?;
        }
        let mut own = [ptr::null_mut::<c_void>(); 5];
        let extra = if extra.is_null() {
            extra
        } else {
            if !params.is_null() {
                return Err(hipErrorInvalidValue);
            }
            // SAFETY: the caller's list of five, by HIP's contract: 1, a buffer, 2, a pointer to its size, 3. CUDA
            // ends with 0.
            let list = unsafe { std::slice::from_raw_parts(extra, 5) };
            if [list[0] as usize, list[2] as usize, list[4] as usize] != [1, 2, 3] {
                return Err(hipErrorInvalidValue);
            }
            own[..4].copy_from_slice(&list[..4]);
            own.as_mut_ptr()
        };
        // SAFETY: the caller's function, stream and one pointer a parameter, by HIP's contract, which is CUDA's.
        from_cuda(unsafe {
            cuda::cuLaunchKernel(
                function,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                shared_bytes,
                stream.cast(),
                params,
                extra,
            )
        })
    })
}

pub(super) unsafe extern "C" fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: hipFunction_t,
    block_size: c_int,
    shared_bytes: usize,
) -> hipError_t {
    api(|| {
        if function.is_null() {
            return Err(hipErrorInvalidDeviceFunction);
        }
        if block_size <= 0 {
            return Err(hipErrorInvalidValue);
        }
        ensure()?;
        let mut count = 0;
        // SAFETY: the caller's function, by HIP's contract.
        from_cuda(unsafe {
            let function = cuda_function(function);
            cuda::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut count, function, block_size, shared_bytes)
        })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(blocks, count) }
    })
}
