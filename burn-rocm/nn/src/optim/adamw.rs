use burn::module::AutodiffModule;
use burn::optim::{self, AdamWState};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::optim::{Rule, State};

use super::adam::{moments, momentum};
use super::adaptor::OptimizerAdaptor;
use super::{AdamWConfig, Rules};

/// Adam with decoupled weight decay ([Loshchilov and Hutter
/// 2017](https://arxiv.org/abs/1711.05101)), replaces [`burn::optim::AdamW`].
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
#[derive(Clone)]
pub struct AdamW {
    burn: optim::AdamW,
    config: AdamWConfig,
}

impl AdamWConfig {
    /// The optimizer's update rule.
    pub fn build(&self) -> AdamW {
        AdamW { burn: self.burn().build(), config: self.clone() }
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
        self.config.rule(lr)
    }

    fn keep<const D: usize>(state: AdamWState<B, D>, _: &B::Device) -> State {
        moments(state.momentum)
    }

    fn give<const D: usize>(state: State) -> AdamWState<B, D> {
        AdamWState::new(momentum(state))
    }
}
