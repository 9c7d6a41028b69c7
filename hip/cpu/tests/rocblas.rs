//! rocBLAS through its C table, against sums in `f64`.
#![allow(clippy::unwrap_used)]

mod library;

use core::ffi::c_void;
use half::{bf16, f16};
use library::{Device, Number, Random, close, wide};
use rocblas_sys::*;

const NONE: rocblas_operation = rocblas_operation_none;
const TRANSPOSE: rocblas_operation = rocblas_operation_transpose;

struct Blas {
    table: Rocblas,
    handle: rocblas_handle,
}

impl Blas {
    fn new() -> Self {
        let table = hip_cpu::rocblas_table();
        let mut handle = core::ptr::null_mut();
        // SAFETY: an out-pointer.
        assert_eq!(unsafe { (table.rocblas_create_handle)(&mut handle) }, rocblas_status_success);
        Blas { table, handle }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created above, destroyed once.
        unsafe { (self.table.rocblas_destroy_handle)(self.handle) };
    }
}

struct Case {
    a: rocblas_operation,
    b: rocblas_operation,
    m: usize,
    n: usize,
    k: usize,
    lda: usize,
    ldb: usize,
    ldc: usize,
    stride: [usize; 3],
    batch: usize,
    alpha: f64,
    beta: f64,
}

impl Case {
    fn random(random: &mut Random, round: usize) -> Case {
        let sizes = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 70, 129];
        let (m, n, k) = (random.pick(&sizes), random.pick(&sizes), random.pick(&sizes));
        let (a, b) = (random.pick(&[NONE, TRANSPOSE]), random.pick(&[NONE, TRANSPOSE]));
        let pad = |random: &mut Random| random.pick(&[0, 0, 1, 7]);
        let (rows_a, columns_a) = if a == NONE { (m, k) } else { (k, m) };
        let (rows_b, columns_b) = if b == NONE { (k, n) } else { (n, k) };
        let (lda, ldb, ldc) = (rows_a + pad(random), rows_b + pad(random), m + pad(random));
        let batch = random.pick(&[1, 1, 2, 5, 33]);
        let mut stride = [lda * columns_a, ldb * columns_b, ldc * n].map(|size| size + random.pick(&[0, 3]));
        if round.is_multiple_of(3) {
            stride[random.below(2)] = 0; // A batch that shares one operand.
        }
        let (alpha, beta) = (random.pick(&[1.0, 0.5, -2.0, 0.0]), random.pick(&[0.0, 1.0, 0.25]));
        Case { a, b, m, n, k, lda, ldb, ldc, stride, batch, alpha, beta }
    }

    fn lengths(&self) -> [usize; 3] {
        let columns = [
            if self.a == NONE { self.k } else { self.m },
            if self.b == NONE { self.n } else { self.k },
            self.n,
        ];
        [0, 1, 2].map(|i| self.stride[i] * (self.batch - 1) + [self.lda, self.ldb, self.ldc][i] * columns[i])
    }

    /// The expected contents of `c`. Elements between columns and matrices keep their values.
    fn expected(&self, a: &[f64], b: &[f64], c: &[f64]) -> Vec<f64> {
        let mut all = c.to_vec();
        for i in 0..self.batch {
            for column in 0..self.n {
                for row in 0..self.m {
                    let left = |p| if self.a == NONE { row + p * self.lda } else { p + row * self.lda };
                    let right =
                        |p| if self.b == NONE { p + column * self.ldb } else { column + p * self.ldb };
                    let sum: f64 = (0..self.k)
                        .map(|p| a[i * self.stride[0] + left(p)] * b[i * self.stride[1] + right(p)])
                        .sum();
                    let at = i * self.stride[2] + row + column * self.ldc;
                    let old = if self.beta == 0.0 { 0.0 } else { self.beta * c[at] };
                    all[at] = if self.alpha == 0.0 { old } else { self.alpha * sum + old };
                }
            }
        }
        all
    }
}

