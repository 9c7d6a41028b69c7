//! Divided models: gradients of several batches, dropout, and parameters that several units have.

use burn::module::AutodiffModule;
use burn::nn::{Dropout, DropoutConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsAccumulator, Optimizer};
use burn::tensor::{Distribution, FloatDType};
use burn_rocm::RocmError;
use burn_rocm_nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn_rocm_nn::optim::{AdamWConfig, OptimizerConfig, SgdConfig};
use burn_rocm_nn::parallel::{ShardedModel, ShardedModelConfig, ShardedOptimizer, Share};

use crate::checkpoint::Folder;
use crate::model::{S, Whole, accumulate, build, gathered, linear, schedule, step, trained_in};
use crate::sharded::{STEPS, zeros_for_missing};
use crate::tied::{Batch, Single, TOKENS, Tied, WIDTH, agree, batch, entropy, hidden, table};
use crate::*;

const LATE: [(&str, &str); 2] = [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1")];

/// The batches whose gradients a step uses.
const BATCHES: usize = 4;

fn configs() -> [(&'static str, f64, OptimizerConfig); 2] {
    let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: true };
    [
        ("SGD with momentum", 0.02, SgdConfig::new().with_momentum(Some(momentum)).into()),
        ("AdamW", 0.02, AdamWConfig::new().with_weight_decay(0.05).into()),
    ]
}

/// Losses and parameters are those of the whole model on one device that adds up the gradients of
/// four batches with Burn's accumulator, the last one of 2 samples. In the bound, each batch counts
/// as a step.
#[test]
fn accumulated_gradients_are_those_of_all_batches() {
    const NAME: &str = "divided::accumulated_gradients_are_those_of_all_batches";
    let Some(count) = devices_with(NAME, &LATE) else { return };
    for ((what, lr, config), most) in
        configs().into_iter().flat_map(|all| [(all.clone(), None), (all, Some(0.5))])
    {
        let expected = on_ranks(1, |ranks| {
            let device = ranks.communicator().device();
            let (mut net, mut losses) = (Whole::<B>::new(&device), Vec::new());
            let mut optimizer = ShardedOptimizer::new(&ranks, config.clone());
            if let Some(most) = most {
                optimizer = optimizer.with_global_norm(most);
            }
            for parts in schedule(&ranks).chunks(BATCHES) {
                let mut sum = GradientsAccumulator::new();
                for part in parts {
                    let loss = net.loss(samples(&part.indices, &device));
                    losses.push(loss.clone().into_scalar());
                    sum.accumulate(&net, ranks.backward(&net, Some(loss)));
                }
                net = optimizer.step(lr, net, sum.grads(), Share::EVEN);
            }
            (losses, parameters(&net))
        })
        .remove(0);
        let found = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut settings = ShardedModelConfig::new(config.clone());
            if let Some(most) = most {
                settings = settings.with_global_norm(most);
            }
            let (mut model, mut losses) = (build::<B>(&ranks, settings, &device), Vec::new());
            for parts in schedule(&ranks).chunks(BATCHES) {
                let (last, others) = parts.split_last().unwrap();
                for part in others {
                    let loss = accumulate(&mut model, part.share, samples(&part.indices, &device));
                    losses.push(ranks.mean(loss, part.share).into_scalar());
                }
                let loss = step(&mut model, lr, last.share, samples(&last.indices, &device));
                losses.push(ranks.mean(loss, last.share).into_scalar());
            }
            (losses, gathered(&model))
        });
        let passes = expected.0.len();
        assert!(expected.0[BATCHES] != expected.0[0], "{what} trains");
        for (losses, parameters) in &found {
            let what = format!("{what}, a norm of {most:?}");
            agree(&what, std::slice::from_ref(losses), std::slice::from_ref(&expected.0), passes);
            agree(&what, parameters, &expected.1, passes);
            assert_eq!((losses, parameters), (&found[0].0, &found[0].1), "{what}: the same bits");
        }
    }
}

