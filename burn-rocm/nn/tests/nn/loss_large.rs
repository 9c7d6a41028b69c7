//! Cross entropy of logits that are large compared with their differences. A softmax depends on the
//! differences alone, so loss and gradient must stay accurate.

use burn::nn::loss as burns;
use burn::tensor::activation::log_softmax;
use burn_rocm_nn::loss::{self as own, NllLossConfig};

use crate::loss::{Options, Row, Scores, counted, run, targets};
use crate::support::*;

/// A value, and the limit of its rounding error.
#[derive(Clone, Copy)]
struct Bounded {
    value: f64,
    bound: f64,
}

/// The error of one exponential or logarithm, in units of rounding: 4 ulp.
const FUNCTION: f64 = 8.0;

/// The unit roundoff of the compute type, and that of the dtype itself.
fn units(dtype: DType) -> [f64; 2] {
    let single = 2f64.powi(-24);
    match dtype {
        DType::F64 => [2f64.powi(-53); 2],
        DType::F16 => [single, 2f64.powi(-11)],
        DType::BF16 => [single, 2f64.powi(-8)],
        _ => [single; 2],
    }
}

/// The loss, and the gradient of three times the loss, with first-order bounds for sums in any
/// order. `d = x - max` is rounded once, which moves `exp(d)` by `|d|` units. A sum of n
/// exponentials moves by n units, and by the mean of its terms' shares. All else is products and
/// sums of n terms.
fn reference(x: &[f64], targets: &[i64], of: &Options, dtype: DType) -> Vec<Bounded> {
    let [u, stored] = units(dtype);
    let (rows, len) = (targets.len(), x.len() / targets.len());
    let n = len as f64;
    let (mut loss, mut bound, mut grad) = (0.0, 0.0, Vec::new());
    let (counted, divisor) = counted(x, targets, of);
    assert_eq!(counted.len(), rows, "a row of a pad token");
    for (_, Row { scores, max, sum, share, all }) in counted {
        let d: Vec<f64> = scores.iter().map(|v| v - max).collect();
        let (log_sum, p) = (sum.ln(), d.iter().map(|d| d.exp() / sum).collect::<Vec<_>>());
        let mean: f64 = p.iter().zip(&d).map(|(p, d)| p * d.abs()).sum();
        let by_sum = u * (mean + FUNCTION + n);
        for class in 0..len {
            let (d, k) = (d[class], share[class]);
            let log_p = d - log_sum;
            let by_log = u * (d.abs() + FUNCTION * log_sum + log_p.abs()) + by_sum;
            loss -= k * log_p;
            bound += k * (by_log + (n + 8.0) * u * log_p.abs());
            let (up, slope) = (p[class] * all, p[class] * all - k);
            let by_p = u * (d.abs() + FUNCTION) + by_sum + (n + 8.0) * u;
            let value = 3.0 * slope / divisor;
            let by_divisor = (rows as f64 + 8.0) * u + stored;
            grad.push(Bounded {
                value,
                bound: 3.0 * (up * by_p + 8.0 * u * k) / divisor + value.abs() * by_divisor,
            });
        }
    }
    let by_rows = (rows as f64 + 8.0) * u + stored;
    let loss = Bounded { value: loss / divisor, bound: (bound + loss.abs() * by_rows) / divisor };
    std::iter::once(loss).chain(grad).collect()
}

fn check(what: &str, found: &[TensorData], expected: &[Bounded], dtype: DType) {
    let found: Vec<f64> =
        found.iter().flat_map(|data| data.clone().convert::<f64>().into_vec().unwrap()).collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    // In f64 the reference has the same error. f16 may also be off by half its least number.
    let (twice, least) = (if dtype == DType::F64 { 2.0 } else { 1.0 }, 2f64.powi(-25));
    for (place, (found, Bounded { value, bound })) in found.iter().zip(expected).enumerate() {
        let bound = twice * bound + if dtype == DType::F16 { least } else { 0.0 };
        assert!(
            (found - value).abs() <= bound,
            "{what}, [loss, gradient..][{place}]: {found} instead of {value}, bound {bound:e}"
        );
    }
}

const PLAIN: Options = Options { weights: None, smoothing: None, pad_tokens: None };

/// The dtypes, and the values around which each test's logits lie.
fn centres() -> impl Iterator<Item = (DType, f64)> {
    [
        (DType::F32, vec![0.0, 1e5, -1e5, 1e7, 1e8]),
        (DType::F64, vec![1e5, 1e8, -1e8, 1e30]),
        (DType::BF16, vec![0.0, 1e5, 1e30]),
        (DType::F16, vec![0.0, 6e4]),
    ]
    .into_iter()
    .flat_map(|(dtype, all)| all.into_iter().map(move |centre| (dtype, centre)))
}

/// `[c, c, c - 8]`, alone and in rows whose lengths other kernels take.
#[test]
fn gradients_are_of_the_differences_alone() {
    for (dtype, centre) in centres() {
        for len in [3, 40, 1100, 20_000] {
            let x: Vec<f64> = (0..len).map(|i| if i < 2 { centre } else { centre - 8.0 }).collect();
            let x = TensorData::new(x, [1, len]).convert_dtype(dtype);
            let exact: Vec<f64> = x.iter::<f64>().collect();
            let expected = reference(&exact, &[0], &PLAIN, dtype);
            let found = run::<Ours>(Scores::Logits, &x, &[0], DType::I32, &PLAIN);
            check(&format!("{len} of {dtype:?} around {centre:e}"), &found, &expected, dtype);
        }
    }
}

