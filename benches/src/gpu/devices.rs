//! Training steps on one device, and data parallel on several with the same batch on each.

use std::sync::{Barrier, OnceLock};
use std::time::Instant;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::Optimizer;
use burn_rocm::{Communicator, FloatElement, Rocm, RocmDevice, bf16};
use burn_rocm_nn::optim::AdamConfig;
use burn_rocm_nn::parallel::{DataParallel, Overlap, ShardedOptimizer, Share};

use super::models::{Trained, fill, fused};
use super::report::time;
use crate::Options;

/// The seconds that a measured round should take.
const ROUND: f64 = 0.5;

/// How a step reduces gradients and updates parameters.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Beside the backward pass.
    Beside,
    /// After it.
    After,
    /// After it, with the optimizer divided among the devices.
    Sharded,
}

/// Prints a row for each model.
///
/// # Errors
/// An error text if there are fewer devices, or no library for collectives.
pub(crate) fn run(options: &Options, count: usize) -> Result<(), String> {
    let devices: Vec<RocmDevice> = (0..count).map(RocmDevice::new).collect();
    for device in &devices {
        let info = device.info().map_err(|error| error.to_string())?;
        println!("{device}: {} ({})", info.name, info.architecture);
    }
    println!(
        "\n| step | alone | on {count} devices | efficiency | reduced after the pass | efficiency | \
         sharded optimizer | efficiency | buckets, beside the pass |\n|---|---|---|---|---|---|---|---|---|"
    );
    match options.bf16 {
        false => rows::<f32>(options, &devices, "f32"),
        true => rows::<bf16>(options, &devices, "bf16"),
    }
}

fn rows<F: FloatElement>(options: &Options, devices: &[RocmDevice], dtype: &str) -> Result<(), String> {
    let small = options.shrink > 1;
    let sizes = if small { [8, 4, 1, 1] } else { [512, 512, 64, 16] };
    row::<F, fused::Mlp<Autodiff<Rocm<F>>>>(options, devices, "MLP", sizes[0], dtype)?;
    row::<F, fused::Cnn<Autodiff<Rocm<F>>>>(options, devices, "CNN", sizes[1], dtype)?;
    row::<F, fused::ResNet18<Autodiff<Rocm<F>>>>(options, devices, "ResNet-18", sizes[2], dtype)?;
    row::<F, fused::Transformer<Autodiff<Rocm<F>>>>(options, devices, "transformer", sizes[3], dtype)
}

fn row<F, M>(
    options: &Options,
    devices: &[RocmDevice],
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
    let (alone, _) = step_time::<F, M>(options, &devices[..1], batch, Way::Beside)?;
    let (beside, overlap) = step_time::<F, M>(options, devices, batch, Way::Beside)?;
    let (after, _) = step_time::<F, M>(options, devices, batch, Way::After)?;
    let (sharded, _) = step_time::<F, M>(options, devices, batch, Way::Sharded)?;
    println!(
        "| {name} | {} | {} | {:.3} | {} | {:.3} | {} | {:.3} | {}, {} |",
        time(alone),
        time(beside),
        alone / beside,
        time(after),
        alone / after,
        time(sharded),
        alone / sharded,
        overlap.buckets,
        overlap.before_end
    );
    Ok(())
}

/// The seconds of a step, as the median over rounds of many steps. Each device has a thread. The
/// host's clock runs from the moment at which all are idle until all are idle again. Also how much of
/// the last reduction ran beside the backward pass.
fn step_time<F, M>(
    options: &Options,
    devices: &[RocmDevice],
    batch: usize,
    way: Way,
) -> Result<(f64, Overlap), String>
where
    F: FloatElement,
    M: Trained<Autodiff<Rocm<F>>> + AutodiffModule<Autodiff<Rocm<F>>>,
{
    let communicators = Communicator::local(devices).map_err(|error| error.to_string())?;
    let (barrier, agreed) = (Barrier::new(devices.len()), OnceLock::new());
    let rank = |communicator: Communicator| {
        let device = communicator.device();
        let mut ranks = DataParallel::new(communicator).with_overlap(way == Way::Beside);
        let mut sharded = ShardedOptimizer::new(&ranks, AdamConfig::new());
        let batch = M::batch(batch, &device);
        let mut optimizer = AdamConfig::new().init::<Autodiff<Rocm<F>>, M>();
        let mut model = Some(fill::<Autodiff<Rocm<F>>, M>(M::new(&device)));
        let mut steps = |count: usize| {
            barrier.wait();
            let start = Instant::now();
            for _ in 0..count {
                let Some(now) = model.take() else { break };
                let loss = now.loss(batch.clone());
                let grads = ranks.backward(&now, Some(loss));
                model = Some(match way {
                    Way::Sharded => sharded.step(1e-4, now, grads, Share::EVEN),
                    Way::Beside | Way::After => {
                        let grads = ranks.reduce(&now, grads, Share::EVEN);
                        optimizer.step(1e-4, now, grads)
                    }
                });
            }
            device.synchronize().expect("the device works");
            barrier.wait();
            start.elapsed().as_secs_f64() / count as f64
        };
        // The first steps compile, choose algorithms and fill the pool.
        steps(options.warmup.max(1) + 3);
        let one = steps(3);
        // The same on every rank.
        let count = *agreed.get_or_init(|| ((ROUND / one) as usize).clamp(1, 1000));
        let mut rounds: Vec<f64> = (0..options.iterations.max(1)).map(|_| steps(count)).collect();
        rounds.sort_by(f64::total_cmp);
        (rounds[rounds.len() / 2], ranks.last_overlap())
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> =
            communicators.into_iter().map(|communicator| scope.spawn(move || rank(communicator))).collect();
        let ranks: Result<Vec<_>, _> = threads.into_iter().map(|thread| thread.join()).collect();
        let ranks = ranks.map_err(|_| "a rank failed".to_string())?;
        let slowest = ranks.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b));
        slowest.ok_or_else(|| "no device".to_string())
    })
}
