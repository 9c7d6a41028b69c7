//! Safe HIP, hipRTC, rocBLAS, MIOpen and RCCL. A *provider* implements them: AMD's libraries, the CUDA
//! provider over NVIDIA's, or the CPU provider. The process chooses one at run time.
//!
//! ```no_run
//! # fn main() -> hip::Result<()> {
//! let device = hip::Device::get(0)?;
//! let buffer = device.upload(&[1, 2, 3, 4])?;
//! let mut back = [0; 4];
//! device.read(&buffer, 0, &mut back)?;
//! assert_eq!(back, [1, 2, 3, 4]);
//! # Ok(())
//! # }
//! ```
//!
//! [`Config`] lists the settings, each with its environment variable.

mod blas;
mod check;
mod collective;
mod compile;
pub mod defaults;
mod device;
mod dnn;
pub mod doctor;
mod error;
mod graph;
mod hash;
mod json;
mod kernel_find;
mod launch;
mod memory;
mod once;
mod os;
pub mod profile;
mod provider;
mod ranges;
pub mod rendezvous;
mod settings;
mod spans;
pub mod summary;
pub mod trace;
mod tuning;
mod watch;
mod whole_file;
mod workarounds;

pub use blas::{
    Blas, BlasLt, Epilogue, Fp8, Fp8Product, LtActivation, LtAnswer, LtProduct, MatrixView, TunableOpCount,
    VectorView,
};
pub use check::{checks_ops, op_does_not_write, op_writes};
pub use collective::Communicator;
pub use collective::call::{Part, ReduceOp};
pub use collective::element::Element;
pub use collective::group::Group;
pub use collective::id::UniqueId;
pub use collective::work::Work;
pub use compile::cache::{CacheStats, CodeCache, code_cache};
pub use compile::program::Program;
pub use compile::rtc::{CompiledKernels, Compiler};
pub use device::Device;
pub use device::apu::{Apu, ApuAllocation};
pub use device::capture::{is_capturing, uncaptured};
pub use device::context::Counters;
pub use device::dry::Dry;
pub use device::event::Event;
pub use device::info::{DeviceInfo, MemorySpace};
pub use device::pass::{Behind, Pass, Points};
pub use device::report::report_json;
pub use device::stream::{Priority, Stream};
pub use device::survey::{ProviderReport, rocblas_serves, survey};
pub use dnn::{
    Activation, BatchNormDesc, ConvDesc, ConvDirection, ConvProblem, Dnn, GroupNormDesc, LayerNormDesc,
    PoolDesc, PoolMode, ReduceDesc, Reduction, SoftmaxDesc, TensorArg, channels_last,
};
pub use doctor::{Finding, Severity, doctor};
pub use error::{Error, Result};
pub use graph::{Graph, abandon_captures};
pub use hip_kernels::{DType, Functor, KernelName, Template};
pub use kernel_find::choices::KernelProblem;
pub use launch::chain::{ElementWise, Elements, Operands};
pub use launch::grid::Grid;
pub use launch::kernel::Kernel;
pub use launch::map::Over;
pub use launch::reduced::DeferredSum;
pub use launch::{Launch, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS};
pub use memory::buffer::{Buffer, carry_faults};
pub use memory::fault::Fault;
pub use memory::foreign::ForeignMemory;
pub use memory::host::HostBuffer;
pub use memory::kind::MemoryKind;
pub use memory::label::{MemoryLabel, memory_label, memory_track_ops};
pub use memory::late::LateRead;
pub use memory::pool::{MemoryPool, PoolStats, SegmentStats};
pub use memory::ready::Ready;
pub use memory::record::{MemoryBy, MemoryEvent, MemoryRecord};
pub use memory::summary::{MemoryBlock, MemoryHolder, MemoryRow, MemorySnapshot, MemorySummary, MemoryUse};
pub use memory::transfer::Read;
pub use profile::{Profile, Region, profile, region};
pub use provider::inventory::LibraryReport;
pub use provider::kind::ProviderKind;
pub use provider::{
    Provider, Versions, is_available, passed_over, provider, rocm_device_count, select_provider,
};
pub use settings::{
    ApuMemory, ChannelsLast, CheckFinite, Config, F16Alternative, FindMode, GemmFind, HipblasLt, Preset,
    ProfileOutput, Route, SETTINGS, Setting, allow_fallback, attention_scores, collective_timeout,
    conv_route, deterministic, hipblaslt_asked, hipblaslt_timed, launch_reach, matmul_route, switch,
    workspace_limit,
};
pub use summary::{Summary, optimization_summary};
pub use tuning::{TuningEntry, TuningStats, TuningStore, tuning_store};
pub use workarounds::MatrixCores;
