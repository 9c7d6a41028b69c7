//! ResNet-50, built with the modules of `parts`. This file is compiled once for each set of modules.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};

use super::nets::conv;
use super::parts::*;
use crate::gpu::models::{Scored, Trained, labels, numbers};

/// Three convolutions with batch norm and a shortcut; the stride is that of the second, as in
/// PyTorch's models.
#[derive(Module, Debug)]
struct Bottleneck<B: Backend> {
    conv1: Conv2d<B>,
    norm1: BatchNorm<B>,
    conv2: Conv2d<B>,
    norm2: BatchNorm<B>,
    conv3: Conv2d<B>,
    norm3: BatchNorm<B>,
    around: Option<Conv2d<B>>,
    around_norm: Option<BatchNorm<B>>,
}

impl<B: Backend> Bottleneck<B> {
    fn new(from: usize, inner: usize, stride: usize, device: &B::Device) -> Self {
        let norm = |channels: usize| BatchNormConfig::new(channels).init(device);
        let to = 4 * inner;
        let other = from != to;
        Self {
            conv1: conv(from, inner, 1, 1, device),
            norm1: norm(inner),
            conv2: conv(inner, inner, 3, stride, device),
            norm2: norm(inner),
            conv3: conv(inner, to, 1, 1, device),
            norm3: norm(to),
            around: other.then(|| conv(from, to, 1, stride, device)),
            around_norm: other.then(|| norm(to)),
        }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let around = match (&self.around, &self.around_norm) {
            (Some(conv), Some(norm)) => norm.forward(conv.forward(x.clone())),
            _ => x.clone(),
        };
        let x = norm_relu(&self.norm1, self.conv1.forward(x));
        let x = norm_relu(&self.norm2, self.conv2.forward(x));
        join_relu(self.norm3.forward(self.conv3.forward(x)), around)
    }
}

/// ResNet-50 for images of 224 x 224 and 1000 classes (He et al. 2015, "Deep Residual Learning for
/// Image Recognition").
#[derive(Module, Debug)]
pub(crate) struct ResNet50<B: Backend> {
    stem: Conv2d<B>,
    norm: BatchNorm<B>,
    pool: MaxPool2d,
    blocks: Vec<Bottleneck<B>>,
    average: AdaptiveAvgPool2d,
    head: Linear<B>,
}

impl<B: Backend> Trained<B> for ResNet50<B> {
    type Batch = (Tensor<B, 4>, Tensor<B, 1, Int>);

    fn new(device: &B::Device) -> Self {
        let mut blocks = Vec::new();
        let mut from = 64;
        for (inner, count, stride) in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)] {
            for at in 0..count {
                blocks.push(Bottleneck::new(from, inner, if at == 0 { stride } else { 1 }, device));
                from = 4 * inner;
            }
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
            head: LinearConfig::new(2048, 1000).init(device),
        }
    }

    fn batch(size: usize, device: &B::Device) -> Self::Batch {
        let images = numbers(&[size, 3, 224, 224], 0, 1.0);
        (Tensor::from_data(images, device), labels(size, 1000, device))
    }

    fn cast((images, labels): Self::Batch, dtype: FloatDType) -> Self::Batch {
        (images.cast(dtype), labels)
    }

    fn loss(&self, batch: Self::Batch) -> Tensor<B, 1> {
        let labels = batch.1.clone();
        cross_entropy(self.scores(batch), labels)
    }
}

impl<B: Backend> Scored<B> for ResNet50<B> {
    fn scores(&self, (images, _): Self::Batch) -> Tensor<B, 2> {
        let x = self.pool.forward(norm_relu(&self.norm, self.stem.forward(images)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.average.forward(x).flatten(1, 3))
    }
}
