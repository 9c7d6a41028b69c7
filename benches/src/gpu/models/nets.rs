//! The models, built with the modules of `parts`. This file is compiled once for each set of
//! modules.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};

use super::parts::*;
use crate::gpu::models::{Trained, images, labels, numbers};

/// The example's multilayer perceptron: 784-512-256-10 with ReLU.
#[derive(Module, Debug)]
pub(crate) struct Mlp<B: Backend> {
    hidden1: LinearRelu<B>,
    hidden2: LinearRelu<B>,
    output: Linear<B>,
}

impl<B: Backend> Trained<B> for Mlp<B> {
    type Batch = (Tensor<B, 3>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
        Self {
            hidden1: linear_relu_of(784, 512, device),
            hidden2: linear_relu_of(512, 256, device),
            output: LinearConfig::new(256, 10).init(device),
        }
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        images(size, device)
    }

    fn cast((images, labels): Self::Batch, dtype: FloatDType) -> Self::Batch {
        (images.cast(dtype), labels)
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<B, 1> {
        let x = linear_relu(&self.hidden1, images.flatten(1, 2));
        let x = linear_relu(&self.hidden2, x);
        cross_entropy(self.output.forward(x), labels)
    }
}

/// The example's convolutional network: two blocks of 32 and 64 channels, then 3136-128-10.
#[derive(Module, Debug)]
pub(crate) struct Cnn<B: Backend> {
    convs: Vec<Conv2d<B>>,
    norms: Vec<BatchNorm<B>>,
    pool: MaxPool2d,
    hidden: LinearRelu<B>,
    output: Linear<B>,
}

impl<B: Backend> Trained<B> for Cnn<B> {
    type Batch = (Tensor<B, 3>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
        Self {
            convs: vec![conv(1, 32, 3, 1, device), conv(32, 64, 3, 1, device)],
            norms: [32, 64].map(|channels| BatchNormConfig::new(channels).init(device)).into(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            hidden: linear_relu_of(64 * 7 * 7, 128, device),
            output: LinearConfig::new(128, 10).init(device),
        }
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        images(size, device)
    }

    fn cast((images, labels): Self::Batch, dtype: FloatDType) -> Self::Batch {
        (images.cast(dtype), labels)
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<B, 1> {
        let blocks = self.convs.iter().zip(&self.norms);
        let x = blocks.fold(images.unsqueeze_dim(1), |x, (conv, norm)| {
            self.pool.forward(norm_relu(norm, conv.forward(x)))
        });
        let x = linear_relu(&self.hidden, x.flatten(1, 3));
        cross_entropy(self.output.forward(x), labels)
    }
}

/// Two convolutions with batch norm and a shortcut (He et al. 2015, "Deep Residual Learning for
/// Image Recognition").
#[derive(Module, Debug)]
struct Block<B: Backend> {
    conv1: Conv2d<B>,
    norm1: BatchNorm<B>,
    conv2: Conv2d<B>,
    norm2: BatchNorm<B>,
    around: Option<Conv2d<B>>,
    around_norm: Option<BatchNorm<B>>,
}

pub(super) fn conv<B: Backend>(
    from: usize,
    to: usize,
    size: usize,
    stride: usize,
    device: &B::Device,
) -> Conv2d<B> {
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
        let x = norm_relu(&self.norm1, self.conv1.forward(x));
        join_relu(self.norm2.forward(self.conv2.forward(x)), around)
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

    fn cast((images, labels): Self::Batch, dtype: FloatDType) -> Self::Batch {
        (images.cast(dtype), labels)
    }

    fn loss(&self, (images, labels): Self::Batch) -> Tensor<B, 1> {
        let x = self.pool.forward(norm_relu(&self.norm, self.stem.forward(images)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x: Tensor<B, 2> = self.average.forward(x).flatten(1, 3);
        cross_entropy(self.head.forward(x), labels)
    }
}

/// Four pre-norm transformer layers with 768 features, 12 heads and GELU, over sequences of 512.
#[derive(Module, Debug)]
pub(crate) struct Transformer<B: Backend> {
    pub(crate) encoder: TransformerEncoder<B>,
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

    fn cast((input, target): Self::Batch, dtype: FloatDType) -> Self::Batch {
        (input.cast(dtype), target.cast(dtype))
    }

    /// The mean squared error against target numbers.
    fn loss(&self, (input, target): Self::Batch) -> Tensor<B, 1> {
        mean_square(self.encoder.forward(TransformerEncoderInput::new(input)), target)
    }
}
