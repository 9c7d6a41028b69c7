//! Models whose parameters the ranks divide among themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use burn::optim::Optimizer;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::FloatDType;
use burn_rocm::{RocmError, memory_summary, take_last_error};
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::language::{DecoderConfig, DecoderLayer, Positions, RotaryConfig, RotaryEmbedding};
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig, OptimizerConfig, SgdConfig};
use burn_rocm_nn::parallel::{ShardedModel, ShardedModelConfig, ShardedOptimizer, Shards, Share};

use crate::checkpoint::Folder;
use crate::sharded::{STEPS, agree};
use crate::*;

pub(super) const WIDTH: usize = 7;
const BLOCKS: usize = 4;
/// The block of this index gives its input on, so that none of its parameters has a gradient.
const UNUSED: usize = 2;

/// A block with a parameter that it does not use. Seven biases are odd to any number of ranks.
#[derive(Module, Debug)]
pub(super) struct Block<B: Backend> {
    used: Linear<B>,
    spare: Linear<B>,
    frozen: Linear<B>,
}

impl<B: Backend> Block<B> {
    fn forward(&self, index: usize, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match index {
            UNUSED => x,
            _ => {
                let frozen = self.frozen.weight.val().mean_dim(0).cast(x.dtype());
                x.clone() + activation::tanh(self.used.forward(x)) + frozen
            }
        }
    }
}

/// The units as one module, with the parameters in the same order.
#[derive(Module, Debug)]
pub(super) struct Whole<B: Backend> {
    first: Linear<B>,
    blocks: Vec<Block<B>>,
    last: Linear<B>,
}

pub(super) fn linear<B: Backend>(from: usize, to: usize, seed: usize, device: &B::Device) -> Linear<B> {
    let drawn = |count: usize, seed: usize| -> Vec<f64> {
        (0..count).map(|i| 0.5 * (1.7 * (i + 100 * seed) as f64).sin()).collect()
    };
    let mut linear = LinearConfig::new(from, to).init(device);
    linear.weight = Param::from_data(TensorData::new(drawn(from * to, seed), [from, to]), device);
    linear.bias = Some(Param::from_data(TensorData::new(drawn(to, seed + 1), [to]), device));
    linear
}

fn block<B: Backend>(index: usize, seed: usize, device: &B::Device) -> Block<B> {
    Block {
        used: linear(WIDTH, WIDTH, seed + 10 * index + 2, device),
        spare: linear(2, 3, seed + 10 * index + 4, device),
        frozen: linear(3, WIDTH, seed + 10 * index + 6, device).no_grad(),
    }
}

impl<B: Backend> Whole<B> {
    pub(super) fn new(device: &B::Device) -> Self {
        Self {
            first: linear(FEATURES, WIDTH, 0, device),
            blocks: (0..BLOCKS).map(|index| block(index, 0, device)).collect(),
            last: linear(WIDTH, 1, 90, device),
        }
    }

    pub(super) fn loss(&self, (x, y): (Tensor<B, 2>, Tensor<B, 2>)) -> Tensor<B, 1> {
        let x = self.first.forward(x);
        let x = self.blocks.iter().enumerate().fold(x, |x, (index, block)| block.forward(index, x));
        (self.last.forward(x) - y).powi_scalar(2).mean()
    }
}

pub(super) type Model<B> = ShardedModel<B, Linear<B>, Block<B>, Linear<B>>;

/// Rank 0's parameters are those of [`Whole`]. The others build other ones.
pub(super) fn build<B: AutodiffBackend>(
    ranks: &DataParallel,
    config: ShardedModelConfig,
    device: &B::Device,
) -> Model<B> {
    let seed = 1000 * ranks.rank();
    ShardedModel::build(
        ranks,
        config,
        || linear(FEATURES, WIDTH, seed, device),
        BLOCKS,
        |index| block(index, seed, device),
        || linear(WIDTH, 1, seed + 90, device),
    )
    .unwrap()
}

pub(super) fn step<B: AutodiffBackend>(
    model: &mut Model<B>,
    lr: f64,
    share: Share,
    (x, y): (Tensor<B, 2>, Tensor<B, 2>),
) -> Tensor<B::InnerBackend, 1> {
    model.step(
        lr,
        share,
        |first: &Linear<B>| first.forward(x.clone()),
        |index, block: &Block<B>, x| block.forward(index, x),
        |last: &Linear<B>, x| (last.forward(x) - y).powi_scalar(2).mean(),
    )
}

