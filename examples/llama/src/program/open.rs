//! Opening a model: what it is, whether it fits, and the loading.

use std::path::Path;

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn_rocm::fused::decode::{CacheType, PAGE, SampleState, SampleTables, sample_bytes};
use burn_rocm::{Communicator, DeviceInfo, RocmDevice};
use burn_rocm_nn::language::lora::Peft;
use indicatif::{ProgressBar, ProgressStyle};

use super::arguments::{ModelArguments, RandomModel};
use crate::config::{Config, Generation};
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::model::{B, Loaded, Model, weight_bytes};
use crate::text::{Chat, Tokens};
use crate::weights::{Adapted, Folder, Part, Random, Source, expected};

/// A model before it is loaded.
pub(crate) struct Opened {
    pub(crate) config: Config,
    pub(crate) source: Box<dyn Source>,
    pub(crate) generation: Generation,
    /// `None` for random weights, and where nobody asks for it.
    pub(crate) tokens: Option<Tokens>,
    /// `None` if the model has no chat template, or nobody asks for it.
    pub(crate) chat: Option<Chat>,
}

/// Opens the files of a model, and checks them against each other.
pub(crate) fn open(arguments: &ModelArguments, texts: Texts) -> Result<Opened> {
    let mut opened = match (&arguments.model, arguments.random) {
        (Some(path), _) => open_files(path, texts)?,
        (None, random) => {
            let config = random.unwrap_or(RandomModel::Tiny).config()?;
            let source = Box::new(Random { norm_adds_one: config.norm_adds_one });
            Opened { config, source, generation: Generation::default(), tokens: None, chat: None }
        }
    };
    // The tokenizer may have tokens beyond the embedding: Gemma 3 1B's has one for images.
    if let Err(why) = opened.generation.check(opened.config.vocabulary) {
        let path = arguments.model.clone().unwrap_or_default();
        return Err(Error::file(path, format!("the stop tokens (`eos_token_id`): {why}")));
    }
    if let Some(folder) = &arguments.lora {
        let peft = Peft::read(folder)?;
        let adapted = Adapted::new(opened.source, &peft, &opened.config)?;
        eprintln!("adapters: {} of {}", adapted.count(), folder.display());
        opened.source = Box::new(adapted);
    }
    Ok(opened)
}

/// What is opened beside the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Texts {
    /// Nothing, for a model whose tokens stay numbers.
    None,
    /// The tokenizer.
    Tokens,
    /// The tokenizer and the chat template.
    Chat,
}

/// Opens a Hugging Face folder or a GGUF file.
pub(crate) fn open_model(path: &Path) -> Result<Opened> {
    open_files(path, Texts::Tokens)
}

fn open_files(path: &Path, texts: Texts) -> Result<Opened> {
    match path {
        _ if path.is_dir() => folder(path, texts),
        _ if path.is_file() => file(path, texts),
        _ => Err(Error::file(path, "--model: expected a folder or a GGUF file, found nothing")),
    }
}

/// A Hugging Face folder.
fn folder(path: &Path, texts: Texts) -> Result<Opened> {
    if !path.join("config.json").exists() {
        return Err(Error::file(
            path,
            "--model: expected config.json in the folder, or a GGUF file, found neither",
        ));
    }
    let config = Config::read(path)?;
    let source = Box::new(Folder::open(path, &config)?);
    source.check(&expected(&config))?;
    let generation = Generation::read(path)?;
    let tokens = match texts {
        Texts::None => None,
        _ => Some(Tokens::read(&path.join("tokenizer.json"))?),
    };
    let chat = if texts == Texts::Chat { Chat::read(path)? } else { None };
    Ok(Opened { config, source, generation, tokens, chat })
}

/// A GGUF file. A tokenizer.json beside it replaces its own tokenizer.
fn file(path: &Path, texts: Texts) -> Result<Opened> {
    let source = Box::new(Gguf::open(path)?);
    let config = source.config().clone();
    source.check(&expected(&config))?;
    let beside = path.with_file_name("tokenizer.json");
    let tokens = match texts {
        Texts::None => None,
        _ if beside.exists() => Some(Tokens::read(&beside)?),
        _ => Some(source.tokens()?),
    };
    let chat = if texts == Texts::Chat { source.chat()? } else { None };
    let generation = source.generation().clone();
    Ok(Opened { config, source, generation, tokens, chat })
}

