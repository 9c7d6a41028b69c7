//! Training steps replayed from graphs, compared bit by bit with the same steps run one by one. Both
//! versions of Burn compile this file.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::GradientsParams;
#[allow(unused_imports, reason = "only Burn 0.21 has `step` in this trait")]
use burn::optim::Optimizer;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::quantization::QuantScheme;
use burn::tensor::{Distribution, FloatDType};
use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmError};

use crate::small::{Batch, Scores, batch, cnn, loss_bits, mlp};
use crate::world::nn::amp::{GradScaler, GradScalerConfig, GradScalerRecord, Mixed, Precision};
use crate::world::nn::graph;
use crate::world::nn::loss::CrossEntropyLossConfig;
use crate::world::nn::optim::{AdamConfig, AdamWConfig, SgdConfig};
use crate::world::{Plain, Tracked, bits, plain, seed, tracking};

const BEFORE: usize = 3;
const REPLAYED: usize = 200;
const AFTER: usize = 2;

/// The tests seed the device's random numbers, and one thread captures at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that a run computed.
#[derive(PartialEq, Debug)]
pub(crate) struct Outcome {
    pub(crate) losses: Vec<u32>,
    /// The bits of all parameters, and of running statistics if replays go on with them.
    pub(crate) state: Vec<Vec<u32>>,
    /// What the device's random numbers go on with.
    pub(crate) drawn: Vec<u32>,
}

/// The next random numbers of the device.
pub(crate) fn drawn() -> Vec<u32> {
    let drawn = Plain::<1>::random([9], Distribution::Default, &plain());
    drawn.into_data().iter::<f32>().map(f32::to_bits).collect()
}

/// Cosine annealing from 0.02.
fn rate(number: usize) -> f64 {
    0.01 * (1.0 + (number as f64 / (BEFORE + REPLAYED + AFTER) as f64 * std::f64::consts::PI).cos())
}

/// Trains for [`BEFORE`] steps one by one, for [`REPLAYED`] as replays or one by one, and again one
/// by one for [`AFTER`]. Returns the losses and the model.
pub(crate) fn train<M>(
    replayed: bool,
    model: M,
    mut step: impl FnMut(M, &Batch, f64) -> (M, Plain<1>),
) -> (Vec<u32>, M) {
    let (mut model, fed) = (Some(model), batch(0));
    let mut step = |lr: f64| {
        let (after, loss) = step(model.take().expect("put back below"), &fed, lr);
        model = Some(after);
        loss
    };
    let mut losses = Vec::new();
    let mut one_by_one = |numbers: Range<usize>, step: &mut dyn FnMut(f64) -> Plain<1>| {
        for number in numbers {
            let Batch { images, labels } = batch(number);
            graph::write(&fed.images, images).unwrap();
            graph::write_int(&fed.labels, labels).unwrap();
            losses.push(loss_bits(step(rate(number))));
        }
    };
    let (first, last) = (BEFORE, BEFORE + REPLAYED);
    one_by_one(0..first, &mut step);
    let mut captured = None;
    if replayed {
        // The rate of the capture is none of the schedule.
        let (graph, loss) = Graph::capture_after(&RocmDevice::new(0), 0, || step(0.5)).unwrap();
        let mut replay = |lr: f64| {
            graph.set_learning_rate(lr).unwrap();
            graph.replay().unwrap();
            loss.clone()
        };
        one_by_one(first..last, &mut replay);
        // With Burn 0.22 the device counts Adam's steps only while the graph lives.
        captured = Some(graph);
    } else {
        one_by_one(first..last, &mut step);
    }
    one_by_one(last..last + AFTER, &mut step);
    drop(captured);
    (losses, model.expect("put back"))
}

/// Compares a training whose steps are replayed with one that takes them one by one. `run` gets
/// whether to replay.
pub(crate) fn compare(run: impl Fn(bool) -> Outcome) {
    let _alone = alone();
    let (expected, replayed) = (run(false), run(true));
    for (number, (found, want)) in replayed.losses.iter().zip(&expected.losses).enumerate() {
        assert_eq!(f32::from_bits(*found), f32::from_bits(*want), "the loss of step {number}");
    }
    assert_eq!(replayed, expected);
    let distinct: BTreeSet<_> = expected.losses.iter().collect();
    assert!(distinct.len() > REPLAYED / 2, "the steps differ");
}

/// [`compare`] for a model and an optimizer. A macro, because the optimizers' traits of Burn 0.21 and
/// 0.22 differ.
macro_rules! compare_training {
    ($model:expr, $optimizer:expr) => {
        $crate::replays::compare(|replayed| {
            $crate::world::seed(17);
            let mut optimizer = $optimizer;
            let (losses, model) = $crate::replays::train(replayed, $model, |model, batch, lr| {
                $crate::small::step!(model, optimizer, batch, lr)
            });
            let (state, drawn) = ($crate::world::replayed_bits(&model), $crate::replays::drawn());
            $crate::replays::Outcome { losses, state, drawn }
        })
    };
}
#[allow(unused_imports, reason = "only the tests of Burn 0.21 have another model")]
pub(crate) use compare_training;

