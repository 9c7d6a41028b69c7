//! Parameters that a module or several units of a divided model hold twice, gradients of several
//! batches, and dropout.

use burn::nn::{Dropout, DropoutConfig};
use burn::optim::GradientsAccumulator;
use burn::tensor::Distribution;
use burn_rocm_nn_022::amp::Precision;

use crate::*;

/// A weight that is used twice: at two places, or at one.
#[derive(Module, Debug)]
struct Twice {
    first: Linear,
    block: Linear,
    again: Option<Param<Tensor<2>>>,
    last: Linear,
}

fn linear(from: usize, to: usize, seed: usize, device: &Device) -> Linear {
    LinearConfig::new(from, to).init(device).map(&mut Fill(1000 * seed))
}

fn hidden(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    x.clone() + activation::tanh(layer.forward(x))
}

fn error(last: &Linear, weight: Tensor<2>, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    (last.forward(activation::tanh(x.matmul(weight.transpose()))) - y).powi_scalar(2).mean()
}

impl Twice {
    fn new(seed: usize, at_two_places: bool, device: &Device) -> Self {
        let first = linear(FEATURES, 9, seed, device);
        let again = at_two_places.then(|| first.weight.clone());
        Self {
            first,
            block: linear(9, 9, seed + 1, device),
            again,
            last: linear(FEATURES, 1, seed + 2, device),
        }
    }

    fn loss(&self, indices: &[usize], device: &Device) -> Tensor<1> {
        let (x, y) = samples(indices, device);
        let weight = self.again.as_ref().unwrap_or(&self.first.weight).val();
        error(&self.last, weight, hidden(&self.block, self.first.forward(x)), y)
    }

    /// The parameters, with the weight once. The places must have the same bits.
    fn once(&self) -> Vec<Option<Vec<f64>>> {
        let mut all = numbers(self, None);
        if self.again.is_some() {
            assert_eq!(all.remove(4), all[0], "the places have one value");
        }
        all
    }
}

fn parts(ranks: &DataParallel) -> Vec<burn_rocm_nn_022::parallel::Part> {
    Shards::new(50, 16, ranks.rank(), ranks.size()).shuffled(3).epoch(0).collect()
}

fn config() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.05)
}

/// With a sharded optimizer, with a whole one, and with Burn's whose step this crate takes. The
/// reference has the weight at one place, and one device.
#[test]
fn a_weight_at_two_places_trains_as_one() {
    let Some(count) = devices("tied::a_weight_at_two_places_trains_as_one") else { return };
    macro_rules! trained {
        ($ranks:ident, $device:ident, $two:expr, |$net:ident, $grads:ident, $share:ident| $step:expr) => {{
            // Only rank 0 begins with the right parameters.
            let mut $net = $ranks.broadcast(Twice::new(20 * $ranks.rank(), $two, &$device));
            for part in parts(&$ranks) {
                let loss = (!part.indices.is_empty()).then(|| $net.loss(&part.indices, &$device));
                let $grads = $ranks.backward(&$net, loss);
                let $share = part.share;
                $net = $step;
            }
            $net.once()
        }};
    }
    let expected = on_ranks(1, |ranks, device| {
        let mut optimizer = config().init();
        trained!(ranks, device, false, |net, grads, _share| optimizer.step(0.02, net, grads))
    })
    .remove(0);
    let sharded = on_ranks(count, |ranks, device| {
        let mut optimizer = ShardedOptimizer::new(&ranks, config()).with_bucket_bytes(300);
        trained!(ranks, device, true, |net, grads, share| optimizer.step(0.02, net, grads, share))
    });
    let whole = on_ranks(count, |mut ranks, device| {
        let mut optimizer = config().init();
        trained!(ranks, device, true, |net, grads, share| {
            let grads = ranks.reduce(&net, grads, share);
            optimizer.step(0.02, net, grads)
        })
    });
    let burns = on_ranks(count, |mut ranks, device| {
        let mut optimizer: burn::optim::ModuleOptimizer =
            burn::optim::AdamWConfig::new().with_weight_decay(0.05).init();
        trained!(ranks, device, true, |net, grads, share| {
            let grads = ranks.reduce(&net, grads, share);
            burn_rocm_nn_022::optim::step(&mut optimizer, 0.02, net, grads)
        })
    });
    for (what, found) in [("sharded", sharded), ("whole", whole), ("Burn's", burns)] {
        for rank in &found {
            agree(what, rank, &expected, 4);
            assert_eq!(rank, &found[0], "{what}: the same bits on every rank");
        }
    }
}

