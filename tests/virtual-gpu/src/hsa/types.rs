//! The API's types, trimmed to what is used. Names and layouts are those of `hsa.h`, `hsa_ext_amd.h`,
//! `amd_hsa_signal.h` and `amd_hsa_queue.h`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, AtomicU64};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name {
            /// An opaque number; 0 is none.
            pub handle: u64,
        }
    )*};
}

handles! {
    /// `hsa_agent_t`.
    AgentHandle;
    /// `hsa_isa_t`.
    IsaHandle;
    /// `hsa_signal_t`: the address of a [`Signal`].
    SignalHandle;
    /// `hsa_amd_memory_pool_t`.
    PoolHandle;
    /// `hsa_code_object_reader_t`.
    ReaderHandle;
    /// `hsa_executable_t`.
    ExecutableHandle;
    /// `hsa_loaded_code_object_t`.
    LoadedHandle;
    /// `hsa_executable_symbol_t`.
    SymbolHandle;
    /// `hsa_amd_vmem_alloc_handle_t`.
    MemoryHandle;
}

/// `hsa_dim3_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dim3 {
    /// In x.
    pub x: u32,
    /// In y.
    pub y: u32,
    /// In z.
    pub z: u32,
}

/// `amd_signal_t`. HIP and kernels access it as memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Signal {
    /// `AMD_SIGNAL_KIND_*`.
    pub kind: AtomicI64,
    /// The value.
    pub value: AtomicI64,
    /// Where a kernel that sends an interrupt writes `event_id`; 0 here, since nobody waits for interrupts.
    pub event_mailbox: u64,
    /// See `event_mailbox`.
    pub event_id: u32,
    /// Unused.
    pub reserved1: u32,
    /// When the operation that completes the signal began, in nanoseconds.
    pub start: AtomicU64,
    /// When it ended.
    pub end: AtomicU64,
    /// A doorbell's queue.
    pub queue: AtomicU64,
    /// Unused.
    pub reserved3: [u32; 2],
}

/// `AMD_SIGNAL_KIND_USER`.
pub const SIGNAL_KIND_USER: i64 = 1;
/// `AMD_SIGNAL_KIND_DOORBELL`.
pub const SIGNAL_KIND_DOORBELL: i64 = -1;

/// `hsa_queue_t`.
#[derive(Debug)]
#[repr(C)]
pub struct QueueHead {
    /// `hsa_queue_type_t`.
    pub kind: u32,
    /// `hsa_queue_feature_t`.
    pub features: u32,
    /// The ring of packets.
    pub base: u64,
    /// The doorbell that the producer rings.
    pub doorbell: SignalHandle,
    /// The ring's packets, a power of two.
    pub size: u32,
    /// Unused.
    pub reserved1: u32,
    /// A number unique in the process.
    pub id: u64,
}

/// `amd_queue_v2_t`. Kernels read the aperture bases.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Queue {
    /// What HSA defines.
    pub head: QueueHead,
    /// `caps` and `reserved1`.
    pub reserved1: [u32; 4],
    /// The next packet to write.
    pub write_index: AtomicU64,
    /// The upper halves of the LDS and private apertures' addresses.
    pub group_aperture: u32,
    /// See `group_aperture`.
    pub private_aperture: u32,
    /// `max_cu_id`, `max_wave_id`, the legacy doorbell's fields.
    pub reserved2: [u32; 14],
    /// The next packet to execute.
    pub read_index: AtomicU64,
    /// The offset of `read_index` in this struct.
    pub read_index_offset: u32,
    /// The scratch fields, `queue_properties` and what follows, as far as `amd_queue_v2_t` has it.
    pub reserved3: [u32; 541],
}

const _: () = {
    assert!(size_of::<Signal>() == 64);
    assert!(size_of::<Queue>() == 2304);
    assert!(std::mem::offset_of!(Queue, write_index) == 56);
    assert!(std::mem::offset_of!(Queue, group_aperture) == 64);
    assert!(std::mem::offset_of!(Queue, read_index) == 128);
};

/// `hsa_kernel_dispatch_packet_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DispatchPacket {
    /// The packet's type, barrier bit and fences.
    pub header: u16,
    /// The number of dimensions.
    pub setup: u16,
    /// A workgroup's work-items in each dimension.
    pub workgroup: [u16; 3],
    /// Unused.
    pub reserved0: u16,
    /// The grid's work-items in each dimension.
    pub grid: [u32; 3],
    /// Private memory per work-item, in bytes.
    pub private_size: u32,
    /// LDS per workgroup, in bytes.
    pub group_size: u32,
    /// The kernel descriptor's address.
    pub kernel: u64,
    /// The arguments' address.
    pub kernarg: u64,
    /// Unused.
    pub reserved2: u64,
    /// What to decrement at the end.
    pub completion: SignalHandle,
}

