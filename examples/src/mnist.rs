//! The command line of the example `mnist`, and everything that it does except training.

use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use burn_rocm::rendezvous::World;
use burn_rocm::{DeviceInfo, ProviderKind, RocmDevice, RocmError};
use clap::{Parser, ValueEnum};

use crate::data::{Data, digits, mnist};
use crate::error::Error;
use crate::model::Kind;
use crate::program::{at_least_1, ends, learning_rate};
use crate::progress::{Guess, History, Options};
use crate::{plots, show};

/// Trains a classifier of handwritten digits on an AMD GPU (or another provider), saves it, loads
/// it again and classifies.
#[derive(Debug, Parser)]
#[command(name = "mnist")]
pub struct Arguments {
    /// The model to train.
    #[arg(long, value_enum, default_value = "cnn")]
    pub model: Kind,
    /// Passes over the training images.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    pub epochs: usize,
    /// Stop after this many steps, even if the epochs are not over.
    #[arg(long, value_parser = at_least_1)]
    pub steps: Option<usize>,
    /// Images in one step, on all devices together.
    #[arg(long, default_value_t = 64, value_parser = at_least_1)]
    pub batch_size: usize,
    /// Learning rate at the start; it falls to 0 along a cosine.
    #[arg(long, default_value_t = 1e-3, value_parser = learning_rate)]
    pub lr: f64,
    /// Decides the weights at the start and the order of the images.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// The device to train on: `rocm`, `rocm:1` or `1` for the second one. Not under torchrun, srun or
    /// mpirun. [default: rocm]
    #[arg(long, value_parser = device)]
    pub device: Option<RocmDevice>,
    /// Train on the first so many devices, with a thread for each. Under torchrun, srun or mpirun
    /// each process trains on the device of its local rank instead.
    #[cfg(feature = "devices")]
    #[arg(long, value_parser = at_least_1, conflicts_with = "device")]
    pub devices: Option<usize>,
    /// The provider of the device. `auto` takes the first that has one. [default:
    /// BURN_ROCM_PROVIDER, or else auto]
    #[arg(long, value_enum)]
    pub provider: Option<Provider>,
    /// The images. Without it: MNIST if it is cached or can be downloaded, else drawn digits.
    #[arg(long, value_enum)]
    pub data: Option<Source>,
    /// The folder for the model and the curves, by default `target/mnist-<MODEL>`
    #[arg(long)]
    pub output: Option<PathBuf>,
}

/// The choice of a provider.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Provider {
    /// The first of the others that has a device, in this order.
    Auto,
    /// AMD GPUs, by AMD's libraries.
    Rocm,
    /// NVIDIA GPUs.
    Cuda,
    /// The processor.
    Cpu,
}

/// The choice of images.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Source {
    /// The real MNIST: 60,000 images to train on, 10,000 held out.
    Mnist,
    /// Digits drawn on the spot: 12,000 to train on, 2,000 held out; needs no network.
    Digits,
}

fn device(text: &str) -> Result<RocmDevice, String> {
    // A bare number is short for `rocm:NUMBER`.
    let name = if text.parse::<usize>().is_ok() { format!("rocm:{text}") } else { text.to_owned() };
    name.parse().map_err(|error: RocmError| error.to_string())
}

/// Parses the arguments and runs the program. An error is printed as its text alone.
pub fn program(run: impl FnOnce(&Arguments) -> Result<(), Box<dyn StdError>>) -> ExitCode {
    let arguments = Arguments::parse();
    ends(|| run(&arguments))
}