/// Gives each place a tensor of its own, as loading a record does.
struct Apart;

impl ModuleMapper for Apart {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| Tensor::from_data(value.to_data(), (&value.device(), value.dtype())).require_grad())
    }
}

/// The places are one parameter on all ranks, if those of rank 0 or of the other ranks are parted.
#[test]
fn a_weight_parted_on_some_ranks_trains_as_one() {
    let Some(count) = devices("tied::a_weight_parted_on_some_ranks_trains_as_one") else { return };
    let train = |count: usize, two: bool, parted: fn(usize) -> bool| {
        on_ranks(count, |mut ranks, device| {
            let net = Twice::new(20 * ranks.rank(), two, &device);
            let net = if parted(ranks.rank()) { net.map(&mut Apart) } else { net };
            let mut net = ranks.broadcast(net);
            let mut optimizer = config().init();
            for part in parts(&ranks) {
                let loss = (!part.indices.is_empty()).then(|| net.loss(&part.indices, &device));
                let grads = ranks.backward(&net, loss);
                let grads = ranks.reduce(&net, grads, part.share);
                net = optimizer.step(0.02, net, grads);
            }
            net.once()
        })
    };
    let expected = train(1, false, |_| false).remove(0);
    for (what, parted) in [("rank 0", (|rank| rank == 0) as fn(usize) -> bool), ("others", |rank| rank > 0)] {
        let found = train(count, true, parted);
        for rank in &found {
            agree(what, rank, &expected, 4);
            assert_eq!(rank, &found[0], "{what}: the same bits on every rank");
        }
    }
}

/// A clone that was trained apart has the id of its original, but is no part of it.
#[test]
fn a_clone_with_other_values_stays_apart() {
    let Some(count) = devices("tied::a_clone_with_other_values_stays_apart") else { return };
    struct Double;
    impl ModuleMapper for Double {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| (value.detach() * 2.0).detach().require_grad())
        }
    }
    #[derive(Module, Debug)]
    struct Pair {
        trained: Linear,
        apart: Linear,
    }
    on_ranks(count, |ranks, device| {
        let trained = linear(FEATURES, 1, 0, &device);
        let net = ranks.broadcast(Pair { apart: trained.clone().map(&mut Double), trained });
        let before = (numbers(&net.trained, None), numbers(&net.apart, None));
        assert_ne!(before.0, before.1);
        let converted = Precision::new(burn::tensor::FloatDType::F32).convert(&net);
        let double = |values: Vec<f64>| values.into_iter().map(|value| 2.0 * value).collect::<Vec<_>>();
        let expected: Vec<_> =
            numbers(&converted.trained, None).into_iter().map(|values| values.map(double)).collect();
        assert_eq!(numbers(&converted.apart, None), expected);
        let (x, y) = samples(&[1, 2, 3], &device);
        let loss = (net.trained.forward(x) - y).powi_scalar(2).mean();
        let grads = ranks.backward(&net, Some(loss));
        let net = ShardedOptimizer::new(&ranks, SgdConfig::new()).step(0.1, net, grads, Share::EVEN);
        assert_ne!(numbers(&net.trained, None), before.0);
        assert_eq!(numbers(&net.apart, None), before.1);
    });
}

