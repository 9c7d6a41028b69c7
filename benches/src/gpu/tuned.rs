//! How much of a program's start the tuning store saves: from process start to the end of the fourth
//! training step, with an empty store and with the one that an earlier process has filled. Compiled
//! kernels are on disk in both cases.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::FloatDType;
use burn_rocm::{Rocm, RocmDevice, RocmError};
use burn_rocm_nn::optim::AdamConfig;

use super::models::{Trained, fused};
use crate::Options;

/// The models, each with its batch.
const MODELS: [(&str, usize); 2] = [("CNN", 512), ("ResNet-18", 64)];
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

/// Prints a row for each model and for each way of choosing algorithms that times them.
///
/// # Errors
/// If this program can't be started again, or a step fails.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    println!(
        "| start to the end of step {STEPS} | empty store | timed | filled store | timed | found | saved |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for (model, _) in MODELS.into_iter().filter(|(model, _)| options.names(model)) {
        for find in ["auto", "find"] {
            let cache = std::env::temp_dir().join(format!("burn-rocm-tuned-{}", std::process::id()));
            // A leftover folder of an ended process, if it had this number.
            let _ = std::fs::remove_dir_all(&cache);
            std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
            let row = row(options, model, find, &cache);
            let _ = std::fs::remove_dir_all(&cache);
            let [(empty, timed, _), (filled, again, found)] = row?;
            println!(
                "| {model}, {find} | {empty:.3} s | {timed} | {filled:.3} s | {again} | {found} | {:.3} s |",
                empty - filled
            );
        }
    }
    Ok(())
}

/// The median seconds, the problems timed and those found, of processes with an empty store and with
/// a filled one, in turns.
fn row(options: &Options, model: &str, find: &str, cache: &Path) -> Result<[(f64, u64, u64); 2], String> {
    let start = || once(options, model, find, cache);
    // Compiles kernels, and MIOpen's.
    start()?;
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..options.iterations {
        // MIOpen keeps times of its own, which would replace the store's.
        for folder in ["tuning", "miopen"] {
            let path = cache.join(folder);
            match std::fs::remove_dir_all(&path) {
                Err(error) if path.exists() => return Err(format!("{}: {error}", path.display())),
                _ => {}
            }
        }
        for times in &mut rounds {
            times.push(start()?);
        }
    }
    Ok(rounds.map(|mut times| {
        times.sort_by(|one, other| one.0.total_cmp(&other.0));
        times[times.len() / 2]
    }))
}

/// Starts this program again.
fn once(options: &Options, model: &str, find: &str, cache: &Path) -> Result<(f64, u64, u64), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--tuned-steps", model, "--shrink", &options.shrink.to_string()]);
    if options.bf16 {
        command.arg("--bf16");
    }
    command
        .env("BURN_ROCM_CACHE_DIR", cache)
        .env("BURN_ROCM_CONV_FIND", find)
        .env("MIOPEN_USER_DB_PATH", cache.join("miopen"))
        .env("CUDA_CACHE_PATH", cache.join("driver"));
    let start = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [timed, found] if output.status.success() => Ok((seconds, timed, found)),
        _ => Err(format!("{model}: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}
