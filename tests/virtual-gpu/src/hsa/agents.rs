//! Agents, their instruction set, and the system (HSA 1.2, sections 2.1 and 2.3).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::api::Value;
use super::log::{self, trace};
use super::runtime::{now, runtime};
use super::{AgentHandle, IsaHandle, Status};
use crate::settings::Settings;

/// The instruction set's full name.
pub(super) const ISA: &str = "amdgcn-amd-amdhsa--gfx1030";
const ISA_HANDLE: IsaHandle = IsaHandle { handle: 1 };
const CPU: AgentHandle = AgentHandle { handle: 1 };
const FIRST_GPU: u64 = 16;
/// The version of ROCm 7.2's runtime. HIP 6.4 accepts it too.
const VERSION: (u16, u16) = (1, 18);

/// Hosts write to these to flush a PCIe card's host data path. Here there is nothing to flush.
static HDP: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static INITIALIZED: AtomicUsize = AtomicUsize::new(0);

/// An agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    Cpu,
    Gpu(usize),
}

impl AgentHandle {
    pub(super) fn of(agent: Agent) -> Self {
        match agent {
            Agent::Cpu => CPU,
            Agent::Gpu(number) => Self { handle: FIRST_GPU + number as u64 },
        }
    }

    pub(super) fn get(self) -> Option<Agent> {
        if self == CPU {
            return Some(Agent::Cpu);
        }
        let number = self.handle.checked_sub(FIRST_GPU)? as usize;
        (number < runtime().gpus.len()).then_some(Agent::Gpu(number))
    }
}

/// Initialises the runtime.
///
/// Fails, with a line on stderr, if a setting is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_init() -> Status {
    if let Err(error) = Settings::from_env() {
        log::say(format_args!("{error}"));
        return Status::INVALID_ARGUMENT;
    }
    let settings = &runtime().settings;
    trace!("hsa_init: {settings:?}");
    INITIALIZED.fetch_add(1, Ordering::Relaxed);
    Status::SUCCESS
}

/// Ends a use of the runtime. Its threads and memory live on until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_shut_down() -> Status {
    trace!("hsa_shut_down");
    let taken = INITIALIZED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    if taken.is_ok() { Status::SUCCESS } else { Status::NOT_INITIALIZED }
}

/// Calls a function for each agent: the CPU, then the GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_iterate_agents(
    callback: Option<extern "C" fn(AgentHandle, *mut c_void) -> Status>,
    data: *mut c_void,
) -> Status {
    let Some(callback) = callback else { return Status::INVALID_ARGUMENT };
    let gpus = (0..runtime().gpus.len()).map(Agent::Gpu);
    for agent in std::iter::once(Agent::Cpu).chain(gpus) {
        let status = callback(AgentHandle::of(agent), data);
        if status != Status::SUCCESS {
            return status;
        }
    }
    Status::SUCCESS
}

/// Calls a function for each instruction set of an agent.
#[unsafe(no_mangle)]
pub extern "C" fn hsa_agent_iterate_isas(
    agent: AgentHandle,
    callback: Option<extern "C" fn(IsaHandle, *mut c_void) -> Status>,
    data: *mut c_void,
) -> Status {
    match (agent.get(), callback) {
        (None, _) => Status::INVALID_AGENT,
        (_, None) => Status::INVALID_ARGUMENT,
        (Some(Agent::Cpu), _) => Status::SUCCESS,
        (Some(Agent::Gpu(_)), Some(callback)) => callback(ISA_HANDLE, data),
    }
}

/// An attribute of an instruction set (`hsa_isa_info_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_isa_get_info_alt(isa: IsaHandle, attribute: u32, value: Value) -> Status {
    trace!("hsa_isa_get_info_alt {attribute}");
    if isa != ISA_HANDLE {
        return Status::INVALID_ISA;
    }
    match attribute {
        // HSA_ISA_INFO_NAME_LENGTH, HSA_ISA_INFO_NAME; both count the terminator, as ROCr does.
        0 => value.put(ISA.len() as u32 + 1),
        1 => value.put_text(ISA, ISA.len() + 1),
        // HSA_ISA_INFO_FAST_F16_OPERATION
        9 => value.put(true),
        // HSA_ISA_INFO_WORKGROUP_MAX_DIM, _WORKGROUP_MAX_SIZE, _GRID_MAX_DIM, _GRID_MAX_SIZE
        12 => value.put([1024u16; 3]),
        13 => value.put(1024u32),
        14 => value.put([u32::MAX; 3]),
        16 => value.put(u64::from(u32::MAX)),
        _ => unknown("instruction set", attribute),
    }
}

