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

mod arena;
mod blas;
mod buffer;
mod cache;
mod context;
mod device;
mod diagnosis;
mod dnn;
mod error;
mod event;
mod hash;
mod info;
mod launch;
mod library;
mod memory;
mod module;
mod once;
mod pinned;
mod pool;
mod provider;
mod settings;
mod span;
mod stream;
mod survey;
mod transfer;
mod workarounds;

pub use blas::{Blas, MatrixView};
pub use buffer::Buffer;
pub use cache::{CacheStats, CodeCache, code_cache};
pub use context::Counters;
pub use device::Device;
pub use diagnosis::Diagnosis;
pub use dnn::{
    Activation, BatchNormDesc, ConvDesc, Dnn, GroupNormDesc, LayerNormDesc, PoolDesc, PoolMode, ReduceDesc,
    Reduction, SoftmaxDesc, TensorArg,
};
pub use error::{Error, Result};
pub use event::Event;
pub use hip_kernels::{DType, KernelName};
pub use info::DeviceInfo;
pub use launch::{Grid, Launch, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS};
pub use module::{Kernel, Program};
pub use pool::{MemoryPool, PoolStats};
pub use provider::{
    Provider, ProviderKind, Versions, is_available, passed_over, provider, rocm_device_count, select_provider,
};
pub use settings::deterministic;
pub use stream::Stream;
pub use survey::{ProviderReport, survey};