/// A pass whose gradients the next step uses, too.
pub(super) fn accumulate<B: AutodiffBackend>(
    model: &mut Model<B>,
    share: Share,
    (x, y): (Tensor<B, 2>, Tensor<B, 2>),
) -> Tensor<B::InnerBackend, 1> {
    model.accumulate(
        share,
        |first: &Linear<B>| first.forward(x.clone()),
        |index, block: &Block<B>, x| block.forward(index, x),
        |last: &Linear<B>, x| (last.forward(x) - y).powi_scalar(2).mean(),
    )
}

/// The trained parameters of all units, in order.
pub(super) fn gathered<B: AutodiffBackend>(model: &Model<B>) -> Vec<Vec<f64>> {
    let mut all = parameters(&model.whole_first());
    all.extend((0..BLOCKS).flat_map(|index| parameters(&model.whole_block(index))));
    all.extend(parameters(&model.whole_last()));
    all
}

/// The losses of all ranks' samples, and the parameters after the last step. Trains in global
/// batches of 12, the last of 2: fewer samples than four ranks.
fn train(ranks: &DataParallel, config: ShardedModelConfig, lr: f64) -> (Vec<f64>, Vec<Vec<f64>>) {
    let device = ranks.communicator().device();
    let mut model = build::<B>(ranks, config, &device);
    let losses = schedule(ranks).into_iter().map(|part| {
        let loss = step(&mut model, lr, part.share, samples(&part.indices, &device));
        ranks.mean(loss, part.share).into_scalar()
    });
    (losses.collect(), gathered(&model))
}

pub(super) fn schedule(ranks: &DataParallel) -> Vec<burn_rocm_nn::parallel::Part> {
    let shards = Shards::new(38, 12, ranks.rank(), ranks.size()).shuffled(5);
    (0..2).flat_map(|epoch| shards.epoch(epoch)).collect()
}

/// The same on one device with the whole model. A parameter without a gradient has one of 0.
fn whole(config: &OptimizerConfig, lr: f64, most: Option<f32>) -> (Vec<f64>, Vec<Vec<f64>>) {
    on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let (mut net, mut losses) = (Whole::<B>::new(&device), Vec::new());
        // An optimizer of which one rank has all.
        let mut optimizer = ShardedOptimizer::new(&ranks, config.clone());
        if let Some(most) = most {
            optimizer = optimizer.with_global_norm(most);
        }
        for part in schedule(&ranks) {
            let loss = net.loss(samples(&part.indices, &device));
            losses.push(loss.clone().into_scalar());
            let grads = ranks.backward(&net, Some(loss));
            net = optimizer.step(lr, net, grads, part.share);
        }
        (losses, parameters(&net))
    })
    .remove(0)
}

fn configs() -> Vec<(&'static str, f64, OptimizerConfig)> {
    let momentum = MomentumConfig { momentum: 0.9, dampening: 0.0, nesterov: true };
    vec![
        ("SGD with momentum", 0.02, SgdConfig::new().with_momentum(Some(momentum)).into()),
        ("Adam", 0.02, AdamConfig::new().into()),
        ("AdamW", 0.02, AdamWConfig::new().with_weight_decay(0.05).into()),
    ]
}

/// Losses and parameters are those of the whole model on one device with all samples. No unit's
/// parameters are a multiple of the ranks, a block has parameters without gradients, one has no
/// gradient at all, and a step has ranks without samples. All ranks and all runs have the same bits.
///
/// The streams of the CPU device run late. A unit that did not wait for its parameters would read
/// memory that poison has filled with NaN.
#[test]
fn a_divided_model_is_the_whole_model() {
    const NAME: &str = "model::a_divided_model_is_the_whole_model";
    let late = [("BURN_ROCM_CPU_LATE", "1"), ("BURN_ROCM_CPU_POISON", "1")];
    let Some(count) = devices_with(NAME, &late) else { return };
    for (what, lr, config) in configs() {
        let (losses, expected) = whole(&config, lr, None);
        let run = |ranks: DataParallel| train(&ranks, ShardedModelConfig::new(config.clone()), lr);
        let ranks = on_ranks(count, run);
        for (found, parameters) in &ranks {
            agree(&format!("{what}, losses"), std::slice::from_ref(found), std::slice::from_ref(&losses));
            agree(what, parameters, &expected);
            assert_eq!(
                (found, parameters),
                (&ranks[0].0, &ranks[0].1),
                "{what}: the same bits on every rank"
            );
        }
        assert_eq!(on_ranks(count, run), ranks, "{what}: the same bits in every run");
        assert!(losses[STEPS - 1] != losses[0], "{what} trains");
    }
}

