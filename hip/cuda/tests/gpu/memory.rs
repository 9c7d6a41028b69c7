//! A free of null, and memory that others allocated.

use std::ptr::null_mut;

use cudarc::driver::sys as cuda;
use hip_sys::{hipErrorInvalidValue, hipMemcpyDeviceToDevice};

use crate::{Memory, gpu, ok};

/// HIP documents that freeing null initialises the runtime, and programs do so for that purpose.
pub(crate) fn a_free_of_null_makes_the_threads_context() {
    let hip = gpu(&[]);
    let context = || {
        let mut context = null_mut();
        // SAFETY: the function is the driver's; the pointer is valid.
        assert_eq!(unsafe { cuda::cuCtxGetCurrent(&mut context) }, cuda::CUresult::CUDA_SUCCESS);
        context
    };
    let bound = std::thread::spawn(move || {
        assert!(context().is_null());
        // SAFETY: the function is HIP's.
        ok(unsafe { (hip.hipFree)(null_mut()) });
        !context().is_null()
    });
    assert!(bound.join().expect("no panic"));
}

/// Other libraries allocate by the driver too, such as PyTorch.
pub(crate) fn memory_that_others_allocated_is_copied() {
    let hip = gpu(&[]);
    let own = Memory::new(&hip, 1000);
    let mut others = 0;
    // SAFETY: the function is the driver's; the pointer is valid.
    assert_eq!(unsafe { cuda::cuMemAlloc_v2(&mut others, 1000) }, cuda::CUresult::CUDA_SUCCESS);
    let copy = |from: *const std::ffi::c_void| {
        // SAFETY: the provider refuses a range that is not a device's.
        unsafe { (hip.hipMemcpyAsync)(own.address, from, 1000, hipMemcpyDeviceToDevice, null_mut()) }
    };
    ok(copy(others as *const _));
    // SAFETY: the device's work ends; nobody else has the memory.
    unsafe {
        ok((hip.hipDeviceSynchronize)());
        assert_eq!(cuda::cuMemFree_v2(others), cuda::CUresult::CUDA_SUCCESS);
    }
    let host = [0u8; 1000];
    assert_eq!(copy(host.as_ptr().cast()), hipErrorInvalidValue);
}
