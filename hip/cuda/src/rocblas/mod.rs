//! rocBLAS over cuBLAS.
//!
//! f32 is computed in f32: TF32 only where [`crate::allow_tf32`] allows it. f16 and bf16 are summed in f32.

mod gemm;
mod handle;
mod matrix;

use rocblas_sys::Rocblas;

/// rocBLAS for NVIDIA GPUs.
pub fn rocblas_table() -> Rocblas {
    Rocblas {
        rocblas_create_handle: handle::rocblas_create_handle,
        rocblas_destroy_handle: handle::rocblas_destroy_handle,
        rocblas_set_stream: handle::rocblas_set_stream,
        rocblas_get_stream: handle::rocblas_get_stream,
        rocblas_set_pointer_mode: handle::rocblas_set_pointer_mode,
        rocblas_set_atomics_mode: handle::rocblas_set_atomics_mode,
        rocblas_initialize: handle::rocblas_initialize,
        rocblas_status_to_string: handle::rocblas_status_to_string,
        rocblas_get_version_string_size: handle::rocblas_get_version_string_size,
        rocblas_get_version_string: handle::rocblas_get_version_string,
        rocblas_set_workspace: handle::rocblas_set_workspace,
        rocblas_sgemm: gemm::rocblas_sgemm,
        rocblas_dgemm: gemm::rocblas_dgemm,
        rocblas_sgemm_strided_batched: gemm::rocblas_sgemm_strided_batched,
        rocblas_dgemm_strided_batched: gemm::rocblas_dgemm_strided_batched,
        rocblas_gemm_ex: gemm::rocblas_gemm_ex,
        rocblas_gemm_strided_batched_ex: gemm::rocblas_gemm_strided_batched_ex,
        rocblas_sgemv: matrix::rocblas_sgemv,
        rocblas_dgemv: matrix::rocblas_dgemv,
        rocblas_sgeam: matrix::rocblas_sgeam,
        rocblas_dgeam: matrix::rocblas_dgeam,
        rocblas_sgeam_strided_batched: matrix::rocblas_sgeam_strided_batched,
        rocblas_dgeam_strided_batched: matrix::rocblas_dgeam_strided_batched,
    }
}
