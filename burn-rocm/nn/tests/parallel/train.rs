//! Whole trainings.

use burn::module::AutodiffModule;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsAccumulator, Optimizer};
use burn::tensor::FloatDType;
use burn_rocm_nn::amp::{GradScalerConfig, Precision};
use burn_rocm_nn::optim::{AdamWConfig, SgdConfig};
use burn_rocm_nn::parallel::{Shards, Share};

use crate::*;

const SAMPLES: usize = 50;
const BATCH: usize = 16;
const EPOCHS: u64 = 3;
/// The last batch of an epoch has 2 samples: fewer than four ranks.
const STEPS: usize = 4 * EPOCHS as usize;

/// Trains, and returns each step's loss and the parameters at the end.
fn train(
    mut ranks: DataParallel,
    mut optimizer: impl Optimizer<Net<B>, B>,
    lr: f64,
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let device = ranks.communicator().device();
    // Only rank 0 begins with the right parameters.
    let mut net = ranks.broadcast::<B, _>(Net::<B>::new(&device, ranks.rank()));
    let mut losses = Vec::new();
    let shards = Shards::new(SAMPLES, BATCH, ranks.rank(), ranks.size()).shuffled(3);
    for part in (0..EPOCHS).flat_map(|epoch| shards.epoch(epoch)) {
        let loss = (!part.indices.is_empty()).then(|| net.loss(&part.indices, &device));
        let value = loss.clone().map_or_else(|| Tensor::zeros([1], &device), |loss| loss.inner());
        losses.push(ranks.mean(value, part.share).into_data().iter::<f64>().next().unwrap());
        let grads = ranks.backward(&net, loss);
        let grads = ranks.reduce(&net, grads, part.share);
        net = optimizer.step(lr, net, grads);
    }
    (losses, parameters(&net))
}

fn agree(what: &str, found: &[f64], expected: &[f64], steps: usize) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= limit(steps), "{what}: {found} instead of {expected}");
    }
}

/// Every rank has the losses and the parameters of one device that has all samples. The parameters
/// of the ranks have the same bits.
#[test]
fn ranks_train_as_one_device() {
    let Some(count) = devices("train::ranks_train_as_one_device") else { return };
    macro_rules! check {
        ($what:expr, $lr:expr, $optimizer:expr) => {
            let alone = on_ranks(1, |ranks| train(ranks, $optimizer, $lr)).remove(0);
            let losses = &alone.0;
            assert_eq!(losses.len(), STEPS);
            assert!(losses[STEPS - 2] < 0.8 * losses[0], "{} learns: {losses:?}", $what);
            let ranks = on_ranks(count, |ranks| train(ranks, $optimizer, $lr));
            for (losses, parameters) in &ranks {
                agree($what, losses, &alone.0, STEPS);
                agree($what, &parameters.concat(), &alone.1.concat(), STEPS);
                assert_eq!(parameters, &ranks[0].1, "{}: the same bits on every rank", $what);
            }
            let again = on_ranks(count, |ranks| train(ranks, $optimizer, $lr));
            assert_eq!(again, ranks, "{}: the same bits in every run", $what);
            // One parameter in a bucket, some in a bucket.
            for bytes in [1, 300] {
                for overlap in [false, true] {
                    let small = on_ranks(count, |ranks| {
                        train(ranks.with_bucket_bytes(bytes).with_overlap(overlap), $optimizer, $lr)
                    });
                    assert_eq!(small, ranks, "{}: the same bits in buckets of {bytes}, {overlap}", $what);
                }
            }
        };
    }
    let momentum = || MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: true };
    check!("SGD", 0.05, SgdConfig::new().init());
    check!("SGD with momentum", 0.02, SgdConfig::new().with_momentum(Some(momentum())).init());
    check!("AdamW", 0.02, AdamWConfig::new().with_weight_decay(0.05).init());
    check!("Burn's AdamW", 0.02, burn::optim::AdamWConfig::new().with_weight_decay(0.05).init());
}

