//! Compares unmodified modules, autodiff, optimizers and extensions of Burn 0.22 with burn-flex.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

/// Unit roundoff of f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

#[derive(Module, Debug)]
struct Model {
    conv: Conv2d,
    norm: BatchNorm,
    linear: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([2, 4], [3, 3]).with_padding(PaddingConfig2d::Same).init(device),
            norm: BatchNormConfig::new(4).init(device),
            linear: LinearConfig::new(4 * 6 * 6, 3).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = activation::relu(self.norm.forward(self.conv.forward(images)));
        self.linear.forward(x.flatten::<2>(1, 3))
    }
}

fn numbers(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

/// Trains by SGD and returns the loss before each step.
fn losses(model: Model, device: &Device) -> Vec<f32> {
    let images = Tensor::<4>::from_data(TensorData::new(numbers(5 * 2 * 6 * 6, 0.7), [5, 2, 6, 6]), device);
    let labels = Tensor::<1, Int>::from_data([0, 2, 1, 2, 0], device);
    let mut optimizer = SgdConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(device);
    let (mut model, mut values) = (model, Vec::new());
    for _ in 0..4 {
        let value = loss.forward(model.forward(images.clone()), labels.clone());
        let grads = GradientsParams::from_grads(value.backward(), &model);
        model = optimizer.step(0.05, model, grads);
        values.push(value.into_scalar::<f32>());
    }
    values
}

#[test]
fn a_network_trains_as_on_flex() {
    let (ours, flex) = (Device::rocm(0).autodiff(), Device::flex().autodiff());
    flex.seed(1);
    let model = Model::new(&flex);
    // A copy with separate parameters. `to_device` would be part of the graph.
    let copy = model.clone().fork(&ours);
    let expected = losses(model, &flex);
    let found = losses(copy, &ours);
    assert!(expected[3] < expected[0], "it learns: {expected:?}");
    for (step, (a, b)) in found.iter().zip(&expected).enumerate() {
        // Each layer sums at most 180 terms, forward and backward. Each step adds its own error to
        // that of the weights from the previous step. The bound is of first order, with all errors
        // of the same sign.
        let bound = (step + 1) as f64 * 6.0 * 180.0 * U;
        assert!((a - b).abs() as f64 <= bound, "step {step}: {a}, expected {b} within {bound:.1e}");
    }
}

#[test]
fn the_extensions_compute_here() {
    let (ours, flex) = (Device::rocm(0), Device::flex());
    let on = |device: &Device| Tensor::<1>::from_data(TensorData::new(numbers(32, 0.2), [32]), device);
    let spectrum = |device: &Device| burn::signal::rfft(on(device), 0, None);
    let ((re, im), (re_flex, im_flex)) = (spectrum(&ours), spectrum(&flex));
    // A sum of 32 terms of at most 1.
    let bound = 32.0 * 32.0 * U;
    for (found, expected) in [(re, re_flex), (im, im_flex)] {
        let [found, expected] = [found, expected].map(|t| t.into_data().try_to_vec::<f32>().unwrap());
        assert_eq!(found.len(), 17);
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() as f64 <= bound, "{a}, expected {b}");
        }
    }
    let determinant = |device: &Device| {
        let x = on(device).slice(0..16).reshape([1, 4, 4]) + Tensor::<2>::eye(4, device).unsqueeze() * 3.0;
        burn::linalg::det::<3, 2, 1>(x).into_scalar::<f32>()
    };
    let (found, expected) = (determinant(&ours), determinant(&flex));
    // Four products of entries of at most 4, after eliminations with pivots of at least 2.
    assert!((found - expected).abs() as f64 <= 64.0 * 256.0 * U, "{found}, expected {expected}");
}
