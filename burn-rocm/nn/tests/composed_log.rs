//! A module that composes Burn's ops says so once, with the reason.
#![allow(missing_docs, clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use burn::backend::Autodiff;
use burn::nn::activation::ActivationConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d, PaddingConfig3d};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Int, Tensor};
use burn_flex::Flex;
use burn_rocm::Rocm;
use burn_rocm_nn::activation::{log_softmax, softmax};
use burn_rocm_nn::amp::{GradScalerConfig, Precision};
use burn_rocm_nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn_rocm_nn::loss::{
    BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, HuberLossConfig, MseLoss, NllLossConfig, Reduction,
};
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn_rocm_nn::transformer::{
    PositionWiseFeedForwardConfig, TransformerEncoderConfig, TransformerEncoderInput, TransformerEncoderLayer,
};
use burn_rocm_nn::{
    Act, AddAct, AvgPool3dConfig, BatchNormConfig, ConvActConfig, GroupNormConfig, InstanceNormConfig,
    LayerNormConfig, LinearActConfig, MaxPool3dConfig, MulAdd, RmsNormConfig, Silu, SwiGluConfig,
};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A logger that keeps this crate's messages.
struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_rocm_nn")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            SAID.lock().unwrap_or_else(PoisonError::into_inner).push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The messages logged while `run` runs.
fn said(run: impl FnOnce()) -> Vec<String> {
    run();
    std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs something that Burn refuses.
fn refused<T>(run: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
}

/// One or several forward passes.
type Passes = fn();

fn ones<B: Backend, const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    Tensor::ones(shape, &Default::default())
}

fn classes<B: Backend, const D: usize>(shape: [usize; D]) -> Tensor<B, D, Int> {
    Tensor::ones(shape, &Default::default())
}

