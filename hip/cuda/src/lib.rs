//! AMD's HIP, hipRTC, rocBLAS and MIOpen C API on NVIDIA GPUs: over the CUDA driver, NVRTC, cuBLAS and cuDNN 9, all
//! loaded when the program runs.
//!
//! Arguments are checked as AMD's libraries check them, statuses are AMD's; what NVIDIA's libraries lack answers the
//! documented "not supported". A table may be asked for once its libraries are loaded: see [`missing_symbol`].
//!
//! | variable | meaning |
//! |---|---|
//! | `BURN_ROCM_CUDA_TF32` | `1` lets products and convolutions of f32 round their operands to TF32 (10 bits); `0`, the default, does not |
#![allow(non_snake_case, non_upper_case_globals)]

mod hiprtc;
mod miopen;
mod own_kernels;
mod rocblas;
mod runtime;
mod settings;
mod symbols;

pub use hiprtc::{hiprtc_additions, hiprtc_table};
pub use miopen::miopen_table;
pub use rocblas::rocblas_table;
pub use runtime::hip_table;
pub use settings::check_settings;
pub use symbols::{Library, missing_symbol};
