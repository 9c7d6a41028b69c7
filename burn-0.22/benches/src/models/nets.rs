//! The models, built with the modules of `parts`. This file is compiled once for each set of
//! modules.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};

use super::parts::*;
use crate::models::Trained;
use crate::numbers::numbers;

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
        join_relu(self.norm2.forward(self.conv2.forward(x)), around)
    }
}

#[derive(Module, Debug)]
pub(crate) struct ResNet18 {
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
        cross_entropy(self.head.forward(x), labels)
    }
}

#[derive(Module, Debug)]
pub(crate) struct Transformer {
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
        mean_square(self.encoder.forward(TransformerEncoderInput::new(input)), target)
    }
}
