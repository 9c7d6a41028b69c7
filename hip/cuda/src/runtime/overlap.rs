//! Kernels of a graph that begin while the kernel before them still runs (CUDA's programmatic
//! dependent launch). HIP has no such launches, so this provider decides by itself.
//!
//! A kernel takes part if its module has the symbol `overlapping_launches`, which
//! `hip/kernels/overlap.h` defines. Such a kernel itself waits for earlier launches. This provider
//! lets it begin early only in a capture, and only if it depends on exactly one other such kernel and
//! on nothing else. So all work of other kernels, libraries and streams ends before the first of a
//! chain of such kernels begins.

use crate::symbols::is_newer_driver;
use cudarc::driver::sys as cuda;
use cudarc::driver::sys::{CUfunction, CUmodule, CUstream};
use hip_provider::runtime::Launch;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The addresses of the kernels that take part, and of their modules.
static KERNELS: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

fn known() -> RwLockReadGuard<'static, BTreeMap<usize, usize>> {
    KERNELS.read().unwrap_or_else(PoisonError::into_inner)
}

fn change() -> RwLockWriteGuard<'static, BTreeMap<usize, usize>> {
    KERNELS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a kernel of a module, if it takes part.
///
/// # Safety
/// The module is live, and the function is one of its kernels.
pub(super) unsafe fn note(module: CUmodule, function: CUfunction) {
    let (mut address, mut bytes) = (0, 0);
    let symbol = c"overlapping_launches".as_ptr();
    // SAFETY: the caller's module; the pointers are valid.
    let found = unsafe { cuda::cuModuleGetGlobal_v2(&mut address, &mut bytes, module, symbol) };
    if found == cuda::CUresult::CUDA_SUCCESS {
        change().insert(function.addr(), module.addr());
    }
}

/// Forgets the kernels of a module that is about to be unloaded.
pub(super) fn forget(module: CUmodule) {
    change().retain(|_, of| *of != module.addr());
}

/// Whether the process has begun a capture, and the driver has the functions that are called here.
static CAPTURES: AtomicBool = AtomicBool::new(false);

/// To be called when a capture begins.
pub(super) fn captures() {
    if !CAPTURES.load(Ordering::Relaxed) && is_newer_driver() {
        CAPTURES.store(true, Ordering::Relaxed);
    }
}

/// Whether the kernel may begin while the work that its stream captured last still runs.
///
/// # Safety
/// The stream is live.
pub(super) unsafe fn may_overlap(function: CUfunction, stream: CUstream) -> bool {
    if !CAPTURES.load(Ordering::Relaxed) {
        return false;
    }
    let known = known();
    if !known.contains_key(&function.addr()) {
        return false;
    }
    let mut status = cuda::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges, mut count) = (ptr::null(), ptr::null(), 0);
    // SAFETY: the caller's stream; the pointers are valid, and null for what is not asked.
    let asked = unsafe {
        cuda::cuStreamGetCaptureInfo_v3(
            stream,
            &mut status,
            ptr::null_mut(),
            ptr::null_mut(),
            &mut nodes,
            &mut edges,
            &mut count,
        )
    };
    let captures = status == cuda::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if asked != cuda::CUresult::CUDA_SUCCESS || !captures || count != 1 {
        return false;
    }
    // SAFETY: the driver's list of `count` nodes, valid until the stream captures something more.
    let node = unsafe { *nodes };
    let mut kind = cuda::CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the node is live, the pointer valid; here and below.
    let asked = unsafe { cuda::cuGraphNodeGetType(node, &mut kind) };
    if asked != cuda::CUresult::CUDA_SUCCESS || kind != cuda::CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_KERNEL
    {
        return false;
    }
    let mut params = std::mem::MaybeUninit::uninit();
    // SAFETY: as above.
    let asked = unsafe { cuda::cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()) };
    // SAFETY: the driver has written them if it succeeded.
    asked == cuda::CUresult::CUDA_SUCCESS && known.contains_key(&unsafe { params.assume_init() }.func.addr())
}

/// Launches a kernel that begins when all blocks of the kernel before it have allowed it.
///
/// # Safety
/// As `cuLaunchKernel`.
pub(super) unsafe fn launch(
    launch: &Launch,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> cuda::CUresult {
    let mut attribute = cuda::CUlaunchAttribute {
        id: cuda::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: cuda::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
    let config = cuda::CUlaunchConfig {
        gridDimX: gx,
        gridDimY: gy,
        gridDimZ: gz,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: launch.shared_bytes,
        hStream: launch.stream.cast(),
        attrs: &mut attribute,
        numAttrs: 1,
    };
    // SAFETY: the caller's promise; the attribute lives until the call returns.
    unsafe { cuda::cuLaunchKernelEx(&config, launch.function.cast(), params, extra) }
}