#[test]
fn adam_with_dropout() {
    compare_training!(mlp(), AdamConfig::new().init());
}

#[test]
fn adam_with_every_setting() {
    let config = AdamConfig::new().with_amsgrad(true).with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    let config = config.with_grad_clipping(Some(GradientClippingConfig::Norm(0.05)));
    compare_training!(mlp(), config.init());
}

#[test]
fn adam_with_decoupled_decay_on_a_convolution_with_batch_norm() {
    compare_training!(cnn(), AdamWConfig::new().with_cautious_weight_decay(true).init());
}

#[test]
fn descent_with_momentum() {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.1).with_nesterov(true);
    let clip = GradientClippingConfig::Value(0.02);
    let config = SgdConfig::new().with_momentum(Some(momentum)).with_gradient_clipping(Some(clip));
    compare_training!(cnn(), config.init());
}

#[test]
fn descent_without_momentum() {
    compare_training!(mlp(), SgdConfig::new().init());
}

/// Who takes a step in mixed precision.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Parts,
    Mixed,
}

/// Steps in f16 with a scaler, some of which overflow. `overflow` says in which.
fn train_in_f16(
    by: By,
    replayed: bool,
    overflow: fn(usize) -> bool,
) -> (Vec<u32>, Vec<Vec<u32>>, GradScalerRecord) {
    const STEPS: usize = 40;
    seed(3);
    let mut model = Some(mlp());
    let mut optimizer = AdamConfig::new().init();
    let config = GradScalerConfig::new().with_initial_scale(1024.0).with_growth_interval(7);
    let mut scaler = config.init();
    let mut mixed = Mixed::f16().with_scaler(config.init());
    let fed = batch(0);
    // The loss is multiplied by this.
    let weight = Tracked::<1>::ones([1], &tracking());
    let weighted = |scores: Tracked<2>| {
        let loss = CrossEntropyLossConfig::new().init(&tracking());
        loss.forward(scores.cast(FloatDType::F32), fed.labels.clone()) * weight.clone()
    };
    let mut step = || {
        let before = model.take().expect("put back below");
        let narrow = fed.images.clone().cast(FloatDType::F16);
        if by == By::Mixed {
            let (after, loss) =
                mixed.step(&mut optimizer, 0.01, before, |half| weighted(half.scores(narrow)));
            model = Some(after);
            return loss;
        }
        let half = Precision::new(FloatDType::F16).convert(&before);
        let loss = weighted(half.scores(narrow));
        let scaled = scaler.scale(loss.clone());
        let grads = GradientsParams::from_grads(scaled.backward(), &half);
        drop(half);
        model = Some(scaler.step(&mut optimizer, 0.01, before, grads));
        loss.inner()
    };
    let feed = |number| {
        graph::write(&fed.images, batch(number).images).unwrap();
        let factor = if overflow(number) { f32::INFINITY } else { 1.0 };
        graph::write(&weight, Tracked::full([1], factor, &tracking())).unwrap();
    };
    let mut losses = Vec::new();
    for number in 0..BEFORE {
        feed(number);
        losses.push(step());
    }
    if replayed {
        let (graph, loss) = Graph::capture_after(&RocmDevice::new(0), 0, &mut step).unwrap();
        for number in BEFORE..STEPS {
            feed(number);
            graph.replay().unwrap();
            losses.push(loss.clone() * 1.0);
        }
        // One more step that is not replayed goes on with the device's scale and clock.
        feed(STEPS);
        losses.push(step());
    } else {
        for number in BEFORE..=STEPS {
            feed(number);
            losses.push(step());
        }
    }
    let losses = losses.into_iter().map(loss_bits).collect();
    let record =
        if by == By::Mixed { mixed.scaler().map(GradScaler::to_record) } else { Some(scaler.to_record()) };
    (losses, bits(&model.expect("put back")), record.expect("f16 has a scaler"))
}

#[test]
fn the_device_scales_the_loss_and_skips_steps() {
    let _alone = alone();
    let overflow = |number: usize| number % 11 == 5;
    let expected = train_in_f16(By::Parts, false, overflow);
    assert_eq!(expected.2.skipped, 4, "{:?}", expected.2);
    for (by, replayed) in [(By::Parts, true), (By::Mixed, false), (By::Mixed, true)] {
        assert_eq!(train_in_f16(by, replayed, overflow), expected, "{by:?}, replayed: {replayed}");
    }
}

/// It would be dequantised, and the copy written.
#[test]
fn a_quantised_target_is_refused() {
    let ones = Plain::<2>::ones([32, 32], &plain());
    let target = ones.clone().quantize_dynamic(&QuantScheme::default());
    let written = graph::write(&target, ones * 2.0);
    assert!(matches!(written, Err(RocmError::Invalid { op: "graph::write", .. })), "{written:?}");
}
