//! Sums of matrices, and products with vectors.

use super::gemm::{check_memory, operation};
use super::handle::{Outcome, answer, require, with};
use core::ffi::c_void;
use cudarc::cublas::sys as cublas;
use rocblas_sys::*;

macro_rules! geams {
    ($($plain:ident $batched:ident $cublas:ident $t:ty;)+) => { $(
        pub(super) unsafe extern "C" fn $plain(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int, beta: *const $t, B: *const $t,
            ldb: rocblas_int, C: *mut $t, ldc: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe { $batched(handle, transA, transB, m, n, alpha, A, lda, 0, beta, B, ldb, 0, C, ldc, 0, 1) }
        }

        // cuBLAS has no batch of sums: one call a matrix.
        pub(super) unsafe extern "C" fn $batched(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int, stride_A: rocblas_stride,
            beta: *const $t, B: *const $t, ldb: rocblas_int, stride_B: rocblas_stride, C: *mut $t,
            ldc: rocblas_int, stride_C: rocblas_stride, batch_count: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers, which are checked.
            unsafe { with(handle, |handle| {
                let (ta, tb) = (operation(transA)?, operation(transB)?);
                require(m >= 0 && n >= 0 && batch_count >= 0, rocblas_status_invalid_size)?;
                let stored = |operation| if operation == rocblas_operation_none { (m, n) } else { (n, m) };
                let (a, b) = (stored(transA), stored(transB));
                require(lda >= a.0.max(1) && ldb >= b.0.max(1) && ldc >= m.max(1), rocblas_status_invalid_size)?;
                if m == 0 || n == 0 || batch_count == 0 {
                    return Ok(());
                }
                let present = !alpha.is_null() && !beta.is_null() && !C.is_null();
                require(present, rocblas_status_invalid_pointer)?;
                let reads = |scalar: *const $t| !handle.scalars_on_host || *scalar != 0.0;
                let bytes = size_of::<$t>();
                for (operand, used, stored, ld, stride) in
                    [(A, reads(alpha), a, lda, stride_A), (B, reads(beta), b, ldb, stride_B)]
                {
                    if used {
                        require(!operand.is_null(), rocblas_status_invalid_pointer)?;
                        check_memory(operand.cast(), bytes, stored, ld, stride, batch_count)?;
                    }
                }
                check_memory(C.cast_const().cast::<c_void>(), bytes, (m, n), ldc, stride_C, batch_count)?;
                // In place only where both are laid out alike.
                for (operand, transposed, ld) in [(A, transA, lda), (B, transB, ldb)] {
                    let alike = transposed == rocblas_operation_none && ld == ldc;
                    require(!core::ptr::eq(operand, C) || alike, rocblas_status_invalid_size)?;
                }
                for i in 0..batch_count as isize {
                    answer(cublas::$cublas(
                        handle.raw, ta, tb, m, n, alpha, A.wrapping_offset(i * stride_A as isize), lda, beta,
                        B.wrapping_offset(i * stride_B as isize), ldb, C.wrapping_offset(i * stride_C as isize), ldc,
                    ))?;
                }
                Ok(())
            }) }
        }
    )+ };
}
geams! {
    rocblas_sgeam rocblas_sgeam_strided_batched cublasSgeam f32;
    rocblas_dgeam rocblas_dgeam_strided_batched cublasDgeam f64;
}

/// Refuses a vector whose elements are not memory of the runtime's.
fn check_vector(pointer: *const c_void, size: usize, len: i32, increment: i32) -> Outcome {
    // A negative increment begins at the far end of the same memory.
    check_memory(pointer, size, (1, len), increment.unsigned_abs() as i32, 0, 1)
}

macro_rules! gemvs {
    ($($name:ident $cublas:ident $t:ty;)+) => { $(
        pub(super) unsafe extern "C" fn $name(
            handle: rocblas_handle, trans: rocblas_operation, m: rocblas_int, n: rocblas_int, alpha: *const $t,
            A: *const $t, lda: rocblas_int, x: *const $t, incx: rocblas_int, beta: *const $t, y: *mut $t,
            incy: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers, which are checked.
            unsafe { with(handle, |handle| {
                let transposed = operation(trans)?;
                let fits = m >= 0 && n >= 0 && lda >= m.max(1) && incx != 0 && incy != 0;
                require(fits, rocblas_status_invalid_size)?;
                if m == 0 || n == 0 {
                    return Ok(());
                }
                require(!alpha.is_null() && !beta.is_null(), rocblas_status_invalid_pointer)?;
                let reads = !handle.scalars_on_host || *alpha != 0.0;
                if !reads && *beta == 1.0 {
                    return Ok(());
                }
                let present = (!reads || (!A.is_null() && !x.is_null())) && !y.is_null();
                require(present, rocblas_status_invalid_pointer)?;
                let bytes = size_of::<$t>();
                let (read, written) = if trans == rocblas_operation_none { (n, m) } else { (m, n) };
                if reads {
                    check_memory(A.cast(), bytes, (m, n), lda, 0, 1)?;
                    check_vector(x.cast(), bytes, read, incx)?;
                }
                check_vector(y.cast_const().cast(), bytes, written, incy)?;
                answer(cublas::$cublas(handle.raw, transposed, m, n, alpha, A, lda, x, incx, beta, y, incy))
            }) }
        }
    )+ };
}
gemvs! {
    rocblas_sgemv cublasSgemv_v2 f32;
    rocblas_dgemv cublasDgemv_v2 f64;
}
