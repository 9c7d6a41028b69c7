//! Parameters that a module holds at two places, which share one leaf.

use burn::module::ModuleMapper;
use burn::optim::Optimizer;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{DType, FloatDType, Int};
use burn_rocm::graph::{Graph, WARM_UPS};
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::optim::{AdamWConfig, SgdConfig};
use burn_rocm_nn::parallel::{Part, ShardedOptimizer, Shards, Share};

use crate::model::linear;
use crate::*;

pub(super) const TOKENS: usize = 11;
pub(super) const WIDTH: usize = 5;
const STEPS: usize = 8;

/// A model of tokens whose output layer has the embedding's weight.
#[derive(Module, Debug)]
pub(super) struct Tied<B: Backend> {
    pub(super) embedding: Param<Tensor<B, 2>>,
    pub(super) hidden: Linear<B>,
    pub(super) output: Param<Tensor<B, 2>>,
}

/// The same with the weight at one place.
#[derive(Module, Debug)]
pub(super) struct Single<B: Backend> {
    embedding: Param<Tensor<B, 2>>,
    hidden: Linear<B>,
}

pub(super) fn table<B: AutodiffBackend>(seed: usize, device: &B::Device) -> Param<Tensor<B, 2>> {
    linear::<B>(TOKENS, WIDTH, seed, device).weight
}

impl<B: AutodiffBackend> Tied<B> {
    fn new(seed: usize, device: &B::Device) -> Self {
        let embedding = table(seed, device);
        Self { output: embedding.clone(), embedding, hidden: linear(WIDTH, WIDTH, seed + 2, device) }
    }

    fn loss(&self, batch: Batch<B>) -> Tensor<B, 1> {
        loss((self.embedding.val(), self.output.val()), &self.hidden, batch)
    }
}

impl<B: AutodiffBackend> Single<B> {
    pub(super) fn new(seed: usize, device: &B::Device) -> Self {
        Self { embedding: table(seed, device), hidden: linear(WIDTH, WIDTH, seed + 2, device) }
    }

    pub(super) fn loss(&self, batch: Batch<B>) -> Tensor<B, 1> {
        loss((self.embedding.val(), self.embedding.val()), &self.hidden, batch)
    }
}

/// Tokens, and those that follow them.
pub(super) type Batch<B> = (Tensor<B, 1, Int>, Tensor<B, 1, Int>);

pub(super) fn batch<B: Backend>(indices: &[usize], device: &B::Device) -> Batch<B> {
    let ints = |of: &dyn Fn(usize) -> usize| {
        let values: Vec<i32> = indices.iter().map(|&index| (of(index) % TOKENS) as i32).collect();
        Tensor::from_data(TensorData::new(values, [indices.len()]), device)
    };
    (ints(&|index| 5 * index), ints(&|index| index * index + 3))
}

pub(super) fn hidden<B: Backend>(layer: &Linear<B>, x: Tensor<B, 2>) -> Tensor<B, 2> {
    x.clone() + activation::tanh(layer.forward(x))
}

/// The cross entropy of the tokens that follow.
pub(super) fn entropy<B: Backend>(
    x: Tensor<B, 2>,
    output: Tensor<B, 2>,
    next: Tensor<B, 1, Int>,
) -> Tensor<B, 1> {
    let scores = activation::log_softmax(x.matmul(output.transpose()), 1);
    scores.gather(1, next.unsqueeze_dim(1)).mean().neg()
}

fn loss<B: Backend>(
    (embedding, output): (Tensor<B, 2>, Tensor<B, 2>),
    layer: &Linear<B>,
    (tokens, next): Batch<B>,
) -> Tensor<B, 1> {
    entropy(hidden(layer, embedding.select(0, tokens)), output, next)
}

/// Global batches of 12, the last of 2: fewer samples than four ranks.
pub(super) fn schedule(ranks: &DataParallel) -> Vec<Part> {
    let shards = Shards::new(38, 12, ranks.rank(), ranks.size()).shuffled(5);
    (0..2).flat_map(|epoch| shards.epoch(epoch)).collect()
}

