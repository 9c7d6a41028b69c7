//! Trains a classifier of handwritten digits, saves it, loads it again and classifies: the example `mnist` for Burn
//! 0.22.
//!
//! ```text
//! cargo run --release --example mnist-022 -- --model cnn
//! ```

use std::error::Error as StdError;
use std::path::Path;
use std::process::ExitCode;

use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn_rocm_examples::error::Error;
use burn_rocm_examples::mnist::{Arguments, Begun, alone, program};
use burn_rocm_examples::model::Kind;
use burn_rocm_examples_022::model::Model;
use burn_rocm_examples_022::train;

fn main() -> ExitCode {
    program(run)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn StdError>> {
    alone("use the example `mnist` for several")?;
    let session = Begun::new(arguments)?.load(arguments.data)?;
    let (model, data) = (arguments.model, &session.data);
    let device = Device::rocm(session.device.index);
    device.seed(arguments.seed);
    let initial = Model::new(model, &device.clone().autodiff());
    println!("model: {}, {} parameters", model.name(), initial.num_params());
    let (trained, history) = train::train(initial, data, &arguments.options(), &device.clone().autodiff())?;
    session.curves(arguments, &history)?;
    let loaded = save_and_load(trained.valid(), model, &session.output, &device)?;
    let guesses = train::classify(&loaded, data, &data.test, &device)?;
    session.end(&history, &guesses)?;
    Ok(())
}

/// Saves the model as Burn's record and reads it back into a freshly initialised one.
fn save_and_load(model: Model, kind: Kind, folder: &Path, device: &Device) -> Result<Model, Error> {
    let path = folder.join("model.bpk");
    model.into_record().save(&path).map_err(|error| Error::file(&path, error))?;
    println!("model: {}", path.display());
    let record = ModuleRecord::load(&path).map_err(|error| Error::file(&path, error))?;
    Model::new(kind, device).try_load_record(record).map_err(|error| Error::file(&path, error))
}
