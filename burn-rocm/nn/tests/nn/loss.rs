//! Compares losses over rows that have one class each with sums in f64 and with Burn's module.

use burn::nn::loss as burns;
use burn::tensor::Int;
use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::backend::AutodiffBackend;
use burn_rocm_nn::loss::{self as own, CrossEntropyLoss, CrossEntropyLossConfig, NllLoss, NllLossConfig};
use burn_rocm_tests::limits::{in_turn, least, unit, wide};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{FLOATS, Tolerance};

use crate::bounded::{Bounded, assert_bounded, assert_narrow};
use crate::support::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scores {
    Logits,
    Probabilities,
    LogProbabilities,
}

/// The options of one loss.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) weights: Option<Vec<f32>>,
    pub(crate) smoothing: Option<f32>,
    pub(crate) pad_tokens: Option<Vec<usize>>,
}

fn options(classes: usize, random: &Random) -> Vec<Options> {
    let weights = || Some((0..classes).map(|_| random.uniform(0.5, 2.0) as f32).collect());
    let plain = Options { weights: None, smoothing: None, pad_tokens: None };
    vec![
        plain.clone(),
        Options { weights: weights(), ..plain.clone() },
        Options { smoothing: Some(0.1), ..plain.clone() },
        Options { pad_tokens: Some(vec![0, classes / 2]), ..plain },
        Options { weights: weights(), smoothing: Some(0.3), pad_tokens: Some(vec![classes - 1]) },
        Options { weights: weights(), smoothing: Some(0.2), pad_tokens: None },
    ]
}

/// A row that counts.
pub(crate) struct Row<'a> {
    pub(crate) scores: &'a [f64],
    pub(crate) max: f64,
    /// The sum of `exp(score - max)`.
    pub(crate) sum: f64,
    /// The share of minus each class' log-probability in the loss.
    pub(crate) share: Vec<f64>,
    /// The sum of the shares.
    pub(crate) all: f64,
}