/// `hsa_barrier_and_packet_t` and `hsa_barrier_or_packet_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BarrierPacket {
    /// The packet's type, barrier bit and fences.
    pub header: u16,
    /// Unused.
    pub reserved0: u16,
    /// Unused.
    pub reserved1: u32,
    /// The signals to wait for.
    pub dependencies: [SignalHandle; 5],
    /// Unused.
    pub reserved2: u64,
    /// What to decrement at the end.
    pub completion: SignalHandle,
}

/// `hsa_amd_barrier_value_packet_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BarrierValuePacket {
    /// The packet's type, barrier bit and fences.
    pub header: u16,
    /// `HSA_AMD_PACKET_TYPE_BARRIER_VALUE`.
    pub format: u8,
    /// Unused.
    pub reserved: u8,
    /// Unused.
    pub reserved0: u32,
    /// The signal to wait for.
    pub signal: SignalHandle,
    /// What its value is compared with.
    pub value: i64,
    /// Bits of the signal's value that count.
    pub mask: i64,
    /// The comparison.
    pub condition: u32,
    /// Unused.
    pub reserved1: u32,
    /// Unused.
    pub reserved2: [u64; 2],
    /// What to decrement at the end.
    pub completion: SignalHandle,
}

const _: () = assert!(size_of::<DispatchPacket>() == 64);
const _: () = assert!(size_of::<BarrierPacket>() == 64);
const _: () = assert!(size_of::<BarrierValuePacket>() == 64);

/// `hsa_packet_type_t`.
pub mod packet_type {
    /// `HSA_PACKET_TYPE_VENDOR_SPECIFIC`.
    pub const VENDOR: u16 = 0;
    /// `HSA_PACKET_TYPE_INVALID`.
    pub const INVALID: u16 = 1;
    /// `HSA_PACKET_TYPE_KERNEL_DISPATCH`.
    pub const DISPATCH: u16 = 2;
    /// `HSA_PACKET_TYPE_BARRIER_AND`.
    pub const BARRIER_AND: u16 = 3;
    /// `HSA_PACKET_TYPE_BARRIER_OR`.
    pub const BARRIER_OR: u16 = 5;
}

/// `HSA_AMD_PACKET_TYPE_BARRIER_VALUE`.
pub const FORMAT_BARRIER_VALUE: u8 = 2;

/// `hsa_pitched_ptr_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PitchedPointer {
    /// The first byte.
    pub base: *mut c_void,
    /// Bytes from row to row.
    pub pitch: usize,
    /// Bytes from slice to slice.
    pub slice: usize,
}

/// `hsa_amd_pointer_info_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PointerInfo {
    /// The caller's `sizeof` of this struct.
    pub size: u32,
    /// `hsa_amd_pointer_type_t`.
    pub kind: u32,
    /// The allocation's address on agents.
    pub agent_base: u64,
    /// The allocation's address on the host.
    pub host_base: u64,
    /// The allocation's bytes.
    pub bytes: usize,
    /// What the application set.
    pub user_data: u64,
    /// The agent whose memory it is.
    pub owner: AgentHandle,
    /// The pool's flags.
    pub flags: u32,
    /// Whether the allocation is registered for other devices.
    pub registered: bool,
}

/// `hsa_amd_memory_pool_link_info_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LinkInfo {
    /// Latencies and bandwidths, which are unknown.
    pub latency_and_bandwidth: [u32; 4],
    /// Whether 32-bit atomics cross the link.
    pub atomics_32: bool,
    /// Whether 64-bit atomics cross the link.
    pub atomics_64: bool,
    /// Whether accesses are coherent.
    pub coherent: bool,
    /// `hsa_amd_link_info_type_t`.
    pub kind: u32,
    /// The distance, on the scale of NUMA distances.
    pub distance: u32,
}

/// `hsa_amd_profiling_dispatch_time_t` and `hsa_amd_profiling_async_copy_time_t`, in the system's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Times {
    /// The beginning.
    pub start: u64,
    /// The end.
    pub end: u64,
}

/// `hsa_amd_memory_access_desc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AccessDescription {
    /// `hsa_access_permission_t`.
    pub permissions: u32,
    /// The agent that has these permissions.
    pub agent: AgentHandle,
}
