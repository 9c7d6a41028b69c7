//! Gradients from two devices in one step, as Burn's optimizer takes them.

use burn::module::{Module, Param, ParamId};
use burn::nn::Linear;
use burn::optim::{self as theirs, GradientsParams, MultiGradientsParams};
use burn::tensor::{Device, Tensor};
use burn_rocm_nn_022::optim as ours;

use crate::again::again;
use crate::worlds::uniform;

/// Whether this process has two devices. If not, runs the test again in a process that has two, on
/// the CPU provider.
fn has_two_devices(test: &str) -> bool {
    if std::env::var_os("BURN_ROCM_CPU_DEVICES").is_some() {
        return true;
    }
    again(&["--exact", test], &[("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")]);
    false
}

/// Weight and bias of a tag.
fn drawn(tag: u64, device: &Device) -> (Tensor<2>, Tensor<1>) {
    let floats = |tag, count| uniform(tag, count).into_iter().map(|x| x as f32).collect::<Vec<_>>();
    let weight = Tensor::<1>::from_floats(floats(2 * tag, 6).as_slice(), device).reshape([3, 2]);
    (weight, Tensor::from_floats(floats(2 * tag + 1, 2).as_slice(), device))
}

fn gradients(tag: u64, device: &Device) -> GradientsParams {
    let (weight, bias) = drawn(tag, device);
    let mut grads = GradientsParams::new();
    grads.register(ParamId::from(1), weight);
    grads.register(ParamId::from(2), bias);
    grads
}

/// Takes steps with gradients from two devices, then one with gradients from a single device, with
/// the parameters where they are then.
macro_rules! trained {
    ($api:ident, $devices:ident) => {{
        let mut optimizer = $api::AdamWConfig::new().with_weight_decay(0.1).init();
        let (weight, bias) = drawn(0, &$devices[0].clone().autodiff());
        let mut layer = Linear {
            weight: Param::initialized(ParamId::from(1), weight.require_grad()),
            bias: Some(Param::initialized(ParamId::from(2), bias.require_grad())),
        };
        for step in 0..3 {
            let of = |k: usize| (gradients(1 + 2 * step + k as u64, &$devices[k]), $devices[k].clone());
            layer = optimizer.step_multi(0.01, layer, MultiGradientsParams { grads: vec![of(0), of(1)] });
        }
        let between = layer.devices();
        let layer = optimizer.step(0.01, layer, gradients(9, &$devices[0]));
        let numbers = [layer.weight.val().into_data(), layer.bias.as_ref().unwrap().val().into_data()];
        let numbers: Vec<f64> =
            numbers.iter().flat_map(|data| data.iter::<f64>().collect::<Vec<_>>()).collect();
        (between, layer.devices(), numbers)
    }};
}

#[test]
fn a_step_by_gradients_of_two_devices() {
    if !has_two_devices("devices::a_step_by_gradients_of_two_devices") {
        return;
    }
    let devices = [Device::rocm(0), Device::rocm(1)];
    let (expected, found) = (trained!(theirs, devices), trained!(ours, devices));
    assert_eq!((found.0, found.1), (expected.0, expected.1), "the parameters' devices");
    assert_eq!(found.2.len(), 8, "a weight of 3 x 2 and its bias");
    assert_eq!(expected.2.len(), 8);
    for (a, b) in found.2.iter().zip(&expected.2) {
        // Each of 4 steps rounds an update of at most 8 times the rate 16 times, and a parameter
        // below 4 once.
        let limit = 4.0 * (16.0 * 8.0 * 0.01 + 4.0) * 2f64.powi(-24);
        assert!((a - b).abs() <= limit, "{a}, expected {b} within {limit:.1e}");
    }
}
