//! Memory pools, allocation, access and pinning (`hsa_ext_amd.h`).

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::agents::{Agent, unknown};
use super::allocation::{Allocation, Backing, Grain, Pool};
use super::api::{Array, Value};
use super::log::trace;
use super::runtime::{lock, runtime};
use super::{AgentHandle, LinkInfo, PointerInfo, PoolHandle, Status};
use crate::memory::Pages;

/// New device memory up to this size is poisoned. Poisoning larger memory would take real memory
/// from the host, and programs seldom touch all of it.
const POISONED: usize = 256 << 20;
/// How many freed allocations' addresses stay reserved.
const QUARANTINE: usize = 256;
/// The LDS of a workgroup.
const LDS: usize = 64 << 10;

impl Pool {
    fn of(agent: Agent) -> Vec<Self> {
        match agent {
            Agent::Cpu => {
                vec![Self::Host(Grain::Fine), Self::Host(Grain::FineKernarg), Self::Host(Grain::Coarse)]
            }
            Agent::Gpu(gpu) => vec![
                Self::Device(gpu, Grain::Coarse),
                Self::Device(gpu, Grain::Fine),
                Self::Device(gpu, Grain::Extended),
                Self::Lds(gpu),
            ],
        }
    }

    /// `flags | kind << 8 | gpu << 16`.
    fn handle(self) -> PoolHandle {
        let handle = match self {
            Self::Host(grain) => grain as u64 | 1 << 8,
            Self::Device(gpu, grain) => grain as u64 | 2 << 8 | (gpu as u64) << 16,
            Self::Lds(gpu) => 3 << 8 | (gpu as u64) << 16,
        };
        PoolHandle { handle }
    }

    pub(super) fn owner(self) -> AgentHandle {
        AgentHandle::of(self.gpu().map_or(Agent::Cpu, Agent::Gpu))
    }

    fn size(self) -> usize {
        match self {
            Self::Lds(_) => LDS,
            Self::Host(_) | Self::Device(..) => runtime().settings.memory as usize,
        }
    }
}

impl PoolHandle {
    pub(super) fn get(self) -> Option<Pool> {
        let gpu = (self.handle >> 16) as usize;
        let grain = || Grain::ALL.into_iter().find(|&grain| grain as u64 == self.handle & 0xff);
        let pool = match self.handle >> 8 & 0xff {
            1 => Pool::Host(grain()?),
            2 => Pool::Device(gpu, grain()?),
            3 => Pool::Lds(gpu),
            _ => return None,
        };
        (gpu < runtime().gpus.len() || pool.gpu().is_none()).then_some(pool)
    }
}

/// All GPUs, a bit for each.
pub(super) fn every_gpu() -> u32 {
    (1u32 << runtime().gpus.len()) - 1
}

/// The GPUs among agents, a bit for each.
///
/// # Errors
/// [`Status::INVALID_AGENT`] if one isn't an agent.
pub(super) fn gpus_of(agents: &[AgentHandle]) -> Result<u32, Status> {
    agents.iter().try_fold(0, |mask, agent| match agent.get() {
        None => Err(Status::INVALID_AGENT),
        Some(Agent::Cpu) => Ok(mask),
        Some(Agent::Gpu(number)) => Ok(mask | 1 << number),
    })
}

/// Counts memory of a pool's GPU as used.
///
/// # Errors
/// [`Status::OUT_OF_RESOURCES`] if the GPU has less.
pub(super) fn reserve(pool: Pool, size: usize) -> Result<(), Status> {
    let Some(gpu) = pool.gpu() else { return Ok(()) };
    let reserved = runtime().gpus[gpu].reserve(size, runtime().settings.memory);
    if reserved { Ok(()) } else { Err(Status::OUT_OF_RESOURCES) }
}

/// Counts memory of a pool's GPU as free again.
pub(super) fn release(pool: Pool, size: usize) {
    if let Some(gpu) = pool.gpu() {
        runtime().gpus[gpu].release(size);
    }
}

