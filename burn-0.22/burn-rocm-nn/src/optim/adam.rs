//! Adam.

use burn::optim::{self, AdamState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::optim::State;

use super::gather::{Gradient, place, update};
use super::{AdamConfig, ModuleOptimizer};
use crate::fuse::{from_rocm, rocm};

/// Adam ([Kingma and Ba 2014](https://arxiv.org/abs/1412.6980)), replaces [`burn::optim::Adam`].
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
        Adam { burn: self.burn().build(), config: self.clone(), clips: false }
    }

    /// An optimizer for a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::fused(Adam { clips: true, ..self.build() }, self.grad_clipping.as_ref())
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
        let (tensor, state) = update(self.config.rule(lr), self.clips, tensor, grad, state);
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
    State { time, tensors, clock: None }
}

/// Converts the fused step's state to Burn's.
pub(super) fn momentum<const D: usize>(state: State) -> AdaptiveMomentumState<D> {
    let time = state.time;
    let mut tensors = state.tensors.into_iter().map(from_rocm);
    let mut moment = || tensors.next().expect("a step gives both moments");
    let (moment_1, moment_2) = (moment(), moment());
    AdaptiveMomentumState { time, moment_1, moment_2, max_moment_2: tensors.next() }
}
