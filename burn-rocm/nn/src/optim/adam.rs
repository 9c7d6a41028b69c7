use burn::module::AutodiffModule;
use burn::optim::{self, AdamState, AdaptiveMomentumState};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::fused::optim::{Rule, State};
use burn_rocm::raise;

use super::adaptor::OptimizerAdaptor;
use super::{AdamConfig, Rules};
use crate::fuse::{from_rocm, rocm};

/// Adam ([Kingma and Ba 2014](https://arxiv.org/abs/1412.6980)), replaces [`burn::optim::Adam`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::backend::Autodiff;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::{GradientsParams, Optimizer};
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::optim::AdamConfig;
///
/// type B = Autodiff<Rocm>;
/// let model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = AdamConfig::new().init();
/// let loss = model.forward(Tensor::<B, 2>::ones([3, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optimizer.step(1e-3, model, grads);
/// assert_eq!(model.weight.dims(), [4, 2]);
/// ```
#[derive(Clone)]
pub struct Adam {
    burn: optim::Adam,
    config: AdamConfig,
}

impl AdamConfig {
    /// The optimizer's update rule.
    pub fn build(&self) -> Adam {
        Adam { burn: self.burn().build(), config: self.clone() }
    }

    /// An optimizer for a module.
    pub fn init<B: AutodiffBackend, M: AutodiffModule<B>>(&self) -> OptimizerAdaptor<Adam, M, B> {
        OptimizerAdaptor::clipped(self.build(), self.grad_clipping.as_ref())
    }
}

impl<B: Backend> Rules<B> for Adam {
    const NAME: &'static str = "Adam";

    type Burn = optim::Adam;

    fn burn(&self) -> optim::Adam {
        self.burn.clone()
    }

    fn rule(&self, lr: f64) -> Rule {
        self.config.rule(lr)
    }

    fn keep<const D: usize>(state: AdamState<B, D>, _: &B::Device) -> State {
        moments(state.momentum)
    }

    fn give<const D: usize>(state: State) -> AdamState<B, D> {
        AdamState::new(momentum(state))
    }
}

/// Converts Burn's state to this crate's.
pub(super) fn moments<B: Backend, const D: usize>(state: AdaptiveMomentumState<B, D>) -> State {
    let AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2 } = state;
    let tensors = [Some(moment_1), Some(moment_2), max_moment_2].into_iter().flatten().map(rocm).collect();
    State { time, tensors, clock: None }
}

/// Converts this crate's state to Burn's.
pub(super) fn momentum<B: Backend, const D: usize>(state: State) -> AdaptiveMomentumState<B, D> {
    let time = state.steps().unwrap_or_else(|error| raise(error));
    let mut tensors = state.tensors.into_iter().map(from_rocm);
    let mut moment = || tensors.next().expect("a step gives both moments");
    let (moment_1, moment_2) = (moment(), moment());
    AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2: tensors.next() }
}
