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

/// The variable of the process that runs the test with a cache of its own.
const CHILD: &str = "HIP_TEST_KEPT_CHILD";

/// If the file were removed, this process would compile the code again for nothing, and other
/// processes would not find it.
#[test]
fn a_lack_of_memory_leaves_the_file_of_the_code() {
    if std::env::var_os(CHILD).is_some() {
        return reads_the_file_again();
    }
    // The cache of this process may be off.
    let folder = std::env::temp_dir().join(format!("hip-kept-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder); // of a process that was killed
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "launch::kernels::tests::a_lack_of_memory_leaves_the_file_of_the_code"])
        .env(CHILD, "1")
        .envs([("BURN_ROCM_CACHE", "1"), ("BURN_ROCM_CACHE_LIMIT", "")])
        .env("BURN_ROCM_CACHE_DIR", &folder)
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn reads_the_file_again() {
    let device = Device::new(Provider::altered(|hip| hip.hipModuleLoadData = load), 0).expect("a device");
    drop(device.kernel(&PROGRAM, "kept").expect("a kernel"));
    assert_eq!(code_cache().stats().stored, 1, "{:?}", code_cache().last_refusal());
    device.forget_kernels();
    FULL.set(true);
    match device.kernel(&PROGRAM, "kept").map(|_| ()) {
        Err(Error::Device { code, .. }) => assert_eq!(code, hipErrorOutOfMemory as i32),
        other => panic!("{other:?}"),
    }
    assert!(device.kernel(&PROGRAM, "kept").is_ok());
    let stats = code_cache().stats();
    assert_eq!((stats.compiled, stats.hits, stats.damaged), (1, 2, 0));
}
