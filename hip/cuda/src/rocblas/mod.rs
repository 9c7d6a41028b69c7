//! rocBLAS over cuBLAS.
//!
//! f32 is computed in f32, or in TF32 if [`crate::allow_tf32`] allows it. f16 and bf16 are summed
//! in f32, unless the caller asks for f16 sums.

mod gemm;
mod handle;
mod matrix;

use rocblas_sys::Rocblas;

/// rocBLAS for NVIDIA GPUs.
pub fn rocblas_table() -> Rocblas {
    hip_provider::rocblas::table::<handle::Handle>()
}
