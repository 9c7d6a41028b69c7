//! Matrix products: `gemm` and the 29 arguments of `gemm_ex`.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use hip_provider::rocblas::Types;
use rocblas_datatype_bf16_r as BF16;
use rocblas_datatype_f16_r as F16;
use rocblas_datatype_f32_r as F32;
use rocblas_datatype_f64_r as F64;
use rocblas_datatype_i8_r as I8;
use rocblas_datatype_i32_r as I32;
use rocblas_sys::*;

use super::{
    HANDLE, MISSING, NONE, POINTER, READ, SCALARS_ON_HOST, SIZE, TRANSPOSE, VALUE, blas, double, memory,
    single,
};
use crate::{Nothing, Runs, Then, check, dangling, looked};

/// 0, 1, 2 and -0.
static HALVES: [u16; 4] = [0, 0x3c00, 0x4000, 0x8000];
static INTEGERS: [i32; 3] = [0, 1, 2];

/// The same in the type of a product's sums.
fn scalar(sums: rocblas_datatype, value: usize) -> *const c_void {
    match sums {
        F64 => double(value).cast(),
        F16 => (&raw const HALVES[value]).cast(),
        I32 => (&raw const INTEGERS[value]).cast(),
        _ => single(value),
    }
}

#[derive(Clone, Copy)]
struct Product {
    /// Bytes of an element.
    size: usize,
    handle: rocblas_handle,
    ops: [rocblas_operation; 2],
    sizes: [i32; 3],
    alpha: *const c_void,
    beta: *const c_void,
    /// Of a, b, c and d.
    at: [*mut c_void; 4],
    ld: [i32; 4],
    stride: [i64; 4],
    batch: i32,
    /// Of a, b, c, d, and the sums.
    types: [rocblas_datatype; 5],
    algorithm: rocblas_gemm_algo,
}

impl Product {
    /// Two products of 4x2 and 2x3 matrices of f32 and f64, in memory of just their size.
    fn new(handle: rocblas_handle, size: usize, alpha: *const c_void, beta: *const c_void) -> Self {
        let at = [16, 12, 24, 24].map(|elements| memory(elements * size));
        Product {
            size,
            handle,
            ops: [NONE; 2],
            sizes: [4, 3, 2],
            alpha,
            beta,
            at,
            ld: [4, 2, 4, 4],
            stride: [8, 6, 12, 12],
            batch: 2,
            types: [rocblas_datatype_f32_r; 5],
            algorithm: rocblas_gemm_algo_standard,
        }
    }

    fn ex(&mut self, t: &Rocblas) -> rocblas_status {
        let Product { handle, ops, sizes, alpha, beta, at, ld, stride, batch, types, algorithm, .. } = *self;
        let [m, n, k] = sizes;
        unsafe {
            (t.rocblas_gemm_strided_batched_ex)(
                handle, ops[0], ops[1], m, n, k, alpha, at[0], types[0], ld[0], stride[0], at[1], types[1],
                ld[1], stride[1], beta, at[2], types[2], ld[2], stride[2], at[3], types[3], ld[3], stride[3],
                batch, types[4], algorithm, 0, 0,
            )
        }
    }

    fn double(&mut self, t: &Rocblas) -> rocblas_status {
        let Product { handle, ops, sizes, alpha, beta, at, ld, stride, batch, .. } = *self;
        let [m, n, k] = sizes;
        unsafe {
            (t.rocblas_dgemm_strided_batched)(
                handle,
                ops[0],
                ops[1],
                m,
                n,
                k,
                alpha.cast(),
                at[0].cast(),
                ld[0],
                stride[0],
                at[1].cast(),
                ld[1],
                stride[1],
                beta.cast(),
                at[3].cast(),
                ld[3],
                stride[3],
                batch,
            )
        }
    }
}

type Change = fn(&mut Product);

