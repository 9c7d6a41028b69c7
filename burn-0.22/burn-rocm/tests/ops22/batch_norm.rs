//! Batch norm with given statistics, with the batch's own statistics, and its gradients, compared
//! with f64 within rounding bounds.

use crate::harness::*;

/// Ranks 2 to 5; channels whose elements are contiguous and channels whose elements are not, 16-bit
/// ones of which may be read 8 at a time; sizes that MIOpen computes correctly and sizes for which it
/// mixes channels (<https://github.com/ROCm/rocm-libraries/pull/6765>).
const SHAPES: &[&[usize]] = &[
    &[8, 3],
    &[33, 40],
    &[70, 16],
    &[4, 3, 5],
    &[5, 2, 4, 4],
    &[2, 7, 3, 3],
    &[16, 3, 8, 8],
    &[3, 2, 2, 3, 4],
    &[1, 3, 12],
    &[300, 1, 4],
];

struct Case {
    what: String,
    dims: [usize; 3],
    x: Input,
    gamma: Input,
    beta: Input,
    /// The values of the inputs after rounding to their dtypes.
    exact: [Vec<f64>; 3],
    epsilon: f64,
    dtype: DType,
    param: DType,
}

fn cases() -> Vec<(Random, Case)> {
    let mut all = Vec::new();
    for dtype in FLOATS {
        let params: &[DType] =
            if [DType::F16, DType::BF16].contains(&dtype) { &[dtype, DType::F32] } else { &[dtype] };
        for (&param, &shape) in params.iter().flat_map(|param| SHAPES.iter().map(move |shape| (param, shape)))
        {
            for epsilon in [1e-5, 0.25] {
                let random = Random::new();
                let contiguous_or =
                    |random: &Random| [View::Contiguous, View::Permuted, View::Sliced][random.below(3)];
                let mean = random.uniform(-2.0, 2.0);
                let x = float(&random, shape, dtype, contiguous_or(&random), mean - 1.5, mean + 1.5);
                let gamma = float(&random, &shape[1..2], param, View::Contiguous, 0.5, 1.5);
                let beta = float(&random, &shape[1..2], param, View::Sliced, -0.5, 0.5);
                let exact = [&x, &gamma, &beta].map(exact);
                let what = format!("{dtype:?} with {param:?} {shape:?} epsilon {epsilon}");
                let dims = [shape[0], shape[1], shape[2..].iter().product()];
                all.push((random, Case { what, dims, x, gamma, beta, exact, epsilon, dtype, param }));
            }
        }
    }
    all
}

impl Case {
    /// The positions of a channel's elements.
    fn channel(&self, c: usize) -> impl Iterator<Item = usize> {
        let [batch, channels, spatial] = self.dims;
        (0..batch * spatial).map(move |i| (i / spatial * channels + c) * spatial + i % spatial)
    }

    fn count(&self) -> f64 {
        (self.dims[0] * self.dims[2]) as f64
    }

    /// The unit roundoff of the compute type, and that of the results' type if it is narrower.
    fn units(&self) -> [f64; 2] {
        [unit(wide(self.dtype)), rounding(self.dtype)]
    }

    fn on<B: Backend>(&self, input: &Input, device: &B::Device) -> burn_backend::tensor::FloatTensor<B> {
        input.float::<B>(device)
    }

    /// For each channel: mean and biased variance, and the limits of their errors.
    ///
    /// A sum of n terms is off by `(n + 2) u` of the terms' magnitudes (Higham 2002, section 3.1).
    /// MIOpen's variance is the mean of squares less the squared mean. Each of the two is off by
    /// that share of the largest square.
    fn statistics(&self) -> Vec<[f64; 4]> {
        let (n, [u, _]) = (self.count(), self.units());
        (0..self.dims[1])
            .map(|c| {
                let x: Vec<f64> = self.channel(c).map(|at| self.exact[0][at]).collect();
                let mean = x.iter().sum::<f64>() / n;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let most = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let mean_off = (n + 2.0) * u * most;
                [mean, variance, mean_off, 2.0 * mean_off * most + 2.0 * (n + 4.0) * u * most * most]
            })
            .collect()
    }
}

