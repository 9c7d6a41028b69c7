//! What configs and modules refuse. They panic like Burn's ops, with an error that names the
//! expected and the found value.

use burn::module::Module;
use burn::nn::{PaddingConfig2d, PaddingConfig3d};
use burn::tensor::backend::AutodiffBackend;
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn as ours;
use burn_rocm_nn::amp::{GradScalerConfig, GradScalerRecord};
use burn_rocm_nn::attention::{MhaCache, MhaInput, MultiHeadAttentionConfig};
use burn_rocm_nn::loss;
use burn_rocm_nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::*;

/// Asserts that the body ends in an `Invalid` of this op, which names the found value.
fn refused<T>(op: &str, what: &str, body: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(|| drop(body()))).is_err(), "{op} took {what}");
    match take_last_error() {
        Some(RocmError::Invalid { op: of, expected, found }) => {
            assert_eq!(of, op);
            assert!(found.contains(what) && !expected.is_empty(), "{op}: {expected}, found {found}");
        }
        other => panic!("{op} of {what}: {other:?}"),
    }
}

fn configs<B: AutodiffBackend>() {
    let device = Default::default();
    for groups in [0, 3] {
        refused("GroupNormConfig", &groups.to_string(), || {
            ours::GroupNormConfig::new(groups, 4).init::<B>(&device)
        });
        refused("MultiHeadAttentionConfig", &groups.to_string(), || {
            MultiHeadAttentionConfig::new(4, groups).init::<B>(&device)
        });
        refused("MultiHeadAttentionConfig", &groups.to_string(), || {
            MultiHeadAttentionConfig::new(8, 4).with_kv_heads(Some(groups)).init::<B>(&device)
        });
    }
    refused("MultiHeadAttentionConfig", "0", || {
        MultiHeadAttentionConfig::new(8, 4).with_window(Some(0)).init::<B>(&device)
    });
    for epsilon in [0.0, -1.0, f64::NAN] {
        refused("RmsNormConfig", &epsilon.to_string(), || {
            ours::RmsNormConfig::new(4).with_epsilon(epsilon).init::<B>(&device)
        });
    }
    for delta in [-0.5, f32::NAN] {
        refused("HuberLossConfig", &delta.to_string(), || loss::HuberLossConfig::new(delta).init());
    }
    for alpha in [-0.5f32, 1.5, f32::NAN] {
        let (what, smoothing) = (alpha.to_string(), Some(alpha));
        refused("loss", &what, || {
            loss::CrossEntropyLossConfig::new().with_smoothing(smoothing).init::<B>(&device)
        });
        refused("loss", &what, || loss::NllLossConfig::new().with_smoothing(smoothing).init::<B>(&device));
        refused("loss", &what, || {
            loss::BinaryCrossEntropyLossConfig::new().with_smoothing(smoothing).init::<B>(&device)
        });
    }
    for weight in [0.0f32, -1.0, f32::NAN] {
        let (what, weights) = (format!("[1.0, {weight:?}]"), Some(vec![1.0, weight]));
        refused("loss", &what, || {
            loss::CrossEntropyLossConfig::new().with_weights(weights.clone()).init::<B>(&device)
        });
        refused("loss", &what, || {
            loss::NllLossConfig::new().with_weights(weights.clone()).init::<B>(&device)
        });
        refused("loss", &what, || {
            loss::BinaryCrossEntropyLossConfig::new().with_weights(weights.clone()).init::<B>(&device)
        });
    }
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e60, 1e-60] {
        let config = GradScalerConfig::new().with_initial_scale(scale);
        refused("GradScalerConfig", &scale.to_string(), || config.init());
        let record = GradScalerRecord { scale: scale as f32, finite: 0, skipped: 0 };
        refused("GradScaler::load_record", &(scale as f32).to_string(), || {
            GradScalerConfig::new().init().load_record(record)
        });
    }
    for factor in [0.5, f64::NAN] {
        let config = GradScalerConfig::new().with_growth_factor(factor);
        refused("GradScalerConfig", &factor.to_string(), || config.init());
    }
    for factor in [0.0, 1.0, f64::NAN] {
        let config = GradScalerConfig::new().with_backoff_factor(factor);
        refused("GradScalerConfig", &factor.to_string(), || config.init());
    }
}

#[test]
fn configs_say_what_does_not_fit() {
    configs::<Ours>();
    configs::<Oracle>();
}

