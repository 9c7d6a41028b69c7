//! Products with quantised matrices on either side or both: every scheme, views and batches,
//! against a product in f64 of the values that the operands represent.

use super::quantized::{STORES, VALUES, parts, read_q};
use burn_backend::TensorPrimitive;
use burn_backend::quantization::{QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::{FloatTensor, QuantizedTensor};
use burn_rocm_tests::limits::Terms;
use burn_rocm_tests::*;

type QTensor = QuantizedTensor<R>;
type FTensor = FloatTensor<R>;

fn quantized(x: &Input, scheme: &QuantScheme) -> QTensor {
    R::quantize_dynamic(x.float::<R>(&Default::default()), scheme)
}

fn product(lhs: TensorPrimitive<R>, rhs: TensorPrimitive<R>) -> FTensor {
    match R::q_matmul(lhs, rhs) {
        TensorPrimitive::Float(out) => out,
        TensorPrimitive::QFloat(_) => panic!("nothing says that the product is to be quantised"),
    }
}

fn as_f64(tensor: FTensor) -> TensorData {
    read_float::<R>(R::float_cast(tensor, FloatDType::F64))
}

/// The oracle's product in f64, and the product of the magnitudes.
fn expected(lhs: FTensor, rhs: FTensor) -> [TensorData; 2] {
    let there = [lhs, rhs].map(|tensor| O::float_from_data(as_f64(tensor), &Default::default()));
    let product = |[lhs, rhs]: [FloatTensor<O>; 2]| read_float::<O>(O::float_matmul(lhs, rhs));
    [product(there.clone()), product(there.map(O::float_abs))]
}

/// Checks `lhs x rhs`, where either may be quantised, within the rounding bound of sums of `terms`
/// products in f32 that are rounded to `dtype`.
#[track_caller]
fn check(what: &str, lhs: TensorPrimitive<R>, rhs: TensorPrimitive<R>, terms: usize, dtype: DType) {
    let float = |t: &TensorPrimitive<R>| match t.clone() {
        TensorPrimitive::Float(t) => t,
        TensorPrimitive::QFloat(t) => R::dequantize(t, FloatDType::F64),
    };
    let [reference, magnitude] = expected(float(&lhs), float(&rhs));
    let out = product(lhs, rhs);
    assert_eq!(out.dtype(), dtype, "{what}");
    // Products of scales and values, and floats of f64, are rounded to f32. Four more terms allow
    // for that.
    let terms = Terms { wide: DType::F32, ..Terms::of(terms + 4, dtype) };
    let limits = limits::sums(&reference, &magnitude, terms);
    limits::assert_within(&what, &read_float::<R>(out), &reference, &limits);
}

/// Each value type and store, with one scale and with 1-d and 2-d blocks.
fn schemes() -> Vec<QuantScheme> {
    let mut schemes = Vec::new();
    for value in VALUES {
        for store in STORES {
            for level in [
                QuantLevel::Tensor,
                QuantLevel::block([8]),
                QuantLevel::block([2, 4]),
                QuantLevel::block([3]),
            ] {
                schemes.push(QuantScheme::default().with_value(value).with_store(store).with_level(level));
            }
        }
    }
    schemes
}

const NARROW: [DType; 4] = FLOATS;

#[test]
fn every_scheme_by_floats_and_by_its_like() {
    let random = Random::new();
    for scheme in schemes() {
        // Whole blocks of 8 and of 3; whole tiles and parts of tiles.
        for (m, k, n) in [(1, 24, 48), (6, 24, 1), (5, 48, 24), (70, 72, 96)] {
            let dtype = NARROW[random.below(4)];
            let a = float(&random, &[m, k], dtype, View::ALL[random.below(5)], -3.0, 3.0);
            let b = float(&random, &[k, n], dtype, View::ALL[random.below(5)], -3.0, 3.0);
            let what = format!("{scheme:?} {dtype:?} {m} x {k} x {n}");
            let (qa, qb) = (quantized(&a, &scheme), quantized(&b, &scheme));
            let (fa, fb) = (a.float::<R>(&Default::default()), b.float::<R>(&Default::default()));
            use TensorPrimitive::{Float, QFloat};
            check(&format!("float by {what}"), Float(fa), QFloat(qb.clone()), k, dtype);
            check(&format!("{what} by float"), QFloat(qa.clone()), Float(fb), k, dtype);
            check(&format!("{what} by itself"), QFloat(qa), QFloat(qb), k, DType::F32);
        }
    }
}

#[test]
fn different_schemes() {
    let random = Random::new();
    let all = schemes();
    for _ in 0..60 {
        let (left, right) = (all[random.below(all.len())], all[random.below(all.len())]);
        let (m, k, n) = (1 + random.below(80), 24 * (1 + random.below(6)), 24 * (1 + random.below(4)));
        let a = float(&random, &[m, k], DType::F32, View::Contiguous, -3.0, 3.0);
        let b = float(&random, &[k, n], DType::F32, View::Contiguous, -3.0, 3.0);
        let what = format!("{left:?} by {right:?}, {m} x {k} x {n}");
        let (a, b) = (quantized(&a, &left), quantized(&b, &right));
        check(&what, TensorPrimitive::QFloat(a), TensorPrimitive::QFloat(b), k, DType::F32);
    }
}

/// Views of quantised tensors are multiplied without a copy.
#[test]
fn views_and_batches() {
    let random = Random::new();
    let cases: &[(&[usize], &[usize])] = &[
        (&[3, 9, 16], &[3, 16, 24]),
        (&[1, 9, 16], &[3, 16, 24]),
        (&[3, 9, 16], &[1, 16, 24]),
        (&[2, 1, 5, 16], &[1, 3, 16, 8]),
        (&[2, 3, 5, 16], &[2, 3, 16, 8]),
        (&[2, 3, 5, 16], &[16, 8]),
    ];
    let turned = |q: QTensor| R::q_transpose(q);
    for scheme in schemes().into_iter().filter(|s| s.level != QuantLevel::block([3])) {
        for &(left, right) in cases {
            let view = random.below(4);
            // The tensor is stored transposed or flipped, or is a slice of a larger one.
            let make = |shape: &[usize]| {
                let mut stored = shape.to_vec();
                let rank = stored.len();
                match view {
                    0 => stored.swap(rank - 1, rank - 2),
                    1 => stored[rank - 1] *= 2,
                    _ => {}
                }
                let q = quantized(&float(&random, &stored, DType::F32, View::Contiguous, -3.0, 3.0), &scheme);
                match view {
                    0 => turned(q),
                    1 => {
                        let mut slices = vec![Slice::new(0, None, 1); rank];
                        slices[rank - 1] = Slice::new(1, None, 2);
                        R::q_slice(q, &slices)
                    }
                    2 => R::q_flip(q, &[rank - 2, 0]),
                    _ => q,
                }
            };
            let what = format!("{scheme:?} {left:?} by {right:?}, view {view}");
            let (a, b) = (make(left), make(right));
            let k = left[left.len() - 1];
            let b = if right.len() == left.len() {
                b
            } else {
                R::q_reshape(b, Shape::from(vec![1, 1, right[0], right[1]]))
            };
            let floats = float(&random, left, DType::F32, View::ALL[random.below(5)], -3.0, 3.0);
            let floats = floats.float::<R>(&Default::default());
            check(&what, TensorPrimitive::QFloat(a), TensorPrimitive::QFloat(b.clone()), k, DType::F32);
            check(&what, TensorPrimitive::Float(floats), TensorPrimitive::QFloat(b), k, DType::F32);
        }
    }
}

/// Bytes with one scale are multiplied as integers, so sums of any length are exact.
#[test]
fn bytes_are_summed_as_integers() {
    let random = Random::new();
    for (value, store) in [(QuantValue::Q8S, QuantStore::Native), (QuantValue::Q8F, QuantStore::PackedU32(0))]
    {
        for (m, k, n) in [(4, 64, 8), (3, 5, 7), (1, 1, 1), (33, 130, 65), (2, 1001, 3)] {
            let scheme = QuantScheme::default().with_value(value).with_store(store);
            let a = float(&random, &[m, k], DType::F32, View::Contiguous, -3.0, 3.0);
            let b = float(&random, &[k, n], DType::F32, View::Contiguous, -3.0, 3.0);
            let (a, b) = (quantized(&a, &scheme), quantized(&b, &scheme));
            let out = product(TensorPrimitive::QFloat(a.clone()), TensorPrimitive::QFloat(b.clone()));
            let out = read_float::<R>(out).to_vec::<f32>().unwrap();
            let ((a, sa), (b, sb)) = (parts(read_q::<R>(a)), parts(read_q::<R>(b)));
            for i in 0..m {
                for j in 0..n {
                    let sum: i32 = (0..k).map(|d| i32::from(a[i * k + d]) * i32::from(b[d * n + j])).sum();
                    let expected = sum as f32 * (sa[0] * sb[0]);
                    let found = out[i * n + j];
                    let near = (found - expected).abs() <= 2e-6 * expected.abs() + 1e-4;
                    assert!(near, "{value:?} {m} x {k} x {n}: {found} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn nothing_to_sum() {
    let scheme = QuantScheme::default();
    let random = Random::new();
    for (left, right) in [([0, 3], [3, 4]), ([2, 0], [0, 4]), ([2, 3], [3, 0])] {
        let a = float(&random, &left, DType::F32, View::Contiguous, -3.0, 3.0);
        let b = float(&random, &right, DType::F32, View::Contiguous, -3.0, 3.0);
        let out = product(
            TensorPrimitive::QFloat(quantized(&a, &scheme)),
            TensorPrimitive::QFloat(quantized(&b, &scheme)),
        );
        let out = read_float::<R>(out);
        assert_eq!(out.shape.as_slice(), [left[0], right[1]]);
        assert!(out.iter::<f32>().all(|x| x == 0.0));
    }
}

#[test]
fn two_of_floats() {
    let random = Random::new();
    let a = float(&random, &[3, 4], DType::F16, View::Contiguous, -3.0, 3.0);
    let b = float(&random, &[4, 5], DType::F16, View::Contiguous, -3.0, 3.0);
    let (a, b) = (a.float::<R>(&Default::default()), b.float::<R>(&Default::default()));
    check("floats", TensorPrimitive::Float(a), TensorPrimitive::Float(b), 40, DType::F16);
}