/// Some 2^11 sums and products make a loss and its gradients; else as [`limit`].
#[track_caller]
pub(super) fn agree(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>], passes: usize) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
        assert!((found - expected).abs() <= 4.0 * limit(passes), "{what}: {found} instead of {expected}");
    }
}

/// [`Tied`]'s parameters, of which the two places of the weight must have the same bits, once.
#[track_caller]
fn once(mut parameters: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let output = parameters.pop();
    assert_eq!(output.as_ref(), parameters.first(), "the places have one value");
    parameters
}

macro_rules! trained {
    ($ranks:expr, $new:ident, |$net:ident, $grads:ident, $share:ident| $step:expr) => {{
        let device = $ranks.communicator().device();
        // Only rank 0 begins with the right parameters.
        let mut $net = $ranks.broadcast::<B, _>($new::<B>::new(100 * $ranks.rank(), &device));
        for part in schedule(&$ranks) {
            let loss = (!part.indices.is_empty()).then(|| $net.loss(batch(&part.indices, &device)));
            let $grads = $ranks.backward(&$net, loss);
            let $share = part.share;
            $net = $step;
        }
        parameters(&$net)
    }};
}

/// The numbers are those of a model with the weight at one place, on one device that has all
/// samples: with a sharded optimizer, and with a whole one after [`DataParallel::reduce`].
#[test]
fn a_weight_at_two_places_trains_as_one() {
    const NAME: &str = "tied::a_weight_at_two_places_trains_as_one";
    let late = [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1")];
    let Some(count) = devices_with(NAME, &late) else { return };
    macro_rules! check {
        ($what:expr, $lr:expr, $config:expr) => {
            let expected = on_ranks(1, |ranks| {
                let mut optimizer = $config.init();
                trained!(ranks, Single, |net, grads, _share| optimizer.step($lr, net, grads))
            })
            .remove(0);
            let before = parameters(&Single::<B>::new(0, &RocmDevice::new(0)));
            assert_ne!(before, expected, "{} trains", $what);
            for bytes in [1, 25 << 20] {
                let found = on_ranks(count, |ranks| {
                    let mut optimizer = ShardedOptimizer::new(&ranks, $config).with_bucket_bytes(bytes);
                    trained!(ranks, Tied, |net, grads, share| optimizer.step($lr, net, grads, share))
                });
                for found in &found {
                    agree(&format!("{}, sharded", $what), &once(found.clone()), &expected, STEPS);
                }
                assert!(found.iter().all(|rank| rank == &found[0]), "the same bits on every rank");
            }
            let found = on_ranks(count, |mut ranks| {
                let mut optimizer = $config.init();
                trained!(ranks, Tied, |net, grads, share| {
                    let grads = ranks.reduce(&net, grads, share);
                    optimizer.step($lr, net, grads)
                })
            });
            for rank in found {
                agree(&format!("{}, whole", $what), &once(rank), &expected, STEPS);
            }
        };
    }
    let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: true };
    check!("SGD", 0.05, SgdConfig::new().with_momentum(Some(momentum.clone())));
    check!("AdamW", 0.02, AdamWConfig::new().with_weight_decay(0.05));
}

/// Gives each place a tensor of its own, as loading a record does.
struct Apart;

impl<B: AutodiffBackend> ModuleMapper<B> for Apart {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|value| Tensor::from_data(value.to_data(), (&value.device(), value.dtype())).require_grad())
    }
}

