//! The program `finetune`: trains adapters of a model on a text.

use std::path::PathBuf;
use std::process::ExitCode;

use burn::backend::Autodiff;
use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_nn::language::lora::{Adapter, LoraConfig, Peft, Targets};
use burn_rocm_nn::language::quant::RoundTo;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use super::bytes;
use super::corpus::{Corpus, Windows, bytes_of};
use super::decoder::{Decoder, Trained};
use super::drawn::Drawn;
use super::run::{Recipe, Trainer, read};
use super::save::{save, save_byte_tokenizer};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::frozen_bytes;
use crate::program::{Precision, Provider, Rounded, device, exit_of, open_model, size};
use crate::rng::Rng;
use crate::weights::Source;

/// Trains low-rank adapters (LoRA) of a language model on a text, and writes them in PEFT's format.
/// `llama --lora` reads them.
#[derive(Clone, Debug, Parser)]
#[command(name = "finetune")]
pub struct Arguments {
    /// The model: a Hugging Face folder or a GGUF file. Without it, a small model with random
    /// weights, which goes to OUTPUT/model.
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// The text. The last tenth of its tokens is held out.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Where the adapters go.
    #[arg(long, default_value = "target/finetune")]
    pub output: PathBuf,
    /// The rank of the adapters.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub rank: usize,
    /// The adapters' outputs are multiplied by alpha / rank. [default: twice the rank]
    #[arg(long)]
    pub alpha: Option<f64>,
    /// Multiply by alpha / sqrt(rank) instead (rsLoRA).
    #[arg(long)]
    pub rslora: bool,
    /// The probability that a feature of an adapter's input is dropped.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub dropout: f64,
    /// The layers with adapters: ends of their names, separated by commas; a regular expression, if
    /// it has other characters than letters, digits, dots and underscores; or `all`, which PEFT
    /// calls `all-linear`.
    #[arg(long, default_value = "all")]
    pub targets: String,
    /// Steps of AdamW.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub steps: usize,
    /// Windows of text in a step.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub batch: usize,
    /// Tokens in a window.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub context: usize,
    /// The highest learning rate.
    #[arg(long, default_value_t = 2e-3)]
    pub lr: f64,
    /// Decides the adapters before training, and which windows are drawn.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// The dtype of weights and activations; adapters are f32. [default: that of the weights'
    /// files]
    #[arg(long, value_enum)]
    dtype: Option<Precision>,
    /// Round the layers' float matrices when they are loaded, and train adapters beside the codes.
    /// The embedding and the output matrix stay floats.
    #[arg(long, value_enum, value_name = "TYPE")]
    quantize: Option<Rounded>,
    /// The device: `rocm`, `rocm:1` or `1` for the second one.
    #[arg(long, default_value = "rocm", value_parser = device)]
    pub device: RocmDevice,
    /// The provider of the device. [default: BURN_ROCM_PROVIDER, or else the first that has a
    /// device]
    #[arg(long, value_enum)]
    provider: Option<Provider>,
}

/// The most windows of an evaluation.
const WINDOWS: usize = 128;

/// Parses the arguments and runs the program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_of(|| run(&arguments).map(|_| ()))
}

/// The targets of an option.
fn targets(text: &str) -> Targets {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ',');
    match text {
        "all" => Targets::All,
        names if names.chars().all(is_plain) => {
            Targets::names(names.split(',').filter(|name| !name.is_empty()))
        }
        pattern => Targets::Matching(pattern.to_owned()),
    }
}