/// `(x - mean) * rstd * gamma + beta` and the limit of its error, from the errors of mean and
/// variance.
fn normalised(
    case: &Case,
    c: usize,
    x: f64,
    [mean, variance, mean_off, variance_off]: [f64; 4],
) -> (f64, f64) {
    let [u, own] = case.units();
    let [gamma, beta] = [case.exact[1][c], case.exact[2][c]];
    let rstd = 1.0 / (variance + case.epsilon).sqrt();
    let off = mean_off + u * (x - mean).abs();
    // Adds higher orders, which count if little of the variance is left.
    let share = (variance_off * rstd * rstd).min(1.0) + 5.0 * u;
    let n = (x - mean) * rstd;
    let y = n * gamma + beta;
    let limit = gamma.abs() * (off * rstd * (1.0 + share) + n.abs() * share)
        + 3.0 * u * (n * gamma).abs()
        + 2.0 * u * y.abs();
    (y, 1.01 * (limit + own * (y.abs() + limit)) + least(case.dtype))
}

#[test]
fn training() {
    for (_, case) in cases() {
        let device = device();
        let [x, gamma, beta] = [&case.x, &case.gamma, &case.beta].map(|input| case.on::<R>(input, &device));
        let out = R::batch_norm_train(x, gamma, beta, case.epsilon);
        let what = format!("batch_norm_train {}", case.what);
        assert_eq!(out.output.dtype(), case.dtype, "{what}");
        assert_eq!((out.mean.dtype(), out.variance.dtype()), (case.param, case.param), "{what}");
        let statistics = case.statistics();
        let own = if case.param == wide(case.dtype) { 0.0 } else { unit(case.param) };
        for (row, (found, name)) in [(out.mean, "mean"), (out.variance, "variance")].into_iter().enumerate() {
            let expected: Vec<f64> = statistics.iter().map(|all| all[row]).collect();
            // MIOpen returns 1 / sqrt(variance + epsilon), so the errors of that sum count too.
            let limits: Vec<f64> = statistics
                .iter()
                .map(|all| {
                    let limit = all[row + 2] + 8.0 * unit(wide(case.dtype)) * (all[row].abs() + case.epsilon);
                    1.01 * (limit + own * (all[row].abs() + limit)) + least(case.param)
                })
                .collect();
            assert_within(&format!("{what}: {name}"), &read_float::<R>(found), &expected, &limits);
        }
        let (mut expected, mut limits) = (vec![0.0; case.exact[0].len()], vec![0.0; case.exact[0].len()]);
        for (c, statistics) in statistics.into_iter().enumerate() {
            for at in case.channel(c) {
                (expected[at], limits[at]) = normalised(&case, c, case.exact[0][at], statistics);
            }
        }
        assert_within(&what, &read_float::<R>(out.output), &expected, &limits);
    }
}

#[test]
fn inference() {
    for (random, case) in cases() {
        let device = device();
        let channels = [case.dims[1]];
        let mean = float(&random, &channels, case.param, View::Contiguous, -2.0, 2.0);
        let variance = float(&random, &channels, case.param, View::Flipped, 0.1, 3.0);
        let given = exact(&mean).into_iter().zip(exact(&variance));
        let [x, gamma, beta, mean, variance] =
            [&case.x, &case.gamma, &case.beta, &mean, &variance].map(|input| case.on::<R>(input, &device));
        let found = R::batch_norm(x, gamma, beta, mean, variance, case.epsilon);
        let (mut expected, mut limits) = (vec![0.0; case.exact[0].len()], vec![0.0; case.exact[0].len()]);
        for (c, (mean, variance)) in given.enumerate() {
            for at in case.channel(c) {
                let given = [mean, variance, 0.0, 0.0];
                (expected[at], limits[at]) = normalised(&case, c, case.exact[0][at], given);
            }
        }
        assert_within(&format!("batch_norm {}", case.what), &read_float::<R>(found), &expected, &limits);
    }
}

