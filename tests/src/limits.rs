//! Limits from rounding bounds: a reference in f64, and for each element the largest allowed error.
//!
//! The oracle computes the reference from the operands in f64. It computes the sum of the terms'
//! magnitudes from the operands without their signs.

use crate::{Backend, DType, FloatDType, Input, Scalar, Shape, read_float};
use burn_backend::TensorData;
use burn_backend::tensor::{Device, FloatTensor};
use burn_std::{bf16, f16};

/// Half a unit in the last place of 1.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    }
}

/// The error bound of a sum of `terms` products in any order, as a share of the sum of the terms'
/// magnitudes: `n u` (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1).
/// Two more roundings allow for a bias or divisor, and for a sum in parts. The bound for
/// independent roundings, a multiple of `sqrt(n) u`, would not hold for operands that repeat an
/// element, as broadcast ones do, because their roundings are alike.
pub fn growth(terms: usize, dtype: DType) -> f64 {
    (terms as f64 + 2.0) * unit(dtype)
}

/// The finite number of `dtype` nearest to `value`. If two are equally near, it is the one whose last
/// bit is 0. Conversions of the crate `half` do not always find it: they may round to f32 first, or
/// ignore the last 32 bits.
pub fn nearest(value: f64, dtype: DType) -> f64 {
    let (guess, number): (u16, fn(u16) -> f64) = match dtype {
        DType::F16 => (f16::from_f64(value).to_bits(), |bits| f16::from_bits(bits).to_f64()),
        DType::BF16 => (bf16::from_f64(value).to_bits(), |bits| bf16::from_bits(bits).to_f64()),
        DType::F32 => return f64::from(value as f32),
        _ => return value,
    };
    let near = [guess.wrapping_sub(1), guess, guess.wrapping_add(1)].map(|bits| (bits % 2, number(bits)));
    let by_distance = |(odd, x): &(u16, f64), (other, y): &(u16, f64)| {
        (x - value).abs().total_cmp(&(y - value).abs()).then(odd.cmp(other))
    };
    let finite = near.into_iter().filter(|(_, x)| x.is_finite());
    finite.min_by(by_distance).expect("a finite neighbour").1
}

/// The type that sums of `dtype` are kept in.
pub fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The allowed error of a result that underflows.
pub fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-24),
        DType::F64 => 1e-300,
        _ => 1e-36,
    }
}

/// The largest finite number of a type.
fn greatest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => 65504.0,
        _ => 3.389_531_389_251_535_5e38,
    }
}

/// The relative error of rounding a result from type `computed` to `dtype`.
fn rounding(computed: DType, dtype: DType) -> f64 {
    if computed == dtype { 0.0 } else { unit(dtype) }
}

/// The terms of a sum, and how they are added.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The number of products.
    pub count: usize,
    /// The type in which they are added.
    pub wide: DType,
    /// The result's type.
    pub dtype: DType,
    /// How often a product may be rounded to the result's type, alone or in a partial sum, before
    /// the result itself is.
    pub roundings: usize,
    /// Whether a term of magnitude at most 1 may be added after the sum of the others was rounded.
    pub bias: bool,
}

impl Terms {
    /// `count` products, added in the type that sums of `dtype` are kept in, and rounded to `dtype`
    /// once.
    pub fn of(count: usize, dtype: DType) -> Self {
        Self { count, wide: wide(dtype), dtype, roundings: 0, bias: false }
    }

    /// `count` products of a convolution. A library may round parts of their sum to `dtype` before
    /// it rounds the result, each product's part up to `roundings` times. MIOpen's convolutions by
    /// matrix products do so on gfx1030: an input's gradient is the sum in f32 of each tap's
    /// rounded part (one rounding), and a weight's gradient is rounded after each image (as many
    /// roundings as images). Each of these roundings is an error of at most a unit of the terms'
    /// magnitudes. Kernels of this project round only the result.
    pub fn in_parts(count: usize, roundings: usize, dtype: DType) -> Self {
        let ours = hip::provider().is_ok_and(|provider| provider.kind() == hip::ProviderKind::Cpu)
            || matches!(hip::conv_route(), Ok(hip::Route::Own));
        Self { roundings: if ours { 0 } else { roundings }, ..Self::of(count, dtype) }
    }