/// Runs the program. Returns the mean loss of held-out windows before and after.
///
/// # Errors
/// [`Error::Argument`] for options that make no sense; the errors of files and of the device.
pub fn run(arguments: &Arguments) -> Result<[f64; 2]> {
    let Arguments { steps, batch, context, lr, seed, ref device, .. } = *arguments;
    if steps == 0 || batch == 0 || context == 0 {
        let found = format!("{steps} steps, batch {batch}, context {context}");
        return Err(Error::Argument { name: "options", expected: "numbers above 0".to_owned(), found });
    }
    let lora = LoraConfig {
        alpha: arguments.alpha.unwrap_or(2.0 * arguments.rank as f64),
        rslora: arguments.rslora,
        dropout: arguments.dropout,
        ..LoraConfig::new(arguments.rank, targets(&arguments.targets))
    };
    let lora = lora.build()?;
    if let Some(provider) = arguments.provider {
        provider.select()?;
    }
    let text = std::fs::read(&arguments.text).map_err(|why| Error::file(&arguments.text, why))?;
    let (config, source, ids, base): (Config, Box<dyn Source>, Vec<u32>, PathBuf) = match &arguments.model {
        Some(path) => {
            let opened = open_model(path)?;
            let text = std::str::from_utf8(&text)
                .map_err(|why| Error::file(&arguments.text, format!("expected UTF-8: {why}")))?;
            let ids = match &opened.tokens {
                Some(tokens) => tokens.encode(text, true)?,
                None => bytes_of(text.as_bytes()),
            };
            (opened.config, opened.source, ids, path.clone())
        }
        None => {
            let settings = bytes::settings(4, 64, context.max(512));
            let config = bytes::config(&settings)?;
            let folder = arguments.output.join("model");
            let source = Drawn::new(&config, seed);
            let plain = Decoder::<Rocm>::load(&config, &source, Trained::All, device, DType::F32)?;
            save(&folder, &settings, &plain)?;
            save_byte_tokenizer(&folder)?;
            eprintln!("a model with random weights is in {}", folder.display());
            (config, Box::new(source), bytes_of(&text), folder)
        }
    };
    if context > config.context {
        let expected = format!("1 to {} tokens, for which the model was made", config.context);
        return Err(Error::Argument { name: "context", expected, found: context.to_string() });
    }
    if let Some(&token) = ids.iter().find(|&&id| id as usize >= config.vocabulary) {
        return Err(Error::Token { token, vocabulary: config.vocabulary });
    }
    let corpus = Corpus::of_tokens(ids);
    corpus.check(context)?;
    let dtype = arguments.dtype.map_or_else(|| source.dtype(), DType::from);
    Autodiff::<Rocm>::seed(device, seed);
    let trained = Trained::Adapters(&lora);
    let round = arguments.quantize.map(RoundTo::from);
    let source = source.as_ref();
    let decoder = Decoder::<Autodiff<Rocm>>::load_quantised(&config, source, trained, round, device, dtype)?;
    let weights = frozen_bytes(&config, source, dtype, round)?;
    let (layers, parameters) = decoder.adapted().fold((0, 0), |(layers, parameters), layer| {
        let of = |adapter: &Adapter<_>| {
            adapter.a.val().shape().num_elements() + adapter.b.val().shape().num_elements()
        };
        (layers + 1, parameters + layer.adapter.as_ref().map_or(0, of))
    });
    if layers == 0 {
        let expected = "a layer of the model, such as q_proj or model.layers.0.mlp.up_proj".to_owned();
        return Err(Error::Argument { name: "targets", expected, found: arguments.targets.clone() });
    }
    eprintln!(
        "weights {}; {layers} adapters of {parameters} parameters; {} tokens to train on",
        size(weights),
        corpus.train.len()
    );

    let recipe = Recipe { steps, batch, time: context, rate: lr, warm_up: (steps / 10).min(100), decay: 0.0 };
    let mut trainer = Trainer::new(decoder, recipe, device, dtype);
    let held_out = Windows::spread(&corpus.held_out, context, WINDOWS);
    let before = trainer.evaluate(&held_out, dtype)?;
    let bar = ProgressBar::new(steps as u64);
    // The template is constant. A wrong one would only leave out parts of the bar.
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {eta}") {
        bar.set_style(style);
    }
    let mut rng = Rng::new(seed);
    for step in 1..=steps {
        let windows = Windows::random(&corpus.train, [batch, context], &mut rng);
        let (next, loss) = trainer.step(&windows);
        trainer = next;
        if step % 10 == 0 || step == steps {
            bar.set_message(format!("{:.3} nats a token", read(loss)?));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let after = trainer.evaluate(&held_out, dtype)?;
    println!("held out, nats a token: {before:.4} before, {after:.4} after");
    let mut pairs = Vec::new();
    for layer in trainer.decoder().adapted() {
        pairs.extend(layer.pair()?);
    }
    let peft = Peft::new(lora, pairs)?;
    peft.with_base_model(base.display().to_string()).write(&arguments.output)?;
    println!("the adapters are in {}", arguments.output.display());
    let quantize = match round {
        Some(RoundTo::Int4) => " --quantize int4",
        Some(RoundTo::Int8) => " --quantize int8",
        None => "",
    };
    println!("llama --model {} --lora {}{quantize}", base.display(), arguments.output.display());
    Ok([before, after])
}