/// The formula uses the statistics that the forward pass returned, or those of x if the forward pass
/// rounded them to 16 bits.
#[test]
fn gradients() {
    for (random, case) in cases() {
        let device = device();
        let shape = case.x.shape().to_vec();
        // Not around 0: the products with a mean's error add up.
        let grad = float(&random, &shape, case.dtype, view(&random), -0.5, 1.5);
        let operand = |input: &Input| case.on::<R>(input, &device);
        let out =
            R::batch_norm_train(operand(&case.x), operand(&case.gamma), operand(&case.beta), case.epsilon);
        let statistics: Vec<[f64; 4]> = if case.param == wide(case.dtype) {
            let given = [&out.mean, &out.variance].map(|given| values(&read_float::<R>(given.clone())));
            given[0].iter().zip(&given[1]).map(|(&mean, &variance)| [mean, variance, 0.0, 0.0]).collect()
        } else {
            case.statistics()
        };
        let found = R::batch_norm_train_backward(
            operand(&case.x),
            operand(&case.gamma),
            out.mean,
            out.variance,
            case.epsilon,
            operand(&grad),
        );
        let what = format!("batch_norm_train_backward {}", case.what);
        assert_eq!(
            (found.x_grad.dtype(), found.gamma_grad.dtype(), found.beta_grad.dtype()),
            (case.dtype, case.param, case.param),
            "{what}"
        );
        let grad = exact(&grad);
        let (n, [u, own]) = (case.count(), case.units());
        let (mut dx, mut dx_limits) = (vec![0.0; grad.len()], vec![0.0; grad.len()]);
        let (mut sums, mut sum_limits) = ([vec![], vec![]], [vec![], vec![]]);
        for (c, &[mean, variance, mean_off, variance_off]) in statistics.iter().enumerate() {
            let rstd = 1.0 / (variance + case.epsilon).sqrt();
            let n_of = |at: usize| (case.exact[0][at] - mean) * rstd;
            // The errors of the statistics change rstd by this share, and n by `n_off`, as in
            // `normalised`.
            let share = (variance_off * rstd * rstd).min(1.0);
            let n_off = |at: usize| mean_off * rstd * (1.0 + share) + n_of(at).abs() * share;
            // 1 for the difference, 4 for the root and its reciprocal, 1 for the product.
            let (mut dgamma, mut dbeta, mut both, mut moved, mut alone) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for at in case.channel(c) {
                dgamma += grad[at] * n_of(at);
                dbeta += grad[at];
                both += grad[at].abs() * (n_of(at).abs() + n_off(at));
                moved += grad[at].abs() * n_off(at);
                alone += grad[at].abs();
            }
            let off = [(n + 2.0 + 7.0) * u * both + moved, (n + 2.0) * u * alone];
            let param = if case.param == wide(case.dtype) { 0.0 } else { unit(case.param) };
            for (k, sum) in [dgamma, dbeta].into_iter().enumerate() {
                sums[k].push(sum);
                sum_limits[k].push(1.01 * (off[k] + param * (sum.abs() + off[k])) + least(case.param));
            }
            let scale = case.exact[1][c].abs() * rstd * (1.0 + share);
            for at in case.channel(c) {
                let projected = n_of(at) * dgamma / n;
                let inner = grad[at] - dbeta / n - projected;
                dx[at] = case.exact[1][c] * rstd * inner;
                let terms = grad[at].abs() + (dbeta / n).abs() + projected.abs();
                let limit = scale
                    * (off[1] / n
                        + (n_of(at).abs() + n_off(at)) * off[0] / n
                        + n_off(at) * (dgamma / n).abs()
                        + 7.0 * u * projected.abs()
                        + 4.0 * u * terms
                        + 6.0 * u * inner.abs())
                    + share * dx[at].abs();
                dx_limits[at] = 1.01 * (limit + own * (dx[at].abs() + limit)) + least(case.dtype);
            }
        }
        assert_within(&format!("{what}: x"), &read_float::<R>(found.x_grad), &dx, &dx_limits);
        let params = [found.gamma_grad, found.beta_grad].map(read_float::<R>);
        for ((found, name), (sums, limits)) in
            params.iter().zip(["gamma", "beta"]).zip(sums.iter().zip(&sum_limits))
        {
            assert_within(&format!("{what}: {name}"), found, sums, limits);
        }
    }
}

