//! The command line.

use std::path::PathBuf;

use burn::tensor::DType;
use burn_rocm::fused::decode::CacheType;
use burn_rocm::{ProviderKind, RocmDevice, RocmError};
use burn_rocm_nn::language::quant::RoundTo;
use clap::{Args, Parser, ValueEnum};

use crate::config::Generation;
use crate::model::{Quantise, stored_as};
use crate::sample::Sampling;

/// Generates text with a language model on an AMD GPU (or another provider). The text goes to the
/// standard output, everything else to the standard error.
#[derive(Debug, Parser)]
#[command(name = "llama")]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) of: ModelArguments,
    /// The text to continue or, with --chat, to answer.
    #[arg(long)]
    pub(super) prompt: Option<String>,
    /// A prompt of N random tokens, to measure speed.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt", "chat"], value_parser = at_least_1)]
    pub(super) prompt_tokens: Option<usize>,
    /// Use the model's chat template. Without --prompt, read one message a line from the standard
    /// input.
    #[arg(long, conflicts_with = "random")]
    pub(super) chat: bool,
    /// The system message of a conversation.
    // With `random`, `chat` is not asked for, because the two conflict.
    #[arg(long, requires = "chat", conflicts_with = "random")]
    pub(super) system: Option<String>,
    /// The most tokens to generate. A stop token may end the text earlier. [default: 256, or fewer
    /// if the context has no room for them]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole)]
    pub(super) tokens: Option<usize>,
    /// Tokens that the cache has room for. [default: prompt and answer; with --chat, 4096 or the
    /// model's limit]
    #[arg(long, value_name = "N", conflicts_with = "bench", value_parser = at_least_1)]
    pub(super) context: Option<usize>,
    /// Divides the logits; 0 always takes the most likely token. [default: what the model's
    /// generation_config.json says, like the next four]
    #[arg(long, value_name = "T", conflicts_with = "bench", allow_negative_numbers = true)]
    pub(super) temperature: Option<f64>,
    /// Draw from the K most likely tokens; 0: from all.
    #[arg(long, value_name = "K", conflicts_with = "bench", allow_negative_numbers = true, value_parser = whole)]
    pub(super) top_k: Option<usize>,
    /// Draw from the fewest most likely tokens whose probabilities add up to P.
    #[arg(long, value_name = "P", conflicts_with = "bench", allow_negative_numbers = true)]
    pub(super) top_p: Option<f64>,
    /// Draw from tokens with at least P times the largest probability.
    #[arg(long, value_name = "P", conflicts_with = "bench", allow_negative_numbers = true)]
    pub(super) min_p: Option<f64>,
    /// Above 1, makes tokens of the text so far less likely.
    #[arg(long, value_name = "R", conflicts_with = "bench", allow_negative_numbers = true)]
    pub(super) repetition_penalty: Option<f64>,
    /// Measure instead of writing a text: milliseconds a token, for --tokens (256) tokens after
    /// --prompt-tokens (512), and milliseconds of a prompt four times as long.
    #[arg(long, conflicts_with_all = ["prompt", "chat"])]
    pub(super) bench: bool,
    /// The numbers of texts that --bench generates at once.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,16", value_parser = at_least_1)]
    #[arg(requires = "bench", conflicts_with_all = ["prompt", "chat"])]
    pub(super) batch: Vec<usize>,
    /// Divide the model among the first N devices: each has some heads, and some features of the
    /// feed-forward layers.
    #[arg(long, value_name = "N", conflicts_with = "device", default_value_t = 1, value_parser = at_least_1)]
    pub(super) devices: usize,
}

/// Which model runs, and where.
#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    /// The model: a Hugging Face folder with config.json, tokenizer.json and safetensors, or a GGUF
    /// file.
    #[arg(long, value_name = "PATH", required_unless_present = "random")]
    pub(crate) model: Option<PathBuf>,
    /// A folder with adapters in PEFT's format (adapter_config.json, adapter_model.safetensors).
    /// They are merged into float matrices when these are loaded, and computed beside quantised
    /// ones.
    #[arg(long, value_name = "FOLDER", conflicts_with = "random")]
    pub(crate) lora: Option<PathBuf>,
    /// A model with random weights, whose tokens have no text: its speed is that of a real one.
    #[arg(long, value_enum, conflicts_with = "model")]
    pub(crate) random: Option<RandomModel>,
    /// Decides which tokens are drawn, and random weights.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// The dtype of weights and activations. [default: that of the weights' files]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<Precision>,
    /// Round the layers' float matrices when they are loaded. The embedding and the output matrix
    /// stay floats.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) quantize: Option<Rounded>,
    /// Round the embedding and the output matrix too.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) quantize_output: Option<Rounded>,
    /// Store keys and values as 8-bit integers with a scale for each token and head. [default: the
    /// dtype of activations]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) cache: Option<CacheKind>,
    /// The device: `rocm`, `rocm:1` or `1` for the second one.
    #[arg(long, default_value = "rocm", value_parser = device)]
    pub(crate) device: RocmDevice,
    /// The provider of the device. `auto` takes the first that has one. [default:
    /// BURN_ROCM_PROVIDER, or else auto]
    #[arg(long, value_enum)]
    pub(crate) provider: Option<Provider>,
}

