//! Data parallel training with Burn 0.22 on the CPU provider with two and four devices, a thread
//! for each. The reference is one device with all samples.
#![allow(missing_docs, clippy::unwrap_used)]

#[expect(unreachable_pub, reason = "the file is a module of a library, too")]
#[path = "../../../tests/src/again.rs"]
mod again;
#[path = "parallel22/global.rs"]
mod global;
#[path = "parallel22/layers.rs"]
mod layers;
#[path = "parallel22/loader.rs"]
mod loader;
#[path = "parallel22/tied.rs"]
mod tied;
#[path = "parallel22/units.rs"]
mod units;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData, activation};
use burn_rocm::graph::{Graph, WARM_UPS};
use burn_rocm::{Communicator, RocmDevice};
use burn_rocm_nn_022::graph;
use burn_rocm_nn_022::optim::{AdamWConfig, SgdConfig};
use burn_rocm_nn_022::parallel::{
    DataParallel, ShardedModel, ShardedModelConfig, ShardedOptimizer, Shards, Share, clip_global_norm,
};
use burn_rocm_nn_022::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig};

/// Runs a test in processes with two and with four devices, in which a collective that never ends
/// is an error after a time. In such a process, returns the number. If `BURN_ROCM_PROVIDER` names another
/// provider, the one process has all devices of it.
fn devices(test: &str) -> Option<usize> {
    devices_with(test, &[])
}

/// [`devices`] with more variables.
fn devices_with(test: &str, more: &[(&str, &str)]) -> Option<usize> {
    const CHILD: &str = "PARALLEL22_TEST_CHILD";
    if let Ok(count) = std::env::var(CHILD) {
        return Some(count.parse().unwrap());
    }
    let named = std::env::var("BURN_ROCM_PROVIDER").unwrap_or_default();
    let (provider, counts, timeout) = match named.as_str() {
        "" | "cpu" => ("cpu", vec!["2".to_owned(), "4".to_owned()], "20"),
        name => {
            let count = RocmDevice::all().unwrap().len();
            assert!(count >= 2, "the {name} provider has {count} devices, and collectives need 2");
            // A GPU compiles kernels while the other ranks wait.
            (name, vec![count.to_string()], "120")
        }
    };
    for count in &counts {
        let environment = [
            (CHILD, count.as_str()),
            ("BURN_ROCM_CPU_DEVICES", count),
            ("BURN_ROCM_PROVIDER", provider),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", timeout),
        ];
        again::again(&["--exact", test], &[&environment, more].concat());
    }
    None
}

/// Runs a function on each of `count` devices, in a thread for each.
fn on_ranks<T: Send>(count: usize, run: impl Fn(DataParallel, Device) -> T + Sync) -> Vec<T> {
    let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
    let communicators = Communicator::local(&devices).unwrap();
    std::thread::scope(|scope| {
        let run = &run;
        let spawn = |communicator: Communicator| {
            let device = Device::rocm(communicator.rank()).autodiff();
            scope.spawn(move || run(DataParallel::new(communicator), device))
        };
        let threads: Vec<_> = communicators.into_iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const FEATURES: usize = 6;

#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
}

/// Burn keeps a statistic's last update aside until the next one. It must not come back after a
/// broadcast.
#[test]
fn a_broadcast_replaces_what_a_step_has_left() {
    let Some(count) = devices("a_broadcast_replaces_what_a_step_has_left") else { return };
    let running = |model: &Normed| -> Vec<f32> {
        model.valid().norm.running_mean.value().into_data().iter::<f32>().collect()
    };
    let found = on_ranks(count, |ranks, device| {
        let stepped = || {
            let norm = BatchNormConfig::new(FEATURES).init(&device);
            let x = samples(&[3 * ranks.rank(), 3 * ranks.rank() + 1], &device).0.cast(DType::F32);
            drop(norm.forward(x));
            Normed { norm }
        };
        let (own, whole) = (stepped(), ranks.broadcast(stepped()));
        let before = running(&own);
        ranks.broadcast_statistics(&own);
        (before, running(&whole), running(&own))
    });
    assert_ne!(found[0].0, found[1].0);
    for (rank, (_, whole, statistics)) in found.iter().enumerate() {
        assert_eq!(whole, &found[0].0, "rank {rank}");
        assert_eq!(statistics, &found[0].0, "rank {rank}");
    }
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: LayerNorm,
    last: Linear,
    /// Used by some ranks only.
    extra: Vec<Linear>,
}

/// Sets the parameters, in f64, so that rounding is far below what a wrong average changes.
struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let count = tensor.shape().num_elements();
        let values: Vec<f64> = (self.0..self.0 + count).map(|i| 0.5 * (1.7 * i as f64).sin()).collect();
        self.0 += count;
        let device = tensor.device().inner();
        let filled = Tensor::<D>::from_data(TensorData::new(values, tensor.shape()), (&device, DType::F64));
        Param::from_mapped_value(id, Tensor::from_inner(filled).require_grad(), mapper)
    }
}

