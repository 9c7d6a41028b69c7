//! A small language model as the program `sharded_decoder` divides it among ranks: an embedding, a
//! decoder's layers, and a norm with the output layer and the loss. The reference is the whole model on
//! one device, in plain loops of Burn, with all ranks' sequences.

use std::cell::Cell;

use burn::nn::{Embedding, EmbeddingConfig};
use burn::optim::Optimizer;
use burn::tensor::Int;
use burn_rocm::trace::counts;
use burn_rocm_nn::language::{
    DecoderConfig, DecoderLayer, Norm, NormConfig, Positions, RotaryConfig, RotaryEmbedding,
};
use burn_rocm_nn::optim::{AdamWConfig, SgdConfig};
use burn_rocm_nn::parallel::{ShardedModel, ShardedModelConfig, Share};

use crate::model::Wave;
use crate::*;

const VOCABULARY: usize = 11;
const WIDTH: usize = 16;
const LAYERS: usize = 3;
const HEADS: usize = 4;
const TOKENS: usize = 6;
const STEPS: usize = 4;
const RATE: f64 = 0.01;

/// The last part.
#[derive(Module, Debug)]
struct Head<B: Backend> {
    norm: Norm<B>,
    output: Linear<B>,
}

/// All parts as one module.
#[derive(Module, Debug)]
struct Whole<B: Backend> {
    first: Embedding<B>,
    layers: Vec<DecoderLayer<B>>,
    last: Head<B>,
}

fn embedding(device: &RocmDevice) -> Embedding<B> {
    EmbeddingConfig::new(VOCABULARY, WIDTH).init::<B>(device).map(&mut Wave(7))
}

fn layer(index: usize, device: &RocmDevice) -> DecoderLayer<B> {
    let config = DecoderConfig::new(WIDTH, 3 * WIDTH, LAYERS, HEADS);
    config.init_layer::<B>(device).map(&mut Wave(10_000 * (index + 1)))
}

fn head(device: &RocmDevice) -> Head<B> {
    let output = LinearConfig::new(WIDTH, VOCABULARY).with_bias(false).init::<B>(device);
    Head { norm: NormConfig::new(WIDTH).init(device), output: output.map(&mut Wave(3)) }
}

fn forward(layer: &DecoderLayer<B>, x: Tensor<B, 3>, rotary: &RotaryEmbedding<B>) -> Tensor<B, 3> {
    layer.forward_alone(x, (rotary, &Positions::FromZero), None, |heads| layer.attention(heads))
}

fn loss(last: &Head<B>, x: Tensor<B, 3>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
    let logits = last.output.forward(last.norm.forward(x));
    activation::log_softmax(logits, 2).gather(2, targets.unsqueeze_dim(2)).mean().neg()
}

/// The sequences of some ranks in a step, and the tokens that follow.
fn text(
    ranks: std::ops::Range<usize>,
    step: usize,
    device: &RocmDevice,
) -> (Tensor<B, 2, Int>, Tensor<B, 2, Int>) {
    let token = |rank: usize, at: usize| ((at * at + 3 * step + 5 * rank + 2) % VOCABULARY) as i64;
    let tensor = |by: usize| {
        let of = |rank: usize| (0..TOKENS).map(move |at| token(rank, at + by));
        let tokens: Vec<i64> = ranks.clone().flat_map(of).collect();
        Tensor::from_data(TensorData::new(tokens, [ranks.len(), TOKENS]), device)
    };
    (tensor(0), tensor(1))
}