/// Gradients in bf16 are added up in f32, with the bits of one device that does so. All ranks have
/// the same samples, so that their mean is exact.
#[test]
fn gradients_in_bf16_are_added_up_in_f32() {
    let Some(count) = devices("divided::gradients_in_bf16_are_added_up_in_f32") else { return };
    // A step by sums that were rounded to bf16 would differ in the parameters' bits.
    const LR: f64 = 0.1;
    let bf16 = FloatDType::BF16;
    let input = |at: usize, device: &RocmDevice| {
        let (x, y) = samples::<S>(&[at, at + 1, at + 2], device);
        (x.cast(bf16), y.cast(bf16))
    };
    struct Widen<'a>(&'a mut GradientsParams, GradientsParams);
    impl ModuleVisitor<S> for Widen<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<S, D>>) {
            if let Some(grad) = self.0.remove::<Rocm, D>(param.id) {
                self.1.register(param.id, grad.cast(FloatDType::F32));
            }
        }
    }
    let expected = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let mut master = Whole::<S>::new(&device);
        let mut optimizer = SgdConfig::new().init();
        for at in 0..3 {
            let model = trained_in(bf16, &master);
            let mut sum = GradientsAccumulator::new();
            for part in 0..BATCHES {
                let loss = model.loss(input(BATCHES * at + part, &device));
                let mut grads = GradientsParams::from_grads(loss.backward(), &model);
                let mut widen = Widen(&mut grads, GradientsParams::new());
                model.visit(&mut widen);
                sum.accumulate(&master, widen.1);
            }
            let grads = zeros_for_missing::<S, _>(&master, sum.grads());
            master = optimizer.step(LR, master, grads);
        }
        parameters(&trained_in(bf16, &master))
    })
    .remove(0);
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let config = ShardedModelConfig::new(SgdConfig::new()).with_dtype(bf16);
        let mut model = build::<S>(&ranks, config, &device);
        for at in 0..3 {
            for part in 0..BATCHES - 1 {
                accumulate(&mut model, Share::EVEN, input(BATCHES * at + part, &device));
            }
            step(&mut model, LR, Share::EVEN, input(BATCHES * at + BATCHES - 1, &device));
        }
        gathered(&model)
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

/// Accumulated gradients change no parameter. A checkpoint would lose them, and loading drops them.
#[test]
fn accumulated_gradients_are_not_saved() {
    let Some(count) = devices("divided::accumulated_gradients_are_not_saved") else { return };
    let folder = Folder::new("accumulated");
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut model = build::<B>(&ranks, ShardedModelConfig::new(SgdConfig::new()), &device);
        let input = |at: usize| samples::<B>(&[at, at + 1], &device);
        let before = gathered(&model);
        model.save(folder.at("before")).unwrap();
        accumulate(&mut model, Share::EVEN, input(1));
        assert_eq!(gathered(&model), before);
        let error = model.save(folder.at("refused")).unwrap_err();
        assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
        assert!(!folder.at("refused").exists());
        model.load(folder.at("before")).unwrap();
        step(&mut model, 0.1, Share::EVEN, input(2));
        model.save(folder.at("after")).unwrap();
        let mut other = build::<B>(&ranks, ShardedModelConfig::new(SgdConfig::new()), &device);
        step(&mut other, 0.1, Share::EVEN, input(2));
        (gathered(&model), gathered(&other))
    });
    for (found, expected) in found {
        assert_eq!(found, expected);
    }
}

const HEADS: usize = 2;

/// A block that drops scores of attention and features.
#[derive(Module, Debug)]
struct Drops<B: Backend> {
    attention: MultiHeadAttention<B>,
    feed: Linear<B>,
    dropout: Dropout,
}

impl<B: Backend> Drops<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = x.clone() + self.attention.forward(MhaInput::self_attn(x)).context;
        x.clone() + self.dropout.forward(activation::tanh(self.feed.forward(x)))
    }
}

/// The units as one module.
#[derive(Module, Debug)]
struct Dropping<B: Backend> {
    first: Linear<B>,
    blocks: Vec<Drops<B>>,
    last: Linear<B>,
}