#[test]
fn gemm_f32_and_f64() {
    let blas = Blas::new();
    let mut random = Random::new("gemm");
    for round in 0..120 {
        let case = Case::random(&mut random, round);
        macro_rules! check {
            ($t:ty, $function:ident) => {{
                let [a, b, c] = case.lengths().map(|len| random.values::<$t>(len));
                let (da, db, dc) = (Device::new(&a), Device::new(&b), Device::new(&c));
                let (alpha, beta) = (case.alpha as $t, case.beta as $t);
                // SAFETY: buffers of the sizes that the case says.
                let status = unsafe {
                    (blas.table.$function)(
                        blas.handle,
                        case.a,
                        case.b,
                        case.m as i32,
                        case.n as i32,
                        case.k as i32,
                        &alpha,
                        da.ptr(),
                        case.lda as i32,
                        case.stride[0] as i64,
                        db.ptr(),
                        case.ldb as i32,
                        case.stride[1] as i64,
                        &beta,
                        dc.ptr(),
                        case.ldc as i32,
                        case.stride[2] as i64,
                        case.batch as i32,
                    )
                };
                assert_eq!(status, rocblas_status_success);
                close("gemm", &dc.get(), &case.expected(&wide(&a), &wide(&b), &wide(&c)), 1.0);
            }};
        }
        check!(f32, rocblas_sgemm_strided_batched);
        check!(f64, rocblas_dgemm_strided_batched);
    }
}

fn ex<I: Number, O: Number>(random: &mut Random, case: &Case, in_place: bool, types: [rocblas_datatype; 2]) {
    let blas = Blas::new();
    let a = random.values::<I>(case.lengths()[0]);
    let b = random.values::<I>(case.lengths()[1]);
    let c = random.values::<O>(case.lengths()[2]);
    let d: Vec<O> = c.clone();
    let (da, db, dc, dd) = (Device::new(&a), Device::new(&b), Device::new(&c), Device::new(&d));
    let (alpha, beta) = (case.alpha as f32, case.beta as f32);
    // The default and the others.
    let solution = random.pick(&[0, -1, 1, -12]);
    let out = if in_place { &dc } else { &dd };
    let float = |value: &f32| core::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: buffers of the sizes that the case says.
    let status = unsafe {
        (blas.table.rocblas_gemm_strided_batched_ex)(
            blas.handle,
            case.a,
            case.b,
            case.m as i32,
            case.n as i32,
            case.k as i32,
            float(&alpha),
            da.void(),
            types[0],
            case.lda as i32,
            case.stride[0] as i64,
            db.void(),
            types[0],
            case.ldb as i32,
            case.stride[1] as i64,
            float(&beta),
            dc.void(),
            types[1],
            case.ldc as i32,
            case.stride[2] as i64,
            out.void(),
            types[1],
            case.ldc as i32,
            case.stride[2] as i64,
            case.batch as i32,
            rocblas_datatype_f32_r,
            rocblas_gemm_algo_solution_index,
            solution,
            rocblas_gemm_flags_none,
        )
    };
    assert_eq!(status, rocblas_status_success);
    close("gemm_ex", &out.get(), &case.expected(&wide(&a), &wide(&b), &wide(&c)), 1.0);
}

#[test]
fn gemm_ex_low_precision() {
    let mut random = Random::new("gemm_ex");
    // Results that several tasks compute, with gaps between columns and without.
    let large = [300, 303].map(|ldc| Case {
        a: NONE,
        b: TRANSPOSE,
        m: 300,
        n: 260,
        k: 20,
        lda: 300,
        ldb: 263,
        ldc,
        stride: [6000, 5260, 260 * ldc],
        batch: 2,
        alpha: 0.5,
        beta: 0.25,
    });
    let drawn: Vec<Case> = (0..40).map(|round| Case::random(&mut random, round)).collect();
    for (round, case) in drawn.iter().chain(&large).enumerate() {
        let (random, in_place) = (&mut random, round.is_multiple_of(2));
        ex::<f16, f16>(random, case, in_place, [rocblas_datatype_f16_r; 2]);
        ex::<f16, f32>(random, case, in_place, [rocblas_datatype_f16_r, rocblas_datatype_f32_r]);
        ex::<bf16, bf16>(random, case, in_place, [rocblas_datatype_bf16_r; 2]);
        ex::<bf16, f32>(random, case, in_place, [rocblas_datatype_bf16_r, rocblas_datatype_f32_r]);
        ex::<f32, f32>(random, case, in_place, [rocblas_datatype_f32_r; 2]);
    }
}

