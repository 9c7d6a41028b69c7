//! AMD's HIP, hipRTC, rocBLAS and MIOpen C API on the host CPU, in process.
//!
//! The device is a GPU whose blocks have one thread and whose compute units are the cores.
//! `BURN_ROCM_CPU_WAVE=32|64` turns on the lockstep mode (with the feature `lockstep`): full blocks of threads, run
//! as coroutines, so that mistakes about barriers, shuffles, shared memory and wave size show.
//!
//! | variable | meaning |
//! |---|---|
//! | `BURN_ROCM_CPU_DEVICES` | how many devices to show (1) |
//! | `BURN_ROCM_CPU_THREADS` | how many cores to use (all) |
//! | `BURN_ROCM_CPU_ISA` | the newest instruction set to use: `baseline`, `v3`, `v4` (the newest the CPU has); without the feature `portable` one alone is built |
//! | `BURN_ROCM_CPU_POISON` | `1` fills new device memory with 0xff (always so in lockstep) |
//! | `BURN_ROCM_CPU_WAVE` | `32` or `64`: lockstep mode with waves of that size |
//! | `BURN_ROCM_CPU_ARCH` | the architecture that the device says it is, for what goes by its name |
//! | `BURN_ROCM_CPU_FAIL` | what fails, separated by commas: `rocblas_create_handle`, `rocblas_products`, `miopenCreateWithStream`, `miopen_kernels`, `hipEventRecord`, `hipHostMalloc`; with `:3` the third call alone |
//! | `BURN_ROCM_CPU_SEED` | the order in which lockstep resumes threads (0) |
#![allow(non_snake_case, non_upper_case_globals)]

mod abi;
mod arch;
mod code_object;
mod compiler;
mod hiprtc;
mod isa;
mod kernels;
#[cfg(lockstep)]
mod lockstep;
mod miopen;
mod numeric;
mod rocblas;
mod runtime;
mod settings;

pub use compiler::host_compiler;
pub use hiprtc::hiprtc_table;
pub use miopen::miopen_table;
pub use rocblas::rocblas_table;
pub use runtime::{hip_table, last_fault};
pub use settings::check_settings;

/// Flags by which kernels are compiled, ahead and at run time.
mod flags {
    #![allow(dead_code, reason = "the build script uses all of them")]
    include!("flags.rs");
}
