//! Trains a decoder whose parameters are divided among devices, and measures steps and memory.
//!
//! The default is a decoder of 14 billion parameters that computes in bf16, with f32 parameters and
//! moments of AdamW: 168 GB, divided among the devices of `--devices`, each in a thread, or of a
//! launcher's processes (torchrun's, mpirun's or srun's variables). With small sizes it runs on any
//! device.
//!
//! The operations of a step are counted as 6 for each parameter and token, which is what the
//! forward and the backward pass need. The forward pass that the backward pass repeats is work, but
//! not progress: the device computes about 8. Attention's own products, which have no parameters,
//! are in neither count.

use std::time::Instant;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, FloatDType, Int, Tensor, TensorData};
use burn_rocm::rendezvous::{Launcher, Rendezvous, World};
use burn_rocm::{Communicator, Rocm, RocmDevice, RocmError, memory_summary};
use burn_rocm_nn::language::{DecoderConfig, DecoderLayer, Norm, NormConfig, Positions, RotaryConfig};
use burn_rocm_nn::loss::CrossEntropyLoss;
use burn_rocm_nn::optim::AdamWConfig;
use burn_rocm_nn::parallel::{DataParallel, ShardedModel, ShardedModelConfig, Share};
use clap::Parser;

type B = Autodiff<Rocm>;

#[derive(Debug, Clone, Parser)]
#[command(about = "Trains a decoder whose parameters are divided among devices")]
struct Options {
    /// Devices of this process, a thread for each. A launcher's processes have one each.
    #[arg(long)]
    devices: Option<usize>,
    #[arg(long, default_value_t = 40)]
    layers: usize,
    /// The features of a token.
    #[arg(long, default_value_t = 5120)]
    width: usize,
    /// The features within the feed-forward part; three times the width by default.
    #[arg(long)]
    inner: Option<usize>,
    #[arg(long, default_value_t = 40)]
    heads: usize,
    #[arg(long, default_value_t = 32_000)]
    vocabulary: usize,
    /// The tokens of a device in each step, as one sequence.
    #[arg(long, default_value_t = 2048)]
    tokens: usize,
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Clip the gradients by the norm of all of them.
    #[arg(long, value_name = "NORM")]
    global_norm: Option<f32>,
    /// Compute in f32.
    #[arg(long)]
    f32: bool,
    /// The size of the square products that are the ceiling.
    #[arg(long, default_value_t = 8192, value_name = "N")]
    product: usize,
}

/// The last part: the norm after all layers, and the output layer.
#[derive(Module, Debug)]
struct Head<B: Backend> {
    norm: Norm<B>,
    output: Linear<B>,
}

impl Options {
    fn decoder(&self) -> DecoderConfig {
        let inner = self.inner.unwrap_or(3 * self.width);
        DecoderConfig::new(self.width, inner, self.layers, self.heads)
    }

    fn head(&self, device: &RocmDevice) -> Head<B> {
        Head {
            norm: NormConfig::new(self.width).init(device),
            output: LinearConfig::new(self.width, self.vocabulary).with_bias(false).init(device),
        }
    }

    fn dtype(&self) -> FloatDType {
        if self.f32 { FloatDType::F32 } else { FloatDType::BF16 }
    }

    /// The parameters of all units.
    fn parameters(&self) -> f64 {
        let (width, inner) = (self.width as f64, self.inner.unwrap_or(3 * self.width) as f64);
        let layer = 4.0 * width * width + 3.0 * width * inner + 2.0 * width;
        layer * self.layers as f64 + 2.0 * width * self.vocabulary as f64 + width
    }
}