/// Each module of this crate that has a forward pass, with every way to run it that has a fused op.
/// A module that another module contains comes before that module.
fn modules<B: Backend>() -> Vec<(&'static str, Passes)> {
    vec![
        ("AddAct", || drop(AddAct::new(Act::Relu).forward(ones::<B, 2>([2, 3]), ones([2, 3])))),
        ("MulAdd", || drop(MulAdd::new().forward(ones::<B, 2>([2, 3]), ones([2, 3]), ones([2, 3])))),
        ("SwiGlu", || {
            SwiGluConfig::new(3, 2).init::<B>(&Default::default()).forward(ones([2, 3]));
        }),
        ("LinearAct", || {
            for bias in [true, false] {
                let config = LinearActConfig::new(3, 2, Act::Gelu).with_bias(bias);
                config.init::<B>(&Default::default()).forward(ones([2, 3]));
            }
        }),
        ("ConvAct", || {
            let paddings =
                [PaddingConfig2d::Valid, PaddingConfig2d::Same, PaddingConfig2d::Explicit(1, 1, 0, 0)];
            for (act, padding) in
                [Act::Relu, Act::Silu].into_iter().flat_map(|a| paddings.clone().map(|p| (a, p)))
            {
                let config = ConvActConfig::new([2, 3], [2, 2], act).with_padding(padding);
                config.init::<B>(&Default::default()).forward(ones([1, 2, 4, 4]));
            }
        }),
        ("Silu", || drop(Silu::new().forward(ones::<B, 2>([2, 3])))),
        ("softmax", || drop(softmax(ones::<B, 2>([2, 3]), 1))),
        ("log_softmax", || drop(log_softmax(ones::<B, 2>([2, 3]), 1))),
        ("LayerNorm", || {
            for bias in [true, false] {
                let config = LayerNormConfig::new(3).with_bias(bias);
                config.init::<B>(&Default::default()).forward(ones([2, 3]));
            }
        }),
        ("RmsNorm", || drop(RmsNormConfig::new(3).init::<B>(&Default::default()).forward(ones([2, 3])))),
        ("GroupNorm", || {
            GroupNormConfig::new(2, 4).init::<B>(&Default::default()).forward(ones([2, 4, 3]));
        }),
        ("InstanceNorm", || {
            InstanceNormConfig::new(4).init::<B>(&Default::default()).forward(ones([2, 4, 3]));
        }),
        ("BatchNorm", || {
            BatchNormConfig::new(4).init::<B>(&Default::default()).forward(ones([2, 4, 3]));
        }),
        ("MaxPool3d", || {
            for padding in [PaddingConfig3d::Valid, PaddingConfig3d::Same] {
                MaxPool3dConfig::new([2; 3])
                    .with_padding(padding)
                    .init()
                    .forward(ones::<B, 5>([1, 1, 3, 3, 3]));
            }
        }),
        ("AvgPool3d", || {
            for padding in [PaddingConfig3d::Valid, PaddingConfig3d::Same] {
                AvgPool3dConfig::new([2; 3])
                    .with_padding(padding)
                    .init()
                    .forward(ones::<B, 5>([1, 1, 3, 3, 3]));
            }
        }),
        ("MseLoss", || {
            for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Auto] {
                MseLoss::new().forward(ones::<B, 2>([2, 3]), ones([2, 3]), reduction);
            }
            MseLoss::new().forward_no_reduction(ones::<B, 2>([2, 3]), ones([2, 3]));
        }),
        ("HuberLoss", || {
            let loss = HuberLossConfig::new(1.0).init();
            for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Auto] {
                loss.forward(ones::<B, 2>([2, 3]), ones([2, 3]), reduction);
            }
            loss.forward_no_reduction(ones::<B, 2>([2, 3]), ones([2, 3]));
            loss.forward_residuals(ones::<B, 2>([2, 3]));
        }),
        ("BinaryCrossEntropyLoss", || {
            for weights in [None, Some(vec![1.0; 3])] {
                let config = BinaryCrossEntropyLossConfig::new().with_logits(true).with_weights(weights);
                config.init::<B>(&Default::default()).forward(ones([2, 3]), classes([2, 3]));
            }
        }),
        ("CrossEntropyLoss", || {
            // The most pad tokens that the fused op takes.
            let config = CrossEntropyLossConfig::new().with_pad_tokens(Some((2..10).collect()));
            for weights in [None, Some(vec![1.0; 3])] {
                let loss = config.clone().with_weights(weights).init::<B>(&Default::default());
                loss.forward(ones([2, 3]), classes([2]));
            }
        }),
        ("NllLoss", || {
            let config = NllLossConfig::new().with_pad_tokens(Some((2..10).collect()));
            for weights in [None, Some(vec![1.0; 3])] {
                let loss = config.clone().with_weights(weights).init::<B>(&Default::default());
                loss.forward(ones([2, 3]), classes([2]));
            }
        }),
        // With dropout, which the fused op supports.
        ("MultiHeadAttention", || {
            let attention = MultiHeadAttentionConfig::new(4, 2).init::<B>(&Default::default());
            let tokens = ones([2, 3, 4]);
            // Both ways to make queries, keys and values: by one product and by three.
            drop(attention.forward(MhaInput::self_attn(ones([2, 30, 4]))).weights.into_tensor());
            let input = MhaInput::new(tokens.clone(), tokens.clone(), tokens);
            drop(attention.forward(input).weights.into_tensor());
        }),
        ("PositionWiseFeedForward", || {
            for activation in [ActivationConfig::Gelu, ActivationConfig::Relu] {
                feed_forward::<B>(0.0, activation);
            }
        }),
        ("TransformerEncoderLayer", || {
            let config = TransformerEncoderConfig::new(4, 6, 2, 1).with_dropout(0.0);
            let layer = TransformerEncoderLayer::<B>::new(&config, &Default::default());
            layer.forward(ones([2, 3, 4]), None, None);
        }),
        ("TransformerEncoder", || encoder::<B>(0.0)),
    ]
}

fn feed_forward<B: Backend>(dropout: f64, activation: ActivationConfig) {
    let config = PositionWiseFeedForwardConfig::new(3, 4).with_dropout(dropout).with_activation(activation);
    config.init::<B>(&Default::default()).forward(ones([2, 3]));
}

