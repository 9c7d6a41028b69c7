//! Trains a classifier of handwritten digits, saves it, loads it again and classifies.
//!
//! ```text
//! cargo run --release --example mnist -- --model cnn
//! ```

use std::error::Error as StdError;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::backend::Backend as _;
use burn_rocm::{DeviceInfo, ProviderKind, Rocm, RocmDevice, RocmError};
use burn_rocm_examples::data::{Data, digits, mnist};
use burn_rocm_examples::error::Error;
use burn_rocm_examples::model::{Kind, Model};
use burn_rocm_examples::{plots, show, train};
use clap::{Parser, ValueEnum};

type Backend = Autodiff<Rocm>;

/// Trains a classifier of handwritten digits on an AMD GPU (or another provider), saves it, loads
/// it again and classifies.
#[derive(Debug, Parser)]
#[command(name = "mnist")]
struct Arguments {
    /// The model to train.
    #[arg(long, value_enum, default_value = "cnn")]
    model: Kind,
    /// Passes over the training images.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    epochs: usize,
    /// Stop after this many steps, even if the epochs are not over.
    #[arg(long, value_parser = at_least_1)]
    steps: Option<usize>,
    /// Images in one step.
    #[arg(long, default_value_t = 64, value_parser = at_least_1)]
    batch_size: usize,
    /// Learning rate at the start; it falls to 0 along a cosine.
    #[arg(long, default_value_t = 1e-3, value_parser = learning_rate)]
    lr: f64,
    /// Decides the weights at the start and the order of the images.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// The device to train on: `rocm`, `rocm:1` or `1` for the second one.
    #[arg(long, default_value = "rocm", value_parser = device)]
    device: RocmDevice,
    /// The provider of the device. `auto` takes the first that has one. [default:
    /// BURN_ROCM_PROVIDER, or else auto]
    #[arg(long, value_enum)]
    provider: Option<Provider>,
    /// The images. Without it: MNIST if it is cached or can be downloaded, else drawn digits.
    #[arg(long, value_enum)]
    data: Option<Source>,
    /// The folder for the model and the curves. [default: target/mnist-<MODEL>]
    #[arg(long)]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Provider {
    /// The first of the others that has a device, in this order.
    Auto,
    /// AMD GPUs, by AMD's libraries.
    Rocm,
    /// NVIDIA GPUs.
    Cuda,
    /// The processor.
    Cpu,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Source {
    /// The real MNIST: 60,000 images to train on, 10,000 held out.
    Mnist,
    /// Digits drawn on the spot: 12,000 to train on, 2,000 held out; needs no network.
    Digits,
}

fn at_least_1(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("expected a whole number: {error}")),
    }
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("expected a number above 0 and at most 1".to_owned()),
    }
}

fn device(text: &str) -> Result<RocmDevice, String> {
    // A bare number is short for `rocm:NUMBER`.
    let name = if text.parse::<usize>().is_ok() { format!("rocm:{text}") } else { text.to_owned() };
    name.parse().map_err(|error: RocmError| error.to_string())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A device that fails in the middle of an op panics with the error's text, which is all a user
    // wants to see. RUST_BACKTRACE shows the rest.
    if std::env::var_os("RUST_BACKTRACE").is_none() {
        panic::set_hook(Box::new(|_| {}));
    }
    match panic::catch_unwind(AssertUnwindSafe(|| run(&arguments))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            eprintln!("error: {}", text.unwrap_or("unknown"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn StdError>> {
    let begin = Instant::now();
    let model = arguments.model.name();
    let output = match &arguments.output {
        Some(folder) => folder.clone(),
        None => Path::new("target").join(format!("mnist-{model}")),
    };
    std::fs::create_dir_all(&output).map_err(|error| Error::file(&output, error))?;

    let device = &arguments.device;
    open(arguments.provider, device)?;
    let data = load(arguments.data)?;
    println!("data: {}, {} images to train on, {} held out", data.name, data.train.len(), data.test.len());

    Backend::seed(device, arguments.seed);
    let initial: Model<Backend> = arguments.model.init(device);
    println!("model: {model}, {} parameters", initial.num_params());

    let options = train::Options {
        epochs: arguments.epochs,
        steps: arguments.steps,
        batch_size: arguments.batch_size,
        lr: arguments.lr,
        seed: arguments.seed,
    };
    let (trained, history) = train::train(initial, &data, &options, device)?;
    let title = format!("{model} on {}, batch {}", data.name, options.batch_size);
    let curves = output.join("curves.svg");
    plots::curves(&history, &title, &curves)?;
    plots::table(&history, &output.join("curves.csv"))?;
    println!("curves: {} (and .csv)", curves.display());

    let loaded = save_and_load(trained.valid(), arguments.model, &output, device)?;
    let guesses = train::classify(&loaded, &data, &data.test, device)?;
    let right = guesses.iter().enumerate().filter(|(index, guess)| guess.digit == data.test.label(*index));
    let accuracy = right.count() as f32 / data.test.len() as f32;
    let saved = history.test.last().map_or(0.0, |reading| reading.accuracy);
    // One image in a thousand may differ, because the device may sum in another order.
    if (accuracy - saved).abs() > 1e-3 {
        return Err(Error::Reloaded { saved, loaded: accuracy }.into());
    }

    let shown = show::choose(&data.test, &guesses);
    println!("\nthe loaded model sees:\n{}\n", show::samples(&data.test, &shown, &guesses));
    println!("took {:.1} s", begin.elapsed().as_secs_f32());
    println!("test accuracy: {:.2} %", accuracy * 100.0);
    Ok(())
}

/// Chooses the provider, opens the device and prints its name. So errors appear before any work is
/// done.
fn open(provider: Option<Provider>, device: &RocmDevice) -> Result<(), RocmError> {
    if let Some(provider) = provider {
        burn_rocm::select_provider(match provider {
            Provider::Auto => None,
            Provider::Rocm => Some(ProviderKind::Rocm),
            Provider::Cuda => Some(ProviderKind::Cuda),
            Provider::Cpu => Some(ProviderKind::Cpu),
        })?;
    }
    let DeviceInfo { name, architecture, memory, provider, .. } = device.info()?;
    let memory = memory as f64 / f64::from(1 << 30);
    println!("device: {device}, {name} ({architecture}), {memory:.1} GiB, by the {provider} provider");
    Ok(())
}

fn load(source: Option<Source>) -> Result<Data, Error> {
    let digits = || digits::generate(0, digits::TRAIN, digits::TEST);
    match source {
        Some(Source::Digits) => Ok(digits()),
        Some(Source::Mnist) => mnist::load(),
        None => mnist::load().or_else(|error| {
            println!("{error}\ntaking drawn digits instead");
            Ok(digits())
        }),
    }
}

/// Saves the model with Burn's recorder and reads it back into a freshly initialised one.
fn save_and_load(
    model: Model<Rocm>,
    kind: Kind,
    folder: &Path,
    device: &RocmDevice,
) -> Result<Model<Rocm>, Error> {
    let path = folder.join("model.mpk");
    let recorder = NamedMpkFileRecorder::<FullPrecisionSettings>::new();
    model.save_file(&path, &recorder).map_err(|error| Error::file(&path, error))?;
    println!("model: {}", path.display());
    kind.init(device).load_file(&path, &recorder, device).map_err(|error| Error::file(&path, error))
}
