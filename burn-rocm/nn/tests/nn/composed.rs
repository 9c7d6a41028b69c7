//! Every layer and loss on a backend that this crate does not know (`burn-flex` under autodiff):
//! composed of Burn's ops, with the values and gradients of Burn's own modules, and nothing
//! launched here.

use burn::module::{Initializer, Module};
use burn::nn::activation::ActivationConfig;
use burn::nn::conv::Conv2dConfig;
use burn::nn::loss as burns;
use burn::nn::loss::Reduction;
use burn::nn::{LinearConfig, PaddingConfig2d, attention, transformer};
use burn::tensor::activation::{self, log_softmax, silu};
use burn::tensor::{Bool, Int};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn as ours;
use burn_rocm_nn::loss;
use burn_rocm_tests::assert_close;
use burn_rocm_tests::trace::during;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::attention::{bools, drawn_bools, loaded, saved};
use crate::layer::{ACTS, by_burn};
use crate::support::*;

type B = Oracle;

/// The inputs, tracked; each a step behind its leaf.
fn inputs<const N: usize>(data: &[TensorData; N]) -> [[Tensor<B, 3>; 2]; N] {
    std::array::from_fn(|k| {
        let leaf = tensor::<B, 3>(&data[k], DType::F32).require_grad();
        [leaf.clone() * 1.5, leaf]
    })
}

/// The output of a module for tracked inputs, and the gradients of the sum of its squares with
/// respect to the inputs and to all parameters.
fn all_of<M: Module<B>, const N: usize, const OUT: usize>(
    module: &M,
    data: &[TensorData; N],
    forward: impl Fn(&M, [Tensor<B, 3>; N]) -> Tensor<B, OUT>,
) -> Vec<TensorData> {
    let inputs = inputs(data);
    let out = forward(module, inputs.each_ref().map(|[x, _]| x.clone()));
    let grads = (out.clone() * out.clone()).sum().backward();
    let mut all = vec![out.into_data()];
    all.extend(inputs.map(|[_, leaf]| leaf.grad(&grads).expect("a gradient of the input").into_data()));
    all.extend(gradients_of(module, &grads));
    all
}

/// Without parameters.
fn plain<const N: usize, const OUT: usize>(
    data: &[TensorData; N],
    forward: impl Fn([Tensor<B, 3>; N]) -> Tensor<B, OUT>,
) -> Vec<TensorData> {
    all_of(&Vec::<burn::nn::Linear<B>>::new(), data, |_, x| forward(x))
}

fn same(what: &str, (found, lines): (Vec<TensorData>, Vec<String>), expected: &[TensorData]) {
    assert_close(&what, &found, expected, Tolerance::of(DType::F32).times(20.0));
    assert!(lines.is_empty(), "{what}: {lines:#?}");
}

/// The initializer of a module's parameters. If `fresh`, all start with the same value, because the
/// parameters of a module that never ran do not exist yet. Otherwise they are random, and both
/// modules load one record.
fn initializer(fresh: bool) -> Initializer {
    if fresh { Initializer::Constant { value: 0.2 } } else { Initializer::Uniform { min: -0.5, max: 0.5 } }
}

/// A module of this crate and Burn's, with the same parameters.
macro_rules! both {
    ($fresh:expr, $ours:expr, $theirs:expr) => {{
        let (ours, theirs) = ($ours, $theirs);
        if $fresh {
            (ours, theirs)
        } else {
            let record = saved($theirs);
            (loaded(ours, &record), loaded(theirs, &record))
        }
    }};
}

