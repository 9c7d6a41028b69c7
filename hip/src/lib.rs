//! Safe HIP, hipRTC, rocBLAS and MIOpen over providers chosen at run time.
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

mod arena;
mod blas;
mod buffer;
mod cache;
mod chain;
mod context;
mod device;
mod diagnosis;
mod dnn;
mod error;
mod event;
mod fault;
mod hash;
mod host;
mod info;
mod inventory;
mod launch;
mod library;
mod marks;
mod memory;
mod module;
mod once;
mod pinned;
mod pool;
mod provider;
mod rtc;
mod settings;
mod span;
mod stream;
mod survey;
mod toolchain;
pub mod trace;
mod transfer;
mod workarounds;

pub use blas::{Blas, MatrixView};
pub use buffer::Buffer;
pub use cache::{CacheStats, CodeCache, code_cache};
pub use chain::{ElementWise, Elements, Operands};
pub use context::Counters;
pub use device::Device;
pub use diagnosis::Diagnosis;
pub use dnn::{
    Activation, BatchNormDesc, ConvDesc, Dnn, GroupNormDesc, LayerNormDesc, PoolDesc, PoolMode, ReduceDesc,
    Reduction, SoftmaxDesc, TensorArg,
};
pub use error::{Error, Result};
pub use event::Event;
pub use fault::Fault;
pub use hip_kernels::{DType, KernelName};
pub use host::HostBuffer;
pub use info::DeviceInfo;
pub use inventory::LibraryReport;
pub use launch::{Grid, Launch, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS};
pub use marks::carry_faults;
pub use module::{Kernel, Program};
pub use pool::{MemoryPool, PoolStats};
pub use provider::{
    Provider, ProviderKind, Versions, is_available, norm_route, passed_over, provider, rocm_device_count,
    select_provider,
};
pub use rtc::{CompiledKernels, Compiler};
pub use settings::{
    Config, F16Alternative, FindMode, Route, SETTINGS, Setting, attention_scores, conv_route, deterministic,
    launch_reach, matmul_route,
};
pub use stream::Stream;
pub use survey::{ProviderReport, rocblas_serves, survey};
pub use transfer::Read;
