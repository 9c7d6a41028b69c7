//! A model that holds clones of a module.

use burn::optim::{GradientsParams, Optimizer};
use burn_rocm::RocmDevice;
use burn_rocm::graph::Graph;
use burn_rocm_nn::BatchNormConfig;
use burn_rocm_nn::optim::SgdConfig;

use crate::replays::alone;
use crate::small::batch;
use crate::world::{BatchNorm, Tracked, bits};

const FEATURES: usize = 36;

/// Clones of a batch norm share their running statistics. The optimizer leaves these alone, so
/// replays go on with them.
#[test]
fn replays_go_on_with_the_statistics_of_clones() {
    let _alone = alone();
    let device = RocmDevice::default();
    let train = |replayed: bool| {
        let norm: BatchNorm = BatchNormConfig::new(FEATURES).init(&device);
        // A clone of an uninitialised parameter would become a tensor of its own.
        drop((norm.gamma.val(), norm.beta.val()));
        let (mut model, mut optimizer) = (Some((norm.clone(), norm)), SgdConfig::new().init());
        let x: Tracked<2> = batch(0).images.flatten(1, 2);
        let mut step = || {
            let taken: (BatchNorm, BatchNorm) = model.take().expect("put back below");
            let y = taken.1.forward(taken.0.forward(x.clone()));
            let grads = GradientsParams::from_grads(y.powf_scalar(2.0).mean().backward(), &taken);
            model = Some(optimizer.step(0.1, taken, grads));
        };
        step();
        if replayed {
            let (graph, ()) = Graph::capture_after(&device, 0, &mut step).unwrap();
            (0..3).for_each(|_| graph.replay().unwrap());
        } else {
            (0..3).for_each(|_| step());
        }
        bits(&model.expect("put back"))
    };
    let replayed = train(true);
    assert!(replayed.iter().all(|tensor| tensor.len() == FEATURES), "{replayed:?}");
    assert_eq!(replayed, train(false));
}
