//! burn-rocm for Burn 0.22: a backend for AMD GPUs on rocBLAS, MIOpen and HIP kernels.
//!
//! An app uses it through Burn's own names, `Device::rocm(0)` and `BURN_DEVICE=rocm`. Its manifest
//! patches in `burn-cubecl` and `cubecl-hip` of this repository (docs/guide/burn-0.22.md). This
//! crate is the backend itself. It compiles the same source files as burn-rocm for Burn 0.21,
//! except for the implementation of Burn's traits.
//!
//! Only the kernel, on the device, can detect that an index in an int tensor is out of range, or
//! that an integer is divided by zero. It then accesses no memory for that element and gives 0. The
//! op's result is then faulty, and so is everything computed from it. Each read of a faulty tensor
//! fails with the op's name, in every thread ([`read_with_fault`] returns the elements as well).
//! Reads of other tensors don't fail. [`Backend::sync`](burn_backend::Backend::sync) reports, once,
//! each fault that no read has reported. Apart from reads, `bool_argwhere` and `mask_select` (of
//! floats, ints and bools) are the only ops that wait for the device every time, because they must
//! read the size of their result. The guide's page on thread safety lists the rare others.

#[path = "../../../burn-rocm/src/arg.rs"]
mod arg;
mod backend;
mod burn;
#[path = "../../../burn-rocm/src/communicator.rs"]
mod communicator;
#[cfg(feature = "dispatch")]
#[doc(hidden)]
pub mod cube;
#[path = "../../../burn-rocm/src/device.rs"]
mod device;
#[path = "../../../burn-rocm/src/dtype.rs"]
mod dtype;
#[path = "../../../burn-rocm/src/error.rs"]
mod error;
#[path = "../../../burn-rocm/src/estimate/mod.rs"]
mod estimate;
#[path = "../../../burn-rocm/src/fused.rs"]
pub mod fused;
#[path = "../../../burn-rocm/src/graph.rs"]
pub mod graph;
#[path = "../../../burn-rocm/src/guard.rs"]
mod guard;
#[path = "../../../burn-rocm/src/interop/mod.rs"]
pub mod interop;
#[path = "../../../burn-rocm/src/kernel.rs"]
pub mod kernel;
#[path = "../../../burn-rocm/src/layout/mod.rs"]
mod layout;
#[path = "../../../burn-rocm/src/meeting.rs"]
mod meeting;
#[path = "../../../burn-rocm/src/memory.rs"]
mod memory;
#[path = "../../../burn-rocm/src/ops/mod.rs"]
mod ops;
#[path = "../../../burn-rocm/src/pass.rs"]
mod pass;
#[path = "../../../burn-rocm/src/pinned.rs"]
mod pinned;
#[path = "../../../burn-rocm/src/profile.rs"]
pub mod profile;
#[path = "../../../burn-rocm/src/qtensor.rs"]
mod qtensor;
#[path = "../../../burn-rocm/src/recording.rs"]
mod recording;
#[path = "../../../burn-rocm/src/scales.rs"]
mod scales;
#[path = "../../../burn-rocm/src/staging.rs"]
mod staging;
#[path = "../../../burn-rocm/src/tensor/mod.rs"]
mod tensor;
#[path = "../../../burn-rocm/src/tuning.rs"]
pub mod tuning;
#[path = "../../../burn-rocm/src/waiting.rs"]
mod waiting;
#[path = "../../../burn-rocm/src/warm_up.rs"]
mod warm_up;

pub use backend::{BurnDevice, Rocm, RocmGraph};
pub use burn_std::{bf16, f16};
pub use communicator::{Communicator, Pending, PendingAll, Summand};
pub use device::{DeviceInfo, RocmDevice};
#[doc(hidden)]
pub use error::raise;
pub use error::take_last_error;
pub use estimate::{Estimate, estimate_memory, largest_batch};
pub use hip::summary;
pub use hip::summary::Summary as OptimizationSummary;
pub use hip::trace;
pub use hip::{
    Apu, ApuAllocation, ApuMemory, Behind, CacheStats, ChannelsLast, CheckFinite, CodeCache, Config,
    Counters, Error as RocmError, F16Alternative, FindMode, Finding, GemmFind, HipblasLt, MemoryBlock,
    MemoryBy, MemoryEvent, MemoryHolder, MemoryKind, MemoryLabel, MemoryRecord, MemoryRow, MemorySnapshot,
    MemorySummary, MemoryUse, PoolStats as MemoryStats, Preset, ProfileOutput, Provider, ProviderKind,
    ProviderReport, ReduceOp, Route, Severity, UniqueId, Versions, code_cache, doctor, is_available,
    memory_label, memory_track_ops, passed_over, provider, rendezvous, report_json, rocm_device_count,
    select_provider, survey,
};
pub use layout::Layout;
pub use memory::{memory_record, memory_snapshot, memory_summary};
pub use ops::random::RandomMark;
pub use ops::transfer::read_with_fault;
pub use pass::{Pass, PassPoints};
pub use profile::{Profile, optimization_summary, profile, region};
pub use qtensor::RocmQTensor;
pub use tensor::RocmTensor;
pub use warm_up::{warm_up, warm_up_pinned};

/// Fourier transforms, for Burn's signal crate.
pub mod fft {
    use crate::error::OrRaise;
    use crate::ops::fft;
    use crate::tensor::RocmTensor;

    /// The real and imaginary parts of the `n / 2 + 1` frequency bins of `signal` along `dim`. The
    /// signal is cut, or padded with zeros, to `n` samples. Without `n`, all samples are used.
    ///
    /// # Panics
    /// As Burn's ops do, with `Invalid` for a dim beyond the rank or a dtype that is not a float
    /// type.
    pub fn rfft(signal: RocmTensor, dim: usize, n: Option<usize>) -> (RocmTensor, RocmTensor) {
        fft::rfft(signal, dim, n).or_raise()
    }

    /// The `n` samples of the real signal with these frequency bins along `dim`. Without `n` there
    /// are `2 * (bins - 1)` samples.
    ///
    /// # Panics
    /// As [`rfft`], and if the parts differ in shape or dtype.
    pub fn irfft(re: RocmTensor, im: RocmTensor, dim: usize, n: Option<usize>) -> RocmTensor {
        fft::irfft(re, im, dim, n).or_raise()
    }
}
