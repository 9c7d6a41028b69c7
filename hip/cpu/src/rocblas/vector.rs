//! Products of a matrix and a vector (`gemv`) and sums of matrices (`geam`).

use crate::numeric::multiply::{Operand, Product, Scalar, multiply};
use crate::numeric::shared::Shared;
use crate::runtime::parallel;
use hip_provider::rocblas::{Geam, Gemv, Sizes};
use rocblas_sys::rocblas_operation_none;

/// Offset of a vector's first element. With a negative increment it has the highest address.
fn start(len: i32, increment: i32) -> isize {
    if increment < 0 { (1 - len as isize) * increment as isize } else { 0 }
}

/// # Safety
/// The call was checked.
pub(super) unsafe fn gemv<T: Scalar>(g: &Gemv<T>) {
    // SAFETY: the caller's scalars.
    let (alpha, beta) = unsafe { (*g.alpha, *g.beta) };
    let plain = g.trans == rocblas_operation_none;
    let (rows, columns) = if plain { (g.m, g.n) } else { (g.n, g.m) };
    let (row, column) = if plain { (1, g.lda as isize) } else { (g.lda as isize, 1) };
    let (a, x, y) = (
        Shared(g.a.cast_mut()),
        Shared(g.x.at.cast_mut().wrapping_offset(start(columns, g.x.increment))),
        Shared(g.y.at.wrapping_offset(start(rows, g.y.increment))),
    );
    let (incx, incy) = (g.x.increment as isize, g.y.increment as isize);
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
}

/// # Safety
/// The call was checked.
pub(super) unsafe fn geam<T: Scalar + core::ops::Add<Output = T>>(g: &Geam<T>) {
    // SAFETY: the caller's scalars.
    let [alpha, beta] = g.factors.map(|factor| unsafe { *factor });
    let ([left, right], [reads_a, reads_b]) = (g.operands, g.reads);
    let (a, b, c) = (Shared(left.at.cast_mut()), Shared(right.at.cast_mut()), Shared(g.c.at));
    let (a_step, b_step) = (Sizes::strides(g.trans[0], left.ld), Sizes::strides(g.trans[1], right.ld));
    let (a_batch, b_batch, c_batch) = (left.stride as isize, right.stride as isize, g.c.stride as isize);
    let (m, n, batch, ldc) = (g.m as isize, g.n as isize, g.batch as isize, g.c.ld as isize);
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
}