/// The gradients of all units are scaled by the norm of all of them.
#[test]
fn gradients_are_clipped_by_the_norm_of_all_units() {
    let Some(count) = devices("model::gradients_are_clipped_by_the_norm_of_all_units") else { return };
    let config: OptimizerConfig = SgdConfig::new().into();
    for most in [0.05, 1e4] {
        let (_, expected) = whole(&config, 0.1, Some(most));
        let settings = ShardedModelConfig::new(config.clone()).with_global_norm(most);
        for (_, parameters) in on_ranks(count, |ranks| train(&ranks, settings.clone(), 0.1)) {
            agree(&format!("a norm of {most}"), &parameters, &expected);
        }
    }
    assert_ne!(whole(&config, 0.1, Some(0.05)).1, whole(&config, 0.1, Some(1e4)).1, "the norm clips");
}

pub(super) type S = Autodiff<Rocm>;

/// With computation in bf16 the bits are those of one device that keeps f32 parameters and computes
/// with a copy in bf16. All ranks have the same samples, so that their mean is exact.
#[test]
fn computation_in_bf16_has_f32_parameters() {
    let Some(count) = devices("model::computation_in_bf16_has_f32_parameters") else { return };
    let bf16 = FloatDType::BF16;
    let batch = |step: usize, device: &RocmDevice| {
        let (x, y) = samples::<S>(&[step, step + 1, step + 2], device);
        (x.cast(bf16), y.cast(bf16))
    };
    let expected = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let mut master = Whole::<S>::new(&device);
        let mut optimizer = AdamWConfig::new().init();
        for step in 0..STEPS {
            let model = trained_in(bf16, &master);
            let loss = model.loss(batch(step, &device));
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            let grads = crate::sharded::zeros_for_missing::<S, _>(&master, grads);
            master = optimizer.step(1e-3, master, grads);
        }
        parameters(&trained_in(bf16, &master))
    })
    .remove(0);
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let mut model =
            build::<S>(&ranks, ShardedModelConfig::new(AdamWConfig::new()).with_dtype(bf16), &device);
        for at in 0..STEPS {
            step(&mut model, 1e-3, Share::EVEN, batch(at, &device));
        }
        assert_eq!(model.whole_block(1).used.weight.val().dtype(), burn::tensor::DType::BF16);
        gathered(&model)
    });
    for found in found {
        assert_eq!(found, expected);
    }
}

/// The module in this dtype, but frozen parameters as they are.
pub(super) fn trained_in(dtype: FloatDType, module: &Whole<S>) -> Whole<S> {
    let mut converted = Precision::new(dtype).convert(module);
    for (block, from) in converted.blocks.iter_mut().zip(&module.blocks) {
        block.frozen = from.frozen.clone();
    }
    converted
}

/// Four steps, and four more after a load by as many ranks, by one, and by a sharded optimizer of
/// the whole model: the parameters are those of eight steps without a stop.
#[test]
fn any_number_of_ranks_goes_on() {
    let Some(count) = devices("model::any_number_of_ranks_goes_on") else { return };
    let folder = Folder::new("model-ranks");
    let lr = 0.02;
    let config: OptimizerConfig = AdamWConfig::new().into();
    let model = |ranks: &DataParallel| {
        build::<B>(ranks, ShardedModelConfig::new(config.clone()), &ranks.communicator().device())
    };
    let train = |ranks: &DataParallel, model: &mut Model<B>, from: usize, to: usize| {
        for part in &schedule(ranks)[from..to] {
            step(model, lr, part.share, samples(&part.indices, &ranks.communicator().device()));
        }
    };
    for writers in [1, count] {
        let path = folder.at(&writers.to_string());
        let expected = on_ranks(writers, |ranks| {
            let mut model = model(&ranks);
            train(&ranks, &mut model, 0, 4);
            model.save(&path).unwrap();
            let error = model.save(&path).unwrap_err();
            assert!(matches!(error, RocmError::Config { .. }), "{error}");
            train(&ranks, &mut model, 4, 8);
            gathered(&model)
        });
        for readers in [1, count - 1, count] {
            let found = on_ranks(readers, |ranks| {
                let mut model = model(&ranks);
                // Other parameters and a state, which the checkpoint's replace.
                train(&ranks, &mut model, 0, 1);
                model.load(&path).unwrap();
                train(&ranks, &mut model, 4, 8);
                gathered(&model)
            });
            for found in found {
                if readers == writers {
                    assert_eq!(found, expected[0], "{writers} ranks");
                }
                agree(&format!("{writers} then {readers}"), &found, &expected[0]);
            }
        }
        let found = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            let mut optimizer = ShardedOptimizer::new(&ranks, config.clone());
            let mut net = optimizer.load(&path, Whole::<B>::new(&device)).unwrap();
            for part in &schedule(&ranks)[4..8] {
                let loss = (!part.indices.is_empty()).then(|| net.loss(samples(&part.indices, &device)));
                let grads = ranks.backward(&net, loss);
                net = optimizer.step(lr, net, grads, part.share);
            }
            parameters(&net)
        });
        for found in found {
            agree(&format!("{writers} then a sharded optimizer"), &found, &expected[0]);
        }
    }
    let refused = on_ranks(count, |ranks| {
        let config = ShardedModelConfig::new(SgdConfig::new());
        let mut model = build::<B>(&ranks, config, &ranks.communicator().device());
        let error = model.load(folder.at("1")).unwrap_err();
        // The group is still alive.
        train(&ranks, &mut model, 0, 1);
        error
    });
    assert!(refused.iter().all(|error| matches!(error, RocmError::Config { .. })), "{refused:?}");
}