    /// At most `count` terms of an element of a max pool's gradient. MIOpen adds f16 terms in f16.
    pub fn of_max_pool(count: usize, dtype: DType) -> Self {
        let library = hip::provider().is_ok_and(|provider| provider.kind() == hip::ProviderKind::Rocm);
        let wide = if library && dtype == DType::F16 { DType::F16 } else { wide(dtype) };
        Self { wide, ..Self::of(count, dtype) }
    }
}

/// `limit` of each number in `data`.
fn each(data: &TensorData, limit: impl FnMut(f64) -> f64) -> TensorData {
    let all: Vec<f64> = data.iter::<f64>().map(limit).collect();
    TensorData::new(all, data.shape.clone())
}

/// The limits for elements that should be `reference`. Each element is a sum or mean of terms, and
/// `magnitude` is the same sum or mean of the terms' magnitudes.
pub fn sums(reference: &TensorData, magnitude: &TensorData, terms: Terms) -> TensorData {
    let Terms { count, wide: summed, dtype, roundings, bias } = terms;
    // A reference in f64 has the same error as a result in f64.
    let sums = growth(count, summed) + growth(count, DType::F64);
    let rounding = rounding(summed, dtype);
    let product = roundings as f64 * rounding;
    let mut magnitudes = magnitude.iter::<f64>();
    each(reference, |x| {
        let m = magnitudes.next().expect("as many as elements");
        // The magnitude of the rounded sum. If a bias follows the sum, it is also that of the
        // result without the bias.
        let own = x.abs() + sums * m;
        let roundings = if bias { 2.0 * own + m.min(1.0) } else { own };
        (sums + product) * m + rounding * roundings + least(dtype)
    })
}

/// The limits for elements to which terms are added one by one in the result's type, rounding each
/// time: `additions` is the number of terms added to each element, and `magnitude` the sum of the
/// magnitudes of all.
pub fn additions(magnitude: &TensorData, additions: &TensorData, dtype: DType) -> TensorData {
    let mut additions = additions.iter::<f64>();
    each(magnitude, |m| {
        let n = additions.next().expect("as many as elements");
        n * (1.01 * unit(dtype) + unit(DType::F64)) * m + least(dtype)
    })
}

/// The limits for elements that should be `reference`, each a product of at most `count` factors in
/// any order, rounded to `dtype` once.
pub fn products(reference: &TensorData, count: usize, dtype: DType) -> TensorData {
    let computed = wide(dtype);
    let share = growth(count, computed) + growth(count, DType::F64) + 1.01 * rounding(computed, dtype);
    each(reference, |x| share * x.abs() + least(dtype))
}

/// The limits for elements that should be `reference`, computed within `tolerance` in type
/// `computed` and then rounded to `dtype` if that is another type.
pub fn rounded(
    reference: &TensorData,
    computed: DType,
    dtype: DType,
    tolerance: crate::Tolerance,
) -> TensorData {
    let share = tolerance.relative + 1.01 * rounding(computed, dtype);
    each(reference, |x| tolerance.absolute + share * x.abs() + least(dtype))
}

/// The limits for results whose errors are at most a share of `magnitude`.
pub fn shares(magnitude: &TensorData, share: f64, dtype: DType) -> TensorData {
    each(magnitude, |m| share * m.abs() + least(dtype))
}

/// The largest allowed error of the gradient of resizing planes of `from` pixels to `to` pixels, in
/// the type in which it is computed, for an output's gradient with magnitudes of at most 1.
///
/// Along an axis, an input pixel contributes to the outputs whose points are within 2 pixels of it
/// (bicubic; in other modes it contributes to fewer). Each adds at most 1.375^2 < 2 to it: the
/// magnitudes of Keys' cubic weights add up to at most 1.375 along an axis. The sum has the error
/// bound of a sum in any order; 8 more roundings allow for the points and weights along both axes.
pub fn resized(from: [usize; 2], to: [usize; 2], dtype: DType) -> crate::Tolerance {
    resized_within(4, 2.0, from, to, dtype)
}