/// In f32 the gradient is that of Burn's module at any c.
#[test]
fn the_gradient_of_three_large_logits() {
    for centre in [1e5, 1e7, 1e8] {
        let x = TensorData::new(vec![centre, centre, centre - 8.0], [1, 3]).convert_dtype(DType::F32);
        let found = run::<Ours>(Scores::Logits, &x, &[0], DType::I32, &PLAIN);
        let grad: Vec<f64> = found[1].iter::<f64>().map(|g| g / 3.0).collect();
        let near = (grad[0] + 0.500_084).abs() < 1e-6 && (grad[1] - 0.499_916).abs() < 1e-6;
        assert!(near, "around {centre:e}: {grad:?}");
    }
}

/// Smoothing, class weights and both, over rows that a thread, a warp or a block computes.
#[test]
fn label_smoothing_does_not_cancel() {
    let random = Random::new();
    for (dtype, centre) in centres() {
        for [rows, len] in [[5, 7], [3, 33], [2, 1000], [2, 1027], [1, 17_000]] {
            let x = (0..rows * len).map(|_| centre - random.uniform(0.0, 8.0)).collect::<Vec<f64>>();
            let x = TensorData::new(x, [rows, len]).convert_dtype(dtype);
            let exact: Vec<f64> = x.iter::<f64>().collect();
            let classes: Vec<i64> = (0..rows).map(|_| random.below(len) as i64).collect();
            let weights = Some((0..len).map(|_| random.uniform(0.5, 2.0) as f32).collect::<Vec<_>>());
            for (smoothing, weights) in
                [(Some(0.1), None), (Some(1.0), None), (Some(0.3), weights.clone()), (None, weights)]
            {
                let of = Options { weights, smoothing, pad_tokens: None };
                let expected = reference(&exact, &classes, &of, dtype);
                let found = run::<Ours>(Scores::Logits, &x, &classes, DType::I32, &of);
                let weighted = of.weights.is_some();
                let what = format!(
                    "{rows} x {len} of {dtype:?} around {centre:e}, smoothing {smoothing:?}, weighted {weighted}"
                );
                check(&what, &found, &expected, dtype);
            }
        }
    }
}

/// A log-softmax and its gradient, followed by a negative log-likelihood.
#[test]
fn a_log_softmax_keeps_its_digits_too() {
    let random = Random::new();
    for (dtype, centre) in centres().filter(|(dtype, _)| matches!(dtype, DType::F32 | DType::F64)) {
        for [rows, len] in [[5, 7], [2, 1000], [1, 17_000]] {
            let x = (0..rows * len).map(|_| centre - random.uniform(0.0, 8.0)).collect::<Vec<f64>>();
            let x = TensorData::new(x, [rows, len]).convert_dtype(dtype);
            let exact: Vec<f64> = x.iter::<f64>().collect();
            let classes: Vec<i64> = (0..rows).map(|_| random.below(len) as i64).collect();
            let of = Options { smoothing: Some(0.1), ..PLAIN };
            let leaf = tensor::<Ours, 2>(&x, dtype).require_grad();
            let loss = NllLossConfig::new().with_smoothing(of.smoothing).init::<Ours>(&Default::default());
            let out = loss.forward(log_softmax(leaf.clone(), 1), targets::<Ours>(&classes, DType::I32));
            let grads = (out.clone() * 3.0).backward();
            let found = [out.into_data(), leaf.grad(&grads).unwrap().into_data()];
            let what = format!("{rows} x {len} of {dtype:?} around {centre:e}");
            // The gradient takes the exponential of the output, which adds the output's error once
            // more.
            let twice = reference(&exact, &classes, &of, dtype).into_iter();
            let expected: Vec<Bounded> = twice.map(|of| Bounded { bound: 2.0 * of.bound, ..of }).collect();
            check(&what, &found, &expected, dtype);
        }
    }
}

/// Smoothing of 1 spreads all of a target's weight over the classes. One class of probability 0
/// makes the loss infinite, even if it is not the target.
#[test]
fn smoothing_of_one_over_an_impossible_class_is_infinite_as_burns() {
    for (len, smoothing) in [3, 40, 1100, 20_000].into_iter().flat_map(|len| [0.25, 1.0].map(|a| (len, a))) {
        for weighted in [false, true] {
            let mut x = vec![0.5; len];
            x[1] = f64::NEG_INFINITY;
            let x = TensorData::new(x, [1, len]).convert_dtype(DType::F32);
            let weights = weighted.then(|| vec![1.5; len]);
            for target in [0, 1] {
                macro_rules! loss_of {
                    ($B:ident, $from:ident) => {{
                        let config = $from::CrossEntropyLossConfig::new()
                            .with_smoothing(Some(smoothing))
                            .with_weights(weights.clone());
                        let classes = targets::<$B>(&[target], DType::I32);
                        let out =
                            config.init::<$B>(&Default::default()).forward(tensor(&x, DType::F32), classes);
                        out.into_scalar()
                    }};
                }
                let [ours, theirs] = [loss_of!(Ours, own), loss_of!(Oracle, burns)];
                let what =
                    format!("{len} classes, smoothing {smoothing}, target {target}, weighted {weighted}");
                assert_eq!([ours, theirs], [f32::INFINITY; 2], "{what}");
                let loss = NllLossConfig::new()
                    .with_smoothing(Some(smoothing))
                    .with_weights(weights.clone())
                    .init::<Ours>(&Default::default());
                let likelihood = loss.forward(tensor(&x, DType::F32), targets(&[target], DType::I32));
                assert_eq!(likelihood.into_scalar(), f32::INFINITY, "log-likelihoods: {what}");
            }
        }
    }
}
