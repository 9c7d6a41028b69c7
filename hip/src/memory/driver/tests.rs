//! The memory of an integrated GPU, imitated: the CPU device's functions with a small carve-out, and
//! the kernel's files in a folder.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::fs;
use std::path::PathBuf;

use hip_sys::*;

use super::*;
use crate::device::apu::Reported;
use crate::memory::pool::{MemoryPool, Options, Purpose};
use crate::provider::Provider;
use crate::settings::ApuMemory;

const MIB: usize = 1 << 20;
/// What `hipMalloc` has.
const CARVE_OUT: usize = 10 * MIB;
/// What the kernel lets the GPU use besides.
const GTT: usize = 200 * MIB;

thread_local! {
    static BY_HIP_MALLOC: Cell<usize> = const { Cell::new(0) };
    static IS_SUPPORTED: Cell<bool> = const { Cell::new(true) };
}

unsafe extern "C" fn malloc(to: *mut *mut c_void, size: usize) -> hipError_t {
    if BY_HIP_MALLOC.get() + size > CARVE_OUT {
        return hipErrorOutOfMemory;
    }
    BY_HIP_MALLOC.set(BY_HIP_MALLOC.get() + size);
    // SAFETY: the caller's.
    unsafe { (hip_cpu::hip_table().hipMalloc)(to, size) }
}

unsafe extern "C" fn managed(to: *mut *mut c_void, size: usize, flags: c_uint) -> hipError_t {
    let real = hip_cpu::hip_table().hipMallocManaged.expect("the CPU device has it");
    match IS_SUPPORTED.get() {
        // SAFETY: the caller's.
        true => unsafe { real(to, size, flags) },
        false => hipErrorNotSupported,
    }
}

unsafe extern "C" fn memory(free: *mut usize, total: *mut usize) -> hipError_t {
    // SAFETY: the caller's.
    unsafe { (*free, *total) = (CARVE_OUT - BY_HIP_MALLOC.get(), CARVE_OUT) };
    hipSuccess
}

/// A pool of such a GPU, and its imitation of the kernel's files.
struct Gpu {
    pool: MemoryPool,
    root: PathBuf,
}

impl Gpu {
    fn new(name: &str, setting: ApuMemory) -> Self {
        BY_HIP_MALLOC.set(0);
        IS_SUPPORTED.set(true);
        let root = std::env::temp_dir().join(format!("burn-rocm-driver-{name}-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:03:00.0");
        fs::create_dir_all(&device).expect("a folder of the test's own");
        fs::create_dir_all(root.join("proc/sys/kernel")).expect("a folder of the test's own");
        for (file, text) in [
            (device.join("mem_info_vram_total"), CARVE_OUT.to_string()),
            (device.join("mem_info_gtt_total"), GTT.to_string()),
            (device.join("mem_info_gtt_used"), "0".into()),
            (root.join("proc/sys/kernel/osrelease"), "6.8.0".into()),
            (root.join("proc/meminfo"), "MemAvailable: 1048576 kB\n".into()),
        ] {
            fs::write(file, text).expect("a file of the test's own");
        }
        let reported = Reported { integrated: true, managed: true, pci: [0, 3, 0], total: CARVE_OUT };
        let apu = Apu::of(reported, setting, &root);
        let provider = Provider::altered(|hip| {
            hip.hipMalloc = malloc;
            hip.hipMallocManaged = Some(managed);
            hip.hipMemGetInfo = memory;
        });
        let context = Arc::new(Context::new(provider, 0, 0));
        let stream = |name| Arc::new(Stream::new(&context, name).expect("a stream of the CPU device"));
        let driver = Driver::new(&context, &stream("compute"), &stream("copies"), apu);
        let options = Options { limit: None, pooled: true, split: usize::MAX };
        Self { pool: MemoryPool::new(Box::new(driver), options), root }
    }

    fn allocate(&self, bytes: usize) -> Result<crate::memory::pool::PoolBlock> {
        self.pool.allocate(bytes, Purpose::Compute)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn what_the_carve_out_has_no_room_for_is_managed_memory() {
    let gpu = Gpu::new("beyond", ApuMemory::Auto);
    // The pool takes 8 MiB for small blocks, and 64 MiB for larger ones.
    let small = gpu.allocate(1000).expect("room in the carve-out");
    assert_eq!(gpu.pool.summary().managed, 0);
    let large = gpu.allocate(9 * MIB).expect("room in GTT");
    let summary = gpu.pool.summary();
    assert_eq!((summary.managed, summary.reserved), (64 * MIB, 72 * MIB));
    assert!(summary.to_string().contains("of it managed memory"), "{summary}");
    assert_eq!(gpu.pool.free_and_total(), Ok((GTT - 64 * MIB, GTT)));
    // Not more than the kernel lets it use.
    match gpu.allocate(150 * MIB) {
        Err(Error::OutOfMemory { requested, free, total, .. }) => {
            assert_eq!((requested, free, total), (150 * MIB, GTT - 64 * MIB, GTT));
        }
        other => panic!("{other:?}"),
    }
    gpu.pool.free(large, 0);
    gpu.pool.clear().expect("nothing fails");
    assert_eq!(gpu.pool.summary().managed, 0);
    let whole = gpu.allocate(150 * MIB).expect("room again");
    assert!(gpu.pool.summary().managed >= 150 * MIB);
    gpu.pool.free(whole, 0);
    gpu.pool.free(small, 0);
}

#[test]
fn memory_that_hip_does_not_manage_is_out() {
    let gpu = Gpu::new("unsupported", ApuMemory::Auto);
    IS_SUPPORTED.set(false);
    // The carve-out has no room for more than its size.
    assert!(matches!(gpu.allocate(CARVE_OUT + MIB), Err(Error::OutOfMemory { .. })));
    gpu.allocate(CARVE_OUT - MIB).expect("room in the carve-out");
}

#[test]
fn the_setting_takes_one_kind_alone() {
    let device = Gpu::new("device", ApuMemory::Device);
    assert!(matches!(device.allocate(11 * MIB), Err(Error::OutOfMemory { total: CARVE_OUT, .. })));
    let managed = Gpu::new("managed", ApuMemory::Managed);
    let block = managed.allocate(1000).expect("room in GTT");
    assert_eq!((managed.pool.summary().managed, BY_HIP_MALLOC.get()), (8 * MIB, 0));
    managed.pool.free(block, 0);
}
