//! Training steps of ResNet-18 and of a transformer with Burn 0.22.1's own modules: the models,
//! weights, batches and timing are those of `benches --train`. Prints the time of each, and the
//! losses of some steps to compare with those of the other Burn and of PyTorch.

#[path = "../../../benches/src/gpu/models/numbers.rs"]
mod numbers;

use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};
use clap::Parser;

use numbers::numbers;

/// Steps before the timed ones.
const FIRST: usize = 21;
/// The steps, from 0, whose losses are printed.
const LOSSES: [usize; 4] = [0, 1, 5, 20];
const LEARNING_RATE: f64 = 1e-4;

/// Times training steps of Burn 0.22.1's own modules on `Device::rocm(0)`.
#[derive(Parser)]
struct Options {
    /// The number of rounds, whose median is printed.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// A batch of one, to try the program on any device.
    #[arg(long)]
    shrink: bool,
    /// Runs the models whose names contain this text.
    #[arg(long, default_value = "")]
    filter: String,
}

/// Fills the weights with numbers, and every bias with zeros.
struct Fill {
    series: usize,
}

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D < 2 {
            let is_scale = param.to_data().iter::<f32>().all(|value| value == 1.0);
            let zero = |tensor: Tensor<D>| {
                let grad = tensor.is_require_grad();
                tensor.zeros_like().set_require_grad(grad)
            };
            return if is_scale { param } else { param.map(zero) };
        }
        self.series += 1;
        let series = self.series;
        param.map(|tensor| {
            let dims = tensor.dims();
            let inputs: usize = if D == 2 { dims[0] } else { dims[1..].iter().product() };
            let data = numbers(&dims, series, 1.0 / (inputs as f64).sqrt());
            Tensor::from_data(data, &tensor.device()).require_grad()
        })
    }
}

trait Trained: Module {
    type Batch: Clone;
    fn new(device: &Device) -> Self;
    fn batch(size: usize, device: &Device) -> Self::Batch;
    fn loss(&self, batch: Self::Batch) -> Tensor<1>;
}

#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    around: Option<Conv2d>,
    around_norm: Option<BatchNorm>,
}

fn conv(from: usize, to: usize, size: usize, stride: usize, device: &Device) -> Conv2d {
    let pad = size / 2;
    Conv2dConfig::new([from, to], [size, size])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .init(device)
}

impl Block {
    fn new(from: usize, to: usize, stride: usize, device: &Device) -> Self {
        let norm = || BatchNormConfig::new(to).init(device);
        let other = stride != 1 || from != to;
        Self {
            conv1: conv(from, to, 3, stride, device),
            norm1: norm(),
            conv2: conv(to, to, 3, 1, device),
            norm2: norm(),
            around: other.then(|| conv(from, to, 1, stride, device)),
            around_norm: other.then(norm),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let around = match (&self.around, &self.around_norm) {
            (Some(conv), Some(norm)) => norm.forward(conv.forward(x.clone())),
            _ => x.clone(),
        };
        let x = relu(self.norm1.forward(self.conv1.forward(x)));
        relu(self.norm2.forward(self.conv2.forward(x)) + around)
    }
}

#[derive(Module, Debug)]
struct ResNet18 {
    stem: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    blocks: Vec<Block>,
    average: AdaptiveAvgPool2d,
    head: Linear,
}

impl Trained for ResNet18 {
    type Batch = (Tensor<4>, Tensor<1, Int>);

    fn new(device: &Device) -> Self {
        let mut blocks = Vec::new();
        let mut from = 64;
        for (to, stride) in [(64, 1), (128, 2), (256, 2), (512, 2)] {
            blocks.push(Block::new(from, to, stride, device));
            blocks.push(Block::new(to, to, 1, device));
            from = to;
        }
        Self {
            stem: conv(3, 64, 7, 2, device),
            norm: BatchNormConfig::new(64).init(device),
            pool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(),
            blocks,
            average: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(512, 1000).init(device),
        }
    }

    fn batch(size: usize, device: &Device) -> Self::Batch {
        let labels = Tensor::<1, Int>::arange(0..size as i64, device).remainder_scalar(1000);
        (Tensor::from_data(numbers(&[size, 3, 224, 224], 0, 1.0), device), labels)
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<1> {
        let x = self.pool.forward(relu(self.norm.forward(self.stem.forward(images))));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x: Tensor<2> = self.average.forward(x).flatten(1, 3);
        let x = self.head.forward(x);
        CrossEntropyLossConfig::new().init(&x.device()).forward(x, labels)
    }
}

#[derive(Module, Debug)]
struct Transformer {
    encoder: TransformerEncoder,
}

impl Trained for Transformer {
    type Batch = (Tensor<3>, Tensor<3>);

    fn new(device: &Device) -> Self {
        let config = TransformerEncoderConfig::new(768, 3072, 12, 4).with_dropout(0.0).with_norm_first(true);
        Self { encoder: config.init(device) }
    }

    fn batch(size: usize, device: &Device) -> Self::Batch {
        let of = |series| Tensor::from_data(numbers(&[size, 512, 768], series, 1.0), device);
        (of(0), of(1))
    }

    fn loss(&self, (input, target): Self::Batch) -> Tensor<1> {
        let distance = self.encoder.forward(TransformerEncoderInput::new(input)) - target;
        (distance.clone() * distance).mean()
    }
}

fn train<M: Trained>(name: &str, size: usize, plain: &Device, options: &Options) {
    let name = format!("{name} Adam step, batch {size}");
    if !name.contains(&options.filter) {
        return;
    }
    let device = plain.clone().autodiff();
    let batch = M::batch(size, &device);
    // Each step takes the state out, so that the optimizer is the sole owner of the parameters.
    let mut state = Some(M::new(&device).map(&mut Fill { series: 0 }));
    let mut optimizer = AdamConfig::new().init();
    let mut losses = Vec::new();
    let mut step = || {
        let Some(model) = state.take() else { return };
        let loss = model.loss(batch.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        if losses.len() < FIRST {
            losses.push(loss.inner());
        }
        state = Some(optimizer.step(LEARNING_RATE, model, gradients));
    };
    let wait = || plain.sync().expect("the device works");
    let mut timed = |calls: usize| {
        wait();
        let start = Instant::now();
        (0..calls).for_each(|_| step());
        wait();
        start.elapsed().as_secs_f64() / calls as f64
    };
    // The first steps compile kernels and let the libraries choose their algorithms.
    let once = (0..FIRST).map(|_| timed(1)).fold(f64::MAX, f64::min);
    // A round takes about a second, so that its start and end hardly count.
    let calls = (1.0 / once.max(1e-7)).ceil().clamp(4.0, 1000.0) as usize;
    let mut times: Vec<f64> = (0..options.rounds.max(1)).map(|_| timed(calls)).collect();
    times.sort_by(f64::total_cmp);
    let [least, median, most] = [0, times.len() / 2, times.len() - 1].map(|at| times[at] * 1e3);
    println!("{name}: {median:.2} ms ({least:.2} to {most:.2}, {calls} steps a round)");
    for at in LOSSES {
        println!("  loss {at}: {}", losses[at].clone().into_scalar::<f32>());
    }
}

fn main() {
    let options = Options::parse();
    let device = Device::rocm(0);
    let (images, sequences) = if options.shrink { (1, 1) } else { (64, 16) };
    train::<ResNet18>("ResNet-18", images, &device, &options);
    train::<Transformer>("transformer", sequences, &device, &options);
}