/// A rank gives up between two steps, or within one. The others get an error long before the
/// timeout.
#[test]
fn a_rank_that_ends_is_an_error_on_the_others() {
    let Some(count) = devices("model::a_rank_that_ends_is_an_error_on_the_others") else { return };
    for within in [false, true] {
        let begun = Instant::now();
        let errors = on_ranks(count, |ranks| {
            let device = ranks.communicator().device();
            // The collective that failed in the group before is the device's error until something waits.
            drop(device.synchronize());
            let mut model = build::<B>(&ranks, ShardedModelConfig::new(AdamConfig::new()), &device);
            let batch = || samples::<B>(&[1, 2], &device);
            step(&mut model, 0.02, Share::EVEN, batch());
            ranks.communicator().meet().unwrap();
            if ranks.rank() == 1 {
                if within {
                    let (x, _) = batch();
                    let stop = |index: usize, block: &Block<B>, x| match index {
                        1 => panic!("on purpose"),
                        _ => block.forward(index, x),
                    };
                    let last = |last: &Linear<B>, x| last.forward(x).mean();
                    let first = |first: &Linear<B>| first.forward(x.clone());
                    let step = || drop(model.step(0.02, Share::EVEN, first, stop, last));
                    catch_unwind(AssertUnwindSafe(step)).unwrap_err();
                }
                ranks.communicator().abort();
                return None;
            }
            let steps = || (0..3).for_each(|_| drop(step(&mut model, 0.02, Share::EVEN, batch())));
            catch_unwind(AssertUnwindSafe(steps)).expect_err("an error was expected");
            Some(take_last_error().expect("the typed error is kept"))
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(error, RocmError::Collective { .. }), "{error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}

/// Neither building nor training has the parameters of many units in a device's memory at once.
#[test]
fn whole_parameters_never_lie_on_a_device_at_once() {
    let Some(count) = devices("model::whole_parameters_never_lie_on_a_device_at_once") else { return };
    const MANY: usize = 32;
    const SIDE: usize = 128;
    let unit = SIDE * SIDE * 4;
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        // All devices' ops are done, and this device has nothing that a later reading lacks.
        let peak = || memory_summary(&device).unwrap().allocated;
        let linear = || LinearConfig::new(SIDE, SIDE).with_bias(false).init::<S>(&device);
        device.reset_peak_memory().unwrap();
        let before = peak().bytes;
        let config = ShardedModelConfig::new(AdamConfig::new());
        let mut model = ShardedModel::build(&ranks, config, linear, MANY, |_| linear(), linear).unwrap();
        device.synchronize().unwrap();
        let kept = (MANY + 2) * unit / ranks.size();
        // This rank's parts; of one unit what was drawn, rank 0's values and the part. Placeholders
        // and the pool's rounding take less than half a unit for all units.
        let built = peak();
        assert!(built.bytes - before <= kept + unit / 2, "{built:?}, {before} before");
        assert!(built.peak - before <= kept + 4 * unit, "{built:?}, {before} before");
        let x = Tensor::<S, 2>::ones([1, SIDE], &device);
        let step = |model: &mut ShardedModel<S, Linear<S>, Linear<S>, Linear<S>>| {
            model.step(
                1e-3,
                Share::EVEN,
                |first: &Linear<S>| first.forward(x.clone()),
                |_, block: &Linear<S>, x| activation::tanh(block.forward(x)),
                |last: &Linear<S>, x| last.forward(x).mean(),
            )
        };
        drop(step(&mut model)); // allocates the optimizer's state
        device.synchronize().unwrap();
        device.reset_peak_memory().unwrap();
        let before = peak().bytes;
        assert!(before >= 3 * kept, "parameters and moments: {before}");
        drop(step(&mut model));
        device.synchronize().unwrap();
        // Two units' parameters, the gradients of one and packed those of two, and two parts of
        // them. The inputs of all blocks take half a unit's bytes, as 32 * 128 * 4 bytes are less.
        let more = peak().peak - before;
        assert!(more <= 6 * unit + unit / 2 + 2 * unit / ranks.size(), "{more} bytes, {unit} of a unit");
        assert!(more < (MANY + 2) * unit / 3, "{more} bytes, {unit} of a unit");
    });
}

/// The layers of a decoder, with embeddings as the blocks' input.
fn decoder() -> DecoderConfig {
    DecoderConfig::new(16, 24, 3, 4).with_kv_heads(Some(2)).with_qkv_bias(true)
}

/// A decoder's layers, each a block that does not know the next one, are those of
/// [`Decoder::forward`](burn_rocm_nn::language::Decoder::forward), with its gradients.
#[test]
fn a_decoder_is_divided_by_layers() {
    let Some(count) = devices("model::a_decoder_is_divided_by_layers") else { return };
    let tokens = |rank: usize, device: &RocmDevice| {
        let values: Vec<f64> = (0..5 * 16).map(|i| (0.7 * (i + 80 * rank) as f64).sin()).collect();
        Tensor::<B, 3>::from_data(TensorData::new(values, [1, 5, 16]), device)
    };
    let drawn = |layer: DecoderLayer<B>| layer.map(&mut Wave(0));
    let expected = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let mut model = decoder().init::<B>(&device);
        model.layers = model.layers.into_iter().map(drawn).collect();
        let mut optimizer = SgdConfig::new().init();
        for _ in 0..3 {
            let all = Tensor::cat((0..count).map(|rank| tokens(rank, &device)).collect(), 0);
            let loss = model.forward(all, &Positions::FromZero, None).powi_scalar(3).mean();
            let grads = ranks.backward(&model, Some(loss));
            model = optimizer.step(0.1, model, grads);
        }
        model.layers.iter().flat_map(parameters).collect::<Vec<_>>()
    })
    .remove(0);
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let rotary: RotaryEmbedding<B> = RotaryConfig::new(4).init(&device);
        let config = ShardedModelConfig::new(SgdConfig::new());
        let layer = |_| drawn(decoder().init_layer::<B>(&device));
        // A first part without parameters.
        let nothing = Vec::<Linear<B>>::new;
        let norm = || decoder().init::<B>(&device).norm;
        let mut model = ShardedModel::build(&ranks, config, nothing, 3, layer, norm).unwrap();
        for _ in 0..3 {
            model.step(
                0.1,
                Share::EVEN,
                |_: &Vec<Linear<B>>| tokens(ranks.rank(), &device),
                |_, layer: &DecoderLayer<B>, x| {
                    let attend = |heads| layer.attention(heads);
                    layer.forward_alone(x, (&rotary, &Positions::FromZero), None, attend)
                },
                |norm: &burn_rocm_nn::language::Norm<B>, x| norm.forward(x).powi_scalar(3).mean(),
            );
        }
        (0..3).flat_map(|index| parameters(&model.whole_block(index))).collect::<Vec<_>>()
    });
    for found in found {
        // A layer has 2^11 products; three layers and three steps.
        let limit = 2f64.powi(11 + 6 - 53) * 9.0;
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
            assert!((found - expected).abs() <= limit, "{found} instead of {expected}");
        }
    }
}

/// Sets parameters to values that do not depend on the device.
pub(crate) struct Wave(pub(crate) usize);

impl burn::module::ModuleMapper<B> for Wave {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|value| {
            let count = value.shape().num_elements();
            let values: Vec<f64> = (self.0..self.0 + count).map(|i| 0.3 * (1.7 * i as f64).sin()).collect();
            self.0 += count;
            Tensor::from_data(TensorData::new(values, value.shape()), &value.device()).require_grad()
        })
    }
}