/// Whether new memory of a pool is to hold 0xff bytes.
pub(super) fn poisons(pool: Pool, size: usize) -> bool {
    pool.gpu().is_some() && runtime().settings.poison && size <= POISONED
}

/// Gives freed pages back, but keeps their addresses reserved for a while.
pub(super) fn retire(pages: Pages) {
    pages.discard();
    let mut quarantine = lock(&runtime().quarantine);
    quarantine.push_back(pages);
    if quarantine.len() > QUARANTINE {
        quarantine.pop_front();
    }
}

/// Calls a function for each pool of an agent.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_agent_iterate_memory_pools(
    agent: AgentHandle,
    callback: Option<extern "C" fn(PoolHandle, *mut c_void) -> Status>,
    data: *mut c_void,
) -> Status {
    let (Some(agent), Some(callback)) = (agent.get(), callback) else { return Status::INVALID_ARGUMENT };
    for pool in Pool::of(agent) {
        let status = callback(pool.handle(), data);
        if status != Status::SUCCESS {
            return status;
        }
    }
    Status::SUCCESS
}

/// An attribute of a pool (`hsa_amd_memory_pool_info_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_pool_get_info(pool: PoolHandle, attribute: u32, value: Value) -> Status {
    trace!("hsa_amd_memory_pool_get_info {:#x} {attribute}", pool.handle);
    let Some(pool) = pool.get() else { return Status::INVALID_MEMORY_POOL };
    let lds = matches!(pool, Pool::Lds(_));
    match attribute {
        // SEGMENT: global, or group; GLOBAL_FLAGS
        0 => value.put(if lds { 3u32 } else { 0 }),
        1 => value.put(pool.flags()),
        // SIZE, ALLOC_MAX_SIZE
        2 | 16 => value.put(pool.size()),
        // RUNTIME_ALLOC_ALLOWED; its granule, alignment and recommended granule
        5 => value.put(!lds),
        6 | 7 | 18 => value.put(if lds { 0usize } else { 4096 }),
        // ACCESSIBLE_BY_ALL, LOCATION
        15 => value.put(pool.gpu().is_none()),
        17 => value.put(u32::from(pool.gpu().is_some())),
        _ => unknown("memory pool", attribute),
    }
}

/// How an agent sees a pool (`hsa_amd_agent_memory_pool_info_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_agent_memory_pool_get_info(
    agent: AgentHandle,
    pool: PoolHandle,
    attribute: u32,
    value: Value,
) -> Status {
    let Some(agent) = agent.get() else { return Status::INVALID_AGENT };
    let Some(pool) = pool.get() else { return Status::INVALID_MEMORY_POOL };
    let own = pool.owner() == AgentHandle::of(agent);
    let peer = matches!(agent, Agent::Gpu(_)) && pool.gpu().is_some() && !own;
    match (attribute, pool) {
        // ACCESS: never, by default, or once it is allowed
        (0, Pool::Lds(_)) => value.put(u32::from(own)),
        (0, _) => value.put(if peer { 2u32 } else { 1 }),
        // NUM_LINK_HOPS, LINK_INFO: PCIe, with atomics
        (1, _) => value.put(u32::from(!own)),
        (2, _) => value.put(LinkInfo {
            atomics_32: true,
            atomics_64: true,
            coherent: true,
            kind: 2,
            distance: if own { 0 } else { 20 },
            ..LinkInfo::default()
        }),
        _ => unknown("memory pool", attribute),
    }
}

