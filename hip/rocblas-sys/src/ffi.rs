//! rocBLAS's types, constants and functions; names, values and signatures are AMD's.
#![allow(missing_docs)] // AMD's reference describes each function and value.

use core::ffi::{c_char, c_void};
use hip_sys::hipStream_t;

/// What a `rocblas_handle` points to.
#[repr(C)]
pub struct _rocblas_handle {
    _private: [u8; 0],
}
/// The library's context: one device, one stream, one workspace.
pub type rocblas_handle = *mut _rocblas_handle;
/// Sizes, leading dimensions and increments.
pub type rocblas_int = i32;
/// Elements from one matrix of a batch to the next.
pub type rocblas_stride = i64;

hip_sys::c_enum! {
    /// Whether a matrix is taken as it is or transposed.
    pub enum rocblas_operation {
        rocblas_operation_none = 111,
        rocblas_operation_transpose = 112,
        rocblas_operation_conjugate_transpose = 113,
    }
}

hip_sys::c_enum! {
    /// The type of a matrix's elements.
    pub enum rocblas_datatype {
        rocblas_datatype_f16_r = 150,
        rocblas_datatype_f32_r = 151,
        rocblas_datatype_f64_r = 152,
        rocblas_datatype_f16_c = 153,
        rocblas_datatype_f32_c = 154,
        rocblas_datatype_f64_c = 155,
        rocblas_datatype_i8_r = 160,
        rocblas_datatype_u8_r = 161,
        rocblas_datatype_i32_r = 162,
        rocblas_datatype_u32_r = 163,
        rocblas_datatype_i8_c = 164,
        rocblas_datatype_u8_c = 165,
        rocblas_datatype_i32_c = 166,
        rocblas_datatype_u32_c = 167,
        rocblas_datatype_bf16_r = 168,
        rocblas_datatype_bf16_c = 169,
        rocblas_datatype_invalid = 255,
    }
}

hip_sys::c_enum! {
    /// What a call returns.
    pub enum rocblas_status {
        rocblas_status_success = 0,
        rocblas_status_invalid_handle = 1,
        rocblas_status_not_implemented = 2,
        rocblas_status_invalid_pointer = 3,
        rocblas_status_invalid_size = 4,
        rocblas_status_memory_error = 5,
        rocblas_status_internal_error = 6,
        rocblas_status_perf_degraded = 7,
        rocblas_status_size_query_mismatch = 8,
        rocblas_status_size_increased = 9,
        rocblas_status_size_unchanged = 10,
        rocblas_status_invalid_value = 11,
        rocblas_status_continue = 12,
        rocblas_status_check_numerics_fail = 13,
        rocblas_status_excluded_from_build = 14,
        rocblas_status_arch_mismatch = 15,
    }
}

hip_sys::c_enum! {
    /// Where the scalars (alpha, beta, results) are.
    pub enum rocblas_pointer_mode {
        rocblas_pointer_mode_host = 0,
        rocblas_pointer_mode_device = 1,
    }
}

hip_sys::c_enum! {
    /// Whether atomics are allowed. Their order varies between runs.
    pub enum rocblas_atomics_mode {
        rocblas_atomics_not_allowed = 0,
        rocblas_atomics_allowed = 1,
    }
}

hip_sys::c_enum! {
    /// How `gemm_ex` chooses its solution.
    pub enum rocblas_gemm_algo {
        rocblas_gemm_algo_standard = 0x0,
        rocblas_gemm_algo_solution_index = 0x1,
    }
}

/// `flags` of the `_ex` functions: no flag. In C it is a bit set, so it is not a `c_enum`.
pub const rocblas_gemm_flags_none: u32 = 0;
/// `flags` of the `_ex` functions: on MI200, f16 products use bf16 matrix instructions, which keep
/// the subnormals that the f16 ones flush to 0.
pub const rocblas_gemm_flags_fp16_alt_impl: u32 = 4;

