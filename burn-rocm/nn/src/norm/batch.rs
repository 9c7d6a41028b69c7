//! Batch norm.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param, RunningState};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_backend::tensor::FloatTensor;
use burn_rocm::fused::BatchNormStep;
use burn_rocm::{RocmError, RocmTensor, fused, graph};

use super::{composed, shared};
use crate::fuse::{Route, primitive, wrap};
use crate::ops::{Applied, Gradients, Kept, Op};

/// Configuration of [`BatchNorm`].
#[derive(Config, Debug)]
pub struct BatchNormConfig {
    /// The number of channels.
    pub num_features: usize,
    /// Added to the variance. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The part of the running statistics that each batch replaces. Default: 0.1
    #[config(default = 0.1)]
    pub momentum: f64,
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, where mean and variance are taken over
/// all axes but the channels' ([Ioffe and Szegedy 2015](https://arxiv.org/abs/1502.03167)).
///
/// Made by [`BatchNormConfig`]. On an autodiff backend the module normalises with the batch's
/// statistics and updates the running ones with the biased variance, as Burn's does. On other
/// backends it normalises with the running statistics. With an f16 or bf16 input, parameters and
/// statistics may be f32, as in a model that [`amp`](crate::amp) converted. Forward and backward
/// pass are each computed by MIOpen or by two kernels of this project, depending on
/// `BURN_ROCM_NORM`. No checkpointing strategy recomputes the module, so each forward pass updates
/// the statistics once.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::{BatchNorm, BatchNormConfig};
///
/// let norm: BatchNorm<Rocm> = BatchNormConfig::new(3).init(&device);
/// let output = norm.forward(Tensor::<Rocm, 4>::ones([2, 3, 8, 8], &device));
/// assert_eq!(output.dims(), [2, 3, 8, 8]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BatchNorm<B: Backend> {
    /// The scale of each channel.
    pub gamma: Param<Tensor<B, 1>>,
    /// The shift of each channel.
    pub beta: Param<Tensor<B, 1>>,
    /// The running mean.
    pub running_mean: RunningState<Tensor<B, 1>>,
    /// The running variance.
    pub running_var: RunningState<Tensor<B, 1>>,
    /// The part of the running statistics that each batch replaces.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
}

impl BatchNormConfig {
    /// The module, with gamma 1, beta 0, running mean 0 and running variance 1.
    pub fn init<B: Backend>(&self, device: &B::Device) -> BatchNorm<B> {
        let shape = [self.num_features];
        BatchNorm {
            gamma: Initializer::Ones.init(shape, device),
            beta: Initializer::Zeros.init(shape, device),
            running_mean: RunningState::new(Tensor::zeros(shape, device)),
            running_var: RunningState::new(Tensor::ones(shape, device)),
            momentum: self.momentum,
            epsilon: self.epsilon,
        }
    }
}

impl<B: Backend> BatchNorm<B> {
    /// Normalises each channel: on an autodiff backend as in training, else as in inference.
    ///
    /// # Shapes
    /// - input, output: `[batch_size, channels, ..]`
    ///
    /// # Panics
    /// If the input has fewer than two axes, or its number of channels is not the module's.
    pub fn forward<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        self.normalise(input, false)
    }

    /// `relu(self.forward(input))` in the kernels of the norm, forward and backward. This saves the
    /// passes over memory that a separate ReLU takes.
    ///
    /// # Shapes
    /// - input, output: `[batch_size, channels, ..]`
    ///
    /// # Panics
    /// As for [`forward`](Self::forward).
    pub fn forward_relu<const D: usize>(&self, input: Tensor<B, D>) -> Tensor<B, D> {
        self.normalise(input, true)
    }

    fn normalise<const D: usize>(&self, input: Tensor<B, D>, relu: bool) -> Tensor<B, D> {
        match Route::of("BatchNorm") {
            Some(route) if B::ad_enabled(&input.device()) => self.train(&route, input, relu),
            Some(route) => self.infer(&route, input, relu),
            None => {
                let statistics = self.running_mean.value().dtype();
                let output = composed(Some(statistics), input, |input| self.composed().forward(input));
                if relu { burn::tensor::activation::relu(output) } else { output }
            }
        }
    }

    fn infer<const D: usize>(&self, route: &Route<B>, input: Tensor<B, D>, relu: bool) -> Tensor<B, D> {
        let device = input.device();
        let [mean, variance] =
            [&self.running_mean, &self.running_var].map(|state| primitive(state.value().to_device(&device)));
        let [gamma, beta] = [&self.gamma, &self.beta].map(|param| primitive(param.val()));
        let op = BatchNormInfer { epsilon: self.epsilon, relu };
        wrap(route.apply(op, [primitive(input), gamma, beta, mean, variance]).0)
    }

    fn train<const D: usize>(&self, route: &Route<B>, input: Tensor<B, D>, relu: bool) -> Tensor<B, D> {
        let device = input.device();
        let [mean, variance] = [&self.running_mean, &self.running_var]
            // An update before a capture is not part of it.
            .map(|state| graph::uncaptured(|| state.value_sync()))
            .map(|value| primitive(value.to_device(&device).detach()));
        // In a graph's memory they stay, because the next replay goes on with them.
        let is_of_graph = |value: &FloatTensor<B>| graph::is_of_graph(&route.inner(value.clone()));
        let in_place = graph::is_capturing() || [&mean, &variance].into_iter().any(is_of_graph);
        let (momentum, epsilon) = (self.momentum, self.epsilon);
        let op = BatchNormTrain(BatchNormStep { momentum, epsilon, relu, in_place });
        let [gamma, beta] = [&self.gamma, &self.beta].map(|param| primitive(param.val()));
        let (output, saved) = route.apply(op, [primitive(input), gamma, beta, mean, variance]);
        if !in_place {
            let mut saved = saved.into_iter();
            let [_, mean, variance] =
                [(); 3].map(|()| saved.next().expect("`BatchNormTrain` saves three or four"));
            self.running_mean.update(route.constant(mean));
            self.running_var.update(route.constant(variance));
        }
        wrap(output)
    }

    /// Burn's module with the same parameters, cast to the dtype of the statistics, and the same
    /// running statistics.
    fn composed(&self) -> burn::nn::BatchNorm<B> {
        let dtype = self.running_mean.value().dtype();
        let like_statistics = |param: &Param<Tensor<B, 1>>| match param.val() {
            value if value.dtype() == dtype => shared(param),
            value => Param::initialized(param.id, value.cast(dtype)),
        };
        burn::nn::BatchNorm {
            gamma: like_statistics(&self.gamma),
            beta: like_statistics(&self.beta),
            running_mean: self.running_mean.clone(),
            running_var: self.running_var.clone(),
            momentum: self.momentum,
            epsilon: self.epsilon,
        }
    }
}

