//! Matrix by vector (`gemv`) and sums of matrices (`geam`).

use super::handle::{Outcome, check, compute, require, span};
use crate::numeric::multiply::{Operand, Product, Scalar, multiply};
use crate::numeric::shared::Shared;
use crate::runtime::parallel;
use rocblas_sys::*;

/// The arguments of a `gemv`.
struct Gemv<T> {
    trans: rocblas_operation,
    m: i32,
    n: i32,
    alpha: *const T,
    a: *const T,
    lda: i32,
    x: *const T,
    incx: i32,
    beta: *const T,
    y: *mut T,
    incy: i32,
}

/// Offset of a vector's first element: one with a negative increment begins at its far end.
fn start(len: i32, increment: i32) -> isize {
    if increment < 0 { (1 - len as isize) * increment as isize } else { 0 }
}

/// First and last offset of a vector's elements.
fn vector_span(len: i32, increment: i32) -> (i64, i64) {
    (0, (i64::from(len) - 1) * i64::from(increment).abs())
}

fn gemv<T: Scalar>(g: &Gemv<T>) -> Outcome {
    require(g.trans.name().is_some(), rocblas_status_invalid_value)?;
    let sizes = g.m >= 0 && g.n >= 0 && g.lda >= g.m && g.lda >= 1 && g.incx != 0 && g.incy != 0;
    require(sizes, rocblas_status_invalid_size)?;
    if g.m == 0 || g.n == 0 {
        return Ok(());
    }
    require(!g.alpha.is_null() && !g.beta.is_null(), rocblas_status_invalid_pointer)?;
    // SAFETY: not null; the caller's scalars.
    let (alpha, beta) = unsafe { (*g.alpha, *g.beta) };
    if alpha == T::ZERO && beta == T::ONE {
        return Ok(());
    }
    let reads = alpha != T::ZERO;
    require(
        (!reads || (!g.a.is_null() && !g.x.is_null())) && !g.y.is_null(),
        rocblas_status_invalid_pointer,
    )?;
    let plain = g.trans == rocblas_operation_none;
    let (rows, columns) = if plain { (g.m, g.n) } else { (g.n, g.m) };
    if reads {
        check(g.a, span(g.m, g.n, g.lda, 0, 1)?)?;
        check(g.x, vector_span(columns, g.incx))?;
    }
    check(g.y, vector_span(rows, g.incy))?;
    let (row, column) = if plain { (1, g.lda as isize) } else { (g.lda as isize, 1) };
    let (a, x, y) = (
        Shared(g.a.cast_mut()),
        Shared(g.x.cast_mut().wrapping_offset(start(columns, g.incx))),
        Shared(g.y.wrapping_offset(start(rows, g.incy))),
    );
    let (incx, incy) = (g.incx as isize, g.incy as isize);
    // SAFETY: the buffers were checked for these sizes.
    unsafe {
        multiply(1, |_| Product {
            m: rows as usize,
            n: 1,
            k: columns as usize,
            a: Operand { at: a.get(), row, column },
            b: Operand { at: x.get(), row: incx, column: 0 },
            c: y.get(),
            c_row: incy,
            c_column: rows as isize * incy.abs(),
            alpha,
            beta,
        });
    }
    Ok(())
}

/// The arguments of a `geam`.
struct Geam<T> {
    trans: (rocblas_operation, rocblas_operation),
    m: i32,
    n: i32,
    alpha: *const T,
    a: (*const T, i32, i64),
    beta: *const T,
    b: (*const T, i32, i64),
    c: (*mut T, i32, i64),
    batch: i32,
}