hip_sys::function_table! {
    /// The functions of `librocblas`. ROCm 5.7 has every one that is required.
    pub struct Rocblas {
        required {
            fn rocblas_create_handle(handle: *mut rocblas_handle) -> rocblas_status;
            fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status;
            fn rocblas_set_stream(handle: rocblas_handle, stream: hipStream_t) -> rocblas_status;
            fn rocblas_get_stream(handle: rocblas_handle, stream: *mut hipStream_t) -> rocblas_status;
            fn rocblas_set_pointer_mode(handle: rocblas_handle, pointer_mode: rocblas_pointer_mode) -> rocblas_status;
            fn rocblas_set_atomics_mode(handle: rocblas_handle, atomics_mode: rocblas_atomics_mode) -> rocblas_status;
            fn rocblas_initialize() -> ();
            fn rocblas_status_to_string(status: rocblas_status) -> *const c_char;
            fn rocblas_get_version_string_size(len: *mut usize) -> rocblas_status;
            fn rocblas_get_version_string(buf: *mut c_char, len: usize) -> rocblas_status;
            fn rocblas_set_workspace(handle: rocblas_handle, addr: *mut c_void, size: usize) -> rocblas_status;
            fn rocblas_sgemm(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const f32, A: *const f32, lda: rocblas_int, B: *const f32,
                ldb: rocblas_int, beta: *const f32, C: *mut f32, ldc: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_dgemm(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const f64, A: *const f64, lda: rocblas_int, B: *const f64,
                ldb: rocblas_int, beta: *const f64, C: *mut f64, ldc: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_sgemm_strided_batched(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const f32, A: *const f32, lda: rocblas_int,
                stride_a: rocblas_stride, B: *const f32, ldb: rocblas_int, stride_b: rocblas_stride, beta: *const f32,
                C: *mut f32, ldc: rocblas_int, stride_c: rocblas_stride, batch_count: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_dgemm_strided_batched(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const f64, A: *const f64, lda: rocblas_int,
                stride_a: rocblas_stride, B: *const f64, ldb: rocblas_int, stride_b: rocblas_stride, beta: *const f64,
                C: *mut f64, ldc: rocblas_int, stride_c: rocblas_stride, batch_count: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_gemm_ex(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype,
                lda: rocblas_int, b: *const c_void, b_type: rocblas_datatype, ldb: rocblas_int, beta: *const c_void,
                c: *const c_void, c_type: rocblas_datatype, ldc: rocblas_int, d: *mut c_void, d_type: rocblas_datatype,
                ldd: rocblas_int, compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32,
                flags: u32,
            ) -> rocblas_status;
            fn rocblas_gemm_strided_batched_ex(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype,
                lda: rocblas_int, stride_a: rocblas_stride, b: *const c_void, b_type: rocblas_datatype,
                ldb: rocblas_int, stride_b: rocblas_stride, beta: *const c_void, c: *const c_void,
                c_type: rocblas_datatype, ldc: rocblas_int, stride_c: rocblas_stride, d: *mut c_void,
                d_type: rocblas_datatype, ldd: rocblas_int, stride_d: rocblas_stride, batch_count: rocblas_int,
                compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32, flags: u32,
            ) -> rocblas_status;
            fn rocblas_sgemv(
                handle: rocblas_handle, trans: rocblas_operation, m: rocblas_int, n: rocblas_int, alpha: *const f32,
                A: *const f32, lda: rocblas_int, x: *const f32, incx: rocblas_int, beta: *const f32, y: *mut f32,
                incy: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_dgemv(
                handle: rocblas_handle, trans: rocblas_operation, m: rocblas_int, n: rocblas_int, alpha: *const f64,
                A: *const f64, lda: rocblas_int, x: *const f64, incx: rocblas_int, beta: *const f64, y: *mut f64,
                incy: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_sgeam(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, alpha: *const f32, A: *const f32, lda: rocblas_int, beta: *const f32, B: *const f32,
                ldb: rocblas_int, C: *mut f32, ldc: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_dgeam(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, alpha: *const f64, A: *const f64, lda: rocblas_int, beta: *const f64, B: *const f64,
                ldb: rocblas_int, C: *mut f64, ldc: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_sgeam_strided_batched(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, alpha: *const f32, A: *const f32, lda: rocblas_int, stride_A: rocblas_stride,
                beta: *const f32, B: *const f32, ldb: rocblas_int, stride_B: rocblas_stride, C: *mut f32,
                ldc: rocblas_int, stride_C: rocblas_stride, batch_count: rocblas_int,
            ) -> rocblas_status;
            fn rocblas_dgeam_strided_batched(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, alpha: *const f64, A: *const f64, lda: rocblas_int, stride_A: rocblas_stride,
                beta: *const f64, B: *const f64, ldb: rocblas_int, stride_B: rocblas_stride, C: *mut f64,
                ldc: rocblas_int, stride_C: rocblas_stride, batch_count: rocblas_int,
            ) -> rocblas_status;
        }
        optional {
            /// One of rocBLAS's beta functions, which AMD may change.
            fn rocblas_gemm_strided_batched_ex_get_solutions(
                handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
                n: rocblas_int, k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype,
                lda: rocblas_int, stride_a: rocblas_stride, b: *const c_void, b_type: rocblas_datatype,
                ldb: rocblas_int, stride_b: rocblas_stride, beta: *const c_void, c: *const c_void,
                c_type: rocblas_datatype, ldc: rocblas_int, stride_c: rocblas_stride, d: *mut c_void,
                d_type: rocblas_datatype, ldd: rocblas_int, stride_d: rocblas_stride, batch_count: rocblas_int,
                compute_type: rocblas_datatype, algo: rocblas_gemm_algo, flags: u32, list_array: *mut rocblas_int,
                list_size: *mut rocblas_int,
            ) -> rocblas_status;
        }
    }
}