fn main() -> std::process::ExitCode {
    match run(&Options::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), RocmError> {
    let world = World::from_env()?;
    if world.launcher == Launcher::Alone {
        let devices: Vec<RocmDevice> = (0..options.devices.unwrap_or(1)).map(RocmDevice::new).collect();
        let communicators = Communicator::local(&devices)?;
        return std::thread::scope(|scope| {
            let rank = |communicator: Communicator| scope.spawn(move || train(options, communicator));
            let threads: Vec<_> = communicators.into_iter().map(rank).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
        });
    }
    let rendezvous = Rendezvous::join(&world)?;
    train(options, Communicator::connect(&RocmDevice::new(world.local_rank), &rendezvous)?)
}

/// The error of a rank whose thread panicked, which has said why.
fn panicked() -> RocmError {
    RocmError::Collective { call: "a step", name: "panic".into(), detail: "a rank's thread panicked".into() }
}

fn train(options: &Options, communicator: Communicator) -> Result<(), RocmError> {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let device = communicator.device();
    let info = device.info()?;
    println!("rank {rank} of {ranks}: {device}, {} ({})", info.name, info.architecture);
    let ceiling = product(options, &device)?;
    let ranks = DataParallel::new(communicator);

    let begun = Instant::now();
    // The same parameters in every run.
    B::seed(&device, 1);
    let config = options.decoder();
    let mut settings = ShardedModelConfig::new(AdamWConfig::new()).with_dtype(options.dtype());
    if let Some(most) = options.global_norm {
        settings = settings.with_global_norm(most);
    }
    let mut model = ShardedModel::build(
        &ranks,
        settings,
        || EmbeddingConfig::new(options.vocabulary, options.width).init::<B>(&device),
        options.layers,
        |_| config.init_layer::<B>(&device),
        || options.head(&device),
    )?;
    device.synchronize()?;
    let kept = gib(memory_summary(&device)?.allocated.bytes);
    if rank == 0 {
        println!(
            "{:.3} billion parameters, {} tokens a device, built in {:.1} s, {kept:.2} GiB a device",
            options.parameters() / 1e9,
            options.tokens,
            begun.elapsed().as_secs_f64()
        );
        println!("| step | loss | ms | TFLOP/s by 6 N | by 8 N | by 6 N, of the product's {ceiling:.1} |");
        println!("|---:|---:|---:|---:|---:|---:|");
    }

    let head_dim = options.width / options.heads;
    let rotary = RotaryConfig::new(head_dim).init::<B>(&device);
    let (ids, targets) = text(options, rank, &device);
    let mut times = Vec::with_capacity(options.steps);
    let row = |name: &str, loss: &str, seconds: f64| {
        let rate = options.parameters() * options.tokens as f64 / seconds / 1e12;
        let (six, eight) = (6.0 * rate, 8.0 * rate);
        println!("| {name} | {loss} | {:.1} | {six:.1} | {eight:.1} | {:.3} |", seconds * 1e3, six / ceiling);
    };
    for step in 1..=options.steps {
        let start = Instant::now();
        let loss = model.step(
            1e-4,
            Share::EVEN,
            |first: &Embedding<B>| first.forward(ids.clone()),
            |_, layer: &DecoderLayer<B>, x| {
                let attend = |heads| layer.attention(heads);
                layer.forward_alone(x, (&rotary, &Positions::FromZero), None, attend)
            },
            |last: &Head<B>, x| {
                let logits = last.output.forward(last.norm.forward(x)).squeeze_dim::<2>(0);
                CrossEntropyLoss::new(None, &device).forward(logits.cast(FloatDType::F32), targets.clone())
            },
        );
        let loss = ranks.mean(loss, Share::EVEN).into_scalar();
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64());
        if rank == 0 {
            row(&step.to_string(), &format!("{loss:.4}"), times[step - 1]);
        }
        if !loss.is_finite() {
            return Err(RocmError::Invalid {
                op: "sharded_decoder",
                expected: "a finite loss".into(),
                found: loss.to_string(),
            });
        }
    }
    // The first two steps compile, choose algorithms, and allocate the moments.
    let mut steady = times.split_off(times.len().min(2));
    steady.sort_by(f64::total_cmp);
    if let (0, Some(median)) = (rank, steady.get(steady.len() / 2)) {
        row("median from 3 on", "", *median);
    }
    let memory = memory_summary(&device)?;
    println!(
        "rank {rank}: peak {:.2} GiB in use, {:.2} GiB taken from the driver; {:.2} GiB between steps",
        gib(memory.allocated.peak),
        gib(memory.peak_reserved),
        gib(memory.allocated.bytes)
    );
    Ok(())
}

/// Tokens and the tokens that follow them, the same in every step and others on every rank.
fn text(options: &Options, rank: usize, device: &RocmDevice) -> (Tensor<B, 2, Int>, Tensor<B, 1, Int>) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(rank as u64 + 1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as i32 % options.vocabulary as i32
    };
    let ids: Vec<i32> = (0..=options.tokens).map(|_| next()).collect();
    let tokens = TensorData::new(ids[..options.tokens].to_vec(), [1, options.tokens]);
    let targets = TensorData::new(ids[1..].to_vec(), [options.tokens]);
    (Tensor::from_data(tokens, device), Tensor::from_data(targets, device))
}

/// TFLOP/s of square products in the dtype of the computation: the fastest of some rounds.
fn product(options: &Options, device: &RocmDevice) -> Result<f64, RocmError> {
    let n = options.product;
    let drawn = || {
        let uniform = Distribution::Uniform(-1.0, 1.0);
        Tensor::<Rocm, 2>::random([n, n], uniform, device).cast(options.dtype())
    };
    let (a, b) = (drawn(), drawn());
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..10 {
            drop(a.clone().matmul(b.clone()));
        }
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / 10.0);
    }
    drop((a, b));
    device.synchronize()?;
    device.reset_peak_memory()?;
    Ok(2.0 * (n as f64).powi(3) / best / 1e12)
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_modules() {
        for more in [&[][..], &["--inner", "40"]] {
            let sizes =
                ["sharded_decoder", "--layers", "3", "--width", "32", "--heads", "4", "--vocabulary", "50"];
            let options = Options::parse_from(sizes.iter().chain(more));
            let device = RocmDevice::default();
            let first = EmbeddingConfig::new(options.vocabulary, options.width).init::<B>(&device);
            let layer = options.decoder().init_layer::<B>(&device);
            let last = options.head(&device);
            let all = first.num_params() + options.layers * layer.num_params() + last.num_params();
            assert_eq!(options.parameters(), all as f64, "{more:?}");
        }
    }
}