fn inputs<B: AutodiffBackend>(of_max: &str, of_average: &str) {
    let device = Default::default();
    let x = Tensor::<B, 5>::ones([1, 1, 4, 4, 4], &device);
    for (padding, of_max, of_average) in
        [(PaddingConfig3d::Same, "pool3d", "pool3d"), (PaddingConfig3d::Valid, of_max, of_average)]
    {
        let pool = ours::MaxPool3dConfig::new([2; 3]).with_strides([1, 0, 1]).with_padding(padding.clone());
        refused(of_max, "[1, 0, 1]", || pool.init().forward(x.clone()));
        let pool = ours::AvgPool3dConfig::new([2; 3]).with_strides([0, 1, 1]).with_padding(padding);
        refused(of_average, "[0, 1, 1]", || pool.init().forward(x.clone()));
    }
    let attention = MultiHeadAttentionConfig::new(4, 2).init::<B>(&device);
    let tokens = |count| MhaInput::self_attn(Tensor::<B, 3>::ones([2, count, 4], &device));
    let mut cache = MhaCache::autoregressive();
    attention.forward_cache(tokens(2), &mut cache);
    for count in [0, 1, 2, 4] {
        let what = format!("[2, {count}, 4]");
        refused("autoregressive cache", &what, || attention.forward_cache(tokens(count), &mut cache));
    }
    // Keys that do not continue the cached ones are refused before the queries are cached.
    let uneven = MhaInput::new(
        Tensor::<B, 3>::ones([2, 3, 4], &device),
        Tensor::ones([2, 3, 4], &device),
        Tensor::ones([2, 4, 4], &device),
    );
    refused("autoregressive cache", "[2, 4, 4]", || attention.forward_cache(uneven, &mut cache));
    let third = attention.forward_cache(tokens(3), &mut cache);
    assert_eq!(third.context.dims(), [2, 3, 4], "what was refused has left the cache as it was");
    let mut windowed = MultiHeadAttentionConfig::new(4, 2).with_window(Some(3)).init::<B>(&device);
    let mut cache = MhaCache::autoregressive_cross_attention();
    refused("autoregressive cache", "a window of 3", || windowed.forward_cache(tokens(2), &mut cache));
    windowed.activation.window = Some(0);
    refused("MultiHeadAttention", "0", || windowed.forward(tokens(2)));
    let x = Tensor::<B, 3>::ones([2, 2, 4], &device);
    refused("MultiHeadAttention", "0", || windowed.forward(MhaInput::new(x.clone(), x.clone(), x)));
    refused("MultiHeadAttention", "0", || windowed.forward_cache(tokens(2), &mut MhaCache::autoregressive()));
    windowed.activation.window = None;
    windowed.forward_cache(tokens(2), &mut cache);
    let encoder = TransformerEncoderConfig::new(4, 6, 2, 2).init::<B>(&device);
    let mut cache = encoder.new_autoregressive_cache();
    let mut step = |count| {
        let input = TransformerEncoderInput::new(Tensor::<B, 3>::ones([2, count, 4], &device));
        encoder.forward_autoregressive_inference(input, &mut cache)
    };
    step(2);
    refused("autoregressive cache", "[2, 4, 4]", || step(4));
    assert_eq!(step(3).dims(), [2, 3, 4]);
}

/// Burn's module takes only the last of several new tokens, and panics when it needs the others.
#[test]
fn burns_module_takes_one_new_token_too() {
    let device = Default::default();
    let attention = burn::nn::attention::MultiHeadAttentionConfig::new(4, 2).init::<Oracle>(&device);
    let tokens =
        |count| burn::nn::attention::MhaInput::self_attn(Tensor::<Oracle, 3>::ones([2, count, 4], &device));
    for count in [1, 2, 4] {
        let mut cache = burn::nn::attention::MhaCache::autoregressive();
        attention.forward_cache(tokens(2), &mut cache);
        catch_unwind(AssertUnwindSafe(|| drop(attention.forward_cache(tokens(count), &mut cache))))
            .expect_err("not one token more than the cached ones");
    }
}

#[test]
fn modules_say_what_does_not_fit() {
    inputs::<Ours>("max_pool3d_with_indices", "avg_pool3d");
    inputs::<Oracle>("pool3d", "pool3d");
    let device = Default::default();
    let mut layer = ours::ConvActConfig::new([1, 1], [3, 3], ours::Act::Relu)
        .with_padding(PaddingConfig2d::Same)
        .init::<Ours>(&device);
    layer.stride = [0, 1];
    assert_eq!(layer.num_params(), 10);
    refused("conv_act", "[0, 1]", || layer.forward(Tensor::ones([1, 1, 4, 4], &device)));
}
