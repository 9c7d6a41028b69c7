//! Mixed precision: two classifiers of drawn digits whose parameters may be f16 or bf16, and
//! training with f32 master weights.

use std::time::Instant;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::amp::{GradScaler, Mixed, Precision};
use burn_rocm_nn::loss::CrossEntropyLossConfig;
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn_rocm_nn::{BatchNorm, BatchNormConfig};

use burn_rocm_examples::data::{CLASSES, Data, SIDE, Split};
use burn_rocm_examples::mixed::{Float, Kind, Outcome, Run};

/// A classifier whose parameters, and with them the activations, may be f16 or bf16. Its scores are
/// f32.
#[derive(Module, Debug)]
struct Classifier<B: Backend> {
    convs: Vec<Conv2d<B>>,
    norms: Vec<BatchNorm<B>>,
    pool: MaxPool2d,
    embedding: Option<Linear<B>>,
    encoder: Option<TransformerEncoder<B>>,
    hidden: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Classifier<B> {
    fn new(kind: Kind, device: &B::Device) -> Self {
        let conv = |channels| {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            Conv2dConfig::new(channels, [3, 3]).with_padding(padding).with_bias(false).init(device)
        };
        let is_cnn = kind == Kind::Cnn;
        let encoder = || TransformerEncoderConfig::new(64, 256, 4, 2).with_dropout(0.0).with_norm_first(true);
        Self {
            convs: if is_cnn { vec![conv([1, 16]), conv([16, 32])] } else { vec![] },
            norms: if is_cnn {
                [16, 32].map(|n| BatchNormConfig::new(n).init(device)).into()
            } else {
                vec![]
            },
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            embedding: (!is_cnn).then(|| LinearConfig::new(SIDE, 64).init(device)),
            encoder: (!is_cnn).then(|| encoder().init(device)),
            hidden: LinearConfig::new(if is_cnn { 32 * (SIDE / 4) * (SIDE / 4) } else { SIDE * 64 }, 128)
                .init(device),
            output: LinearConfig::new(128, CLASSES).init(device),
        }
    }

    /// Scores of the classes, `[batch, 10]` in f32, for images `[batch, 28, 28]`.
    fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let dtype: FloatDType = self.output.weight.val().dtype().into();
        let images = images.cast(dtype);
        let x: Tensor<B, 2> = match (&self.embedding, &self.encoder) {
            (Some(embedding), Some(encoder)) => {
                encoder.forward(TransformerEncoderInput::new(embedding.forward(images))).flatten(1, 2)
            }
            _ => {
                let blocks = self.convs.iter().zip(&self.norms);
                let x = blocks.fold(images.unsqueeze_dim(1), |x: Tensor<B, 4>, (conv, norm)| {
                    // The norm's parameters and statistics are f32 in every precision.
                    self.pool.forward(relu(norm.forward(conv.forward(x))))
                });
                x.flatten(1, 3)
            }
        };
        self.output.forward(relu(self.hidden.forward(x))).cast(FloatDType::F32)
    }
}

type Batch<B> = (Tensor<B, 3>, Tensor<B, 1, Int>);

fn upload<B: Backend>(data: &Data, split: &Split, indices: &[usize], device: &B::Device) -> Batch<B> {
    let (pixels, labels) = data.batch(split, indices);
    let images = TensorData::new(pixels, [indices.len(), SIDE, SIDE]);
    (Tensor::from_data(images, device), Tensor::from_data(TensorData::new(labels, [indices.len()]), device))
}

/// Trains a new model: in f32, or in f16 or bf16 with f32 master weights (in f16 with a scaled
/// loss). Evaluates it in f32.
///
/// # Errors
/// An error that the device reports.
pub fn train(run: &Run, data: &Data) -> Result<Outcome, Box<dyn std::error::Error>> {
    match run.checkpointing {
        false => train_on::<Autodiff<Rocm>>(run, data),
        true => train_on::<Autodiff<Rocm, BalancedCheckpointing>>(run, data),
    }
}

fn train_on<B>(run: &Run, data: &Data) -> Result<Outcome, Box<dyn std::error::Error>>
where
    B: AutodiffBackend<Device = RocmDevice>,
{
    let device = RocmDevice::default();
    B::seed(&device, run.seed);
    // The copy initialises the parameters in a fixed order, whereas a forward pass would do so in
    // the order of their use. So every precision starts from the same values.
    let mut model = Precision::new(FloatDType::F32).convert(&Classifier::<B>::new(run.kind, &device));
    let loss = CrossEntropyLossConfig::new().init::<B>(&device);
    let mut optimizer = AdamConfig::new().init();
    // f16 scales the loss; bf16 has f32's range and does not.
    let mixed = match run.float {
        Float::F32 => None,
        Float::F16 => Some(Mixed::f16()),
        Float::Bf16 => Some(Mixed::bf16()),
    };
    // The parameters of batch norms stay f32 unless asked otherwise; those of layer norms are kept by
    // name. The CNN has none, and a name that no module has is an error.
    let mut mixed = match run.kind {
        Kind::Cnn => mixed,
        Kind::Transformer => mixed.map(|mixed| mixed.keep("LayerNorm")),
    };
    let mut seconds = 0.0;
    for (step, indices) in run.indices(data.train.len()).chunks(run.batch_size).enumerate() {
        if step == run.first_measured() {
            B::sync(&device)?;
            device.reset_peak_memory()?;
        }
        let lr = run.lr(step);
        let begin = Instant::now();
        let (images, labels) = upload::<B>(data, &data.train, indices, &device);
        let loss = |model: &Classifier<B>| loss.forward(model.forward(images), labels);
        model = match &mut mixed {
            None => {
                let grads = GradientsParams::from_grads(loss(&model).backward(), &model);
                optimizer.step(lr, model, grads)
            }
            Some(mixed) => mixed.step(&mut optimizer, lr, model, loss).0,
        };
        seconds += begin.elapsed().as_secs_f64();
    }
    B::sync(&device)?;
    let peak = device.memory_stats()?.peak as f64 / f64::from(1 << 20);
    // Evaluated in f32: the master weights are the model.
    let model = model.valid();
    let all: Vec<usize> = (0..data.test.len()).collect();
    let mut right = 0u64;
    for indices in all.chunks(500) {
        let (images, labels) = upload::<B::InnerBackend>(data, &data.test, indices, &device);
        let hits = model.forward(images).argmax(1).flatten::<1>(0, 1).equal(labels).int().sum();
        right += hits.try_into_data()?.iter::<u64>().sum::<u64>();
    }
    let accuracy = 100.0 * right as f64 / data.test.len() as f64;
    let skipped = mixed.as_ref().and_then(Mixed::scaler).map_or(0, GradScaler::skipped);
    Ok(Outcome { accuracy, peak, seconds, skipped })
}
