//! Attention and the encoder.

use crate::worlds::{Ty, as_burns, same_as_021, v22};
use burn_rocm_nn_022::attention::{MhaCache, MhaInput, MultiHeadAttentionConfig};

/// The keys that are hidden: every third, and every fifth from some queries.
fn hidden(count: usize, every: usize) -> Vec<bool> {
    (0..count).map(|k| k % every == every - 1).collect()
}

/// Up to one launch more for each of Burn's own linear layers (two where outputs are recomputed): Burn 0.22 records
/// their gradients in another way.
#[test]
fn self_attention() {
    // Enough tokens for one projection, and too few.
    for sequence in [24, 5] {
        for masked in [false, true] {
            same_as_021!("self-attention", 4, crate::worlds::assert_same_sums, |v, nn, ty| {
                let x = v::leaf::<3>(1, [2, sequence, 8], ty);
                let config = nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
                let mha = v::filled(config.init(&v::device()), ty);
                let mut input = nn::attention::MhaInput::self_attn(x.clone());
                if masked {
                    input = input.mask_pad(v::bools(hidden(2 * sequence, 3), [2, sequence]));
                    let mask = hidden(2 * sequence * sequence, 5);
                    input = input.mask_attn(v::bools(mask, [2, sequence, sequence]));
                }
                v::results(mha.forward(input).context, &[&x], &mha)
            });
            as_burns!("self-attention", 64, |v, nn, ty| {
                let x = v::leaf::<3>(1, [2, sequence, 8], ty) * 0.25;
                let config = nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
                let mha = v::filled(config.with_quiet_softmax(masked).init(&v::device()), ty);
                let mut input = nn::attention::MhaInput::self_attn(x.clone());
                if masked {
                    input = input.mask_pad(v::bools(hidden(2 * sequence, 3), [2, sequence]));
                }
                v::results::<3, 3, _>(mha.forward(input).context, &[], &mha)
            });
        }
    }
}

#[test]
fn attention_to_other_tokens_and_its_weights() {
    same_as_021!("attention", 6, crate::worlds::assert_same_sums, |v, nn, ty| {
        let [x, y] = [(1, 5), (2, 7)].map(|(tag, sequence)| v::leaf::<3>(tag, [2, sequence, 8], ty));
        let config = nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
        let mha = v::filled(config.init(&v::device()), ty);
        let output = mha.forward(nn::attention::MhaInput::new(x.clone(), y.clone(), y.clone()));
        v::results(output.context, &[&x, &y], &mha)
    });
    as_burns!("attention's weights", 64, |v, nn, ty| {
        let [x, y] = [(1, 5), (2, 7)].map(|(tag, sequence)| v::leaf::<3>(tag, [2, sequence, 8], ty));
        let config =
            nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).with_key_bias(false);
        let mha = v::filled(config.init(&v::device()), ty);
        let output = mha.forward(nn::attention::MhaInput::new(x.clone(), y.clone(), y.clone()));
        let weights = output.weights.clone();
        let [batch, heads, queries, keys] = weights.dims();
        // So that every parameter has a gradient.
        let sum = weights.reshape([batch, heads * queries, keys]).sum_dim(2).sum_dim(1)
            + output.context.sum_dim(2).sum_dim(1);
        v::results(sum, &[&x, &y], &mha)
    });
}

/// Attention of packed sequences gives what it gives with Burn 0.21, and what Burn's ops compose on
/// burn-flex.
#[test]
fn packed_sequences() {
    macro_rules! attended {
        ($v:ident, $nn:ident, $ty:ident, $causal:expr, $window:expr) => {
            attended!($v, $nn, $ty, $causal, $window, None, 0.0)
        };
        ($v:ident, $nn:ident, $ty:ident, $causal:expr, $window:expr, $scale:expr, $dropout:expr) => {{
            use $nn::attention::{PackedAttentionOptions, PackedSequences, packed_attention};
            let [q, k, x] = [(1, 45, 4, 8), (2, 41, 2, 8), (3, 41, 2, 5)]
                .map(|(tag, rows, heads, width)| $v::leaf::<3>(tag, [rows, heads, width], $ty));
            let of = |offsets: [i64; 5]| $v::ints(offsets.to_vec(), [5]);
            let sequences = PackedSequences::between(of([0, 3, 43, 43, 45]), of([0, 5, 38, 41, 41]));
            let options = PackedAttentionOptions {
                causal: $causal,
                window: $window,
                scale: $scale,
                dropout: $dropout,
                ..PackedAttentionOptions::default()
            };
            let scaled = q.clone() * 0.25;
            let out = packed_attention(scaled, k.clone(), x.clone(), sequences, &options);
            $v::results(out, &[&q, &k, &x], &$v::NONE)
        }};
    }
    for (causal, window) in [(false, None), (true, None), (true, Some(3))] {
        same_as_021!("packed attention", 0, crate::worlds::assert_same_sums, |v, nn, ty| {
            attended!(v, nn, ty, causal, window)
        });
        use crate::worlds::{flex, v22, v22b};
        use burn_rocm_nn_022 as nn;
        let ty = Ty::F64;
        let expected = attended!(flex, nn, ty, causal, window);
        for found in [attended!(v22, nn, ty, causal, window), attended!(v22b, nn, ty, causal, window)] {
            crate::worlds::assert_near("packed attention", &found, &expected, 64);
        }
        // Scores that are all dropped are 0.
        let expected = attended!(flex, nn, ty, causal, window, Some(0.0), 0.0);
        for found in [
            attended!(flex, nn, ty, causal, window, None, 1.0),
            attended!(v22, nn, ty, causal, window, None, 1.0),
            attended!(v22b, nn, ty, causal, window, None, 1.0),
        ] {
            let [found, expected] = [&found, &expected].map(|results| {
                let by_scores = results[1].iter().chain(&results[2]);
                assert!(by_scores.clone().all(|grad| *grad == 0.0), "{results:?}");
                [results[0].clone(), results[3].clone()]
            });
            crate::worlds::assert_near("all scores dropped", &found, &expected, 64);
        }
    }
}

