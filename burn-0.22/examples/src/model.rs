//! The two models: a multilayer perceptron and a small convolutional network.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::tensor::{Device, Tensor};
use burn_rocm_examples::data::{CLASSES, PIXELS, SIDE};
use burn_rocm_examples::model::Kind;

/// One of the models. A program has only one value of this type, so its size does not matter.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Model {
    /// See [`Kind::Mlp`].
    Mlp(Mlp),
    /// See [`Kind::Cnn`].
    Cnn(Cnn),
}

impl Model {
    /// The model of this kind with random weights.
    pub fn new(kind: Kind, device: &Device) -> Self {
        match kind {
            Kind::Mlp => Self::Mlp(Mlp::new(device)),
            Kind::Cnn => Self::Cnn(Cnn::new(device)),
        }
    }

    /// Scores of the classes, `[batch, 10]`, before the softmax, for normalised images
    /// `[batch, 28, 28]`.
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        match self {
            Self::Mlp(model) => model.forward(images),
            Self::Cnn(model) => model.forward(images),
        }
    }
}

/// A multilayer perceptron: 784-512-256-10 with ReLU.
#[derive(Module, Debug)]
pub struct Mlp {
    hidden1: Linear,
    hidden2: Linear,
    output: Linear,
    relu: Relu,
}

impl Mlp {
    /// The model with random weights.
    pub fn new(device: &Device) -> Self {
        Self {
            hidden1: LinearConfig::new(PIXELS, 512).init(device),
            hidden2: LinearConfig::new(512, 256).init(device),
            output: LinearConfig::new(256, CLASSES).init(device),
            relu: Relu::new(),
        }
    }

    /// Scores of the classes, `[batch, 10]`, for images `[batch, 28, 28]`.
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = images.flatten(1, 2);
        let x = self.relu.forward(self.hidden1.forward(x));
        let x = self.relu.forward(self.hidden2.forward(x));
        self.output.forward(x)
    }
}

/// A small convolutional network: blocks of 32 and 64 channels, then 3136-128-10.
#[derive(Module, Debug)]
pub struct Cnn {
    block1: Block,
    block2: Block,
    hidden: Linear,
    output: Linear,
    relu: Relu,
}

impl Cnn {
    /// The model with random weights.
    pub fn new(device: &Device) -> Self {
        Self {
            block1: Block::new([1, 32], device),
            block2: Block::new([32, 64], device),
            // Each block halves height and width.
            hidden: LinearConfig::new(64 * (SIDE / 4) * (SIDE / 4), 128).init(device),
            output: LinearConfig::new(128, CLASSES).init(device),
            relu: Relu::new(),
        }
    }

    /// Scores of the classes, `[batch, 10]`, for images `[batch, 28, 28]`.
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = self.block1.forward(images.unsqueeze_dim(1));
        let x = self.block2.forward(x);
        let x = self.relu.forward(self.hidden.forward(x.flatten(1, 3)));
        self.output.forward(x)
    }
}

/// Convolution 3x3, batch norm, ReLU, maximum over 2x2.
#[derive(Module, Debug)]
pub struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    relu: Relu,
    pool: MaxPool2d,
}

impl Block {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                // No bias: batch norm subtracts the mean, and with it any bias.
                .with_bias(false)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            relu: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.norm.forward(self.conv.forward(x));
        self.pool.forward(self.relu.forward(x))
    }
}
