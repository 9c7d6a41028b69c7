//! The models of the training rows. The same source is built with Burn's modules ([`stock`]) and
//! with this project's ([`fused`]). Every peer starts a model from the same weights: [`fill`].

pub(crate) mod fused;
mod numbers;
#[cfg(test)]
mod parameters;
pub(crate) mod stock;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor};

pub(crate) use numbers::numbers;

/// A model of a training row: it gives a loss for a batch.
pub(crate) trait Trained<B: Backend>: Module<B> {
    /// The input of a step.
    type Batch: Clone;
    /// The model before [`fill`] sets its weights.
    fn new(device: &B::Device) -> Self;
    /// A batch with the same numbers for every peer.
    fn batch(size: usize, device: &B::Device) -> Self::Batch;
    /// A batch whose inputs have this dtype.
    fn cast(batch: Self::Batch, dtype: FloatDType) -> Self::Batch;
    /// The loss of a batch.
    fn loss(&self, batch: Self::Batch) -> Tensor<B, 1>;
}

/// A model of an inference row: it gives scores of classes.
pub(crate) trait Scored<B: Backend>: Trained<B> {
    /// The scores of a batch, whose labels don't count.
    fn scores(&self, batch: Self::Batch) -> Tensor<B, 2>;
}

struct Cast(FloatDType);

impl<B: Backend> ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

/// The model with all of its floats in another dtype, for inference.
pub(crate) fn cast<B: Backend, M: Module<B>>(model: M, dtype: FloatDType) -> M {
    model.map(&mut Cast(dtype))
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

#[cfg(test)]
mod tests {
    use burn::backend::Autodiff;
    use burn_rocm::Rocm;

    use super::*;

    #[test]
    fn the_parameters_that_several_gpus_counts_are_those_of_the_models() {
        let device = Default::default();
        let resnet = fused::ResNet18::<Autodiff<Rocm>>::new(&device).num_params() as f64;
        let transformer = fused::Transformer::<Autodiff<Rocm>>::new(&device).num_params() as f64;
        assert!((resnet / parameters::RESNET_18 - 1.0).abs() < 5e-4, "{resnet}");
        assert!((transformer / parameters::TRANSFORMER - 1.0).abs() < 2e-3, "{transformer}");
    }
}