/// As [`resized`] for Lanczos: an input pixel counts for the outputs whose points are within 3
/// pixels of it. The magnitudes of the weights, whose sum is 1, add up to less than 1.7 along an
/// axis, and 1.7^2 < 3.
pub fn resized_by_lanczos(from: [usize; 2], to: [usize; 2], dtype: DType) -> crate::Tolerance {
    resized_within(6, 3.0, from, to, dtype)
}

/// The error of sums over the outputs within `reach` pixels along both axes. Each adds at most
/// `most`.
fn resized_within(
    reach: usize,
    most: f64,
    from: [usize; 2],
    to: [usize; 2],
    dtype: DType,
) -> crate::Tolerance {
    let outputs = |axis: usize| match from[axis] {
        1 => to[axis],
        n => to[axis].min(reach * to[axis].saturating_sub(1) / (n - 1) + 2),
    };
    let terms = outputs(0) * outputs(1);
    let growth = growth(terms + 8, wide(dtype)) + growth(terms + 8, DType::F64);
    crate::Tolerance { absolute: growth * most * terms as f64, relative: 0.0 }
}

/// The limits for a Fourier transform of `count` numbers along a dim, `square` being the sum of
/// their squares for each element. In the 2-norm the error is at most `log2(n) eta` of the result
/// (Higham 2002, theorem 24.2), with `eta` below `7 u` for factors that are rounded once. No
/// element's error exceeds the norm of all.
pub fn fourier(reference: &TensorData, square: &TensorData, count: usize, dtype: DType) -> TensorData {
    let n = count as f64;
    let computed = wide(dtype);
    // A length that is not a power of two takes further transforms and products.
    let share = 7.0 * (n.log2().ceil() + 1.0) * (unit(computed) + unit(DType::F64));
    let mut squares = square.iter::<f64>();
    each(reference, |x| {
        let square = squares.next().expect("as many as elements");
        share * (n * square).sqrt() + rounding(computed, dtype) * 1.01 * x.abs() + least(dtype)
    })
}

/// The most numbers of a row of `len` that a kernel adds one after the other. A long row has at
/// least 256 threads, or a core's lanes begin a new sum every 2048 elements.
pub fn in_turn(len: usize) -> usize {
    len.min(len / 256 + 512)
}

/// The limits for a layer norm of `x`, rows of as many elements as `gamma` has, computed in the
/// wide type: the sums' bounds (Higham 2002, section 3.1), carried to first order through
/// `gamma * (x - mean) / sqrt(variance + epsilon) + beta`.
///
/// The variance may come from `d = x - s` as `mean(d^2) - mean(d)^2`, if `s` is at most 4
/// deviations `sqrt(variance + epsilon)` away from the mean. Then `mean(d^2)` is at most 17 of
/// their squares, and the two means are off by `17 growth` and `2 * 4 * sqrt(17) growth` of them:
/// 50 together.
pub fn layer_norm(
    x: &TensorData,
    gamma: &TensorData,
    reference: &TensorData,
    epsilon: f64,
    dtype: DType,
) -> TensorData {
    let (computed, n) = (wide(dtype), gamma.num_elements());
    if n == 0 {
        return each(reference, |_| 0.0);
    }
    // The reference has its own roundings, in f64.
    let u = unit(computed) + unit(DType::F64);
    let growth = |terms: usize| growth(in_turn(terms), computed) + growth(terms, DType::F64);
    let [x, gamma, y] = [x, gamma, reference].map(|data| data.iter::<f64>().collect::<Vec<f64>>());
    let mut limits = Vec::with_capacity(x.len());
    for (row, y) in x.chunks(n).zip(y.chunks(n)) {
        let mean_of = |f: &dyn Fn(f64) -> f64| row.iter().map(|&x| f(x)).sum::<f64>() / n as f64;
        let mean = mean_of(&|x| x);
        let mean_error = growth(n) * mean_of(&f64::abs);
        let error = |x: f64| mean_error + u * (x - mean).abs();
        let variance = mean_of(&|x| (x - mean).powi(2));
        let variance_error = 50.0 * growth(n + 1) * (variance + epsilon)
            + mean_of(&|x| 2.0 * (x - mean).abs() * error(x) + error(x).powi(2));
        let scale = 1.0 / (variance + epsilon).sqrt();
        // The addition of epsilon, the root and the reciprocal or division.
        let scale_error = variance_error / 2.0 * scale * scale + 3.0 * u;
        limits.extend(row.iter().zip(&gamma).zip(y).map(|((&x, gamma), y)| {
            let normed = (x - mean).abs() * scale;
            let own = gamma.abs() * (error(x) * scale + normed * (scale_error + 2.0 * u));
            own + u * y.abs() + rounding(computed, dtype) * 1.01 * y.abs() + least(dtype)
        }));
    }
    TensorData::new(limits, reference.shape.clone())
}