/// An attribute of an agent (`hsa_agent_info_t`, `hsa_amd_agent_info_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_agent_get_info(agent: AgentHandle, attribute: u32, value: Value) -> Status {
    trace!("hsa_agent_get_info {} {attribute:#x}", agent.handle);
    let Some(agent) = agent.get() else { return Status::INVALID_AGENT };
    if attribute < 0xA000 {
        return hsa_attribute(agent, attribute, value);
    }
    match agent {
        Agent::Cpu => amd_attribute(None, attribute, value),
        Agent::Gpu(number) => amd_attribute(Some(number), attribute, value),
    }
}

/// The attributes of `hsa.h`.
fn hsa_attribute(agent: Agent, attribute: u32, value: Value) -> Status {
    let gpu = matches!(agent, Agent::Gpu(_));
    match attribute {
        // NAME and VENDOR_NAME
        0 => value.put_text(if gpu { "gfx1030" } else { "CPU" }, 64),
        1 => value.put_text(if gpu { "AMD" } else { "CPU" }, 64),
        // FEATURE: kernel dispatch
        2 => value.put(u32::from(gpu)),
        // MACHINE_MODEL: large
        3 => value.put(1u32),
        // PROFILE: base for GPUs, full for the CPU
        4 => value.put(u32::from(!gpu)),
        // DEFAULT_FLOAT_ROUNDING_MODE: near
        5 | 23 => value.put(2u32),
        24 => value.put(gpu),
        // WAVEFRONT_SIZE
        6 => value.put(if gpu { 32u32 } else { 0 }),
        // WORKGROUP_MAX_DIM, WORKGROUP_MAX_SIZE, GRID_MAX_DIM, GRID_MAX_SIZE
        7 => value.put([if gpu { 1024u16 } else { 0 }; 3]),
        8 => value.put(if gpu { 1024u32 } else { 0 }),
        9 => value.put([if gpu { u32::MAX } else { 0 }; 3]),
        10 => value.put(if gpu { u32::MAX } else { 0 }),
        // QUEUES_MAX, QUEUE_MIN_SIZE, QUEUE_MAX_SIZE, QUEUE_TYPE
        12 => value.put(if gpu { 128u32 } else { 0 }),
        13 => value.put(if gpu { 64u32 } else { 0 }),
        14 => value.put(if gpu { 131_072u32 } else { 0 }),
        15 => value.put(0u32),
        // NODE, DEVICE
        16 => value.put(node(agent)),
        17 => value.put(u32::from(gpu)),
        // CACHE_SIZE: L1 to L4, of Navi 21
        18 => value.put(if gpu { [16 << 10, 4 << 20, 128 << 20, 0] } else { [0u32; 4] }),
        19 if gpu => value.put(ISA_HANDLE),
        // EXTENSIONS: a bit for each; none, as images are not there
        20 => value.put([0u8; 128]),
        21 => value.put(VERSION.0),
        22 => value.put(VERSION.1),
        // The limits of images, which HIP reads although images are not supported.
        0x3000..=0x300c => value.put(0u32),
        _ => unknown("agent", attribute),
    }
}