/// A program's passes, by which memory is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    /// The most tokens of a pass.
    pub(crate) tokens: usize,
    /// The most rows whose next tokens are drawn at once.
    pub(crate) rows: usize,
    /// The bytes that the program takes beside a pass and its draws.
    pub(crate) others: usize,
}

/// Says what the model needs with a cache of `context` tokens, and whether it fits. Then loads it
/// with a progress bar. With ranks, only the first one says something, and each loads its part.
pub(crate) fn load(
    arguments: &ModelArguments,
    config: &Config,
    source: &dyn Source,
    (context, passes): (usize, Passes),
    ranks: Option<&Communicator>,
) -> Result<Model> {
    let part = ranks.map(|ranks| Part::new(source, config, ranks.rank(), ranks.size())).transpose()?;
    let device = ranks.map_or_else(|| arguments.device.clone(), Communicator::device);
    let says = ranks.is_none_or(|ranks| ranks.rank() == 0);
    let dtype = arguments.dtype.map_or_else(|| source.dtype(), DType::from);
    let quantise = arguments.quantise();
    let (own, own_source) = match &part {
        Some(part) => (part.config(), part as &dyn Source),
        None => (config, source),
    };
    let weights = weight_bytes(own, own_source, dtype, quantise)?;
    let cache = own.cache_bytes(context, arguments.stored(dtype));
    // A pass has no more tokens than the cache.
    let passes = Passes { tokens: passes.tokens.min(context), ..passes };
    let gathered = gathered_bytes(own, context, dtype.size());
    let work = working_bytes(own, passes, dtype.size()).saturating_add(gathered);
    let needed = weights.saturating_add(cache).saturating_add(work);
    let (free, _) = device.free_and_total_memory()?;
    if says {
        let sizes = [needed, weights, cache, work].map(size);
        say(config, dtype, &device, (context, sizes, needed <= free, size(free)))?;
        if let Some(ranks) = ranks {
            eprintln!("divided among {} devices, each of which needs that much", ranks.size());
        }
    }
    if needed > free {
        return Err(Error::Memory { needed: size(needed), free: size(free) });
    }
    B::seed(&device, arguments.seed);
    let bar = if says { ProgressBar::new(weights as u64) } else { ProgressBar::hidden() };
    // A template of constants; a wrong one would only lack parts of the bar.
    if let Ok(style) =
        ProgressStyle::with_template("loading [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    {
        bar.set_style(style);
    }
    let progress = |loaded: Loaded| bar.set_position(loaded.bytes as u64);
    let model = match ranks {
        Some(ranks) => Model::load_part(config, source, ranks, dtype, quantise, progress),
        None => Model::load_quantised(config.clone(), source, &device, dtype, quantise, progress),
    };
    bar.finish_and_clear();
    let model = model?;
    device.synchronize()?;
    Ok(model)
}

/// The tokens that a cache has room for beside weights and passes, in nine tenths of the device's
/// free memory. What the estimates leave out needs the rest.
pub(crate) fn room(
    arguments: &ModelArguments,
    config: &Config,
    source: &dyn Source,
    passes: Passes,
) -> Result<usize> {
    let dtype = arguments.dtype.map_or_else(|| source.dtype(), DType::from);
    let weights = weight_bytes(config, source, dtype, arguments.quantise())?;
    let (free, _) = arguments.device.free_and_total_memory()?;
    Ok(room_in((free, weights), config, (dtype.size(), arguments.stored(dtype)), passes))
}

/// [`room`] in `free` bytes. `element`: the bytes of an activation.
fn room_in(
    (free, weights): (usize, usize),
    config: &Config,
    (element, stored): (usize, CacheType),
    passes: Passes,
) -> usize {
    let beside = working_bytes(config, passes, element).saturating_add(weights);
    let rest = (free / 10 * 9).saturating_sub(beside);
    let block = config.cache_bytes(PAGE, stored).saturating_add(gathered_bytes(config, PAGE, element));
    rest / block.max(PAGE) * PAGE
}

