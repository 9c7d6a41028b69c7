//! Device memory and pinned host memory, both from the machine's memory.

use super::{Host, device::current, late, machine::available_memory, settings};
use crate::settings::Failure;
use hip_provider::require;
use hip_provider::runtime::{Allocations, Memory, Status};
use hip_sys::*;
use std::{
    alloc::{Layout, alloc, dealloc},
    ffi::c_void,
    sync::{PoisonError, RwLock},
};

/// The alignment of AMD's allocations.
const ALIGN: usize = 256;

/// Allocations of at least this size begin on a huge page and ask for huge pages, so that large
/// tensors cause fewer page faults and TLB misses.
const HUGE: usize = 2 << 20;

/// Bytes after an allocation that lockstep checks after each kernel.
const FENCE: usize = 256;
const FENCE_BYTE: u8 = 0xa5;

/// The runtime's data of an allocation.
#[derive(Clone, Copy)]
pub(super) struct Own {
    layout: Layout,
    /// `None` for pinned host memory.
    device: Option<usize>,
}

pub(super) static LIVE: Allocations<Own> = Allocations::new(is_registered);

/// The host memory that callers registered: first address and bytes. The host's memory is the
/// device's, so a registration only tells the checks that the caller vouches for the range. Unlike
/// on a GPU, where ranges must not overlap, each call counts for itself.
static REGISTERED: RwLock<Vec<(usize, usize)>> = RwLock::new(Vec::new());

fn is_registered(pointer: *const c_void, bytes: usize) -> bool {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let inside = |&(start, all): &(usize, usize)| {
        (pointer as usize).checked_sub(start).is_some_and(|at| at < all && bytes <= all - at)
    };
    registered.iter().any(inside)
}

/// Whether the range lies inside one live allocation.
pub(crate) fn check_range(pointer: *const c_void, bytes: usize) -> bool {
    LIVE.holds(pointer, bytes)
}

/// Finds an allocation whose fence was overwritten, and restores the fence. Returns the
/// allocation's address and size.
#[cfg(lockstep)]
pub(super) fn broken_fence() -> Option<(usize, usize)> {
    let live = LIVE.read();
    let broken = live.iter().find(|&(start, (bytes, own))| {
        // SAFETY: the fence belongs to the allocation, which the map's lock keeps alive.
        let fence = unsafe { std::slice::from_raw_parts((*start + bytes) as *const u8, FENCE) };
        own.device.is_some() && fence.iter().any(|byte| *byte != FENCE_BYTE)
    });
    broken.map(|(start, (bytes, _))| {
        // SAFETY: as above. Only kernels could write there, and they run under the lock that the
        // caller holds.
        unsafe { ((*start + bytes) as *mut u8).write_bytes(FENCE_BYTE, FENCE) };
        (*start, *bytes)
    })
}

fn allocate(bytes: usize, device: Option<usize>) -> Result<*mut c_void, hipError_t> {
    let settings = settings()?;
    let align = if bytes >= HUGE { HUGE } else { ALIGN };
    let fence = if settings.wave.is_some() && device.is_some() { FENCE } else { 0 };
    let layout = bytes
        .checked_add(fence)
        .and_then(|bytes| Layout::from_size_align(bytes, align).ok())
        .ok_or(hipErrorOutOfMemory)?;
    // Checked here, because Linux grants memory that it does not have, and later kills a process
    // that uses it.
    if bytes >= HUGE && bytes > available_memory() {
        return Err(hipErrorOutOfMemory);
    }
    // SAFETY: the layout's size is not 0, because the callers handle 0 bytes themselves.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        return Err(hipErrorOutOfMemory);
    }
    if bytes >= HUGE {
        ask_for_huge_pages(memory, bytes);
    }
    if settings.poison {
        // SAFETY: freshly allocated, of this size.
        unsafe { memory.write_bytes(0xff, bytes) };
    }
    // SAFETY: the layout has room for the fence after the bytes.
    unsafe { memory.add(bytes).write_bytes(FENCE_BYTE, fence) };
    LIVE.keep(memory as usize, bytes, Own { layout, device });
    Ok(memory.cast())
}

/// Waits for all devices' work.
fn run_late() {
    if late::is_on() {
        let _order = late::lock();
        late::run_all();
    }
}

/// Takes an allocation out of the map and frees it.
fn release(pointer: *mut c_void, valid: impl Fn(&Own) -> bool) -> Status {
    let own = LIVE.forget(pointer, valid)?;
    // SAFETY: it came from `allocate` with this layout, and no other call finds it in the map any
    // more.
    unsafe { dealloc(pointer.cast(), own.layout) };
    Ok(())
}

impl Memory for Host {
    fn ready() -> Status {
        current().map(|_| ())
    }

    fn allocate(bytes: usize) -> Status<*mut c_void> {
        allocate(bytes, Some(current()?.index))
    }

    /// All memory of this device is the host's, and so is managed memory.
    fn allocate_managed(bytes: usize) -> Status<*mut c_void> {
        Self::allocate(bytes)
    }

    fn free(pointer: *mut c_void) -> Status {
        // Waits for the device's work, as AMD's hipFree does.
        let owner = match LIVE.find(pointer as usize) {
            Some((_, _, Own { device: Some(owner), .. })) => super::device(owner as i32)?,
            _ => current()?,
        };
        let _order = owner.lock();
        if late::is_on() {
            late::run_all();
        }
        release(pointer, |allocation| allocation.device.is_some())
    }

    fn allocate_host(bytes: usize) -> Status<*mut c_void> {
        require(!Failure::HostMalloc.is_asked(), hipErrorOutOfMemory)?;
        allocate(bytes, None)
    }

    fn free_host(pointer: *mut c_void) -> Status {
        // As AMD's hipHostFree does.
        run_late();
        release(pointer, |allocation| allocation.device.is_none())
    }

    unsafe fn register_host(pointer: *mut c_void, bytes: usize) -> Status {
        pointer.addr().checked_add(bytes).ok_or(hipErrorInvalidValue)?;
        REGISTERED.write().unwrap_or_else(PoisonError::into_inner).push((pointer as usize, bytes));
        Ok(())
    }

    /// Of several ranges that begin at the pointer, the shortest ends first, so that no access is
    /// refused that another registration allows.
    fn unregister_host(pointer: *mut c_void) -> Status {
        run_late();
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let from_here = registered.iter().enumerate().filter(|(_, (start, _))| *start == pointer as usize);
        let shortest = from_here.min_by_key(|(_, (_, bytes))| *bytes).map(|(at, _)| at);
        registered.swap_remove(shortest.ok_or(hipErrorInvalidValue)?);
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(memory: *mut u8, bytes: usize) {
    // SAFETY: whole pages of our own allocation; the advice changes no content. If the system
    // refuses it, only speed is lost.
    unsafe { libc::madvise(memory.cast(), bytes & !(HUGE - 1), libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_memory: *mut u8, _bytes: usize) {}
