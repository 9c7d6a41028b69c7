//! Virtual memory: reserved addresses, and memory that is mapped to them (`hsa_amd_vmem_*`).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use super::agents::Agent;
use super::allocation::{Allocation, Backing, Physical, Pool};
use super::api::Array;
use super::log::trace;
use super::pools::{gpus_of, poisons, release, reserve};
use super::runtime::{lock, runtime};
use super::{AccessDescription, AgentHandle, MemoryHandle, PoolHandle, Status};
use crate::memory::PAGE;

/// A handle's memory, and how many times the handle was given out.
struct Held {
    memory: Arc<Physical>,
    count: usize,
}

#[derive(Default)]
struct Handles {
    held: BTreeMap<u64, Held>,
    last: u64,
}

static HANDLES: Mutex<Handles> = Mutex::new(Handles { held: BTreeMap::new(), last: 0 });
/// Reserved addresses, by the address given out: the mapping's start and length.
static RESERVED: Mutex<BTreeMap<u64, (u64, usize)>> = Mutex::new(BTreeMap::new());

/// Maps `size` bytes: inaccessible if `file` is none.
fn map(at: u64, size: usize, file: Option<(&OwnedFd, usize)>) -> Result<u64, Status> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let (protection, flags, file, offset) = match file {
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0),
        Some((file, offset)) => {
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), offset)
        }
    };
    let offset = libc::off_t::try_from(offset).map_err(|_| Status::INVALID_ARGUMENT)?;
    // SAFETY: `at` is 0, or every caller has checked that it lies in addresses that `hsa_amd_vmem_address_reserve`
    // set aside and that hold no other mapping.
    let found = unsafe { libc::mmap(at as *mut c_void, size, protection, flags | fixed, file, offset) };
    if found == libc::MAP_FAILED { Err(Status::OUT_OF_RESOURCES) } else { Ok(found as u64) }
}

/// Writes 0xff bytes, and returns whether that succeeded.
fn fill(file: &OwnedFd, size: usize) -> bool {
    let Ok(mut file) = file.try_clone().map(File::from) else { return false };
    let chunk = vec![0xff; size.min(1 << 20)];
    (0..size).step_by(chunk.len()).all(|at| file.write_all(&chunk[..chunk.len().min(size - at)]).is_ok())
}

/// Reserves addresses.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_address_reserve(
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
    size: usize,
    hint: u64,
    flags: u64,
) -> Status {
    hsa_amd_vmem_address_reserve_align(pointer, size, hint, PAGE as u64, flags)
}

/// Reserves addresses with an alignment. Ignores the address that the caller suggests.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_address_reserve_align(
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
    size: usize,
    _hint: u64,
    alignment: u64,
    _flags: u64,
) -> Status {
    let alignment = alignment.max(PAGE as u64);
    let whole = size.checked_add(alignment as usize).filter(|_| size > 0 && size.is_multiple_of(PAGE));
    let (Some(pointer), Some(whole), true) = (pointer, whole, alignment.is_power_of_two()) else {
        return Status::INVALID_ARGUMENT;
    };
    match map(0, whole, None) {
        Ok(start) => {
            let at = start.next_multiple_of(alignment);
            lock(&RESERVED).insert(at, (start, whole));
            trace!("hsa_amd_vmem_address_reserve {size} -> {at:#x}");
            pointer.write(at as *mut c_void);
            Status::SUCCESS
        }
        Err(status) => status,
    }
}

/// Gives reserved addresses back.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_address_free(pointer: *mut c_void, size: usize) -> Status {
    trace!("hsa_amd_vmem_address_free {pointer:?} {size}");
    let at = pointer as u64;
    let used = runtime().allocations().range(at..at.saturating_add(size as u64)).next().is_some();
    if used {
        return Status::RESOURCE_FREE;
    }
    let Some((start, whole)) = lock(&RESERVED).remove(&at) else { return Status::INVALID_ALLOCATION };
    // SAFETY: `hsa_amd_vmem_address_reserve` mapped exactly this, and nothing is mapped within any more.
    unsafe { libc::munmap(start as *mut c_void, whole) };
    Status::SUCCESS
}

/// Makes memory without an address.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_handle_create(
    pool: PoolHandle,
    size: usize,
    _kind: u32,
    _flags: u64,
    handle: Option<&mut MaybeUninit<MemoryHandle>>,
) -> Status {
    let (Some(pool), Some(handle)) = (pool.get(), handle) else { return Status::INVALID_ARGUMENT };
    if size == 0 || !size.is_multiple_of(PAGE) || matches!(pool, Pool::Lds(_)) {
        return Status::INVALID_ARGUMENT;
    }
    if let Err(status) = reserve(pool, size) {
        return status;
    }
    // SAFETY: the name is a C string; the call touches no other memory.
    let number = unsafe { libc::memfd_create(c"virtual-gpu".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        release(pool, size);
        return Status::OUT_OF_RESOURCES;
    }
    // SAFETY: the kernel just gave this descriptor to nobody else.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let gpu = pool.gpu().map(|gpu| &runtime().gpus[gpu]);
    let memory = Arc::new(Physical { file, size, pool, gpu });
    let length = libc::off_t::try_from(size).unwrap_or(libc::off_t::MAX);
    // SAFETY: the descriptor is open as long as `memory` lives.
    if unsafe { libc::ftruncate(memory.file.as_raw_fd(), length) } != 0 {
        return Status::OUT_OF_RESOURCES;
    }
    if poisons(pool, size) && !fill(&memory.file, size) {
        return Status::OUT_OF_RESOURCES;
    }
    let mut handles = lock(&HANDLES);
    handles.last += 1;
    let number = handles.last;
    handles.held.insert(number, Held { memory, count: 1 });
    trace!("hsa_amd_vmem_handle_create {pool:?} {size} -> {number}");
    handle.write(MemoryHandle { handle: number });
    Status::SUCCESS
}

/// Gives a handle back. The memory lives as long as it is mapped.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_handle_release(handle: MemoryHandle) -> Status {
    let mut handles = lock(&HANDLES);
    let Some(held) = handles.held.get_mut(&handle.handle) else { return Status::INVALID_ALLOCATION };
    held.count -= 1;
    if held.count == 0 {
        handles.held.remove(&handle.handle);
    }
    Status::SUCCESS
}

