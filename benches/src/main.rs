//! Benchmarks of burn-rocm beside its peers, in one run on one machine.
//!
//! On the CPU device a row is one case: the median time of this backend, the median time of the
//! peer (`burn-flex`), their ratio, and the bar that the ratio must meet. The two backends take
//! turns, so that a slow phase of the machine affects both. On a GPU the cases are larger and there
//! are other peers: see [`gpu`].

// `gpu/models/nets.rs` is compiled once for each choice of modules.
#![allow(clippy::duplicate_mod)]

#[cfg(test)]
mod alone;
mod cases;
mod cold;
mod families;
mod fused;
mod gpu;
mod median;
mod mode;
mod model;
mod table;

use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};

use mode::Mode;

/// Which groups of cases to run, and how long.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "benches",
    about = "Times burn-rocm beside its peers: burn-flex on the CPU device, PyTorch and burn-cuda on a GPU"
)]
pub(crate) struct Options {
    /// Run every group.
    #[arg(long)]
    all: bool,
    /// Matrix products.
    #[arg(long)]
    matmul: bool,
    /// Convolutions of the example CNN, forward and backward.
    #[arg(long)]
    conv: bool,
    /// Element-wise operations over 16 M elements (2^28 on a GPU).
    #[arg(long)]
    elementwise: bool,
    /// Reductions over 4096x4096 (65536x4096 on a GPU).
    #[arg(long)]
    reduce: bool,
    /// Softmax over 4096x4096 (65536x4096 on a GPU, and cross entropy).
    #[arg(long)]
    softmax: bool,
    /// Layer norm over 65536x4096, on a GPU; `--families norm` on the CPU device.
    #[arg(long)]
    norm: bool,
    /// Scaled dot-product attention. On a GPU: forward and backward, as a graph of ten calls
    /// (`--precision`; with `--torch`, PyTorch's kernels).
    #[arg(long)]
    attention: bool,
    /// The cost of small ops: a chain of 1000 additions of 32x32.
    #[arg(long)]
    overhead: bool,
    /// One training step of the example models.
    #[arg(long)]
    train: bool,
    /// Inference of ResNet-50 and BERT base, on a GPU: stock modules and burn-rocm-nn's.
    #[arg(long)]
    inference: bool,
    /// With `--train` on a GPU: also rows of burn-rocm-nn whose step is a graph's replay. With
    /// `--inference`: also such rows of stock modules.
    #[arg(long)]
    graph: bool,
    /// With `--train` on a GPU: the float types of burn-rocm-nn's steps. Parameters and the
    /// optimizer's state are f32. With `--inference` and `--attention`: the float types of all tensors.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "f32")]
    precision: Vec<Precision>,
    /// On the CPU device: the geometric mean of the ratios of each family of ops, or of the one named.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    families: Option<String>,
    /// With `--families`, a row for each case too; with `--memory`, each estimate by kind.
    #[arg(long)]
    verbose: bool,
    /// Each op, loss, layer and optimizer of burn-rocm-nn beside what Burn composes, and training
    /// steps of both.
    #[arg(long)]
    fused: bool,
    /// Count the kernels and library calls of a training step, with stock modules and with
    /// burn-rocm-nn's.
    #[arg(long)]
    launches: bool,
    /// Process start to the end of the first training step, with empty caches.
    #[arg(long)]
    cold_start: bool,
    /// Measured rounds of each case, at least 1; the median counts.
    #[arg(long, default_value_t = 5, value_parser = from_1)]
    iterations: usize,
    /// Rounds before the measured ones.
    #[arg(long, default_value_t = 2)]
    warmup: usize,
    /// With `--fused`, `--model`, `--memory` or on a GPU: only the rows whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// With `--fused` or the cases of a device: write the rows as CSV too.
    #[arg(long, value_name = "FILE")]
    csv: Option<std::path::PathBuf>,
    /// On a GPU: ratios to another run's CSV.
    #[arg(long, value_name = "FILE")]
    compare: Option<std::path::PathBuf>,
    /// On a GPU: draw the ratios to the peers as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<std::path::PathBuf>,
    /// On a GPU: measure eager PyTorch too, by this Python.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    torch: Option<std::path::PathBuf>,
    /// On a GPU: measure PyTorch's training steps and inference compiled with CUDA graphs too, by
    /// this Python.
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    torch_compiled: Option<std::path::PathBuf>,
    /// With the cases of a GPU: measure burn-flex too, for its losses.
    #[arg(long)]
    flex: bool,
    /// On a GPU: measure burn-cuda too; needs the feature of that name.
    #[arg(long)]
    burn_cuda: bool,
    /// On GPUs: all-reduces, and training steps of burn-rocm-nn's modules on one device beside those on
    /// each of these numbers of devices. With `--torch`, PyTorch's too.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = from_1)]
    devices: Vec<usize>,
    /// The estimated memory of training steps beside what they take, on any device.
    #[arg(long)]
    memory: bool,
    /// Training steps with and without a profile, in turns (`--precision`, `--graph` and `--filter`
    /// name the steps).
    #[arg(long)]
    profile: bool,
    /// On an NVIDIA GPU: profiles of burn-rocm-nn's training steps, with `--train` of stock modules',
    /// or with `--inference` of inference, held against CUPTI's record (`--precision`, `--graph` and
    /// `--filter` name the steps). The file is `libcupti.so`; without it, the loader
    /// looks for it.
    #[arg(long, value_name = "FILE")]
    cupti: Option<Option<std::path::PathBuf>>,
    /// Process start to the end of the fourth training step, with an empty tuning store and with a
    /// filled one: seconds, and how many problems each process has timed (`--filter` names the
    /// models, `--iterations` the processes of each kind).
    #[arg(long)]
    tuned_start: bool,
    /// With `--devices`, `--memory` or `--tuned-start`: parameters and inputs in bf16 instead of f32.
    #[arg(long)]
    bf16: bool,
    /// Estimate on AMD's GPUs the launches of a table that the virtual GPU wrote
    /// (`VIRTUAL_GPU_COUNTERS`); runs nothing.
    #[arg(long, value_name = "FILE")]
    model: Option<std::path::PathBuf>,
    /// Estimate on AMD's GPUs a token that Llama models decode; runs nothing.
    #[arg(long)]
    model_decoding: bool,
    /// Run the cases of a GPU on any device, with their sizes divided by this number, to try the
    /// program.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = from_1)]
    shrink: usize,
    /// Used by `--cold-start` to run itself: one training step, then exit.
    #[arg(long, hide = true, value_name = "MODEL")]
    first_step: Option<burn_rocm_examples::model::Kind>,
    /// Used by `--tuned-start` to run itself: some training steps, then exit.
    #[arg(long, hide = true, value_name = "MODEL")]
    tuned_steps: Option<String>,
}