/// Says what a model is, what it needs and what the device has.
fn say(
    config: &Config,
    dtype: DType,
    device: &RocmDevice,
    (context, [needed, weights, cache, work], fits, free): (usize, [String; 4], bool, String),
) -> Result<()> {
    let DeviceInfo { name, provider, .. } = device.info()?;
    eprintln!(
        "model: {:?}, {} layers, {} features, {} parameters, {dtype:?}",
        config.family,
        config.layers.len(),
        config.width,
        count(expected(config).iter().map(|weight| weight.len()).sum()),
    );
    eprintln!(
        "needs {needed}: weights {weights}, cache of {context} tokens {cache}, working memory about {work}",
    );
    let verdict = if fits { "enough" } else { "too little" };
    eprintln!("device: {device}, {name}, by the {provider} provider; {free} free, {verdict}");
    Ok(())
}

/// Bytes that a layer's keys and values of so many tokens take where attention gathers them.
fn gathered_bytes(config: &Config, tokens: usize, element: usize) -> usize {
    (2 * config.kv_heads * config.head_dim * element).saturating_mul(tokens)
}

/// An estimate of the most memory that passes take beside weights and cache: the feed-forward
/// layer's three tensors, the residual with its norm, queries and contexts; and for each row that is
/// drawn, its logits and the draw's tables.
fn working_bytes(config: &Config, passes: Passes, element: usize) -> usize {
    let Passes { tokens, rows, others } = passes;
    let features = 3 * config.inner + 4 * config.width + 4 * config.heads * config.head_dim;
    let vocabulary = config.vocabulary;
    // What `llama-serve` keeps. `llama` also keeps the draws of a few passes, some bytes for each row.
    let tables = SampleTables { counts: true, chances: true, ring: 0 };
    let parts = [
        (features * element).saturating_mul(tokens),
        // In the dtype of activations, and in f32.
        (vocabulary * (element + 4)).saturating_mul(rows),
        SampleState::bytes(rows, vocabulary, tables),
        sample_bytes(rows, vocabulary),
        others,
    ];
    parts.into_iter().fold(0, usize::saturating_add)
}

/// Bytes with a unit.
pub(crate) fn size(bytes: usize) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    match mib {
        ..1.0 => format!("{:.0} KiB", mib * 1024.0),
        ..1024.0 => format!("{mib:.1} MiB"),
        _ => format!("{:.2} GiB", mib / 1024.0),
    }
}

/// A number of parameters in words.
fn count(parameters: usize) -> String {
    let millions = parameters as f64 / 1e6;
    if millions < 1000.0 {
        format!("{millions:.2} million")
    } else {
        format!("{:.2} billion", millions / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Quantise;

    /// Llama 3.1 8B in bf16 on a device of 24 GB, as (free bytes, bytes of weights).
    fn large() -> (Config, (usize, usize)) {
        let config = RandomModel::Llama31.config().expect("the settings");
        let source = Random { norm_adds_one: config.norm_adds_one };
        let weights = weight_bytes(&config, &source, DType::BF16, Quantise::default()).expect("the weights");
        (config, (24_000_000_000, weights))
    }

    #[test]
    fn a_cache_leaves_room_to_draw_for_all_sequences() {
        let (config, memory) = large();
        for rows in [1, 64, 1024] {
            let passes = Passes { tokens: 1024, rows, others: 0 };
            let tokens = room_in(memory, &config, (2, CacheType::BF16), passes);
            assert!(tokens > 8192, "{rows} rows: {tokens} tokens");
            // For each logit: itself, its score, a candidate, the start of a bin and a count.
            let drawn = rows * config.vocabulary * (2 + 4 + 8 + 4 + 4);
            let cache = config.cache_bytes(tokens, CacheType::BF16) + gathered_bytes(&config, tokens, 2);
            let (free, weights) = memory;
            assert!(weights + cache + drawn <= free, "{rows} rows: {cache} of cache, {drawn} to draw");
        }
    }

    #[test]
    fn numbers_beyond_all_memory_leave_no_room() {
        let (config, memory) = large();
        let passes = Passes { tokens: 1024, rows: 64, others: 0 };
        for passes in [
            Passes { tokens: usize::MAX, ..passes },
            Passes { rows: usize::MAX, ..passes },
            Passes { others: usize::MAX, ..passes },
        ] {
            assert_eq!(room_in(memory, &config, (2, CacheType::BF16), passes), 0, "{passes:?}");
        }
        assert_eq!(gathered_bytes(&config, usize::MAX, 2), usize::MAX);
    }
}