impl Net {
    fn new(device: &Device, seed: usize) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let net = Self {
            first: linear(FEATURES, 9),
            norm: LayerNormConfig::new(9).init(device),
            last: linear(9, 1),
            extra: vec![linear(FEATURES, 1), linear(FEATURES, 1), linear(FEATURES, 1)],
        };
        net.map(&mut Fill(1000 * seed))
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(activation::tanh(self.norm.forward(self.first.forward(x))))
    }

    fn loss(&self, indices: &[usize], device: &Device) -> Tensor<1> {
        let (x, y) = samples(indices, device);
        (self.forward(x) - y).powi_scalar(2).mean()
    }
}

fn samples(indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<2>) {
    let sample = |&index: &usize| {
        let x = [0.7, 1.3, 2.1, 2.9, 0.3, 1.9].map(|step: f64| (index as f64 * step).sin());
        (x, x[0] * x[1] - x[4])
    };
    let (x, y): (Vec<_>, Vec<f64>) = indices.iter().map(sample).unzip();
    let tensor = |data: Vec<f64>, width| {
        Tensor::from_data(TensorData::new(data, [indices.len(), width]), (device, DType::F64))
    };
    (tensor(x.concat(), FEATURES), tensor(y, 1))
}

/// The parameters, or their gradients, in the order of the module.
fn numbers(module: &impl Module, grads: Option<&GradientsParams>) -> Vec<Option<Vec<f64>>> {
    struct Read<'a>(Option<&'a GradientsParams>, Vec<Option<Vec<f64>>>);
    impl ModuleVisitor for Read<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = match self.0 {
                Some(grads) => grads.get::<D>(param.id),
                None => Some(param.val()),
            };
            self.1.push(tensor.map(|tensor| tensor.into_data().iter::<f64>().collect()));
        }
    }
    let mut read = Read(grads, Vec::new());
    module.visit(&mut read);
    read.1
}

/// Some 2^9 sums and products of numbers near 1 make a loss and its gradients, each rounded by
/// 2^-53 of it. `steps` steps may each amplify the errors before it, all together by 2^6.
fn limit(steps: usize) -> f64 {
    2f64.powi(9 + 6 - 53) * steps as f64
}

fn agree(what: &str, found: &[Option<Vec<f64>>], expected: &[Option<Vec<f64>>], steps: usize) {
    let present = |all: &[Option<Vec<f64>>]| all.iter().map(Option::is_some).collect::<Vec<_>>();
    assert_eq!(present(found), present(expected), "{what}");
    for (found, expected) in found.iter().flatten().flatten().zip(expected.iter().flatten().flatten()) {
        assert!((found - expected).abs() <= limit(steps), "{what}: {found} instead of {expected}");
    }
}

const STEPS: usize = 12;

/// The parameters after three epochs of 50 samples in batches of 16, and each step's loss. The last
/// batch has 2 samples: fewer than four ranks.
macro_rules! trained {
    ($ranks:ident, $device:ident, $lr:expr, $optimizer:expr) => {{
        let mut ranks = $ranks;
        let mut optimizer = $optimizer;
        // Only rank 0 begins with the right parameters.
        let mut net = ranks.broadcast(Net::new(&$device, ranks.rank()));
        let mut losses = Vec::new();
        let shards = Shards::new(50, 16, ranks.rank(), ranks.size()).shuffled(3);
        for part in (0..3).flat_map(|epoch| shards.epoch(epoch)) {
            let (loss, grads) = match part.indices.is_empty() {
                true => {
                    (Tensor::<1>::zeros([1], (&$device.clone().inner(), DType::F64)), GradientsParams::new())
                }
                false => {
                    let loss = net.loss(&part.indices, &$device);
                    (loss.clone().inner(), ranks.backward(&net, Some(loss)))
                }
            };
            losses.push(ranks.mean(loss, part.share).into_data().iter::<f64>().next());
            let grads = ranks.reduce(&net, grads, part.share);
            net = optimizer.step($lr, net, grads);
        }
        let losses: Vec<f64> = losses.into_iter().flatten().collect();
        let mut all = numbers(&net, None);
        all.push(Some(losses));
        all
    }};
}

