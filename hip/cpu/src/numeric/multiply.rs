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

/// A part begins at a multiple of this many rows, or of this many columns, so that it has whole
/// micro-kernels of the `gemm` crate (16 rows and 6 columns for f32 with AVX2).
const EDGES: (usize, usize) = (16, 6);

/// The fewest rows or columns of a part.
const LEAST: usize = 48;

/// A product's division into parts along the longer side of its result.
#[derive(Clone, Copy)]
struct Parts {
    count: usize,
    along_n: bool,
    side: usize,
    edge: usize,
}

impl Parts {
    /// `wanted` parts of almost equal length, or fewer if they would be shorter than [`LEAST`].
    fn new<T>(product: &Product<T>, wanted: usize) -> Parts {
        let along_n = product.n >= product.m;
        let (side, edge) = if along_n { (product.n, EDGES.1) } else { (product.m, EDGES.0) };
        Parts { count: wanted.clamp(1, (side / LEAST).max(1)), along_n, side, edge }
    }

    /// The parts of each of `batch` products. Each part sums its elements in the order of the whole
    /// product, so the results' bits depend neither on `batch` nor on `cores`. There are enough
    /// parts for the cores, and up to `tasks` in total if they cost little.
    ///
    /// Version 0.19 of the `gemm` crate sums an element's terms one after the other, in runs whose
    /// length it chooses by the number of terms. Only two kinds of product are different. Up to 64
    /// rows and columns have runs of 512 terms. Up to 256 elements may be summed in vectors along
    /// the terms.
    fn in_order<T>(product: &Product<T>, batch: usize, tasks: usize, cores: usize) -> Parts {
        let whole = Parts::new(product, 1);
        let other = product.m.min(product.n);
        if cores == 1 || work(product).saturating_mul(batch) < ALONE || other * LEAST <= 256 {
            return whole;
        }
        // Parts along n pack a again, which takes 2.5 % of the time of a part with 384 columns (10 %
        // of one with 96). Parts along m pack b again, unless the crate reads b in place because
        // its columns are contiguous.
        let packs_again = whole.along_n || product.b.row != 1;
        let cheap = whole.side / if packs_again { 384 } else { 96 };
        let least = if other <= 64 && product.k > 512 { 80 } else { LEAST };
        let most = (whole.side / least).max(1);
        // Handing out a task takes about 2 us, so it pays for tasks of at least 80 us.
        let tasks = tasks.min(work(product).saturating_mul(batch) / (2 * ALONE));
        let enough = cheap.min(tasks / batch).max(cores.div_ceil(batch)).min(most);
        // All cores get the same number of tasks, unless one more makes no difference.
        let even = |&count: &usize| {
            let tasks = batch * count;
            tasks >= 16 * cores || tasks.is_multiple_of(cores)
        };
        Parts::new(product, (enough..=most).find(even).unwrap_or(enough))
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
    // SAFETY: the caller vouches for the products.
    unsafe { in_parts(batch, Parts::new(&shape, wanted), of) };
}

/// The number of tasks into which a product is cut if they cost little: several for each of a few
/// cores, so that a core that joins late leaves its tasks to the others.
const TASKS: usize = 32;

/// As [`multiply`], but each element is summed in an order that only `m`, `n` and `k` decide.
/// Neither the number of cores nor the batch changes a product's bits.
///
/// # Safety
/// As [`multiply`].
pub(crate) unsafe fn multiply_in_order<T: Scalar>(batch: usize, of: impl Fn(usize) -> Product<T> + Sync) {
    let Some(shape) = (batch > 0).then(|| of(0)) else { return };
    // SAFETY: the caller vouches for the products.
    unsafe { in_parts(batch, Parts::in_order(&shape, batch, TASKS, threads()), of) };
}

/// The most runs that a sum's inner dimension is cut into: several for each of a few cores.
const MOST_RUNS: usize = 16;

/// The number of runs into which [`multiply_sum`] cuts the `inner` terms of each element. Runs pay
/// off if the result is so small that writing and adding it for each run costs less than other
/// ways. Parts along `n` pack `a` again, and fewer than 64 rows make few parts along `m`. Longer
/// parts along `m` pack nothing again, but each core reads all of `b`: two to four long runs
/// replace them.
fn runs(m: usize, n: usize, inner: usize) -> usize {
    let (least, most) = if m > n && m >= 64 { (2, (inner / 1024).min(4)) } else { (4, MOST_RUNS) };
    let runs = (inner / (2 * m.max(n).max(1))).min(most);
    if runs < least || m * n * inner < ALONE { 1 } else { 1 << runs.ilog2() }
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
    let run = Product { k: inner.div_ceil(runs), ..shape };
    let parts = Parts::in_order(&run, runs, if runs > 1 { runs } else { TASKS }, threads());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Operands of a product.
    #[derive(Clone, Copy, PartialEq)]
    enum Layout {
        /// Columns of `a` and of `b` are contiguous, as in a forward convolution.
        Forward,
        /// Columns of `a` and rows of `b` are contiguous, as in the gradient of the input.
        Data,
        /// Rows of `a` and columns of `b` are contiguous, as in the gradient of the weights.
        Weights,
    }

    fn product(layout: Layout, [m, n, k]: [usize; 3], a: &[f32], b: &[f32], c: &mut [f32]) -> Product<f32> {
        assert_eq!([a.len(), b.len(), c.len()], [m * k, k * n, m * n]);
        let (by_columns, by_rows) =
            (|rows: usize| (1, rows as isize), |columns: usize| (columns as isize, 1));
        let (a_row, a_column) = if layout == Layout::Weights { by_rows(k) } else { by_columns(m) };
        let (b_row, b_column) = if layout == Layout::Data { by_rows(n) } else { by_columns(k) };
        Product {
            m,
            n,
            k,
            a: Operand { at: a.as_ptr(), row: a_row, column: a_column },
            b: Operand { at: b.as_ptr(), row: b_row, column: b_column },
            c: c.as_mut_ptr(),
            c_row: 1,
            c_column: m as isize,
            alpha: 1.0,
            beta: 0.0,
        }
    }

    #[test]
    fn parts_sum_in_the_order_of_the_whole() {
        let mut longest = 0;
        for (layout, [m, n, k]) in [
            // Parts of up to 64 rows and columns would cut 600 terms at 512.
            (Layout::Forward, [64, 192, 600]),
            (Layout::Data, [64, 192, 600]),
            (Layout::Data, [250, 50, 600]),
            (Layout::Weights, [192, 64, 600]),
            // Parts of up to 256 elements would be summed in vectors.
            (Layout::Weights, [1000, 5, 500]),
            (Layout::Forward, [300, 40, 512]),
            (Layout::Forward, [49, 300, 200]),
            (Layout::Data, [196, 1000, 90]),
        ] {
            let drawn = |len, by: f32| (0..len).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
            let (a, b) = (drawn(m * k, 0.37), drawn(k * n, 0.61));
            let mut whole = vec![f32::NAN; m * n];
            // SAFETY: the operands have the product's sizes.
            unsafe { one(product(layout, [m, n, k], &a, &b, &mut whole)) };
            for (batch, cores) in (1..=3).flat_map(|batch| (1..=16).map(move |cores| (batch, cores))) {
                let mut found = vec![f32::NAN; m * n];
                let product = product(layout, [m, n, k], &a, &b, &mut found);
                let parts = Parts::in_order(&product, batch, TASKS, cores);
                longest = longest.max(parts.count);
                // SAFETY: as above.
                (0..parts.count).for_each(|part| unsafe { one(parts.of(product, part)) });
                let same = found.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{m} x {n} x {k}, batch {batch}, {cores} cores: {} parts", parts.count);
            }
        }
        assert!(longest > 8, "at most {longest} parts");
    }

    /// The time of `batch` products in parts on two cores, each of which takes the next part when
    /// it is done: one for each multiply-add, 10 for each packed element of `a`, 5 for each packed
    /// element of `b`.
    fn time(parts: Parts, product: Product<f32>, batch: usize) -> usize {
        let mut cores = [0; 2];
        for task in 0..batch * parts.count {
            let Product { m, n, k, b, .. } = parts.of(product, task % parts.count);
            let packed = 10 * m + if b.row == 1 { 0 } else { 5 * n };
            let next = if cores[0] <= cores[1] { 0 } else { 1 };
            cores[next] += (m * n + packed) * k;
        }
        cores[0].max(cores[1])
    }

    /// For each 1x1 convolution that `cpu_convolutions` times, with two images: its parts cost two
    /// cores less than 3 % more than one whole product each.
    #[test]
    fn parts_cost_two_cores_little() {
        for [c, k, pixels] in [
            [64, 64, 3136],
            [64, 256, 3136],
            [256, 64, 3136],
            [512, 128, 784],
            [256, 1024, 196],
            [512, 2048, 49],
            [2048, 512, 49],
            [64, 128, 784],
            [48, 24, 10816],
            [32, 16, 12544],
            [16, 96, 12544],
            [192, 32, 784],
            [576, 96, 196],
            [320, 1280, 49],
        ] {
            let product = |layout, [m, n, k]: [usize; 3]| {
                let [a, b, mut c] = [m * k, k * n, m * n].map(|len| vec![0.0; len]);
                product(layout, [m, n, k], &a, &b, &mut c)
            };
            let check = |name, parts: Parts, part, batch, whole| {
                let (found, limit) = (time(parts, part, batch), time(Parts::new(&whole, 1), whole, 2));
                let ratio = found as f64 / limit as f64;
                assert!(ratio < 1.03, "{c} to {k} on {pixels}, {name}: {ratio}");
            };
            for (name, layout, sizes) in
                [("forward", Layout::Forward, [pixels, k, c]), ("data", Layout::Data, [pixels, c, k])]
            {
                let product = product(layout, sizes);
                check(name, Parts::in_order(&product, 2, TASKS, 2), product, 2, product);
            }
            let runs = runs(c, k, 2 * pixels);
            let run = product(Layout::Weights, [c, k, 2 * pixels / runs]);
            let tasks = if runs > 1 { runs } else { TASKS };
            let image = product(Layout::Weights, [c, k, pixels]);
            check("weights", Parts::in_order(&run, runs, tasks, 2), run, runs, image);
        }
    }
}