/// Heads that share keys and values, and windows, of which masks and lengths leave some without a key: as with Burn
/// 0.21, and as the module composed of Burn's ops on burn-flex.
#[test]
fn shared_heads_and_windows() {
    for (kv_heads, window, [queries, keys]) in [
        (1, None, [7, 7]),
        (2, Some(3), [5, 9]),
        (1, Some(2), [9, 5]),
        (4, Some(2), [6, 6]),
        (2, Some(4), [40, 40]),
        (2, Some(usize::MAX), [4, 5]),
    ] {
        macro_rules! attended {
            ($v:ident, $nn:ident, $ty:expr, $factor:expr) => {{
                let [x, y] = [(1, queries), (2, keys)].map(|(tag, sequence)| {
                    let tokens = $v::tensor::<3>(tag, [1, sequence, 16], $ty) * $factor;
                    tokens.detach().require_grad()
                });
                // 4 features a head: as Burn's module, the composed one divides by their root in f32.
                let config = $nn::attention::MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0);
                let config = config.with_kv_heads(Some(kv_heads)).with_window(window);
                let mha = $v::filled(config.init(&$v::device()), $ty);
                let input = $nn::attention::MhaInput::new(x.clone(), y.clone(), y.clone());
                // Three neighbours of five.
                let mask = (0..keys).map(|key| key % 5 > 1).collect();
                let input = input.mask_pad($v::bools(mask, [1, keys]));
                $v::results(mha.forward(input).context, &[&x, &y], &mha)
            }};
        }
        let what = format!("{kv_heads} heads of keys, window {window:?}, {queries} queries, {keys} keys");
        same_as_021!(&what, 6, crate::worlds::assert_same_sums, |v, nn, ty| { attended!(v, nn, ty, 1.0) });
        use crate::worlds::{flex, v22b};
        use burn_rocm_nn_022 as nn;
        let expected = attended!(flex, nn, Ty::F64, 0.25);
        crate::worlds::assert_near(&what, &attended!(v22, nn, Ty::F64, 0.25), &expected, 64);
        let what = format!("{what}, recomputed");
        crate::worlds::assert_near(&what, &attended!(v22b, nn, Ty::F64, 0.25), &expected, 64);
    }
}

#[test]
fn tokens_from_a_cache() {
    let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
    let mha = v22::filled(config.init(&v22::device()), Ty::F64);
    let tokens = v22::tensor::<3>(1, [1, 4, 8], Ty::F64);
    let mut cache = MhaCache::autoregressive();
    let mut last = None;
    for known in 1..=4 {
        let input = MhaInput::self_attn(tokens.clone().narrow(1, 0, known));
        last = Some(mha.forward_cache(input, &mut cache).context);
    }
    let (found, whole) = (last.unwrap(), mha.forward(MhaInput::self_attn(tokens)).context);
    // The last token attends to all.
    let [found, expected] = [found, whole].map(|context| v22::read(context.narrow(1, 3, 1)));
    crate::worlds::assert_near("the last token", &[found], &[expected], 64);
}

/// Asserts that the body ends in an `Invalid` of this op, which names the found value.
pub(crate) fn refused<T>(op: &str, what: &str, body: impl FnOnce() -> T) {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    assert!(catch_unwind(AssertUnwindSafe(|| drop(body()))).is_err(), "{op} took {what}");
    match burn_rocm::take_last_error() {
        Some(burn_rocm::RocmError::Invalid { op: of, found, .. }) => {
            assert!(of == op && found.contains(what), "{of} found {found}");
        }
        other => panic!("{op} of {what}: {other:?}"),
    }
}

/// On this backend, and composed of Burn's ops on another.
#[test]
fn windows_that_do_not_fit() {
    use crate::worlds::flex;
    macro_rules! on {
        ($v:ident) => {{
            let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).with_window(Some(3));
            let mut mha = $v::filled(config.init(&$v::device()), Ty::F64);
            let tokens = || MhaInput::self_attn($v::tensor::<3>(1, [1, 4, 8], Ty::F64));
            let mut cache = MhaCache::autoregressive_cross_attention();
            refused("autoregressive cache", "a window of 3", || mha.forward_cache(tokens(), &mut cache));
            mha.activation.window = Some(0);
            refused("MultiHeadAttention", "0", || mha.forward(tokens()));
            mha.activation.window = None;
            mha.forward_cache(tokens(), &mut cache);
        }};
    }
    on!(v22);
    on!(flex);
}