/// All ranks reduce the gradients in one order, also those without gradients, if the module lists a
/// frozen clone before its original.
#[test]
fn a_frozen_clone_keeps_the_order_of_gradients() {
    let Some(count) = devices("tied::a_frozen_clone_keeps_the_order_of_gradients") else { return };
    #[derive(Module, Debug)]
    struct Target {
        frozen: Linear,
        body: Linear,
        head: Linear,
    }
    let found = on_ranks(count, |mut ranks, device| {
        let [head, body] = [0, 2].map(|seed| linear(FEATURES, 1, seed, &device));
        let net = Target { frozen: head.clone().no_grad(), body, head };
        let loss = (ranks.rank() == 0).then(|| {
            let (x, y) = samples(&[1, 2, 3], &device);
            (net.body.forward(x.clone()) + net.head.forward(x) * 2.0 - y).powi_scalar(2).mean()
        });
        let share = Share::of(if loss.is_some() { 3 } else { 0 }, 3);
        let grads = ranks.backward(&net, loss);
        let own = numbers(&net, Some(&grads));
        (own, numbers(&net, Some(&ranks.reduce(&net, grads, share))))
    });
    let expected = &found[0].0;
    assert_ne!(expected[2], expected[4], "the layers have other gradients");
    for (rank, (_, reduced)) in found.iter().enumerate() {
        assert_eq!(reduced, expected, "rank {rank}");
    }
}

/// The gradient of a converted copy is that of both places.
#[test]
fn a_converted_copy_keeps_its_ties() {
    let device = Device::rocm(0).autodiff();
    let grads = |at_two_places: bool| {
        let net =
            Precision::new(burn::tensor::FloatDType::F32).convert(&Twice::new(0, at_two_places, &device));
        let (x, y) = samples(&[1, 2, 3], &device);
        let (x, y) = (x.cast(DType::F32), y.cast(DType::F32));
        let weight = net.again.as_ref().unwrap_or(&net.first.weight).val();
        let loss = error(&net.last, weight, hidden(&net.block, net.first.forward(x)), y);
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        numbers(&net.first, Some(&grads))
    };
    assert_eq!(grads(true), grads(false));
}

/// The last unit of [`Twice`].
#[derive(Module, Debug)]
struct Last {
    again: Param<Tensor<2>>,
    last: Linear,
}

/// A weight of two units, with the gradients of two batches for each step. The reference is one
/// device with a whole optimizer.
#[test]
fn a_weight_of_two_units_and_accumulated_gradients() {
    let Some(count) = devices("tied::a_weight_of_two_units_and_accumulated_gradients") else { return };
    let expected = on_ranks(1, |ranks, device| {
        let mut optimizer = config().init();
        let mut net = Twice::new(0, false, &device);
        for parts in parts(&ranks).chunks(2) {
            let mut sum = GradientsAccumulator::new();
            for part in parts {
                sum.accumulate(&net, ranks.backward(&net, Some(net.loss(&part.indices, &device))));
            }
            net = optimizer.step(0.02, net, sum.grads());
        }
        net.once()
    })
    .remove(0);
    let folder = std::env::temp_dir().join(format!("burn-rocm-accumulated22-{}", std::process::id()));
    let found = on_ranks(count, |ranks, device| {
        // Only rank 0 begins with the right parameters.
        let seed = 20 * ranks.rank();
        let first = linear(FEATURES, 9, seed, &device);
        let again = first.weight.clone();
        let last = || Last { again, last: linear(FEATURES, 1, seed + 2, &device) };
        let block = |_| linear(9, 9, seed + 1, &device);
        let settings = ShardedModelConfig::new(config());
        let mut model = ShardedModel::build(&ranks, settings, || first, 1, block, last).unwrap();
        for parts in parts(&ranks).chunks(2) {
            for (at, part) in parts.iter().enumerate() {
                let (x, y) = samples(&part.indices, &device);
                let first = |first: &Linear| first.forward(x.clone());
                let block = |_: usize, block: &Linear, x| hidden(block, x);
                let last = |last: &Last, x| error(&last.last, last.again.val(), x, y);
                let _loss = match at {
                    0 => model.accumulate(part.share, first, block, last),
                    _ => model.step(0.02, part.share, first, block, last),
                };
                if at == 0 {
                    let error = model.save(&folder).unwrap_err();
                    assert!(matches!(error, burn_rocm::RocmError::Invalid { .. }), "{error}");
                }
            }
        }
        let last = model.whole_last();
        let mut all = numbers(&model.whole_first(), None);
        assert_eq!(numbers(&last, None)[0], all[0], "one value");
        all.extend(numbers(&model.whole_block(0), None));
        all.extend(numbers(&last.last, None));
        all
    });
    for rank in &found {
        agree("a weight of two units", rank, &expected, 4);
        assert_eq!(rank, &found[0], "the same bits on every rank");
    }
}