/// Half of x is 300 and half -300, so f16 does not hold the variance. The output is right, and so are
/// the gradients. The cases: channels that are read one by one, channels that are read 8 at a time,
/// MIOpen, and images with channels last.
#[test]
fn a_variance_that_f16_does_not_hold() {
    let device = device();
    let cases: [(&[usize], bool); 4] =
        [(&[64, 1], false), (&[64, 8], false), (&[8, 3, 4, 4], false), (&[8, 8, 4, 4], true)];
    for (shape, last) in cases {
        let (batch, channels) = (shape[0], shape[1]);
        let each = shape[2..].iter().product::<usize>();
        // All elements of a sample are the same.
        let samples = |value: &dyn Fn(usize) -> f64| -> Vec<f64> {
            (0..batch * channels * each).map(|at| value(at / (channels * each))).collect()
        };
        let f16 = |values: Vec<f64>, shape: Vec<usize>| {
            let data = TensorData::new(values, Shape::from(shape)).convert_dtype(DType::F16);
            R::float_from_data(data, &device)
        };
        let sign = |sample: usize| if sample.is_multiple_of(2) { 1.0 } else { -1.0 };
        let numbers = samples(&|sample| 300.0 * sign(sample));
        let x = match last {
            true => R::float_permute(f16(numbers, vec![batch, shape[2], shape[3], channels]), &[0, 3, 1, 2]),
            false => f16(numbers, shape.to_vec()),
        };
        // The gradient is 1 in the first sample, whose x is 1 deviation above the mean.
        let grad = f16(samples(&|sample| f64::from(u8::from(sample == 0))), shape.to_vec());
        let gamma = f16(vec![1.0; channels], vec![channels]);
        let beta = f16(vec![0.0; channels], vec![channels]);
        let out = R::batch_norm_train(x.clone(), gamma.clone(), beta, 1e-5);
        let back = R::batch_norm_train_backward(x, gamma, out.mean, out.variance, 1e-5, grad);
        // With n elements in a channel and u = 2^-24: the mean is off by (n + 2) u deviations,
        // 1 / deviation by a share of 4 (n + 4) u, and sums and formula by (n + 22) u of their terms,
        // which have this magnitude.
        let count = (batch * each) as f64;
        let check = |what: &str, found, expected: &[f64], magnitude: f64| {
            let off = 6.0 * (count + 10.0) * unit(DType::F32) * magnitude;
            let limit = |x: &f64| 1.01 * (off + unit(DType::F16) * (x.abs() + off)) + least(DType::F16);
            let limits: Vec<f64> = expected.iter().map(limit).collect();
            assert_within(&format!("{what} of {shape:?}"), &read_float::<R>(found), expected, &limits);
        };
        check("output", out.output, &samples(&sign), 1.0);
        // (grad - mean(grad) - n * mean(grad * n)) / deviation, where both means are 1 / batch.
        let part = 1.0 / batch as f64;
        let dx = |sample: usize| {
            (f64::from(u8::from(sample == 0)) - part - sign(sample) * part) / (9e4f64 + 1e-5).sqrt()
        };
        check("gradient of x", back.x_grad, &samples(&dx), 3.0 / 300.0);
        check("gradient of gamma", back.gamma_grad, &vec![each as f64; channels], each as f64);
        check("gradient of beta", back.beta_grad, &vec![each as f64; channels], each as f64);
    }
}

/// A channel without elements has a NaN mean, like any mean of nothing, and gradients of 0.
#[test]
fn of_nothing() {
    let device = device();
    for shape in [&[0usize, 3] as &[usize], &[0, 3, 4], &[2, 3, 0, 4]] {
        for dtype in FLOATS {
            let zeros = |shape: &[usize]| R::float_zeros(Shape::from(shape.to_vec()), &device, dtype.into());
            let out = R::batch_norm_train(zeros(shape), zeros(&[3]), zeros(&[3]), 1e-5);
            assert_eq!(out.output.shape().as_slice(), shape);
            assert!(values(&read_float::<R>(out.mean.clone())).iter().all(|mean| mean.is_nan()), "{shape:?}");
            let inferred =
                R::batch_norm(zeros(shape), zeros(&[3]), zeros(&[3]), zeros(&[3]), zeros(&[3]), 1e-5);
            assert_eq!(inferred.shape().as_slice(), shape);
            let back = R::batch_norm_train_backward(
                zeros(shape),
                zeros(&[3]),
                out.mean,
                out.variance,
                1e-5,
                zeros(shape),
            );
            assert_eq!(back.x_grad.shape().as_slice(), shape);
            for grad in [back.gamma_grad, back.beta_grad] {
                assert_eq!(values(&read_float::<R>(grad)), [0.0; 3]);
            }
        }
    }
    let x = float(&Random::from_seed(1), &[4, 3], DType::F32, View::Contiguous, 0.0, 1.0).float::<R>(&device);
    let gamma = R::float_ones(Shape::from([2]), &device, FloatDType::F32);
    let error =
        refused("two scales for three channels", || R::batch_norm_train(x, gamma.clone(), gamma, 1e-5));
    assert!(matches!(error, RocmError::Invalid { op: "batch_norm_train", .. }), "{error:?}");
}
