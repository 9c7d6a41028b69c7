//! Losses.

use crate::worlds::{as_burns, same_as_021};

/// Positive numbers.
macro_rules! probabilities {
    ($v:ident, $tag:expr, $shape:expr, $ty:ident) => {{
        let values = crate::worlds::uniform($tag, $shape.iter().product());
        $v::of(values.into_iter().map(|x| 0.5 + x / 5.0).collect(), $shape, $ty).require_grad()
    }};
}

macro_rules! both {
    ($what:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {
        both!($what, 0, |$v, $nn, $ty| $body)
    };
    ($what:expr, $added:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {{
        same_as_021!($what, $added, |$v, $nn, $ty| $body);
        as_burns!(F32, assert_near_f32, $what, 64, |$v, $nn, $ty| $body);
    }};
}

#[test]
fn cross_entropy() {
    let targets = vec![3, 0, 10, 3, 7, 1];
    for weights in [None, Some((1..=11).map(|c| c as f32 / 4.0).collect::<Vec<_>>())] {
        for smoothing in [None, Some(0.1)] {
            both!("cross entropy", |v, nn, ty| {
                let x = v::leaf::<2>(1, [6, 11], ty);
                let config = nn::loss::CrossEntropyLossConfig::new();
                let config = config.with_weights(weights.clone()).with_smoothing(smoothing);
                let loss = config.init(&v::device());
                let out = loss.forward(x.clone(), v::ints(targets.clone(), [6]));
                v::results(out, &[&x], &v::NONE)
            });
            // With smoothing, probabilities are clamped first, as in Burn 0.22.
            both!("cross entropy of probabilities", 3, |v, nn, ty| {
                let x = probabilities!(v, 1, [6, 11], ty);
                let config = nn::loss::CrossEntropyLossConfig::new().with_logits(false);
                let config = config.with_weights(weights.clone()).with_smoothing(smoothing);
                let loss = config.init(&v::device());
                let out = loss.forward(x.clone(), v::ints(targets.clone(), [6]));
                v::results(out, &[&x], &v::NONE)
            });
            same_as_021!("negative log-likelihood", 0, |v, nn, ty| {
                let x = v::leaf::<2>(1, [6, 11], ty);
                let config = nn::loss::NllLossConfig::new().with_weights(weights.clone());
                let loss = config.with_smoothing(smoothing).init(&v::device());
                let out = loss.forward(x.clone(), v::ints(targets.clone(), [6]));
                v::results(out, &[&x], &v::NONE)
            });
        }
    }
}

/// The loss is that of the other rows alone: fused and composed, on this device and on burn-flex.
#[test]
fn pad_tokens_need_not_be_classes() {
    use crate::worlds::{Ty, assert_near, flex, v22};
    use burn_rocm_nn_022::loss::{CrossEntropyLossConfig, NllLossConfig};
    let all = vec![3, 99, 10, 99, 7, 1];
    let [rows, others] = [vec![0, 2, 4, 5], vec![3, 10, 7, 1]];
    // With Burn 0.22 the kernel does not take ten pad tokens, or weights beside one that is no class.
    for pads in [vec![99], (99..109).collect::<Vec<_>>()] {
        for weights in [None, Some((1..=11).map(|c| c as f32 / 4.0).collect::<Vec<_>>())] {
            for smoothing in [None, Some(0.25)] {
                macro_rules! losses {
                    ($v:ident, $padded:expr) => {{
                        let x = crate::worlds::uniform(1, 66).into_iter().map(|x| 0.5 + x / 5.0).collect();
                        let x = $v::of::<2>(x, [6, 11], Ty::F64).require_grad();
                        let (scores, targets, pads) = match $padded {
                            true => (x.clone(), $v::ints(all.clone(), [6]), Some(pads.clone())),
                            false => {
                                let scores = x.clone().select(0, $v::ints(rows.clone(), [4]));
                                (scores, $v::ints(others.clone(), [4]), None)
                            }
                        };
                        let config = NllLossConfig::new().with_pad_tokens(pads.clone());
                        let config = config.with_weights(weights.clone()).with_smoothing(smoothing);
                        let mut nll = config.init(&$v::device());
                        nll.weights = nll.weights.map(|weights| weights.cast($v::dtype(Ty::F64)));
                        let mut loss = nll.forward(scores.clone(), targets.clone());
                        for logits in [true, false] {
                            let config = CrossEntropyLossConfig::new().with_pad_tokens(pads.clone());
                            let config = config.with_weights(weights.clone()).with_smoothing(smoothing);
                            let mut entropy = config.with_logits(logits).init(&$v::device());
                            entropy.weights = nll.weights.clone();
                            loss = loss + entropy.forward(scores.clone(), targets.clone());
                        }
                        $v::results(loss, &[&x], &$v::NONE)
                    }};
                }
                let what = format!("{pads:?} {weights:?} {smoothing:?}");
                let expected = losses!(v22, false);
                assert_near(&what, &losses!(v22, true), &expected, 64);
                assert_near(&format!("{what} on burn-flex"), &losses!(flex, true), &expected, 64);
            }
        }
    }
}

/// Burn 0.22 takes the mean over the rows that are no pad tokens.
#[test]
fn pad_tokens_do_not_count() {
    let targets = vec![3, 0, 10, 3, 7, 1];
    for pads in [vec![3], vec![0, 7], vec![1, 99], vec![]] {
        for weights in [None, Some((1..=11).map(|c| c as f32 / 4.0).collect::<Vec<_>>())] {
            if weights.is_some() && pads.contains(&99) {
                continue; // no class, which Burn would gather
            }
            for smoothing in [None, Some(0.1)] {
                as_burns!(F32, assert_near_f32, "cross entropy with pad tokens", 64, |v, nn, ty| {
                    let x = v::leaf::<2>(1, [6, 11], ty);
                    let config = nn::loss::CrossEntropyLossConfig::new().with_pad_tokens(Some(pads.clone()));
                    let config = config.with_weights(weights.clone()).with_smoothing(smoothing);
                    let loss = config.init(&v::device());
                    let out = loss.forward(x.clone(), v::ints(targets.clone(), [6]));
                    v::results(out, &[&x], &v::NONE)
                });
            }
        }
    }
    // The loss over log-probabilities is that of their cross entropy, fused and composed.
    use crate::worlds::{Ty, assert_near, flex, v22};
    use burn_rocm_nn_022::activation::log_softmax;
    use burn_rocm_nn_022::loss::{CrossEntropyLossConfig, NllLossConfig};
    macro_rules! nll {
        ($v:ident) => {{
            let x = $v::leaf::<2>(1, [6, 11], Ty::F64);
            let loss = NllLossConfig::new().with_pad_tokens(Some(vec![3])).with_smoothing(Some(0.1));
            let loss = loss.init(&$v::device());
            let out = loss.forward(log_softmax(x.clone(), 1), $v::ints(targets.clone(), [6]));
            $v::results(out, &[&x], &$v::NONE)
        }};
    }
    let x = v22::leaf::<2>(1, [6, 11], Ty::F64);
    let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![3])).with_smoothing(Some(0.1));
    let out = loss.init(&v22::device()).forward(x.clone(), v22::ints(targets.clone(), [6]));
    let expected = v22::results(out, &[&x], &v22::NONE);
    assert_near("NLL", &nll!(v22), &expected, 64);
    assert_near("NLL on burn-flex", &nll!(flex), &expected, 64);
}

