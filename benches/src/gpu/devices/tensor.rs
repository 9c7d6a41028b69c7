//! A transformer whose layers are divided among the devices, which all have the whole batch.

use burn::backend::Autodiff;
use burn::module::Module;
use burn::optim::Optimizer;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_rocm::{Communicator, FloatElement, Rocm, RocmDevice, bf16};
use burn_rocm_nn::LayerNorm;
use burn_rocm_nn::attention::MhaInput;
use burn_rocm_nn::loss::{MseLoss, Reduction};
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::parallel::{DataParallel, ParallelAttention, ParallelFeedForward};

use super::{group, seconds};
use crate::Options;
use crate::gpu::models::{Trained, fill, fused};
use crate::gpu::report::time;

pub(super) fn run(options: &Options, devices: &[RocmDevice], counts: &[usize]) -> Result<(), String> {
    match options.bf16 {
        false => rows::<f32>(options, devices, counts, "f32"),
        true => rows::<bf16>(options, devices, counts, "bf16"),
    }
}

fn rows<F: FloatElement>(
    options: &Options,
    devices: &[RocmDevice],
    counts: &[usize],
    dtype: &str,
) -> Result<(), String> {
    let size = if options.shrink > 1 { 1 } else { 16 };
    let name = format!("transformer Adam step, batch {size}, {dtype}, divided");
    if !options.names(&name) {
        return Ok(());
    }
    println!("\n| step | devices | launch by launch | as a graph | times one device's speed |");
    println!("|---|---|---|---|---|");
    let mut alone = None;
    for &count in [1].iter().chain(counts.iter().filter(|&&count| count > 1)) {
        let ranks = group(&devices[..count])?;
        let [eager, graph] = seconds(options, &ranks, |rank| step::<F>(rank, size))?;
        let best = eager.min(graph);
        let speed = *alone.get_or_insert(best) / best;
        println!("| {name} | {count} | {} | {} | {speed:.2} |", time(eager), time(graph));
    }
    Ok(())
}

/// A layer whose norms come before attention and feed-forward layers.
#[derive(Module, Debug)]
struct Layer<B: Backend> {
    attention: ParallelAttention<B>,
    feed_forward: ParallelFeedForward<B>,
    before_attention: LayerNorm<B>,
    before_feed_forward: LayerNorm<B>,
}

/// A rank's part of [`fused::Transformer`]; the whole one for a group of one rank.
#[derive(Module, Debug)]
enum Part<B: Backend> {
    Whole(fused::Transformer<B>),
    Divided(Vec<Layer<B>>),
}

impl<B: Backend> Part<B> {
    fn of(model: fused::Transformer<B>, ranks: &Communicator) -> Self {
        if ranks.size() == 1 {
            return Self::Whole(model);
        }
        let layers = model.encoder.layers.into_iter().map(|layer| Layer {
            attention: ParallelAttention::of(layer.mha, ranks),
            feed_forward: ParallelFeedForward::of(layer.pwff, ranks),
            before_attention: layer.norm_2,
            before_feed_forward: layer.norm_1,
        });
        Self::Divided(layers.collect())
    }

    fn loss(&self, (input, target): (Tensor<B, 3>, Tensor<B, 3>)) -> Tensor<B, 1> {
        let layers = match self {
            Self::Whole(model) => return model.loss((input, target)),
            Self::Divided(layers) => layers,
        };
        let output = layers.iter().fold(input, |x, layer| {
            let attended =
                layer.attention.forward(MhaInput::self_attn(layer.before_attention.forward(x.clone())));
            let x = x + attended.context;
            let ahead = layer.before_feed_forward.forward(x.clone());
            x + layer.feed_forward.forward(ahead)
        });
        MseLoss::new().forward(output, target, Reduction::Mean)
    }
}

/// One rank's training step. Each rank updates its own parameters.
fn step<F: FloatElement>(communicator: Communicator, size: usize) -> impl FnMut() + use<F> {
    type Tracked<F> = Autodiff<Rocm<F>>;
    let device = communicator.device();
    // For the threads' meetings around the backward pass; no gradient is reduced.
    let ranks = DataParallel::new(communicator.clone());
    let batch = fused::Transformer::<Tracked<F>>::batch(size, &device);
    let model = fill::<Tracked<F>, _>(fused::Transformer::<Tracked<F>>::new(&device));
    let mut optimizer = AdamConfig::new().init::<Tracked<F>, Part<Tracked<F>>>();
    let mut part = Some(Part::of(model, &communicator));
    move || {
        let Some(now) = part.take() else { return };
        let loss = now.loss(batch.clone());
        let grads = ranks.backward(&now, Some(loss));
        part = Some(optimizer.step(1e-4, now, grads));
    }
}
