//! How far a sum of products may be off, from what was summed: references in f64 with a limit for each element.

use crate::draw::Side;
use burn_backend::tensor::FloatTensor;
use burn_rocm_tests::*;

/// Half a unit in the last place of 1.
pub(crate) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    }
}

/// The share of the sum of its terms' magnitudes by which a sum of `terms` products may be off, in whatever order.
///
/// Never more than `n u` (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1); and, roundings being as good
/// as independent, not more than `8 sqrt(n) u` but for one sum in 10^13 (Higham and Mary 2019, "A New Approach to Probabilistic
/// Rounding Error Analysis", theorem 3.1). Two roundings more are for a bias and for a sum in parts.
pub(crate) fn growth(terms: usize, dtype: DType) -> f64 {
    let n = terms as f64 + 2.0;
    n.min(8.0 * n.sqrt()) * unit(dtype)
}

/// The type that sums of `dtype` are kept in.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// What a sum is made of.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The number of products.
    pub(crate) count: usize,
    /// The type they are added in.
    pub(crate) wide: DType,
    /// The result's.
    pub(crate) dtype: DType,
    /// Whether each product is rounded to that type first.
    pub(crate) rounded: bool,
}

/// The limits for elements near `reference`, each a sum of terms that are `magnitude` together without their signs, rounded to the
/// result's type at most twice (for a bias on its own).
pub(crate) fn limits(reference: &TensorData, magnitude: &TensorData, terms: Terms) -> TensorData {
    let Terms { count: terms, wide: summed, dtype, rounded } = terms;
    // A reference in f64 is off as much as a result in f64.
    let sums = growth(terms, summed) + growth(terms, DType::F64);
    let rounding = if summed == dtype { 0.0 } else { unit(dtype) };
    let least = if dtype == DType::F16 { 2f64.powi(-24) } else { 1e-38 };
    // Before the bias, which is at most 1, and after it.
    let each = if rounded { rounding } else { 0.0 };
    let of =
        |(x, m): (f64, f64)| (sums + each) * m + rounding * (2.0 * (x.abs() + sums * m) + m.min(1.0)) + least;
    let all: Vec<f64> = reference.iter::<f64>().zip(magnitude.iter::<f64>()).map(of).collect();
    TensorData::new(all, reference.shape.clone())
}

/// A result of ours, or of the oracle the reference in f64 and the limits: `sum`, of `terms` products each, is taken of the operands,
/// and for the oracle also of their magnitudes.
pub(crate) fn summed<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    terms: usize,
    operands: [&FloatTensor<B>; N],
    sum: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    let dtype = c.d.float_type();
    summed_as(c, Terms { count: terms, wide: wide(dtype), dtype, rounded: false }, operands, sum)
}

/// [`summed`] for terms that say all.
pub(crate) fn summed_as<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    terms: Terms,
    operands: [&FloatTensor<B>; N],
    sum: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    if !c.oracle() {
        let out = sum(operands.map(Clone::clone));
        assert_eq!(out.dtype(), terms.dtype);
        return vec![read_float::<B>(out)];
    }
    let exact = operands.map(|t| B::float_cast(t.clone(), FloatDType::F64));
    let magnitudes = exact.clone().map(B::float_abs);
    let [reference, magnitude] = [sum(exact), sum(magnitudes)].map(read_float::<B>);
    let limits = limits(&reference, &magnitude, terms);
    vec![reference, limits]
}

/// A result of ours, or of the oracle the same in f64 and limits by `tolerance`.
pub(crate) fn near<B: Backend>(
    c: &Side<'_, B>,
    out: FloatTensor<B>,
    dtype: DType,
    tolerance: Tolerance,
) -> Vec<TensorData> {
    if !c.oracle() {
        assert_eq!(out.dtype(), dtype);
        return vec![read_float::<B>(out)];
    }
    let reference = read_float::<B>(B::float_cast(out, FloatDType::F64));
    let limit = |x: f64| if x.is_finite() { tolerance.absolute + tolerance.relative * x.abs() } else { 0.0 };
    let limits: Vec<f64> = reference.iter::<f64>().map(limit).collect();
    let limits = TensorData::new(limits, reference.shape.clone());
    vec![reference, limits]
}
