//! Models whose parameters are divided, in f16 with a scaled loss.

use burn::tensor::{DType, FloatDType};
use burn_rocm::graph::Graph;
use burn_rocm_nn::amp::{GradScaler, GradScalerConfig, GradScalerRecord};
use burn_rocm_nn::optim::AdamWConfig;
use burn_rocm_nn::parallel::{ShardedModelConfig, Share};

use crate::model::{Model, S, Whole, accumulate, build, gathered, step, trained_in};
use crate::sharded::{STEPS, zeros_for_missing};
use crate::*;

const HALF: FloatDType = FloatDType::F16;
const RATE: f64 = 1e-3;

fn batch(step: usize, device: &RocmDevice) -> (Tensor<S, 2>, Tensor<S, 2>) {
    let (x, y) = samples::<S>(&[step, step + 1, step + 2], device);
    (x.cast(HALF), y.cast(HALF))
}

/// A scale with which the sum of four ranks' gradients of this model does not overflow.
fn scaler() -> GradScaler {
    GradScalerConfig::new().with_initial_scale(256.0).with_growth_interval(5).init()
}

fn model(ranks: &DataParallel, most: Option<f32>) -> Model<S> {
    let mut config = ShardedModelConfig::new(AdamWConfig::new()).with_dtype(HALF).with_scaler(scaler());
    if let Some(most) = most {
        config = config.with_global_norm(most);
    }
    build::<S>(ranks, config, &ranks.communicator().device())
}

fn state(scaler: &GradScaler) -> (f32, usize) {
    (scaler.factor(), scaler.skipped())
}

/// The bits are those of one device that keeps f32 parameters, computes with a copy in f16 and scales
/// the loss. All ranks have the same samples, so that their mean is exact. The scale grows once.
#[test]
fn f16_with_a_scaler_is_one_devices() {
    let Some(count) = devices("half::f16_with_a_scaler_is_one_devices") else { return };
    let expected = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let (mut master, mut scaler) = (Whole::<S>::new(&device), scaler());
        let mut optimizer = AdamWConfig::new().init();
        for step in 0..STEPS {
            let half = trained_in(HALF, &master);
            let loss = half.loss(batch(step, &device)).cast(FloatDType::F32);
            let grads = GradientsParams::from_grads(scaler.scale(loss).backward(), &half);
            let grads = zeros_for_missing::<S, _>(&master, grads);
            master = scaler.step(&mut optimizer, RATE, master, grads);
        }
        (parameters(&trained_in(HALF, &master)), state(&scaler))
    })
    .remove(0);
    assert_eq!(expected.1, (512.0, 0), "the scale grows after five steps of {STEPS}");
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut model = model(&ranks, None);
        for at in 0..STEPS {
            step(&mut model, RATE, Share::EVEN, batch(at, &device));
        }
        assert_eq!(model.whole_first().weight.val().dtype(), DType::F16);
        (gathered(&model), state(model.scaler().expect("the configuration has one")))
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

/// A graph has moved the scaler's state into device memory. The model goes on with that state.
#[test]
fn a_scaler_that_a_graph_has_used_follows_the_steps() {
    let Some(count) = devices("half::a_scaler_that_a_graph_has_used_follows_the_steps") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let scaler = scaler().load_record(GradScalerRecord { scale: 256.0, finite: 0, skipped: 3 });
        let loss = Tensor::<S, 1>::ones([1], &device);
        let (graph, scaled) = Graph::capture_after(&device, 0, || scaler.scale(loss.clone())).unwrap();
        graph.replay().unwrap();
        assert_eq!(scaled.into_scalar(), 256.0);
        let config = ShardedModelConfig::new(AdamWConfig::new()).with_dtype(HALF).with_scaler(scaler);
        let mut model = build::<S>(&ranks, config, &device);
        let (x, y) = batch(0, &device);
        // The square of 2^9 is beyond f16.
        step(&mut model, RATE, Share::EVEN, (x.clone(), y.clone() + 512.0));
        assert_eq!(model.scaler().map(state), Some((128.0, 4)), "rank {}", ranks.rank());
        let before = gathered(&model);
        step(&mut model, RATE, Share::EVEN, (x, y));
        assert_eq!(model.scaler().map(state), Some((128.0, 4)), "rank {}", ranks.rank());
        assert_ne!(gathered(&model), before, "the next step trains");
    });
}

/// One rank's samples overflow f16. No rank takes the step, with and without a norm over all
/// parameters and with accumulated gradients, and all go on with a lower scale.
#[test]
fn an_overflow_on_one_rank_skips_the_step_of_all() {
    let Some(count) = devices("half::an_overflow_on_one_rank_skips_the_step_of_all") else { return };
    for (most, accumulated) in [(None, false), (Some(1.0), false), (None, true)] {
        let what = format!("norm {most:?}, accumulated {accumulated}");
        let found = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut model = model(&ranks, most);
            step(&mut model, RATE, Share::EVEN, batch(0, &device));
            let before = gathered(&model);
            let (x, y) = batch(1, &device);
            // The square of 2^9 is beyond f16.
            let y = if ranks.rank() == 1 { y + 512.0 } else { y };
            if accumulated {
                accumulate(&mut model, Share::EVEN, (x, y));
                step(&mut model, RATE, Share::EVEN, batch(2, &device));
            } else {
                step(&mut model, RATE, Share::EVEN, (x, y));
            }
            assert_eq!(gathered(&model), before, "{what}: rank {} took the step", ranks.rank());
            assert_eq!(model.scaler().map(state), Some((128.0, 1)), "{what}");
            step(&mut model, RATE, Share::EVEN, batch(3, &device));
            assert_eq!(model.scaler().map(state), Some((128.0, 1)), "{what}");
            let after = gathered(&model);
            assert_ne!(after, before, "{what}: the next step trains");
            assert!(after.iter().flatten().all(|value| value.is_finite()), "{what}");
            after
        });
        assert!(found.iter().all(|all| *all == found[0]), "{what}: the same bits on every rank");
    }
}