/// The rules that `gemm` and `gemm_ex` share.
const SHARED: &[(&str, Change, Then<rocblas_status>)] = &[
    ("no handle", |c| c.handle = null_mut(), HANDLE),
    ("an unknown operation on a", |c| c.ops[0] = rocblas_operation(110), VALUE),
    ("an unknown operation on b", |c| c.ops[1] = rocblas_operation(114), VALUE),
    ("operations come before sizes", |c| (c.ops[0], c.batch) = (rocblas_operation(0), -1), VALUE),
    ("m below 0", |c| c.sizes[0] = -1, SIZE),
    ("n below 0", |c| c.sizes[1] = -1, SIZE),
    ("k below 0", |c| c.sizes[2] = -1, SIZE),
    ("a batch below 0", |c| c.batch = -1, SIZE),
    ("columns of a that overlap", |c| c.ld[0] = 3, SIZE),
    ("columns of b that overlap", |c| c.ld[1] = 1, SIZE),
    ("a transposed", |c| (c.ops[0], c.ld[0]) = (TRANSPOSE, 2), Runs),
    ("columns of a transposed that overlap", |c| (c.ops[0], c.ld[0]) = (TRANSPOSE, 1), SIZE),
    ("b transposed", |c| (c.ops[1], c.ld[1]) = (TRANSPOSE, 3), Runs),
    ("columns of b transposed that overlap", |c| (c.ops[1], c.ld[1]) = (TRANSPOSE, 2), SIZE),
    ("sizes come before nothing to compute", |c| (c.sizes[0], c.sizes[1]) = (0, -1), SIZE),
    ("no rows", |c| (c.sizes[0], c.at) = (0, [null_mut(); 4]), Nothing),
    ("no columns", |c| (c.sizes[1], c.alpha) = (0, null()), Nothing),
    ("no batch", |c| (c.batch, c.beta) = (0, null()), Nothing),
    ("no alpha", |c| c.alpha = null(), POINTER),
    ("no beta", |c| c.beta = null(), POINTER),
    ("no a", |c| c.at[0] = null_mut(), POINTER),
    ("no b", |c| c.at[1] = null_mut(), POINTER),
    ("no result", |c| c.at[3] = null_mut(), POINTER),
    ("memory of the host for a", |c| c.at[0] = dangling(), POINTER),
    ("memory of the host for b", |c| c.at[1] = dangling(), POINTER),
    ("memory of the host for the result", |c| c.at[3] = dangling(), POINTER),
    ("a longer a", |c| c.stride[0] = 9, POINTER),
    ("a longer b", |c| c.stride[1] = 7, POINTER),
    ("a longer result", |c| c.stride[3] = 13, POINTER),
    ("one more in the batch", |c| (c.batch, c.stride[1]) = (3, 0), POINTER),
    ("a wider a", |c| c.ld[0] = 5, POINTER),
    ("a wider b", |c| c.ld[1] = 3, POINTER),
    ("one matrix for the whole batch", |c| (c.stride[0], c.stride[1]) = (0, 0), Runs),
    ("a batch before its address", |c| c.stride[0] = -8, POINTER),
    ("strides that overflow", |c| (c.batch, c.stride[0]) = (3, i64::MAX), SIZE),
    ("strides that overflow in bytes", |c| c.stride[1] = i64::MAX / 4, SIZE),
    ("strides down that overflow in bytes", |c| c.stride[0] = i64::MIN / 4, SIZE),
    ("the most negative stride", |c| c.stride[0] = i64::MIN, SIZE),
    ("an end that overflows", |c| c.stride[0] = i64::MAX, SIZE),
    (
        "k of 0 needs no alpha, a, b",
        |c| {
            (c.sizes[2], c.alpha, c.at[0], c.at[1]) = (0, null(), null_mut(), null_mut());
        },
        Runs,
    ),
    ("but beta", |c| (c.sizes[2], c.beta) = (0, null()), POINTER),
    (
        "a batch down from its second matrix",
        |c| {
            (c.at[0], c.stride[0]) = (c.at[0].wrapping_byte_add(8 * c.size), -8);
        },
        Runs,
    ),
];

fn shared<'a>() -> Vec<crate::Rule<'a, Product, rocblas_status>> {
    SHARED.iter().map(|(rule, change, then)| (*rule, change as &dyn Fn(&mut Product), *then)).collect()
}

