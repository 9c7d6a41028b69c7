//! The configurations of the optimizers, and their rules. Both versions of Burn compile this file.

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn_rocm::fused::optim::{Adam, Decay, Momentum, Rule, Sgd};

/// Configuration of [`Adam`](super::Adam), like [`burn::optim::AdamConfig`].
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
    pub(super) grad_clipping: Option<GradientClippingConfig>,
}

impl AdamConfig {
    /// Burn's configuration, without clipping.
    pub(super) fn burn(&self) -> optim::AdamConfig {
        optim::AdamConfig::new()
            .with_beta_1(self.beta_1)
            .with_beta_2(self.beta_2)
            .with_epsilon(self.epsilon)
            .with_amsgrad(self.amsgrad)
            .with_weight_decay(self.weight_decay.clone())
    }

    /// The fused step.
    pub(super) fn rule(&self, lr: f64) -> Rule {
        let Self { beta_1, beta_2, epsilon, amsgrad, .. } = *self;
        let decay = Decay::Penalty(penalty(self.weight_decay.as_ref()));
        Rule::Adam(Adam { lr, beta_1, beta_2, epsilon, amsgrad, decay })
    }
}

/// Configuration of [`AdamW`](super::AdamW), like [`burn::optim::AdamWConfig`].
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
    /// The decay rate: each step subtracts `lr * weight_decay` times the parameter from it.
    #[config(default = 1e-4)]
    weight_decay: f32,
    /// Whether only elements decay that have the sign of their first moment
    /// (["Cautious Weight Decay", 2025](https://arxiv.org/abs/2510.12402)).
    #[config(default = false)]
    cautious_weight_decay: bool,
    /// Whether to divide by the largest second moment so far.
    #[config(default = false)]
    amsgrad: bool,
    /// How gradients are clipped before the step.
    pub(super) grad_clipping: Option<GradientClippingConfig>,
}

impl AdamWConfig {
    /// Burn's configuration, without clipping.
    pub(super) fn burn(&self) -> optim::AdamWConfig {
        optim::AdamWConfig::new()
            .with_beta_1(self.beta_1)
            .with_beta_2(self.beta_2)
            .with_epsilon(self.epsilon)
            .with_weight_decay(self.weight_decay)
            .with_cautious_weight_decay(self.cautious_weight_decay)
            .with_amsgrad(self.amsgrad)
    }

    /// The fused step.
    pub(super) fn rule(&self, lr: f64) -> Rule {
        let Self { beta_1, beta_2, epsilon, amsgrad, .. } = *self;
        let decay = Decay::Decoupled { rate: self.weight_decay, cautious: self.cautious_weight_decay };
        Rule::Adam(Adam { lr, beta_1, beta_2, epsilon, amsgrad, decay })
    }
}

/// Configuration of [`Sgd`](super::Sgd), like [`burn::optim::SgdConfig`].
#[derive(Config, Debug)]
pub struct SgdConfig {
    /// An L2 penalty.
    weight_decay: Option<WeightDecayConfig>,
    /// The momentum, if any.
    momentum: Option<MomentumConfig>,
    /// How gradients are clipped before the step.
    pub(super) gradient_clipping: Option<GradientClippingConfig>,
}

impl SgdConfig {
    /// Burn's configuration, without clipping.
    pub(super) fn burn(&self) -> optim::SgdConfig {
        optim::SgdConfig::new()
            .with_weight_decay(self.weight_decay.clone())
            .with_momentum(self.momentum.clone())
    }

    /// The fused step. Burn rounds the momentum to the float type that `rounded` rounds to.
    pub(super) fn rule(&self, lr: f64, rounded: impl Fn(f64) -> f64) -> Rule {
        let momentum = self.momentum.as_ref().map(|config| Momentum {
            momentum: rounded(config.momentum),
            dampening: config.dampening,
            nesterov: config.nesterov,
        });
        Rule::Sgd(Sgd { lr, penalty: penalty(self.weight_decay.as_ref()), momentum })
    }
}

/// The configuration of an optimizer whose step ranks divide among themselves
/// ([`ShardedOptimizer`](crate::parallel::ShardedOptimizer)).
#[derive(Clone, Debug)]
pub enum OptimizerConfig {
    /// Adam.
    Adam(AdamConfig),
    /// AdamW.
    AdamW(AdamWConfig),
    /// Stochastic gradient descent.
    Sgd(SgdConfig),
}

impl OptimizerConfig {
    /// The step at this learning rate.
    pub(crate) fn rule(&self, lr: f64) -> Rule {
        match self {
            Self::Adam(config) => config.rule(lr),
            Self::AdamW(config) => config.rule(lr),
            // The kernel rounds the momentum to the type in which it computes.
            Self::Sgd(config) => config.rule(lr, |momentum| momentum),
        }
    }

    /// How gradients are clipped.
    pub(crate) fn clipping(&self) -> Option<&GradientClippingConfig> {
        match self {
            Self::Adam(config) => config.grad_clipping.as_ref(),
            Self::AdamW(config) => config.grad_clipping.as_ref(),
            Self::Sgd(config) => config.gradient_clipping.as_ref(),
        }
    }
}

impl From<AdamConfig> for OptimizerConfig {
    fn from(config: AdamConfig) -> Self {
        Self::Adam(config)
    }
}

impl From<AdamWConfig> for OptimizerConfig {
    fn from(config: AdamWConfig) -> Self {
        Self::AdamW(config)
    }
}

impl From<SgdConfig> for OptimizerConfig {
    fn from(config: SgdConfig) -> Self {
        Self::Sgd(config)
    }
}

fn penalty(decay: Option<&WeightDecayConfig>) -> f32 {
    decay.map_or(0.0, |decay| decay.penalty)
}