/// Two backward passes are added up on each rank and reduced once.
#[test]
fn accumulated_gradients_are_reduced_once() {
    let Some(count) = devices("train::accumulated_gradients_are_reduced_once") else { return };
    let results = on_ranks(count, |mut ranks| {
        let net = Net::<B>::new(&ranks.communicator().device(), 0);
        let mut sum = GradientsAccumulator::new();
        for pass in 0..2 {
            let first = 4 * (pass * ranks.size() + ranks.rank());
            let indices: Vec<usize> = (first..first + 4).collect();
            let loss = net.loss(&indices, &ranks.communicator().device());
            sum.accumulate(&net, ranks.backward(&net, Some(loss)));
        }
        let grads = ranks.reduce(&net, sum.grads(), Share::EVEN);
        gradients(&net, &grads)
    });
    let net = Net::<B>::new(&RocmDevice::new(0), 0);
    let mut sum = GradientsAccumulator::new();
    for pass in 0..2 {
        let indices: Vec<usize> = (4 * pass * count..4 * (pass + 1) * count).collect();
        let loss = net.loss(&indices, &RocmDevice::new(0));
        sum.accumulate(&net, GradientsParams::from_grads(loss.backward(), &net));
    }
    let expected = gradients(&net, &sum.grads());
    for found in results {
        let present = |grads: &[Option<Vec<f64>>]| grads.iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(present(&found), present(&expected));
        let flat = |grads: &[Option<Vec<f64>>]| grads.iter().flatten().flatten().copied().collect::<Vec<_>>();
        agree("accumulated", &flat(&found), &flat(&expected), 1);
    }
}

/// In f16, one rank's gradients overflow. Every rank skips the step and lowers its scale, and the
/// next step is taken by all.
#[test]
fn an_overflow_on_one_rank_is_seen_by_all() {
    type H = Autodiff<Rocm>;
    let Some(count) = devices("train::an_overflow_on_one_rank_is_seen_by_all") else { return };
    let results = on_ranks(count, |mut ranks| {
        let device = ranks.communicator().device();
        let mut model = LinearConfig::new(3, 2).init::<H>(&device);
        model.weight = Param::from_data(TensorData::from([[0.5f32, 1.0], [-0.5, 0.25], [1.0, 0.0]]), &device);
        model.bias = Some(Param::from_data(TensorData::from([0.0f32, 0.0]), &device));
        let mut optimizer = SgdConfig::new().init();
        let mut scaler = GradScalerConfig::new().with_initial_scale(1024.0).init();
        let mut states = vec![(parameters(&model), scaler.factor(), scaler.skipped())];
        for step in 0..2 {
            // f16 ends at 65504, and the gradient of the weight is 1024 times the input.
            let large = step == 0 && ranks.rank() == ranks.size() - 1;
            let x = Tensor::<H, 2>::full([4, 3], if large { 2000.0 } else { 1.0 }, &device);
            let half = Precision::new(FloatDType::F16).convert(&model);
            let loss = half.forward(x.cast(FloatDType::F16)).cast(FloatDType::F32).mean();
            let grads = ranks.backward(&half, Some(scaler.scale(loss)));
            let grads = ranks.reduce(&half, grads, Share::EVEN);
            model = scaler.step(&mut optimizer, 0.25, model, grads);
            states.push((parameters(&model), scaler.factor(), scaler.skipped()));
        }
        states
    });
    for states in &results {
        assert_eq!(states, &results[0], "the same on every rank");
        assert_eq!(states[1], (states[0].0.clone(), 512.0, 1), "the step was skipped");
        // The gradient of each weight is 1/2, as is that of each bias.
        let moved = states[0].0.iter().map(|values| values.iter().map(|x| x - 0.125).collect::<Vec<_>>());
        assert_eq!(states[2], (moved.collect(), 512.0, 1));
    }
}

/// A module on the inner backend is what rank 0 had, too.
#[test]
fn a_broadcast_gives_every_rank_the_parameters_of_the_first() {
    let test = "train::a_broadcast_gives_every_rank_the_parameters_of_the_first";
    let Some(count) = devices(test) else { return };
    let results = on_ranks(count, |ranks| {
        let net = Net::<B>::new(&ranks.communicator().device(), 7 + ranks.rank());
        let own = parameters(&net);
        let sent = ranks.broadcast::<B, _>(net);
        assert!(sent.first.weight.val().is_require_grad());
        (own, parameters(&sent), parameters(&sent.valid()))
    });
    for (rank, (own, sent, valid)) in results.iter().enumerate() {
        assert_eq!((sent, valid), (&results[0].0, &results[0].0), "rank {rank}");
        assert!(rank == 0 || own != sent);
    }
}
