//! The two models: a multilayer perceptron and a small convolutional network.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::data::{CLASSES, PIXELS, SIDE};

/// Which model to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Multilayer perceptron: 784-512-256-10.
    Mlp,
    /// Convolutional network: two blocks of convolution, batch norm and pooling, then 128-10.
    Cnn,
}

impl Kind {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
        }
    }

    /// Builds the model with random weights.
    pub fn init<B: Backend>(self, device: &B::Device) -> Model<B> {
        match self {
            Self::Mlp => Model::Mlp(Mlp::new(device)),
            Self::Cnn => Model::Cnn(Cnn::new(device)),
        }
    }
}

/// One of the models. A program has only one value of this type, so its size does not matter.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Model<B: Backend> {
    /// See [`Kind::Mlp`].
    Mlp(Mlp<B>),
    /// See [`Kind::Cnn`].
    Cnn(Cnn<B>),
}

impl<B: Backend> Model<B> {
    /// Scores of the classes, `[batch, 10]`, before the softmax, for normalised images
    /// `[batch, 28, 28]`.
    pub fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        match self {
            Self::Mlp(model) => model.forward(images),
            Self::Cnn(model) => model.forward(images),
        }
    }
}

/// A multilayer perceptron: 784-512-256-10 with ReLU.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    hidden1: Linear<B>,
    hidden2: Linear<B>,
    output: Linear<B>,
    relu: Relu,
}

impl<B: Backend> Mlp<B> {
    /// The model with random weights.
    pub fn new(device: &B::Device) -> Self {
        Self {
            hidden1: LinearConfig::new(PIXELS, 512).init(device),
            hidden2: LinearConfig::new(512, 256).init(device),
            output: LinearConfig::new(256, CLASSES).init(device),
            relu: Relu::new(),
        }
    }

    /// Scores of the classes, `[batch, 10]`, for images `[batch, 28, 28]`.
    pub fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let x = images.flatten(1, 2);
        let x = self.relu.forward(self.hidden1.forward(x));
        let x = self.relu.forward(self.hidden2.forward(x));
        self.output.forward(x)
    }
}

/// A small convolutional network: blocks of 32 and 64 channels, then 3136-128-10.
#[derive(Module, Debug)]
pub struct Cnn<B: Backend> {
    block1: Block<B>,
    block2: Block<B>,
    hidden: Linear<B>,
    output: Linear<B>,
    relu: Relu,
}

impl<B: Backend> Cnn<B> {
    /// The model with random weights.
    pub fn new(device: &B::Device) -> Self {
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
    pub fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let x = self.block1.forward(images.unsqueeze_dim(1));
        let x = self.block2.forward(x);
        let x = self.relu.forward(self.hidden.forward(x.flatten(1, 3)));
        self.output.forward(x)
    }
}

/// Convolution 3x3, batch norm, ReLU, maximum over 2x2.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    relu: Relu,
    pool: MaxPool2d,
}

impl<B: Backend> Block<B> {
    fn new(channels: [usize; 2], device: &B::Device) -> Self {
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

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let x = self.norm.forward(self.conv.forward(x));
        self.pool.forward(self.relu.forward(x))
    }
}
