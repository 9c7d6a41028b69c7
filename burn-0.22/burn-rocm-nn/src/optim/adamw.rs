//! Adam with decoupled weight decay.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{self, AdamWState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::optim::{Adam as Step, Decay, Rule, State};

use super::ModuleOptimizer;
use super::adam::{moments, momentum};
use super::gather::{Gradient, place, update};

/// Configuration of [`AdamW`], like [`burn::optim::AdamWConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::nn::LinearConfig;
/// # use burn::optim::GradientsParams;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// use burn_rocm_nn::optim::AdamWConfig;
///
/// let device = burn::tensor::Device::rocm(0).autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = AdamWConfig::new().init();
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optimizer.step(1e-3, model, grads);
/// assert_eq!(model.weight.dims(), [4, 2]);
/// ```
#[derive(Config, Debug)]
pub struct AdamWConfig {
    /// The share of the first moment that each step keeps.
    #[config(default = 0.9)]
    beta_1: f32,
    /// The share of the second moment that each step keeps.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Added to the square root of the second moment.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// The decay rate: each step subtracts `lr * weight_decay * parameter` from a parameter.
    #[config(default = 1e-4)]
    weight_decay: f32,
    /// Whether decay is limited to elements that have the sign of their first moment (["Cautious
    /// Weight Decay", 2025](https://arxiv.org/abs/2510.12402)).
    #[config(default = false)]
    cautious_weight_decay: bool,
    /// Whether to divide by the largest second moment so far.
    #[config(default = false)]
    amsgrad: bool,
    /// How gradients are clipped before the step.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Adam with decoupled weight decay ([Loshchilov and Hutter
/// 2017](https://arxiv.org/abs/1711.05101)), which replaces [`burn::optim::AdamW`].
#[derive(Clone)]
pub struct AdamW {
    burn: optim::AdamW,
    config: AdamWConfig,
    /// Whether the fused step clips the gradients, rather than the optimizer.
    clips: bool,
}

impl AdamWConfig {
    /// The optimizer's update rule.
    pub fn build(&self) -> AdamW {
        let burn = optim::AdamWConfig::new()
            .with_beta_1(self.beta_1)
            .with_beta_2(self.beta_2)
            .with_epsilon(self.epsilon)
            .with_weight_decay(self.weight_decay)
            .with_cautious_weight_decay(self.cautious_weight_decay)
            .with_amsgrad(self.amsgrad)
            .build();
        AdamW { burn, config: self.clone(), clips: false }
    }

    /// An optimizer for a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::fused(AdamW { clips: true, ..self.build() }, self.grad_clipping.as_ref())
    }
}

impl AdamW {
    fn rule(&self, lr: LearningRate) -> Rule {
        let AdamWConfig { beta_1, beta_2, epsilon, amsgrad, .. } = self.config;
        let decay =
            Decay::Decoupled { rate: self.config.weight_decay, cautious: self.config.cautious_weight_decay };
        Rule::Adam(Step { lr, beta_1, beta_2, epsilon, amsgrad, decay })
    }
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let grad = match place("AdamW", self.clips, &tensor, grad) {
            Gradient::Elsewhere(grad) => return self.burn.step(lr, tensor, grad, state),
            Gradient::Here(grad) => grad,
        };
        let state = state.map_or_else(State::default, |state| moments(state.momentum));
        let (tensor, state) = update(self.rule(lr), self.clips, tensor, grad, state);
        (tensor, Some(AdamWState::new(momentum(state))))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        optim::AdamW::to_device(state, device)
    }
}
