//! Trains a classifier of handwritten digits, saves it, loads it again and classifies.
//!
//! ```text
//! cargo run --release --example mnist -- --model cnn
//! ```

use std::error::Error as StdError;
use std::path::Path;
use std::process::ExitCode;

use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::backend::Backend as _;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_examples::error::Error;
use burn_rocm_examples::mnist::{Arguments, Session, program};
use burn_rocm_examples::model::{Kind, Model};
use burn_rocm_examples::train;

type Backend = Autodiff<Rocm>;

fn main() -> ExitCode {
    program(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn StdError>> {
    let session = Session::begin(arguments)?;
    let (model, device, data) = (arguments.model, &arguments.device, &session.data);
    Backend::seed(device, arguments.seed);
    let initial: Model<Backend> = model.init(device);
    println!("model: {}, {} parameters", model.name(), initial.num_params());
    let (trained, history) = train::train(initial, data, &arguments.options(), device)?;
    session.curves(arguments, &history)?;
    let loaded = save_and_load(trained.valid(), model, &session.output, device)?;
    let guesses = train::classify(&loaded, data, &data.test, device)?;
    session.end(&history, &guesses)?;
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