/// The places are one parameter on all ranks, if those of rank 0 or of the other ranks are parted.
#[test]
fn a_weight_parted_on_some_ranks_trains_as_one() {
    let Some(count) = devices("tied::a_weight_parted_on_some_ranks_trains_as_one") else { return };
    let expected = on_ranks(1, |ranks| {
        let mut optimizer = AdamWConfig::new().init();
        trained!(ranks, Single, |net, grads, _share| optimizer.step(0.02, net, grads))
    })
    .remove(0);
    for first in [true, false] {
        let found = on_ranks(count, |mut ranks| {
            let device = ranks.communicator().device();
            let net = Tied::<B>::new(100 * ranks.rank(), &device);
            let net = if (ranks.rank() == 0) == first { net.map(&mut Apart) } else { net };
            let mut net = ranks.broadcast::<B, _>(net);
            let mut optimizer = AdamWConfig::new().init();
            for part in schedule(&ranks) {
                let loss = (!part.indices.is_empty()).then(|| net.loss(batch(&part.indices, &device)));
                let grads = ranks.backward(&net, loss);
                let grads = ranks.reduce(&net, grads, part.share);
                net = optimizer.step(0.02, net, grads);
            }
            once(parameters(&net))
        });
        for rank in &found {
            agree(&format!("rank 0 parted: {first}"), rank, &expected, STEPS);
            assert_eq!(rank, &found[0], "the same bits on every rank");
        }
    }
}

/// The gradient of a converted copy is that of both places, too.
#[test]
fn a_converted_copy_keeps_its_ties() {
    let device = RocmDevice::new(0);
    let f32 = Precision::new(FloatDType::F32);
    let (tied, single) =
        (f32.convert(&Tied::<B>::new(0, &device)), f32.convert(&Single::<B>::new(0, &device)));
    let samples = || batch::<B>(&[1, 2, 3, 4], &device);
    let of_single = GradientsParams::from_grads(single.loss(samples()).backward(), &single);
    let of_tied = GradientsParams::from_grads(tied.loss(samples()).backward(), &tied);
    assert_eq!(gradients::<B>(&tied, &of_tied)[..3], gradients::<B>(&single, &of_single));
    assert_eq!(tied.output.val().dtype(), DType::F32);
}

/// A weight inside a module that is kept, and outside.
#[derive(Module, Debug)]
struct Across<B: Backend> {
    inside: Linear<B>,
    outside: Param<Tensor<B, 2>>,
}

/// Without a gradient each place has its module's dtype. With one the conversion is refused.
#[test]
fn a_weight_inside_a_kept_module_and_outside() {
    let inside = linear::<B>(FEATURES, 1, 0, &RocmDevice::new(0));
    let net = Across { outside: inside.weight.clone(), inside };
    let precision = Precision::new(FloatDType::F32).keep("Linear");
    let frozen = precision.convert::<B, _>(&net.clone().no_grad());
    assert_eq!(frozen.inside.weight.val().dtype(), DType::F64);
    assert_eq!(frozen.outside.val().dtype(), DType::F32);
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| precision.convert::<B, _>(&net)));
    assert!(refused.is_err());
    let error = burn_rocm::take_last_error().unwrap();
    assert!(error.to_string().contains("kept"), "{error}");
}

/// A layer with clones, which have its ids.
#[derive(Module, Debug)]
struct Pair<B: Backend> {
    frozen: Linear<B>,
    trained: Linear<B>,
    apart: Linear<B>,
}

struct Double;

impl ModuleMapper<B> for Double {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|value| (value.detach() * 2.0).detach().require_grad())
    }
}

fn pair(seed: usize, device: &RocmDevice) -> Pair<B> {
    let trained = linear::<B>(FEATURES, 1, seed, device);
    Pair { frozen: trained.clone().no_grad(), apart: trained.clone().map(&mut Double), trained }
}

#[test]
fn clones_with_other_values_are_converted_apart() {
    let converted = Precision::new(FloatDType::F32).convert::<B, _>(&pair(0, &RocmDevice::new(0)));
    let values = parameters(&converted.trained);
    let double = values.iter().map(|values| values.iter().map(|value| 2.0 * value).collect::<Vec<_>>());
    assert_eq!(parameters(&converted.apart), double.collect::<Vec<_>>());
}

