//! Training steps of the models with Burn's modules and optimizer, and with this project's.

use burn::module::AutodiffModule;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn_rocm::RocmDevice;

use super::{B, Case};
use crate::gpu::models::{Trained, fill, fused, stock};

/// A closure that takes one training step at each call.
pub(super) fn trainer<M>(
    mut optimizer: impl Optimizer<M, B> + 'static,
    size: usize,
    device: &RocmDevice,
) -> Box<dyn FnMut()>
where
    M: Trained<B> + AutodiffModule<B> + 'static,
    M::Batch: 'static,
{
    let batch = M::batch(size, device);
    let mut state = Some(fill::<B, M>(M::new(device)));
    Box::new(move || {
        let Some(model) = state.take() else { return };
        let gradients = GradientsParams::from_grads(model.loss(batch.clone()).backward(), &model);
        state = Some(optimizer.step(1e-3, model, gradients));
    })
}

/// A model's two trainers: with stock and with fused modules.
macro_rules! both {
    ($Model:ident, $size:expr, $device:expr) => {
        [
            trainer::<stock::$Model<B>>(AdamConfig::new().init(), $size, $device),
            trainer::<fused::$Model<B>>(burn_rocm_nn::optim::AdamConfig::new().init(), $size, $device),
        ]
    };
}
pub(super) use both;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("MLP Adam step, batch 64", |device| both!(Mlp, 64, device)),
        Case::new("CNN Adam step, batch 64", |device| both!(Cnn, 64, device)),
        Case::new("ResNet-18 Adam step, batch 1", |device| both!(ResNet18, 1, device)),
        Case::new("transformer Adam step, batch 1", |device| both!(Transformer, 1, device)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The losses before each of 50 steps.
    fn losses<M>(mut optimizer: impl Optimizer<M, B>, size: usize) -> Vec<f64>
    where
        M: Trained<B> + AutodiffModule<B>,
    {
        let device = RocmDevice::default();
        let batch = M::batch(size, &device);
        let mut model = fill::<B, M>(M::new(&device));
        let mut step = |_| {
            let loss = model.loss(batch.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            // The learning rate of the peers' training. At larger rates even f32 and f64 diverge
            // from each other.
            model = optimizer.step(1e-4, model.clone(), gradients);
            loss.into_scalar().into()
        };
        (0..50).map(&mut step).collect()
    }

    macro_rules! agree {
        ($Model:ident, $size:expr) => {
            let composed = losses::<stock::$Model<B>>(AdamConfig::new().init(), $size);
            let fused = losses::<fused::$Model<B>>(burn_rocm_nn::optim::AdamConfig::new().init(), $size);
            assert!(composed[49] < 0.9 * composed[0], "nothing was learnt: {composed:?}");
            for (step, (a, b)) in composed.iter().zip(&fused).enumerate() {
                let near = (a - b).abs() <= 1e-4 * a.abs().max(1.0);
                assert!(near, "{} before step {step}: {a} composed and {b} fused", stringify!($Model));
            }
        };
    }

    #[test]
    fn fused_modules_train_as_burns_do() {
        agree!(Mlp, 16);
        agree!(Cnn, 16);
    }
}
