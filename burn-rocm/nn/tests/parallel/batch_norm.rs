//! Batch norm with the statistics of all ranks' samples.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::AutodiffModule;
use burn::tensor::{DType, FloatDType};
use burn_rocm::take_last_error;
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::parallel::{Share, SyncBatchNorm};
use burn_rocm_nn::{BatchNorm, BatchNormConfig};

use crate::*;

const CHANNELS: usize = 3;
const SPATIAL: usize = 5;

#[derive(Module, Debug)]
enum Norm<B: Backend> {
    Own(BatchNorm<B>),
    Sync(SyncBatchNorm<B>),
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    norm: Norm<B>,
}

fn norm(device: &RocmDevice) -> BatchNorm<B> {
    let mut norm: BatchNorm<B> = BatchNormConfig::new(CHANNELS).with_momentum(0.3).init(device);
    norm.gamma = Param::from_data(TensorData::from([0.5f64, -1.5, 2.0]), device);
    norm.beta = Param::from_data(TensorData::from([0.1f64, 0.2, -0.3]), device);
    norm
}

/// Samples whose channels have means far from 0 and other deviations, `[count, channels, spatial]`.
fn images(first: usize, count: usize, device: &RocmDevice) -> Tensor<B, 3> {
    let value = |at: usize| {
        let channel = at / SPATIAL % CHANNELS;
        [3.0, -20.0, 0.0][channel] + [1.0, 0.1, 7.0][channel] * (0.7 * at as f64).sin()
    };
    let len = CHANNELS * SPATIAL;
    let values: Vec<f64> = (first * len..(first + count) * len).map(value).collect();
    Tensor::from_data(TensorData::new(values, [count, CHANNELS, SPATIAL]), device)
}

/// The mean over the samples of a loss that weighs each element.
fn loss(output: Tensor<B, 3>, first: usize) -> Tensor<B, 1> {
    let [count, ..] = output.dims();
    let len = CHANNELS * SPATIAL;
    let weights: Vec<f64> = (first * len..(first + count) * len).map(|at| (1.1 * at as f64).cos()).collect();
    let weights = Tensor::from_data(TensorData::new(weights, output.dims()), &output.device());
    // A product: the gradient of Burn's division by a number rounds its inverse to f32.
    (output.clone() * weights + output.powi_scalar(3)).sum() * (1.0 / count as f64)
}

struct Found {
    output: Vec<f64>,
    by_x: Vec<f64>,
    by_parameters: Vec<Option<Vec<f64>>>,
    running: Vec<f64>,
}

/// One step with samples `first..first + count` of `total`.
fn step(ranks: &mut DataParallel, sync: bool, (first, count, total): (usize, usize, usize)) -> Found {
    let device = ranks.communicator().device();
    let norm = match sync {
        true => Norm::Sync(SyncBatchNorm::of(norm(&device), ranks.communicator())),
        false => Norm::Own(norm(&device)),
    };
    let model = Model { norm };
    let x = images(first, count, &device).require_grad();
    let output = match &model.norm {
        Norm::Own(norm) => norm.forward(x.clone()),
        Norm::Sync(norm) => norm.forward(x.clone()),
    };
    let loss = loss(output.clone(), first);
    let all = loss.backward();
    let by_x = x.grad(&all).unwrap() * (count as f64 / total as f64);
    let grads = GradientsParams::from_grads(all, &model);
    let grads = ranks.reduce(&model, grads, Share::of(count, total));
    let states = match &model.norm {
        Norm::Own(norm) => [&norm.running_mean, &norm.running_var].map(|state| state.value_sync()),
        Norm::Sync(norm) => [&norm.running_mean, &norm.running_var].map(|state| state.value_sync()),
    };
    let read = |data: TensorData| data.iter::<f64>().collect::<Vec<f64>>();
    Found {
        output: read(output.into_data()),
        by_x: read(by_x.into_data()),
        by_parameters: gradients(&model, &grads),
        running: states.into_iter().flat_map(|state| read(state.into_data())).collect(),
    }
}

#[track_caller]
fn agree(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    // A mean is up to 2^9 deviations from 0, which the normalised x loses of its 53 bits. Its cubes
    // are below 2^6, their gradients grow by up to 2^5 (gamma / deviation), and 2^6 are added up.
    let limit = 2f64.powi(9 + 6 + 5 + 6 - 53);
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= limit, "{what}: {found} instead of {expected}");
    }
}

/// Output, gradients and running statistics are those of one device that has all samples, also if
/// the ranks have other numbers of samples.
#[test]
fn ranks_normalise_as_one_device() {
    let Some(count) = devices("batch_norm::ranks_normalise_as_one_device") else { return };
    for per_rank in [vec![3; count], (1..=count).collect()] {
        let total: usize = per_rank.iter().sum();
        let expected = on_ranks(1, |mut ranks| step(&mut ranks, false, (0, total, total))).remove(0);
        let found = on_ranks(count, |mut ranks| {
            let first = per_rank[..ranks.rank()].iter().sum();
            let count = per_rank[ranks.rank()];
            step(&mut ranks, true, (first, count, total))
        });
        let joined = |part: fn(&Found) -> &[f64]| found.iter().flat_map(part).copied().collect::<Vec<_>>();
        agree("output", &joined(|found| &found.output), &expected.output);
        agree("gradient of x", &joined(|found| &found.by_x), &expected.by_x);
        for rank in &found {
            agree("running statistics", &rank.running, &expected.running);
            // The running statistics have none.
            let present = |found: &Found| found.by_parameters.iter().flatten().cloned().collect::<Vec<_>>();
            assert_eq!(present(rank).len(), 2);
            agree("gradient", &present(rank).concat(), &present(&expected).concat());
        }
        let apart = on_ranks(count, |mut ranks| {
            let first = per_rank[..ranks.rank()].iter().sum();
            let count = per_rank[ranks.rank()];
            step(&mut ranks, false, (first, count, total)).output
        });
        assert_ne!(apart.concat(), joined(|found| &found.output), "the ranks' own statistics differ");
    }
}