#[test]
fn ranks_train_as_one_device() {
    let Some(count) = devices("ranks_train_as_one_device") else { return };
    macro_rules! check {
        ($what:expr, $lr:expr, $optimizer:expr) => {
            let alone = on_ranks(1, |ranks, device| trained!(ranks, device, $lr, $optimizer)).remove(0);
            let losses = alone.last().unwrap().as_ref().unwrap();
            assert_eq!(losses.len(), STEPS);
            let epoch = |number: usize| losses[4 * number..][..4].iter().sum::<f64>();
            assert!(epoch(2) < 0.9 * epoch(0), "{} learns: {losses:?}", $what);
            let ranks = on_ranks(count, |ranks, device| trained!(ranks, device, $lr, $optimizer));
            for found in &ranks {
                agree($what, found, &alone, STEPS);
                assert_eq!(found, &ranks[0], "{}: the same bits on every rank", $what);
            }
            let small = on_ranks(count, |ranks, device| {
                let ranks = ranks.with_bucket_bytes(300);
                trained!(ranks, device, $lr, $optimizer)
            });
            assert_eq!(small, ranks, "{}: the same bits in other buckets", $what);
            let beside = on_ranks(count, |ranks, device| {
                let ranks = ranks.with_bucket_bytes(300).with_overlap(true);
                trained!(ranks, device, $lr, $optimizer)
            });
            assert_eq!(beside, ranks, "{}: the same bits beside the backward pass", $what);
        };
    }
    check!("SGD", 0.05, SgdConfig::new().init());
    check!("AdamW", 0.02, AdamWConfig::new().with_weight_decay(0.05).init());
    check!("Burn's AdamW", 0.02, burn::optim::AdamWConfig::new().with_weight_decay(0.05).init());
}

