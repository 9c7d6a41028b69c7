//! Stochastic gradient descent.

use burn::optim::momentum::MomentumState;
use burn::optim::{self, LearningRate, Optimizer, RecordState, StateSink, StateSource, join_path};
use burn::tensor::{Device, Tensor};
use burn_rocm::fused::optim::State;

use super::gather::{Gradient, place, update};
use super::{ModuleOptimizer, SgdConfig};
use crate::fuse::{from_rocm, on_rocm, rocm};

/// Stochastic gradient descent, with or without momentum. Replaces [`burn::optim::Sgd`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::nn::LinearConfig;
/// # use burn::optim::GradientsParams;
/// # use burn_rocm_nn_022 as burn_rocm_nn;
/// use burn_rocm_nn::optim::SgdConfig;
///
/// let device = burn::tensor::Device::rocm(0).autodiff();
/// let model = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = SgdConfig::new().init();
/// let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optimizer.step(1e-3, model, grads);
/// assert_eq!(model.weight.dims(), [4, 2]);
/// ```
#[derive(Clone)]
pub struct Sgd {
    burn: optim::Sgd,
    config: SgdConfig,
    /// Whether the fused step clips the gradients, rather than the optimizer.
    clips: bool,
}

/// The state of [`Sgd`], whose record is that of [`burn::optim::SgdState`]. This type is needed
/// because other crates can't read the velocity in Burn's state.
#[derive(Clone)]
pub enum SgdState<const D: usize> {
    /// The velocity of a parameter on this project's device, if there is momentum.
    Fused(Option<Tensor<D>>),
    /// The state of a parameter on another device.
    Burn(optim::SgdState<D>),
}

impl SgdConfig {
    /// The optimizer's update rule.
    pub fn build(&self) -> Sgd {
        Sgd { burn: self.burn().build(), config: self.clone(), clips: false }
    }

    /// An optimizer for a module.
    pub fn init(&self) -> ModuleOptimizer {
        ModuleOptimizer::fused(Sgd { clips: true, ..self.build() }, self.gradient_clipping.as_ref())
    }
}

impl Optimizer for Sgd {
    type State<const D: usize> = SgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<SgdState<D>>,
    ) -> (Tensor<D>, Option<SgdState<D>>) {
        let grad = match place("Sgd", self.clips, &tensor, grad) {
            Gradient::Elsewhere(grad) => {
                let (tensor, state) = self.burn.step(lr, tensor, grad, state.map(SgdState::burn));
                return (tensor, state.map(SgdState::Burn));
            }
            Gradient::Here(grad) => grad,
        };
        let velocity = state.and_then(|state| state.velocity(&tensor.device()));
        let state = State { tensors: velocity.map(rocm).into_iter().collect(), ..State::default() };
        // As in Burn, rounded to f32.
        let rule = self.config.rule(lr, |momentum| f64::from(momentum as f32));
        let (tensor, state) = update(rule, self.clips, tensor, grad, state);
        (tensor, Some(SgdState::Fused(state.tensors.into_iter().next().map(from_rocm))))
    }

    fn to_device<const D: usize>(state: SgdState<D>, device: &Device) -> SgdState<D> {
        match (on_rocm(device), state) {
            (true, SgdState::Fused(velocity)) => {
                SgdState::Fused(velocity.map(|velocity| velocity.to_device(device)))
            }
            (true, state) => SgdState::Fused(state.velocity(device)),
            (false, state) => SgdState::Burn(optim::Sgd::to_device(state.burn(), device)),
        }
    }
}

/// The names in the record: `momentum.velocity`.
const MOMENTUM: &str = "momentum";
const VELOCITY: &str = "velocity";

impl<const D: usize> SgdState<D> {
    fn burn(self) -> optim::SgdState<D> {
        match self {
            Self::Fused(velocity) => optim::SgdState::new(velocity.map(MomentumState::new)),
            Self::Burn(state) => state,
        }
    }

    /// The velocity. Burn's state exposes it only in its record, so the velocity is copied through
    /// the host.
    fn velocity(self, device: &Device) -> Option<Tensor<D>> {
        match self {
            Self::Fused(velocity) => velocity,
            Self::Burn(state) => {
                let mut sink = StateSink::default();
                state.state_flatten("", &mut sink);
                let velocity = sink.tensors.into_iter().next()?.1;
                let dtype = velocity.dtype();
                Some(Tensor::from_data(velocity, (device, dtype)))
            }
        }
    }
}

impl<const D: usize> RecordState for SgdState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        match self {
            Self::Fused(Some(velocity)) => {
                out.push_tensor(&join_path(prefix, MOMENTUM), VELOCITY, velocity.to_data());
            }
            Self::Fused(None) => {}
            Self::Burn(state) => state.state_flatten(prefix, out),
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = src.take_tensor(&join_path(prefix, MOMENTUM), VELOCITY).map(|velocity| {
            let dtype = velocity.dtype();
            Tensor::from_data(velocity, (device, dtype))
        });
        Some(Self::Fused(velocity))
    }
}
