//! Matrix products on the `gemm` crate, cut into tasks.

use crate::numeric::shared::Shared;
use crate::runtime::{parallel, threads};

/// A matrix and its strides: elements from one row to the next, and from one column to the next.
#[derive(Clone, Copy)]
pub(crate) struct Operand<T> {
    pub(crate) at: *const T,
    pub(crate) row: isize,
    pub(crate) column: isize,
}

/// `c = beta * c + alpha * a * b`, sizes in elements.
#[derive(Clone, Copy)]
pub(crate) struct Product<T> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Operand<T>,
    pub(crate) b: Operand<T>,
    pub(crate) c: *mut T,
    pub(crate) c_row: isize,
    pub(crate) c_column: isize,
    pub(crate) alpha: T,
    pub(crate) beta: T,
}

/// The types of [`Product`].
pub(crate) trait Scalar:
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

/// Multiply-adds that one core does in some 40 us. For fewer, waking another core (5 us, 60 on a
/// busy host) costs more than it saves.
const ALONE: usize = 128 * 128 * 128;

/// A task begins at a multiple of so many columns or rows: whole micro-kernels of the `gemm` crate.
const EDGE: usize = 48;

/// The same for parts that are shorter. AVX2 micro-kernels (for f32 16 rows, 6 columns) leave a
/// rest then.
const NARROW_EDGE: usize = 8;

/// How a product is cut into parts along the longer side of its result.
#[derive(Clone, Copy)]
struct Parts {
    count: usize,
    along_n: bool,
    side: usize,
    edge: usize,
}

impl Parts {
    /// At most `wanted` parts. If there are several, each but the last has at least an edge's
    /// columns or rows, the last at least half of that.
    fn new<T>(product: &Product<T>, wanted: usize) -> Parts {
        let along_n = product.n >= product.m;
        let side = if along_n { product.n } else { product.m };
        let edge = if side < wanted * EDGE { NARROW_EDGE } else { EDGE };
        Parts { count: wanted.min(side / edge).max(1), along_n, side, edge }
    }

    /// Enough parts for a few cores. Each packs the shorter operand again: of 96 columns that is a
    /// tenth of its time, and shorter ones are for products that make fewer than four such parts.
    fn by_shape<T>(product: &Product<T>) -> Parts {
        let side = product.m.max(product.n);
        Parts::new(product, (side / 96).max(4.min(side / 16)).clamp(1, 16))
    }

    /// Where a part begins: at the nearest multiple of the edge.
    fn begin(self, part: usize) -> usize {
        if part == self.count {
            return self.side;
        }
        (self.side * part / self.count + self.edge / 2) / self.edge * self.edge
    }

    /// A part's columns or rows of a product.
    fn of<T: Scalar>(self, product: Product<T>, part: usize) -> Product<T> {
        cut(product, self.along_n, self.begin(part), self.begin(part + 1))
    }
}

/// Multiply-adds of a product.
fn work<T>(product: &Product<T>) -> usize {
    product.m * product.n * product.k.max(1)
}

/// Runs `batch` products in parts; `of(i)` is the `i`-th.
///
/// # Safety
/// As [`multiply`].
unsafe fn in_parts<T: Scalar>(batch: usize, parts: Parts, of: impl Fn(usize) -> Product<T> + Sync) {
    // SAFETY: the caller vouches for the products; tasks write disjoint columns or rows of them.
    let run = |task: usize| unsafe { one(parts.of(of(task / parts.count), task % parts.count)) };
    let tasks = batch * parts.count;
    if tasks == 1 || work(&of(0)).saturating_mul(batch) < ALONE {
        (0..tasks).for_each(run);
    } else {
        parallel(tasks, run);
    }
}

/// Runs `batch` products of one shape; `of(i)` is the `i`-th. The `gemm` crate adds up in an order
/// that depends on the part's shape, and the number of cores decides the parts.
///
/// # Safety
/// Each product's operands are valid for its sizes, and no result overlaps another or an operand.
pub(crate) unsafe fn multiply<T: Scalar>(batch: usize, of: impl Fn(usize) -> Product<T> + Sync) {
    let Some(shape) = (batch > 0).then(|| of(0)) else { return };
    let cores = threads();
    // Enough tasks for the cores.
    let wanted = if batch >= 2 * cores || work(&shape) < ALONE { 1 } else { cores.div_ceil(batch) };
    let parts = Parts::new(&shape, wanted.min(shape.m.max(shape.n) / EDGE).max(1));
    // SAFETY: the caller vouches for the products.
    unsafe { in_parts(batch, parts, of) };
}

/// [`multiply`] in parts that the shape alone decides: the same bits for any number of cores.
///
/// # Safety
/// As [`multiply`].
pub(crate) unsafe fn multiply_by_shape<T: Scalar>(batch: usize, of: impl Fn(usize) -> Product<T> + Sync) {
    let Some(shape) = (batch > 0).then(|| of(0)) else { return };
    // SAFETY: the caller vouches for the products.
    unsafe { in_parts(batch, Parts::by_shape(&shape), of) };
}

/// Adds up `terms` products of one shape in one result, in order, the same bits for any number of
/// cores. `of(i)` is the `i`-th; only the first one's `beta` counts.
///
/// # Safety
/// Each product's operands are valid for its sizes, and the result overlaps none of them.
pub(crate) unsafe fn multiply_sum<T: Scalar>(terms: usize, of: impl Fn(usize) -> Product<T> + Sync) {
    let Some(shape) = (terms > 0).then(|| of(0)) else { return };
    let parts = Parts::by_shape(&shape);
    let run = |part: usize| {
        for term in 0..terms {
            let mut product = of(term);
            if term > 0 {
                product.beta = T::ONE;
            }
            // SAFETY: the caller vouches for the products; tasks write disjoint columns or rows of
            // the result.
            unsafe { one(parts.of(product, part)) };
        }
    };
    if work(&shape).saturating_mul(terms) < ALONE {
        (0..parts.count).for_each(run);
    } else {
        parallel(parts.count, run);
    }
}

/// Columns or rows `from..to` of a product.
fn cut<T: Scalar>(product: Product<T>, along_n: bool, from: usize, to: usize) -> Product<T> {
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
