//! Optimizer steps without forward and backward pass, over the parameters of the training rows'
//! models.

use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{self, GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn_rocm::RocmDevice;
use burn_rocm_nn::optim as fused;

use super::{B, Case};
use crate::gpu::models::{Trained, fill, stock};

/// Gradients for a module: the values of a second module of the same kind, in memory of their own.
struct Gradients(GradientsParams);

impl ModuleVisitor<B> for Gradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad() {
            self.0.register(param.id, param.val().inner());
        }
    }
}

struct Copies;

impl ModuleMapper<B> for Copies {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let grad = param.is_require_grad();
        param.map(|tensor| Tensor::from_inner(tensor.inner() * 0.5).set_require_grad(grad))
    }
}

/// A closure that takes one step of `optimizer` at each call.
fn stepping<M>(mut optimizer: impl Optimizer<M, B> + 'static, device: &RocmDevice) -> Box<dyn FnMut()>
where
    M: Trained<B> + AutodiffModule<B> + 'static,
{
    let mut model = Some(fill::<B, M>(M::new(device)));
    let values = model.as_ref().map(|model| model.clone().map(&mut Copies));
    Box::new(move || {
        let mut gradients = Gradients(GradientsParams::new());
        if let Some(values) = &values {
            values.visit(&mut gradients);
        }
        model = model.take().map(|model| optimizer.step(1e-4, model, gradients.0));
    })
}

fn of_model<M: Trained<B> + AutodiffModule<B> + 'static>(model: &str) -> Vec<Case> {
    let momentum = || Some(MomentumConfig::new());
    vec![
        Case::new(format!("Adam, parameters of {model}"), |device| {
            [
                stepping::<M>(optim::AdamConfig::new().init(), device),
                stepping::<M>(fused::AdamConfig::new().init(), device),
            ]
        }),
        Case::new(format!("AdamW, parameters of {model}"), |device| {
            [
                stepping::<M>(optim::AdamWConfig::new().init(), device),
                stepping::<M>(fused::AdamWConfig::new().init(), device),
            ]
        }),
        Case::new(format!("SGD with momentum, parameters of {model}"), move |device| {
            [
                stepping::<M>(optim::SgdConfig::new().with_momentum(momentum()).init(), device),
                stepping::<M>(fused::SgdConfig::new().with_momentum(momentum()).init(), device),
            ]
        }),
    ]
}

pub(super) fn cases(is_gpu: bool) -> Vec<Case> {
    let mut all = of_model::<stock::Mlp<B>>("the MLP");
    all.extend(of_model::<stock::ResNet18<B>>("ResNet-18"));
    if is_gpu {
        all.extend(of_model::<stock::Transformer<B>>("the transformer"));
    }
    all
}
