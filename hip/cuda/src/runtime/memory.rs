//! Device memory and pinned host memory, with a map of what is allocated: copies are checked against it as HIP
//! checks them.

use super::{
    Status,
    device::ensure,
    error::{api, from_cuda, put},
};
use cudarc::driver::sys as cuda;
use hip_sys::*;
use std::{
    collections::BTreeMap,
    ffi::{c_uint, c_void},
    ptr,
    sync::{PoisonError, RwLock},
};

#[derive(Clone, Copy)]
struct Allocation {
    bytes: usize,
    /// Not pinned host memory.
    device: bool,
}

static LIVE: RwLock<BTreeMap<usize, Allocation>> = RwLock::new(BTreeMap::new());

/// The allocation that holds an address, and where it begins.
fn find(address: usize) -> Option<(usize, Allocation)> {
    let live = LIVE.read().unwrap_or_else(PoisonError::into_inner);
    let (&start, &allocation) = live.range(..=address).next_back()?;
    (address - start < allocation.bytes).then_some((start, allocation))
}

/// What a range of memory is to the runtime.
pub(super) enum Place {
    /// Wholly inside one allocation.
    Inside,
    /// Begins in an allocation and runs past its end.
    Past,
    /// Begins in none: the host's own memory, as far as can be known.
    Elsewhere,
}

pub(super) fn place(pointer: *const c_void, bytes: usize) -> Place {
    match find(pointer as usize) {
        Some((start, allocation)) if bytes <= allocation.bytes - (pointer as usize - start) => Place::Inside,
        Some(_) => Place::Past,
        None => Place::Elsewhere,
    }
}

/// Whether the range lies inside one live allocation.
pub(crate) fn is_device_memory(pointer: *const c_void, bytes: usize) -> bool {
    matches!(place(pointer, bytes), Place::Inside)
}

fn keep(pointer: usize, bytes: usize, device: bool) {
    LIVE.write().unwrap_or_else(PoisonError::into_inner).insert(pointer, Allocation { bytes, device });
}

/// Takes an allocation of this kind out of the map.
fn forget(pointer: *mut c_void, device: bool) -> Status {
    let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
    match live.get(&(pointer as usize)) {
        Some(allocation) if allocation.device == device => {
            live.remove(&(pointer as usize));
            Ok(())
        }
        _ => Err(hipErrorInvalidValue),
    }
}

pub(super) unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, size: usize) -> hipError_t {
    api(|| {
        ensure()?;
        let mut memory = 0;
        if size > 0 && !pointer.is_null() {
            // SAFETY: the function is the driver's, the pointer valid.
            from_cuda(unsafe { cuda::cuMemAlloc_v2(&mut memory, size) })?;
            keep(memory as usize, size, true);
        }
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(pointer, memory as *mut c_void) }
    })
}

pub(super) unsafe extern "C" fn hipFree(pointer: *mut c_void) -> hipError_t {
    api(|| {
        ensure()?;
        if pointer.is_null() {
            return Ok(());
        }
        forget(pointer, true)?;
        // SAFETY: `hipMalloc` got it, and nobody else finds it in the map any more. Waits for the device's work, as
        // AMD's does.
        from_cuda(unsafe { cuda::cuMemFree_v2(pointer as cuda::CUdeviceptr) })
    })
}

pub(super) unsafe extern "C" fn hipHostMalloc(
    pointer: *mut *mut c_void,
    size: usize,
    _flags: c_uint,
) -> hipError_t {
    /// Every device may reach it, by the same address.
    const PORTABLE_AND_MAPPED: c_uint = 1 | 2;
    api(|| {
        ensure()?;
        let mut memory = ptr::null_mut();
        if size > 0 && !pointer.is_null() {
            // SAFETY: the function is the driver's, the pointer valid.
            from_cuda(unsafe { cuda::cuMemHostAlloc(&mut memory, size, PORTABLE_AND_MAPPED) })?;
            keep(memory as usize, size, false);
        }
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(pointer, memory) }
    })
}

pub(super) unsafe extern "C" fn hipHostFree(pointer: *mut c_void) -> hipError_t {
    api(|| {
        ensure()?;
        if pointer.is_null() {
            return Ok(());
        }
        forget(pointer, false)?;
        // SAFETY: `hipHostMalloc` got it, and nobody else finds it in the map any more.
        from_cuda(unsafe { cuda::cuMemFreeHost(pointer) })
    })
}

pub(super) unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    api(|| {
        ensure()?;
        let (mut left, mut all) = (0, 0);
        // SAFETY: the function is the driver's, the pointers valid.
        from_cuda(unsafe { cuda::cuMemGetInfo_v2(&mut left, &mut all) })?;
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(free, left) }?;
        // SAFETY: as above.
        unsafe { put(total, all) }
    })
}
