//! `rocblas_sgemm`, `rocblas_dgemm` and their strided batches.

use crate::numeric::multiply::{Operand, Product, Scalar, multiply};
use crate::numeric::shared::Shared;
use hip_provider::rocblas::{Gemm, Sizes};

/// # Safety
/// The call was checked for scalars and buffers of `T`, and `c` is `d`.
pub(super) unsafe fn run<T: Scalar>(call: &Gemm) {
    let sizes = call.sizes;
    // SAFETY: the caller's scalars.
    let (alpha, beta) =
        unsafe { (if call.reads { *call.alpha.cast::<T>() } else { T::ZERO }, *call.beta.cast::<T>()) };
    let (a_row, a_column) = Sizes::strides(sizes.a, sizes.lda);
    let (b_row, b_column) = Sizes::strides(sizes.b, sizes.ldb);
    let shared = (
        Shared(call.a.cast_mut().cast::<T>()),
        Shared(call.b.cast_mut().cast::<T>()),
        Shared(call.d.cast::<T>()),
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
}
