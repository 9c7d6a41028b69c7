//! A [Burn](https://burn.dev) backend for AMD GPUs. Matrix products run on rocBLAS, convolution and
//! pooling on MIOpen, and everything else on HIP kernels that hipRTC compiles for the GPU.
//!
//! ```
//! use burn::tensor::Tensor;
//! use burn_rocm::{Rocm, RocmDevice};
//! type B = Rocm; // f32, i32 and one-byte bools by default; `Rocm<f16>` for others
//!
//! let device = RocmDevice::default();
//! let ones = Tensor::<B, 2>::ones([2, 3], &device);
//! let product = ones.clone().matmul(ones.transpose());
//! assert_eq!(product.into_data().as_slice::<f32>().unwrap(), [3.0; 4]);
//! ```
//!
//! [`Config`] holds the settings. [`RocmDevice`] names a device and reports its properties and
//! memory. A *provider* implements AMD's C API: AMD's own libraries on an AMD GPU, this project's
//! CPU device, or NVIDIA's libraries. [`provider()`] returns the one in use. [`code_cache`] manages
//! the compiled kernels.
//!
//! Quantised values of the types E5M2, E4M3 and E2M1, and quantised values packed along a dim other
//! than the last, are not supported. A method that is given such values fails with
//! [`RocmError::Unsupported`], which names the method.
//!
//! Only the kernel, on the device, can detect that an index in an int tensor is out of range, or
//! that an integer is divided by zero. It then accesses no memory for that element and gives 0. The
//! op's result is then faulty, and so is everything computed from it. Each read of a faulty tensor
//! fails with the op's name, in every thread ([`read_with_fault`] returns the elements as well).
//! Reads of other tensors don't fail. [`Backend::sync`](burn_backend::Backend::sync) reports, once,
//! each fault that no read has reported. Apart from reads, `bool_argwhere` is the only op that
//! waits for the device every time, because it must read the size of its result. The guide's page
//! on thread safety lists the rare others.
//!
//! Default dtypes belong to a device, not to a backend type: see [`Rocm`].
//!
//! # Behaviour that Burn does not define
//!
//! - *Scalars.* Comparisons and remainders first convert a scalar to the tensor's dtype: floats
//!   round, integers wrap. So `x.equal_elem(0.1)` of f16 finds the f16 nearest to 0.1, as
//!   `x.equal(full(0.1))` and burn-flex do. Arithmetic in f16 and bf16 takes a scalar in f32, so
//!   `x / 70000` of f16 stays finite; burn-flex rounds the scalar to the dtype first.
//! - *`clamp`* ignores a NaN bound. So do Burn's own definition (which masks the elements below and
//!   above the bounds), burn-ndarray and burn-flex's `clamp_min` and `clamp_max`. burn-flex's
//!   `clamp` panics, and libtorch's gives NaN. NaN elements stay NaN. If the lower bound exceeds
//!   the upper one, the result is the upper one. An integer bound outside the dtype's range becomes
//!   the nearer end of that range.
//! - *`mean_dim`* along an axis without elements fails with [`RocmError::Invalid`]; burn-flex and
//!   burn-ndarray panic too. Burn computes `var` and related ops from `mean_dim`, and would turn a
//!   NaN mean into a variance of 0. `mean` of no elements is NaN, as in burn-flex.
//! - *`Distribution::Uniform`* over a range wider than the dtype's draws from the finite numbers of
//!   the dtype. Bounds that are not finite fail with [`RocmError::Invalid`]. Burn's CPU backends
//!   panic for both.

// Both versions of Burn share the ops, and some are called only for the other version. That build
// has no such `allow`, so it still finds ops that nobody calls.
#![allow(dead_code)]

mod arg;
mod backend;
mod burn;
mod communicator;
mod device;
mod dtype;
mod error;
mod estimate;
pub mod fused;
pub mod graph;
mod guard;
pub mod interop;
pub mod kernel;
mod layout;
mod meeting;
mod memory;
mod ops;
mod pass;
mod pinned;
pub mod profile;
mod qtensor;
mod recording;
mod scales;
mod staging;
mod tensor;
pub mod tuning;
mod waiting;
mod warm_up;

pub use backend::{BoolElement, FloatElement, IntElement, Rocm};
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
