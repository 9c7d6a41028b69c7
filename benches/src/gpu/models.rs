//! The models of the training rows, of Burn's stock modules. Each is started from the same weights by every peer: [`fill`].

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use burn_rocm_examples::model::{Cnn, Mlp};

/// What a training row needs of a model: a loss for a batch.
pub(crate) trait Trained<B: Backend>: Module<B> {
    /// What a step is given.
    type Batch: Clone;
    /// Uninitialised in the sense of the rows: [`fill`] comes after it.
    fn new(device: &B::Device) -> Self;
    /// The same numbers for every peer.
    fn batch(size: usize, device: &B::Device) -> Self::Batch;
    /// The loss of a batch.
    fn loss(&self, batch: Self::Batch) -> Tensor<B, 1>;
}

/// The `i`-th of the numbers in -1..1 that every peer starts from: the index, hashed in 32 bits. Not a sequence that fills the interval evenly: over a batch of such numbers gradients cancel to little more than
/// rounding, which Adam scales to whole steps, and no two implementations stay together.
fn number(index: usize, series: usize) -> f64 {
    let mut x = (index as u32).wrapping_add((series as u32).wrapping_mul(0x9e37_79b9));
    for _ in 0..2 {
        x = (x ^ (x >> 16)).wrapping_mul(0x045d_9f3b);
    }
    f64::from(x ^ (x >> 16)) / f64::from(1u32 << 31) - 1.0
}

/// Such numbers as a tensor's data.
pub(crate) fn numbers(shape: &[usize], series: usize, scale: f64) -> TensorData {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| (number(i, series) * scale) as f32).collect();
    TensorData::new(values, shape.to_vec())
}

struct Fill {
    series: usize,
}

impl<B: Backend> ModuleMapper<B> for Fill {
    /// Weights get numbers below `1 / sqrt(inputs)`, biases 0; the scales and variances of norms, which are 1, stay.
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if D < 2 {
            let is_scale = param.to_data().iter::<f32>().all(|value| value == 1.0);
            let zero = |tensor: Tensor<B, D>| {
                let grad = tensor.is_require_grad();
                tensor.zeros_like().set_require_grad(grad)
            };
            return if is_scale { param } else { param.map(zero) };
        }
        self.series += 1;
        let series = self.series;
        param.map(|tensor| {
            let dims = tensor.dims();
            // Linear weights are [inputs, outputs], convolutions' [outputs, inputs, height, width].
            let inputs: usize = if D == 2 { dims[0] } else { dims[1..].iter().product() };
            let data = numbers(&dims, series, 1.0 / (inputs as f64).sqrt());
            Tensor::from_data(data, &tensor.device()).require_grad()
        })
    }
}

/// Gives a model the weights that every peer starts from.
pub(crate) fn fill<B: Backend, M: Module<B>>(model: M) -> M {
    model.map(&mut Fill { series: 0 })
}

fn labels<B: Backend>(size: usize, classes: i64, device: &B::Device) -> Tensor<B, 1, Int> {
    Tensor::<B, 1, Int>::arange(0..size as i64, device).remainder_scalar(classes)
}

fn cross_entropy<B: Backend>(logits: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    burn::nn::loss::CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
}

fn images<B: Backend>(size: usize, device: &B::Device) -> (Tensor<B, 3>, Tensor<B, 1, Int>) {
    (Tensor::from_data(numbers(&[size, 28, 28], 0, 1.0), device), labels(size, 10, device))
}

impl<B: Backend> Trained<B> for Mlp<B> {
    type Batch = (Tensor<B, 3>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
        Mlp::new(device)
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        images(size, device)
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<B, 1> {
        cross_entropy(self.forward(images), labels)
    }
}

impl<B: Backend> Trained<B> for Cnn<B> {
    type Batch = (Tensor<B, 3>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
        Cnn::new(device)
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        images(size, device)
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<B, 1> {
        cross_entropy(self.forward(images), labels)
    }
}

/// Two convolutions with batch norm and a way around them (He et al. 2015, "Deep Residual Learning for Image Recognition").
#[derive(Module, Debug)]
struct Block<B: Backend> {
    conv1: Conv2d<B>,
    norm1: BatchNorm<B>,
    conv2: Conv2d<B>,
    norm2: BatchNorm<B>,
    around: Option<Conv2d<B>>,
    around_norm: Option<BatchNorm<B>>,
}

fn conv<B: Backend>(from: usize, to: usize, size: usize, stride: usize, device: &B::Device) -> Conv2d<B> {
    let pad = size / 2;
    Conv2dConfig::new([from, to], [size, size])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .init(device)
}

impl<B: Backend> Block<B> {
    fn new(from: usize, to: usize, stride: usize, device: &B::Device) -> Self {
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

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let around = match (&self.around, &self.around_norm) {
            (Some(conv), Some(norm)) => norm.forward(conv.forward(x.clone())),
            _ => x.clone(),
        };
        let x = relu(self.norm1.forward(self.conv1.forward(x)));
        relu(self.norm2.forward(self.conv2.forward(x)) + around)
    }
}

/// ResNet-18 for images of 224 x 224 and 1000 classes.
#[derive(Module, Debug)]
pub(crate) struct ResNet18<B: Backend> {
    stem: Conv2d<B>,
    norm: BatchNorm<B>,
    pool: MaxPool2d,
    blocks: Vec<Block<B>>,
    average: AdaptiveAvgPool2d,
    head: Linear<B>,
}

impl<B: Backend> Trained<B> for ResNet18<B> {
    type Batch = (Tensor<B, 4>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
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

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        let images = numbers(&[size, 3, 224, 224], 0, 1.0);
        (Tensor::from_data(images, device), labels(size, 1000, device))
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<B, 1> {
        let x = self.pool.forward(relu(self.norm.forward(self.stem.forward(images))));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x: Tensor<B, 2> = self.average.forward(x).flatten(1, 3);
        cross_entropy(self.head.forward(x), labels)
    }
}

/// Four pre-norm transformer layers of 768 features and 12 heads, GELU between, over sequences of 512.
#[derive(Module, Debug)]
pub(crate) struct Transformer<B: Backend> {
    encoder: TransformerEncoder<B>,
}

impl<B: Backend> Trained<B> for Transformer<B> {
    type Batch = (Tensor<B, 3>, Tensor<B, 3>);

    fn new(device: &B::Device) -> Self {
        let config = TransformerEncoderConfig::new(768, 3072, 12, 4).with_dropout(0.0).with_norm_first(true);
        Self { encoder: config.init(device) }
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        let of = |series| Tensor::from_data(numbers(&[size, 512, 768], series, 1.0), device);
        (of(0), of(1))
    }

    /// The mean square of the distance from other numbers.
    fn loss(&self, (input, target): Self::Batch) -> Tensor<B, 1> {
        let distance = self.encoder.forward(TransformerEncoderInput::new(input)) - target;
        (distance.clone() * distance).mean()
    }
}
