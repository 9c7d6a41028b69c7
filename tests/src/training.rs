//! A small training loop for tests. Weights and data are fixed, so runs on different providers can
//! be compared.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

use crate::Random;
use burn_rocm_examples::model::{Kind, Model};

/// Images `[n, 28, 28]` and their labels `[n]`.
pub type Batch<B> = (Tensor<B, 3>, Tensor<B, 1, Int>);

/// A batch that is the same on every backend and in every run.
pub fn batch<B: Backend>(device: &B::Device, size: usize) -> Batch<B> {
    let random = Random::from_seed(2);
    let pixels: Vec<f32> = (0..size * 784).map(|_| random.uniform(-1.0, 1.0) as f32).collect();
    let labels: Vec<i32> = (0..size).map(|_| random.below(10) as i32).collect();
    (
        Tensor::from_data(TensorData::new(pixels, [size, 28, 28]), device),
        Tensor::from_data(TensorData::new(labels, [size]), device),
    )
}

/// Replaces every float parameter by values of the usual size, drawn from a fixed seed.
struct Reset(Random);

impl<B: Backend> ModuleMapper<B> for Reset {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let random = &self.0;
        param.map(|tensor| {
            let shape = tensor.shape();
            // Uniform values on a layer's usual scale. Vectors (biases, norms) are around one half,
            // so that no unit is dead.
            let bound = if shape.num_dims() == 1 {
                0.5
            } else {
                (shape.num_dims() as f64 * 3.0 / shape.num_elements() as f64).sqrt() * 4.0
            };
            let values: Vec<f32> =
                (0..shape.num_elements()).map(|_| random.uniform(-bound, bound) as f32).collect();
            Tensor::from_data(TensorData::new(values, shape), &tensor.device()).require_grad()
        })
    }
}

/// One of the example models with its optimizer (Adam, 1e-3).
pub struct Trainer<B: AutodiffBackend> {
    model: Option<Model<B>>,
    optimizer: OptimizerAdaptor<Adam, Model<B>, B>,
}

impl<B: AutodiffBackend> Trainer<B> {
    /// A trainer for a model whose parameters are the same in every run.
    pub fn new(kind: Kind, device: &B::Device) -> Self {
        let model = kind.init::<B>(device).map(&mut Reset(Random::from_seed(1)));
        Self { model: Some(model), optimizer: AdamConfig::new().init() }
    }

    /// Takes one step and leaves the loss on the device.
    pub fn step_on_device(&mut self, (images, labels): &Batch<B>) -> Tensor<B, 1> {
        let model = self.model.take().expect("a step ends with the model in place");
        let logits = model.forward(images.clone());
        let loss = burn::nn::loss::CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits, labels.clone());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(1e-3, model, grads));
        loss
    }

    /// Takes one step and reads its loss.
    pub fn step(&mut self, data: &Batch<B>) -> f64 {
        self.step_on_device(data).into_data().iter::<f64>().next().expect("a loss is one number")
    }
}