/// Each step's loss over all sequences, and the parameters after the last one.
#[test]
fn a_divided_language_model_is_the_whole_one() {
    let Some(count) = devices("decoder::a_divided_language_model_is_the_whole_one") else { return };
    let (losses, expected) = on_ranks(1, |ranks| {
        let device = ranks.communicator().device();
        let rotary = RotaryConfig::new(WIDTH / HEADS).init::<B>(&device);
        let layers = (0..LAYERS).map(|index| layer(index, &device)).collect();
        let mut model = Whole { first: embedding(&device), layers, last: head(&device) };
        let (mut optimizer, mut losses) = (AdamWConfig::new().init(), Vec::new());
        for step in 0..STEPS {
            let (ids, targets) = text(0..count, step, &device);
            let x = model.first.forward(ids);
            let x = model.layers.iter().fold(x, |x, layer| forward(layer, x, &rotary));
            let loss = loss(&model.last, x, targets);
            losses.push(loss.clone().into_scalar());
            let grads = ranks.backward(&model, Some(loss));
            model = optimizer.step(RATE, model, grads);
        }
        (losses, parameters(&model))
    })
    .remove(0);
    let found = on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let rotary = RotaryConfig::new(WIDTH / HEADS).init::<B>(&device);
        let config = ShardedModelConfig::new(AdamWConfig::new());
        let mut model = ShardedModel::build(
            &ranks,
            config,
            || embedding(&device),
            LAYERS,
            |index| layer(index, &device),
            || head(&device),
        )
        .unwrap();
        let mut losses = Vec::new();
        for step in 0..STEPS {
            let (ids, targets) = text(ranks.rank()..ranks.rank() + 1, step, &device);
            let own = model.step(
                RATE,
                Share::EVEN,
                |first: &Embedding<B>| first.forward(ids.clone()),
                |_, layer: &DecoderLayer<B>, x| forward(layer, x, &rotary),
                |last: &Head<B>, x| loss(last, x, targets),
            );
            losses.push(ranks.mean(own, Share::EVEN).into_scalar());
        }
        let mut all = parameters(&model.whole_first());
        all.extend((0..LAYERS).flat_map(|index| parameters(&model.whole_block(index))));
        all.extend(parameters(&model.whole_last()));
        (losses, all)
    });
    // Some 2^12 products make a gradient. AdamW divides its error by at least its epsilon, 1e-5, and the
    // steps after an error amplify it by up to 2^6. A wrong gradient moves a parameter by about the rate.
    let limit = RATE * 2f64.powi(12 - 53) * 1e5 * 2f64.powi(6) * STEPS as f64;
    assert!(losses[STEPS - 1] != losses[0]);
    for (found_losses, found) in found {
        assert_eq!((found.len(), found_losses.len()), (expected.len(), STEPS));
        let pairs = found.concat().into_iter().chain(found_losses);
        for (found, expected) in pairs.zip(expected.concat().into_iter().chain(losses.clone())) {
            assert!((found - expected).abs() <= limit, "{found} instead of {expected}");
        }
    }
}

/// A part with a parameter that needs no call of a library.
#[derive(Module, Debug)]
struct Scale<B: Backend> {
    by: Param<Tensor<B, 2>>,
}

impl Scale<B> {
    fn new(device: &RocmDevice) -> Self {
        Self { by: Param::from_data(TensorData::new(vec![0.5; FEATURES], [1, FEATURES]), device) }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        x * self.by.val()
    }
}

/// A part's parameters are on their way before the ops of the part that comes before it are enqueued: in
/// the forward pass, in the backward pass, and in an evaluation. Each gathering and each reduction is one
/// call of the library.
#[test]
fn parameters_are_gathered_ahead() {
    let Some(count) = devices("decoder::parameters_are_gathered_ahead") else { return };
    const BLOCKS: u64 = 3;
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let scale = || Scale::new(&device);
        let config = ShardedModelConfig::new(SgdConfig::new());
        let mut model =
            ShardedModel::build(&ranks, config, scale, BLOCKS as usize, |_| scale(), scale).unwrap();
        let x = samples::<B>(&[1, 2], &device).0;
        let begun = Cell::new(0);
        // The library's calls that this thread has made when a part begins.
        let seen = std::cell::RefCell::new(Vec::new());
        let note = || seen.borrow_mut().push(counts().library_calls - begun.get());
        let first = |part: &Scale<B>| {
            note();
            part.forward(x.clone())
        };
        let block = |_: usize, part: &Scale<B>, x: Tensor<B, 2>| {
            note();
            part.forward(x)
        };
        let last = |part: &Scale<B>, x: Tensor<B, 2>| {
            note();
            part.forward(x).mean()
        };

        begun.set(counts().library_calls);
        drop(model.evaluate(first, block, last));
        // The first part, the blocks, the last part: each has its own gathering and the next part's.
        let forward: Vec<u64> = (0..=BLOCKS).map(|part| part + 2).collect();
        assert_eq!(seen.take(), [&forward[..], &[BLOCKS + 2]].concat());

        begun.set(counts().library_calls);
        drop(model.step(0.1, Share::EVEN, first, block, last));
        // The last part runs once, behind the gathering of the block before it. Each part behind it has
        // reduced its gradients.
        let last = BLOCKS + 3;
        let backward = (1..=BLOCKS).map(|part| last + 2 * part);
        // Nothing is gathered ahead of the first part.
        let expected: Vec<u64> =
            forward.into_iter().chain([last]).chain(backward).chain([last + 2 * BLOCKS + 1]).collect();
        assert_eq!(seen.take(), expected);
    });
}