/// The attributes of `hsa_ext_amd.h`; of the CPU if `gpu` is none.
fn amd_attribute(gpu: Option<usize>, attribute: u32, value: Value) -> Status {
    let settings = &runtime().settings;
    let number = gpu.unwrap_or(0) as u32;
    match attribute {
        // CHIP_ID of Navi 21, CACHELINE_SIZE
        0xA000 => value.put(if gpu.is_some() { 0x73BFu32 } else { 0 }),
        0xA001 => value.put(128u32),
        // COMPUTE_UNIT_COUNT and COOPERATIVE_COMPUTE_UNIT_COUNT
        0xA002 | 0xA014 => value.put(if gpu.is_some() { settings.units } else { settings.threads as u32 }),
        // MAX_CLOCK_FREQUENCY in MHz, DRIVER_NODE_ID, MAX_ADDRESS_WATCH_POINTS
        0xA003 => value.put(2100u32),
        0xA004 => value.put(gpu.map_or(0, |number| number as u32 + 1)),
        0xA005 => value.put(0u32),
        // BDFID: a PCIe bus for each
        0xA006 => value.put(if gpu.is_some() { (3 + number) << 8 } else { 0 }),
        // MEMORY_WIDTH in bits, MEMORY_MAX_FREQUENCY in MHz
        0xA007 => value.put(256u32),
        0xA008 => value.put(1000u32),
        0xA009 => value.put_text(if gpu.is_some() { "Virtual gfx1030" } else { "CPU" }, 64),
        // MAX_WAVES_PER_CU, NUM_SIMDS_PER_CU, NUM_SHADER_ENGINES, NUM_SHADER_ARRAYS_PER_SE
        0xA00A => value.put(32u32),
        0xA00B => value.put(2u32),
        0xA00C => value.put(4u32),
        0xA00D => value.put(2u32),
        0xA00E => value.put([HDP[0].as_ptr(), HDP[1].as_ptr()]),
        // DOMAIN, COOPERATIVE_QUEUES
        0xA00F => value.put(0u32),
        0xA010 => value.put(true),
        0xA011 => match gpu {
            Some(number) => {
                value.put_text(&format!("GPU-{:016x}", 0x7669_7274_7561_6c00 + number as u64), 21)
            }
            None => value.put_text("CPU-XX", 21),
        },
        // ASIC_REVISION, SVM_DIRECT_HOST_ACCESS
        0xA012 => value.put(1u32),
        0xA013 => value.put(true),
        // MEMORY_AVAIL
        0xA015 => match gpu {
            Some(number) => {
                let used = runtime().gpus[number].used.load(Ordering::Relaxed);
                value.put(settings.memory.saturating_sub(used))
            }
            None => Status::INVALID_ARGUMENT,
        },
        // TIMESTAMP_FREQUENCY of the counter that kernels read, in Hz
        0xA016 => value.put(100_000_000u64),
        // ASIC_FAMILY_ID, UCODE_VERSION, SDMA_UCODE_VERSION
        0xA107 => value.put(143u32),
        0xA108 | 0xA109 => value.put(1u32),
        // NUM_SDMA_ENG, NUM_SDMA_XGMI_ENG, IOMMU_SUPPORT, NUM_XCC, DRIVER_UID
        0xA10A => value.put(2u32),
        0xA10B | 0xA110 => value.put(0u32),
        0xA111 => value.put(1u32),
        0xA112 => value.put(number),
        // NEAREST_CPU, MEMORY_PROPERTIES, AQL_EXTENSIONS
        0xA113 => value.put(CPU),
        // HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU is bit 1.
        0xA114 => value.put([u8::from(settings.apu) << 1, 0, 0, 0, 0, 0, 0, 0]),
        0xA115 => value.put([0u8; 8]),
        // SCRATCH_LIMIT_MAX, SCRATCH_LIMIT_CURRENT
        0xA116 | 0xA117 => value.put(1u64 << 32),
        // CLOCK_COUNTERS: GPU, CPU, system, and the system's frequency
        0xA118 => value.put([now() / 10, now(), now(), 1_000_000_000]),
        _ => unknown("agent", attribute),
    }
}

fn node(agent: Agent) -> u32 {
    match agent {
        Agent::Cpu => 0,
        Agent::Gpu(number) => number as u32 + 1,
    }
}

/// An attribute of the system (`hsa_system_info_t`).
#[unsafe(no_mangle)]
pub extern "C" fn hsa_system_get_info(attribute: u32, value: Value) -> Status {
    trace!("hsa_system_get_info {attribute:#x}");
    match attribute {
        0 => value.put(VERSION.0),
        1 => value.put(VERSION.1),
        // TIMESTAMP and its frequency; SIGNAL_MAX_WAIT
        2 => value.put(now()),
        3 => value.put(1_000_000_000u64),
        4 => value.put(u64::MAX),
        // ENDIANNESS: little; MACHINE_MODEL: large; EXTENSIONS: none of the standard ones
        5 => value.put(0u32),
        6 => value.put(1u32),
        7 => value.put([0u8; 128]),
        // SVM_SUPPORTED, SVM_ACCESSIBLE_BY_DEFAULT, MWAITX_ENABLED, DMABUF_SUPPORTED
        0x201..=0x204 => value.put(false),
        // VIRTUAL_MEM_API_SUPPORTED
        0x205 => value.put(true),
        // XNACK_ENABLED
        0x206 => value.put(false),
        // EXT_VERSION_MAJOR, EXT_VERSION_MINOR: hsa_ext_amd.h of ROCm 7.2
        0x207 => value.put(1u16),
        0x208 => value.put(8u16),
        _ => unknown("system", attribute),
    }
}

/// The answer for an attribute that the virtual GPU does not have.
pub(super) fn unknown(what: &str, attribute: u32) -> Status {
    trace!("  there is no attribute {attribute:#x} of the {what}");
    Status::INVALID_ARGUMENT
}