#[test]
fn layers() {
    let device = Default::default();
    let data = [uniform(&Random::new(), &[2, 5, 6])];
    for (act, biased, fresh) in [(0, true), (1, false), (2, true), (0, false), (1, true)]
        .into_iter()
        .flat_map(|(k, biased)| [true, false].map(|fresh| (ACTS[k], biased, fresh)))
    {
        let what = format!("{act:?}, bias {biased}, fresh {fresh}");
        let (own, theirs) = both!(
            fresh,
            ours::LinearActConfig::new(6, 4, act)
                .with_bias(biased)
                .with_initializer(initializer(fresh))
                .init::<B>(&device),
            LinearConfig::new(6, 4).with_bias(biased).with_initializer(initializer(fresh)).init::<B>(&device)
        );
        let found = during(|| all_of(&own, &data, |layer, [x]| layer.forward(x)));
        let expected = all_of(&theirs, &data, |layer, [x]| by_burn(act, layer.forward(x)));
        same(&format!("linear, {what}"), found, &expected);

        let (own, theirs) = both!(
            fresh,
            ours::ConvActConfig::new([2, 3], [2, 3], act)
                .with_bias(biased)
                .with_padding(PaddingConfig2d::Valid)
                .with_initializer(initializer(fresh))
                .init::<B>(&device),
            Conv2dConfig::new([2, 3], [2, 3])
                .with_bias(biased)
                .with_initializer(initializer(fresh))
                .init::<B>(&device)
        );
        let found = during(|| all_of(&own, &data, |layer, [x]| layer.forward(x.unsqueeze::<4>())));
        let expected = all_of(&theirs, &data, |layer, [x]| by_burn(act, layer.forward(x.unsqueeze::<4>())));
        same(&format!("convolution, {what}"), found, &expected);

        let (own, theirs) = both!(
            fresh,
            ours::SwiGluConfig::new(6, 4)
                .with_bias(biased)
                .with_initializer(initializer(fresh))
                .init::<B>(&device),
            burn::nn::SwiGluConfig::new(6, 4)
                .with_bias(biased)
                .with_initializer(initializer(fresh))
                .init::<B>(&device)
        );
        let found = during(|| all_of(&own, &data, |layer, [x]| layer.forward(x)));
        let expected = all_of(&theirs, &data, |layer, [x]| layer.forward(x));
        same(&format!("SwiGLU, {what}"), found, &expected);
    }
}

#[test]
fn sums_products_and_activations() {
    let random = Random::new();
    let data: [TensorData; 3] = std::array::from_fn(|_| uniform(&random, &[2, 5, 6]));
    let [a, b, _] = data.clone();
    let pair = [a.clone(), b];
    for act in ACTS {
        let found = during(|| plain(&pair, |[a, b]| ours::AddAct::new(act).forward(a, b)));
        same("a sum", found, &plain(&pair, |[a, b]| by_burn(act, a + b)));
    }
    let found = during(|| plain(&data, |[a, b, c]| ours::MulAdd::new().forward(a, b, c)));
    same("a product and a sum", found, &plain(&data, |[a, b, c]| a * b + c));
    let one = [a];
    same("SiLU", during(|| plain(&one, |[x]| ours::Silu::new().forward(x))), &plain(&one, |[x]| silu(x)));
    for dim in 0..3 {
        let found = during(|| plain(&one, |[x]| ours::activation::softmax(x, dim)));
        same("softmax", found, &plain(&one, |[x]| activation::softmax(x, dim)));
        let found = during(|| plain(&one, |[x]| ours::activation::log_softmax(x, dim)));
        same("log_softmax", found, &plain(&one, |[x]| log_softmax(x, dim)));
    }
}

