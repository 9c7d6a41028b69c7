//! Trains a small classifier through `burn::backend::Rocm` and through Burn's dispatch, and fails
//! if the loss does not fall. This is an ordinary Burn 0.21 app: it also runs unchanged on Burn's
//! own ROCm backend.

use burn::backend::{Autodiff, Rocm};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Int, Tensor, activation};
use burn::{Dispatch, DispatchDevice};

/// The side of the square images, and the number of classes.
const SIDE: usize = 8;
const CLASSES: usize = 4;
const BATCH: usize = 32;
const STEPS: usize = 40;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    conv: Conv2d<B>,
    pool: MaxPool2d,
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Model<B> {
    fn new(device: &B::Device) -> Self {
        let flat = 8 * (SIDE / 2) * (SIDE / 2);
        Self {
            conv: Conv2dConfig::new([1, 8], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            first: LinearConfig::new(flat, 32).init(device),
            second: LinearConfig::new(32, CLASSES).init(device),
        }
    }

    fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.pool.forward(activation::relu(self.conv.forward(images)));
        self.second.forward(activation::gelu(self.first.forward(x.flatten(1, 3))))
    }
}

/// Noisy images, and their classes. The class says which quarter of the image is bright.
fn batch<B: Backend>(device: &B::Device) -> (Tensor<B, 4>, Tensor<B, 1, Int>) {
    let half = SIDE / 2;
    let mut images = Tensor::random([BATCH, 1, SIDE, SIDE], Distribution::Normal(0.0, 0.5), device);
    let labels: Vec<i32> = (0..BATCH).map(|i| (i % CLASSES) as i32).collect();
    for (i, &label) in labels.iter().enumerate() {
        let (row, column) = (label as usize / 2 * half, label as usize % 2 * half);
        let lit = [i..i + 1, 0..1, row..row + half, column..column + half];
        let part = images.clone().slice(lit.clone()) + 1.0;
        images = images.slice_assign(lit, part);
    }
    (images, Tensor::from_ints(labels.as_slice(), device))
}

fn train<B: AutodiffBackend>(how: &str, device: &B::Device) {
    B::seed(device, 42);
    let mut model = Model::<B>::new(device);
    let mut optimizer = AdamConfig::new().init::<B, Model<B>>();
    let criterion = CrossEntropyLossConfig::new().init(device);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (images, labels) = batch::<B>(device);
        let loss = criterion.forward(model.forward(images), labels);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(5e-3, model, grads);
        losses.push(loss.into_data().iter::<f32>().next().expect("a loss is one number"));
    }
    let (first, last) = (losses[0], losses[STEPS - 1]);
    println!("{how}: {}, loss {first:.3} -> {last:.3} in {STEPS} steps", B::name(device));
    assert!(last < 0.25 * first, "the loss did not fall: {losses:?}");
}

fn main() {
    train::<Autodiff<Rocm>>("burn::backend::Rocm", &Default::default());
    train::<Dispatch>("burn::Dispatch", &DispatchDevice::autodiff(DispatchDevice::Rocm(Default::default())));
}
