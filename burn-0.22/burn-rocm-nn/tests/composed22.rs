//! A module that composes Burn's ops says so once, with the reason; what it computes is what Burn's module does.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};

use burn::nn::activation::ActivationConfig;
use burn::nn::{LinearConfig, PaddingConfig3d};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn_rocm_nn_022::activation::{log_softmax, softmax};
use burn_rocm_nn_022::amp::{GradScalerConfig, Precision};
use burn_rocm_nn_022::attention::{MhaInput, MultiHeadAttentionConfig};
use burn_rocm_nn_022::loss::{
    BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, HuberLossConfig, MseLoss, NllLossConfig, Reduction,
};
use burn_rocm_nn_022::optim::{AdamConfig, AdamWConfig, SgdConfig};
use burn_rocm_nn_022::transformer::{
    PositionWiseFeedForwardConfig, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn_rocm_nn_022::{
    Act, AddAct, AvgPool3dConfig, ConvActConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig,
    LinearActConfig, MaxPool3dConfig, MulAdd, RmsNormConfig, Silu, SwiGluConfig,
};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A logger that keeps what this crate says.
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

/// What is said while this runs.
fn said(run: impl FnOnce()) -> Vec<String> {
    run();
    std::mem::take(&mut *SAID.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Every module on a device, without dropout, one after the other.
fn all(device: &Device) {
    let x = |shape: [usize; 2]| Tensor::<2>::ones(shape, device);
    LayerNormConfig::new(4).init(device).forward(x([2, 4]));
    RmsNormConfig::new(4).init(device).forward(x([2, 4]));
    GroupNormConfig::new(2, 4).init(device).forward(Tensor::<3>::ones([2, 4, 3], device));
    InstanceNormConfig::new(4).init(device).forward(Tensor::<3>::ones([2, 4, 3], device));
    Silu::new().forward(x([2, 4]));
    softmax(x([2, 4]), 1);
    log_softmax(x([2, 4]), 1);
    SwiGluConfig::new(4, 4).init(device).forward(x([2, 4]));
    LinearActConfig::new(4, 4, Act::Gelu).init(device).forward(x([2, 4]));
    ConvActConfig::new([2, 2], [3, 3], Act::Relu).init(device).forward(Tensor::ones([1, 2, 4, 4], device));
    AddAct::new(Act::Silu).forward(x([2, 4]), x([2, 4]));
    MulAdd::new().forward(x([2, 4]), x([2, 4]), x([2, 4]));
    let pool = PaddingConfig3d::Valid;
    let volume = Tensor::<5>::ones([1, 1, 4, 4, 4], device);
    MaxPool3dConfig::new([2, 2, 2]).with_padding(pool.clone()).init().forward(volume.clone());
    AvgPool3dConfig::new([2, 2, 2]).with_padding(pool).init().forward(volume);
    let targets = || Tensor::<1, Int>::from_ints([0, 1], device);
    CrossEntropyLossConfig::new().init(device).forward(x([2, 4]), targets());
    NllLossConfig::new().init(device).forward(x([2, 4]), targets());
    let targets = Tensor::<2, Int>::ones([2, 4], device);
    BinaryCrossEntropyLossConfig::new().with_logits(true).init(device).forward(x([2, 4]), targets);
    HuberLossConfig::new(1.0).init().forward(x([2, 4]), x([2, 4]), Reduction::Mean);
    MseLoss::new().forward(x([2, 4]), x([2, 4]), Reduction::Mean);
    let tokens = Tensor::<3>::ones([1, 3, 4], device);
    let mha = MultiHeadAttentionConfig::new(4, 2).with_dropout(0.0).init(device);
    mha.forward(MhaInput::self_attn(tokens.clone()));
    let encoder = TransformerEncoderConfig::new(4, 8, 2, 1).with_dropout(0.0).init(device);
    encoder.forward(TransformerEncoderInput::new(tokens));
}

/// The optimizers and mixed precision.
fn training(device: &Device) {
    let make = || LinearConfig::new(4, 2).init(device);
    for mut optim in [AdamConfig::new().init(), AdamWConfig::new().init(), SgdConfig::new().init()] {
        let model = make();
        let half = Precision::new(FloatDType::F32).convert(&model);
        let loss = half.forward(Tensor::<2>::ones([3, 4], device)).sum();
        let mut scaler = GradScalerConfig::new().init();
        let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
        scaler.step(&mut optim, 1e-3, model, grads);
    }
}

#[test]
fn composed_paths_are_said_once() {
    log::set_logger(&Keeper).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let ours = Device::rocm(0);
    for device in [ours.clone(), ours.clone().autodiff(), ours.clone().autodiff().gradient_checkpointing()] {
        assert_eq!(said(|| all(&device)), [""; 0], "everything is fused on {device:?}");
    }
    assert_eq!(said(|| training(&ours.clone().autodiff())), [""; 0]);
    let flex = Device::flex();
    let found = said(|| all(&flex));
    for module in [
        "LayerNorm",
        "RmsNorm",
        "GroupNorm",
        "InstanceNorm",
        "Silu",
        "softmax",
        "log_softmax",
        "SwiGlu",
        "LinearAct",
        "ConvAct",
        "AddAct",
        "MulAdd",
        "MaxPool3d",
        "AvgPool3d",
        "CrossEntropyLoss",
        "NllLoss",
        "BinaryCrossEntropyLoss",
        "HuberLoss",
        "MseLoss",
        "MultiHeadAttention",
        "TransformerEncoder",
    ] {
        let lines: Vec<_> = found.iter().filter(|line| line.contains(&format!(" {module} on "))).collect();
        assert_eq!(lines.len(), 1, "{module}: {found:#?}");
        assert!(
            lines[0].contains("Flex") && lines[0].ends_with("no fused ops for this device"),
            "{}",
            lines[0]
        );
    }
    assert_eq!(said(|| all(&flex)), [""; 0], "said before");
    let found = said(|| training(&flex.clone().autodiff()));
    for module in ["Adam", "AdamW", "Sgd", "Precision", "GradScaler"] {
        assert_eq!(
            found.iter().filter(|line| line.contains(&format!(" {module} on "))).count(),
            1,
            "{found:#?}"
        );
    }
    // Here, each reason of its own.
    let device = ours.autodiff();
    let x = || Tensor::<2>::ones([2, 4], &device);
    let tokens = || Tensor::<3>::ones([1, 3, 4], &device);
    let one = |what: &str, reason: &str, run: &dyn Fn()| {
        let found = said(run);
        assert_eq!(found.len(), 1, "{what}: {found:#?}");
        assert!(found[0].contains(what) && found[0].ends_with(reason), "{}", found[0]);
        assert_eq!(said(run), [""; 0], "{what}: said before");
    };
    one("AddAct", "its inputs differ in shape", &|| {
        drop(AddAct::new(Act::Relu).forward(x(), x().narrow(0, 0, 1)))
    });
    one("MulAdd", "its inputs differ in shape", &|| {
        drop(MulAdd::new().forward(x(), x(), x().narrow(0, 0, 1)))
    });
    one("MseLoss", "its inputs differ in shape", &|| {
        MseLoss::new().forward(x(), x().narrow(0, 0, 1), Reduction::Mean);
    });
    let targets = || Tensor::<1, Int>::from_ints([0, 1], &device);
    one("CrossEntropyLoss", "it has more pad tokens than the fused op takes", &|| {
        let config = CrossEntropyLossConfig::new().with_pad_tokens(Some((0..9).map(|k| k % 4).collect()));
        config.init(&device).forward(x(), targets());
    });
    one("CrossEntropyLoss", "its weights require a gradient", &|| {
        let mut loss = CrossEntropyLossConfig::new().with_weights(Some(vec![1.0; 4])).init(&device);
        loss.weights = loss.weights.map(Tensor::require_grad);
        loss.forward(x(), targets());
    });
    one("NllLoss", "it has weights, and a pad token that is not a class", &|| {
        let mut loss = NllLossConfig::new().with_weights(Some(vec![1.0; 4])).init(&device);
        loss.pad_tokens = Some(vec![9]);
        loss.forward(x(), targets());
    });
    one("MultiHeadAttention", "dropout comes after the softmax", &|| {
        MultiHeadAttentionConfig::new(4, 2).init(&device).forward(MhaInput::self_attn(tokens()));
    });
    one("PositionWiseFeedForward", "no fused op has its activation", &|| {
        let config = PositionWiseFeedForwardConfig::new(4, 8).with_dropout(0.0);
        config.with_activation(ActivationConfig::Tanh).init(&device).forward(tokens());
    });
    one("PositionWiseFeedForward", "no fused op has its dropout", &|| {
        PositionWiseFeedForwardConfig::new(4, 8).init(&device).forward(tokens());
    });
}