fn encoder<B: Backend>(dropout: f64) {
    let config = TransformerEncoderConfig::new(4, 6, 2, 2).with_dropout(dropout);
    config.init::<B>(&Default::default()).forward(TransformerEncoderInput::new(ones([2, 3, 4])));
}

/// The losses of classes and of labels with these weights, which require a gradient, and with these
/// pad tokens.
fn class_losses<B: AutodiffBackend>(weights: Option<Vec<f32>>, pad_tokens: Option<Vec<usize>>) {
    let tracked = |weights: Option<Tensor<B, 1>>| weights.map(Tensor::require_grad);
    let config = CrossEntropyLossConfig::new().with_weights(weights.clone());
    let mut loss = config.with_pad_tokens(pad_tokens.clone()).init::<B>(&Default::default());
    loss.weights = tracked(loss.weights);
    loss.forward(ones([2, 3]), classes([2]));
    let config = NllLossConfig::new().with_weights(weights.clone()).with_pad_tokens(pad_tokens);
    let mut loss = config.init::<B>(&Default::default());
    loss.weights = tracked(loss.weights);
    loss.forward(ones([2, 3]), classes([2]));
    let config = BinaryCrossEntropyLossConfig::new().with_logits(true).with_weights(weights);
    let mut loss = config.init::<B>(&Default::default());
    loss.weights = tracked(loss.weights);
    loss.forward(ones([2, 3]), classes([2, 3]));
}

/// Means over the batch, which Burn refuses.
fn batch_means<B: Backend>() {
    refused(|| MseLoss::new().forward(ones::<B, 2>([2, 3]), ones([2, 3]), Reduction::BatchMean));
    let huber = HuberLossConfig::new(1.0).init();
    refused(|| huber.forward(ones::<B, 2>([2, 3]), ones([2, 3]), Reduction::BatchMean));
}

/// A step of each optimizer, and one step in f16 with a scaled loss.
fn train<B: AutodiffBackend>() {
    let linear: Linear<B> = LinearConfig::new(3, 2).init(&Default::default());
    let grads = |linear: &Linear<B>| {
        GradientsParams::from_grads(linear.forward(ones::<B, 2>([2, 3])).sum().backward(), linear)
    };
    let linear = AdamConfig::new().init().step(0.1, linear.clone(), grads(&linear));
    let linear = AdamWConfig::new().init().step(0.1, linear.clone(), grads(&linear));
    let mut optimizer = SgdConfig::new().init();
    let linear = optimizer.step(0.1, linear.clone(), grads(&linear));
    Precision::new(FloatDType::F16).convert(&linear);
    GradScalerConfig::new().init().step(&mut optimizer, 0.1, linear.clone(), grads(&linear));
}

const ELSEWHERE: &str = "burn-rocm-nn has no fused ops for this backend type";

