//! Sums of many terms, and of terms beside a far outlier, keep their digits: references in f64,
//! limits from the number of additions that one number goes through.

use burn_rocm::fused::{
    ClassScores, ClassTargets, cross_entropy, group_norm, group_norm_backward, layer_norm_backward,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::limits::growth;
use burn_rocm_tests::*;

/// A sum's share of rounding: no kernel adds more than `len / 256 + 512` numbers one after the
/// other, since a row has at least 256 threads, or a core's lanes start anew every 2048 elements. Of
/// a variance the deviations' errors count too.
fn share(len: usize, dtype: DType) -> f64 {
    // The reference has its own roundings, in f64.
    4.0 * (growth(len / 256 + 512, dtype) + growth(len / 256 + 256, DType::F64))
}

/// By sums of 256 numbers, so that it has few roundings too.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.chunks(256).map(|near| near.iter().sum::<f64>()).sum::<f64>() / values.len() as f64
}

fn upload(values: &[f64], shape: &[usize], dtype: DType) -> (RocmTensor, Vec<f64>) {
    let data = TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype);
    let rounded = data.iter::<f64>().collect();
    (R::float_from_data(data, &Default::default()), rounded)
}

/// A row whose first element is 1,000 deviations from its mean: sums of squared differences from
/// that element would be off by up to `1e6 * 2^-24` of the others' variance.
fn with_an_outlier(random: &Random, rows: usize, len: usize) -> Vec<f64> {
    (0..rows * len).map(|i| if i % len == 0 { 1000.0 } else { random.uniform(-1.7, 1.7) }).collect()
}

struct Row {
    mean: f64,
    rstd: f64,
    magnitude: f64,
}

fn statistics(row: &[f64], epsilon: f64) -> Row {
    let mean_of = mean(row.iter().copied());
    let variance = mean(row.iter().map(|x| (x - mean_of).powi(2)));
    Row {
        mean: mean_of,
        rstd: (variance + epsilon).sqrt().recip(),
        magnitude: mean(row.iter().map(|x| x.abs())),
    }
}

fn assert_rows(what: &str, x: &[f64], found: &TensorData, len: usize, epsilon: f64) {
    let dtype = found.dtype;
    let found: Vec<f64> = found.iter::<f64>().collect();
    for (x, y) in x.chunks(len).zip(found.chunks(len)) {
        let Row { mean, rstd, magnitude } = statistics(x, epsilon);
        for (at, (x, y)) in x.iter().zip(y).enumerate() {
            let expected = (x - mean) * rstd;
            let limit = share(len, dtype) * (magnitude * rstd + expected.abs());
            assert!(
                (y - expected).abs() <= limit,
                "{what} {dtype:?} of {len}, element {at}: {y}, not {expected} within {limit}"
            );
        }
    }
}

/// Rows that a block's threads keep, and longer ones.
const LENS: [usize; 3] = [1000, 8192, 70_000];

#[test]
fn group_norm_of_a_far_outlier() -> Result<(), RocmError> {
    let random = Random::new();
    for len in LENS {
        let (x, values) = upload(&with_an_outlier(&random, 2, len), &[2, 1, len], DType::F32);
        let out = read_float::<R>(group_norm(x, None, 1, 1e-5)?);
        assert_rows("group_norm", &values, &out, len, 1e-5);
    }
    Ok(())
}

#[test]
fn layer_norm_of_a_far_outlier() {
    let random = Random::new();
    // MIOpen has f32 alone: f64 goes by the own kernel.
    for (len, dtype) in LENS.into_iter().flat_map(|len| [(len, DType::F32), (len, DType::F64)]) {
        let (x, values) = upload(&with_an_outlier(&random, 2, len), &[2, len], dtype);
        let ones = R::float_ones(Shape::from([len]), &Default::default(), dtype.into());
        let out = read_float::<R>(R::layer_norm(x, ones, None, 1e-5));
        assert_rows("layer_norm", &values, &out, len, 1e-5);
    }
}