/// Burn 0.22 drops weights, not scores.
#[test]
fn dropout_of_weights() {
    let prob = 0.25;
    let mha = |dropout| {
        let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(dropout);
        v22::filled(config.init(&v22::device()), Ty::F64)
    };
    let x = v22::leaf::<3>(1, [4, 32, 8], Ty::F64);
    let input = MhaInput::self_attn(x.clone());
    let kept = v22::read(mha(0.0).forward(input.clone()).weights.clone());
    let dropping = mha(prob);
    let output = dropping.forward(input.clone());
    let found = v22::read(output.weights.clone());
    let mut dropped = 0;
    for (found, kept) in found.iter().zip(&kept) {
        if *found == 0.0 {
            dropped += 1;
            continue;
        }
        let expected = kept / (1.0 - prob);
        // The same softmax; the factor is an f64 that Burn rounds to f32 at most once.
        assert!((found - expected).abs() <= 2f64.powi(-22) * expected, "{found}, expected {expected}");
    }
    // 6 standard deviations of a binomial distribution.
    let (count, share) = (found.len() as f64, dropped as f64 / found.len() as f64);
    assert!((share - prob).abs() < 6.0 * (prob * (1.0 - prob) / count).sqrt(), "{share} dropped");
    // The context is that of the weights that are returned, and has a gradient.
    let weights = v22::of::<4>(found, [4, 2, 32, 32], Ty::F64);
    let value = dropping.value.forward(x.clone()).reshape([4, 32, 2, 4]).swap_dims(1, 2);
    let expected = weights.matmul(value).swap_dims(1, 2).reshape([4, 32, 8]);
    let expected = v22::read(dropping.output.forward(expected));
    crate::worlds::assert_near("the context", &[v22::read(output.context.clone())], &[expected], 64);
    assert_eq!(v22::results(output.context, &[&x], &dropping).len(), 10);
    // Without autodiff nothing is dropped.
    use burn::module::Module;
    let plain = MhaInput::self_attn(x.inner());
    let same = |weights: burn::tensor::Tensor<4>| v22::read(weights);
    assert_eq!(
        same(dropping.valid().forward(plain.clone()).weights.clone()),
        same(mha(0.0).valid().forward(plain).weights.clone())
    );
}

/// Weights drop if the keys alone are under autodiff: as in Burn's module, the weights decide.
#[test]
fn dropout_of_a_plain_query() {
    use burn::module::Module;
    let prob = 0.25;
    let config = MultiHeadAttentionConfig::new(8, 2).with_dropout(prob);
    let mut mha = v22::filled(config.init(&v22::device()), Ty::F64);
    mha.query = mha.valid().query;
    let x = v22::tensor::<3>(1, [4, 32, 8], Ty::F64);
    let output = mha.forward(MhaInput::new(x.clone().inner(), x.clone(), x));
    let weights = v22::read(output.weights.clone());
    let dropped = weights.iter().filter(|&&weight| weight == 0.0).count();
    // 6 standard deviations of a binomial distribution.
    let (count, share) = (weights.len() as f64, dropped as f64 / weights.len() as f64);
    assert!((share - prob).abs() < 6.0 * (prob * (1.0 - prob) / count).sqrt(), "{share} dropped");
}

#[test]
fn encoders() {
    use burn::nn::activation::ActivationConfig;
    for norm_first in [true, false] {
        // A launch for each of 4 norms beside another use of its input, and for linear layers as above.
        same_as_021!("encoder", 12, crate::worlds::assert_same_sums, |v, nn, ty| {
            let x = v::leaf::<3>(1, [2, 20, 8], ty);
            let config = nn::transformer::TransformerEncoderConfig::new(8, 16, 2, 2).with_dropout(0.0);
            let encoder = v::filled(config.with_norm_first(norm_first).init(&v::device()), ty);
            let input = nn::transformer::TransformerEncoderInput::new(x.clone());
            let input = input.mask_pad(v::bools(hidden(40, 7), [2, 20]));
            v::results(encoder.forward(input), &[&x], &encoder)
        });
        as_burns!("encoder", 64, |v, nn, ty| {
            let x = v::leaf::<3>(1, [2, 6, 8], ty);
            let config = nn::transformer::TransformerEncoderConfig::new(8, 16, 2, 1).with_dropout(0.0);
            let config = config.with_activation(if norm_first {
                ActivationConfig::Relu
            } else {
                ActivationConfig::Gelu
            });
            let encoder = v::filled(config.with_norm_first(norm_first).init(&v::device()), ty);
            v::results(
                encoder.forward(nn::transformer::TransformerEncoderInput::new(x.clone() * 0.25)),
                &[&x],
                &encoder,
            )
        });
    }
}
