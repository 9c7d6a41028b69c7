//! Memory, and the map of allocations. Copies are checked against the map, as in HIP.

use super::{Devices, Status, api, put};
use crate::require;
use core::ffi::{c_uint, c_void};
use hip_sys::*;
use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

/// A provider's live allocations by address, each with its size in bytes and the provider's own
/// value `T`.
pub struct Allocations<T> {
    live: RwLock<BTreeMap<usize, (usize, T)>>,
    /// Whether devices may access a range that lies in none of the allocations.
    others: fn(*const c_void, usize) -> bool,
}

/// The position of a range of memory among the allocations.
pub enum Place {
    /// Wholly inside one allocation.
    Inside,
    /// It begins in an allocation and ends past the allocation's end.
    Past,
    /// It does not begin inside an allocation.
    Elsewhere,
}

impl<T: Copy> Allocations<T> {
    /// An empty map. `others` says whether devices may access a range that lies in none of the
    /// map's allocations, because somebody else allocated it. All further ranges count as the
    /// host's own memory.
    pub const fn new(others: fn(*const c_void, usize) -> bool) -> Self {
        Self { live: RwLock::new(BTreeMap::new()), others }
    }

    /// The locked map. Nothing is added or removed while the guard lives.
    pub fn read(&self) -> RwLockReadGuard<'_, BTreeMap<usize, (usize, T)>> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocation that holds an address: its start, its bytes, and the provider's value.
    pub fn find(&self, address: usize) -> Option<(usize, usize, T)> {
        let live = self.read();
        let (&start, &(bytes, own)) = live.range(..=address).next_back()?;
        (address - start < bytes).then_some((start, bytes, own))
    }

    /// The position of a range among the allocations.
    pub fn place(&self, pointer: *const c_void, bytes: usize) -> Place {
        match self.find(pointer as usize) {
            Some((start, all, _)) if bytes <= all - (pointer as usize - start) => Place::Inside,
            Some(_) => Place::Past,
            None => Place::Elsewhere,
        }
    }

    /// Whether devices may access the range: it lies inside one live allocation, or in memory that
    /// somebody else allocated for devices.
    pub fn holds(&self, pointer: *const c_void, bytes: usize) -> bool {
        match self.place(pointer, bytes) {
            Place::Inside => true,
            Place::Past => false,
            Place::Elsewhere => (self.others)(pointer, bytes),
        }
    }

    /// Adds an allocation.
    pub fn keep(&self, start: usize, bytes: usize, own: T) {
        self.live.write().unwrap_or_else(PoisonError::into_inner).insert(start, (bytes, own));
    }

    /// Removes the allocation that begins at `pointer` from the map, if its value is `valid`.
    pub fn forget(&self, pointer: *mut c_void, valid: impl Fn(&T) -> bool) -> Status<T> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        match live.entry(pointer as usize) {
            std::collections::btree_map::Entry::Occupied(entry) if valid(&entry.get().1) => {
                Ok(entry.remove().1)
            }
            _ => Err(hipErrorInvalidValue),
        }
    }

    /// AMD's checks of a copy: null pointers, the direction, the ends of allocations, and that
    /// device operands lie in allocations.
    pub fn check_copy(
        &self,
        to: *const c_void,
        from: *const c_void,
        bytes: usize,
        kind: hipMemcpyKind,
    ) -> Status {
        if to.is_null() || from.is_null() {
            return Err(hipErrorInvalidValue);
        }
        if kind > hipMemcpyDefault {
            return Err(hipErrorInvalidMemcpyDirection);
        }
        let device = [
            (to, kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice),
            (from, kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice),
        ];
        for (pointer, must_be_device) in device {
            match self.place(pointer, bytes) {
                Place::Inside => {}
                Place::Elsewhere if !must_be_device || (self.others)(pointer, bytes) => {}
                Place::Elsewhere | Place::Past => return Err(hipErrorInvalidValue),
            }
        }
        Ok(())
    }

    /// Checks that a fill lies inside an allocation, and returns its size in bytes. `bytes` is
    /// `None` if the size overflows.
    pub fn check_fill(&self, to: *const c_void, bytes: Option<usize>) -> Status<usize> {
        bytes.filter(|&bytes| bytes == 0 || self.holds(to, bytes)).ok_or(hipErrorInvalidValue)
    }
}

