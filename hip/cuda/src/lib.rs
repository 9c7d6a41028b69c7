//! The CUDA provider: AMD's C API of HIP, hipRTC, rocBLAS, hipBLASLt and MIOpen on NVIDIA GPUs. It
//! calls the CUDA driver, NVRTC, cuBLAS, cuBLASLt and cuDNN 9, which are loaded at run time.
//!
//! The functions check arguments as AMD's libraries do and return AMD's statuses. A call that
//! NVIDIA's libraries can't serve returns AMD's status for "not supported". The caller loads a
//! table's libraries before it uses the table; see [`missing_symbol`].
//!
//! f32 is computed in f32, unless [`allow_tf32`] allows TF32.
#![allow(non_snake_case, non_upper_case_globals)]

mod hipblaslt;
mod hiprtc;
mod miopen;
mod own_kernels;
mod rocblas;
mod runtime;
mod settings;
mod symbols;

pub use hipblaslt::hipblaslt_table;
pub use hiprtc::{hiprtc_additions, hiprtc_table};
pub use miopen::miopen_table;
pub use rocblas::rocblas_table;
pub use runtime::hip_table;
pub use settings::allow_tf32;
pub use symbols::{Library, missing_symbol};
