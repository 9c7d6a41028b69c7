//! Modules, autodiff, optimizers and the extensions of Burn 0.22, unmodified, beside burn-flex.

use crate::again::again;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

/// Set in a process that [`again`] started.
const CHILD: &str = "BURN_ROCM_TEST_CHILD";
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

/// The loss before each of some SGD steps.
fn losses(model: Model, device: &Device) -> Vec<f32> {
    let images = Tensor::<4>::from_data(TensorData::new(numbers(5 * 2 * 6 * 6, 0.7), [5, 2, 6, 6]), device);
    let labels = Tensor::<1, Int>::from_data([0, 2, 1, 2, 0], device);
    let mut optimizer = SgdConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(device);
    let mut model = model;
    (0..4)
        .map(|_| {
            let value = loss.forward(model.forward(images.clone()), labels.clone());
            let grads = GradientsParams::from_grads(value.backward(), &model);
            model = optimizer.step(0.05, model.clone(), grads);
            value.into_scalar::<f32>()
        })
        .collect()
}

#[test]
fn a_network_trains_as_on_flex() {
    let (ours, flex) = (Device::rocm(0).autodiff(), Device::flex().autodiff());
    let model = Model::new(&flex);
    let expected = losses(model.clone(), &flex);
    let found = losses(model.to_device(&ours), &ours);
    assert!(expected[3] < 0.9 * expected[0], "it learns: {expected:?}");
    for (step, (a, b)) in found.iter().zip(&expected).enumerate() {
        // Sums of at most 180 terms in each layer, forward and back, and each step adds its own error to what the
        // step before left in the weights: a first-order bound with every term of the same sign.
        let bound = (step + 1) as f64 * 6.0 * 180.0 * U;
        assert!((a - b).abs() as f64 <= bound, "step {step}: {a}, expected {b} within {bound:.1e}");
    }
}

/// Burn's own `BatchNorm` is one op of this backend each way, and not the sums and broadcasts of Burn's default.
#[test]
fn batch_norm_is_one_op_each_way() {
    if std::env::var_os(CHILD).is_none() {
        let trace = std::env::temp_dir().join(format!("burn-rocm-app022-{}.trace", std::process::id()));
        let path = trace.to_str().expect("a path in UTF-8");
        let environment = [(CHILD, "1"), ("BURN_ROCM_TRACE_FILE", path), ("BURN_ROCM_PROVIDER", "cpu")];
        again(&["--exact", "training::batch_norm_is_one_op_each_way"], &environment);
        let text = std::fs::read_to_string(&trace).expect("a trace");
        std::fs::remove_file(&trace).expect("it is there");
        for op in ["batch_norm_train", "batch_norm_train_backward"] {
            assert!(text.lines().any(|line| line.contains(op) && line.contains("miopen")), "{op} in\n{text}");
        }
        return;
    }
    let device = Device::rocm(0).autodiff();
    let norm = BatchNormConfig::new(4).init(&device);
    let x = Tensor::<4>::from_data(TensorData::new(numbers(2 * 4 * 25, 0.3), [2, 4, 5, 5]), &device);
    let x = x.require_grad();
    let grads = norm.forward(x.clone()).powi_scalar(2).sum().backward();
    assert_eq!(x.grad(&grads).unwrap().dims(), [2, 4, 5, 5]);
}

#[test]
fn the_extensions_compute_here() {
    let (ours, flex) = (Device::rocm(0), Device::flex());
    let on = |device: &Device| Tensor::<1>::from_data(TensorData::new(numbers(48, 0.2), [48]), device);
    let spectrum = |device: &Device| burn::signal::rfft(on(device), 0, None);
    let ((re, im), (re_flex, im_flex)) = (spectrum(&ours), spectrum(&flex));
    // A sum of 48 terms of at most 1.
    let bound = 48.0 * 48.0 * U;
    for (found, expected) in [(re, re_flex), (im, im_flex)] {
        let [found, expected] = [found, expected].map(|t| t.into_data().try_to_vec::<f32>().unwrap());
        assert_eq!(found.len(), 25);
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() as f64 <= bound, "{a}, expected {b}");
        }
    }
    let determinant = |device: &Device| {
        let x = on(device).slice(0..16).reshape([1, 4, 4]) + Tensor::<2>::eye(4, device).unsqueeze() * 3.0;
        burn::linalg::det::<3, 2, 1>(x).into_scalar::<f32>()
    };
    let (found, expected) = (determinant(&ours), determinant(&flex));
    // Four products of entries of at most 4, after eliminations whose pivots are at least 2.
    assert!((found - expected).abs() as f64 <= 64.0 * 256.0 * U, "{found}, expected {expected}");
}
