//! Sums, affine maps and norms of rows of `f32`, with this machine's vectors.

use super::element::Single;
use super::simd::{Vector, by_level};

/// The most elements that are summed in `f32` lanes before the sums are added to an `f64`.
const SPAN: usize = 4096;

/// The sums of `x - shift` and of its square, over at most [`SPAN`] elements.
#[inline(always)]
unsafe fn span_sums<V: Vector>(x: &[f32], shift: f32) -> [f64; 2] {
    // SAFETY: the caller vouches for the level; `i` stays inside the row.
    unsafe {
        let (one, away) = (V::splat(1.0), V::splat(-shift));
        let (mut first, mut second) = ([V::zero(); 4], [V::zero(); 4]);
        let mut i = 0;
        while i + 4 * V::LANES <= x.len() {
            for v in 0..4 {
                let d = V::load(x.as_ptr().add(i + v * V::LANES)).mul_add(one, away);
                first[v] = first[v].add(d);
                second[v] = d.mul_add(d, second[v]);
            }
            i += 4 * V::LANES;
        }
        let mut sum = first[0].add(first[1]).add(first[2].add(first[3])).sum();
        let mut squares = second[0].add(second[1]).add(second[2].add(second[3])).sum();
        for &x in &x[i..] {
            let d = x - shift;
            sum += d;
            squares += d * d;
        }
        [f64::from(sum), f64::from(squares)]
    }
}

/// The sums of `x - shift` and of its square, over a whole row.
#[inline(always)]
unsafe fn sums<V: Vector>(x: &[f32], shift: f32) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for span in x.chunks(SPAN) {
        // SAFETY: the caller vouches for the level.
        let [first, second] = unsafe { span_sums::<V>(span, shift) };
        sums = [sums[0] + first, sums[1] + second];
    }
    sums
}

/// Mean and variance of a row, from the differences from its first element. That element is seldom
/// many standard deviations away from the mean. If it is, a second pass uses the differences from
/// the mean.
#[inline(always)]
unsafe fn mean_and_variance<V: Vector>(x: &[f32], share: f64) -> (f32, f64) {
    let mut shift = x[0];
    // SAFETY: the caller vouches for the level.
    let [sum, squares] = unsafe { sums::<V>(x, shift) };
    let (mut first, mut second) = (sum * share, squares * share);
    // If this holds, the subtraction below loses at most four bits. The kernels have the same bound
    // (`far_from_mean.h`).
    let exact = first * first <= 16.0 * (second - first * first);
    if !exact {
        shift = (f64::from(shift) + first) as f32;
        // SAFETY: as above.
        let [sum, squares] = unsafe { sums::<V>(x, shift) };
        (first, second) = (sum * share, squares * share);
    }
    ((f64::from(shift) + first) as f32, (second - first * first).max(0.0))
}

#[derive(Clone, Copy)]
struct Deviations<'a> {
    x: &'a [f32],
    shift: f32,
    sums: *mut [f64; 2],
}

#[inline(always)]
unsafe fn deviations_with<V: Vector>(job: Deviations<'_>) {
    // SAFETY: the caller vouches for the level and for the pointer.
    unsafe { *job.sums = sums::<V>(job.x, job.shift) }
}

by_level! {
    /// # Safety
    /// `sums` can be written.
    unsafe fn run_deviations(job: Deviations<'_>) = deviations_with
}

/// The sums of `x - shift` and of its square.
pub(crate) fn deviations(x: &[f32], shift: f32) -> [f64; 2] {
    let mut sums = [0.0; 2];
    // SAFETY: the job's pointer is that of `sums`.
    unsafe { run_deviations(Deviations { x, shift, sums: &mut sums }) };
    sums
}

#[derive(Clone, Copy)]
struct Moments<'a> {
    x: &'a [f32],
    found: *mut (f32, f64),
}

#[inline(always)]
unsafe fn moments_with<V: Vector>(job: Moments<'_>) {
    // SAFETY: the caller vouches for the level and for the pointer.
    unsafe { *job.found = mean_and_variance::<V>(job.x, 1.0 / job.x.len() as f64) }
}

by_level! {
    /// # Safety
    /// `found` can be written.
    unsafe fn run_moments(job: Moments<'_>) = moments_with
}

/// Mean and variance of a row that is not empty.
pub(crate) fn moments(x: &[f32]) -> (f32, f64) {
    let mut found = (0.0, 0.0);
    // SAFETY: the job's pointer is that of `found`.
    unsafe { run_moments(Moments { x, found: &mut found }) };
    found
}

/// The arguments of [`products`].
#[derive(Clone, Copy)]
struct Job<'a> {
    a: &'a [f32],
    b: &'a [f32],
    shift: f32,
    sums: *mut [f64; 2],
}