#[test]
fn gemm_ex_integers() {
    let blas = Blas::new();
    let mut random = Random::new("gemm_ex i8");
    let (m, n, k) = (7, 9, 300);
    let a: Vec<i8> = (0..m * k).map(|_| random.next() as i8).collect();
    let b: Vec<i8> = (0..k * n).map(|_| random.next() as i8).collect();
    let c: Vec<i32> = (0..m * n).map(|_| random.next() as i32 % 1000).collect();
    let (da, db, dc) = (Device::new(&a), Device::new(&b), Device::new(&c));
    let (alpha, beta) = (3i32, -2i32);
    let int = |value: &i32| core::ptr::from_ref(value).cast::<c_void>();
    let (i8r, i32r) = (rocblas_datatype_i8_r, rocblas_datatype_i32_r);
    // SAFETY: buffers of these sizes.
    let status = unsafe {
        (blas.table.rocblas_gemm_ex)(
            blas.handle,
            NONE,
            NONE,
            m as i32,
            n as i32,
            k as i32,
            int(&alpha),
            da.void(),
            i8r,
            m as i32,
            db.void(),
            i8r,
            k as i32,
            int(&beta),
            dc.void(),
            i32r,
            m as i32,
            dc.void(),
            i32r,
            m as i32,
            i32r,
            rocblas_gemm_algo_standard,
            0,
            0,
        )
    };
    assert_eq!(status, rocblas_status_success);
    let found = dc.get();
    for column in 0..n {
        for row in 0..m {
            let sum: i32 = (0..k).map(|p| i32::from(a[row + p * m]) * i32::from(b[p + column * k])).sum();
            assert_eq!(found[row + column * m], 3 * sum - 2 * c[row + column * m]);
        }
    }
}