/// The streams of the CPU device run late. A bucket that does not wait for a gradient packs memory
/// that is not computed, which poison fills with NaN.
#[test]
fn a_bucket_waits_for_its_gradients_only() {
    let late = [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1")];
    let Some(count) = devices_with("a_bucket_waits_for_its_gradients_only", &late) else { return };
    let steps = |overlap: bool| {
        on_ranks(count, |ranks, device| {
            // A parameter in a bucket.
            let mut ranks = ranks.with_bucket_bytes(1).with_overlap(overlap);
            let net = Net::new(&device, 0);
            let indices: Vec<usize> = (4 * ranks.rank()..4 * (ranks.rank() + 1)).collect();
            let mut step = || {
                let grads = ranks.backward(&net, Some(net.loss(&indices, &device)));
                let grads = ranks.reduce(&net, grads, Share::EVEN);
                (ranks.last_overlap(), numbers(&net, Some(&grads)))
            };
            step();
            step()
        })
    };
    let (beside, after) = (steps(true), steps(false));
    for ((overlap, found), (_, expected)) in beside.iter().zip(&after) {
        assert_eq!(found, expected, "the same bits");
        assert_eq!((overlap.buckets, overlap.beside), (12, 12), "{overlap:?}");
        // The first layer's gradients come last; some op without work may come after them.
        assert!(overlap.before_end >= 9, "{overlap:?}");
    }
}

/// Layer 0 is used by rank 0 only, layer 1 by all others, layer 2 by nobody: it has no gradient on
/// any rank, as on one device.
#[test]
fn parameters_that_not_every_rank_used() {
    let Some(count) = devices("parameters_that_not_every_rank_used") else { return };
    let part = |rank: usize| (4 * rank..4 * (rank + 1)).collect::<Vec<usize>>();
    let results = on_ranks(count, |mut ranks, device| {
        let net = Net::new(&device, 0);
        let (x, _) = samples(&part(ranks.rank()), &device);
        let extra = net.extra[usize::from(ranks.rank() > 0)].forward(x.clone()).powi_scalar(2).sum();
        let loss = (net.forward(x).sum() + extra) / 4.0;
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        numbers(&net, Some(&ranks.reduce(&net, grads, Share::EVEN)))
    });
    let device = Device::rocm(0).autodiff();
    let net = Net::new(&device, 0);
    let x = |indices: &[usize]| samples(indices, &device).0;
    let all: Vec<usize> = (0..4 * count).collect();
    let loss = net.forward(x(&all)).sum()
        + net.extra[0].forward(x(&all[..4])).powi_scalar(2).sum()
        + net.extra[1].forward(x(&all[4..])).powi_scalar(2).sum();
    let grads = GradientsParams::from_grads((loss / (4 * count) as f64).backward(), &net);
    let expected = numbers(&net, Some(&grads));
    assert_eq!(expected.iter().filter(|grad| grad.is_none()).count(), 2, "weight and bias of layer 2");
    for found in &results {
        agree("unused", found, &expected, 1);
    }
    // Half the norm halves the gradients.
    let norm = expected.iter().flatten().flatten().map(|x| x * x).sum::<f64>().sqrt();
    let (clipped, found) = clip_global_norm(&net, grads, (norm / 2.0) as f32);
    let found = found.into_data().iter::<f64>().next().unwrap();
    assert!((found - norm).abs() <= limit(1) * norm, "{found} instead of {norm}");
    let factor = f64::from((norm / 2.0) as f32) / norm;
    let halves: Vec<_> = expected
        .iter()
        .map(|grad| grad.as_ref().map(|grad| grad.iter().map(|x| x * factor).collect()))
        .collect();
    agree("clipped", &numbers(&net, Some(&clipped)), &halves, 1);
}

/// A step that the ranks divide among themselves is the whole step, also after a stop: each half of
/// the training has an optimizer of its own, and the second one begins with the checkpoint of the
/// first. Without decay, parameters that no rank uses stay.
#[test]
fn a_divided_step_is_the_whole_step() {
    let Some(count) = devices("a_divided_step_is_the_whole_step") else { return };
    let config = || AdamWConfig::new().with_weight_decay(0.0);
    let parts = |ranks: &DataParallel| -> Vec<_> {
        Shards::new(50, 16, ranks.rank(), ranks.size()).shuffled(3).epoch(0).collect()
    };
    let whole = on_ranks(1, |ranks, device| {
        let mut optimizer = config().init();
        let mut net = Net::new(&device, 0);
        for part in parts(&ranks) {
            let grads = ranks.backward(&net, Some(net.loss(&part.indices, &device)));
            net = optimizer.step(0.02, net, grads);
        }
        numbers(&net, None)
    })
    .remove(0);
    let folder = std::env::temp_dir().join(format!("burn-rocm-sharded22-{}", std::process::id()));
    let found = on_ranks(count, |ranks, device| {
        let new = || ShardedOptimizer::new(&ranks, config()).with_bucket_bytes(300);
        let mut net = Net::new(&device, 0);
        let parts = parts(&ranks);
        for (half, parts) in parts.chunks(2).enumerate() {
            let mut optimizer = new();
            if half > 0 {
                net = optimizer.load(&folder, Net::new(&device, 5)).unwrap();
                assert!(net.first.weight.val().is_require_grad());
            }
            for part in parts {
                let loss = (!part.indices.is_empty()).then(|| net.loss(&part.indices, &device));
                let grads = ranks.backward(&net, loss);
                net = optimizer.step(0.02, net, grads, part.share);
            }
            if half == 0 {
                optimizer.save(&folder, &net).unwrap();
            }
        }
        numbers(&net, None)
    });
    std::fs::remove_dir_all(&folder).unwrap();
    for rank in &found {
        agree("a divided step", rank, &whole, 4);
        assert_eq!(rank, &found[0], "the same bits on every rank");
    }
}

/// Layers of one shape: only their paths tell them apart.
#[derive(Module, Debug)]
struct Two {
    a: Linear,
    b: Linear,
}

/// Training goes on with another layer: its parameters are not those of the checkpoint, whether the
/// model is whole on each rank or divided.
#[test]
fn the_parameters_of_another_layer_are_refused() {
    let Some(count) = devices("the_parameters_of_another_layer_are_refused") else { return };
    let folder = std::env::temp_dir().join(format!("burn-rocm-layers22-{}", std::process::id()));
    let refused = on_ranks(count, |ranks, device| {
        let two = |trains_a: bool| {
            let linear = || LinearConfig::new(3, 2).init(&device);
            match trains_a {
                true => Two { a: linear(), b: linear().no_grad() },
                false => Two { a: linear().no_grad(), b: linear() },
            }
        };
        let module = folder.join("module");
        let new = || ShardedOptimizer::new(&ranks, SgdConfig::new());
        let saved = ranks.broadcast(two(true));
        new().save(&module, &saved).unwrap();
        let loaded = new().load(&module, two(true)).unwrap();
        assert_eq!(numbers(&loaded.a, None), numbers(&saved.a, None));

        let parts = folder.join("parts");
        let model = |trains_a: bool| {
            let config = ShardedModelConfig::new(SgdConfig::new());
            let block = |_: usize| two(true);
            ShardedModel::build(&ranks, config, || two(trains_a), 0, block, || two(true)).unwrap()
        };
        model(true).save(&parts).unwrap();
        model(true).load(&parts).unwrap();
        let of_module = new().load(&module, two(false)).map(drop).unwrap_err();
        let of_parts = model(false).load(&parts).unwrap_err();
        [of_module, of_parts].map(|error| error.to_string())
    });
    std::fs::remove_dir_all(&folder).unwrap();
    for [of_module, of_parts] in refused {
        assert!(of_module.contains("b.weight") && of_module.contains("a.weight"), "{of_module}");
        assert!(of_parts.contains("first.b.weight") && of_parts.contains("first.a.weight"), "{of_parts}");
    }
}

/// The units of a divided model, as one module.
#[derive(Module, Debug)]
struct Units {
    first: Linear,
    blocks: Vec<Linear>,
    last: Linear,
}

/// Parameters that are divided too are those of the whole model on one device, which has all
/// samples. A block is not used, and a step has ranks without samples. Also after a load by another
/// model.
#[test]
fn a_divided_model_is_the_whole_model() {
    let Some(count) = devices("a_divided_model_is_the_whole_model") else { return };
    const BLOCKS: usize = 3;
    let linear = |from, to, seed, device: &Device| {
        LinearConfig::new(from, to).init(device).map(&mut Fill(1000 * seed))
    };
    let run = |index: usize, block: &Linear, x: Tensor<2>| match index {
        1 => x,
        _ => x.clone() + activation::tanh(block.forward(x)),
    };
    let loss = |last: &Linear, x: Tensor<2>, y: Tensor<2>| (last.forward(x) - y).powi_scalar(2).mean();
    let parts = |ranks: &DataParallel| -> Vec<_> {
        Shards::new(50, 16, ranks.rank(), ranks.size()).shuffled(3).epoch(0).collect()
    };
    // Without decay, the parameters of the unused block stay.
    let config = || AdamWConfig::new().with_weight_decay(0.0);
    let whole = on_ranks(1, |ranks, device| {
        let mut optimizer = config().init();
        let mut net = Units {
            first: linear(FEATURES, 9, 0, &device),
            blocks: (0..BLOCKS).map(|index| linear(9, 9, 1 + index, &device)).collect(),
            last: linear(9, 1, 9, &device),
        };
        for part in parts(&ranks) {
            let (x, y) = samples(&part.indices, &device);
            let x = net.first.forward(x);
            let x = net.blocks.iter().enumerate().fold(x, |x, (index, block)| run(index, block, x));
            let grads = ranks.backward(&net, Some(loss(&net.last, x, y)));
            net = optimizer.step(0.02, net, grads);
        }
        numbers(&net, None)
    })
    .remove(0);
    let folder = std::env::temp_dir().join(format!("burn-rocm-model22-{}", std::process::id()));
    let found = on_ranks(count, |ranks, device| {
        // Only rank 0 builds the right parameters.
        let build = |seed: usize| {
            ShardedModel::build(
                &ranks,
                ShardedModelConfig::new(config()),
                || linear(FEATURES, 9, seed, &device),
                BLOCKS,
                |index| linear(9, 9, seed + 1 + index, &device),
                || linear(9, 1, seed + 9, &device),
            )
            .unwrap()
        };
        let mut model = build(20 * ranks.rank());
        for (at, part) in parts(&ranks).into_iter().enumerate() {
            if at == 2 {
                model.save(&folder).unwrap();
                model = build(7);
                model.load(&folder).unwrap();
            }
            let (x, y) = samples(&part.indices, &device);
            let first = |first: &Linear| first.forward(x.clone());
            let loss = model.step(0.02, part.share, first, run, |last: &Linear, x| loss(last, x, y));
            // Also on a rank without samples.
            assert_eq!(loss.dtype(), DType::F64);
            assert!(ranks.mean(loss, part.share).into_scalar::<f64>() > 0.0);
        }
        let mut all = numbers(&model.whole_first(), None);
        all.extend((0..BLOCKS).flat_map(|index| numbers(&model.whole_block(index), None)));
        all.extend(numbers(&model.whole_last(), None));
        all
    });
    std::fs::remove_dir_all(&folder).unwrap();
    for rank in &found {
        agree("a divided model", rank, &whole, 4);
        assert_eq!(rank, &found[0], "the same bits on every rank");
    }
}

/// Steps as a graph have the bits of the same steps one by one: with gradients reduced after the
/// pass and beside it, and with a sharded optimizer.
#[test]
fn steps_of_ranks_are_captured() {
    let late = [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1")];
    let Some(count) = devices_with("steps_of_ranks_are_captured", &late) else { return };
    let trained = |captured: bool, overlap: bool, sharded: bool| {
        on_ranks(count, |ranks, device| {
            let mut ranks = ranks.with_bucket_bytes(1).with_overlap(overlap);
            let mut net = Net::new(&device, 0);
            // A rank that lacks a gradient reads whether another rank has it.
            net.extra.clear();
            let mut model = Some(net);
            let mut whole = AdamWConfig::new().init();
            let mut parts = ShardedOptimizer::new(&ranks, AdamWConfig::new()).with_bucket_bytes(300);
            let batch = |rank: usize, step: usize| {
                let first = 4 * (step * count + rank);
                samples(&(first..first + 4).collect::<Vec<_>>(), &device)
            };
            let rank = ranks.rank();
            let mut step = |x: Tensor<2>, y: Tensor<2>| {
                let before = model.take().unwrap();
                let loss = (before.forward(x) - y).powi_scalar(2).mean();
                let grads = ranks.backward(&before, Some(loss.clone()));
                model = Some(match sharded {
                    true => parts.step(0.01, before, grads, Share::EVEN),
                    false => {
                        let grads = ranks.reduce(&before, grads, Share::EVEN);
                        whole.step(0.01, before, grads)
                    }
                });
                ranks.mean(loss.inner(), Share::EVEN)
            };
            let read = |loss: Tensor<1>| loss.into_data().iter::<f64>().collect::<Vec<_>>();
            let losses: Vec<_> = if captured {
                let (x, y) = batch(rank, 0);
                let (x, y) = (x + 0.0, y + 0.0);
                let own = RocmDevice::new(rank);
                let (graph, loss) = Graph::capture(&own, || step(x.clone(), y.clone())).unwrap();
                let replay = |number| {
                    let (new_x, new_y) = batch(rank, number);
                    graph::write(&x, new_x).unwrap();
                    graph::write(&y, new_y).unwrap();
                    graph.replay().unwrap();
                    read(loss.clone())
                };
                (1..=4).map(replay).collect()
            } else {
                let one = |number: usize| {
                    let (x, y) = batch(rank, number.saturating_sub(WARM_UPS - 1));
                    read(step(x, y))
                };
                (0..WARM_UPS + 4).map(one).skip(WARM_UPS).collect()
            };
            (losses, numbers(&model.unwrap(), None))
        })
    };
    for (overlap, sharded) in [(false, false), (true, false), (false, true)] {
        let one_by_one = trained(false, overlap, sharded);
        assert!(one_by_one[0].0[0] != one_by_one[0].0[1], "the steps differ");
        assert_eq!(trained(true, overlap, sharded), one_by_one, "overlap {overlap}, sharded {sharded}");
    }
}
