use burn::module::AutodiffModule;
use burn::optim::momentum::MomentumState;
use burn::optim::{self, SgdState};
use burn::record::{DoublePrecisionSettings, Record};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion, Tensor};
use burn_rocm::fused::optim::{Rule, State};

use super::adaptor::OptimizerAdaptor;
use super::{Rules, SgdConfig};
use crate::fuse::{from_rocm, rocm};

/// Stochastic gradient descent, with or without momentum. Replaces [`burn::optim::Sgd`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use burn::backend::Autodiff;
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::{GradientsParams, Optimizer};
/// # use burn_rocm::Rocm;
/// # let device = Default::default();
/// use burn_rocm_nn::optim::SgdConfig;
///
/// type B = Autodiff<Rocm>;
/// let model: Linear<B> = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = SgdConfig::new().init();
/// let loss = model.forward(Tensor::<B, 2>::ones([3, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model = optimizer.step(1e-3, model, grads);
/// assert_eq!(model.weight.dims(), [4, 2]);
/// ```
#[derive(Clone)]
pub struct Sgd<B: Backend> {
    burn: optim::Sgd<B>,
    config: SgdConfig,
}

impl SgdConfig {
    /// The optimizer's update rule.
    pub fn build<B: Backend>(&self) -> Sgd<B> {
        Sgd { burn: self.burn().build(), config: self.clone() }
    }

    /// An optimizer for a module.
    pub fn init<B: AutodiffBackend, M: AutodiffModule<B>>(
        &self,
    ) -> OptimizerAdaptor<Sgd<B::InnerBackend>, M, B> {
        OptimizerAdaptor::clipped(self.build(), self.gradient_clipping.as_ref())
    }
}

impl<B: Backend> Rules<B> for Sgd<B> {
    const NAME: &'static str = "Sgd";

    type Burn = optim::Sgd<B>;

    fn burn(&self) -> optim::Sgd<B> {
        self.burn.clone()
    }

    fn rule(&self, lr: f64) -> Rule {
        // As in Burn, rounded to the backend's float type.
        self.config.rule(lr, |momentum| momentum.elem::<B::FloatElem>().elem())
    }

    fn keep<const D: usize>(state: SgdState<B, D>, device: &B::Device) -> State {
        let tensors = state.momentum.map(|state| rocm(velocity(state, device))).into_iter().collect();
        State { tensors, ..State::default() }
    }

    fn give<const D: usize>(state: State) -> SgdState<B, D> {
        SgdState::new(
            state.tensors.into_iter().next().map(|velocity| MomentumState::new(from_rocm(velocity))),
        )
    }
}

/// The velocity of Burn's state. Burn exposes it only through the state's record, so the velocity
/// is copied through the host, once for each loaded record.
fn velocity<B: Backend, const D: usize>(state: MomentumState<B, D>, device: &B::Device) -> Tensor<B, D> {
    let item = Record::<B>::into_item::<DoublePrecisionSettings>(state);
    Record::<B>::from_item::<DoublePrecisionSettings>(item.velocity, device)
}