/// Each unit draws the same numbers in its second forward pass. The reference is the whole model in
/// one graph with a sharded optimizer, whose devices have the same seeds: so it draws the same
/// numbers, once. Afterwards the devices go on with the same numbers, bit by bit.
#[test]
fn dropout_draws_the_same_numbers_again() {
    let Some(count) = devices_with("divided::dropout_draws_the_same_numbers_again", &LATE) else { return };
    const SIDE: usize = 2 * HEADS;
    const LAYERS: usize = 3;
    let first = |device: &RocmDevice| linear::<B>(FEATURES, SIDE, 0, device);
    let block = |index: usize, device: &RocmDevice| {
        let seed = 10 + 20 * index;
        let part = |at: usize| linear(SIDE, SIDE, seed + 2 * at, device);
        let config = MultiHeadAttentionConfig::new(SIDE, HEADS).with_dropout(0.3);
        let mut attention = config.init::<B>(device);
        (attention.query, attention.key) = (part(0), part(1));
        (attention.value, attention.output) = (part(2), part(3));
        Drops { attention, feed: part(4), dropout: DropoutConfig::new(0.4).init() }
    };
    let last = |device: &RocmDevice| linear::<B>(SIDE, 1, 90, device);
    // The first unit drops features as well.
    let drop = |x| DropoutConfig::new(0.2).init().forward(x);
    let input = |ranks: &DataParallel, at: usize, device: &RocmDevice| {
        let begin = 6 * (at * ranks.size() + ranks.rank());
        let (x, y) = samples::<B>(&(begin..begin + 6).collect::<Vec<_>>(), device);
        (x.reshape([2, 3, FEATURES]), y.reshape([2, 3, 1]))
    };
    let seeded = |ranks: &DataParallel, seed: u64| {
        let device = ranks.communicator().device();
        Inner::seed(&device, seed + ranks.rank() as u64);
        device
    };
    let drawn = |device: &RocmDevice| -> Vec<f64> {
        Tensor::<Inner, 1>::random([5], Distribution::Default, device).into_data().iter::<f64>().collect()
    };
    let config = || AdamWConfig::new().with_weight_decay(0.05);
    let expected = on_ranks(count, |ranks| {
        let device = seeded(&ranks, 7);
        let mut net = Dropping {
            first: first(&device),
            blocks: (0..LAYERS).map(|index| block(index, &device)).collect(),
            last: last(&device),
        };
        let mut optimizer = ShardedOptimizer::new(&ranks, config());
        let mut losses = Vec::new();
        for at in 0..STEPS {
            let (x, y) = input(&ranks, at, &device);
            let x = net.blocks.iter().fold(drop(net.first.forward(x)), |x, block| block.forward(x));
            let loss = (net.last.forward(x) - y).powi_scalar(2).mean();
            losses.push(loss.clone().into_scalar());
            let grads = ranks.backward(&net, Some(loss));
            net = optimizer.step(0.02, net, grads, Share::EVEN);
        }
        (losses, parameters(&net), drawn(&device))
    });
    let train = |seed: u64| {
        on_ranks(count, |ranks| {
            let device = seeded(&ranks, seed);
            let mut model = ShardedModel::build(
                &ranks,
                ShardedModelConfig::new(config()),
                || first(&device),
                LAYERS,
                |index| block(index, &device),
                || last(&device),
            )
            .unwrap();
            let mut losses = Vec::new();
            for at in 0..STEPS {
                let (x, y) = input(&ranks, at, &device);
                let loss = model.step(
                    0.02,
                    Share::EVEN,
                    |first: &Linear<B>| drop(first.forward(x.clone())),
                    |_, block: &Drops<B>, x| block.forward(x),
                    |last: &Linear<B>, x| (last.forward(x) - y).powi_scalar(2).mean(),
                );
                losses.push(loss.into_scalar());
            }
            let mut all = parameters(&model.whole_first());
            all.extend((0..LAYERS).flat_map(|index| parameters(&model.whole_block(index))));
            all.extend(parameters(&model.whole_last()));
            let drawn = drawn(&device);
            // `valid` drops nothing, so two evaluations are equal.
            let (x, _) = input(&ranks, 0, &device);
            let evaluated = || {
                model.evaluate(
                    |first: &Linear<B>| first.forward(x.clone()),
                    |_, block: &Drops<B>, x| Tensor::from_inner(block.valid().forward(x.inner())),
                    |last: &Linear<B>, x: Tensor<B, 3>| last.forward(x).into_data(),
                )
            };
            assert_eq!(evaluated(), evaluated());
            (losses, all, drawn)
        })
    };
    let found = train(7);
    for ((found, parameters, drawn), (losses, expected, expected_drawn)) in found.iter().zip(&expected) {
        agree("losses", std::slice::from_ref(found), std::slice::from_ref(losses), STEPS);
        agree("parameters", parameters, expected, STEPS);
        assert_eq!(drawn, expected_drawn, "the devices go on alike");
    }
    assert_ne!(train(8)[0].0[0], found[0].0[0], "units drop something");
}

/// The last unit of [`Tied`].
#[derive(Module, Debug)]
struct Output<B: Backend> {
    weight: Param<Tensor<B, 2>>,
}

/// The first unit.
#[derive(Module, Debug)]
struct Table<B: Backend> {
    weight: Param<Tensor<B, 2>>,
}

type Divided = ShardedModel<B, Table<B>, Linear<B>, Output<B>>;

