//! Trains a classifier of handwritten digits, saves it, loads it again and classifies.
//!
//! ```text
//! cargo run --release --example mnist -- --model cnn
//! ```
//!
//! With the feature `devices` it trains on several devices: `--devices 2` with a thread for each, and
//! under torchrun, srun or mpirun with a process for each.

use std::error::Error as StdError;
use std::path::Path;
use std::process::ExitCode;

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::backend::Backend as _;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_examples::error::Error;
use burn_rocm_examples::mnist::{Arguments, Begun, Session, program};
use burn_rocm_examples::model::{Kind, Model};
use burn_rocm_examples::progress::History;
#[cfg(feature = "devices")]
use burn_rocm_examples::ranks::Ranks;
use burn_rocm_examples::train;

type Backend = Autodiff<Rocm>;

fn main() -> ExitCode {
    program(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn StdError>> {
    #[cfg(not(feature = "devices"))]
    burn_rocm_examples::mnist::alone("build it with --features burn-rocm-examples/devices for several")?;
    let begun = Begun::new(arguments)?;
    // Before the images are loaded, which may take minutes.
    #[cfg(feature = "devices")]
    let ranks = Ranks::of(arguments.devices)?;
    let session = begun.load(arguments.data);
    #[cfg(feature = "devices")]
    if let Some(ranks) = &ranks {
        // A process that has no images says so, because the others wait for it.
        let none = |error: &Error| format!("none ({error})");
        ranks.have_same("the images", &session.as_ref().map_or_else(none, Session::described))?;
    }
    let session = session?;
    let (model, device, data) = (arguments.model, session.device.clone(), &session.data);
    Backend::seed(&device, arguments.seed);
    let initial: Model<Backend> = model.init(&device);
    println!("model: {}, {} parameters", model.name(), initial.num_params());
    #[cfg(feature = "devices")]
    if let Some(ranks) = ranks {
        let is_first = ranks.has_first();
        let (trained, history) = ranks.train(initial, data, &arguments.options())?;
        return if is_first { end(arguments, session, trained, &device, &history) } else { Ok(()) };
    }
    let (trained, history) = train::train(initial, data, &arguments.options(), &device)?;
    end(arguments, session, trained, &device, &history)
}

/// Draws the curves, saves the model, loads it again and classifies.
fn end(
    arguments: &Arguments,
    session: Session,
    trained: Model<Backend>,
    device: &RocmDevice,
    history: &History,
) -> Result<(), Box<dyn StdError>> {
    let model = arguments.model;
    session.curves(arguments, history)?;
    let loaded = save_and_load(trained.valid(), model, &session.output, device)?;
    let guesses = train::classify(&loaded, &session.data, &session.data.test, device)?;
    session.end(history, &guesses)?;
    Ok(())
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