fn geam<T: Scalar + core::ops::Add<Output = T>>(g: &Geam<T>) -> Outcome {
    require(g.trans.0.name().is_some() && g.trans.1.name().is_some(), rocblas_status_invalid_value)?;
    require(g.m >= 0 && g.n >= 0 && g.batch >= 0, rocblas_status_invalid_size)?;
    let stored = |trans| if trans == rocblas_operation_none { (g.m, g.n) } else { (g.n, g.m) };
    let (a_size, b_size) = (stored(g.trans.0), stored(g.trans.1));
    require(g.c.1 >= g.m && g.a.1 >= a_size.0 && g.b.1 >= b_size.0, rocblas_status_invalid_size)?;
    if g.m == 0 || g.n == 0 || g.batch == 0 {
        return Ok(());
    }
    require(!g.c.0.is_null() && !g.alpha.is_null() && !g.beta.is_null(), rocblas_status_invalid_pointer)?;
    // SAFETY: not null; the caller's scalars.
    let (alpha, beta) = unsafe { (*g.alpha, *g.beta) };
    let (reads_a, reads_b) = (alpha != T::ZERO, beta != T::ZERO);
    require(
        (!reads_a || !g.a.0.is_null()) && (!reads_b || !g.b.0.is_null()),
        rocblas_status_invalid_pointer,
    )?;
    // In place only where an element is read where it is written.
    for (operand, trans) in [(g.a, g.trans.0), (g.b, g.trans.1)] {
        let same = core::ptr::eq(operand.0, g.c.0);
        require(
            !same || (operand.1 == g.c.1 && trans == rocblas_operation_none),
            rocblas_status_invalid_size,
        )?;
    }
    if reads_a {
        check(g.a.0, span(a_size.0, a_size.1, g.a.1, g.a.2, g.batch)?)?;
    }
    if reads_b {
        check(g.b.0, span(b_size.0, b_size.1, g.b.1, g.b.2, g.batch)?)?;
    }
    check(g.c.0, span(g.m, g.n, g.c.1, g.c.2, g.batch)?)?;
    let strides =
        |trans, ld: i32| if trans == rocblas_operation_none { (1, ld as isize) } else { (ld as isize, 1) };
    let (a, b, c) = (Shared(g.a.0.cast_mut()), Shared(g.b.0.cast_mut()), Shared(g.c.0));
    let (a_step, b_step) = (strides(g.trans.0, g.a.1), strides(g.trans.1, g.b.1));
    let (a_batch, b_batch, c_batch) = (g.a.2 as isize, g.b.2 as isize, g.c.2 as isize);
    let (m, n, batch, ldc) = (g.m as isize, g.n as isize, g.batch as isize, g.c.1 as isize);
    // A task takes a block of columns, so that a transposed operand is read in whole cache lines.
    const COLUMNS: isize = 16;
    let blocks = (n + COLUMNS - 1) / COLUMNS;
    parallel((blocks * batch) as usize, |task| {
        let (i, block) = (task as isize / blocks, task as isize % blocks);
        for row in 0..m {
            for column in block * COLUMNS..((block + 1) * COLUMNS).min(n) {
                // SAFETY: inside the matrices, which were checked.
                unsafe {
                    let left = || *a.get().offset(i * a_batch + row * a_step.0 + column * a_step.1) * alpha;
                    let right = || *b.get().offset(i * b_batch + row * b_step.0 + column * b_step.1) * beta;
                    let value = match (reads_a, reads_b) {
                        (true, true) => left() + right(),
                        (true, false) => left(),
                        (false, true) => right(),
                        (false, false) => T::ZERO,
                    };
                    *c.get().offset(i * c_batch + row + column * ldc) = value;
                }
            }
        }
    });
    Ok(())
}

macro_rules! functions {
    ($($gemv:ident $geam:ident $batched:ident $t:ty;)+) => { $(
        pub(super) unsafe extern "C" fn $gemv(
            handle: rocblas_handle, trans: rocblas_operation, m: rocblas_int, n: rocblas_int, alpha: *const $t,
            A: *const $t, lda: rocblas_int, x: *const $t, incx: rocblas_int, beta: *const $t, y: *mut $t,
            incy: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe {
                compute(handle, || gemv(&Gemv { trans, m, n, alpha, a: A, lda, x, incx, beta, y, incy }))
            }
        }

        pub(super) unsafe extern "C" fn $geam(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int, beta: *const $t, B: *const $t,
            ldb: rocblas_int, C: *mut $t, ldc: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe { $batched(handle, transA, transB, m, n, alpha, A, lda, 0, beta, B, ldb, 0, C, ldc, 0, 1) }
        }

        pub(super) unsafe extern "C" fn $batched(
            handle: rocblas_handle, transA: rocblas_operation, transB: rocblas_operation, m: rocblas_int,
            n: rocblas_int, alpha: *const $t, A: *const $t, lda: rocblas_int, stride_A: rocblas_stride,
            beta: *const $t, B: *const $t, ldb: rocblas_int, stride_B: rocblas_stride, C: *mut $t,
            ldc: rocblas_int, stride_C: rocblas_stride, batch_count: rocblas_int,
        ) -> rocblas_status {
            let call = Geam {
                trans: (transA, transB), m, n, alpha, a: (A, lda, stride_A), beta, b: (B, ldb, stride_B),
                c: (C, ldc, stride_C), batch: batch_count,
            };
            // SAFETY: the caller's handle, scalars and buffers.
            unsafe { compute(handle, || geam(&call)) }
        }
    )+ };
}
functions! {
    rocblas_sgemv rocblas_sgeam rocblas_sgeam_strided_batched f32;
    rocblas_dgemv rocblas_dgeam rocblas_dgeam_strided_batched f64;
}
