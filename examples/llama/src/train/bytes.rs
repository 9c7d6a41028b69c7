//! The program `bytes-lm`: trains a small model on the bytes of a folder's texts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use burn::backend::Autodiff;
use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn_rocm::{Rocm, RocmDevice};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::corpus::{Corpus, Windows};
use super::decoder::{Decoder, Trained};
use super::drawn::Drawn;
use super::run::{Reading, Recipe, Trainer, read};
use super::save::{save, save_byte_tokenizer};
use crate::config::{Config, Fields};
use crate::error::{Error, Result};
use crate::generate::{Options, Session};
use crate::model::Model;
use crate::program::{Provider, device, exit_of};
use crate::rng::Rng;
use crate::sample::Sampling;
use crate::text::Tokens;
use crate::weights::Folder;

/// Trains a small language model on the bytes of the texts in a folder, and writes it as a Hugging
/// Face folder that `llama` reads.
#[derive(Clone, Debug, Parser)]
#[command(name = "bytes-lm")]
pub struct Arguments {
    /// The folder of texts. Every tenth of them is held out.
    #[arg(long, default_value = ".")]
    pub text: PathBuf,
    /// Where the model goes.
    #[arg(long, default_value = "target/bytes-lm")]
    pub output: PathBuf,
    /// Steps of AdamW.
    #[arg(long, default_value_t = 1500, value_name = "N")]
    pub steps: usize,
    /// Windows of text in a step.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub batch: usize,
    /// Bytes in a window.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub context: usize,
    /// Layers of the model.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub layers: usize,
    /// Features of the model, a multiple of 32.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub width: usize,
    /// The highest learning rate.
    #[arg(long, default_value_t = 3e-3)]
    pub lr: f64,
    /// Decides the weights before training, and which windows are drawn.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// The device: `rocm`, `rocm:1` or `1` for the second one.
    #[arg(long, default_value = "rocm", value_parser = device)]
    pub device: RocmDevice,
    /// The provider of the device. [default: BURN_ROCM_PROVIDER, or else the first that has a
    /// device]
    #[arg(long, value_enum)]
    provider: Option<Provider>,
}

/// Steps between two evaluations.
const EVALUATE: usize = 100;
/// Windows of an evaluation during the run, and at its end.
const WINDOWS: [usize; 2] = [64, 1024];

/// The settings of a model of bytes: a small Llama with heads of 32 features.
pub fn settings(layers: usize, width: usize, context: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": width,
        "intermediate_size": width / 32 * 88, "num_hidden_layers": layers, "num_attention_heads": width / 32,
        "num_key_value_heads": width / 32, "head_dim": 32, "max_position_embeddings": context,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": true, "torch_dtype": "float32"
    })
}

/// The settings as [`Config`] reads them.
///
/// # Errors
/// [`Error::Field`] for settings that make no sense.
pub fn config(settings: &Value) -> Result<Config> {
    let map = settings.as_object().cloned().unwrap_or_default();
    Config::of(&Fields::of("the settings of the options".as_ref(), map))
}

/// Parses the arguments and runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_of(|| run(&arguments).map(|_| ()))
}

