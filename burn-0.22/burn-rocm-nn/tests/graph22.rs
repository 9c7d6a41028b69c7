//! Training steps replayed from graphs with Burn 0.22, compared bit by bit with the same steps run
//! one by one.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../../burn-rocm/nn/tests/shared/holders.rs"]
mod holders;
#[path = "../../../burn-rocm/nn/tests/shared/replays.rs"]
mod replays;
#[path = "../../../burn-rocm/nn/tests/shared/small.rs"]
mod small;
mod world;

use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmError};
use burn_rocm_nn_022::graph;
use burn_rocm_nn_022::optim::AdamConfig;

use replays::alone;
use small::batch;
use world::{bits, seed, tracking};

/// The bits of a layer that Adam has trained. `take` takes the steps.
fn train(take: impl FnOnce(&mut dyn FnMut() -> Tensor<1>)) -> Vec<Vec<u32>> {
    seed(5);
    let mut model = Some(LinearConfig::new(36, 3).init(&tracking()));
    let mut optimizer = AdamConfig::new().init();
    let x: Tensor<2> = batch(0).images.flatten(1, 2);
    take(&mut || {
        let before: Linear = model.take().unwrap();
        let loss = before.forward(x.clone()).powf_scalar(2.0).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimizer.step(0.02, before, grads));
        loss.inner()
    });
    bits(&model.unwrap())
}

/// Burn 0.22 counts Adam's steps on the host. A graph's own clock is found again by its other
/// steps, by other graphs and by steps that are not replayed.
#[test]
fn every_step_advances_one_clock() {
    let _alone = alone();
    let replayed = train(|step| {
        step();
        let capture =
            |steps: &mut dyn FnMut()| Graph::capture_after(&RocmDevice::new(0), 0, steps).unwrap().0;
        let two = capture(&mut || (0..2).for_each(|_| drop(step())));
        two.replay().unwrap();
        let one = capture(&mut || drop(step()));
        one.replay().unwrap();
        step();
        two.replay().unwrap();
        one.replay().unwrap();
        step();
    });
    assert_eq!(replayed, train(|step| (0..9).for_each(|_| drop(step()))));
}

/// A capture that fails takes no step, so Adam's count of steps stays too.
#[test]
fn a_failed_capture_counts_no_step() {
    let _alone = alone();
    let trained = |captures: usize| {
        train(|step| {
            step();
            for _ in 0..captures {
                // The refused read comes after the optimizer's step.
                let read = || step().try_into_scalar::<f32>().ok();
                let failed = Graph::capture_after(&RocmDevice::new(0), 0, read);
                assert!(failed.is_err(), "{failed:?}");
            }
            step();
            step();
        })
    };
    assert_eq!(trained(2), trained(0));
}

#[test]
fn writes_are_checked() {
    let device = Device::rocm(0);
    let target = Tensor::<1>::zeros([3], &device);
    let narrow = graph::write(&target, Tensor::zeros([2], &device));
    assert!(matches!(narrow, Err(RocmError::Invalid { op: "graph::write", .. })), "{narrow:?}");
    let elsewhere = graph::write(&target, Tensor::zeros([3], &Device::flex()));
    assert!(matches!(elsewhere, Err(RocmError::Invalid { op: "graph::write", .. })), "{elsewhere:?}");
    let clone = target.clone();
    graph::write(&target, Tensor::ones([3], &device)).unwrap();
    assert_eq!(clone.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0; 3]);
}
