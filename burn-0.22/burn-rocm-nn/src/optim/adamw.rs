//! Adam with decoupled weight decay.

use burn::optim::{self, AdamWState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::optim::State;

use super::adam::{moments, momentum};
use super::gather::{Gradient, place, update};
use super::{AdamWConfig, ModuleOptimizer};

/// Adam with decoupled weight decay ([Loshchilov and Hutter
/// 2017](https://arxiv.org/abs/1711.05101)), replaces [`burn::optim::AdamW`].
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
        AdamW { burn: self.burn().build(), config: self.clone(), clips: false }
    }

    /// An optimizer for a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::fused(AdamW { clips: true, ..self.build() }, self.grad_clipping.as_ref())
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
        let (tensor, state) = update(self.config.rule(lr), self.clips, tensor, grad, state);
        (tensor, Some(AdamWState::new(momentum(state))))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        optim::AdamW::to_device(state, device)
    }
}
