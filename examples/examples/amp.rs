//! Mixed precision and gradient checkpointing: a convolutional network and a small transformer
//! classify drawn digits, trained in f32, and in f16 and bf16 with f32 master weights. Prints
//! accuracy, peak memory and time of each run. With `--checkpointing` each run is repeated with
//! gradient checkpointing.
//!
//! ```text
//! cargo run --release --example amp -- --model cnn --steps 400
//! ```

use std::process::ExitCode;

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::FloatDType;
use burn_rocm::Rocm;
use burn_rocm_examples::amp::{Kind, Options, Outcome, train};
use burn_rocm_examples::data::digits;
use clap::Parser;

/// Trains a classifier of drawn digits in several precisions, and compares.
#[derive(Debug, Parser)]
#[command(name = "amp")]
struct Arguments {
    /// The models to train.
    #[arg(long, value_enum, num_args = 1.., default_values = ["cnn", "transformer"])]
    model: Vec<Kind>,
    /// Steps of each run.
    #[arg(long, default_value_t = 600)]
    steps: usize,
    /// Images in one step.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Learning rate of the first step; it falls to 0.
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Decides the weights at the start and the order of the images.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Points of accuracy by which f16 or bf16 may stay below f32. Beyond that the program ends
    /// with status 1.
    #[arg(long, default_value_t = 0.5)]
    within: f64,
    /// Repeat every run with gradient checkpointing.
    #[arg(long)]
    checkpointing: bool,
}

fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let &Arguments { steps, batch_size, lr, seed, .. } = arguments;
    let options = Options { steps, batch_size, lr, seed };
    let data = digits::generate(0, digits::TRAIN, digits::TEST);
    println!(
        "| model | precision | gradient checkpointing | test accuracy, % | peak memory, MiB | s | steps skipped |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut near = true;
    for &kind in &arguments.model {
        let mut full = None;
        for half in [None, Some(FloatDType::F16), Some(FloatDType::BF16)] {
            for checkpointing in [false, true] {
                if checkpointing && !arguments.checkpointing {
                    continue;
                }
                let outcome = match checkpointing {
                    false => train::<Autodiff<Rocm>>(kind, half, &data, &options)?,
                    true => train::<Autodiff<Rocm, BalancedCheckpointing>>(kind, half, &data, &options)?,
                };
                let Outcome { accuracy, peak, seconds, skipped } = outcome;
                let name = half.map_or("f32".to_owned(), |dtype| format!("{dtype:?}").to_lowercase());
                println!(
                    "| {} | {name} | {} | {accuracy:.2} | {peak:.1} | {seconds:.1} | {skipped} |",
                    format!("{kind:?}").to_lowercase(),
                    if checkpointing { "yes" } else { "no" },
                );
                near &= accuracy >= *full.get_or_insert(accuracy) - arguments.within;
            }
        }
    }
    Ok(near)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("f16 or bf16 stayed more than {} points below f32", arguments.within);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