/// The handle of mapped memory. The caller must release it once more.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_retain_alloc_handle(
    handle: Option<&mut MaybeUninit<MemoryHandle>>,
    pointer: *mut c_void,
) -> Status {
    let Some(handle) = handle else { return Status::INVALID_ARGUMENT };
    let memory = match runtime().allocations().get(&(pointer as u64)) {
        Some(Allocation { backing: Backing::Mapped(memory), .. }) => Arc::clone(memory),
        _ => return Status::INVALID_ALLOCATION,
    };
    let mut handles = lock(&HANDLES);
    let known = handles.held.iter_mut().find(|(_, held)| Arc::ptr_eq(&held.memory, &memory));
    let number = match known {
        Some((&number, held)) => {
            held.count += 1;
            number
        }
        None => {
            handles.last += 1;
            let number = handles.last;
            handles.held.insert(number, Held { memory, count: 1 });
            number
        }
    };
    handle.write(MemoryHandle { handle: number });
    Status::SUCCESS
}

/// Maps memory to reserved addresses. No GPU may access it until `hsa_amd_vmem_set_access` says so.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_map(
    pointer: *mut c_void,
    size: usize,
    offset: usize,
    handle: MemoryHandle,
    _flags: u64,
) -> Status {
    trace!("hsa_amd_vmem_map {pointer:?} {size} +{offset} handle {}", handle.handle);
    let start = pointer as u64;
    let Some(memory) = lock(&HANDLES).held.get(&handle.handle).map(|held| Arc::clone(&held.memory)) else {
        return Status::INVALID_ALLOCATION;
    };
    let inside = offset.checked_add(size).is_some_and(|end| size > 0 && end <= memory.size);
    let Some(end) =
        start.checked_add(size as u64).filter(|_| inside && (start as usize).is_multiple_of(PAGE))
    else {
        return Status::INVALID_ARGUMENT;
    };
    let reserved = lock(&RESERVED)
        .range(..=start)
        .next_back()
        .is_some_and(|(_, &(base, whole))| start >= base && end <= base + whole as u64);
    let mut allocations = runtime().allocations();
    let before = allocations.range(..end).next_back();
    if !reserved || before.is_some_and(|(_, other)| other.start + other.size as u64 > start) {
        return Status::INVALID_ARGUMENT;
    }
    if let Err(status) = map(start, size, Some((&memory.file, offset))) {
        return status;
    }
    let pool = memory.pool;
    let backing = Backing::Mapped(memory);
    allocations.insert(start, Allocation { start, size, pool, backing, access: 0 });
    Status::SUCCESS
}

/// Removes a mapping.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_unmap(pointer: *mut c_void, size: usize) -> Status {
    trace!("hsa_amd_vmem_unmap {pointer:?} {size}");
    let start = pointer as u64;
    let mut allocations = runtime().allocations();
    let Some(mut known) = allocations.remove(&start) else { return Status::INVALID_ALLOCATION };
    if !matches!(known.backing, Backing::Mapped(_)) || known.size != size {
        allocations.insert(start, known);
        return Status::INVALID_ARGUMENT;
    }
    known.allow(&runtime().gpus, 0);
    drop(allocations);
    // The addresses stay reserved.
    Status::of(map(start, size, None).map(drop))
}

/// Sets which agents may access mapped memory.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_set_access(
    pointer: *mut c_void,
    size: usize,
    descriptions: Array<AccessDescription>,
    count: usize,
) -> Status {
    trace!("hsa_amd_vmem_set_access {pointer:?} {size} {count}");
    let descriptions = descriptions.get(count);
    let start = pointer as u64;
    let mut allocations = runtime().allocations();
    let within = start..start.saturating_add(size as u64);
    for description in descriptions {
        let gpu = match gpus_of(&[description.agent]) {
            Ok(gpu) => gpu,
            Err(status) => return status,
        };
        for (_, allocation) in allocations.range_mut(within.clone()) {
            // HSA_ACCESS_PERMISSION_NONE takes access away.
            let access =
                if description.permissions == 0 { allocation.access & !gpu } else { allocation.access | gpu };
            allocation.allow(&runtime().gpus, access);
        }
    }
    Status::SUCCESS
}

/// How an agent may access mapped memory (`hsa_access_permission_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_vmem_get_access(
    pointer: *mut c_void,
    permissions: Option<&mut MaybeUninit<u32>>,
    agent: AgentHandle,
) -> Status {
    let (Some(agent), Some(permissions)) = (agent.get(), permissions) else {
        return Status::INVALID_ARGUMENT;
    };
    let Some(access) = runtime().allocations().get(&(pointer as u64)).map(|found| found.access) else {
        return Status::INVALID_ALLOCATION;
    };
    let allowed = match agent {
        Agent::Cpu => true,
        Agent::Gpu(number) => access >> number & 1 != 0,
    };
    permissions.write(if allowed { 3 } else { 0 });
    Status::SUCCESS
}
