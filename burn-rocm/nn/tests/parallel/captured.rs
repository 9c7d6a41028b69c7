//! Steps of several ranks as graphs: the bits of the same steps one by one.

use burn::optim::Optimizer;
use burn_rocm::graph::{Graph, WARM_UPS, is_capturing};
use burn_rocm::{RocmError, take_last_error};
use burn_rocm_nn::graph;
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig};
use burn_rocm_nn::parallel::{ColumnLinear, Overlap, RowLinear, ShardedOptimizer, Share, SyncBatchNorm};
use burn_rocm_nn::{BatchNorm, BatchNormConfig};

use crate::*;

/// The streams run late: a collective that does not wait for a gradient packs memory that is not
/// computed, which poison fills with NaN. So do the branches of a graph.
const LATE: [(&str, &str); 3] =
    [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1"), ("BURN_ROCM_CPU_THREADS", "1")];

/// As [`LATE`], and small ops are deferred as on a GPU.
const LATE_AND_DEFERRED: [(&str, &str); 4] = [LATE[0], LATE[1], LATE[2], ("BURN_ROCM_CHAIN", "16")];

/// The replays of a graph, after its warm-ups.
const REPLAYS: usize = 5;

/// [`Net`] without the layers that the loss does not use: a rank that lacks a gradient asks the others
/// for it, which it can't in a capture.
fn used(device: &RocmDevice) -> Net<B> {
    let mut net = Net::new(device, 0);
    net.extra.clear();
    net
}

#[derive(Module, Debug)]
struct OneNorm<B: Backend> {
    norm: BatchNorm<B>,
}

/// Rank 0's statistics are written into the graph's memory, so its replays go on with them.
#[test]
fn a_graph_goes_on_with_rank_0s_statistics() {
    let Some(count) = devices("captured::a_graph_goes_on_with_rank_0s_statistics") else { return };
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let model: OneNorm<B> = OneNorm { norm: BatchNormConfig::new(FEATURES).init(&device) };
        let x = samples::<B>(&indices(&ranks, 0), &device).0;
        let (graph, _) = Graph::capture(&device, || model.norm.forward(x.clone()).inner()).unwrap();
        let running = || -> Vec<f64> { model.norm.running_mean.value_sync().into_data().iter().collect() };
        graph.replay().unwrap();
        let own = running();
        ranks.broadcast_statistics::<B, _>(&model);
        let sent = running();
        graph.replay().unwrap();
        (own, sent, running())
    });
    assert_ne!(found[0].0, found[1].0);
    for (rank, (_, sent, after)) in found.iter().enumerate() {
        assert_eq!(sent, &found[0].0, "rank {rank}");
        assert_ne!(sent, after, "rank {rank}: the graph writes other memory");
    }
}

/// The samples of a rank in a step.
fn indices(ranks: &DataParallel, step: usize) -> Vec<usize> {
    let first = 4 * (step * ranks.size() + ranks.rank());
    (first..first + 4).collect()
}

/// The losses of the steps behind the warm-ups, over all ranks' samples.
type Losses = Vec<Vec<f64>>;

/// Takes steps one by one, or as a graph. `step` gets the batch, and returns the loss.
fn train(
    ranks: &mut DataParallel,
    captured: bool,
    mut step: impl FnMut(&mut DataParallel, Tensor<B, 2>, Tensor<B, 2>) -> Tensor<Inner, 1>,
) -> Losses {
    let device = ranks.communicator().device();
    let batch = |ranks: &DataParallel, number| samples::<B>(&indices(ranks, number), &device);
    let read = |loss: Tensor<Inner, 1>| loss.into_data().iter::<f64>().collect();
    if !captured {
        let mut one = |number: usize| {
            // A graph's warm-ups all have the first batch.
            let (x, y) = batch(ranks, number.saturating_sub(WARM_UPS - 1));
            read(step(ranks, x, y))
        };
        return (0..WARM_UPS + REPLAYS).map(&mut one).skip(WARM_UPS).collect();
    }
    let (x, y) = batch(ranks, 0);
    let (x, y) = (x + 0.0, y + 0.0);
    let (graph, loss) = Graph::capture(&device, || step(ranks, x.clone(), y.clone())).unwrap();
    let mut one = |number: usize| {
        let (new_x, new_y) = batch(ranks, number);
        graph::write(&x, new_x).unwrap();
        graph::write(&y, new_y).unwrap();
        graph.replay().unwrap();
        read(loss.clone())
    };
    (1..=REPLAYS).map(&mut one).collect()
}

/// What each rank ends with: losses, parameters and how the last reduction went.
type Trained = (Losses, Vec<Vec<f64>>, Overlap);

fn data_parallel(count: usize, captured: bool, overlap: bool, weighs: bool) -> Vec<Trained> {
    on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(1).with_overlap(overlap);
        let device = ranks.communicator().device();
        let mut model = Some(used(&device));
        let mut optimizer = AdamConfig::new().init();
        let share = || if weighs { Share::of(4, 4 * count) } else { Share::EVEN };
        let losses = train(&mut ranks, captured, |ranks, x, y| {
            let before = model.take().unwrap();
            let loss = (before.forward(x) - y).powi_scalar(2).mean();
            let grads = ranks.backward(&before, Some(loss.clone()));
            let grads = ranks.reduce(&before, grads, share());
            model = Some(optimizer.step(0.01, before, grads));
            ranks.mean(loss.inner(), share())
        });
        (losses, parameters(&model.unwrap()), ranks.last_overlap())
    })
}

