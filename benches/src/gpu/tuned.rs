//! How much of a program's start the tuning store saves: from process start to the end of the fourth
//! training step, with an empty store and with the one that an earlier process has filled. Compiled
//! kernels are on disk in both cases.

use std::path::Path;
use std::time::Instant;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::FloatDType;
use burn_rocm::{Rocm, RocmDevice, RocmError};
use burn_rocm_nn::optim::AdamConfig;

use super::models::{Trained, fused};
use crate::Options;
use crate::cold::{itself, with_empty_caches};

/// The models, each with its batch.
const MODELS: [(&str, usize); 3] = [("CNN", 512), ("ResNet-18", 64), (TRANSFORMER, 16)];
/// The model without convolutions.
const TRANSFORMER: &str = "transformer";

/// Ways to choose algorithms: `BURN_ROCM_CONV_FIND`, `BURN_ROCM_GEMM_FIND` and
/// `BURN_ROCM_KERNEL_FIND`.
const WAYS: [(&str, [&str; 3]); 3] = [
    ("convolutions by auto", ["auto", "off", "0"]),
    ("convolutions by find", ["find", "off", "0"]),
    (ALL, ["find", "auto", "1"]),
];
const ALL: &str = "convolutions by find, products and kernels by trial";

/// With `auto`, the third use of a shape times its algorithms.
const STEPS: usize = 4;

type Backend = Autodiff<Rocm>;

/// Trains a model for some steps, then prints how many problems were timed and found in the store.
///
/// # Errors
/// The text of an error of the device, or of an unknown model.
pub(crate) fn steps(options: &Options, model: &str) -> Result<(), String> {
    let Some(&(_, size)) = MODELS.iter().find(|(name, _)| *name == model) else {
        return Err(format!("expected one of {:?}, found {model}", MODELS.map(|(name, _)| name)));
    };
    let size = (size / options.shrink).max(1);
    let done = match model {
        "CNN" => train::<fused::Cnn<Backend>>(size, options.bf16),
        TRANSFORMER => train::<fused::Transformer<Backend>>(size, options.bf16),
        _ => train::<fused::ResNet18<Backend>>(size, options.bf16),
    };
    done.map_err(|error| error.to_string())?;
    let stats = burn_rocm::tuning::store().stats();
    println!("{} {}", stats.trials, stats.hits);
    Ok(())
}

fn train<M: Trained<Backend> + AutodiffModule<Backend>>(size: usize, bf16: bool) -> Result<(), RocmError> {
    let device = RocmDevice::default();
    let dtype = if bf16 { FloatDType::BF16 } else { FloatDType::F32 };
    let (mut model, mut optimizer) = (M::new(&device), AdamConfig::new().init());
    let batch = M::cast(M::batch(size, &device), dtype);
    for _ in 0..STEPS {
        let loss = model.loss(batch.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
    }
    device.synchronize()
}

/// What a process has done.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Start {
    seconds: f64,
    /// Problems that it has timed, and those that it has found in the store.
    timed: u64,
    found: u64,
}

/// Prints a row for each model and for each way to choose algorithms.
///
/// # Errors
/// If this program can't be started again, a step fails, or a process with a filled store times
/// anything.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    println!(
        "| start to the end of step {STEPS} | empty store | timed | filled store | timed | found | saved |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut again = 0;
    for (model, _) in MODELS.into_iter().filter(|(model, _)| options.names(model)) {
        for (way, values) in WAYS.into_iter().filter(|(way, _)| model != TRANSFORMER || *way == ALL) {
            let row = |cache: &Path| row(options, model, values, cache);
            let [empty, filled] = with_empty_caches("tuned", row)?;
            again += filled.timed;
            println!(
                "| {model}, {way} | {:.3} s | {} | {:.3} s | {} | {} | {:.3} s |",
                empty.seconds,
                empty.timed,
                filled.seconds,
                filled.timed,
                filled.found,
                empty.seconds - filled.seconds
            );
        }
    }
    match again {
        0 => Ok(()),
        _ => Err(format!("processes with a filled store timed {again} problems again")),
    }
}

/// Starts processes with an empty store and with a filled one, in turns. Returns for each the
/// median of the seconds, and the most problems that any of them has timed and found.
fn row(options: &Options, model: &str, values: [&str; 3], cache: &Path) -> Result<[Start; 2], String> {
    let start = || once(options, model, values, cache);
    // Compiles kernels, and MIOpen's.
    start()?;
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..options.iterations.max(1) {
        // MIOpen keeps times of its own, which would replace the store's.
        for folder in ["tuning", "miopen"] {
            let path = cache.join(folder);
            match std::fs::remove_dir_all(&path) {
                Err(error) if path.exists() => return Err(format!("{}: {error}", path.display())),
                _ => {}
            }
        }
        for starts in &mut rounds {
            starts.push(start()?);
        }
    }
    Ok(rounds.map(|mut starts| {
        starts.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        let most = |of: fn(&Start) -> u64| starts.iter().map(of).max().unwrap_or_default();
        Start {
            seconds: starts[starts.len() / 2].seconds,
            timed: most(|start| start.timed),
            found: most(|start| start.found),
        }
    }))
}

/// Starts this program again.
fn once(options: &Options, model: &str, values: [&str; 3], cache: &Path) -> Result<Start, String> {
    let mut command = itself(cache)?;
    command.args(["--tuned-steps", model, "--shrink", &options.shrink.to_string()]);
    if options.bf16 {
        command.arg("--bf16");
    }
    command.envs(
        ["BURN_ROCM_CONV_FIND", "BURN_ROCM_GEMM_FIND", "BURN_ROCM_KERNEL_FIND"].into_iter().zip(values),
    );
    let start = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [timed, found] if output.status.success() => Ok(Start { seconds, timed, found }),
        _ => Err(format!("{model}: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}