#[test]
fn gemm_ex() {
    let (t, handle) = blas();
    let good = Product::new(handle, 4, single(2), single(2));
    // Enough for every type.
    let plenty = [memory(1000), memory(1000), memory(1000), memory(1000)];
    let run = |c: &mut Product| c.ex(&t);
    check("gemm_ex", good, run, &shared());
    check(
        "gemm_ex",
        good,
        run,
        &[
            ("columns of c that overlap", &|c| c.ld[2] = 3, SIZE),
            ("columns of d that overlap", &|c| c.ld[3] = 3, SIZE),
            ("no c", &|c| c.at[2] = null_mut(), POINTER),
            ("memory of the host for c", &|c| c.at[2] = dangling(), POINTER),
            ("a longer c", &|c| c.stride[2] = 13, POINTER),
            ("a wider c", &|c| c.ld[2] = 5, POINTER),
            ("a wider d", &|c| c.ld[3] = 5, POINTER),
            ("in place", &|c| c.at[2] = c.at[3], Runs),
            ("in place, other columns", &|c| (c.at[2], c.ld[2]) = (c.at[3], 5), SIZE),
            ("in place, another stride", &|c| (c.at[2], c.stride[2]) = (c.at[3], 13), SIZE),
            (
                "in place, another stride of one matrix",
                &|c| (c.at[2], c.stride[2], c.batch) = (c.at[3], 13, 1),
                Runs,
            ),
            ("an unknown algorithm", &|c| c.algorithm = rocblas_gemm_algo(2), VALUE),
            (
                "the algorithm comes first",
                &|c| (c.algorithm, c.ops[0]) = (rocblas_gemm_algo(2), rocblas_operation(0)),
                VALUE,
            ),
            ("another type of b", &|c| c.types[1] = F16, MISSING),
            ("another type of c", &|c| c.types[2] = F16, MISSING),
            ("another type of d", &|c| c.types[3] = F16, MISSING),
            ("types come before pointers", &|c| (c.types[1], c.at[3]) = (F16, null_mut()), MISSING),
            ("sizes come before types", &|c| (c.types[1], c.sizes[0]) = (F16, 0), Nothing),
        ],
    );
    for input in [BF16, F16, F32, F64, I8, I32] {
        for output in [BF16, F16, F32, F64, I8, I32] {
            for sums in [BF16, F16, F32, F64, I8, I32] {
                let expected = match (input, output, sums) {
                    (F32, F32, F32) => Some(Types::F32),
                    (F64, F64, F64) => Some(Types::F64),
                    (F16, F16, F32) => Some(Types::F16),
                    (F16, F16, F16) => Some(Types::F16InF16),
                    (F16, F32, F32) => Some(Types::F16ToF32),
                    (BF16, BF16, F32) => Some(Types::Bf16),
                    (BF16, F32, F32) => Some(Types::Bf16ToF32),
                    (I8, I32, I32) => Some(Types::I8),
                    _ => None,
                };
                looked();
                let two = scalar(sums, 2);
                let mut call = Product {
                    types: [input, input, output, output, sums],
                    at: plenty,
                    alpha: two,
                    beta: two,
                    ..good
                };
                let status = call.ex(&t);
                let names = (input, output, sums);
                match expected {
                    Some(types) => {
                        assert_eq!(
                            (status, looked()),
                            (rocblas_status_success, vec!["gemm_ex"]),
                            "{names:?}"
                        );
                        assert_eq!(READ.get().2, Some(types));
                    }
                    None => {
                        assert_eq!((status, looked().len()), (rocblas_status_not_implemented, 0), "{names:?}")
                    }
                }
            }
        }
    }
}

/// The bytes of elements, by memory of just as many.
#[test]
fn sizes_of_types() {
    let (t, handle) = blas();
    for (input, output, sums, [wide, narrow]) in [
        (F64, F64, F64, [8, 8]),
        (F32, F32, F32, [4, 4]),
        (F16, F16, F32, [2, 2]),
        (F16, F16, F16, [2, 2]),
        (BF16, BF16, F32, [2, 2]),
        (F16, F32, F32, [2, 4]),
        (BF16, F32, F32, [2, 4]),
        (I8, I32, I32, [1, 4]),
    ] {
        let types = [input, input, output, output, sums];
        let alpha = scalar(sums, 2);
        let sized = |less: [usize; 2]| {
            let mut call = Product { types, ..Product::new(handle, 8, alpha, alpha) };
            call.at = [16 * wide - less[0], 12 * wide, 24 * narrow, 24 * narrow - less[1]].map(memory);
            call.ex(&t)
        };
        assert_eq!(sized([0, 0]), rocblas_status_success, "{types:?}");
        assert_eq!(sized([1, 0]), rocblas_status_invalid_pointer, "{types:?}");
        assert_eq!(sized([0, 1]), rocblas_status_invalid_pointer, "{types:?}");
    }
}