#[test]
fn binary_cross_entropy() {
    let targets: Vec<i64> = (0..20).map(|k| k % 3 % 2).collect();
    for weights in [None, Some(vec![0.5, 1.0, 2.0, 1.5, 0.25])] {
        for smoothing in [None, Some(0.1)] {
            both!("binary cross entropy of logits", |v, nn, ty| {
                let x = v::leaf::<2>(1, [4, 5], ty);
                let config = nn::loss::BinaryCrossEntropyLossConfig::new().with_logits(true);
                let loss = config.with_weights(weights.clone()).with_smoothing(smoothing).init(&v::device());
                let out = loss.forward(x.clone(), v::ints(targets.clone(), [4, 5]));
                v::results(out, &[&x], &v::NONE)
            });
            both!("binary cross entropy", |v, nn, ty| {
                let x = probabilities!(v, 1, [4, 5], ty);
                let config = nn::loss::BinaryCrossEntropyLossConfig::new();
                let loss = config.with_weights(weights.clone()).with_smoothing(smoothing).init(&v::device());
                let out = loss.forward(x.clone(), v::ints(targets.clone(), [4, 5]));
                v::results(out, &[&x], &v::NONE)
            });
        }
    }
}

#[test]
fn residuals() {
    for sum in [true, false] {
        both!("MSE", |v, nn, ty| {
            let [a, b] = [1, 2].map(|tag| v::leaf::<2>(tag, [6, 11], ty));
            let reduction = if sum { nn::loss::Reduction::Sum } else { nn::loss::Reduction::Mean };
            let out = nn::loss::MseLoss::new().forward(a.clone(), b.clone(), reduction);
            v::results(out, &[&a, &b], &v::NONE)
        });
        both!("Huber loss", |v, nn, ty| {
            let [a, b] = [1, 2].map(|tag| v::leaf::<2>(tag, [6, 11], ty));
            let reduction = if sum { nn::loss::Reduction::Sum } else { nn::loss::Reduction::Mean };
            let out = nn::loss::HuberLossConfig::new(0.5).init().forward(a.clone(), b.clone(), reduction);
            v::results(out, &[&a, &b], &v::NONE)
        });
    }
    both!("MSE of each element", |v, nn, ty| {
        let [a, b] = [1, 2].map(|tag| v::leaf::<2>(tag, [6, 11], ty));
        v::results(nn::loss::MseLoss::new().forward_no_reduction(a.clone(), b.clone()), &[&a, &b], &v::NONE)
    });
    both!("Huber loss of residuals", |v, nn, ty| {
        let a = v::leaf::<2>(1, [6, 11], ty);
        let loss = nn::loss::HuberLossConfig::new(0.5).init();
        v::results(loss.forward_residuals(a.clone()), &[&a], &v::NONE)
    });
}

