//! Sums of many terms, and of terms beside a far outlier, stay accurate. The references are in f64,
//! and the limits follow from the number of additions that one number goes through.

use burn_rocm::fused::{
    ClassScores, ClassTargets, cross_entropy, group_norm, group_norm_backward, layer_norm_backward,
};
use burn_rocm::{RocmError, RocmTensor};
use burn_rocm_tests::limits::{growth, in_turn};
use burn_rocm_tests::lockstep::in_lockstep;
use burn_rocm_tests::*;

/// The error allowed in a row's norm or in its gradient, as a share of their terms' magnitudes.
///
/// The factor 4.0 bounds a result that goes through four sums, as a gradient does: of x, of its
/// squared deviations, of the output's gradient, and of that times the normalised x. A norm goes
/// through the first two. To first order each sum adds its own share, `growth`, or less.
///
/// A sum's own share comes from [`in_turn`].
fn share(len: usize, dtype: DType) -> f64 {
    // The reference has its own roundings in f64.
    4.0 * (growth(in_turn(len), dtype) + growth(len / 256 + 256, DType::F64))
}

/// The mean from sums of 256 numbers each, so that it too has few roundings.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.chunks(256).map(|near| near.iter().sum::<f64>()).sum::<f64>() / values.len() as f64
}

fn upload(values: &[f64], shape: &[usize], dtype: DType) -> (RocmTensor, Vec<f64>) {
    let data = TensorData::new(values.to_vec(), shape.to_vec()).convert_dtype(dtype);
    let rounded = data.iter::<f64>().collect();
    (R::float_from_data(data, &Default::default()), rounded)
}

/// Rows whose first element is 1,000 deviations from the mean. Sums of squared differences from
/// that element would be wrong by up to `1e6 * 2^-24` of the others' variance.
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

/// Rows that fit the registers of a block's threads, and longer ones.
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
    // MIOpen lacks f64, so a kernel of this project normalises it.
    for (len, dtype) in LENS.into_iter().flat_map(|len| [(len, DType::F32), (len, DType::F64)]) {
        let (x, values) = upload(&with_an_outlier(&random, 2, len), &[2, len], dtype);
        let ones = R::float_ones(Shape::from([len]), &Default::default(), dtype.into());
        let out = read_float::<R>(R::layer_norm(x, ones, None, 1e-5));
        assert_rows("layer_norm", &values, &out, len, 1e-5);
    }
}

/// Rows with three far outliers, of which one is the first element; or rows of one value with 32
/// outliers, so that roundings are alike and add up.
fn with_outliers(random: &Random, rows: usize, len: usize, alike: bool) -> Vec<f64> {
    let mut x = with_an_outlier(random, rows, len);
    let places = if alike { 32 } else { 3 };
    for row in x.chunks_mut(len) {
        if alike {
            row.fill(0.1);
        }
        (0..places).for_each(|part| row[part * len / places] = 937.3);
    }
    x
}

/// [`share`] for the gradient of a norm of [`with_outliers`] on a GPU. Its kernels sum differences
/// from the row's first element; if that element is more than 4 deviations from the mean (here it
/// is 5 or more), they sum again, from the mean. A thread adds at most `len / 256` numbers, and 10
/// more when the threads' sums are joined. (In rows of 1000 it adds 8, which the factor 4.0 allows
/// for.)
fn gradient_share(len: usize) -> f64 {
    // A core of the CPU device takes whole rows and sums from their mean.
    if hip::Device::get(0).unwrap().info().warp_size == 1 {
        return share(len, DType::F32);
    }
    4.0 * growth(len / 256 + 10, DType::F32)
}

/// Checks `dx = rstd * (h - mean(h) - n * mean(h * n))` with `h = dy * gamma`, with each factor
/// within its share.
fn assert_gradient(x: &[f64], h: &[f64], found: &[f64], epsilon: f64, share: f64) {
    let len = x.len();
    let Row { mean: mean_of, rstd, magnitude } = statistics(x, epsilon);
    let normal = |x: f64| (x - mean_of) * rstd;
    let shift = mean(h.iter().copied());
    let slope = mean(x.iter().zip(h).map(|(&x, h)| normal(x) * h));
    let of_shift = mean(h.iter().map(|h| h.abs()));
    let of_slope = mean(x.iter().zip(h).map(|(&x, h)| (normal(x) * h).abs()));
    let moved = magnitude * rstd; // the mean's error is a share of this, in deviations
    for (at, ((&x, h), found)) in x.iter().zip(h).zip(found).enumerate() {
        let expected = rstd * (h - shift - normal(x) * slope);
        let size =
            h.abs() + of_shift + (normal(x).abs() + moved) * of_slope + normal(x).abs() * moved * of_shift;
        let limit = share * rstd * size;
        assert!(
            (found - expected).abs() <= limit,
            "dx of {len}, element {at}: {found}, not {expected} within {limit}"
        );
    }
}