/// With alpha 0, `a` and `b` are not read; with beta 0, `c` is not.
#[test]
fn scalars_that_leave_operands_unread() {
    let (t, handle) = blas();
    let plenty = [memory(1000), memory(1000), memory(1000), memory(1000)];
    let good = Product { at: plenty, ..Product::new(handle, 4, single(2), single(2)) };
    let all = [[F32; 5], [F64; 5], [F16; 5], [F16, F16, F16, F16, F32], [I8, I8, I32, I32, I32]];
    for types in all {
        let scalar = |value| scalar(types[4], value);
        let rules: &[(usize, usize, bool, [bool; 2])] = &[
            (2, 2, false, [true, true]),
            (1, 1, false, [true, true]),
            (0, 2, false, [false, true]),
            (2, 0, false, [true, false]),
            (0, 0, true, [false, false]),
            (0, 1, false, [false, true]),
            (1, 1, true, [true, true]),
        ];
        for &(alpha, beta, in_place, reads) in rules {
            let mut call = Product { types, alpha: scalar(alpha), beta: scalar(beta), ..good };
            if in_place {
                call.at[2] = call.at[3];
            }
            looked();
            let what = format!("{types:?}: {alpha} ab + {beta} c");
            assert_eq!((call.ex(&t), looked().len()), (rocblas_status_success, 1), "{what}");
            assert_eq!((READ.get().0, READ.get().1), (reads[0], reads[1]), "{what}");
            // What is not read may be null.
            for (operand, read) in [(0, reads[0]), (1, reads[0]), (2, reads[1])] {
                let mut other = call;
                other.at[operand] = null_mut();
                let expected = if read { rocblas_status_invalid_pointer } else { rocblas_status_success };
                assert_eq!(other.ex(&t), expected, "{what} without operand {operand}");
            }
        }
        // 0 ab + 1 c in place changes nothing, but the result must be there.
        let mut call = Product { types, alpha: scalar(0), beta: scalar(1), ..good };
        call.at = [null_mut(), null_mut(), plenty[3], plenty[3]];
        looked();
        assert_eq!((call.ex(&t), looked().len()), (rocblas_status_success, 0));
        call.at = [null_mut(); 4];
        assert_eq!(call.ex(&t), rocblas_status_invalid_pointer);
    }
    // -0 is 0.
    let mut call = Product { types: [F16; 5], alpha: scalar(F16, 3), beta: scalar(F16, 2), ..good };
    assert_eq!((call.ex(&t), READ.get().0), (rocblas_status_success, false));
    // Scalars on the device are not read.
    SCALARS_ON_HOST.set(false);
    let mut call = Product { alpha: dangling(), beta: dangling(), ..good };
    assert_eq!((call.ex(&t), READ.get().0, READ.get().1), (rocblas_status_success, true, true));
    call.at[0] = null_mut();
    assert_eq!(call.ex(&t), rocblas_status_invalid_pointer);
    SCALARS_ON_HOST.set(true);
}

#[test]
fn gemm() {
    let (t, handle) = blas();
    let good = Product::new(handle, 8, double(2).cast(), double(2).cast());
    let run = |c: &mut Product| c.double(&t);
    check("dgemm_strided_batched", good, run, &shared());
    check(
        "dgemm_strided_batched",
        good,
        run,
        &[
            ("columns of c that overlap", &|c| c.ld[3] = 3, SIZE),
            (
                "no result where c is not read",
                &|c| (c.beta, c.at[3]) = (double(0).cast(), null_mut()),
                POINTER,
            ),
            ("a wider c", &|c| c.ld[3] = 5, POINTER),
            (
                "alpha of 0 needs no a, b",
                &|c| (c.alpha, c.at[0], c.at[1]) = (double(0).cast(), null_mut(), null_mut()),
                Runs,
            ),
            ("0 ab + 1 c", &|c| (c.alpha, c.beta) = (double(0).cast(), double(1).cast()), Nothing),
            (
                "0 ab + 1 c without c",
                &|c| (c.alpha, c.beta, c.at) = (double(0).cast(), double(1).cast(), [null_mut(); 4]),
                Nothing,
            ),
            ("0 ab + 0 c", &|c| (c.alpha, c.beta) = (double(0).cast(), double(0).cast()), Runs),
        ],
    );
    // The functions of f32 and of one matrix are the same code.
    let one = |c: &mut Product| unsafe {
        let ([m, n, k], [a, b, _, out]) = (c.sizes, c.at);
        (t.rocblas_sgemm)(
            c.handle,
            c.ops[0],
            c.ops[1],
            m,
            n,
            k,
            c.alpha.cast(),
            a.cast(),
            c.ld[0],
            b.cast(),
            c.ld[1],
            c.beta.cast(),
            out.cast(),
            c.ld[3],
        )
    };
    let mut good = Product::new(handle, 4, single(2), single(2));
    good.at = [8, 6, 12, 12].map(|elements| memory(4 * elements));
    check(
        "sgemm",
        good,
        one,
        &[
            ("no handle", &|c| c.handle = null_mut(), HANDLE),
            ("columns of a that overlap", &|c| c.ld[0] = 3, SIZE),
            ("a wider a", &|c| c.ld[0] = 5, POINTER),
        ],
    );
}