/// dx = rstd * (dy - mean(dy) - n * mean(dy * n)), each factor within its share.
#[test]
fn gradients_beside_a_far_outlier() -> Result<(), RocmError> {
    let (random, epsilon) = (Random::new(), 1e-5);
    for len in LENS {
        let (x, values) = upload(&with_an_outlier(&random, 2, len), &[2, 1, len], DType::F32);
        let grad: Vec<f64> = (0..2 * len).map(|_| random.uniform(-1.0, 1.0)).collect();
        let (dy, grad) = upload(&grad, &[2, 1, len], DType::F32);
        let (dx, _) = group_norm_backward(x, None, dy, 1, epsilon, false)?;
        let found: Vec<f64> = read_float::<R>(dx).iter::<f64>().collect();
        for ((x, dy), found) in values.chunks(len).zip(grad.chunks(len)).zip(found.chunks(len)) {
            let Row { mean: mean_of, rstd, magnitude } = statistics(x, epsilon);
            let normal = |x: f64| (x - mean_of) * rstd;
            let shift = mean(dy.iter().copied());
            let slope = mean(x.iter().zip(dy).map(|(&x, dy)| normal(x) * dy));
            let of_shift = mean(dy.iter().map(|dy| dy.abs()));
            let of_slope = mean(x.iter().zip(dy).map(|(&x, dy)| (normal(x) * dy).abs()));
            let moved = magnitude * rstd; // what the mean's error is a share of, in deviations
            for (at, ((&x, dy), found)) in x.iter().zip(dy).zip(found).enumerate() {
                let expected = rstd * (dy - shift - normal(x) * slope);
                let size = dy.abs()
                    + of_shift
                    + (normal(x).abs() + moved) * of_slope
                    + normal(x).abs() * moved * of_shift;
                let limit = share(len, DType::F32) * rstd * size;
                assert!(
                    (found - expected).abs() <= limit,
                    "dx of {len}, element {at}: {found}, not {expected} within {limit}"
                );
            }
        }
    }
    Ok(())
}

/// Sums over millions of elements of a channel, or of rows: one number that takes them all in turn
/// would be off by a thousandth, since where it is large each addition is rounded alike.
#[test]
fn sums_of_millions_of_terms_natively() -> Result<(), RocmError> {
    let device = Default::default();
    let full = |value: f64, shape: &[usize]| {
        R::float_full(Shape::from(shape.to_vec()), value.into(), &device, FloatDType::F32)
    };
    let value = f64::from(1.1f32);
    // A core's share of them, a few hundred at a time, and those sums; on a GPU far fewer each.
    let near = |what: &str, found: TensorData, expected: f64, terms: usize| {
        let limit = growth(terms, DType::F32) * expected.abs();
        for found in found.iter::<f64>() {
            assert!((found - expected).abs() <= limit, "{what}: {found}, not {expected} within {limit}");
        }
    };

    let spatial = 2_000_000;
    let x = full(0.0, &[1, 2, spatial]);
    let grad = full(value, &[1, 2, spatial]);
    let (_, params) = group_norm_backward(x, Some(full(1.0, &[2])), grad, 1, 1e-5, true)?;
    let [_, dbeta] = params.expect("they were asked for");
    near("group norm's dbeta", read_float::<R>(dbeta), value * spatial as f64, 512 + spatial / 2048 + 64);

    let rows = 1_000_000;
    let (_, params) = layer_norm_backward(
        full(0.0, &[rows, 4]),
        full(1.0, &[4]),
        full(value, &[rows, 4]),
        None,
        1e-5,
        true,
    )?;
    let [_, dbeta] = params.expect("they were asked for");
    near("layer norm's dbeta", read_float::<R>(dbeta), value * rows as f64, 512 + rows / 512 + 64);

    let of = ClassTargets {
        scores: ClassScores::Logits,
        targets: R::int_zeros(Shape::from([spatial]), &device, IntDType::I32),
        smoothing: None,
        pad_tokens: Vec::new(),
    };
    let (loss, _) = cross_entropy(full(0.0, &[spatial, 2]), None, &of)?;
    near("cross entropy", read_float::<R>(loss), std::f64::consts::LN_2, 1024);
    Ok(())
}