/// Passes that compose: the modules that say so, in this order, and the reason. A message of an
/// earlier row is not repeated.
const COMPOSED: &[(&[&str], &str, Passes)] = &[
    (&["Adam", "AdamW", "Sgd", "Precision", "GradScaler"], ELSEWHERE, train::<Autodiff<Flex>>),
    // This reason counts, whatever other reasons there are.
    (&["MseLoss", "HuberLoss"], ELSEWHERE, batch_means::<Autodiff<Flex>>),
    (&["PositionWiseFeedForward"], ELSEWHERE, || {
        feed_forward::<Autodiff<Flex>>(0.5, ActivationConfig::Tanh);
    }),
    (&["AddAct"], ELSEWHERE, || {
        AddAct::new(Act::Relu).forward(ones::<Autodiff<Flex>, 2>([1, 3]), ones([2, 3]));
    }),
    (&["MulAdd"], ELSEWHERE, || {
        MulAdd::new().forward(ones::<Autodiff<Flex>, 2>([1, 3]), ones([2, 3]), ones([2, 3]));
    }),
    (
        &["TransformerEncoder", "MultiHeadAttention", "TransformerEncoderLayer", "LayerNorm"],
        ELSEWHERE,
        || encoder::<Autodiff<Flex>>(0.5),
    ),
    (&["MseLoss", "HuberLoss"], "the fused op has no mean over the batch", batch_means::<Rocm>),
    (&["AddAct", "MulAdd", "MseLoss", "HuberLoss"], "its inputs differ in shape", || {
        let [row, rows] = [ones::<Rocm, 2>([1, 3]), ones([2, 3])];
        AddAct::new(Act::Relu).forward(row.clone(), rows.clone());
        MulAdd::new().forward(row.clone(), rows.clone(), rows.clone());
        MseLoss::new().forward(row.clone(), rows.clone(), Reduction::Mean);
        HuberLossConfig::new(1.0).init().forward_no_reduction(row, rows);
    }),
    (&["CrossEntropyLoss", "NllLoss"], "it has more pad tokens than the fused op takes", || {
        class_losses::<Autodiff<Rocm>>(None, Some((2..11).collect()));
    }),
    (&["CrossEntropyLoss", "NllLoss", "BinaryCrossEntropyLoss"], "its weights require a gradient", || {
        class_losses::<Autodiff<Rocm>>(Some(vec![1.0; 3]), None)
    }),
    (&["PositionWiseFeedForward"], "no fused op has its activation", || {
        for activation in [ActivationConfig::Tanh, ActivationConfig::GeluApproximate] {
            feed_forward::<Rocm>(0.0, activation);
        }
    }),
    (&["PositionWiseFeedForward"], "no fused op has its dropout", || {
        feed_forward::<Autodiff<Rocm>>(0.5, ActivationConfig::Gelu);
    }),
    (&["TransformerEncoderLayer"], "dropout comes before a sum", || encoder::<Autodiff<Rocm>>(0.5)),
    (&["TransformerEncoderLayer"], "a layer before a sum has no bias", || {
        let config = TransformerEncoderConfig::new(4, 6, 2, 1);
        let mut layer = TransformerEncoderLayer::<Rocm>::new(&config, &Default::default());
        layer.pwff.linear_outer.bias = None;
        layer.forward(ones([2, 3, 4]), None, None);
    }),
    (&["TransformerEncoderLayer"], "with a cache, sums are composed", || {
        let encoder = TransformerEncoderConfig::new(4, 6, 2, 2).init::<Rocm>(&Default::default());
        let mut cache = encoder.new_autoregressive_cache();
        for len in [1, 2] {
            let input = TransformerEncoderInput::new(ones([2, len, 4]));
            encoder.forward_autoregressive_inference(input, &mut cache);
        }
    }),
];

#[test]
fn a_module_says_once_why_it_composes() {
    log::set_logger(&Keeper).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    for (module, run) in modules::<Rocm>().into_iter().chain(modules::<Autodiff<Rocm>>()) {
        assert_eq!(said(run), [""; 0], "{module} is fused");
    }
    // Dropout does nothing in inference.
    assert_eq!(said(train::<Autodiff<Rocm>>), [""; 0]);
    assert_eq!(said(|| feed_forward::<Rocm>(0.5, ActivationConfig::Gelu)), [""; 0]);
    assert_eq!(said(|| encoder::<Rocm>(0.5)), [""; 0]);
    let check = |modules: &[&str], reason: &str, run: Passes| {
        let lines = said(run);
        assert_eq!(lines.len(), modules.len(), "{modules:?}, {reason}: {lines:#?}");
        for (line, module) in lines.iter().zip(modules) {
            let start = format!("burn_rocm_nn: {module} on ");
            let end = format!(" composes Burn's ops: {reason}");
            assert!(line.starts_with(&start) && line.ends_with(&end), "{modules:?}, {reason}: {line}");
        }
        assert_eq!(said(run), [""; 0], "{modules:?}, {reason}, again");
    };
    for (module, run) in modules::<Flex>() {
        check(&[module], ELSEWHERE, run);
    }
    for (modules, reason, run) in COMPOSED {
        check(modules, reason, *run);
    }
}
