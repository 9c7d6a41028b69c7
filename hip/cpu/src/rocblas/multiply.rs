//! One matrix product on the `gemm` crate, cut into tasks.

use crate::numeric::shared::Shared;
use crate::runtime::{parallel, threads};

/// A column-major operand: elements from one row to the next and from one column to the next.
#[derive(Clone, Copy)]
pub(super) struct Operand<T> {
    pub(super) at: *const T,
    pub(super) row: isize,
    pub(super) column: isize,
}

/// `c = beta * c + alpha * a * b`, sizes in elements.
#[derive(Clone, Copy)]
pub(super) struct Product<T> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Operand<T>,
    pub(super) b: Operand<T>,
    pub(super) c: *mut T,
    pub(super) c_row: isize,
    pub(super) c_column: isize,
    pub(super) alpha: T,
    pub(super) beta: T,
}

/// The types of [`Product`].
pub(super) trait Scalar:
    Copy + PartialEq + Send + Sync + core::ops::Mul<Output = Self> + 'static
{
    const ZERO: Self;
    const ONE: Self;
}
impl Scalar for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}
impl Scalar for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

/// Multiply-adds that one core does in some 40 us: below, waking another (5 us, and 60 where the host is busy) is lost.
const ALONE: usize = 128 * 128 * 128;

/// Columns or rows of a task's edge: a multiple of every micro-kernel of the `gemm` crate.
const EDGE: usize = 48;

/// Runs `batch` products; `of(i)` is the `i`-th.
///
/// # Safety
/// Each product's operands are valid for its sizes, no result overlaps another or an operand.
pub(super) unsafe fn multiply<T: Scalar>(batch: usize, of: impl Fn(usize) -> Product<T> + Sync) {
    let Some(shape) = (batch > 0).then(|| of(0)) else { return };
    let work = shape.m * shape.n * shape.k.max(1);
    let cores = threads();
    // Enough tasks for the cores, cut along the longer side of the result.
    let parts = if batch >= 2 * cores || work < ALONE { 1 } else { cores.div_ceil(batch) };
    let along_n = shape.n >= shape.m;
    let side = if along_n { shape.n } else { shape.m };
    let parts = parts.min(side.div_ceil(EDGE)).max(1);
    let run = |task: usize| {
        let product = of(task / parts);
        let edge = |part: usize| {
            if part == parts { side } else { (side * part / parts).next_multiple_of(EDGE).min(side) }
        };
        let (from, to) = (edge(task % parts), edge(task % parts + 1));
        // SAFETY: the caller vouches for the product; tasks write disjoint columns or rows of it.
        unsafe { one(cut(product, along_n, from, to)) };
    };
    if batch * parts == 1 || work.saturating_mul(batch) < ALONE {
        (0..batch * parts).for_each(run);
    } else {
        parallel(batch * parts, run);
    }
}

/// Columns or rows `from..to` of a product.
unsafe fn cut<T: Scalar>(product: Product<T>, along_n: bool, from: usize, to: usize) -> Product<T> {
    let mut part = product;
    let first = from as isize;
    if along_n {
        part.n = to - from;
        part.b.at = part.b.at.wrapping_offset(first * part.b.column);
        part.c = part.c.wrapping_offset(first * part.c_column);
    } else {
        part.m = to - from;
        part.a.at = part.a.at.wrapping_offset(first * part.a.row);
        part.c = part.c.wrapping_offset(first * part.c_row);
    }
    part
}

/// One product on this thread.
unsafe fn one<T: Scalar>(p: Product<T>) {
    if p.m == 0 || p.n == 0 {
        return;
    }
    // A zero alpha means that a and b are not read, a zero beta that c is not.
    if p.k == 0 || p.alpha == T::ZERO {
        let c = Shared(p.c);
        for column in 0..p.n as isize {
            for row in 0..p.m as isize {
                // SAFETY: inside the result, which the caller vouches for.
                unsafe {
                    let c = c.get().offset(row * p.c_row + column * p.c_column);
                    *c = if p.beta == T::ZERO { T::ZERO } else { *c * p.beta };
                }
            }
        }
        return;
    }
    // SAFETY: the caller vouches for the operands.
    unsafe {
        gemm::gemm(
            p.m,
            p.n,
            p.k,
            p.c,
            p.c_column,
            p.c_row,
            p.beta != T::ZERO,
            p.a.at,
            p.a.column,
            p.a.row,
            p.b.at,
            p.b.column,
            p.b.row,
            p.beta,
            p.alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