/// [`Tied`], with the embedding's weight in the first and in the last unit.
fn divided(ranks: &DataParallel, config: ShardedModelConfig) -> Divided {
    let device = ranks.communicator().device();
    // Only rank 0 begins with the right parameters.
    let seed = 100 * ranks.rank();
    let weight = table::<B>(seed, &device);
    let again = weight.clone();
    let block = |_| linear(WIDTH, WIDTH, seed + 2, &device);
    ShardedModel::build(ranks, config, || Table { weight }, 1, block, || Output { weight: again }).unwrap()
}

/// A step, or a pass before one if there is no learning rate.
fn take(model: &mut Divided, lr: Option<f64>, share: Share, (tokens, next): Batch<B>) -> Tensor<Inner, 1> {
    let first = |first: &Table<B>| first.weight.val().select(0, tokens.clone());
    let block = |_, block: &Linear<B>, x| hidden(block, x);
    let last = |last: &Output<B>, x| entropy(x, last.weight.val(), next);
    match lr {
        Some(lr) => model.step(lr, share, first, block, last),
        None => model.accumulate(share, first, block, last),
    }
}

/// A weight of the first and of the last unit is one parameter: losses and parameters are those of
/// a model that holds it once, on one device that has all samples. With and without a global norm,
/// and with every second pass as a part of the next step.
#[test]
fn a_weight_of_two_units_trains_as_one() {
    const NAME: &str = "divided::a_weight_of_two_units_trains_as_one";
    let Some(count) = devices_with(NAME, &LATE) else { return };
    for (what, lr, config) in configs() {
        for (most, batches) in [(None, 1), (Some(0.3), 1), (None, 2), (Some(0.3), 2)] {
            let expected = on_ranks(1, |ranks| {
                let device = ranks.communicator().device();
                let (mut net, mut losses) = (Single::<B>::new(0, &device), Vec::new());
                let mut optimizer = ShardedOptimizer::new(&ranks, config.clone());
                if let Some(most) = most {
                    optimizer = optimizer.with_global_norm(most);
                }
                for parts in schedule(&ranks).chunks(batches) {
                    let mut sum = GradientsAccumulator::new();
                    for part in parts {
                        let loss = net.loss(batch(&part.indices, &device));
                        losses.push(loss.clone().into_scalar());
                        sum.accumulate(&net, ranks.backward(&net, Some(loss)));
                    }
                    net = optimizer.step(lr, net, sum.grads(), Share::EVEN);
                }
                (losses, parameters(&net))
            })
            .remove(0);
            let found = on_ranks(count, |ranks| {
                let device = ranks.communicator().device();
                let mut settings = ShardedModelConfig::new(config.clone());
                if let Some(most) = most {
                    settings = settings.with_global_norm(most);
                }
                let (mut model, mut losses) = (divided(&ranks, settings), Vec::new());
                for parts in schedule(&ranks).chunks(batches) {
                    for (at, part) in parts.iter().enumerate() {
                        let lr = (at + 1 == parts.len()).then_some(lr);
                        let loss = take(&mut model, lr, part.share, batch(&part.indices, &device));
                        losses.push(ranks.mean(loss, part.share).into_scalar());
                    }
                }
                let mut all = parameters(&model.whole_first());
                assert_eq!(parameters(&model.whole_last()), all, "one value");
                all.extend(parameters(&model.whole_block(0)));
                (losses, all)
            });
            let passes = expected.0.len();
            for (losses, parameters) in &found {
                let what = format!("{what}, a norm of {most:?}, {batches} batches");
                agree(&what, std::slice::from_ref(losses), std::slice::from_ref(&expected.0), passes);
                agree(&what, parameters, &expected.1, passes);
                assert_eq!((losses, parameters), (&found[0].0, &found[0].1), "{what}: the same bits");
            }
        }
    }
}