/// The rows that count, with their indices, and the loss' divisor.
pub(crate) fn counted<'a>(x: &'a [f64], targets: &[i64], of: &Options) -> (Vec<(usize, Row<'a>)>, f64) {
    let len = x.len() / targets.len();
    let a = of.smoothing.map_or(0.0, f64::from);
    let weight = |class: usize| of.weights.as_ref().map_or(1.0, |weights| f64::from(weights[class]));
    let divisor = targets.iter().map(|&target| weight(target as usize)).sum();
    let pads = of.pad_tokens.as_deref().unwrap_or_default();
    let rows = targets.iter().map(|&target| target as usize).enumerate();
    let rows = rows.filter(|(_, target)| !pads.contains(target)).map(|(row, target)| {
        let scores = &x[row * len..][..len];
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = scores.iter().map(|v| (v - max).exp()).sum();
        let hard = |class| if class == target { 1.0 - a } else { 0.0 };
        let share: Vec<f64> = (0..len).map(|class| weight(class) * (hard(class) + a / len as f64)).collect();
        let all = share.iter().sum();
        (row, Row { scores, max, sum, share, all })
    });
    (rows.collect(), divisor)
}

/// The loss and its gradient with respect to the scores, in f64 from the formula.
fn reference(kind: Scores, x: &[f64], targets: &[i64], of: &Options, least: f64) -> (f64, Vec<f64>) {
    let len = x.len() / targets.len();
    let (mut loss, mut grad) = (0.0, vec![0.0; x.len()]);
    let (rows, divisor) = counted(x, targets, of);
    for (at, row) in rows {
        let log_sum = row.max + row.sum.ln();
        for class in 0..len {
            let (v, k) = (row.scores[class], row.share[class]);
            let (log_p, slope) = match kind {
                Scores::Logits => (v - log_sum, (v - log_sum).exp() * row.all - k),
                Scores::LogProbabilities => (v, -k),
                Scores::Probabilities if of.smoothing.is_some() => (v.ln(), -k / v),
                Scores::Probabilities => (v.max(least).ln(), if v < least { 0.0 } else { -k / v }),
            };
            loss -= if k == 0.0 { 0.0 } else { k * log_p };
            grad[at * len + class] = slope / divisor;
        }
    }
    (loss / divisor, grad)
}

/// [`reference`] of the loss and of the gradient of three times the loss, with the limits of one
/// side's errors to first order. The kernels compute in the wide type and round each result once.
///
/// With `r` for the unit of the wide type, `u` for that of `dtype`, `d` for a logit less the row's
/// largest, and `n` for the number of terms that are added one after the other:
/// - A function is off by `8 r` of its result; a logarithm also by its argument's error, and by
///   `8 r` near 1, where it is small.
/// - A row's sum of exponentials is off by `10 n r`: each term may be scaled for each new maximum,
///   by an exponential and a product. It is off by the arguments' roundings too, at most `|d| r`.
/// - A log-probability `d - log(sum)` has no cancellation. It is off by the roundings of its parts
///   and by the sum's error; one that is given is exact.
/// - The loss adds `k log(p)` over classes and rows, where `k` takes 8 roundings. It is off by
///   `n + 8` roundings of the terms' magnitudes for a row, and by as many as there are rows.
/// - A gradient is `p all - k` for logits, `-k / v` for probabilities, `-k` for their logarithms,
///   times `3 / divisor`. The divisor is a sum over rows.
fn limited_reference(
    kind: Scores,
    x: &[f64],
    targets: &[i64],
    of: &Options,
    dtype: DType,
) -> Vec<Vec<Bounded>> {
    let (loss, grad) = reference(kind, x, targets, of, 0.0);
    let (rows, len) = (targets.len(), x.len() / targets.len());
    let (r, stored) = (unit(wide(dtype)), if dtype == wide(dtype) { 0.0 } else { unit(dtype) });
    // The reference in f64 adds one number after the other.
    let terms = |count: usize| if dtype == DType::F64 { count } else { in_turn(count) };
    let n = terms(len) as f64 + 8.0;
    let by_rows = (rows as f64 + 8.0) * r;
    let (mut magnitude, mut off, mut grad_off) = (0.0, 0.0, vec![0.0; x.len()]);
    let (counted, divisor) = counted(x, targets, of);
    for (at, Row { scores, max, sum, share, all }) in counted {
        let range = scores.iter().fold(0.0f64, |range, v| range.max(max - v));
        let by_sum = (10.0 * n + range + 8.0) * r;
        for class in 0..len {
            let (v, k) = (scores[class], share[class]);
            let (log_p, by_log, by_slope) = match kind {
                Scores::Logits => {
                    let (d, log_sum) = (max - v, sum.ln());
                    let by_p = (d + 8.0 + n + 8.0) * r + by_sum;
                    let up = (v - max).exp() / sum * all;
                    (d + log_sum, (2.0 * d + 10.0 * log_sum) * r + by_sum, up * by_p + 8.0 * r * k)
                }
                Scores::LogProbabilities => (v.abs(), 0.0, 8.0 * r * k),
                Scores::Probabilities => (v.ln().abs(), 8.0 * r * (1.0 + v.ln().abs()), 9.0 * r * k / v),
            };
            magnitude += k * log_p;
            off += k * (by_log + (n + 8.0) * r * log_p);
            grad_off[at * len + class] = by_slope / divisor;
        }
    }
    let (by_rounding, least) = (1.01 * stored, least(dtype));
    let off = 1.01 * (off + 2.0 * by_rows * magnitude) / divisor + by_rounding * loss.abs() + least;
    let loss = Bounded { value: loss, off };
    let grad = grad.iter().zip(&grad_off).map(|(grad, off)| {
        let value = 3.0 * grad;
        Bounded { value, off: 1.01 * (3.0 * off + by_rows * value.abs()) + by_rounding * value.abs() + least }
    });
    vec![vec![loss], grad.collect()]
}

pub(crate) fn targets<B: AutodiffBackend>(targets: &[i64], dtype: DType) -> Tensor<B, 1, Int> {
    Tensor::from_data(TensorData::new(targets.to_vec(), [targets.len()]), (&Default::default(), dtype))
}

/// The loss, and the gradient of three times the loss.
pub(crate) fn run<B: AutodiffBackend>(
    kind: Scores,
    x: &TensorData,
    classes: &[i64],
    index: DType,
    of: &Options,
) -> Vec<TensorData> {
    let device = Default::default();
    let leaf = tensor::<B, 2>(x, x.dtype).require_grad();
    let classes = targets::<B>(classes, index);
    let loss = match kind {
        Scores::LogProbabilities => {
            let config = NllLossConfig {
                pad_tokens: of.pad_tokens.clone(),
                weights: of.weights.clone(),
                smoothing: of.smoothing,
            };
            config.init::<B>(&device).forward(leaf.clone(), classes)
        }
        _ => {
            let config = CrossEntropyLossConfig {
                pad_tokens: of.pad_tokens.clone(),
                weights: of.weights.clone(),
                smoothing: of.smoothing,
                logits: kind == Scores::Logits,
            };
            config.init::<B>(&device).forward(leaf.clone(), classes)
        }
    };
    let grads = (loss.clone() * 3.0).backward();
    vec![loss.into_data(), leaf.grad(&grads).unwrap().into_data()]
}

#[test]
fn losses_and_gradients_as_in_f64() {
    let random = Random::new();
    // In the last two, a thread reads four pieces of 16 bytes at a time if elements have 16 bits:
    // in a warp of 32, and in a block of 256.
    let shapes = [
        [1, 1],
        [1, 7],
        [64, 10],
        [600, 30],
        [3, 32],
        [5, 33],
        [3, 257],
        [2, 4096],
        [2, 5003],
        [2, 1024],
        [2, 8200],
    ];
    let mut checked = 0;
    for kind in [Scores::Logits, Scores::Probabilities, Scores::LogProbabilities] {
        for (place, &[rows, len]) in shapes.iter().enumerate() {
            let dtype = FLOATS[place % FLOATS.len()];
            for dtype in if rows * len < 3000 { FLOATS.to_vec() } else { vec![dtype] } {
                let draw = || match kind {
                    Scores::Probabilities => random.uniform(0.1, 1.0),
                    _ => random.uniform(-4.0, 4.0),
                };
                let x: Vec<f64> = (0..rows * len).map(|_| draw()).collect();
                let x = TensorData::new(x, [rows, len]).convert_dtype(dtype);
                let classes: Vec<i64> = (0..rows).map(|_| random.below(len) as i64).collect();
                let wide: Vec<f64> = x.iter::<f64>().collect();
                for of in options(len, &random) {
                    let expected = limited_reference(kind, &wide, &classes, &of, dtype);
                    for index in [DType::I32, DType::I64, DType::U8] {
                        if index == DType::U8 && len > 256 {
                            continue;
                        }
                        let ours = run::<Ours>(kind, &x, &classes, index, &of);
                        let what = format!("{kind:?} {rows} x {len} {dtype:?} {index:?} {of:?}");
                        assert!(ours.iter().all(|data| data.dtype == dtype), "{what}");
                        assert_eq!(ours[1].shape.as_slice(), [rows, len], "{what}");
                        assert_bounded(&what, &ours, &expected);
                        checked += assert_narrow(&what, &ours, &expected);
                    }
                }
            }
        }
    }
    assert!(checked > 100, "{checked} gradients with enough different elements");
}

#[test]
fn cross_entropy_as_burn() {
    let random = Random::new();
    for (rows, len) in [(6, 4), (5, 70)] {
        let x = uniform(&random, &[rows, len]);
        let classes: Vec<i64> = (0..rows).map(|_| random.below(len) as i64).collect();
        for of in options(len, &random) {
            for logits in [true, false] {
                // The oracle's smoothing works in f32 only. In f16 and bf16 Burn's ops round at
                // every step; `losses_and_gradients_as_in_f64` has these types.
                let dtypes: &[DType] =
                    if of.smoothing.is_some() { &[DType::F32] } else { &[DType::F32, DType::F64] };
                for &dtype in dtypes {
                    macro_rules! loss_of {
                        ($B:ident, $from:ident) => {{
                            let leaf = tensor::<$B, 2>(&x, dtype).require_grad();
                            let scores = if logits { leaf.clone() * 2.0 } else { softmax(leaf.clone(), 1) };
                            let mut loss = $from::CrossEntropyLossConfig::new()
                                .with_pad_tokens(of.pad_tokens.clone())
                                .with_weights(of.weights.clone())
                                .with_smoothing(of.smoothing)
                                .with_logits(logits)
                                .init::<$B>(&Default::default());
                            loss.weights = loss.weights.map(|weights| weights.cast(dtype));
                            let out = loss.forward(scores, targets::<$B>(&classes, DType::I32));
                            let grads = (out.clone() * out.clone()).backward();
                            vec![out.into_data(), leaf.grad(&grads).unwrap().into_data()]
                        }};
                    }
                    let what = format!("cross entropy {rows} x {len} {dtype:?} logits {logits} {of:?}");
                    against_burn!(what, Tolerance::of(dtype).times(30.0), |B|
                        theirs loss_of!(B, burns),
                        ours loss_of!(B, own)
                    );
                }
            }
        }
    }
}

/// If no target has a weight, the loss is 0 / 0, as in Burn. Rows that do not count still have
/// gradient 0.
#[test]
fn rows_that_are_all_padded_have_no_gradient() {
    let random = Random::new();
    for (len, smoothing, logits) in
        [(6, None, true), (6, Some(0.1), true), (70, None, true), (70, Some(0.1), true), (6, None, false)]
    {
        let x = uniform(&random, &[5, len]);
        // A weight of 0, which a config would refuse.
        let weights: Vec<f64> = (0..len).map(|class| if class == 2 { 0.0 } else { 1.5 }).collect();
        let weights = TensorData::new(weights, [len]);
        macro_rules! loss_of {
            ($B:ident, $from:ident) => {{
                let leaf = tensor::<$B, 2>(&x, DType::F32).require_grad();
                let scores = if logits { leaf.clone() } else { softmax(leaf.clone(), 1) };
                let mut loss = $from::CrossEntropyLossConfig::new()
                    .with_pad_tokens(Some(vec![2]))
                    .with_smoothing(smoothing)
                    .with_logits(logits)
                    .init::<$B>(&Default::default());
                loss.weights = Some(tensor(&weights, DType::F32));
                let out = loss.forward(scores, targets::<$B>(&[2; 5], DType::I32));
                let grads = out.backward();
                (out.into_data(), leaf.grad(&grads).unwrap().into_data())
            }};
        }
        let what = format!("{len} classes, {smoothing:?}, logits {logits}");
        let zeros = vec![0.0; 5 * len];
        for (loss, grad) in [loss_of!(Oracle, burns), loss_of!(Ours, own)] {
            assert!(loss.iter::<f32>().all(f32::is_nan), "{what}: {loss:?}");
            assert_eq!(grad.iter::<f32>().collect::<Vec<_>>(), zeros, "{what}");
        }
    }
    // A pad token that is not a class. Burn does not take it together with weights.
    let of = Options { weights: Some(vec![1.5; 6]), smoothing: None, pad_tokens: Some(vec![99]) };
    let x = uniform(&random, &[5, 6]).convert_dtype(DType::F32);
    for kind in [Scores::Logits, Scores::Probabilities, Scores::LogProbabilities] {
        let [loss, grad] = run::<Ours>(kind, &x, &[99; 5], DType::I64, &of).try_into().unwrap();
        assert!(loss.iter::<f32>().all(f32::is_nan), "{kind:?}: {loss:?}");
        assert_eq!(grad.iter::<f32>().collect::<Vec<_>>(), [0.0; 30], "{kind:?}");
    }
}

/// Compares the fused and the composed path of a module.
#[test]
fn the_composed_paths_agree() {
    let random = Random::new();
    let (rows, len) = (9, 6);
    let x: Vec<f64> = (0..rows * len).map(|_| random.uniform(0.1, 1.0)).collect();
    let x = TensorData::new(x, [rows, len]).convert_dtype(DType::F32);
    let classes: Vec<i64> = (0..rows).map(|_| random.below(len) as i64).collect();
    // A pad token that is no class, as two targets.
    let padded: Vec<i64> = [99, 99].into_iter().chain(classes[2..].iter().copied()).collect();
    let with = |of: &Options, more: std::ops::Range<usize>| {
        let tokens = of.pad_tokens.clone().unwrap_or_default().into_iter().chain(more).collect();
        Options { pad_tokens: Some(tokens), ..of.clone() }
    };
    for of in options(len, &random) {
        for (of, classes) in [(of.clone(), &classes), (with(&of, 99..100), &padded)] {
            for kind in [Scores::Logits, Scores::Probabilities, Scores::LogProbabilities] {
                let theirs = run::<Oracle>(kind, &x, classes, DType::I64, &of);
                let ours = run::<Ours>(kind, &x, classes, DType::I64, &of);
                let what = format!("{kind:?} {of:?} {classes:?}");
                burn_rocm_tests::assert_close(&what, &ours, &theirs, Tolerance::of(DType::F32).times(30.0));
                // More pad tokens than the kernel takes. All but the first few are not classes.
                let ours = run::<Ours>(kind, &x, classes, DType::I64, &with(&of, 100..110));
                burn_rocm_tests::assert_close(&what, &ours, &theirs, Tolerance::of(DType::F32).times(30.0));
            }
        }
    }
}

/// Weights that are a leaf, and weights that are computed from one. The loss and all gradients are
/// Burn's.
#[test]
fn weights_that_require_a_gradient_have_burns() {
    let random = Random::new();
    let (rows, len) = (11, 5);
    let x = uniform(&random, &[rows, len]);
    let classes: Vec<i64> = (0..rows).map(|_| random.below(len) as i64).collect();
    let weights = TensorData::new((0..len).map(|_| random.uniform(0.5, 2.0)).collect::<Vec<_>>(), [len]);
    macro_rules! loss_of {
        ($B:ident, $loss:ident, $derived:expr, $options:expr) => {{
            let (kind, of): (Scores, &Options) = $options;
            let leaf = tensor::<$B, 2>(&x, DType::F32).require_grad();
            let weights_leaf = tensor::<$B, 1>(&weights, DType::F32).require_grad();
            let weights = Some(if $derived { weights_leaf.clone() * 1.5 } else { weights_leaf.clone() });
            let scores = match kind {
                Scores::Logits => leaf.clone(),
                Scores::Probabilities => softmax(leaf.clone(), 1),
                Scores::LogProbabilities => log_softmax(leaf.clone(), 1),
            };
            let classes = targets::<$B>(&classes, DType::I32);
            let out = $loss!($B, of, weights, kind).forward(scores, classes);
            let grads = (out.clone() * out.clone()).backward();
            vec![
                out.into_data(),
                leaf.grad(&grads).unwrap().into_data(),
                weights_leaf.grad(&grads).unwrap().into_data(),
            ]
        }};
    }
    macro_rules! cross_entropy {
        ($B:ident, $of:expr, $weights:expr, $kind:expr) => {
            CrossEntropyLoss::<$B> {
                pad_tokens: $of.pad_tokens.clone(),
                weights: $weights,
                smoothing: $of.smoothing,
                logits: $kind == Scores::Logits,
            }
        };
    }
    macro_rules! burns_cross_entropy {
        ($B:ident, $of:expr, $weights:expr, $kind:expr) => {
            burns::CrossEntropyLoss::<$B> {
                pad_tokens: $of.pad_tokens.clone(),
                weights: $weights,
                smoothing: $of.smoothing,
                logits: $kind == Scores::Logits,
            }
        };
    }
    macro_rules! nll {
        ($B:ident, $of:expr, $weights:expr, $kind:expr) => {
            NllLoss::<$B> { pad_tokens: $of.pad_tokens.clone(), weights: $weights, smoothing: $of.smoothing }
        };
    }
    for of in options(len, &random) {
        for derived in [false, true] {
            let what = format!("derived {derived} {of:?}");
            let (_, lines) = during(|| {
                for kind in [Scores::Logits, Scores::Probabilities] {
                    against_burn!(format!("{kind:?} {what}"), Tolerance::of(DType::F32).times(30.0), |B|
                        theirs loss_of!(B, burns_cross_entropy, derived, (kind, &of)),
                        ours loss_of!(B, cross_entropy, derived, (kind, &of))
                    );
                }
                // Burn has no such loss. Its cross entropy of the logits is the same.
                against_burn!(format!("nll {what}"), Tolerance::of(DType::F32).times(30.0), |B|
                    theirs loss_of!(B, burns_cross_entropy, derived, (Scores::Logits, &of)),
                    ours loss_of!(B, nll, derived, (Scores::LogProbabilities, &of))
                );
            });
            let fused = lines.iter().find(|line| line.starts_with("nn_"));
            assert!(lines.len() > 10 && fused.is_none(), "{what}: {fused:?}");
        }
    }
}

#[test]
fn views_are_taken() {
    let random = Random::new();
    let x = uniform(&random, &[41, 12]);
    macro_rules! loss_of {
        ($B:ident, $loss:expr) => {{
            let leaf = tensor::<$B, 2>(&x, DType::F32).require_grad();
            let classes = targets::<$B>(&(0..24).map(|i| i * 17 % 41).collect::<Vec<_>>(), DType::I32);
            let classes = classes.slice_dim(0, burn::tensor::Slice::new(1, Some(24), 2));
            let out = $loss.forward(leaf.clone().transpose(), classes);
            vec![out.clone().into_data(), leaf.grad(&out.backward()).unwrap().into_data()]
        }};
    }
    against_burn!("views", Tolerance::of(DType::F32).times(10.0), |B|
        theirs loss_of!(B, burn::nn::loss::CrossEntropyLoss::<B>::new(Some(17), &Default::default())),
        ours loss_of!(B, CrossEntropyLoss::<B>::new(Some(17), &Default::default()))
    );
}

#[test]
fn logits_of_any_size_do_not_overflow() {
    let rows = [[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [3.0, f64::NEG_INFINITY, 2.0], [88.0, 89.0, 90.0]];
    let x: Vec<f64> = rows.concat();
    let classes = [1, 0, 0, 2];
    let of = Options { weights: None, smoothing: None, pad_tokens: None };
    let (loss, grad) = reference(Scores::Logits, &x, &classes, &of, 0.0);
    let grad: Vec<f64> = grad.iter().map(|g| 3.0 * g).collect();
    for columns in [3, 40] {
        // The same rows, and rows extended by elements that add nothing, which a block computes.
        let wide = |row: &[f64], rest: f64| -> Vec<f64> {
            row.iter().copied().chain(std::iter::repeat(rest)).take(columns).collect()
        };
        let widen = |values: &[f64], rest| {
            TensorData::new(
                values.chunks(3).flat_map(|row| wide(row, rest)).collect::<Vec<f64>>(),
                [4, columns],
            )
            .convert_dtype(DType::F32)
        };
        let theirs = [TensorData::new(vec![loss as f32], [1]), widen(&grad, 0.0)];
        let ours = run::<Ours>(Scores::Logits, &widen(&x, f64::NEG_INFINITY), &classes, DType::I32, &of);
        burn_rocm_tests::assert_close(&columns, &ours, &theirs, Tolerance::of(DType::F32).times(10.0));
    }
}

#[test]
fn what_is_no_number_stays_none() {
    let of = Options { weights: None, smoothing: None, pad_tokens: None };
    for columns in [4, 50, 5000] {
        for odd in [f64::NAN, f64::INFINITY] {
            let mut x = vec![0.5; 2 * columns];
            x[columns + 2] = odd;
            let x = TensorData::new(x, [2, columns]).convert_dtype(DType::F32);
            let ours = run::<Ours>(Scores::Logits, &x, &[1, 1], DType::I32, &of);
            assert!(ours[0].iter::<f64>().all(f64::is_nan), "{odd} in {columns} columns gives {:?}", ours[0]);
            let grad: Vec<f64> = ours[1].iter().collect();
            assert!(grad[..columns].iter().all(|g| g.is_finite()), "the other row has its gradient");
            assert!(grad[columns..].iter().all(|g| g.is_nan()));
        }
    }
}

#[test]
fn no_rows_have_no_mean() {
    let of = Options { weights: None, smoothing: None, pad_tokens: None };
    let x = TensorData::new(Vec::<f32>::new(), [0, 5]);
    let ours = run::<Ours>(Scores::Logits, &x, &[], DType::I32, &of);
    assert!(ours[0].iter::<f64>().all(f64::is_nan) && ours[0].shape.as_slice() == [1]);
    assert_eq!(ours[1].shape.as_slice(), [0, 5]);
}

#[test]
fn a_nll_of_log_softmax_is_the_cross_entropy() {
    let x = uniform(&Random::new(), &[12, 9]);
    let classes: Vec<i64> = (0..12).map(|i| i % 9).collect();
    against_burn!("nll", Tolerance::of(DType::F32).times(10.0), |B|
        theirs {
            let leaf = tensor::<B, 2>(&x, DType::F32).require_grad();
            let loss = burn::nn::loss::CrossEntropyLoss::<B>::new(None, &Default::default());
            let out = loss.forward(leaf.clone(), targets::<B>(&classes, DType::I32));
            vec![out.clone().into_data(), leaf.grad(&out.backward()).unwrap().into_data()]
        },
        ours {
            let leaf = tensor::<B, 2>(&x, DType::F32).require_grad();
            let loss: NllLoss<B> = NllLossConfig::new().init(&Default::default());
            let out = loss.forward(log_softmax(leaf.clone(), 1), targets::<B>(&classes, DType::I32));
            vec![out.clone().into_data(), leaf.grad(&out.backward()).unwrap().into_data()]
        }
    );
}

#[test]
fn one_kernel_each_way() {
    let loss = CrossEntropyLoss::<Ours>::new(None, &Default::default());
    let of = |rows: usize, columns: usize| {
        let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[rows, columns]), DType::F32).require_grad();
        let classes = targets::<Ours>(&vec![1; rows], DType::I32);
        let (_, lines) = during(|| {
            let out = loss.forward(x, classes);
            out.backward()
        });
        lines.into_iter().filter(|line| line.starts_with("nn_")).collect::<Vec<_>>()
    };
    let [forward, backward] = [
        "nn_cross_entropy f32: kernel cross_entropy_short<f32, i32>",
        "nn_cross_entropy_backward f32: kernel cross_entropy_short_backward<Logits, f32, i32>",
    ];
    assert_eq!(of(64, 10), [forward, backward]);
    // With several blocks, one more launch joins the sums.
    assert_eq!(of(2048, 16), [forward, "nn_cross_entropy f32: kernel loss_total<f32>", backward]);
}

#[test]
fn bad_shapes_are_refused() {
    let x = tensor::<Ours, 2>(&uniform(&Random::new(), &[3, 4]), DType::F32);
    let loss = CrossEntropyLoss::<Ours>::new(None, &Default::default());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        loss.forward(x.clone(), targets::<Ours>(&[0, 1], DType::I32))
    }));
    assert!(caught.is_err());
    let error = burn_rocm::take_last_error();
    assert!(matches!(error, Some(burn_rocm::RocmError::Invalid { op: "cross_entropy", .. })), "{error:?}");
    loss.forward(x, targets::<Ours>(&[0, 1, 3], DType::I32)).into_data();
}