/// A provider's memory. [`Memory::ready`] is called before every other method.
pub trait Memory: Devices {
    /// Makes the calling thread's device ready for use. Does not report earlier failures on the
    /// device.
    fn ready() -> Status;

    /// Allocates memory of the calling thread's device. `bytes` is never 0.
    fn allocate(bytes: usize) -> Status<*mut c_void>;

    /// Allocates memory that the host and all devices share, which [`Memory::free`] frees. `bytes` is
    /// never 0. A provider that has none leaves this as it is.
    fn allocate_managed(_bytes: usize) -> Status<*mut c_void> {
        Err(hipErrorNotSupported)
    }

    /// Frees memory of a device.
    fn free(pointer: *mut c_void) -> Status;

    /// Allocates pinned host memory that every device can access. `bytes` is never 0.
    fn allocate_host(bytes: usize) -> Status<*mut c_void>;

    /// Frees pinned host memory.
    fn free_host(pointer: *mut c_void) -> Status;

    /// Lets devices access host memory that something else allocated. `bytes` is never 0, and the
    /// pointer never null.
    ///
    /// # Safety
    /// By HIP's contract, the memory stays until [`Memory::unregister_host`].
    unsafe fn register_host(pointer: *mut c_void, bytes: usize) -> Status;

    /// Ends the access. The pointer is never null.
    fn unregister_host(pointer: *mut c_void) -> Status;
}

/// Allocates by `allocate`; gives null for 0 bytes.
///
/// # Safety
/// The caller's out-pointer.
unsafe fn malloc<M: Memory>(
    pointer: *mut *mut c_void,
    size: usize,
    allocate: fn(usize) -> Status<*mut c_void>,
) -> hipError_t {
    api(|| {
        M::ready()?;
        let none = size == 0 || pointer.is_null();
        let memory = if none { core::ptr::null_mut() } else { allocate(size)? };
        // SAFETY: the caller's, by HIP's contract.
        unsafe { put(pointer, memory) }
    })
}

/// Frees by `free`. For null it only makes the device ready.
fn free<M: Memory>(pointer: *mut c_void, free: fn(*mut c_void) -> Status) -> hipError_t {
    api(|| {
        M::ready()?;
        if pointer.is_null() { Ok(()) } else { free(pointer) }
    })
}

pub(super) unsafe extern "C" fn hipMalloc<M: Memory>(pointer: *mut *mut c_void, size: usize) -> hipError_t {
    // SAFETY: the caller's out-pointer, here and below.
    unsafe { malloc::<M>(pointer, size, M::allocate) }
}

/// Unlike `hipMalloc`, this refuses 0 bytes.
pub(super) unsafe extern "C" fn hipMallocManaged<M: Memory>(
    pointer: *mut *mut c_void,
    size: usize,
    flags: c_uint,
) -> hipError_t {
    api(|| {
        M::ready()?;
        let known = flags == hipMemAttachGlobal || flags == hipMemAttachHost;
        require(known && size > 0 && !pointer.is_null(), hipErrorInvalidValue)?;
        let memory = M::allocate_managed(size)?;
        // SAFETY: as above.
        unsafe { put(pointer, memory) }
    })
}

pub(super) unsafe extern "C" fn hipHostMalloc<M: Memory>(
    pointer: *mut *mut c_void,
    size: usize,
    _flags: c_uint,
) -> hipError_t {
    // SAFETY: as above.
    unsafe { malloc::<M>(pointer, size, M::allocate_host) }
}

pub(super) unsafe extern "C" fn hipHostRegister<M: Memory>(
    pointer: *mut c_void,
    size: usize,
    _flags: c_uint,
) -> hipError_t {
    api(|| {
        M::ready()?;
        require(!pointer.is_null() && size > 0, hipErrorInvalidValue)?;
        // SAFETY: the caller's memory, by HIP's contract.
        unsafe { M::register_host(pointer, size) }
    })
}

pub(super) unsafe extern "C" fn hipHostUnregister<M: Memory>(pointer: *mut c_void) -> hipError_t {
    api(|| {
        M::ready()?;
        require(!pointer.is_null(), hipErrorInvalidValue)?;
        M::unregister_host(pointer)
    })
}

pub(super) unsafe extern "C" fn hipFree<M: Memory>(pointer: *mut c_void) -> hipError_t {
    free::<M>(pointer, M::free)
}

pub(super) unsafe extern "C" fn hipHostFree<M: Memory>(pointer: *mut c_void) -> hipError_t {
    free::<M>(pointer, M::free_host)
}