/// A model with random weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RandomModel {
    /// 4 layers of 64 features.
    Tiny,
    /// The shapes of Llama 3.2 1B.
    #[value(name = "llama-3.2-1b")]
    Llama32,
    /// The shapes of Llama 3.1 8B.
    #[value(name = "llama-3.1-8b")]
    Llama31,
}

/// A dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits, 10 of them of the fraction.
    F16,
    /// 16 bits, with the range of f32.
    Bf16,
}

/// What float matrices are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rounded {
    /// 8 bits in groups of 128, symmetric.
    Int8,
    /// 4 bits in groups of 64, between the least and the greatest number of each.
    Int4,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheKind {
    /// 8-bit integers.
    Int8,
}

impl From<Rounded> for RoundTo {
    fn from(rounded: Rounded) -> Self {
        match rounded {
            Rounded::Int8 => Self::Int8,
            Rounded::Int4 => Self::Int4,
        }
    }
}

/// The choice of a provider.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Provider {
    /// The first of the others that has a device, in this order.
    Auto,
    /// AMD GPUs, by AMD's libraries.
    Rocm,
    /// NVIDIA GPUs.
    Cuda,
    /// The processor.
    Cpu,
}

impl Provider {
    /// Chooses the provider for this process.
    pub(crate) fn select(self) -> Result<(), RocmError> {
        burn_rocm::select_provider(match self {
            Self::Auto => None,
            Self::Rocm => Some(ProviderKind::Rocm),
            Self::Cuda => Some(ProviderKind::Cuda),
            Self::Cpu => Some(ProviderKind::Cpu),
        })
    }
}

impl From<Precision> for DType {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => DType::F32,
            Precision::F16 => DType::F16,
            Precision::Bf16 => DType::BF16,
        }
    }
}

impl ModelArguments {
    /// Chooses the provider for this process, if an option names one.
    pub(crate) fn select(&self) -> Result<(), RocmError> {
        self.provider.map_or(Ok(()), Provider::select)
    }

    /// What float matrices become.
    pub(super) fn quantise(&self) -> Quantise {
        Quantise { layers: self.quantize.map(RoundTo::from), output: self.quantize_output.map(RoundTo::from) }
    }

    /// How keys and values of this dtype are stored.
    pub(crate) fn stored(&self, dtype: DType) -> CacheType {
        match self.cache {
            Some(CacheKind::Int8) => CacheType::I8,
            None => stored_as(dtype),
        }
    }
}

impl Arguments {
    /// Whether an option asks to draw from some of the most likely tokens.
    pub(super) fn filters(&self) -> bool {
        self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }

    /// How tokens are drawn: as the options say, else as the model's authors recommend.
    pub(super) fn sampling(&self, generation: &Generation) -> Sampling {
        let recommended = Sampling::recommended(generation);
        Sampling {
            temperature: self.temperature.unwrap_or(recommended.temperature),
            top_k: self.top_k.unwrap_or(recommended.top_k),
            top_p: self.top_p.unwrap_or(recommended.top_p),
            min_p: self.min_p.unwrap_or(recommended.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(recommended.repetition_penalty),
        }
    }
}

fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|error| format!("expected a whole number from 0: {error}"))
}

pub(crate) fn at_least_1(text: &str) -> Result<usize, String> {
    match whole(text)? {
        0 => Err("must be at least 1".to_owned()),
        number => Ok(number),
    }
}

/// The device of an option.
pub(crate) fn device(text: &str) -> Result<RocmDevice, String> {
    // A bare number is short for `rocm:NUMBER`.
    let name = if text.parse::<usize>().is_ok() { format!("rocm:{text}") } else { text.to_owned() };
    name.parse().map_err(|error: RocmError| error.to_string())
}