#[test]
fn losses_of_elements() {
    let random = Random::new();
    let data = [uniform(&random, &[2, 5, 6]), uniform(&random, &[2, 5, 6])];
    let (own, theirs) = (loss::HuberLossConfig::new(0.7).init(), burns::HuberLossConfig::new(0.7).init());
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Auto] {
        let of = || reduction.clone();
        let found = during(|| plain(&data, |[a, b]| loss::MseLoss::new().forward(a, b, of())));
        same("mse", found, &plain(&data, |[a, b]| burns::MseLoss::new().forward(a, b, of())));
        let found = during(|| plain(&data, |[a, b]| own.forward(a, b, of())));
        same("huber", found, &plain(&data, |[a, b]| theirs.forward(a, b, of())));
    }
    let found = during(|| plain(&data, |[a, b]| loss::MseLoss::new().forward_no_reduction(a, b)));
    same("mse, each", found, &plain(&data, |[a, b]| burns::MseLoss::new().forward_no_reduction(a, b)));
    let found = during(|| plain(&data, |[a, b]| own.forward_no_reduction(a, b)));
    same("huber, each", found, &plain(&data, |[a, b]| theirs.forward_no_reduction(a, b)));
    let found = during(|| plain(&data, |[a, b]| own.forward_residuals(a - b)));
    same("huber of residuals", found, &plain(&data, |[a, b]| theirs.forward_residuals(a - b)));

    let labels: Vec<i64> = (0..60).map(|_| random.below(2) as i64).collect();
    let labels =
        || Tensor::<B, 3, Int>::from_data(TensorData::new(labels.clone(), [2, 5, 6]), &Default::default());
    for (logits, smoothing, weighted) in
        [(true, None, false), (true, Some(0.2), true), (false, None, true), (false, Some(0.1), false)]
    {
        let weights = weighted.then(|| (1..=6).map(|k| k as f32 / 2.0).collect::<Vec<_>>());
        macro_rules! of {
            ($from:ident) => {
                $from::BinaryCrossEntropyLossConfig::new()
                    .with_logits(logits)
                    .with_smoothing(smoothing)
                    .with_weights(weights.clone())
                    .init::<B>(&Default::default())
            };
        }
        let (own, theirs) = (of!(loss), of!(burns));
        let scores = |x: Tensor<B, 3>| if logits { x } else { activation::sigmoid(x) };
        let one = [data[0].clone()];
        let found = during(|| plain(&one, |[x]| own.forward(scores(x), labels())));
        let expected = plain(&one, |[x]| theirs.forward(scores(x), labels()));
        same(&format!("bce, logits {logits}, {smoothing:?}, weighted {weighted}"), found, &expected);
        assert_eq!(own.to_string(), theirs.to_string());
    }
    assert_eq!(own.to_string(), theirs.to_string());
    let (own, theirs) = (loss::MseLoss::new(), burns::MseLoss::new());
    assert_eq!(own.to_string(), theirs.to_string());
}

#[test]
fn losses_of_classes() {
    let random = Random::new();
    let data = [uniform(&random, &[2, 5, 6])];
    let classes: Vec<i64> = (0..10).map(|_| random.below(6) as i64).collect();
    let targets =
        || Tensor::<B, 1, Int>::from_data(TensorData::new(classes.clone(), [10]), &Default::default());
    let rows = |x: Tensor<B, 3>| x.reshape([10, 6]);
    let weights = || Some((1..=6).map(|k| k as f32 / 2.0).collect::<Vec<_>>());
    for (weights, smoothing, pad) in [
        (None, None, None),
        (weights(), None, Some(vec![1, 4])),
        (None, Some(0.2), Some(vec![0])),
        (weights(), Some(0.3), None),
        (weights(), Some(0.1), Some(vec![2])),
    ] {
        let what = format!("{weights:?} {smoothing:?} {pad:?}");
        for logits in [true, false] {
            macro_rules! of {
                ($from:ident) => {
                    $from::CrossEntropyLossConfig::new()
                        .with_pad_tokens(pad.clone())
                        .with_weights(weights.clone())
                        .with_smoothing(smoothing)
                        .with_logits(logits)
                        .init::<B>(&Default::default())
                };
            }
            let (own, theirs) = (of!(loss), of!(burns));
            let scores = |x| if logits { rows(x) } else { activation::softmax(rows(x), 1) };
            let found = during(|| plain(&data, |[x]| own.forward(scores(x), targets())));
            let expected = plain(&data, |[x]| theirs.forward(scores(x), targets()));
            same(&format!("cross entropy, logits {logits}, {what}"), found, &expected);
            assert_eq!(own.to_string(), theirs.to_string());
            if logits {
                let config =
                    loss::NllLossConfig { pad_tokens: pad.clone(), weights: weights.clone(), smoothing };
                let own = config.init::<B>(&Default::default());
                let found = during(|| plain(&data, |[x]| own.forward(log_softmax(rows(x), 1), targets())));
                same(&format!("nll, {what}"), found, &expected);
            }
        }
    }
}