/// A softmax depends on the differences of its logits alone. The tests for Burn 0.21 compare these
/// losses with f64; here they have the same bits.
#[test]
fn logits_that_are_large_beside_their_differences() {
    for [rows, len] in [[5, 7], [3, 33], [2, 1027], [1, 17_000]] {
        let targets: Vec<i64> = (0..rows).map(|row| (row * 31 % len) as i64).collect();
        for smoothing in [None, Some(0.1)] {
            same_as_021!(format!("{rows} rows of {len} large logits"), 0, |v, nn, ty| {
                // Large, and of a spacing at which the logits still differ: 8 in f32, 1 in the halves.
                let centre = match ty {
                    crate::worlds::Ty::F16 => 1024.0,
                    crate::worlds::Ty::BF16 => 128.0,
                    _ => 5e7,
                };
                let values = crate::worlds::uniform(1, rows * len);
                let x = v::of(values.into_iter().map(|x| centre + 20.0 * x).collect(), [rows, len], ty);
                let x = x.require_grad();
                let loss = nn::loss::CrossEntropyLossConfig::new().with_smoothing(smoothing);
                let out = loss.init(&v::device()).forward(x.clone(), v::ints(targets.clone(), [rows]));
                v::results(out, &[&x], &v::NONE)
            });
        }
    }
    // The gradient of `[c, c, c - 8]` is that of `[0, 0, -8]`.
    use crate::worlds::{Ty, v22};
    for centre in [1e5, 1e7, 1e8] {
        let x = v22::of::<2>(vec![centre, centre, centre - 8.0], [1, 3], Ty::F32).require_grad();
        let loss = burn_rocm_nn_022::loss::CrossEntropyLossConfig::new().init(&v22::device());
        let grads = loss.forward(x.clone(), v22::ints(vec![0], [1])).backward();
        let grad: Vec<f64> = x.grad(&grads).unwrap().into_data().iter::<f64>().collect();
        let exact = [-0.500_084, 0.499_916, 0.000_168];
        assert!(grad.iter().zip(exact).all(|(a, b)| (a - b).abs() < 1e-6), "around {centre:e}: {grad:?}");
    }
}
