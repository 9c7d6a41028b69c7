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
//! | variable | meaning | default |
//! |---|---|---|
//! | `BURN_ROCM_PROVIDER` | `rocm`, `cuda` or `cpu`; `auto` takes the first that has a device | `auto` |
//! | `BURN_ROCM_DETERMINISTIC` | `1`: the same seed gives the same bits | `0` |
//! | `BURN_ROCM_MEMORY_LIMIT` | bytes that a device's pool may hold, such as `6G` | all there is |
//! | `BURN_ROCM_CACHE` | `0`: no code objects on disk | `1` |
//! | `BURN_ROCM_CACHE_DIR` | where they are kept | `$XDG_CACHE_HOME/burn-rocm`, else `~/.cache/burn-rocm` |
//! | `BURN_ROCM_CACHE_LIMIT` | bytes on disk; the files used longest ago go first | `512M` |
//! | `BURN_ROCM_ATTENTION_SCORES` | bytes of one attention's scores that may be kept for its gradient | `256M` |
//! | `BURN_ROCM_CHAIN` | small element-wise ops that are joined into one launch at most, from 0 to 16 ([`Device::put_off`]) | 16 on GPUs, 0 on the CPU device |
//! | `BURN_ROCM_CONV` | `miopen`: MIOpen alone convolves, `own`: kernels of this crate alone; `auto`: MIOpen what it takes | `auto` |
//! | `BURN_ROCM_CONV_FIND` | `find`: MIOpen times a convolution's solutions at first use; `immediate`: it asks the database; `auto`: at a shape's third use it times | `auto` |
//! | `BURN_ROCM_TRACE` | `1`: says through `log` which library call or kernel served each op ([`trace`]) | `0` |
//! | `BURN_ROCM_LAUNCH_REACH` | for tests: elements above which a launch of a strided kernel is split | `2147483647` |
//! | `BURN_ROCM_CUDA_TF32` | the CUDA provider: `1` lets products and convolutions of f32 round their operands to TF32 | `0` |
//! | `CUDA_PATH`, `CUDA_HOME` | where NVIDIA's libraries are looked for first, in `lib64` and `lib` | `/usr/local/cuda`, then the loader's path |
//! | `ROCM_PATH` | where AMD's libraries are looked for first, in `lib` and `lib64` | `/opt/rocm`, then the loader's path |

mod blas;
mod compile;
mod device;
mod dnn;
mod error;
mod hash;
mod launch;
mod memory;
mod once;
mod provider;
mod settings;
pub mod trace;
mod workarounds;

pub use blas::{Blas, MatrixView};
pub use compile::cache::{CacheStats, CodeCache, code_cache};
pub use compile::program::Program;
pub use compile::rtc::{CompiledKernels, Compiler};
pub use device::Device;
pub use device::context::Counters;
pub use device::event::Event;
pub use device::info::DeviceInfo;
pub use device::stream::Stream;
pub use device::survey::{ProviderReport, rocblas_serves, survey};
pub use dnn::{
    Activation, BatchNormDesc, ConvDesc, Dnn, GroupNormDesc, LayerNormDesc, PoolDesc, PoolMode, ReduceDesc,
    Reduction, SoftmaxDesc, TensorArg,
};
pub use error::{Error, Result};
pub use hip_kernels::{DType, KernelName};
pub use launch::chain::{ElementWise, Elements, Operands};
pub use launch::grid::Grid;
pub use launch::kernel::Kernel;
pub use launch::{Launch, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS};
pub use memory::buffer::{Buffer, carry_faults};
pub use memory::fault::Fault;
pub use memory::host::HostBuffer;
pub use memory::pool::{MemoryPool, PoolStats};
pub use memory::transfer::Read;
pub use provider::diagnosis::Diagnosis;
pub use provider::inventory::LibraryReport;
pub use provider::kind::ProviderKind;
pub use provider::{
    Provider, Versions, is_available, passed_over, provider, rocm_device_count, select_provider,
};
pub use settings::{Route, attention_scores, conv_route, deterministic, launch_reach, matmul_route};