/// Asserts that `found`, of `dtype`, is the layer norm of the oracle's operands in f64, within the
/// limits of [`layer_norm`].
pub fn assert_layer_norm<B: Backend>(
    what: &impl std::fmt::Display,
    found: &TensorData,
    dtype: DType,
    [x, gamma]: [FloatTensor<B>; 2],
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) {
    assert_eq!(found.dtype, dtype, "{what}");
    let reference = read_float::<B>(B::layer_norm(x.clone(), gamma.clone(), beta, epsilon));
    let [x, gamma] = [x, gamma].map(read_float::<B>);
    assert_within(what, found, &reference, &layer_norm(&x, &gamma, &reference, epsilon, dtype));
}

/// The limits for a softmax, or for its logarithm, of `x`, rows of `len` elements, computed in the
/// wide type: to first order in the errors of each exponential's argument, of the exponential and
/// of their sum.
pub fn softmax(
    x: &TensorData,
    reference: &TensorData,
    len: usize,
    logarithm: bool,
    dtype: DType,
) -> TensorData {
    let sum_error = growth(in_turn(len), wide(dtype)) + growth(len, DType::F64);
    softmax_of_sums(x, reference, len, sum_error, logarithm, dtype)
}

/// As [`softmax`], if one thread may add a whole line and scale its sum for each new maximum. No
/// term is scaled more than `len` times, and each time it takes an exponential, off by 8 roundings,
/// and a product. The roundings of the exponentials' arguments are at most those of one argument,
/// the line's range.
pub fn softmax_in_turn(
    x: &TensorData,
    reference: &TensorData,
    len: usize,
    logarithm: bool,
    dtype: DType,
) -> TensorData {
    let sum_error = 10.0 * growth(len, wide(dtype)) + growth(len, DType::F64);
    softmax_of_sums(x, reference, len, sum_error, logarithm, dtype)
}

/// The limits for a softmax whose sums are off by a share of `sum_error`.
fn softmax_of_sums(
    x: &TensorData,
    reference: &TensorData,
    len: usize,
    sum_error: f64,
    logarithm: bool,
    dtype: DType,
) -> TensorData {
    let computed = wide(dtype);
    // The reference has its own roundings, in f64.
    let u = unit(computed) + unit(DType::F64);
    let [x, reference_values] = [x, reference].map(|data| data.iter::<f64>().collect::<Vec<f64>>());
    let mut limits = Vec::with_capacity(x.len());
    for (row, y) in x.chunks(len.max(1)).zip(reference_values.chunks(len.max(1))) {
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let error = |x: f64| u * (3.0 * (x - top).abs() + 8.0);
        let all: f64 = row.iter().map(|x| (x - top).exp()).sum();
        let by_sum = row.iter().map(|&x| (x - top).exp() / all * error(x)).sum::<f64>() + sum_error;
        limits.extend(row.iter().zip(y).map(|(&x, y)| {
            let own = if logarithm {
                error(x) + by_sum + 2.0 * u * (all.ln().abs() + y.abs())
            } else {
                y * (error(x) + by_sum).exp_m1()
            };
            own + rounding(computed, dtype) * 1.01 * y.abs() + least(dtype)
        }));
    }
    TensorData::new(limits, reference.shape.clone())
}

/// A float input for the oracle in f64, or its elements' magnitudes.
pub fn exact<B: Backend>(input: &Input, magnitudes: bool, device: &Device<B>) -> FloatTensor<B> {
    let tensor = B::float_cast(input.float::<B>(device), FloatDType::F64);
    if magnitudes { B::float_abs(tensor) } else { tensor }
}

