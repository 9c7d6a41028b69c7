//! Adam.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{self, AdamState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::optim::{Adam as Step, Decay, Rule, State};

use super::ModuleOptimizer;
use super::gather::{Gradient, place, update};
use crate::fuse::{from_rocm, rocm};

/// Configuration of [`Adam`], like [`burn::optim::AdamConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::nn::LinearConfig;
/// # use burn::optim::GradientsParams;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// use burn_rocm_nn::optim::AdamConfig;
///
/// let device = burn::tensor::Device::rocm(0).autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = AdamConfig::new().init();
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optimizer.step(1e-3, model, grads);
/// assert_eq!(model.weight.dims(), [4, 2]);
/// ```
#[derive(Config, Debug)]
pub struct AdamConfig {
    /// The share of the first moment that each step keeps.
    #[config(default = 0.9)]
    beta_1: f32,
    /// The share of the second moment that each step keeps.
    #[config(default = 0.999)]
    beta_2: f32,
    /// Added to the square root of the second moment.
    #[config(default = 1e-5)]
    epsilon: f32,
    /// Whether to divide by the largest second moment so far.
    #[config(default = false)]
    amsgrad: bool,
    /// An L2 penalty.
    weight_decay: Option<WeightDecayConfig>,
    /// How gradients are clipped before the step.
    grad_clipping: Option<GradientClippingConfig>,
}

/// Adam ([Kingma and Ba 2014](https://arxiv.org/abs/1412.6980)). Replaces [`burn::optim::Adam`].
#[derive(Clone)]
pub struct Adam {
    burn: optim::Adam,
    config: AdamConfig,
    /// Whether the fused step clips the gradients, rather than the optimizer.
    clips: bool,
}

impl AdamConfig {
    /// The optimizer's update rule.
    pub fn build(&self) -> Adam {
        let burn = optim::AdamConfig::new()
            .with_beta_1(self.beta_1)
            .with_beta_2(self.beta_2)
            .with_epsilon(self.epsilon)
            .with_amsgrad(self.amsgrad)
            .with_weight_decay(self.weight_decay.clone())
            .build();
        Adam { burn, config: self.clone(), clips: false }
    }

    /// An optimizer for a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::fused(Adam { clips: true, ..self.build() }, self.grad_clipping.as_ref())
    }
}

impl Adam {
    fn rule(&self, lr: LearningRate) -> Rule {
        let AdamConfig { beta_1, beta_2, epsilon, amsgrad, .. } = self.config;
        let decay = Decay::Penalty(self.config.weight_decay.as_ref().map_or(0.0, |decay| decay.penalty));
        Rule::Adam(Step { lr, beta_1, beta_2, epsilon, amsgrad, decay })
    }
}

impl Optimizer for Adam {
    type State<const D: usize> = AdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamState<D>>,
    ) -> (Tensor<D>, Option<AdamState<D>>) {
        let grad = match place("Adam", self.clips, &tensor, grad) {
            Gradient::Elsewhere(grad) => return self.burn.step(lr, tensor, grad, state),
            Gradient::Here(grad) => grad,
        };
        let state = state.map_or_else(State::default, |state| moments(state.momentum));
        let (tensor, state) = update(self.rule(lr), self.clips, tensor, grad, state);
        (tensor, Some(AdamState::new(momentum(state))))
    }

    fn to_device<const D: usize>(state: AdamState<D>, device: &Device) -> AdamState<D> {
        optim::Adam::to_device(state, device)
    }
}

/// Converts Burn's state to the fused step's.
pub(super) fn moments<const D: usize>(state: AdaptiveMomentumState<D>) -> State {
    let AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2 } = state;
    let tensors = [Some(moment_1), Some(moment_2), max_moment_2].into_iter().flatten().map(rocm).collect();
    State { time, tensors }
}

/// Converts the fused step's state to Burn's.
pub(super) fn momentum<const D: usize>(state: State) -> AdaptiveMomentumState<D> {
    let time = state.time;
    let mut tensors = state.tensors.into_iter().map(from_rocm);
    let mut moment = || tensors.next().expect("a step gives both moments");
    let (moment_1, moment_2) = (moment(), moment());
    AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2: tensors.next() }
}
