//! Mixed precision and gradient checkpointing: a convolutional network and a small transformer classify drawn digits, trained in f32, and in f16 and bf16
//! with f32 master weights, each with and without checkpointing; accuracy, peak memory and time of each.
//!
//! ```text
//! cargo run --release --example amp -- --model cnn --steps 400
//! ```

use std::process::ExitCode;
use std::time::Instant;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_examples::data::{CLASSES, Data, SIDE, Split, digits, epoch_order};
use burn_rocm_nn::amp::{GradScalerConfig, Precision};
use burn_rocm_nn::optim::AdamConfig;
use clap::{Parser, ValueEnum};

/// Trains a classifier of drawn digits in several precisions, and compares.
#[derive(Debug, Parser)]
#[command(name = "amp")]
struct Arguments {
    /// The models to train.
    #[arg(long, value_enum, num_args = 1.., default_values = ["cnn", "transformer"])]
    model: Vec<Kind>,
    /// Steps of each run.
    #[arg(long, default_value_t = 600)]
    steps: usize,
    /// Images in one step.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Decides the weights at the start and the order of the images.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Points of accuracy by which a half may stay behind f32, before this ends with status 1.
    #[arg(long, default_value_t = 0.5)]
    within: f64,
    /// Every run with gradient checkpointing too.
    #[arg(long)]
    checkpointing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Two blocks of convolution, batch norm, ReLU and pooling, then 128-10.
    Cnn,
    /// Two layers over the image's rows, 64 features and 4 heads.
    Transformer,
}

/// A classifier whose parameters may be f16 or bf16: its activations are what they are, but for what batch norm is given; its scores are f32.
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
                    // Batch norm stays f32, its running statistics with it.
                    let x = norm.forward(conv.forward(x).cast(FloatDType::F32)).cast(dtype);
                    self.pool.forward(relu(x))
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

/// How a run went.
struct Outcome {
    /// On held-out images, in percent.
    accuracy: f64,
    /// The most memory that tensors had at once in a step, in MiB.
    peak: f64,
    seconds: f64,
    skipped: usize,
}

fn train<B>(
    kind: Kind,
    half: Option<FloatDType>,
    data: &Data,
    arguments: &Arguments,
) -> Result<Outcome, Box<dyn std::error::Error>>
where
    B: AutodiffBackend<Device = RocmDevice>,
{
    let device = RocmDevice::default();
    let pool = hip::Device::get(device.index)?;
    B::seed(&device, arguments.seed);
    let mut model = Classifier::<B>::new(kind, &device);
    let loss = CrossEntropyLossConfig::new().init::<B>(&device);
    let mut optimizer = AdamConfig::new().init();
    let mut scaler = GradScalerConfig::new().init();
    let orders = (0..).flat_map(|epoch| epoch_order(data.train.len(), arguments.seed, epoch));
    let indices: Vec<usize> = orders.take(arguments.steps * arguments.batch_size).collect();
    let mut seconds = 0.0;
    for (step, indices) in indices.chunks(arguments.batch_size).enumerate() {
        // The first steps choose algorithms, and make the optimizer's states.
        if step == 2 {
            B::sync(&device)?;
            pool.pool().reset_peak();
        }
        let begin = Instant::now();
        let (images, labels) = upload::<B>(data, &data.train, indices, &device);
        model = match half {
            None => {
                let loss = loss.forward(model.forward(images), labels);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                optimizer.step(arguments.lr, model, grads)
            }
            Some(dtype) => {
                let half = Precision::new(dtype).convert(&model);
                let loss = loss.forward(half.forward(images), labels);
                let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
                drop(half);
                scaler.step(&mut optimizer, arguments.lr, model, grads)
            }
        };
        seconds += begin.elapsed().as_secs_f64();
    }
    B::sync(&device)?;
    let peak = pool.pool().stats().peak as f64 / f64::from(1 << 20);
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
    Ok(Outcome { accuracy, peak, seconds, skipped: scaler.skipped() })
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let data = digits::generate(0, digits::TRAIN, digits::TEST);
    println!(
        "| model | precision | gradient checkpointing | test accuracy, % | peak memory, MiB | s | steps skipped |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut near = true;
    for &kind in &arguments.model {
        let mut full = None;
        for half in [None, Some(FloatDType::F16), Some(FloatDType::BF16)] {
            for checkpointing in [false, true] {
                if checkpointing && !arguments.checkpointing {
                    continue;
                }
                let outcome = match checkpointing {
                    false => train::<Autodiff<Rocm>>(kind, half, &data, arguments)?,
                    true => train::<Autodiff<Rocm, BalancedCheckpointing>>(kind, half, &data, arguments)?,
                };
                let Outcome { accuracy, peak, seconds, skipped } = outcome;
                let name = half.map_or("f32".to_owned(), |dtype| format!("{dtype:?}").to_lowercase());
                println!(
                    "| {} | {name} | {} | {accuracy:.2} | {peak:.1} | {seconds:.1} | {skipped} |",
                    format!("{kind:?}").to_lowercase(),
                    if checkpointing { "yes" } else { "no" },
                );
                near &= accuracy >= *full.get_or_insert(accuracy) - arguments.within;
            }
        }
    }
    Ok(near)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("a half stayed more than {} points behind f32", arguments.within);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
