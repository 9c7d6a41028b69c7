//! Results of ops with their own limits. This backend gives a result; the oracle gives a reference
//! in f64 and the limits.

use crate::draw::Side;
use burn_backend::tensor::FloatTensor;
use burn_rocm_tests::limits::{self, Terms, wide};
use burn_rocm_tests::*;

/// Our result, or the oracle's reference in f64 and its limits. `sum`, of `terms` products in each
/// element, is computed from the operands, and on the oracle also from their magnitudes.
pub(crate) fn summed<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    terms: usize,
    operands: [&FloatTensor<B>; N],
    sum: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    summed_as(c, Terms::of(terms, c.d.float_type()), operands, sum)
}

/// [`summed`] for given terms.
pub(crate) fn summed_as<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    terms: Terms,
    operands: [&FloatTensor<B>; N],
    sum: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    let limits = |reference: &TensorData, of: &dyn Fn(Kind) -> TensorData| {
        limits::sums(reference, &of(Kind::Magnitude), terms)
    };
    limited(c, operands, sum, limits)
}

/// Our result, or the oracle's reference and limits, for terms that are added one by one to the
/// first operand.
pub(crate) fn added<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    operands: [&FloatTensor<B>; N],
    add: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    let dtype = c.d.float_type();
    limited(c, operands, add, |_, of| limits::additions(&of(Kind::Magnitude), &of(Kind::Number), dtype))
}

/// As [`added`], for products of at most `count` factors.
pub(crate) fn multiplied<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    count: usize,
    operands: [&FloatTensor<B>; N],
    multiply: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    let dtype = c.d.float_type();
    limited(c, operands, multiply, |reference, _| limits::products(reference, count, dtype))
}

/// As [`added`], for results that are computed within `tolerance` and rounded once.
pub(crate) fn rounded<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    tolerance: Tolerance,
    operands: [&FloatTensor<B>; N],
    op: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> Vec<TensorData> {
    let dtype = c.d.float_type();
    limited(c, operands, op, |reference, _| limits::rounded(reference, wide(dtype), dtype, tolerance))
}

/// The values that replace the operands.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Their magnitudes.
    Magnitude,
    /// 0 for the first operand, 1 for the others: the op then counts the terms added to the first
    /// one.
    Number,
}

/// Our result, or the oracle's reference in f64 and its limits, which may be computed by the same
/// op from other operands.
fn limited<B: Backend, const N: usize>(
    c: &Side<'_, B>,
    operands: [&FloatTensor<B>; N],
    op: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B>,
    limits: impl FnOnce(&TensorData, &dyn Fn(Kind) -> TensorData) -> TensorData,
) -> Vec<TensorData> {
    if !c.oracle() {
        let out = op(operands.map(Clone::clone));
        assert_eq!(out.dtype(), c.d.float_type());
        return vec![read_float::<B>(out)];
    }
    let exact = operands.map(|t| B::float_cast(t.clone(), FloatDType::F64));
    let of = |kind| {
        let replaced = |n: usize| {
            let t = exact[n].clone();
            match kind {
                Kind::Magnitude => B::float_abs(t),
                Kind::Number => {
                    let number = Scalar::Float(if n == 0 { 0.0 } else { 1.0 });
                    B::float_full(t.shape(), number, &c.device, FloatDType::F64)
                }
            }
        };
        read_float::<B>(op(std::array::from_fn(replaced)))
    };
    let reference = read_float::<B>(op(exact.clone()));
    let limits = limits(&reference, &of);
    vec![reference, limits]
}

/// Our result, or the oracle's with limits of 0.
pub(crate) fn exactly<B: Backend>(c: &Side<'_, B>, data: TensorData) -> Vec<TensorData> {
    if !c.oracle() {
        return vec![data];
    }
    let limits = TensorData::zeros::<f64, _>(data.shape.clone());
    vec![data.convert_dtype(DType::F64), limits]
}

/// Our result, or the oracle's in f64 with limits from `tolerance`.
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
    let limits = limits::rounded(&reference, dtype, dtype, tolerance);
    vec![reference, limits]
}
