//! The command line of the example `amp`, and the table that it prints. For each version of Burn
//! there is a function `train`, which does one run.

use std::error::Error as StdError;
use std::process::ExitCode;

use burn_rocm::RocmDevice;
use clap::Parser;

use crate::data::{Data, digits, epoch_order};
use crate::mnist::open;
use crate::program::{at_least_1, ends, learning_rate};

/// The models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Two blocks of convolution, batch norm, ReLU and pooling, then 128-10.
    Cnn,
    /// Two layers over the image's rows, 64 features and 4 heads.
    Transformer,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Cnn => "cnn",
            Self::Transformer => "transformer",
        }
    }
}

/// The float type of the forward and the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// 32 bits.
    F32,
    /// 16 bits, with a range so small that the loss is scaled.
    F16,
    /// 16 bits, with f32's range.
    Bf16,
}

impl Float {
    const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// A run: what is trained, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// The model.
    pub kind: Kind,
    /// The float type of the forward and the backward pass. Parameters and optimizer states are f32.
    pub float: Float,
    /// Whether the backward pass recomputes activations instead of keeping them.
    pub checkpointing: bool,
    /// Steps, at least one.
    pub steps: usize,
    /// Images in one step.
    pub batch_size: usize,
    /// Learning rate of the first step. It falls linearly to 0, so that the final accuracy does not
    /// depend on the randomness of the last steps.
    pub lr: f64,
    /// Decides the weights at the start and the order of the images.
    pub seed: u64,
}

impl Run {
    /// The learning rate of a step, from 0.
    pub fn lr(&self, step: usize) -> f64 {
        self.lr * (1.0 - step as f64 / self.steps as f64)
    }

    /// The first step whose memory is measured. The two before it choose algorithms and make the
    /// optimizer's states. In a shorter run it is the last step.
    pub fn first_measured(&self) -> usize {
        2.min(self.steps.saturating_sub(1))
    }

    /// The indices of the images of all steps, with `images` images to train on.
    pub fn indices(&self, images: usize) -> Vec<usize> {
        let orders = (0..).flat_map(|epoch| epoch_order(images, self.seed, epoch));
        orders.take(self.steps * self.batch_size).collect()
    }
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Accuracy on held-out images, in percent.
    pub accuracy: f64,
    /// The most memory that tensors had at once in a step after the second, in MiB; in the last step
    /// if there is no such one.
    pub peak: f64,
    /// The duration of the steps, in seconds.
    pub seconds: f64,
    /// The number of steps skipped because gradients overflowed.
    pub skipped: usize,
}

/// Trains a classifier of drawn digits in several precisions, and compares.
#[derive(Debug, Parser)]
#[command(name = "amp")]
struct Arguments {
    /// The models to train.
    #[arg(long, value_enum, num_args = 1.., default_values = ["cnn", "transformer"])]
    model: Vec<Kind>,
    /// Steps of each run.
    #[arg(long, default_value_t = 600, value_parser = at_least_1)]
    steps: usize,
    /// Images in one step.
    #[arg(long, default_value_t = 64, value_parser = at_least_1)]
    batch_size: usize,
    /// Learning rate of the first step; it falls to 0.
    #[arg(long, default_value_t = 1e-3, value_parser = learning_rate)]
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

/// Parses the arguments and runs the program, which trains with `train`.
pub fn program(train: impl Fn(&Run, &Data) -> Result<Outcome, Box<dyn StdError>>) -> ExitCode {
    let arguments = Arguments::parse();
    ends(|| table(&arguments, train))
}

fn table(
    arguments: &Arguments,
    train: impl Fn(&Run, &Data) -> Result<Outcome, Box<dyn StdError>>,
) -> Result<(), Box<dyn StdError>> {
    let &Arguments { steps, batch_size, lr, seed, within, .. } = arguments;
    open(None, &RocmDevice::default())?;
    let data = digits::generate(0, digits::TRAIN, digits::TEST);
    println!(
        "| model | precision | gradient checkpointing | test accuracy, % | peak memory, MiB | s | steps skipped |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut near = true;
    for &kind in &arguments.model {
        let mut full = None;
        for float in [Float::F32, Float::F16, Float::Bf16] {
            for checkpointing in [false, true] {
                if checkpointing && !arguments.checkpointing {
                    continue;
                }
                let run = Run { kind, float, checkpointing, steps, batch_size, lr, seed };
                let Outcome { accuracy, peak, seconds, skipped } = train(&run, &data)?;
                println!(
                    "| {} | {} | {} | {accuracy:.2} | {peak:.1} | {seconds:.1} | {skipped} |",
                    kind.name(),
                    float.name(),
                    if checkpointing { "yes" } else { "no" },
                );
                near &= accuracy >= *full.get_or_insert(accuracy) - within;
            }
        }
    }
    match near {
        true => Ok(()),
        false => Err(format!("f16 or bf16 stayed more than {within} points below f32").into()),
    }
}