/// Allocates memory of a pool.
///
/// A GPU may access exactly the bytes asked for. Every GPU may access host memory right away,
/// because HIP would allow it anyway.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_pool_allocate(
    pool: PoolHandle,
    size: usize,
    flags: u32,
    pointer: Option<&mut MaybeUninit<*mut c_void>>,
) -> Status {
    let Some(pool) = pool.get() else { return Status::INVALID_MEMORY_POOL };
    let Some(pointer) = pointer.filter(|_| size > 0) else { return Status::INVALID_ARGUMENT };
    if matches!(pool, Pool::Lds(_)) {
        return Status::INVALID_ALLOCATION;
    }
    if size > pool.size() {
        return Status::OUT_OF_RESOURCES;
    }
    if let Err(status) = reserve(pool, size) {
        trace!("hsa_amd_memory_pool_allocate {pool:?} {size}: out of memory");
        return status;
    }
    let Ok(pages) = Pages::new(size) else {
        release(pool, size);
        return Status::OUT_OF_RESOURCES;
    };
    if poisons(pool, size) {
        // SAFETY: the pages were just made and have at least `size` bytes.
        unsafe { pages.as_ptr().write_bytes(0xff, size) };
    }
    let start = pages.start();
    trace!("hsa_amd_memory_pool_allocate {pool:?} {size} flags {flags:#x} -> {start:#x}");
    let mut made = Allocation { start, size, pool, backing: Backing::Pages(pages), access: 0 };
    made.allow(&runtime().gpus, pool.gpu().map_or_else(every_gpu, |gpu| 1 << gpu));
    runtime().allocations().insert(start, made);
    pointer.write(start as *mut c_void);
    Status::SUCCESS
}

/// Frees memory of a pool. A GPU that accesses it from now on faults.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_pool_free(pointer: *mut c_void) -> Status {
    trace!("hsa_amd_memory_pool_free {pointer:?}");
    if pointer.is_null() {
        return Status::SUCCESS;
    }
    let mut allocations = runtime().allocations();
    let start = pointer as u64;
    if !matches!(allocations.get(&start), Some(Allocation { backing: Backing::Pages(_), .. })) {
        return Status::INVALID_ALLOCATION;
    }
    let Some(mut allocation) = allocations.remove(&start) else { return Status::INVALID_ALLOCATION };
    allocation.allow(&runtime().gpus, 0);
    drop(allocations);
    release(allocation.pool, allocation.size);
    if let Backing::Pages(pages) = allocation.backing {
        retire(pages);
    }
    Status::SUCCESS
}

/// Sets which GPUs may access an allocation, besides its owner.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_agents_allow_access(
    count: u32,
    agents: Array<AgentHandle>,
    _flags: *const u32,
    pointer: *const c_void,
) -> Status {
    trace!("hsa_amd_agents_allow_access {count} {pointer:?}");
    let gpus = match gpus_of(agents.get(count as usize)) {
        Ok(gpus) => gpus,
        Err(status) => return status,
    };
    let mut allocations = runtime().allocations();
    let Some(allocation) = allocations.get_mut(&(pointer as u64)) else { return Status::INVALID_ARGUMENT };
    if matches!(allocation.backing, Backing::Code) {
        return Status::INVALID_ARGUMENT;
    }
    let own = allocation.pool.gpu().map_or_else(every_gpu, |gpu| 1 << gpu);
    allocation.allow(&runtime().gpus, gpus | own);
    Status::SUCCESS
}

/// Pins memory of the application, so that GPUs may access it: those of `agents`, or all.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_lock_to_pool(
    pointer: *mut c_void,
    size: usize,
    agents: Array<AgentHandle>,
    count: i32,
    pool: PoolHandle,
    _flags: u32,
    agent_pointer: Option<&mut MaybeUninit<*mut c_void>>,
) -> Status {
    trace!("hsa_amd_memory_lock_to_pool {pointer:?} {size} {:#x}", pool.handle);
    let (Some(pool), Some(agent_pointer)) = (pool.get(), agent_pointer) else {
        return Status::INVALID_ARGUMENT;
    };
    let start = pointer as u64;
    if start == 0 || size == 0 || start.checked_add(size as u64).is_none() || pool.gpu().is_some() {
        return Status::INVALID_ARGUMENT;
    }
    let agents = agents.get(usize::try_from(count).unwrap_or(0));
    let gpus = match gpus_of(agents) {
        Ok(_) if agents.is_empty() => every_gpu(),
        Ok(gpus) => gpus,
        Err(status) => return status,
    };
    let mut allocations = runtime().allocations();
    match allocations.get_mut(&start) {
        // The memory is pinned again. The larger range counts until every pinning has been undone.
        Some(known) => {
            let Backing::Pinned(count) = known.backing else { return Status::INVALID_ARGUMENT };
            let access = known.access | gpus;
            known.allow(&runtime().gpus, 0);
            known.size = known.size.max(size);
            known.backing = Backing::Pinned(count + 1);
            known.allow(&runtime().gpus, access);
        }
        None => {
            let backing = Backing::Pinned(1);
            let mut made = Allocation { start, size, pool, backing, access: 0 };
            made.allow(&runtime().gpus, gpus);
            allocations.insert(start, made);
        }
    }
    agent_pointer.write(pointer);
    Status::SUCCESS
}

