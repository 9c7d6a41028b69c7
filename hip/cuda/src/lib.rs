//! AMD's HIP, hipRTC, rocBLAS and MIOpen C API on NVIDIA GPUs: over the CUDA driver, NVRTC, cuBLAS and cuDNN 9, all
//! loaded when the program runs.
//!
//! Arguments are checked as AMD's libraries check them, statuses are AMD's; what NVIDIA's libraries lack answers the
//! documented "not supported". A table may be asked for once its libraries are loaded: see [`missing_symbol`].
//!
//! f32 is computed in f32, unless [`allow_tf32`] allows less.
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
pub use settings::allow_tf32;
pub use symbols::{Library, missing_symbol};
