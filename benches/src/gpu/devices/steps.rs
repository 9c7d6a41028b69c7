//! Training steps on one device, and data parallel on several with the same batch on each.

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::Optimizer;
use burn_rocm::{Communicator, FloatElement, Rocm, RocmDevice, bf16};
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::parallel::{DataParallel, ShardedOptimizer, Share};

use super::{group, seconds};
use crate::Options;
use crate::gpu::models::{Trained, fill, fused};
use crate::gpu::report::time;

/// How a step reduces gradients and updates parameters.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Not at all: what several devices cost beside the collectives.
    Apart,
    /// Beside the backward pass.
    Beside,
    /// After it.
    After,
    /// After it, with the optimizer divided among the devices.
    Sharded,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Apart, "not at all"),
    (Way::After, "after the pass"),
    (Way::Beside, "beside the pass"),
    (Way::Sharded, "sharded optimizer"),
];

pub(super) fn run(options: &Options, devices: &[RocmDevice], counts: &[usize]) -> Result<(), String> {
    println!(
        "\n| step | devices | reduced | launch by launch | as a graph | efficiency of the faster |\n\
         |---|---|---|---|---|---|"
    );
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
    let sizes = if options.shrink > 1 { [8, 4, 1, 1] } else { [512, 512, 64, 16] };
    let among = (devices, counts);
    row::<F, fused::Mlp<Autodiff<Rocm<F>>>>(options, among, "MLP", sizes[0], dtype)?;
    row::<F, fused::Cnn<Autodiff<Rocm<F>>>>(options, among, "CNN", sizes[1], dtype)?;
    row::<F, fused::ResNet18<Autodiff<Rocm<F>>>>(options, among, "ResNet-18", sizes[2], dtype)?;
    row::<F, fused::Transformer<Autodiff<Rocm<F>>>>(options, among, "transformer", sizes[3], dtype)
}

fn row<F, M>(
    options: &Options,
    (devices, counts): (&[RocmDevice], &[usize]),
    model: &str,
    batch: usize,
    dtype: &str,
) -> Result<(), String>
where
    F: FloatElement,
    M: Trained<Autodiff<Rocm<F>>> + AutodiffModule<Autodiff<Rocm<F>>>,
{
    let name = format!("{model} Adam step, batch {batch}, {dtype}");
    if !options.names(&name) {
        return Ok(());
    }
    let both = |ranks: &[Communicator], way| seconds(options, ranks, |rank| step::<F, M>(rank, batch, way));
    let [eager, graph] = both(&group(&devices[..1])?, Way::After)?;
    let alone = eager.min(graph);
    println!("| {name} | 1 | - | {} | {} | 1 |", time(eager), time(graph));
    for &count in counts.iter().filter(|&&count| count > 1) {
        let ranks = group(&devices[..count])?;
        for (way, text) in WAYS {
            let [eager, graph] = both(&ranks, way)?;
            let efficiency = alone / eager.min(graph);
            println!("| {name} | {count} | {text} | {} | {} | {efficiency:.3} |", time(eager), time(graph));
        }
    }
    Ok(())
}

/// One rank's training step.
fn step<F, M>(communicator: Communicator, batch: usize, way: Way) -> impl FnMut() + use<F, M>
where
    F: FloatElement,
    M: Trained<Autodiff<Rocm<F>>> + AutodiffModule<Autodiff<Rocm<F>>>,
{
    let device = communicator.device();
    let mut ranks = DataParallel::new(communicator).with_overlap(way == Way::Beside);
    let mut sharded = ShardedOptimizer::new(&ranks, AdamConfig::new());
    let batch = M::batch(batch, &device);
    let mut optimizer = AdamConfig::new().init::<Autodiff<Rocm<F>>, M>();
    let mut model = Some(fill::<Autodiff<Rocm<F>>, M>(M::new(&device)));
    move || {
        let Some(now) = model.take() else { return };
        let loss = now.loss(batch.clone());
        // The threads of a process take turns here.
        let grads = ranks.backward(&now, Some(loss));
        model = Some(match way {
            Way::Sharded => sharded.step(1e-4, now, grads, Share::EVEN),
            Way::Apart => optimizer.step(1e-4, now, grads),
            Way::Beside | Way::After => {
                let grads = ranks.reduce(&now, grads, Share::EVEN);
                optimizer.step(1e-4, now, grads)
            }
        });
    }
}