/// The total of four vectors, with the lanes added in `f64`.
#[inline(always)]
unsafe fn total<V: Vector>(sums: [V; 4]) -> f64 {
    let mut lanes = [0.0f32; 16];
    // SAFETY: the caller vouches for the level; the buffer has room for the widest vector.
    unsafe {
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).store(lanes.as_mut_ptr());
    }
    lanes[..V::LANES].iter().map(|&lane| f64::from(lane)).sum()
}

/// The sums of `a` and of `a * (b - shift)`, over at most [`SPAN`] elements.
#[inline(always)]
unsafe fn span_products<V: Vector>(a: &[f32], b: &[f32], shift: f32) -> [f64; 2] {
    let len = a.len().min(b.len());
    // SAFETY: the caller vouches for the level; `i` stays inside both rows.
    unsafe {
        let (one, away) = (V::splat(1.0), V::splat(-shift));
        let (mut first, mut second) = ([V::zero(); 4], [V::zero(); 4]);
        let mut i = 0;
        while i + 4 * V::LANES <= len {
            for v in 0..4 {
                let a = V::load(a.as_ptr().add(i + v * V::LANES));
                let b = V::load(b.as_ptr().add(i + v * V::LANES)).mul_add(one, away);
                first[v] = first[v].add(a);
                second[v] = a.mul_add(b, second[v]);
            }
            i += 4 * V::LANES;
        }
        let mut sums = [total(first), total(second)];
        for (&a, &b) in a[i..].iter().zip(&b[i..]) {
            sums[0] += f64::from(a);
            sums[1] += f64::from(a) * f64::from(b - shift);
        }
        sums
    }
}

#[inline(always)]
unsafe fn products_with<V: Vector>(job: Job<'_>) {
    let mut sums = [0.0; 2];
    for (a, b) in job.a.chunks(SPAN).zip(job.b.chunks(SPAN)) {
        // SAFETY: the caller vouches for the level.
        let [first, second] = unsafe { span_products::<V>(a, b, job.shift) };
        sums = [sums[0] + first, sums[1] + second];
    }
    // SAFETY: the caller vouches for the pointer.
    unsafe { *job.sums = sums }
}

by_level! {
    /// # Safety
    /// `sums` can be written.
    unsafe fn run_products(job: Job<'_>) = products_with
}

/// The sums of `a` and of `a * (b - shift)`, over rows of the same length. The gradients of norms
/// need these.
pub(crate) fn products(a: &[f32], b: &[f32], shift: f32) -> [f64; 2] {
    let mut sums = [0.0; 2];
    // SAFETY: the job's pointer is that of `sums`.
    unsafe { run_products(Job { a, b, shift, sums: &mut sums }) };
    sums
}

/// `to = (x - center) * scale + y * other + shift`. The mean is subtracted first, so that a large
/// mean costs no precision.
#[derive(Clone, Copy)]
struct Affine<'a> {
    x: &'a [f32],
    center: f32,
    scale: f32,
    y: &'a [f32],
    other: f32,
    shift: f32,
    to: *mut f32,
}

#[inline(always)]
unsafe fn affine_with<V: Vector>(job: Affine<'_>) {
    let len = job.x.len();
    let mut i = 0;
    // SAFETY: the caller vouches for the level, and for `len` floats at `to`.
    unsafe {
        let (scale, other, shift) = (V::splat(job.scale), V::splat(job.other), V::splat(job.shift));
        let (center, one) = (V::splat(-job.center), V::splat(1.0));
        if job.y.is_empty() {
            while i + V::LANES <= len {
                V::load(job.x.as_ptr().add(i))
                    .mul_add(one, center)
                    .mul_add(scale, shift)
                    .store(job.to.add(i));
                i += V::LANES;
            }
            for i in i..len {
                *job.to.add(i) = (job.x[i] - job.center) * job.scale + job.shift;
            }
        } else {
            while i + V::LANES <= len {
                let y = V::load(job.y.as_ptr().add(i)).mul_add(other, shift);
                V::load(job.x.as_ptr().add(i)).mul_add(one, center).mul_add(scale, y).store(job.to.add(i));
                i += V::LANES;
            }
            for i in i..len {
                *job.to.add(i) = (job.x[i] - job.center) * job.scale + (job.y[i] * job.other + job.shift);
            }
        }
    }
}

