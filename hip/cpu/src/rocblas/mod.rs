//! AMD's rocBLAS on the host: the C API of `rocblas-sys`, computed by this process.
//!
//! Arguments are checked as rocBLAS checks them, in its order; a buffer that is not memory of this provider's devices
//! is `rocblas_status_invalid_pointer`. The same call with the same number of threads gives the same bits.
#![allow(non_snake_case, non_upper_case_globals)] // AMD's names.

mod gemm;
mod gemm_ex;
mod handle;
mod vector;

use rocblas_sys::Rocblas;

/// The CPU device's rocBLAS.
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
        rocblas_gemm_ex: gemm_ex::rocblas_gemm_ex,
        rocblas_gemm_strided_batched_ex: gemm_ex::rocblas_gemm_strided_batched_ex,
        rocblas_sgemv: vector::rocblas_sgemv,
        rocblas_dgemv: vector::rocblas_dgemv,
        rocblas_sgeam: vector::rocblas_sgeam,
        rocblas_dgeam: vector::rocblas_dgeam,
        rocblas_sgeam_strided_batched: vector::rocblas_sgeam_strided_batched,
        rocblas_dgeam_strided_batched: vector::rocblas_dgeam_strided_batched,
    }
}
