//! Products of a matrix and a vector, and sums of matrices.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use rocblas_sys::*;

use super::{
    HANDLE, NONE, POINTER, READ, SCALARS_ON_HOST, SIZE, TRANSPOSE, VALUE, blas, double, memory, single,
};
use crate::{Nothing, Runs, check, dangling, looked};

#[derive(Clone, Copy)]
struct Vector {
    handle: rocblas_handle,
    op: rocblas_operation,
    m: i32,
    n: i32,
    alpha: *const f64,
    a: *mut c_void,
    lda: i32,
    x: *mut c_void,
    incx: i32,
    beta: *const f64,
    y: *mut c_void,
    incy: i32,
}

#[test]
fn gemv() {
    let (t, handle) = blas();
    let good = Vector {
        handle,
        op: NONE,
        m: 4,
        n: 3,
        alpha: double(2),
        a: memory(12 * 8),
        lda: 4,
        x: memory(5 * 8),
        incx: 2,
        beta: double(2),
        y: memory(10 * 8),
        incy: 3,
    };
    let run = |c: &mut Vector| unsafe {
        (t.rocblas_dgemv)(
            c.handle,
            c.op,
            c.m,
            c.n,
            c.alpha,
            c.a.cast(),
            c.lda,
            c.x.cast(),
            c.incx,
            c.beta,
            c.y.cast(),
            c.incy,
        )
    };
    check(
        "dgemv",
        good,
        run,
        &[
            ("no handle", &|c| c.handle = null_mut(), HANDLE),
            ("an unknown operation", &|c| c.op = rocblas_operation(0), VALUE),
            ("the operation comes first", &|c| (c.op, c.m) = (rocblas_operation(0), -1), VALUE),
            ("m below 0", &|c| c.m = -1, SIZE),
            ("n below 0", &|c| c.n = -1, SIZE),
            ("m comes before nothing to do", &|c| (c.m, c.alpha, c.beta) = (-1, double(0), double(1)), SIZE),
            ("n comes before nothing to do", &|c| (c.n, c.alpha, c.beta) = (-1, double(0), double(1)), SIZE),
            ("columns that overlap", &|c| c.lda = 3, SIZE),
            ("columns of no rows that are not apart", &|c| (c.m, c.lda) = (0, 0), SIZE),
            ("x that stays", &|c| c.incx = 0, SIZE),
            ("y that stays", &|c| c.incy = 0, SIZE),
            ("no rows", &|c| (c.m, c.a) = (0, null_mut()), Nothing),
            ("no columns", &|c| (c.n, c.alpha) = (0, null()), Nothing),
            ("no alpha", &|c| c.alpha = null(), POINTER),
            ("no beta", &|c| c.beta = null(), POINTER),
            ("no a", &|c| c.a = null_mut(), POINTER),
            ("no x", &|c| c.x = null_mut(), POINTER),
            ("no y", &|c| c.y = null_mut(), POINTER),
            (
                "alpha of 0 needs no a and x",
                &|c| (c.alpha, c.a, c.x) = (double(0), null_mut(), null_mut()),
                Runs,
            ),
            ("but y", &|c| (c.alpha, c.y) = (double(0), null_mut()), POINTER),
            ("0 ax + 1 y", &|c| (c.alpha, c.beta, c.y) = (double(0), double(1), null_mut()), Nothing),
            ("memory of the host for a", &|c| c.a = dangling(), POINTER),
            ("memory of the host for x", &|c| c.x = dangling(), POINTER),
            ("memory of the host for y", &|c| c.y = dangling(), POINTER),
            ("a wider a", &|c| c.lda = 5, POINTER),
            ("a longer x", &|c| c.incx = 3, POINTER),
            ("a longer y", &|c| c.incy = 4, POINTER),
            ("x backwards", &|c| c.incx = -2, Runs),
            ("a longer x backwards", &|c| c.incx = -3, POINTER),
            ("the largest step backwards", &|c| c.incx = i32::MIN, POINTER),
            ("x as long as y", &|c| (c.op, c.incx) = (TRANSPOSE, 1), Runs),
            ("a longer x of the transpose", &|c| c.op = TRANSPOSE, POINTER),
        ],
    );
    looked();
    let status = unsafe {
        let (scalar, at) = (single(2).cast(), memory(16));
        (t.rocblas_sgemv)(handle, NONE, 2, 2, scalar, at.cast(), 2, at.cast(), 1, scalar, at.cast(), 1)
    };
    assert_eq!((status, looked().len()), (rocblas_status_success, 1), "f32 has 4 bytes");
}