/// Runs the program. Returns the readings of training and of held-out texts; the last is that of
/// all windows that are evaluated at the end.
///
/// # Errors
/// [`Error::Argument`] for options that make no sense; the errors of files and of the device.
pub fn run(arguments: &Arguments) -> Result<[Vec<Reading>; 2]> {
    let Arguments { steps, batch, context, layers, width, lr, seed, ref device, .. } = *arguments;
    if steps == 0 || batch == 0 || context == 0 || layers == 0 || width == 0 || width % 32 != 0 {
        let found =
            format!("{steps} steps, batch {batch}, context {context}, {layers} layers, width {width}");
        let expected = "numbers above 0, and a width that is a multiple of 32".to_owned();
        return Err(Error::Argument { name: "options", expected, found });
    }
    if let Some(provider) = arguments.provider {
        provider.select()?;
    }
    let corpus = Corpus::of_folder(&arguments.text)?;
    corpus.check(context)?;
    let settings = settings(layers, width, context);
    let config = config(&settings)?;
    let parameters: usize = crate::weights::expected(&config).iter().map(|weight| weight.len()).sum();
    eprintln!(
        "{} texts of {} bytes to train on, {} of {} bytes held out; a model of {parameters} parameters on {device}",
        corpus.texts[0],
        corpus.train.len(),
        corpus.texts[1],
        corpus.held_out.len(),
    );
    Rocm::<f32>::seed(device, seed);
    let recipe = Recipe { steps, batch, time: context, rate: lr, warm_up: (steps / 10).min(100), decay: 0.1 };
    let source = Drawn::new(&config, seed);
    let decoder = Decoder::<Autodiff<Rocm>>::load(&config, &source, Trained::All, device, DType::F32)?;
    let mut trainer = Trainer::new(decoder, recipe, device, DType::F32);
    let mut rng = Rng::new(seed);
    let [some, all] = WINDOWS.map(|most| Windows::spread(&corpus.held_out, context, most));
    let bar = ProgressBar::new(steps as u64);
    // The template is constant. A wrong one would only leave out parts of the bar.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta}") {
        bar.set_style(style);
    }
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    println!("{:>6}  {:>22}  {:>22}", "step", "training, nats a byte", "held out, nats a byte");
    let start = Instant::now();
    let mut sum: Option<burn::tensor::Tensor<Rocm, 1>> = None;
    for step in 1..=steps {
        let windows = Windows::random(&corpus.train, [batch, context], &mut rng);
        let (next, loss) = trainer.step(&windows);
        trainer = next;
        // The host reads the sum of ten losses, so it does not wait for the device in each step.
        sum = Some(match sum.take() {
            Some(sum) => sum + loss,
            None => loss,
        });
        let since = step - train.last().map_or(0, |last: &Reading| last.step);
        if (since == 10 || step == steps)
            && let Some(whole) = sum.take()
        {
            let loss = read(whole)? / since as f64;
            train.push(Reading { step, loss });
            let rate = (step * batch * context) as f64 / start.elapsed().as_secs_f64();
            bar.set_message(format!("{loss:.3} nats a byte, {rate:.0} bytes/s"));
        }
        bar.inc(1);
        if step % EVALUATE == 0 || step == steps {
            let windows = if step == steps { &all } else { &some };
            held_out.push(Reading { step, loss: trainer.evaluate(windows, DType::F32)? });
            let recent: Vec<f64> =
                train.iter().rev().take(EVALUATE / 10).map(|reading| reading.loss).collect();
            let mean = recent.iter().sum::<f64>() / recent.len().max(1) as f64;
            let row =
                format!("{step:>6}  {mean:>22.4}  {:>22.4}", held_out.last().map_or(f64::NAN, |r| r.loss));
            bar.suspend(|| println!("{row}"));
        }
    }
    bar.finish_and_clear();
    let folder = &arguments.output;
    save(folder, &settings, trainer.decoder())?;
    save_byte_tokenizer(folder)?;
    curve(folder, &train, &held_out)?;
    println!("{:.1} s; the model is in {}", start.elapsed().as_secs_f64(), folder.display());
    sample(arguments)?;
    Ok([train, held_out])
}

/// Writes `curve.csv`.
fn curve(folder: &std::path::Path, train: &[Reading], held_out: &[Reading]) -> Result<()> {
    let rows = |kind: &str, readings: &[Reading]| -> String {
        readings.iter().map(|Reading { step, loss }| format!("{kind},{step},{loss:.6}\n")).collect()
    };
    let text = format!("texts,step,nats\n{}{}", rows("training", train), rows("held out", held_out));
    let path = folder.join("curve.csv");
    std::fs::write(&path, text).map_err(|why| Error::file(&path, why))
}

/// Writes a text with the saved model, as `llama` does.
fn sample(arguments: &Arguments) -> Result<()> {
    let folder = &arguments.output;
    let config = Config::read(folder)?;
    let tokens = Tokens::read(&folder.join("tokenizer.json"))?;
    let source = Folder::open(folder, &config)?;
    let model = Model::load(config, &source, &arguments.device, DType::F32, |_| ())?;
    let prompt = tokens.encode("//! The ", false)?;
    let prompt = &prompt[..prompt.len().min(arguments.context)];
    let room = arguments.context + 1 - prompt.len();
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, ..Sampling::default() };
    let options = Options { tokens: room, sampling, stop: Vec::new() };
    let mut session = Session::new(&model, arguments.context, arguments.seed)?;
    let mut text = prompt.to_vec();
    session.generate(prompt, &options, |token| {
        text.push(token);
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    println!("a sample:\n{}", tokens.decode(&text)?);
    Ok(())
}