/// Chooses the provider, opens the device and prints its name, so that errors appear before any
/// work is done.
///
/// # Errors
/// `NotAvailable` if there is no such provider or device.
pub fn open(provider: Option<Provider>, device: &RocmDevice) -> Result<(), RocmError> {
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

/// The chosen images.
///
/// # Errors
/// [`Error::Data`] if MNIST was asked for and is not available.
pub fn load(source: Option<Source>) -> Result<Data, Error> {
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

/// The device of this process: that of its local rank under a launcher, else the one that the command
/// line asks for.
#[cfg(feature = "devices")]
fn own_device(world: &World, asked: Option<&RocmDevice>) -> Result<RocmDevice, RocmError> {
    match asked {
        _ if world.size == 1 => Ok(asked.cloned().unwrap_or_default()),
        None => Ok(RocmDevice::new(world.local_rank)),
        Some(asked) => Err(RocmError::Config {
            what: "--device".into(),
            expected: format!(
                "none under {}: each process uses the device of its local rank",
                world.launcher
            ),
            found: asked.to_string(),
        }),
    }
}

/// Checks that no launcher has started this process as one of several, for a program that would
/// train the whole model in each of them. `instead` says what trains in several processes.
///
/// # Errors
/// `Config` if a launcher has, or if its variables contradict each other.
pub fn alone(instead: &str) -> Result<(), RocmError> {
    only_process(&World::from_env()?, instead)
}

fn only_process(world: &World, instead: &str) -> Result<(), RocmError> {
    match world.size {
        1 => Ok(()),
        size => Err(RocmError::Config {
            what: "the number of processes".into(),
            expected: format!("1, because this program trains in one process ({instead})"),
            found: format!("{size}, by {}", world.launcher),
        }),
    }
}

/// Checks that all ranks have the same. `all` has each rank's, in words.
///
/// # Errors
/// `Config` if they differ, with the ranks that differ from rank 0.
pub fn same(what: &str, all: &[String]) -> Result<(), RocmError> {
    let Some(first) = all.first() else { return Ok(()) };
    let others = all.iter().enumerate().filter(|(_, of_rank)| *of_rank != first);
    let others: Vec<String> = others.map(|(rank, other)| format!("rank {rank} has {other}")).collect();
    match others.is_empty() {
        true => Ok(()),
        false => Err(RocmError::Config {
            what: what.into(),
            expected: format!("the same on every rank (rank 0 has {first})"),
            found: others.join("; "),
        }),
    }
}

impl Arguments {
    /// The device of this process.
    ///
    /// # Errors
    /// `Config` for a launcher's variables that contradict each other, or for both these and
    /// `--device`.
    #[cfg(feature = "devices")]
    fn own_device(&self) -> Result<RocmDevice, RocmError> {
        own_device(&World::from_env()?, self.device.as_ref())
    }

    /// The device of this process, which asks no launcher.
    #[cfg(not(feature = "devices"))]
    fn own_device(&self) -> Result<RocmDevice, RocmError> {
        Ok(self.device.clone().unwrap_or_default())
    }

    /// How to train.
    pub fn options(&self) -> Options {
        Options {
            epochs: self.epochs,
            steps: self.steps,
            batch_size: self.batch_size,
            lr: self.lr,
            seed: self.seed,
        }
    }
}

/// A run that has begun: the device is open, and the folder for the results exists.
pub struct Begun {
    begin: Instant,
    device: RocmDevice,
    output: PathBuf,
}

/// A run with its images.
pub struct Session {
    begin: Instant,
    /// The device of this process.
    pub device: RocmDevice,
    /// The folder for model and curves.
    pub output: PathBuf,
    /// The images.
    pub data: Data,
}

impl Begun {
    /// Opens the device and makes the folder.
    ///
    /// # Errors
    /// Those of [`open`]; `Config` for `--device` beside a launcher's variables; [`Error::File`] if
    /// the folder can't be made.
    pub fn new(arguments: &Arguments) -> Result<Self, Box<dyn StdError>> {
        let begin = Instant::now();
        let device = arguments.own_device()?;
        let output = match &arguments.output {
            Some(folder) => folder.clone(),
            None => Path::new("target").join(format!("mnist-{}", arguments.model.name())),
        };
        std::fs::create_dir_all(&output).map_err(|error| Error::file(&output, error))?;
        open(arguments.provider, &device)?;
        Ok(Self { begin, device, output })
    }

    /// Loads the images.
    ///
    /// # Errors
    /// Those of [`load`].
    pub fn load(self, source: Option<Source>) -> Result<Session, Error> {
        let Self { begin, device, output } = self;
        let session = Session { begin, device, output, data: load(source)? };
        println!("data: {}", session.described());
        Ok(session)
    }
}

impl Session {
    /// The images, in words.
    pub fn described(&self) -> String {
        let Data { name, train, test, .. } = &self.data;
        format!("{name}, {} images to train on, {} held out", train.len(), test.len())
    }

    /// Draws the curves.
    ///
    /// # Errors
    /// [`Error::File`] if a file can't be written.
    pub fn curves(&self, arguments: &Arguments, history: &History) -> Result<(), Error> {
        let title =
            format!("{} on {}, batch {}", arguments.model.name(), self.data.name, arguments.batch_size);
        let curves = self.output.join("curves.svg");
        plots::curves(history, &title, &curves)?;
        plots::table(history, &self.output.join("curves.csv"))?;
        println!("curves: {} (and .csv)", curves.display());
        Ok(())
    }

    /// Shows what the loaded model sees in the test images.
    ///
    /// # Errors
    /// [`Error::Reloaded`] if its accuracy differs from that of the model that was saved.
    pub fn end(self, history: &History, guesses: &[Guess]) -> Result<(), Error> {
        let test = &self.data.test;
        let right = guesses.iter().enumerate().filter(|(index, guess)| guess.digit == test.label(*index));
        let accuracy = right.count() as f32 / test.len() as f32;
        let saved = history.test.last().map_or(0.0, |reading| reading.accuracy);
        // One image in a thousand may differ, because the device may sum in another order.
        if (accuracy - saved).abs() > 1e-3 {
            return Err(Error::Reloaded { saved, loaded: accuracy });
        }
        let shown = show::choose(test, guesses);
        println!("\nthe loaded model sees:\n{}\n", show::samples(test, &shown, guesses));
        println!("took {:.1} s", self.begin.elapsed().as_secs_f32());
        println!("test accuracy: {:.2} %", accuracy * 100.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_rocm::rendezvous::Launcher;

    #[test]
    fn ranks_with_other_images_are_named() {
        let (real, drawn) = ("MNIST, 60000".to_owned(), "drawn digits, 12000".to_owned());
        same("the images", &[real.clone(), real.clone()]).expect("the same");
        let error = same("the images", &[real.clone(), drawn.clone(), real, drawn]).expect_err("others");
        let expected = "the images: expected the same on every rank (rank 0 has MNIST, 60000), \
            found rank 1 has drawn digits, 12000; rank 3 has drawn digits, 12000";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn one_of_several_processes_is_refused_where_each_would_train_alone() {
        only_process(&World::on_this_machine(0, 1, 1, ""), "so").expect("alone");
        let mut world = World::on_this_machine(1, 2, 1, "");
        world.launcher = Launcher::Torchrun;
        let error = only_process(&world, "build with a feature").expect_err("refused");
        let expected = "the number of processes: expected 1, because this program trains in one process \
            (build with a feature), found 2, by torchrun";
        assert_eq!(error.to_string(), expected);
    }

    /// No process opens device 0 on behalf of another.
    #[cfg(feature = "devices")]
    #[test]
    fn a_launched_process_has_the_device_of_its_local_rank() {
        let mut world = World::on_this_machine(0, 1, 1, "");
        // A job of one process, as a shell of srun is.
        (world.local_rank, world.launcher) = (1, Launcher::Torchrun);
        let asked = RocmDevice::new(3);
        assert_eq!(own_device(&world, None).expect("alone").index, 0);
        assert_eq!(own_device(&world, Some(&asked)).expect("alone").index, 3);
        (world.rank, world.size) = (5, 8);
        assert_eq!(own_device(&world, None).expect("launched").index, 1);
        let error = own_device(&world, Some(&asked)).expect_err("refused").to_string();
        let expected =
            "--device: expected none under torchrun: each process uses the device of its local rank, found ";
        assert!(error.starts_with(expected) && error.ends_with('3'), "{error}");
    }

    #[cfg(feature = "devices")]
    #[test]
    fn one_device_or_several() {
        let parse = |options: &[&str]| Arguments::try_parse_from([&["mnist"][..], options].concat());
        assert_eq!(parse(&[]).expect("no options").device.map(|device| device.index), None);
        assert_eq!(parse(&["--device", "1"]).expect("one").device.map(|device| device.index), Some(1));
        assert_eq!(parse(&["--devices", "2"]).expect("several").devices, Some(2));
        assert!(parse(&["--device", "1", "--devices", "2"]).is_err());
    }
}
