use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::AutodiffModule;
use burn::optim::{self, AdamWState};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::optim::{Adam as Step, Decay, Rule, State};

use super::Rules;
use super::adam::{moments, momentum};
use super::adaptor::OptimizerAdaptor;

/// Configuration of [`AdamW`], like [`burn::optim::AdamWConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::backend::Autodiff;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::{GradientsParams, Optimizer};
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::optim::AdamWConfig;
///
/// type B = Autodiff<Rocm>;
/// let model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = AdamWConfig::new().init();
/// let loss = model.forward(Tensor::<B, 2>::ones([3, 4], &device)).sum();
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
        AdamW { burn, config: self.clone() }
    }

    /// An optimizer for a module.
    pub fn init<B: AutodiffBackend, M: AutodiffModule<B>>(&self) -> OptimizerAdaptor<AdamW, M, B> {
        OptimizerAdaptor::clipped(self.build(), self.grad_clipping.as_ref())
    }
}

impl<B: Backend> Rules<B> for AdamW {
    const NAME: &'static str = "AdamW";

    type Burn = optim::AdamW;

    fn burn(&self) -> optim::AdamW {
        self.burn.clone()
    }

    fn rule(&self, lr: f64) -> Rule {
        let AdamWConfig { beta_1, beta_2, epsilon, amsgrad, .. } = self.config;
        let decay =
            Decay::Decoupled { rate: self.config.weight_decay, cautious: self.config.cautious_weight_decay };
        Rule::Adam(Step { lr, beta_1, beta_2, epsilon, amsgrad, decay })
    }

    fn keep<const D: usize>(state: AdamWState<B, D>, _: &B::Device) -> State {
        moments(state.momentum)
    }

    fn give<const D: usize>(state: State) -> AdamWState<B, D> {
        AdamWState::new(momentum(state))
    }
}
