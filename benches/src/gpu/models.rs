//! The models of the training rows: one source, of Burn's stock modules ([`stock`]) and of this project's
//! ([`fused`]). Each is started from the same weights by every peer: [`fill`].

pub(crate) mod fused;
pub(crate) mod stock;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

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

/// The `i`-th of the numbers in -1..1 that every peer starts from: the index, hashed in 32 bits. Not a sequence
/// that fills the interval evenly: over a batch of such numbers gradients cancel to little more than rounding,
/// which Adam scales to whole steps, and no two implementations stay together.
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

fn images<B: Backend>(size: usize, device: &B::Device) -> (Tensor<B, 3>, Tensor<B, 1, Int>) {
    (Tensor::from_data(numbers(&[size, 28, 28], 0, 1.0), device), labels(size, 10, device))
}