/// Typed here too.
#[test]
fn targets_of_another_count_are_an_error() {
    let loss = loss::NllLossConfig::new().init::<B>(&Default::default());
    let (x, targets) =
        (Tensor::<B, 2>::ones([3, 4], &Default::default()), Tensor::from_data([1, 2], &Default::default()));
    catch_unwind(AssertUnwindSafe(|| loss.forward(x, targets))).expect_err("two targets of three rows");
    assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "nll_loss", .. })));
}

#[test]
fn multi_head_attention() {
    let random = Random::new();
    let data: [TensorData; 3] =
        [&[2, 4, 6], &[2, 5, 6], &[2, 5, 6]].map(|shape: &[usize; 3]| uniform(&random, shape));
    let (pad, attn) = (drawn_bools(&random, &[2, 5], 0.3), drawn_bools(&random, &[2, 4, 5], 0.3));
    for (fresh, quiet, masks) in [
        (true, false, [false, false]),
        (false, true, [true, true]),
        (false, false, [true, false]),
        (false, false, [false, true]),
    ] {
        macro_rules! of {
            ($api:path) => {{
                use $api as api;
                api::MultiHeadAttentionConfig::new(6, 2)
                    .with_dropout(0.0)
                    .with_quiet_softmax(quiet)
                    .with_initializer(initializer(fresh))
                    .init::<B>(&Default::default())
            }};
        }
        macro_rules! run {
            ($api:path, $module:expr) => {{
                use $api as api;
                all_of(&$module, &data, |module, [query, key, value]| {
                    let mut input = api::MhaInput::new(query, key, value);
                    if masks[0] {
                        input = input.mask_pad(bools(&pad));
                    }
                    if masks[1] {
                        input = input.mask_attn(bools(&attn));
                    }
                    let output = module.forward(input);
                    let weights: Tensor<B, 4> = output.weights.into();
                    let weights = weights.swap_dims(1, 2).reshape([2, 4, 10]);
                    Tensor::cat(vec![output.context, weights], 2)
                })
            }};
        }
        let (own, theirs) = both!(fresh, of!(burn_rocm_nn::attention), of!(burn::nn::attention));
        let found = during(|| run!(burn_rocm_nn::attention, own));
        same(&format!("attention, fresh {fresh}, quiet {quiet}, {masks:?}"), found, &run!(attention, theirs));
    }
}

#[test]
fn transformer_encoder() {
    let random = Random::new();
    let data = [uniform(&random, &[2, 4, 6])];
    let (pad, attn) = (drawn_bools(&random, &[2, 4], 0.3), drawn_bools(&random, &[2, 4, 4], 0.3));
    let kinds = [ActivationConfig::Gelu, ActivationConfig::Relu, ActivationConfig::GeluApproximate];
    for (k, activation) in kinds.into_iter().enumerate() {
        let (fresh, masked) = (k == 0, k != 1);
        macro_rules! of {
            ($api:path) => {{
                use $api as api;
                api::TransformerEncoderConfig::new(6, 8, 2, 2)
                    .with_dropout(0.0)
                    .with_norm_first(k == 1)
                    .with_activation(activation.clone())
                    .with_initializer(initializer(fresh))
                    .init::<B>(&Default::default())
            }};
        }
        macro_rules! run {
            ($api:path, $module:expr) => {{
                use $api as api;
                all_of(&$module, &data, |module, [x]| {
                    let mut input = api::TransformerEncoderInput::new(x);
                    if masked {
                        let pad: Tensor<B, 2, Bool> = bools(&pad);
                        input = input.mask_pad(pad).mask_attn(bools(&attn));
                    }
                    module.forward(input)
                })
            }};
        }
        let (own, theirs) = both!(fresh, of!(burn_rocm_nn::transformer), of!(burn::nn::transformer));
        let found = during(|| run!(burn_rocm_nn::transformer, own));
        let expected = run!(transformer, theirs);
        let tolerance = Tolerance::of(DType::F32).times(200.0);
        assert_close(&format!("encoder, {activation:?}"), &found.0, &expected, tolerance);
        assert!(found.1.is_empty(), "{:#?}", found.1);
    }
}