/// The float type of a training step's forward and backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Precision {
    F32,
    Bf16,
    F16,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// What a row's name has behind the batch's size: nothing for f32.
    fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "",
            Self::Bf16 => ", bf16",
            Self::F16 => ", f16",
        }
    }
}

impl Options {
    /// Whether `--filter` selects a row of this name.
    fn names(&self, row: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| row.contains(text))
    }
}

/// A number from 1.
fn from_1(text: &str) -> Result<usize, &'static str> {
    text.parse::<usize>().ok().filter(|number| *number > 0).ok_or("a number from 1")
}

/// Whether the device is a GPU. Blocks of the CPU device have one thread.
fn is_gpu() -> bool {
    hip::Device::get(0).is_ok_and(|device| device.info().max_threads_per_block > 1)
}

fn main() -> ExitCode {
    let given = Options::command().get_matches();
    let options = Options::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    match run(&options, &given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options, given: &ArgMatches) -> Result<(), String> {
    if let Some(kind) = options.first_step {
        cold::first_step(kind);
        return Ok(());
    }
    if let Some(model) = &options.tuned_steps {
        return gpu::tuned::steps(options, model);
    }
    let mode = Mode::of(options, is_gpu);
    mode.check(given)?;
    match mode {
        Mode::ModelDecoding => {
            model::decoding();
            Ok(())
        }
        Mode::Model => {
            let table = options.model.as_deref().unwrap_or(Path::new(""));
            model::run(table, &|kernel| options.names(kernel))
        }
        Mode::Launches => {
            fused::launches();
            Ok(())
        }
        Mode::Fused => {
            if options.launches {
                fused::launches();
            }
            fused::run(options, is_gpu())
        }
        Mode::TunedStart => gpu::tuned::run(options),
        Mode::Memory => gpu::memory::run(options),
        Mode::Profile => gpu::profiled::run(options),
        Mode::Cupti => gpu::cupti::run(options),
        Mode::Devices => gpu::devices::run(options, &options.devices),
        Mode::Gpu => gpu::run(options),
        Mode::Cpu => on_the_cpu_device(options),
    }
}

/// Runs the selected groups beside burn-flex, and prints the table.
fn on_the_cpu_device(options: &Options) -> Result<(), String> {
    let mut rows = Vec::new();
    let wants = |group: bool| options.all || group;
    if wants(options.matmul) {
        cases::matmul(options, &mut rows);
    }
    if wants(options.conv) {
        cases::conv(options, &mut rows);
    }
    if wants(options.elementwise) {
        cases::elementwise(options, &mut rows);
    }
    if wants(options.reduce) {
        cases::reduce(options, &mut rows);
    }
    if wants(options.softmax) {
        cases::softmax(options, &mut rows);
    }
    if wants(options.attention) {
        cases::attention(options, &mut rows);
    }
    if wants(options.overhead) {
        cases::overhead(options, &mut rows);
    }
    if wants(options.train) {
        cases::train(options, &mut rows);
    }
    if wants(options.families.is_some()) {
        families::families(options, &mut rows);
    }
    // The measured rows are printed even if a cold start fails.
    let started = if wants(options.cold_start) { cold::cold_start(options, &mut rows) } else { Ok(()) };
    if rows.is_empty() {
        started?;
        return Err(
            "nothing to run: name a group (--matmul, --train, ...) or --all; --help lists them".into()
        );
    }
    print!("{}", table::markdown(&rows));
    if let Some(path) = &options.csv {
        std::fs::write(path, table::csv(&rows)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    started
}
