//! Functions that the process calls when it exits. The C standard has them, so both systems do.

use std::ffi::c_int;

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Calls the function when `main` returns or the program calls `exit`, before what was loaded
/// earlier ends. It must not panic.
pub(crate) fn call(function: extern "C" fn()) {
    // SAFETY: C's function (ISO C, 7.24.4.2) keeps the pointer, which is to a function of this
    // library. This library is not unloaded before the process exits: its kernels' threads would
    // outlive it.
    let status = unsafe { atexit(function) };
    if status != 0 {
        log::warn!("the profile will not be written at the process's exit: atexit returned {status}");
    }
}