/// The lengths of the rows: several that fit a block's registers, one that no wide access fits, and
/// longer ones. The bool says whether all elements but the outliers are equal.
fn gradients() -> &'static [(usize, bool)] {
    if in_lockstep() {
        &[(1000, false), (1000, true), (8192, true), (20_001, true)]
    } else {
        &[(1000, false), (1000, true), (8192, false), (8192, true), (70_001, true), (300_000, true)]
    }
}

#[test]
fn gradients_of_group_norm_beside_far_outliers() -> Result<(), RocmError> {
    let (random, epsilon) = (Random::new(), 1e-5);
    for &(len, alike) in gradients() {
        // Channels in one group. An odd length has one channel.
        let channels = if len % 4 == 0 { 4 } else { 1 };
        let shape = [2, channels, len / channels];
        let (x, values) = upload(&with_outliers(&random, 2, len, alike), &shape, DType::F32);
        let grad: Vec<f64> = (0..2 * len).map(|_| random.uniform(-1.0, 1.0)).collect();
        let (dy, grad) = upload(&grad, &shape, DType::F32);
        let scale: Vec<f64> = (0..channels).map(|_| random.uniform(0.5, 1.5)).collect();
        let (gamma, scale) = upload(&scale, &[channels], DType::F32);
        let without = (len <= 8192).then_some(None);
        for gamma in without.into_iter().chain([Some(gamma)]) {
            let of = |i: usize| if gamma.is_some() { scale[i % len / shape[2]] } else { 1.0 };
            let h: Vec<f64> = grad.iter().enumerate().map(|(i, dy)| dy * of(i)).collect();
            let (dx, _) = group_norm_backward(x.clone(), gamma, dy.clone(), 1, epsilon, false)?;
            let found: Vec<f64> = read_float::<R>(dx).iter::<f64>().collect();
            for ((x, h), found) in values.chunks(len).zip(h.chunks(len)).zip(found.chunks(len)) {
                assert_gradient(x, h, found, epsilon, gradient_share(len));
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_of_layer_norm_beside_far_outliers() -> Result<(), RocmError> {
    let (random, epsilon, rows) = (Random::new(), 1e-5, 2);
    for &(len, alike) in gradients() {
        let share = gradient_share(len);
        let (x, values) = upload(&with_outliers(&random, rows, len, alike), &[rows, len], DType::F32);
        let drawn =
            |count: usize, low, high| -> Vec<f64> { (0..count).map(|_| random.uniform(low, high)).collect() };
        let (dy, grad) = upload(&drawn(rows * len, -1.0, 1.0), &[rows, len], DType::F32);
        let (gamma, scale) = upload(&drawn(len, 0.5, 1.5), &[len], DType::F32);
        let (dx, params) = layer_norm_backward(x, gamma, dy, None, epsilon, true)?;
        let read = |tensor| read_float::<R>(tensor).iter::<f64>().collect::<Vec<f64>>();
        let found = read(dx);
        let [dgamma, dbeta] = params.expect("they were asked for").map(read);
        // dgamma is the sum over rows of `dy * n`. Each pair holds the limit and the sum.
        let mut of_gamma = vec![(0.0, 0.0); len];
        for ((x, dy), found) in values.chunks(len).zip(grad.chunks(len)).zip(found.chunks(len)) {
            let h: Vec<f64> = dy.iter().zip(&scale).map(|(dy, gamma)| dy * gamma).collect();
            assert_gradient(x, &h, found, epsilon, share);
            let Row { mean, rstd, magnitude } = statistics(x, epsilon);
            for ((sum, x), dy) in of_gamma.iter_mut().zip(x).zip(dy) {
                let normal = (x - mean) * rstd;
                sum.0 += share * dy.abs() * (normal.abs() + magnitude * rstd);
                sum.1 += dy * normal;
            }
        }
        for at in 0..len {
            let ((limit, expected), found) = (of_gamma[at], dgamma[at]);
            assert!(
                (found - expected).abs() <= limit,
                "dgamma of {len}, element {at}: {found}, not {expected} within {limit}"
            );
            let (expected, found) = (grad[at] + grad[len + at], dbeta[at]);
            assert!(
                (found - expected).abs() <= growth(rows, DType::F32) * 2.0,
                "dbeta of {len}, element {at}: {found}, not {expected}"
            );
        }
    }
    Ok(())
}

/// Sums over millions of elements of a channel, or of rows. A single running sum would be wrong by
/// a thousandth: once it is large, every addition is rounded in the same direction.
#[test]
fn sums_of_millions_of_terms_natively() -> Result<(), RocmError> {
    let device = Default::default();
    let full = |value: f64, shape: &[usize]| {
        R::float_full(Shape::from(shape.to_vec()), value.into(), &device, FloatDType::F32)
    };
    let value = f64::from(1.1f32);
    // `terms` is the number of additions that one number goes through. A core adds a few hundred
    // numbers at a time and then those sums; a GPU's thread adds far fewer.
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