fn equals_one_by_one(count: usize) {
    for overlap in [false, true] {
        for weighs in [false, true] {
            let one_by_one = data_parallel(count, false, overlap, weighs);
            let captured = data_parallel(count, true, overlap, weighs);
            assert!(one_by_one[0].0[0] != one_by_one[0].0[1], "the steps differ");
            for ((expected, _, _), (found, _, ran)) in one_by_one.iter().zip(&captured) {
                assert_eq!(found, expected, "overlap {overlap}, weighs {weighs}");
                let beside = if overlap { ran.buckets } else { 0 };
                assert_eq!((ran.buckets, ran.beside), (8, beside));
            }
            let of_first = |all: &[Trained]| all[0].1.clone();
            assert_eq!(of_first(&captured), of_first(&one_by_one));
            assert!(captured.iter().all(|(_, params, _)| *params == captured[0].1));
        }
    }
}

#[test]
fn a_graph_has_the_bits_of_the_steps() {
    let Some(count) = devices_with("captured::a_graph_has_the_bits_of_the_steps", &LATE) else { return };
    equals_one_by_one(count);
}

#[test]
fn a_graph_has_the_bits_of_steps_with_deferred_ops() {
    const TEST: &str = "captured::a_graph_has_the_bits_of_steps_with_deferred_ops";
    let Some(count) = devices_with(TEST, &LATE_AND_DEFERRED) else { return };
    equals_one_by_one(count);
}

/// Gradients are reduced and scattered, and parameters gathered into the memory that the replays read.
#[test]
fn a_sharded_step_as_a_graph() {
    let Some(count) = devices_with("captured::a_sharded_step_as_a_graph", &LATE) else { return };
    let trained = |captured| {
        on_ranks(count, |mut ranks| {
            let device = ranks.communicator().device();
            let mut model = Some(used(&device));
            let mut optimizer = ShardedOptimizer::new(&ranks, AdamWConfig::new())
                .with_bucket_bytes(300)
                .with_global_norm(0.7);
            let losses = train(&mut ranks, captured, |ranks, x, y| {
                let before = model.take().unwrap();
                let loss = (before.forward(x) - y).powi_scalar(2).mean();
                let grads = ranks.backward(&before, Some(loss.clone()));
                model = Some(optimizer.step(0.01, before, grads, Share::EVEN));
                ranks.mean(loss.inner(), Share::EVEN)
            });
            // A step outside of the graph goes on from it.
            let before = model.take().unwrap();
            let loss = before.loss(&indices(&ranks, 9), &device);
            let grads = ranks.backward(&before, Some(loss));
            let model = optimizer.step(0.01, before, grads, Share::EVEN);
            (losses, parameters(&model))
        })
    };
    assert_eq!(trained(true), trained(false));
}

/// Its first step makes the memory that a graph needs.
#[test]
fn a_first_sharded_step_is_not_captured() {
    let Some(count) = devices_with("captured::a_first_sharded_step_is_not_captured", &LATE) else { return };
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut optimizer = ShardedOptimizer::new(&ranks, AdamWConfig::new());
        let mut model = Some(used(&device));
        let error = Graph::capture_after(&device, 0, || {
            let before = model.take().unwrap();
            let grads = ranks.backward(&before, Some(before.loss(&[ranks.rank()], &device)));
            model = Some(optimizer.step(0.01, before, grads, Share::EVEN));
        })
        .unwrap_err();
        assert!(matches!(error, RocmError::Capture { .. }), "{error}");
    });
}

/// A rank that lacks a gradient reads whether another rank has it.
#[test]
fn a_missing_gradient_is_not_captured() {
    let Some(count) = devices_with("captured::a_missing_gradient_is_not_captured", &LATE) else { return };
    on_ranks(count, |mut ranks| {
        let device = ranks.communicator().device();
        let net = Net::<B>::new(&device, 0);
        let (x, y) = samples::<B>(&indices(&ranks, 0), &device);
        let captured = Graph::capture(&device, || {
            let loss = (net.forward(x.clone()) - y.clone()).powi_scalar(2).mean();
            let grads = ranks.backward(&net, Some(loss));
            ranks.reduce(&net, grads, Share::EVEN)
        });
        let error = captured.map(drop).unwrap_err();
        assert!(matches!(error, RocmError::Capture { op: "a read", .. }), "{error}");
        let _ = take_last_error();
    });
}