impl<B: Backend> ModuleDisplay for BatchNorm<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [num_features] = self.beta.shape().dims();
        let content = content.add("num_features", &num_features).add("momentum", &self.momentum);
        content.add("epsilon", &self.epsilon).optional()
    }
}

/// The inputs are x, gamma, beta, running mean and running variance. Saves the batch's statistics
/// and the new running statistics. With a ReLU it also saves the output, which the next op keeps
/// anyway.
#[derive(Debug)]
struct BatchNormTrain(BatchNormStep);

impl Op<5> for BatchNormTrain {
    fn names(&self) -> [&'static str; 2] {
        match self.0.relu {
            true => ["nn_batch_norm_relu", "nn_batch_norm_relu_backward"],
            false => ["nn_batch_norm", "nn_batch_norm_backward"],
        }
    }

    fn reads(&self) -> [bool; 5] {
        [true, true, self.0.relu, false, false]
    }

    fn forward(&self, [x, gamma, beta, mean, variance]: [RocmTensor; 5]) -> Result<Applied, RocmError> {
        let fused::BatchNormed { output, statistics, running: [mean, variance] } =
            fused::batch_norm_step(x, gamma, beta, [mean, variance], self.0)?;
        let kept = self.0.relu.then(|| output.clone());
        Ok((output, [statistics, mean, variance].into_iter().chain(kept).collect()))
    }

    fn backward(&self, grad: RocmTensor, mut kept: Kept<5>, _: [bool; 5]) -> Gradients<5> {
        let output = if self.0.relu { kept.saved.pop() } else { None };
        let beta = kept.inputs[2].take();
        let [x, gamma] = kept.first();
        let statistics = kept.saved.into_iter().next().expect("the statistics are saved");
        let epsilon = self.0.epsilon;
        let [by_x, by_gamma, by_beta] = match output.zip(beta) {
            Some((output, beta)) => {
                fused::batch_norm_relu_backward(x, [gamma, beta], statistics, output, grad, epsilon)
            }
            None => fused::batch_norm_backward(x, gamma, statistics, grad, epsilon),
        }?
        .map(Some);
        Ok([by_x, by_gamma, by_beta, None, None])
    }
}

/// The inputs are x, gamma, beta, running mean and running variance. There is no gradient, because
/// on a backend that records ops the module is in training.
#[derive(Debug)]
struct BatchNormInfer {
    epsilon: f64,
    relu: bool,
}

impl Op<5> for BatchNormInfer {
    fn names(&self) -> [&'static str; 2] {
        match self.relu {
            true => ["nn_batch_norm_relu_infer", "nn_batch_norm_relu_infer_backward"],
            false => ["nn_batch_norm_infer", "nn_batch_norm_infer_backward"],
        }
    }

    fn reads(&self) -> [bool; 5] {
        [false; 5]
    }

    fn forward(&self, [x, gamma, beta, mean, variance]: [RocmTensor; 5]) -> Result<Applied, RocmError> {
        let infer = if self.relu { fused::batch_norm_relu_infer } else { fused::batch_norm_infer };
        Ok((infer(x, gamma, beta, [mean, variance], self.epsilon)?, vec![]))
    }

    fn backward(&self, _: RocmTensor, _: Kept<5>, wanted: [bool; 5]) -> Gradients<5> {
        unreachable!("no autodiff backend infers, yet {wanted:?} are wanted")
    }
}