by_level! {
    /// # Safety
    /// `to` is valid for as many floats as `x` has; `y` is empty or as long.
    unsafe fn run_affine(job: Affine<'_>) = affine_with
}

/// `to = (x - center) * scale + shift`; all rows have the same length.
pub(crate) fn affine(x: &[f32], center: f32, scale: f32, shift: f32, to: &mut [f32]) {
    assert_eq!(x.len(), to.len());
    // SAFETY: the lengths agree.
    unsafe { run_affine(Affine { x, center, scale, y: &[], other: 0.0, shift, to: to.as_mut_ptr() }) };
}

/// `to = (x - center) * scale + y * other + shift`; all rows have the same length.
pub(crate) fn affine_pair(
    (x, center, scale): (&[f32], f32, f32),
    y: &[f32],
    other: f32,
    shift: f32,
    to: &mut [f32],
) {
    assert!(x.len() == to.len() && y.len() == to.len());
    // SAFETY: the lengths agree.
    unsafe { run_affine(Affine { x, center, scale, y, other, shift, to: to.as_mut_ptr() }) };
}

/// The arguments of [`normalise`]. For each row of `len` elements it computes `mean`,
/// `rstd = 1 / sqrt(variance + epsilon)` and `y = (x - mean) * rstd * weight + bias`. Weight and
/// bias have `len` elements.
#[derive(Clone, Copy)]
pub(crate) struct Normalise<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) len: usize,
    pub(crate) weight: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) epsilon: f32,
    pub(crate) y: *mut f32,
    pub(crate) mean: *mut f32,
    pub(crate) rstd: *mut f32,
}

#[inline(always)]
unsafe fn normalise_with<V: Vector>(job: Normalise<'_>) {
    let share = 1.0 / job.len as f64;
    for (row, x) in job.x.chunks_exact(job.len).enumerate() {
        // SAFETY: the caller vouches for the level, and for a row of `y` and a statistic for each
        // row of `x`.
        unsafe {
            let (mean, variance) = mean_and_variance::<V>(x, share);
            let rstd = 1.0 / ((variance + f64::from(job.epsilon)) as f32).sqrt();
            (*job.mean.add(row), *job.rstd.add(row)) = (mean, rstd);
            let y = job.y.add(row * job.len);
            let (one, center) = (V::splat(1.0), V::splat(-mean));
            let (zero, scale) = (V::zero(), V::splat(rstd));
            let mut i = 0;
            while i + V::LANES <= job.len {
                let weight = V::load(job.weight.as_ptr().add(i)).mul_add(scale, zero);
                let bias = V::load(job.bias.as_ptr().add(i));
                V::load(x.as_ptr().add(i)).mul_add(one, center).mul_add(weight, bias).store(y.add(i));
                i += V::LANES;
            }
            for (i, x) in x.iter().enumerate().skip(i) {
                *y.add(i) = (x - mean) * (rstd * job.weight[i]) + job.bias[i];
            }
        }
    }
}

by_level! {
    /// # Safety
    /// `y` is valid for as many floats as `x` has, `mean` and `rstd` for one float a row.
    unsafe fn run_normalise(job: Normalise<'_>) = normalise_with
}

/// Normalises the rows.
///
/// # Safety
/// `y` is valid for as many floats as `x` has, `mean` and `rstd` for one float for each row. No
/// other code uses them meanwhile.
pub(crate) unsafe fn normalise(job: Normalise<'_>) {
    assert!(job.len > 0 && job.weight.len() == job.len && job.bias.len() == job.len);
    // SAFETY: the caller's; `run_normalise` checks the level.
    unsafe { run_normalise(job) }
}

/// A row as `f32`: the row itself if it is `f32`, else widened into `room`, which has its length.
pub(crate) fn widened<'a, T: Single>(row: &'a [T], room: &'a mut [f32]) -> &'a [f32] {
    if T::IS_F32 {
        // SAFETY: `T` is `f32`.
        unsafe { core::slice::from_raw_parts(row.as_ptr().cast::<f32>(), row.len()) }
    } else {
        T::widen_slice(row, room);
        room
    }
}

/// Calls `write` with the row itself if it is `f32`. Otherwise calls it with `room` and rounds
/// `room` into the row.
pub(crate) fn narrowed<T: Single>(row: &mut [T], room: &mut [f32], write: impl FnOnce(&mut [f32])) {
    if T::IS_F32 {
        // SAFETY: `T` is `f32`.
        write(unsafe { core::slice::from_raw_parts_mut(row.as_mut_ptr().cast::<f32>(), row.len()) });
    } else {
        write(room);
        T::narrow_slice(room, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_row_adds_no_error() {
        let (len, a, b) = (1 << 20, 0.1f32, 1.3f32);
        let [sum, moment] = products(&vec![a; len], &vec![b; len], 0.0);
        // A product is rounded once. A lane sums at most SPAN / 16 elements, and two roundings join
        // the lanes of four vectors.
        let limit = (SPAN / 16 + 3) as f64 * f64::from(f32::EPSILON) / 2.0;
        let product = f64::from(a) * f64::from(b);
        for (found, each) in [(sum, f64::from(a)), (moment, product)] {
            let error = (found / (len as f64 * each) - 1.0).abs();
            assert!(error <= limit, "{found}: {error:e}");
        }
    }
}
