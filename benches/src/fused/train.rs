//! Training steps of the models of stock modules and of this project's, with the optimizer of each.

use burn::module::AutodiffModule;
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn_rocm::RocmDevice;

use super::{B, Case};
use crate::Options;
use crate::gpu::models::{Trained, fill, fused, stock};

/// A step, again and again: each call is one.
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

/// Both trainers of a model.
macro_rules! both {
    ($Model:ident, $size:expr, $device:expr) => {
        [
            trainer::<stock::$Model<B>>(AdamConfig::new().init(), $size, $device),
            trainer::<fused::$Model<B>>(burn_rocm_nn::optim::AdamConfig::new().init(), $size, $device),
        ]
    };
}
pub(super) use both;

pub(super) fn cases(options: &Options, is_gpu: bool) -> Vec<Case> {
    let small = !is_gpu || options.shrink > 1;
    let sizes: &[usize] = if small { &[64] } else { &[64, 512, 4096] };
    let mut all = Vec::new();
    for &size in sizes {
        all.push(Case::new(format!("MLP Adam step, batch {size}"), move |device| both!(Mlp, size, device)));
    }
    for &size in sizes {
        all.push(Case::new(format!("CNN Adam step, batch {size}"), move |device| both!(Cnn, size, device)));
    }
    let (images, sequences) = if small { (1, 1) } else { (64, 16) };
    all.push(Case::new(format!("ResNet-18 Adam step, batch {images}"), move |device| {
        both!(ResNet18, images, device)
    }));
    all.push(Case::new(format!("transformer Adam step, batch {sequences}"), move |device| {
        both!(Transformer, sequences, device)
    }));
    all
}