#[derive(Clone, Copy)]
struct Sum {
    handle: rocblas_handle,
    ops: [rocblas_operation; 2],
    m: i32,
    n: i32,
    factors: [*const f64; 2],
    /// Of a, b and c.
    at: [*mut c_void; 3],
    ld: [i32; 3],
    stride: [i64; 3],
    batch: i32,
}

#[test]
fn geam() {
    let (t, handle) = blas();
    let good = Sum {
        handle,
        ops: [NONE, TRANSPOSE],
        m: 4,
        n: 3,
        factors: [double(2); 2],
        at: [24 * 8; 3].map(memory),
        ld: [4, 3, 4],
        stride: [12; 3],
        batch: 2,
    };
    let run = |c: &mut Sum| unsafe {
        let [a, b, out] = c.at;
        (t.rocblas_dgeam_strided_batched)(
            c.handle,
            c.ops[0],
            c.ops[1],
            c.m,
            c.n,
            c.factors[0],
            a.cast(),
            c.ld[0],
            c.stride[0],
            c.factors[1],
            b.cast(),
            c.ld[1],
            c.stride[1],
            out.cast(),
            c.ld[2],
            c.stride[2],
            c.batch,
        )
    };
    check(
        "dgeam_strided_batched",
        good,
        run,
        &[
            ("no handle", &|c| c.handle = null_mut(), HANDLE),
            ("an unknown operation on a", &|c| c.ops[0] = rocblas_operation(0), VALUE),
            ("an unknown operation on b", &|c| c.ops[1] = rocblas_operation(0), VALUE),
            ("m below 0", &|c| c.m = -1, SIZE),
            ("n below 0", &|c| c.n = -1, SIZE),
            ("a batch below 0", &|c| c.batch = -1, SIZE),
            ("columns of a that overlap", &|c| c.ld[0] = 3, SIZE),
            ("columns of b that overlap", &|c| c.ld[1] = 2, SIZE),
            ("columns of c that overlap", &|c| c.ld[2] = 3, SIZE),
            ("a in place", &|c| c.at[0] = c.at[2], Runs),
            ("a in place, other columns", &|c| (c.at[0], c.ld[0]) = (c.at[2], 5), SIZE),
            ("b in place, transposed", &|c| c.at[1] = c.at[2], SIZE),
            ("b in place, transposed, with the same columns", &|c| (c.at[1], c.ld[1]) = (c.at[2], 4), SIZE),
            ("no rows", &|c| (c.m, c.at) = (0, [null_mut(), null_mut(), dangling()]), Nothing),
            ("no columns", &|c| (c.n, c.factors) = (0, [null(); 2]), Nothing),
            ("no batch", &|c| c.batch = 0, Nothing),
            ("no alpha", &|c| c.factors[0] = null(), POINTER),
            ("no beta", &|c| c.factors[1] = null(), POINTER),
            ("no a", &|c| c.at[0] = null_mut(), POINTER),
            ("no b", &|c| c.at[1] = null_mut(), POINTER),
            ("no c", &|c| c.at[2] = null_mut(), POINTER),
            ("alpha of 0 needs no a", &|c| (c.factors[0], c.at[0]) = (double(0), null_mut()), Runs),
            ("but b", &|c| (c.factors[0], c.at[1]) = (double(0), null_mut()), POINTER),
            ("beta of 0 needs no b", &|c| (c.factors[1], c.at[1]) = (double(0), null_mut()), Runs),
            ("memory of the host for a", &|c| c.at[0] = dangling(), POINTER),
            ("memory of the host for b", &|c| c.at[1] = dangling(), POINTER),
            ("memory of the host for c", &|c| c.at[2] = dangling(), POINTER),
            ("a longer a", &|c| c.stride[0] = 13, POINTER),
            ("a longer b", &|c| c.stride[1] = 13, POINTER),
            ("a longer c", &|c| c.stride[2] = 13, POINTER),
            ("a wider a", &|c| c.ld[0] = 5, POINTER),
            ("a wider b", &|c| c.ld[1] = 4, POINTER),
            ("a wider c", &|c| c.ld[2] = 5, POINTER),
        ],
    );
    // Scalars on the device are not read.
    SCALARS_ON_HOST.set(false);
    assert_eq!(run(&mut Sum { factors: [dangling(); 2], ..good }), rocblas_status_success);
    assert_eq!((READ.get().0, READ.get().1), (true, true));
    SCALARS_ON_HOST.set(true);
    let one = |a: *mut c_void| unsafe {
        let (scalar, b) = (single(2).cast(), memory(16));
        (t.rocblas_sgeam)(handle, NONE, NONE, 2, 2, scalar, a.cast(), 2, scalar, b.cast(), 2, b.cast(), 2)
    };
    assert_eq!([one(memory(16)), one(memory(15))], [rocblas_status_success, rocblas_status_invalid_pointer]);
}
