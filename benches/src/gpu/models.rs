//! The models of the training rows. The same source is built with Burn's modules ([`stock`]) and
//! with this project's ([`fused`]). Every peer starts a model from the same weights: [`fill`].

pub(crate) mod fused;
pub(crate) mod stock;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

/// A model of a training row: it gives a loss for a batch.
pub(crate) trait Trained<B: Backend>: Module<B> {
    /// The input of a step.
    type Batch: Clone;
    /// The model before [`fill`] sets its weights.
    fn new(device: &B::Device) -> Self;
    /// A batch with the same numbers for every peer.
    fn batch(size: usize, device: &B::Device) -> Self::Batch;
    /// The loss of a batch.
    fn loss(&self, batch: Self::Batch) -> Tensor<B, 1>;
}

/// The number at `index` of a series in -1..1 from which every peer starts: the index hashed to 32
/// bits. A sequence that fills the interval evenly would not do: gradients over a batch of such
/// numbers cancel to little more than rounding errors, which Adam scales to whole steps, so no two
/// implementations would agree.
fn number(index: usize, series: usize) -> f64 {
    let mut x = (index as u32).wrapping_add((series as u32).wrapping_mul(0x9e37_79b9));
    for _ in 0..2 {
        x = (x ^ (x >> 16)).wrapping_mul(0x045d_9f3b);
    }
    f64::from(x ^ (x >> 16)) / f64::from(1u32 << 31) - 1.0
}

/// Tensor data of such numbers, times `scale`.
pub(crate) fn numbers(shape: &[usize], series: usize, scale: f64) -> TensorData {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| (number(i, series) * scale) as f32).collect();
    TensorData::new(values, shape.to_vec())
}

struct Fill {
    series: usize,
}

impl<B: Backend> ModuleMapper<B> for Fill {
    /// Sets weights to numbers below `1 / sqrt(inputs)` and biases to 0. The scales and variances
    /// of norms stay 1.
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

/// Sets the weights from which every peer starts.
pub(crate) fn fill<B: Backend, M: Module<B>>(model: M) -> M {
    model.map(&mut Fill { series: 0 })
}

fn labels<B: Backend>(size: usize, classes: i64, device: &B::Device) -> Tensor<B, 1, Int> {
    Tensor::<B, 1, Int>::arange(0..size as i64, device).remainder_scalar(classes)
}

fn images<B: Backend>(size: usize, device: &B::Device) -> (Tensor<B, 3>, Tensor<B, 1, Int>) {
    (Tensor::from_data(numbers(&[size, 28, 28], 0, 1.0), device), labels(size, 10, device))
}
