//! `rocblas_sgemm`, `rocblas_dgemm` and their strided batches.

use super::handle::{Outcome, check, compute, require, span};
use crate::numeric::multiply::{Operand, Product, Scalar, multiply};
use rocblas_sys::*;

/// The sizes of a call; `A` is `m x k` after its operation, `B` is `k x n`.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) a: rocblas_operation,
    pub(super) b: rocblas_operation,
    pub(super) m: i32,
    pub(super) n: i32,
    pub(super) k: i32,
    pub(super) lda: i32,
    pub(super) ldb: i32,
    pub(super) ldc: i32,
    pub(super) ldd: i32,
    pub(super) stride_a: i64,
    pub(super) stride_b: i64,
    pub(super) stride_c: i64,
    pub(super) stride_d: i64,
    pub(super) batch: i32,
}

impl Sizes {
    /// rocBLAS's checks that need no pointer; `false` where there is nothing to compute.
    pub(super) fn check(&self) -> Outcome<bool> {
        require(self.a.name().is_some() && self.b.name().is_some(), rocblas_status_invalid_value)?;
        let sizes = [self.m, self.n, self.k, self.batch];
        require(sizes.iter().all(|&size| size >= 0), rocblas_status_invalid_size)?;
        let (a, b) = (self.stored_a(), self.stored_b());
        let fits = self.lda >= a.0 && self.ldb >= b.0 && self.ldc >= self.m && self.ldd >= self.m;
        require(fits, rocblas_status_invalid_size)?;
        Ok(self.m > 0 && self.n > 0 && self.batch > 0)
    }

    /// Rows and columns of `A` in memory.
    pub(super) fn stored_a(&self) -> (i32, i32) {
        if self.a == rocblas_operation_none { (self.m, self.k) } else { (self.k, self.m) }
    }

    /// Rows and columns of `B` in memory.
    pub(super) fn stored_b(&self) -> (i32, i32) {
        if self.b == rocblas_operation_none { (self.k, self.n) } else { (self.n, self.k) }
    }

    /// Row and column strides of an operand.
    pub(super) fn strides(operation: rocblas_operation, ld: i32) -> (isize, isize) {
        if operation == rocblas_operation_none { (1, ld as isize) } else { (ld as isize, 1) }
    }

    /// Refuses operands that are not device memory.
    pub(super) fn check_inputs<A, B>(&self, a: *const A, b: *const B) -> Outcome {
        let (rows, columns) = self.stored_a();
        check(a, span(rows, columns, self.lda, self.stride_a, self.batch)?)?;
        let (rows, columns) = self.stored_b();
        check(b, span(rows, columns, self.ldb, self.stride_b, self.batch)?)
    }
}

/// The pointers of a call with one type.
struct Pointers<T> {
    alpha: *const T,
    a: *const T,
    b: *const T,
    beta: *const T,
    c: *mut T,
}

fn run<T: Scalar>(sizes: Sizes, p: &Pointers<T>) -> Outcome {
    if !sizes.check()? {
        return Ok(());
    }
    require((sizes.k == 0 || !p.alpha.is_null()) && !p.beta.is_null(), rocblas_status_invalid_pointer)?;
    // SAFETY: not null; the caller's scalars.
    let (alpha, beta) = unsafe { (if sizes.k == 0 { T::ZERO } else { *p.alpha }, *p.beta) };
    if alpha == T::ZERO && beta == T::ONE {
        return Ok(());
    }
    let reads = alpha != T::ZERO;
    require(
        (!reads || (!p.a.is_null() && !p.b.is_null())) && !p.c.is_null(),
        rocblas_status_invalid_pointer,
    )?;
    if reads {
        sizes.check_inputs(p.a, p.b)?;
    }
    check(p.c, span(sizes.m, sizes.n, sizes.ldc, sizes.stride_c, sizes.batch)?)?;
    let (a_row, a_column) = Sizes::strides(sizes.a, sizes.lda);
    let (b_row, b_column) = Sizes::strides(sizes.b, sizes.ldb);
    let shared = (
        crate::numeric::shared::Shared(p.a.cast_mut()),
        crate::numeric::shared::Shared(p.b.cast_mut()),
        crate::numeric::shared::Shared(p.c),
    );
    // SAFETY: the buffers were checked for these sizes.
    unsafe {
        multiply(sizes.batch as usize, |i| {
            let i = i as isize;
            Product {
                m: sizes.m as usize,
                n: sizes.n as usize,
                k: sizes.k as usize,
                a: Operand {
                    at: shared.0.get().wrapping_offset(i * sizes.stride_a as isize),
                    row: a_row,
                    column: a_column,
                },
                b: Operand {
                    at: shared.1.get().wrapping_offset(i * sizes.stride_b as isize),
                    row: b_row,
                    column: b_column,
                },
                c: shared.2.get().wrapping_offset(i * sizes.stride_c as isize),
                c_row: 1,
                c_column: sizes.ldc as isize,
                alpha,
                beta,
            }
        });
    }
    Ok(())
}

macro_rules! gemms {
    ($($plain:ident $batched:ident $t:ty;)+) => { $(
        pub(super) unsafe extern "C" fn $plain(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, k: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int, B: *const $t,
            ldb: rocblas_int, beta: *const $t, C: *mut $t, ldc: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe { $batched(handle, transA, transB, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C, ldc, 0, 1) }
        }

        pub(super) unsafe extern "C" fn $batched(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, k: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int,
            stride_a: rocblas_stride, B: *const $t, ldb: rocblas_int, stride_b: rocblas_stride, beta: *const $t,
            C: *mut $t, ldc: rocblas_int, stride_c: rocblas_stride, batch_count: rocblas_int,
        ) -> rocblas_status {
            let sizes = Sizes {
                a: transA, b: transB, m, n, k, lda, ldb, ldc, ldd: ldc, stride_a, stride_b, stride_c,
                stride_d: stride_c, batch: batch_count,
            };
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe { compute(handle, || run(sizes, &Pointers { alpha, a: A, b: B, beta, c: C })) }
        }
    )+ };
}
gemms! {
    rocblas_sgemm rocblas_sgemm_strided_batched f32;
    rocblas_dgemm rocblas_dgemm_strided_batched f64;
}