/// A block that drops features.
#[derive(Module, Debug)]
struct Drops {
    feed: Linear,
    dropout: Dropout,
}

/// The second forward pass draws the numbers of the first one. The reference is the whole model in
/// one graph, on devices with the same seeds. Afterwards these go on with the same numbers.
#[test]
fn dropout_draws_the_same_numbers_again() {
    let Some(count) = devices("tied::dropout_draws_the_same_numbers_again") else { return };
    #[derive(Module, Debug)]
    struct Whole {
        first: Linear,
        blocks: Vec<Drops>,
        last: Linear,
    }
    const LAYERS: usize = 2;
    let block = |index: usize, device: &Device| Drops {
        feed: linear(9, 9, 1 + index, device),
        dropout: DropoutConfig::new(0.4).init(),
    };
    let run = |block: &Drops, x: Tensor<2>| x.clone() + block.dropout.forward(hidden(&block.feed, x));
    let loss = |last: &Linear, x: Tensor<2>, y: Tensor<2>| (last.forward(x) - y).powi_scalar(2).mean();
    let seeded = |ranks: &DataParallel, device: &Device| {
        device.clone().inner().seed(7 + ranks.rank() as u64);
        let begin = 5 * ranks.rank();
        samples(&(begin..begin + 5).collect::<Vec<_>>(), device)
    };
    let drawn = |device: &Device| {
        let drawn = Tensor::<1>::random([5], Distribution::Default, &device.clone().inner());
        Some(drawn.into_data().iter::<f64>().collect::<Vec<f64>>())
    };
    let expected = on_ranks(count, |ranks, device| {
        let (x, y) = seeded(&ranks, &device);
        let mut net = Whole {
            first: linear(FEATURES, 9, 0, &device),
            blocks: (0..LAYERS).map(|index| block(index, &device)).collect(),
            last: linear(9, 1, 9, &device),
        };
        let mut optimizer = ShardedOptimizer::new(&ranks, config());
        for _ in 0..4 {
            let x = net.blocks.iter().fold(net.first.forward(x.clone()), |x, block| run(block, x));
            let grads = ranks.backward(&net, Some(loss(&net.last, x, y.clone())));
            net = optimizer.step(0.02, net, grads, Share::EVEN);
        }
        (numbers(&net, None), drawn(&device))
    });
    let found = on_ranks(count, |ranks, device| {
        let (x, y) = seeded(&ranks, &device);
        let mut model = ShardedModel::build(
            &ranks,
            ShardedModelConfig::new(config()),
            || linear(FEATURES, 9, 0, &device),
            LAYERS,
            |index| block(index, &device),
            || linear(9, 1, 9, &device),
        )
        .unwrap();
        for _ in 0..4 {
            model.step(
                0.02,
                Share::EVEN,
                |first: &Linear| first.forward(x.clone()),
                |_, block: &Drops, x| run(block, x),
                |last: &Linear, x| loss(last, x, y.clone()),
            );
        }
        let mut all = numbers(&model.whole_first(), None);
        all.extend((0..LAYERS).flat_map(|index| numbers(&model.whole_block(index), None)));
        all.extend(numbers(&model.whole_last(), None));
        (all, drawn(&device))
    });
    for ((found, drawn), (expected, expected_drawn)) in found.iter().zip(&expected) {
        agree("dropout", found, expected, 4);
        assert_eq!(drawn, expected_drawn, "the devices go on alike");
    }
}