/// A graph that reduces gradients computed before the capture leaves them as they are: each replay
/// has the same results.
#[test]
fn replays_reduce_the_gradients_of_before_the_capture() {
    const TEST: &str = "captured::replays_reduce_the_gradients_of_before_the_capture";
    let Some(count) = devices_with(TEST, &LATE) else { return };
    let all: usize = (0..count).map(|rank| 2 + rank).sum();
    on_ranks(count, |ranks| {
        let mut ranks = ranks.with_bucket_bytes(1);
        let device = ranks.communicator().device();
        let net = used(&device);
        let own: Vec<usize> = (0..2 + ranks.rank()).collect();
        let share = || Share::of(own.len(), all);
        let backward = |ranks: &DataParallel| ranks.backward(&net, Some(net.loss(&own, &device)));
        let eager = backward(&ranks);
        let expected = gradients(&net, &ranks.reduce(&net, eager, share()));
        let mut before = Some(backward(&ranks));
        let reduce = || ranks.reduce(&net, before.take().unwrap(), share());
        let (graph, reduced) = Graph::capture_after(&device, 0, reduce).unwrap();
        for _ in 0..3 {
            graph.replay().unwrap();
            assert_eq!(gradients(&net, &reduced), expected);
        }
    });
}

/// The flags of missing gradients are made with the buckets. A graph that never runs writes nothing.
#[test]
fn buckets_that_a_capture_plans_serve_steps_outside_of_it() {
    const TEST: &str = "captured::buckets_that_a_capture_plans_serve_steps_outside_of_it";
    let Some(count) = devices_with(TEST, &LATE) else { return };
    on_ranks(count, |mut ranks| {
        let device = ranks.communicator().device();
        let net = Net::<B>::new(&device, 0);
        let (x, y) = samples::<B>(&indices(&ranks, 0), &device);
        let step = |ranks: &mut DataParallel| {
            let loss = (net.forward(x.clone()) - y.clone()).powi_scalar(2).mean();
            let grads = ranks.backward(&net, Some(loss));
            ranks.reduce(&net, grads, Share::EVEN)
        };
        let mut others = DataParallel::new(ranks.communicator().clone());
        let expected = gradients(&net, &step(&mut others));
        let captured = Graph::capture(&device, || is_capturing().then(|| step(&mut ranks)));
        assert!(captured.is_err(), "it reads which gradients are missing");
        let _ = take_last_error();
        let found = gradients(&net, &step(&mut ranks));
        assert!(found.iter().any(Option::is_none), "a gradient is missing");
        assert_eq!(found, expected);
    });
}

#[derive(Module, Debug)]
struct Normed<B: Backend> {
    first: Linear<B>,
    norm: SyncBatchNorm<B>,
    columns: ColumnLinear<B>,
    rows: RowLinear<B>,
}

/// Batch norm over all ranks and divided layers: collectives forward and backward, of another group
/// than the gradients'.
#[test]
fn layers_with_collectives_as_a_graph() {
    let Some(count) = devices_with("captured::layers_with_collectives_as_a_graph", &LATE) else { return };
    let trained = |captured| {
        let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
        let others = Communicator::local(&devices).unwrap();
        on_ranks(count, |mut ranks| {
            let device = ranks.communicator().device();
            let layers = &others[ranks.rank()];
            let [wide, narrow] = [16, 1];
            let net = Net::<B>::new(&device, 3);
            let norm: BatchNorm<B> = BatchNormConfig::new(9).with_momentum(0.3).init(&device);
            let linear = |from, to, first| filled(LinearConfig::new(from, to).init(&device), first);
            let mut model = Some(Normed {
                first: net.first,
                norm: SyncBatchNorm::of(norm, layers),
                columns: ColumnLinear::of(linear(9, wide, 40), layers),
                rows: RowLinear::of(linear(wide, narrow, 900), layers),
            });
            let mut optimizer = AdamConfig::new().init();
            let losses = train(&mut ranks, captured, |ranks, x, y| {
                let before = model.take().unwrap();
                let x = before.norm.forward(before.first.forward(x));
                let x = before.rows.forward(activation::tanh(before.columns.forward(x)));
                let loss = (x - y).powi_scalar(2).mean();
                let grads = ranks.backward(&before, Some(loss.clone()));
                let grads = ranks.reduce(&before, grads, Share::EVEN);
                model = Some(optimizer.step(0.01, before, grads));
                ranks.mean(loss.inner(), Share::EVEN)
            });
            let model = model.unwrap();
            let statistics = [&model.norm.running_mean, &model.norm.running_var];
            let statistics = statistics.map(|state| state.value_sync().into_data().to_vec::<f64>().unwrap());
            (losses, parameters(&model), statistics)
        })
    };
    let (found, expected) = (trained(true), trained(false));
    assert!(expected[0].0[0] != expected[0].0[1], "the steps differ");
    assert_eq!(found, expected);
}

/// The same numbers on every device.
fn filled(layer: Linear<B>, first: usize) -> Linear<B> {
    let numbers = |count: usize, first: usize| -> Vec<f64> {
        (first..first + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect()
    };
    let [from, to] = layer.weight.dims();
    let device = layer.weight.device();
    let weight = TensorData::new(numbers(from * to, first), [from, to]);
    let bias = TensorData::new(numbers(to, first + from * to), [to]);
    Linear { weight: Param::from_data(weight, &device), bias: Some(Param::from_data(bias, &device)) }
}
