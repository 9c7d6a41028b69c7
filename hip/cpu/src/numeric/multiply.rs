//! Matrix products by the `gemm` crate, cut into tasks.

use crate::numeric::shared::Shared;
use crate::runtime::{parallel, parallel_ranges, threads};

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

/// The number of multiply-adds that one core does in about 40 us. For fewer, waking another core (5
/// us, or 60 us on a busy host) costs more than it saves.
const ALONE: usize = 128 * 128 * 128;

/// A task begins at a multiple of this many columns or rows, so that it has whole micro-kernels of
/// the `gemm` crate.
const EDGE: usize = 48;

/// As [`EDGE`], but for shorter parts. AVX2 micro-kernels (16 rows and 6 columns for f32) then
/// leave a remainder.
const NARROW_EDGE: usize = 8;

/// A product's division into parts along the longer side of its result.
#[derive(Clone, Copy)]
struct Parts {
    count: usize,
    along_n: bool,
    side: usize,
    edge: usize,
}

impl Parts {
    /// At most `wanted` parts. If there are several, the last has at least half an edge's columns
    /// or rows, and every other part at least an edge's.
    fn new<T>(product: &Product<T>, wanted: usize) -> Parts {
        let along_n = product.n >= product.m;
        let side = if along_n { product.n } else { product.m };
        let edge = if side < wanted * EDGE { NARROW_EDGE } else { EDGE };
        Parts { count: wanted.min(side / edge).max(1), along_n, side, edge }
    }

    /// Enough parts for a few cores. Each part packs the operand of the shorter side again, which
    /// takes a tenth of the time of a part with 96 columns. A product with fewer than four such
    /// parts is cut into shorter ones.
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

    /// The product of one part.
    fn of<T: Scalar>(self, product: Product<T>, part: usize) -> Product<T> {
        cut(product, self.along_n, self.begin(part), self.begin(part + 1))
    }
}

/// Multiply-adds of a product.
fn work<T>(product: &Product<T>) -> usize {
    product.m * product.n * product.k.max(1)
}

/// Runs `batch` products in parts. `of(i)` is product `i`.
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

/// Runs `batch` products of one shape. `of(i)` is product `i`. The results' bits depend on the
/// number of cores: it decides the parts, and the `gemm` crate's order of summation depends on a
/// part's shape.
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

/// As [`multiply`], but the shape alone decides the parts, so any number of cores gives the same
/// bits.
///
/// # Safety
/// As [`multiply`].
pub(crate) unsafe fn multiply_by_shape<T: Scalar>(batch: usize, of: impl Fn(usize) -> Product<T> + Sync) {
    let Some(shape) = (batch > 0).then(|| of(0)) else { return };
    // SAFETY: the caller vouches for the products.
    unsafe { in_parts(batch, Parts::by_shape(&shape), of) };
}

/// The most runs that a sum's inner dimension is cut into: several for each of a few cores.
const MOST_RUNS: usize = 16;

/// The number of runs into which [`multiply_sum`] cuts the `inner` terms of each element. Parts
/// along `n` pack `a` again. Parts along `m` pack nothing again, but fewer than 64 rows make fewer
/// than four parts. In both cases runs pay off if the result is so small that writing and adding it
/// for each run costs less than packing does.
fn runs(m: usize, n: usize, inner: usize) -> usize {
    let runs = (inner / (2 * m.max(n).max(1))).min(MOST_RUNS);
    let parts_serve = m > n && m >= 64;
    if parts_serve || runs < 4 || m * n * inner < ALONE { 1 } else { 1 << runs.ilog2() }
}

/// The floats of workspace of [`multiply_sum`] for products with `inner` terms in total.
pub(crate) fn sum_len(m: usize, n: usize, inner: usize) -> usize {
    (runs(m, n, inner) - 1) * m * n
}

/// Adds up `terms` products of one shape in one result of `m` by `n` contiguous elements. Only the
/// shape decides the order of an element's sum, so any number of cores gives the same bits. `of(i)`
/// is product `i`; only `beta` of the first counts.
///
/// # Safety
/// Each product's operands are valid for its sizes, and the result overlaps none of them. `room`
/// has [`sum_len`] floats.
pub(crate) unsafe fn multiply_sum(
    terms: usize,
    room: Shared<f32>,
    of: impl Fn(usize) -> Product<f32> + Sync,
) {
    let Some(shape) = (terms > 0).then(|| of(0)) else { return };
    let (each, len, inner) = (shape.k, shape.m * shape.n, shape.k * terms);
    let runs = runs(shape.m, shape.n, inner);
    let parts = if runs > 1 { Parts::new(&shape, 1) } else { Parts::by_shape(&shape) };
    let result = Shared(shape.c);
    // The first run sums in the result, each other run in a piece of `room`.
    let sums = |run: usize| match run.checked_sub(1) {
        None => result.get(),
        Some(piece) => room.get().wrapping_add(piece * len),
    };
    let task = |task: usize| {
        let (run, part) = (task / parts.count, task % parts.count);
        let (from, to) = (inner * run / runs, inner * (run + 1) / runs);
        for term in from / each.max(1)..to.div_ceil(each.max(1)).max(1) {
            let mut product = of(term);
            let skip = from.saturating_sub(term * each);
            product.k = (to - term * each).min(each) - skip;
            product.a.at = product.a.at.wrapping_offset(skip as isize * product.a.column);
            product.b.at = product.b.at.wrapping_offset(skip as isize * product.b.row);
            product.c = sums(run);
            if term * each > from {
                product.beta = 1.0;
            } else if run > 0 {
                product.beta = 0.0;
            }
            // SAFETY: the caller vouches for the products and the room; tasks write different runs'
            // sums, or disjoint columns or rows of the result.
            unsafe { one(parts.of(product, part)) };
        }
    };
    if len * inner < ALONE {
        return (0..parts.count * runs).for_each(task);
    }
    parallel(parts.count * runs, task);
    if runs == 1 {
        return;
    }
    parallel_ranges(len, 1 << 14, |range| {
        // SAFETY: the result and each run's sums have `len` floats; each task has its own range.
        unsafe {
            let to = core::slice::from_raw_parts_mut(result.get().add(range.start), range.len());
            for run in 1..runs {
                let from = core::slice::from_raw_parts(sums(run).add(range.start), range.len());
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
        }
    });
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
    // If alpha is 0, a and b are not read. If beta is 0, c is not read.
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