/// A checkpoint has a weight of two units once, as that of a sharded optimizer has one of two
/// places.
#[test]
fn a_weight_of_two_units_is_saved_once() {
    let Some(count) = devices("divided::a_weight_of_two_units_is_saved_once") else { return };
    let folder = Folder::new("tied");
    let config = || AdamWConfig::new().with_weight_decay(0.05);
    let expected = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut model = divided(&ranks, ShardedModelConfig::new(config()));
        let input = |at: usize| batch::<B>(&[at, at + 3], &device);
        take(&mut model, Some(0.02), Share::EVEN, input(1));
        model.save(folder.at("model")).unwrap();
        take(&mut model, Some(0.02), Share::EVEN, input(2));
        [parameters(&model.whole_first()), parameters(&model.whole_block(0))].concat()
    });
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut optimizer = ShardedOptimizer::new(&ranks, config());
        // A new model of other values.
        let weight = table::<B>(55, &device);
        let output = weight.clone();
        let net = Tied { embedding: weight, hidden: linear(WIDTH, WIDTH, 57, &device), output };
        let net = optimizer.load(folder.at("model"), net).unwrap();
        let (tokens, next) = batch::<B>(&[2, 5], &device);
        let x = hidden(&net.hidden, net.embedding.val().select(0, tokens));
        let grads = ranks.backward(&net, Some(entropy(x, net.output.val(), next)));
        parameters(&optimizer.step(0.02, net, grads, Share::EVEN))
    });
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.last(), found.first());
        agree("a sharded optimizer goes on", &found[..3], expected, 2);
    }
}

/// Blocks that are clones of one are one parameter, which is updated when all of them are
/// differentiated.
#[test]
fn blocks_may_share_their_parameters() {
    let Some(count) = devices("divided::blocks_may_share_their_parameters") else { return };
    const LAYERS: usize = 3;
    const SIDE: usize = 7;
    let loss =
        |last: &Linear<B>, x: Tensor<B, 2>, y: Tensor<B, 2>| (last.forward(x) - y).powi_scalar(2).mean();
    let expected = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let parts = [(FEATURES, SIDE, 0), (SIDE, SIDE, 2), (SIDE, 1, 4)];
        let mut net: Vec<Linear<B>> =
            parts.map(|(from, to, seed)| linear(from, to, seed, &device)).into_iter().collect();
        let mut optimizer = AdamWConfig::new().init();
        for part in schedule(&ranks) {
            let (x, y) = samples::<B>(&part.indices, &device);
            let x = (0..LAYERS).fold(net[0].forward(x), |x, _| hidden(&net[1], x));
            let grads = ranks.backward(&net, Some(loss(&net[2], x, y)));
            net = optimizer.step(0.02, net, grads);
        }
        parameters(&net)
    })
    .remove(0);
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let config = ShardedModelConfig::new(AdamWConfig::new());
        let block = linear::<B>(SIDE, SIDE, 2, &device);
        let first = || linear::<B>(FEATURES, SIDE, 0, &device);
        let last = || linear::<B>(SIDE, 1, 4, &device);
        let mut model = ShardedModel::build(&ranks, config, first, LAYERS, |_| block.clone(), last).unwrap();
        for part in schedule(&ranks) {
            let (x, y) = samples::<B>(&part.indices, &device);
            model.step(
                0.02,
                part.share,
                |first: &Linear<B>| first.forward(x.clone()),
                |_, block: &Linear<B>, x| hidden(block, x),
                |last: &Linear<B>, x| loss(last, x, y),
            );
        }
        let all = [model.whole_first(), model.whole_block(LAYERS - 1), model.whole_last()];
        all.iter().flat_map(parameters).collect::<Vec<_>>()
    });
    for found in found {
        agree("one block three times", &found, &expected, STEPS);
    }
}

/// A parameter whose id an earlier unit has in another shape or dtype is a typed error on all
/// ranks.
#[test]
fn a_weight_of_two_shapes_is_refused() {
    let Some(count) = devices("divided::a_weight_of_two_shapes_is_refused") else { return };
    let errors = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let build = |change: &dyn Fn(Tensor<B, 2>) -> Tensor<B, 2>| {
            let weight = table::<B>(0, &device);
            let again = weight.clone().map(|weight| change(weight.detach()).detach().require_grad());
            let config = ShardedModelConfig::new(SgdConfig::new());
            let block = |_| linear::<B>(WIDTH, WIDTH, 2, &device);
            ShardedModel::build(&ranks, config, || Table { weight }, 1, block, || Output { weight: again })
        };
        let narrow = build(&|weight| weight.narrow(0, 0, TOKENS - 1)).map(drop).unwrap_err();
        let single = build(&|weight| weight.cast(FloatDType::F32)).map(drop).unwrap_err();
        // The group is still alive.
        assert!(build(&|weight| weight).is_ok());
        [narrow, single]
    });
    for [narrow, single] in errors {
        for error in [&narrow, &single] {
            assert!(matches!(error, RocmError::Invalid { .. }), "{error}");
        }
        let (narrow, single) = (narrow.to_string(), single.to_string());
        assert!(narrow.contains("[11, 5]") && narrow.contains("[10, 5]"), "{narrow}");
        assert!(single.contains("f64") && single.contains("f32"), "{single}");
    }
}
