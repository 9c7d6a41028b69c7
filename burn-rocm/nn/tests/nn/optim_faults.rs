//! A step that fails leaves the optimizer unchanged.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::optim::{AdamConfig, SgdConfig};
use burn_rocm_tests::assert_close;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::*;

type Inner = <Ours as AutodiffBackend>::InnerBackend;

/// Gradients of a layer's weight, and of its bias if that has `outputs` elements.
fn gradients(random: &Random, layer: &Linear<Ours>, outputs: usize) -> GradientsParams {
    let mut grads = GradientsParams::new();
    let [weight, bias] =
        [uniform(random, &[3, 2]), uniform(random, &[outputs])].map(|data| data.convert::<f32>());
    grads.register(layer.weight.id, Tensor::<Inner, 2>::from_data(weight, &Default::default()));
    let bias = Tensor::<Inner, 1>::from_data(bias, &Default::default());
    grads.register(layer.bias.as_ref().unwrap().id, bias);
    grads
}

/// The weight is gathered before the bias, whose gradient has the wrong shape.
#[test]
fn a_step_that_fails_leaves_the_moments_as_they_were() {
    macro_rules! check {
        ($op:literal, $config:expr, $before:expr) => {{
            let random = Random::new();
            let layer = LinearConfig::new(3, 2).init::<Ours>(&Default::default());
            layer.num_params(); // initialises: a clone of an uninitialised module would draw other numbers
            let steps: Vec<[TensorData; 2]> =
                (0..6).map(|_| [uniform(&random, &[3, 2]), uniform(&random, &[2])]).collect();
            let run = |fail: bool| {
                let mut optimizer = $config.init::<Ours, Linear<Ours>>();
                let mut layer = layer.clone();
                for (step, [weight, bias]) in steps.iter().enumerate() {
                    if fail && step == $before {
                        let bad = gradients(&random, &layer, 5);
                        catch_unwind(AssertUnwindSafe(|| optimizer.step(0.1, layer.clone(), bad)))
                            .expect_err("the bias has two elements");
                        match take_last_error() {
                            Some(RocmError::Invalid { op, .. }) => assert_eq!(op, $op),
                            other => panic!("{other:?}"),
                        }
                    }
                    let mut grads = GradientsParams::new();
                    let [weight, bias] = [weight, bias].map(|data| data.clone().convert::<f32>());
                    grads.register(
                        layer.weight.id,
                        Tensor::<Inner, 2>::from_data(weight, &Default::default()),
                    );
                    let bias = Tensor::<Inner, 1>::from_data(bias, &Default::default());
                    grads.register(layer.bias.as_ref().unwrap().id, bias);
                    layer = optimizer.step(0.1, layer, grads);
                }
                [layer.weight.val().into_data(), layer.bias.unwrap().val().into_data()]
            };
            let what = format!("{} after a failure before step {}", $op, $before);
            assert_close(&what, &run(true), &run(false), Tolerance::EXACT);
        }};
    }
    let momentum = || Some(burn::optim::momentum::MomentumConfig::new());
    for before in [0, 1, 3] {
        check!("adam", AdamConfig::new().with_amsgrad(true), before);
        check!("sgd", SgdConfig::new().with_momentum(momentum()), before);
    }
}

#[derive(Module, Debug)]
struct Deep<B: Backend> {
    param: Param<Tensor<B, 9>>,
}

#[test]
fn a_record_of_more_axes_than_burns_is_a_typed_error() {
    let x = Tensor::<Ours, 9>::ones([1, 2, 1, 1, 1, 1, 1, 1, 3], &Default::default()).require_grad();
    let module = Deep { param: Param::from_tensor(x) };
    let mut optimizer = AdamConfig::new().init::<Ours, Deep<Ours>>();
    let grads = GradientsParams::from_grads(module.param.val().sum().backward(), &module);
    let stepped = optimizer.step(0.5, module, grads);
    assert!(stepped.param.val().into_data().iter::<f32>().all(|value| (value - 0.5).abs() < 1e-3));
    catch_unwind(AssertUnwindSafe(|| drop(optimizer.to_record()))).expect_err("records end at rank 8");
    assert!(matches!(take_last_error(), Some(RocmError::Invalid { op: "optimizer record", .. })));
}