/// A clone has the ids of its original, but is no part of it if it is frozen or was trained apart.
#[test]
fn clones_with_other_values_stay_apart() {
    let Some(count) = devices("tied::clones_with_other_values_stay_apart") else { return };
    let expected = pair(0, &RocmDevice::new(0));
    let (base, double) = (parameters(&expected.trained), parameters(&expected.apart));
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let net = ranks.broadcast::<B, _>(pair(100 * ranks.rank(), &device));
        assert_eq!(parameters(&net.frozen), base);
        assert_eq!(parameters(&net.trained), base);
        assert_eq!(parameters(&net.apart), double);
        assert!(!net.frozen.weight.val().is_require_grad());
        let (x, y) = samples::<B>(&[1, 2, 3], &device);
        let loss = (net.trained.forward(x) - y).powi_scalar(2).mean();
        let grads = ranks.backward(&net, Some(loss));
        let net = ShardedOptimizer::new(&ranks, SgdConfig::new()).step(0.1, net, grads, Share::EVEN);
        assert_eq!(parameters(&net.frozen), base);
        assert!(!net.frozen.weight.val().is_require_grad());
        assert_ne!(parameters(&net.trained), base);
        assert_eq!(parameters(&net.apart), double);
    });
}

/// A frozen clone that the module lists before its original, as a target network.
#[derive(Module, Debug)]
struct Target<B: Backend> {
    frozen: Linear<B>,
    body: Linear<B>,
    head: Linear<B>,
}

/// All ranks reduce the gradients in one order, also those without gradients.
#[test]
fn a_frozen_clone_keeps_the_order_of_gradients() {
    let Some(count) = devices("tied::a_frozen_clone_keeps_the_order_of_gradients") else { return };
    let found = on_ranks(count, |mut ranks| {
        let device = ranks.communicator().device();
        let [head, body] = [0, 2].map(|seed| linear::<B>(FEATURES, 1, seed, &device));
        let net = Target { frozen: head.clone().no_grad(), body, head };
        let loss = (ranks.rank() == 0).then(|| {
            let (x, y) = samples::<B>(&[1, 2, 3], &device);
            (net.body.forward(x.clone()) + net.head.forward(x) * 2.0 - y).powi_scalar(2).mean()
        });
        let share = Share::of(if loss.is_some() { 3 } else { 0 }, 3);
        let grads = ranks.backward(&net, loss);
        let own = gradients::<B>(&net, &grads);
        (own, gradients::<B>(&net, &ranks.reduce(&net, grads, share)))
    });
    let expected = &found[0].0;
    assert_ne!(expected[2], expected[4], "the layers have other gradients");
    for (rank, (_, reduced)) in found.iter().enumerate() {
        assert_eq!(reduced, expected, "rank {rank}");
    }
}

/// A captured step writes the weight in its own memory, which both places share.
#[test]
fn a_weight_at_two_places_is_captured() {
    let Some(count) = devices("tied::a_weight_at_two_places_is_captured") else { return };
    const REPLAYS: usize = 3;
    let train = |captured: bool, divided: bool| {
        on_ranks(count, |mut ranks| {
            let device = ranks.communicator().device();
            let mut model = Some(Tied::<B>::new(0, &device));
            let mut whole = AdamWConfig::new().init();
            let mut sharded = ShardedOptimizer::new(&ranks, AdamWConfig::new());
            let rank = ranks.rank();
            let input = batch::<B>(&[rank, rank + 4, rank + 5], &device);
            let mut step = || {
                let before = model.take().unwrap();
                let grads = ranks.backward(&before, Some(before.loss(input.clone())));
                model = Some(match divided {
                    true => sharded.step(0.02, before, grads, Share::EVEN),
                    false => {
                        let grads = ranks.reduce(&before, grads, Share::EVEN);
                        whole.step(0.02, before, grads)
                    }
                });
            };
            match captured {
                true => {
                    let (graph, ()) = Graph::capture(&device, &mut step).unwrap();
                    (0..REPLAYS).for_each(|_| graph.replay().unwrap());
                }
                false => (0..WARM_UPS + REPLAYS).for_each(|_| step()),
            }
            once(parameters(&model.unwrap()))
        })
    };
    for divided in [false, true] {
        assert_eq!(train(true, divided), train(false, divided), "divided: {divided}");
    }
}
