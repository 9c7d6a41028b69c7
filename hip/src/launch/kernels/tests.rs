//! Code objects that do not load: an altered HIP runs out of memory.

use std::cell::Cell;
use std::ffi::c_void;

use hip_sys::{hipError_t, hipErrorOutOfMemory, hipModule_t};

use crate::compile::cache::code_cache;
use crate::compile::program::Program;
use crate::device::Device;
use crate::error::Error;
use crate::provider::Provider;

/// Not built in, because a kernel that compiles at once is not stored on disk.
const PROGRAM: Program<'static> = Program {
    name: "kept.hip",
    source: "#include \"prelude.h\"\n__global__ void kept(u64 *x) { for_each(1, [=](u64) { x[0] = 1; }); }",
    headers: &[],
    options: &[],
};

thread_local! {
    /// Whether the thread's next module finds no memory.
    static FULL: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" fn load(module: *mut hipModule_t, image: *const c_void) -> hipError_t {
    if FULL.replace(false) {
        return hipErrorOutOfMemory;
    }
    // SAFETY: the caller's.
    unsafe { (hip_cpu::hip_table().hipModuleLoadData)(module, image) }
}

/// If the file were removed, this process would compile the code again for nothing, and other
/// processes would not find it.
#[test]
fn a_lack_of_memory_leaves_the_file_of_the_code() {
    let device = Device::new(Provider::altered(|hip| hip.hipModuleLoadData = load), 0).unwrap();
    // It is on disk from here on.
    drop(device.kernel(&PROGRAM, "kept").unwrap());
    device.forget_kernels();
    let damaged = code_cache().stats().damaged;
    FULL.set(true);
    match device.kernel(&PROGRAM, "kept").map(|_| ()) {
        Err(Error::Device { code, .. }) => assert_eq!(code, hipErrorOutOfMemory as i32),
        other => panic!("{other:?}"),
    }
    assert_eq!(code_cache().stats().damaged, damaged);
    assert!(device.kernel(&PROGRAM, "kept").is_ok());
}