/// A float tensor of an input's shape filled with one value, for the oracle in f64.
pub fn filled<B: Backend>(input: &Input, value: f64, device: &Device<B>) -> FloatTensor<B> {
    B::float_full(Shape::from(input.shape().to_vec()), Scalar::Float(value), device, FloatDType::F64)
}

/// Asserts that each element is within its limit of the reference. Where the reference exceeds the
/// type's largest number, the result must be infinite.
///
/// # Panics
/// With `what`, the first element that is outside, and both values.
#[track_caller]
pub fn assert_within(
    what: &impl std::fmt::Display,
    found: &TensorData,
    reference: &TensorData,
    limits: &TensorData,
) {
    assert_eq!(found.shape, reference.shape, "{what}: shape");
    assert_eq!(limits.shape, reference.shape, "{what}: a limit for each element");
    let all = found.iter::<f64>().zip(reference.iter::<f64>()).zip(limits.iter::<f64>());
    for (i, ((x, y), limit)) in all.enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan());
        let overflows = x == y.signum() * f64::INFINITY && y.abs() + limit >= greatest(found.dtype);
        let near = y.is_finite() && (overflows || (x - y).abs() <= limit);
        assert!(
            same || near,
            "{what} ({:?}), element {i} of {:?}: {x} instead of {y}, off by {} of {limit}",
            found.dtype,
            found.shape,
            (x - y).abs()
        );
    }
}

/// Asserts that each result has `dtype` and is right within `tolerance` in the type in which it is
/// computed, and was then rounded once to `dtype` if that is another. `theirs` are the oracle's
/// results in the type of the computation.
///
/// # Panics
/// With `what`, the first element that is outside, and both values.
#[track_caller]
pub fn assert_rounded(
    what: &impl std::fmt::Display,
    dtype: DType,
    ours: &[TensorData],
    theirs: &[TensorData],
    tolerance: crate::Tolerance,
) {
    let computed = wide(dtype);
    assert_eq!(ours.len(), theirs.len(), "{what}: number of results");
    for (k, (found, reference)) in ours.iter().zip(theirs).enumerate() {
        let what = format!("{what}, result {k}");
        assert_eq!((found.dtype, reference.dtype), (dtype, computed), "{what}");
        if dtype == computed {
            crate::assert_close(
                &what,
                std::slice::from_ref(found),
                std::slice::from_ref(reference),
                tolerance,
            );
            continue;
        }
        let limits = rounded(reference, computed, dtype, tolerance);
        assert_within(&what, found, reference, &limits);
    }
}

/// Runs one body on both backends, the oracle with operands widened to the type in which this
/// backend computes, and compares the results with [`assert_rounded()`]. The body gets the inputs
/// as tensors and returns a `Vec<TensorData>`.
///
/// ```ignore
/// rounded!("float_exp", dtype, Tolerance::of(limits::wide(dtype)), |B, device, [a = &a]| {
///     vec![read_float::<B>(B::float_exp(a))]
/// });
/// ```
#[macro_export]
macro_rules! rounded {
    (
        $what:expr, $dtype:expr, $tolerance:expr,
        |$B:ident, $device:ident, [$($x:ident = $input:expr),+]| $body:expr
    ) => {{
        $crate::trace::to_file();
        #[allow(unused_braces)] // rustfmt puts them around a one-line body
        let ours: Vec<$crate::TensorData> = {
            #[allow(dead_code)]
            type $B = $crate::R;
            let $device = Default::default();
            $(let $x = $input.float::<$B>(&$device);)+
            $body
        };
        #[allow(unused_braces)]
        let theirs: Vec<$crate::TensorData> = {
            #[allow(dead_code)]
            type $B = $crate::O;
            let $device = Default::default();
            $(let $x = $input.converted($crate::limits::wide($dtype)).float::<$B>(&$device);)+
            $body
        };
        $crate::limits::assert_rounded(&$what, $dtype, &ours, &theirs, $tolerance);
    }};
}