/// Undoes one pinning.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_memory_unlock(pointer: *mut c_void) -> Status {
    trace!("hsa_amd_memory_unlock {pointer:?}");
    let mut allocations = runtime().allocations();
    let Some(known) = allocations.get_mut(&(pointer as u64)) else { return Status::INVALID_ARGUMENT };
    match &mut known.backing {
        Backing::Pinned(1) => {
            known.allow(&runtime().gpus, 0);
            allocations.remove(&(pointer as u64));
            Status::SUCCESS
        }
        Backing::Pinned(count) => {
            *count -= 1;
            Status::SUCCESS
        }
        _ => Status::INVALID_ARGUMENT,
    }
}

/// Returns what is known about an address.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_amd_pointer_info(
    pointer: *const c_void,
    info: Option<&mut PointerInfo>,
    allocate: Option<extern "C" fn(usize) -> *mut c_void>,
    count: Option<&mut u32>,
    accessible: Option<&mut MaybeUninit<*mut AgentHandle>>,
) -> Status {
    let Some(info) = info else { return Status::INVALID_ARGUMENT };
    let at = pointer as u64;
    let allocations = runtime().allocations();
    let found = allocations.range(..=at).next_back().map(|(_, found)| found).filter(|found| at < found.end());
    let filled = match found {
        None => PointerInfo {
            size: 0,
            kind: 0,
            agent_base: 0,
            host_base: 0,
            bytes: 0,
            user_data: 0,
            owner: AgentHandle::default(),
            flags: 0,
            registered: false,
        },
        Some(found) => PointerInfo {
            size: 0,
            // HSA_EXT_POINTER_TYPE_HSA, _LOCKED, _HSA_VMEM
            kind: match found.backing {
                Backing::Pages(_) | Backing::Code => 1,
                Backing::Pinned(_) => 2,
                Backing::Mapped(_) => 6,
            },
            agent_base: found.start,
            host_base: found.start,
            bytes: found.size,
            user_data: 0,
            owner: found.pool.owner(),
            flags: found.pool.flags(),
            registered: true,
        },
    };
    let size = (info.size as usize).min(size_of::<PointerInfo>());
    let filled = PointerInfo { size: size as u32, ..filled };
    // SAFETY: the caller guarantees `info.size` bytes at `info`, and no more are written.
    unsafe {
        std::ptr::from_mut(info)
            .cast::<u8>()
            .copy_from_nonoverlapping(std::ptr::from_ref(&filled).cast(), size);
    }
    if let (Some(allocate), Some(count), Some(accessible), Some(found)) = (allocate, count, accessible, found)
    {
        let gpus = (0..runtime().gpus.len()).filter(|number| found.access >> number & 1 != 0).map(Agent::Gpu);
        let agents: Vec<_> = std::iter::once(Agent::Cpu).chain(gpus).map(AgentHandle::of).collect();
        let list = allocate(agents.len() * size_of::<AgentHandle>()).cast::<AgentHandle>();
        if list.is_null() {
            return Status::OUT_OF_RESOURCES;
        }
        // SAFETY: the caller's allocator provided room for this many agents.
        unsafe { list.copy_from_nonoverlapping(agents.as_ptr(), agents.len()) };
        *count = agents.len() as u32;
        accessible.write(list);
    }
    Status::SUCCESS
}
