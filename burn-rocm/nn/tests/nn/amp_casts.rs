//! Conversions between dtypes in a training step in mixed precision: only those that the model or
//! the loss asks for. Weights are converted in one launch, and the kernels of modules and optimizers
//! read halves and f32 as they are.

use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int};
use burn_rocm_nn::amp::Mixed;
use burn_rocm_nn::loss::CrossEntropyLossConfig;
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn_rocm_nn::{Act, BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, LinearAct, LinearActConfig};
use burn_rocm_tests::trace::during;

use crate::support::*;

const CLASSES: usize = 5;

trait Net: AutodiffModule<Ours> {
    fn new() -> Self;
    /// Scores in the parameters' dtype.
    fn scores(&self) -> Tensor<Ours, 2>;
}

/// Tokens through an encoder.
#[derive(Module, Debug)]
struct Language<B: Backend> {
    tokens: Embedding<B>,
    encoder: TransformerEncoder<B>,
    norm: LayerNorm<B>,
    hidden: LinearAct<B>,
    output: Linear<B>,
}

impl Net for Language<Ours> {
    fn new() -> Self {
        let device = Default::default();
        let encoder = TransformerEncoderConfig::new(16, 24, 2, 2).with_dropout(0.1);
        Self {
            tokens: EmbeddingConfig::new(11, 16).init(&device),
            encoder: encoder.init(&device),
            norm: LayerNormConfig::new(16).init(&device),
            hidden: LinearActConfig::new(16, 12, Act::Gelu).init(&device),
            output: LinearConfig::new(12, CLASSES).init(&device),
        }
    }

    fn scores(&self) -> Tensor<Ours, 2> {
        let tokens = Tensor::<Ours, 1, Int>::arange(0..80, &Default::default()).remainder_scalar(11);
        let x = self.tokens.forward(tokens.reshape([2, 40]));
        let x = self.norm.forward(self.encoder.forward(TransformerEncoderInput::new(x)));
        self.output.forward(self.hidden.forward(x)).flatten(0, 1)
    }
}

/// Images through a convolution and a batch norm with f32 parameters.
#[derive(Module, Debug)]
struct Vision<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    dropout: Dropout,
    output: Linear<B>,
}

impl Net for Vision<Ours> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            conv: Conv2dConfig::new([2, 4], [3, 3]).init(&device),
            norm: BatchNormConfig::new(4).init(&device),
            dropout: DropoutConfig::new(0.2).init(),
            output: LinearConfig::new(4 * 16, CLASSES).init(&device),
        }
    }

    fn scores(&self) -> Tensor<Ours, 2> {
        let images = Tensor::<Ours, 4>::ones([80, 2, 6, 6], &Default::default());
        let dtype: FloatDType = self.output.weight.val().dtype().into();
        let x = self.norm.forward(self.conv.forward(images.cast(dtype)));
        self.output.forward(self.dropout.forward(burn::tensor::activation::relu(x)).flatten(1, 3))
    }
}

/// The conversions of the third step of a model, as ops and dtypes, and the launches of its optimizer.
/// The loss takes f32 scores.
fn conversions<M: Net>(mut mixed: Mixed) -> (Vec<String>, usize) {
    let mut net = M::new();
    let mut optimizer = AdamConfig::new().init();
    let mut lines = Vec::new();
    for _ in 0..3 {
        let loss = |half: &M| {
            let scores = half.scores().cast(FloatDType::F32);
            let labels = Tensor::<Ours, 1, Int>::arange(0..80, &Default::default());
            let labels = labels.remainder_scalar(CLASSES as i64);
            CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, labels)
        };
        ((net, _), lines) = during(|| mixed.step(&mut optimizer, 1e-3, net, loss));
    }
    let of_parameters = lines.iter().filter(|line| line.starts_with("nn_convert")).count();
    assert_eq!(of_parameters, 1, "all parameters in one launch: {lines:#?}");
    let of_step = lines.iter().filter(|line| line.starts_with("nn_adam")).count();
    // A chain of deferred ops calls a conversion `Cast`.
    let is_cast = |line: &&String| line.contains("kernel cast_") || line.contains(", Cast");
    let op = |line: &String| line.split(':').next().unwrap_or_default().to_string();
    (lines.iter().filter(is_cast).map(op).collect(), of_step)
}

#[test]
fn a_step_in_halves_converts_only_what_the_model_casts() {
    for (mixed, half) in [(Mixed::bf16 as fn() -> Mixed, "bf16"), (Mixed::f16, "f16")] {
        // The scores for the loss, and their gradient.
        let scores = [format!("float_cast {half}"), "float_cast f32".to_string()];
        assert_eq!(conversions::<Language<Ours>>(mixed()), (scores.to_vec(), 1), "{half}");
        // The images before. The optimizer reads bf16 gradients as they are, and the batch norm's in
        // f32; a scaler makes all of them f32.
        let images = ["float_cast f32".to_string()];
        let steps = if half == "bf16" { 2 } else { 1 };
        assert_eq!(conversions::<Vision<Ours>>(mixed()), ([&images[..], &scores].concat(), steps), "{half}");
    }
}
