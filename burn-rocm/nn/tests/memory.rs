//! Memory that a step takes: one test in a program of its own, because the pool is the device's.
#![allow(missing_docs, clippy::unwrap_used)]

use burn::backend::Autodiff;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn_rocm::Rocm;
use burn_rocm_nn::optim::AdamConfig;

type B = Autodiff<Rocm>;

#[test]
fn a_step_is_taken_in_place() {
    const SIDE: usize = 512;
    let bytes = 4 * SIDE * (SIDE + 1);
    let device = Default::default();
    let pool = hip::Device::get(0).unwrap();
    let gradients = |layer: &Linear<B>| {
        let loss = layer.forward(Tensor::<B, 2>::ones([4, SIDE], &device)).mean();
        GradientsParams::from_grads(loss.backward(), layer)
    };
    let mut optimizer = AdamConfig::new().init();
    let mut layer = LinearConfig::new(SIDE, SIDE).init::<B>(&device);
    let grads = gradients(&layer);
    layer = optimizer.step(1e-3, layer, grads);

    // Alone: parameters and both moments where they are.
    let grads = gradients(&layer);
    pool.pool().reset_peak();
    let before = pool.pool().stats().allocated;
    layer = optimizer.step(1e-3, layer, grads);
    assert_eq!(pool.pool().stats().peak, before);

    // With a clone and a record that are kept: new tensors in the place of all three.
    let kept = (layer.clone(), optimizer.to_record());
    let grads = gradients(&layer);
    pool.pool().reset_peak();
    let before = pool.pool().stats().allocated;
    layer = optimizer.step(1e-3, layer, grads);
    let grown = pool.pool().stats().peak - before;
    assert!((3 * bytes..4 * bytes).contains(&grown), "{grown} bytes for parameters of {bytes}");
    drop((kept, layer));
}
