//! The CPU provider: AMD's C API of HIP, hipRTC, rocBLAS, hipBLASLt, MIOpen and RCCL,
//! implemented on the host's CPU in the calling process.
//!
//! The device looks like a GPU whose blocks have one thread and whose compute units are the cores.
//! With the feature `lockstep`, `BURN_ROCM_CPU_WAVE=32|64` turns on the lockstep mode. Blocks then
//! have many threads, each of which is a coroutine, so that mistakes with barriers, shuffles,
//! shared memory and wave size become visible.
//!
//! | variable | meaning |
//! |---|---|
//! | `BURN_ROCM_CPU_DEVICES` | the number of devices (1) |
//! | `BURN_ROCM_CPU_THREADS` | the number of cores to use (all) |
//! | `BURN_ROCM_CPU_ISA` | the newest instruction set to use: `baseline`, `v3`, `v4` (the newest that was built and the CPU has); without the feature `portable` only one is built |
//! | `BURN_ROCM_CPU_POISON` | `1` fills new device memory with 0xff (always so in lockstep) |
//! | `BURN_ROCM_CPU_LATE` | `1`: each stream runs its work as late as HIP allows, which exposes work that does not wait for what it needs |
//! | `BURN_ROCM_CPU_WAVE` | `32` or `64`: lockstep mode with waves of that size |
//! | `BURN_ROCM_CPU_ARCH` | the architecture name that the device reports |
//! | `BURN_ROCM_CPU_FAIL` | which calls fail, separated by commas: `rocblas_create_handle`, `rocblas_products`, `miopenCreateWithStream`, `miopen_kernels`, `hipEventRecord`, `hipHostMalloc`, `hipModuleLaunchKernel`, `hipStreamBeginCapture`, `hipStreamEndCapture`, `hipGraphInstantiateWithFlags`, `ncclCommInitRank`, `ncclAllReduce`, `rocblas_set_workspace`, `hipblasLtCreate`, `hipblasLtMatmulAlgoGetHeuristic`, `hipblasLtMatmul`; with `:3` after a name, only the third call fails |
//! | `BURN_ROCM_CPU_SEED` | the seed of the order in which lockstep resumes threads (0) |
//! | `BURN_ROCM_CPU_SHARED` | the most bytes of shared memory that a launch may give a block: 65536 (the default) to 232448 |
#![allow(non_snake_case, non_upper_case_globals)]

mod abi;
mod arch;
mod code_object;
mod compiler;
mod folder;
mod hipblaslt;
mod hiprtc;
mod isa;
mod kernels;
#[cfg(lockstep)]
mod lockstep;
mod miopen;
mod numeric;
mod rccl;
mod rocblas;
mod runtime;
mod settings;

pub use compiler::host_compiler;
pub use folder::make_temporary_folders_in;
pub use hipblaslt::hipblaslt_table;
pub use hiprtc::{HIPRTC_ADDITIONS, hiprtc_table};
pub use miopen::miopen_table;
pub use rccl::rccl_table;
pub use rocblas::rocblas_table;
pub use runtime::{hip_table, last_fault};
pub use settings::check_settings;

/// The compiler flags of kernels, for the build script and the run-time compiler.
mod flags {
    #![allow(dead_code, reason = "the build script uses all of them")]
    include!("flags.rs");
}
