//! Gradients from two devices in one step, as Burn's optimizer takes them.

use burn::module::{Module, Param, ParamId};
use burn::nn::Linear;
use burn::optim::{GradientsParams, MultiGradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn_backend::DeviceOps;
use burn_rocm::RocmDevice;
use burn_rocm_tests::{again, assert_close};

use crate::support::*;

type Inner = <Ours as AutodiffBackend>::InnerBackend;

/// Whether this process has two devices. If not, the test starts one that has two, on the CPU
/// provider.
fn has_two_devices(test: &str) -> bool {
    if std::env::var_os("BURN_ROCM_CPU_DEVICES").is_some() {
        return true;
    }
    let environment = [("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")];
    let text = again(&["--exact", test], &environment);
    assert!(text.contains("1 passed"), "{test}: {text}");
    false
}

#[test]
fn a_step_by_gradients_of_two_devices() {
    if !has_two_devices("optim_devices::a_step_by_gradients_of_two_devices") {
        return;
    }
    let random = Random::new();
    let devices = [RocmDevice::new(0), RocmDevice::new(1)];
    let draw = || [uniform(&random, &[3, 2]), uniform(&random, &[2])].map(|data| data.convert::<f32>());
    let start = draw();
    let last = draw();
    // For each step, the gradients on each device.
    let steps: Vec<[[TensorData; 2]; 2]> = (0..3).map(|_| [draw(), draw()]).collect();
    macro_rules! run {
        ($api:path) => {{
            use $api as api;
            let mut optimizer = api::AdamWConfig::new().with_weight_decay(0.1).init::<Ours, Linear<Ours>>();
            let [weight, bias] = start.clone();
            let mut layer = Linear::<Ours> {
                weight: Param::initialized(
                    ParamId::from(1),
                    Tensor::from_data(weight, &devices[0]).require_grad(),
                ),
                bias: Some(Param::initialized(
                    ParamId::from(2),
                    Tensor::from_data(bias, &devices[0]).require_grad(),
                )),
            };
            for step in &steps {
                let mut all = MultiGradientsParams::default();
                for (device, [weight, bias]) in devices.iter().zip(step.clone()) {
                    let mut grads = GradientsParams::new();
                    grads.register(ParamId::from(1), Tensor::<Inner, 2>::from_data(weight, device));
                    grads.register(ParamId::from(2), Tensor::<Inner, 1>::from_data(bias, device));
                    all.grads.push((grads, device.id()));
                }
                layer = optimizer.step_multi(0.01, layer, all);
            }
            // Another step on one device, wherever the parameters are now.
            let mut grads = GradientsParams::new();
            let [weight, bias] = last.clone();
            grads.register(ParamId::from(1), Tensor::<Inner, 2>::from_data(weight, &devices[0]));
            grads.register(ParamId::from(2), Tensor::<Inner, 1>::from_data(bias, &devices[0]));
            let after: Vec<RocmDevice> = layer.devices();
            let layer = optimizer.step(0.01, layer, grads);
            let data = [layer.weight.val().into_data(), layer.bias.as_ref().unwrap().val().into_data()];
            (after, layer.devices(), data)
        }};
    }
    let (theirs, ours) = (run!(burn::optim), run!(burn_rocm_nn::optim));
    assert_eq!(theirs.0.len(), 2, "each parameter is where its gradients were joined");
    assert_eq!((ours.0, ours.1), (theirs.0, theirs.1));
    assert_close(&"two devices", &ours.2, &theirs.2, Tolerance { absolute: 1e-6, relative: 1e-5 });
}