/// Without autodiff, the running statistics normalise, and no rank waits for another.
#[test]
fn inference_is_a_ranks_own() {
    let Some(count) = devices("batch_norm::inference_is_a_ranks_own") else { return };
    on_ranks(count, |ranks| {
        if ranks.rank() > 0 {
            return;
        }
        use burn::module::AutodiffModule;
        let device = ranks.communicator().device();
        let x = images(0, 2, &device).inner();
        let expected = norm(&device).valid().forward(x.clone()).into_data();
        let found = SyncBatchNorm::of(norm(&device), ranks.communicator()).valid().forward(x);
        found.into_data().assert_eq(&expected, true);
    });
}

/// A conversion leaves the norm in f32, as it leaves `BatchNorm`, unless it is to leave nothing.
#[test]
fn mixed_precision_keeps_the_norm() {
    type B = Autodiff<Rocm>;
    let Some(count) = devices("batch_norm::mixed_precision_keeps_the_norm") else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let norm = SyncBatchNorm::of(BatchNormConfig::new(CHANNELS).init::<B>(&device), ranks.communicator());
        let half = Precision::new(FloatDType::BF16).convert(&norm);
        let x = Tensor::<B, 3>::ones([2, CHANNELS, SPATIAL], &device);
        let output = half.forward(x.cast(FloatDType::BF16));
        assert_eq!(output.dtype(), DType::BF16);
        let grads = ranks.backward(&half, Some(output.sum()));
        for param in [&half.gamma, &half.beta] {
            let grad = grads.get::<Rocm, 1>(param.id).unwrap();
            assert_eq!([param.val().dtype(), grad.dtype()], [DType::F32; 2]);
        }
        let all = Precision::new(FloatDType::BF16).keep_none().convert(&norm);
        assert_eq!([&all.gamma, &all.beta].map(|param| param.val().dtype()), [DType::BF16; 2]);
        assert_eq!(all.running_mean.value_sync().dtype(), DType::F32);
    });
}

/// Burn keeps a statistic's last update aside until the next one. It must not come back after a
/// broadcast.
#[test]
fn a_broadcast_replaces_what_a_step_has_left() {
    let Some(count) = devices("batch_norm::a_broadcast_replaces_what_a_step_has_left") else { return };
    // What evaluation and records see.
    let running = |model: &Model<B>| -> Vec<f64> {
        let Norm::Own(norm) = model.valid().norm else { unreachable!() };
        let states = [norm.running_mean.value(), norm.running_var.value()];
        states.iter().flat_map(|state| state.to_data().iter::<f64>().collect::<Vec<_>>()).collect()
    };
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let stepped = || {
            let own = norm(&device);
            drop(own.forward(images(3 * ranks.rank(), 3, &device)));
            Model { norm: Norm::Own(own) }
        };
        let (own, whole) = (stepped(), ranks.broadcast::<B, _>(stepped()));
        let before = running(&own);
        ranks.broadcast_statistics::<B, _>(&own);
        (before, running(&whole), running(&own))
    });
    assert_ne!(found[0].0, found[1].0);
    for (rank, (_, whole, statistics)) in found.iter().enumerate() {
        assert_eq!(whole, &found[0].0, "rank {rank}");
        assert_eq!(statistics, &found[0].0, "rank {rank}");
    }
}

/// Clones share their running statistics, also those on other devices. No rank waits for the lock that
/// another one holds: all get an error, also while they keep their communicators.
#[test]
fn shared_statistics_are_refused() {
    let Some(count) = devices("batch_norm::shared_statistics_are_refused") else { return };
    let model = Model { norm: Norm::Own(norm(&RocmDevice::new(0))) };
    let own = Model { norm: Norm::Own(norm(&RocmDevice::new(0))) };
    let all = std::sync::Mutex::new(Vec::new());
    let found = on_ranks(count, |ranks| {
        all.lock().unwrap().push(ranks.communicator().clone());
        let device = ranks.communicator().device();
        let apart = Model::from_inner(own.valid()).fork(&device);
        drop(ranks.broadcast::<B, _>(apart));
        let shared = model.clone().fork(&device);
        // All have forked.
        ranks.communicator().meet().unwrap();
        catch_unwind(AssertUnwindSafe(|| drop(ranks.broadcast::<B, _>(shared)))).expect_err("is refused");
        take_last_error().expect("an error").to_string()
    });
    let refused = found.iter().filter(|error| error.contains("shares running statistics")).count();
    assert_eq!(refused, count - 1, "{found:?}");
    assert!(found.iter().any(|error| error.contains("an error of another rank")), "{found:?}");
}
