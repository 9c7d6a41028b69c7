//! A model that learns a product, its data, and how closely two trainings of it agree.

use burn::data::dataloader::batcher::Batcher;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData, activation};

pub(crate) const FEATURES: usize = 6;
pub(crate) const STEPS: usize = 10;
/// The items of a step on each device.
pub(crate) const BATCH: usize = 4;

/// An item: its features, and a target.
pub(crate) type Item = ([f64; FEATURES], f64);

#[derive(Clone, Debug)]
pub(crate) struct Batch<B: Backend> {
    x: Tensor<B, 2>,
    y: Tensor<B, 2>,
}

#[derive(Clone)]
pub(crate) struct Batches;

impl<B: Backend> Batcher<B, Item, Batch<B>> for Batches {
    fn batch(&self, items: Vec<Item>, device: &B::Device) -> Batch<B> {
        let x: Vec<f64> = items.iter().flat_map(|(x, _)| *x).collect();
        let y: Vec<f64> = items.iter().map(|(_, y)| *y).collect();
        Batch {
            x: Tensor::from_data(TensorData::new(x, [items.len(), FEATURES]), device),
            y: Tensor::from_data(TensorData::new(y, [items.len(), 1]), device),
        }
    }
}

#[derive(Module, Debug)]
pub(crate) struct Model<B: Backend> {
    hidden: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Model<B> {
    pub(crate) fn new(device: &B::Device) -> Self {
        B::seed(device, 5);
        let layer = |from, to| {
            let layer = LinearConfig::new(from, to).init(device);
            // Draws them here: a clone of a parameter that is not drawn yet would draw other values.
            layer.weight.val();
            layer.bias.as_ref().map(Param::val);
            layer
        };
        Self { hidden: layer(FEATURES, 8), output: layer(8, 1) }
    }

    pub(crate) fn loss(&self, batch: Batch<B>) -> Tensor<B, 1> {
        let x = activation::tanh(self.hidden.forward(batch.x));
        (self.output.forward(x) - batch.y).powi_scalar(2).mean()
    }
}

/// The items of all steps of `count` devices, in the order in which one device takes them.
pub(crate) fn items(count: usize) -> Vec<Item> {
    let item = |i: usize| {
        let x = [0.7, 1.3, 2.1, 2.9, 0.3, 1.9].map(|step: f64| (i as f64 * step).sin());
        (x, x[0] * x[1] - x[4])
    };
    (0..STEPS * BATCH * count).map(item).collect()
}

/// The items of each device, so that every step has those of a step of one device.
pub(crate) fn divided(items: &[Item], count: usize) -> Vec<Vec<Item>> {
    let batches: Vec<&[Item]> = items.chunks(BATCH).collect();
    let of = |device| batches.iter().skip(device).step_by(count).flat_map(|batch| batch.to_vec()).collect();
    (0..count).map(of).collect()
}

/// A loss and its gradients are made of some 2^9 sums and products of numbers near 1, each rounded
/// by 2^-53 of it, and there are fewer than 2^4 steps. The steps after an error may amplify it by
/// 2^6. A wrong average changes the second loss by more than 2^-10.
const LIMIT: f64 = 5.8e-11; // 2^(9 + 4 + 6 - 53)

/// Compares each step's loss.
pub(crate) fn agree(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!((found.len(), expected.len()), (STEPS, STEPS), "{what}");
    // Each step has other items, so single losses differ anyway.
    let half = |from: usize| expected[from..][..STEPS / 2].iter().sum::<f64>();
    assert!(half(STEPS / 2) < 0.9 * half(0), "{what} learns: {expected:?}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < LIMIT, "{what}, step {step}: {found} instead of {expected}");
    }
}