/// Asserts that a float op's result is right within the rounding bound of a sum or mean of
/// [`Terms`]. The body gets the inputs as tensors and returns a tensor.
///
/// ```ignore
/// sums!("float_sum", Terms::of(n, dtype), |B, device, [a = &input]| B::float_sum(a));
/// ```
#[macro_export]
macro_rules! sums {
    ($what:expr, $terms:expr, |$B:ident, $device:ident, [$($x:ident = $input:expr),+]| $body:expr) => {{
        let terms: $crate::limits::Terms = $terms;
        let (ours, [reference, magnitude]) = $crate::sides!(|$B, $device, [$($x = $input),+]| $body);
        assert_eq!(ours.dtype, terms.dtype, "{}", $what);
        let limits = $crate::limits::sums(&reference, &magnitude, terms);
        $crate::limits::assert_within(&$what, &ours, &reference, &limits);
    }};
}

/// Asserts that an op that adds the elements of `$added` one by one to those of `$to` is right
/// within the rounding bound of [`additions()`]. The body gets both as tensors and returns a
/// tensor. Run with zeros for `$to` and ones for `$added`, it counts the additions.
///
/// ```ignore
/// additions!("float_select_add", dtype, |B, device, [a = &a, v = &v]| {
///     B::float_select_add(a, dim, places.int::<B>(&device), v)
/// });
/// ```
#[macro_export]
macro_rules! additions {
    (
        $what:expr, $dtype:expr,
        |$B:ident, $device:ident, [$to:ident = $first:expr, $added:ident = $second:expr]| $body:expr
    ) => {{
        let dtype: $crate::DType = $dtype;
        let (ours, [reference, magnitude]) =
            $crate::sides!(|$B, $device, [$to = $first, $added = $second]| $body);
        let number = {
            #[allow(dead_code)]
            type $B = $crate::O;
            let $device = Default::default();
            let $to = $crate::limits::filled::<$B>($first, 0.0, &$device);
            let $added = $crate::limits::filled::<$B>($second, 1.0, &$device);
            $crate::read_float::<$B>($body)
        };
        assert_eq!(ours.dtype, dtype, "{}", $what);
        let limits = $crate::limits::additions(&magnitude, &number, dtype);
        $crate::limits::assert_within(&$what, &ours, &reference, &limits);
    }};
}

/// This backend's result, and the oracle's results in f64 from the inputs and from their
/// magnitudes.
#[macro_export]
macro_rules! sides {
    (|$B:ident, $device:ident, [$($x:ident = $input:expr),+]| $body:expr) => {{
        $crate::trace::to_file();
        let ours = {
            #[allow(dead_code)]
            type $B = $crate::R;
            let $device = Default::default();
            $(let $x = $input.float::<$B>(&$device);)+
            $crate::read_float::<$B>($body)
        };
        let theirs = [false, true].map(|magnitudes| {
            #[allow(dead_code)]
            type $B = $crate::O;
            let $device = Default::default();
            $(let $x = $crate::limits::exact::<$B>($input, magnitudes, &$device);)+
            $crate::read_float::<$B>($body)
        });
        (ours, theirs)
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(found: f64, reference: f64, limit: f64) -> bool {
        let of = |x: f64| TensorData::new(vec![x], [1]);
        let found = of(found).convert_dtype(DType::F32);
        let check = || assert_within(&"it", &found, &of(reference), &of(limit));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err()
    }

    #[test]
    fn what_is_infinite_or_no_number_must_be_the_same() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert!(!fails(inf, inf, nan) && !fails(nan, nan, nan) && !fails(1.0, 1.01, 0.02));
        assert!(
            fails(1.0, inf, inf) && fails(-inf, inf, inf) && fails(nan, 1.0, inf) && fails(1.0, nan, inf)
        );
        assert!(fails(1.0, 1.03, 0.02) && fails(1.0, 1.0 + 1e-6, nan));
        assert!(!fails(inf, 4e38, 1.0) && fails(-inf, 4e38, 1.0) && fails(inf, 3e38, 1.0));
    }

    #[test]
    fn a_sum_may_be_off_by_its_roundings_and_no_more() {
        let of = |x: f64| TensorData::new(vec![x], [1]);
        // 100 terms of 1, added in f32 and rounded to bf16 once.
        let limit = sums(&of(100.0), &of(100.0), Terms::of(100, DType::BF16));
        let limit = limit.iter::<f64>().next().expect("one");
        assert!((0.39..0.4).contains(&limit), "{limit}");
    }
}
