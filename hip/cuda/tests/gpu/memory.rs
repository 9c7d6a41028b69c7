//! Allocations of 0 bytes, and a free of null.

use std::ptr::null_mut;

use cudarc::driver::sys as cuda;

use crate::{gpu, ok};

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