#[test]
fn large_product_is_the_same_bits_every_time() {
    let blas = Blas::new();
    let mut random = Random::new("gemm 512");
    let n = 300usize;
    let (a, b) = (Device::new(&random.values::<f32>(n * n)), Device::new(&random.values::<f32>(n * n)));
    let run = || {
        let c = Device::new(&vec![f32::NAN; n * n]);
        let size = n as i32;
        // SAFETY: buffers of these sizes.
        let status = unsafe {
            (blas.table.rocblas_sgemm)(
                blas.handle,
                NONE,
                TRANSPOSE,
                size,
                size,
                size,
                &1.0,
                a.ptr(),
                size,
                b.ptr(),
                size,
                &0.0,
                c.ptr(),
                size,
            )
        };
        assert_eq!(status, rocblas_status_success);
        c.get().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    let first = run();
    assert!(first.iter().all(|bits| !f32::from_bits(*bits).is_nan()), "beta 0 must not read c");
    assert!((0..5).all(|_| run() == first));
}

#[test]
fn gemv_and_geam() {
    let blas = Blas::new();
    let mut random = Random::new("gemv, geam");
    for _ in 0..60 {
        let (m, n) = (1 + random.below(70), 1 + random.below(70));
        let lda = m + random.below(3);
        let trans = random.pick(&[NONE, TRANSPOSE]);
        let (rows, columns) = if trans == NONE { (m, n) } else { (n, m) };
        let (incx, incy) = (random.pick(&[1, 2, -1, -3]), random.pick(&[1, 3, -2]));
        let a = random.values::<f64>(lda * n);
        let x = random.values::<f64>(1 + (columns - 1) * i32::unsigned_abs(incx) as usize);
        let y = random.values::<f64>(1 + (rows - 1) * i32::unsigned_abs(incy) as usize);
        let (alpha, beta) = (random.pick(&[1.0, -0.5, 0.0]), random.pick(&[0.0, 1.0, 2.0]));
        let (da, dx, dy) = (Device::new(&a), Device::new(&x), Device::new(&y));
        // SAFETY: buffers of these sizes.
        let status = unsafe {
            (blas.table.rocblas_dgemv)(
                blas.handle,
                trans,
                m as i32,
                n as i32,
                &alpha,
                da.ptr(),
                lda as i32,
                dx.ptr(),
                incx,
                &beta,
                dy.ptr(),
                incy,
            )
        };
        assert_eq!(status, rocblas_status_success);
        let place = |i: usize, len: usize, inc: i32| {
            if inc > 0 { i * inc as usize } else { (len - 1 - i) * inc.unsigned_abs() as usize }
        };
        let mut expected = y.clone();
        for row in 0..rows {
            let at = |column: usize| if trans == NONE { row + column * lda } else { column + row * lda };
            let sum: f64 = (0..columns).map(|column| a[at(column)] * x[place(column, columns, incx)]).sum();
            let to = place(row, rows, incy);
            expected[to] = alpha * sum + beta * y[to];
        }
        close("gemv", &dy.get(), &expected, 1.0);

        let (ta, tb) = (random.pick(&[NONE, TRANSPOSE]), random.pick(&[NONE, TRANSPOSE]));
        let side = m.max(n) + 1;
        let ld = side as i32;
        let (a, b) = (random.values::<f32>(side * side * 3), random.values::<f32>(side * side * 3));
        let (da, db, dc) = (Device::new(&a), Device::new(&b), Device::new(&vec![f32::NAN; side * side * 3]));
        let stride = (side * side) as i64;
        let (alpha, beta) = (alpha as f32, beta as f32);
        // SAFETY: buffers of these sizes.
        let status = unsafe {
            (blas.table.rocblas_sgeam_strided_batched)(
                blas.handle,
                ta,
                tb,
                m as i32,
                n as i32,
                &alpha,
                da.ptr(),
                ld,
                stride,
                &beta,
                db.ptr(),
                ld,
                stride,
                dc.ptr(),
                ld,
                stride,
                3,
            )
        };
        assert_eq!(status, rocblas_status_success);
        let found = dc.get();
        for i in 0..3 {
            for column in 0..n {
                for row in 0..m {
                    let at = |trans| {
                        i * side * side
                            + if trans == NONE { row + column * side } else { column + row * side }
                    };
                    let expected = alpha * a[at(ta)] + beta * b[at(tb)];
                    let found = found[at(NONE)];
                    assert!((found - expected).abs() < 1e-6, "geam: found {found} expected {expected}");
                }
            }
        }
    }
}

/// hip-provider's tests hold the rules for arguments. Here the rules on addresses
/// are tested with the runtime's allocations.
#[test]
fn memory_of_the_host_and_past_an_end_is_refused() {
    let blas = Blas::new();
    let (a, b, c) = (Device::new(&[1.0f32; 16]), Device::new(&[1.0f32; 16]), Device::new(&[1.0f32; 16]));
    let mut host = [0.0f32; 16];
    let host = host.as_mut_ptr();
    let run = |a: *const f32, lda: i32, c: *mut f32| {
        // SAFETY: what is wrong with the arguments is what the function must notice.
        unsafe {
            let (table, handle, one) = (&blas.table, blas.handle, 1.0f32);
            (table.rocblas_sgemm)(handle, NONE, NONE, 4, 4, 4, &one, a, lda, b.ptr(), 4, &one, c, 4)
        }
    };
    assert_eq!(run(a.ptr(), 4, c.ptr()), rocblas_status_success);
    assert_eq!(run(a.ptr(), 3, c.ptr()), rocblas_status_invalid_size);
    assert_eq!(run(a.ptr(), 5, c.ptr()), rocblas_status_invalid_pointer);
    assert_eq!(run(host, 4, c.ptr()), rocblas_status_invalid_pointer);
    assert_eq!(run(a.ptr(), 4, host), rocblas_status_invalid_pointer);
}

/// The solutions that rocBLAS lists for a product of f32, in a list with room for `room`.
fn solutions(blas: &Blas, size: i32, room: Option<i32>) -> (rocblas_status, Vec<i32>) {
    let values = vec![0f32; (size * size).max(1) as usize];
    let [a, b, c] = [Device::new(&values), Device::new(&values), Device::new(&values)];
    let one = 1f32;
    let mut list = vec![-7; room.unwrap_or(0).max(0) as usize];
    let mut count = room.unwrap_or(-7);
    let at = if room.is_some() { list.as_mut_ptr() } else { core::ptr::null_mut() };
    let scalar: *const c_void = (&raw const one).cast();
    let f32s = rocblas_datatype_f32_r;
    let get = blas.table.rocblas_gemm_strided_batched_ex_get_solutions.unwrap();
    // SAFETY: the buffers have `size` x `size` numbers, and the list has room for `room`.
    let status = unsafe {
        get(
            blas.handle,
            NONE,
            NONE,
            size,
            size,
            size,
            scalar,
            a.void(),
            f32s,
            size,
            0,
            b.void(),
            f32s,
            size,
            0,
            scalar,
            c.void(),
            f32s,
            size,
            0,
            c.void(),
            f32s,
            size,
            0,
            1,
            f32s,
            rocblas_gemm_algo_solution_index,
            0,
            at,
            &mut count,
        )
    };
    if room.is_none() { (status, vec![count]) } else { (status, list) }
}

#[test]
fn solutions_are_counted_and_listed() {
    let blas = Blas::new();
    assert_eq!(solutions(&blas, 8, None), (rocblas_status_success, vec![2]));
    for (room, expected) in [(0, vec![]), (1, vec![1]), (2, vec![1, -12]), (3, vec![1, -12, -7])] {
        assert_eq!(solutions(&blas, 8, Some(room)), (rocblas_status_success, expected));
    }
    assert_eq!(solutions(&blas, 8, Some(-1)), (rocblas_status_invalid_size, vec![]));
    assert_eq!(solutions(&blas, 0, None), (rocblas_status_success, vec![0]), "nothing to compute");
}
