//! `--bench`: how long a token and a prompt take, and how long reading the weights would take at a
//! copy's speed.

use std::time::Instant;

use burn::tensor::{DType, Tensor};
use burn_rocm::fused::decode::{self, LateDraws, SampleTables, sample_bytes};
use burn_rocm::{Communicator, RocmDevice, graph};

use super::arguments::Arguments;
use super::open::{self, Opened, Passes};
use super::{TOKENS, devices, models};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::{B, Cache, Model, PASSES, PIECE, Step, pass_bytes};
use crate::sample::Sampling;
use crate::weights::{Part, Source};

/// Tokens before those that are timed.
const BEFORE: usize = 512;
/// The timed prompt is this many times as long: 2048 tokens by default.
const LONGER: usize = 4;
/// Passes before the timed ones: the first compiles the kernels, the second is captured, and the next
/// [`PASSES`] are captured together.
const WARM_UPS: usize = 4 + PASSES;
/// Each figure is the median of this many rounds.
const ROUNDS: usize = 3;
/// Bytes of the copy.
const COPIED: usize = 512 << 20;

/// What is measured.
struct Sizes {
    before: usize,
    tokens: usize,
    prompt: usize,
}

/// Measures, and prints tables.
pub(super) fn run(arguments: &Arguments, opened: Opened) -> Result<()> {
    let Opened { config, source, .. } = opened;
    let before = arguments.prompt_tokens.unwrap_or(BEFORE);
    let tokens = arguments.tokens.unwrap_or(TOKENS).max(1);
    let sizes = Sizes { before, tokens, prompt: before.saturating_mul(LONGER).min(config.context) };
    let answer = WARM_UPS.max(tokens);
    let context = sizes.prompt.max(before.saturating_add(answer));
    if context > config.context {
        return Err(Error::TooLong { prompt: before, answer, limit: config.context });
    }
    let rows = arguments.batch.iter().copied().max().unwrap_or(1);
    // All ranks measure the same at the same time, and the first one prints.
    let measured = |ranks: Option<&Communicator>| {
        // The graphs of one pass and of several don't share memory, so draws and logits count twice.
        let logits = rows.saturating_mul(config.vocabulary).saturating_mul(2 * size_of::<f32>());
        let others = sample_bytes(rows, config.vocabulary).saturating_add(logits);
        let sized = (context.saturating_mul(rows), Passes { tokens: PIECE, rows, others });
        let model = open::load(&arguments.of, &config, source.as_ref(), sized, ranks)?;
        measure(arguments, &config, source.as_ref(), &model, &sizes)
    };
    devices::on_each(arguments, |ranks| measured(Some(ranks)), measured)
}

/// Prints a line, on the first rank.
fn say(model: &Model, line: std::fmt::Arguments<'_>) {
    if model.ranks().is_none_or(|ranks| ranks.rank() == 0) {
        println!("{line}");
    }
}

fn measure(
    arguments: &Arguments,
    config: &Config,
    source: &dyn Source,
    model: &Model,
    sizes: &Sizes,
) -> Result<()> {
    let count = arguments.devices;
    let part = Part::new(source, config, 0, count)?;
    let bytes = pass_bytes(part.config(), &part, model.dtype(), arguments.of.quantise(), count)?;
    let stored = arguments.of.stored(model.dtype());
    let rate = copy_rate(model.device())?;
    let ceiling = bytes as f64 / rate * 1e3;
    say(model, format_args!("a copy: {:.0} GB/s, read and written together", rate / 1e9));
    let read = bytes as f64 / 1e9;
    say(
        model,
        format_args!("a pass reads {read:.3} GB of weights a device, at that rate in {ceiling:.3} ms"),
    );
    let (once, pieces) = prompt(arguments, model, sizes)?;
    let (tokens, before) = (sizes.prompt, sizes.before);
    say(
        model,
        format_args!("a prompt of {tokens} tokens: {once:.2} ms at once, {pieces:.2} ms in pieces of 1024\n"),
    );
    say(
        model,
        format_args!(
            "{} tokens after {before}, keys and values {stored:?}, graphs of up to {PASSES} passes:\n\n\
             | texts | sampling | ms a token | keys and values, GB | part of a copy's rate | tokens/s |\n\
             |---:|---|---:|---:|---:|---:|",
            sizes.tokens
        ),
    );
    let warm = Sampling { temperature: 0.8, top_k: 50, top_p: 0.95, ..Sampling::default() };
    for &rows in &arguments.batch {
        for (name, sampling) in [("most likely", Sampling::default()), ("top-k 50, top-p 0.95", warm.clone())]
        {
            let ms = generate(arguments, model, sizes, rows, &sampling)?;
            let keys = rows * model.config().cache_bytes(before + sizes.tokens / 2, stored);
            let part = (bytes + keys) as f64 / rate * 1e3 / ms;
            let per_second = rows as f64 / ms * 1e3;
            say(
                model,
                format_args!(
                    "| {rows} | {name} | {ms:.3} | {:.3} | {part:.2} | {per_second:.0} |",
                    keys as f64 / 1e9
                ),
            );
        }
    }
    Ok(())
}

/// The median milliseconds of `body`.
fn median(mut body: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut times = (0..ROUNDS).map(|_| body()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Bytes a second that a copy reads and writes together.
fn copy_rate(device: &RocmDevice) -> Result<f64> {
    const COPIES: usize = 4;
    let (free, _) = device.free_and_total_memory()?;
    let len = COPIED.min(free / 4) / 4;
    let place = || Tensor::<B, 1>::zeros([len], (device, DType::F32)).into_primitive().tensor();
    let (from, to) = (place(), place());
    let ms = median(|| {
        graph::write(&to, from.clone())?;
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..COPIES {
            graph::write(&to, from.clone())?;
        }
        device.synchronize()?;
        Ok(milliseconds(start))
    })?;
    Ok((2 * 4 * len * COPIES) as f64 / ms * 1e3)
}

/// The milliseconds from the call to the first token, for a prompt at once and in pieces.
fn prompt(arguments: &Arguments, model: &Model, sizes: &Sizes) -> Result<(f64, f64)> {
    let prompt = models::random_prompt(sizes.prompt, model.config().vocabulary, arguments.of.seed);
    let mut caches = Cache::rows(model, 1, sizes.prompt, arguments.of.stored(model.dtype()))?;
    let step = Step::new(model, &caches, SampleTables::default())?;
    let mut time = |piece: usize| {
        let mut once = || {
            caches[0].truncate(0);
            let start = Instant::now();
            let logits = model.prefill(&prompt, &mut caches[0], piece)?;
            decode::sample(logits.into_primitive().tensor(), step.state())?;
            step.state().begin_read()?.wait()?;
            Ok(milliseconds(start))
        };
        once()?;
        median(once)
    };
    Ok((time(sizes.prompt)?, time(1024)?))
}

/// The milliseconds of a pass over `rows` texts. [`PASSES`] passes are a graph if one copy can read
/// all their tokens. Tokens are read a graph late.
fn generate(
    arguments: &Arguments,
    model: &Model,
    sizes: &Sizes,
    rows: usize,
    sampling: &Sampling,
) -> Result<f64> {
    let capacity = sizes.before + WARM_UPS.max(sizes.tokens);
    let mut caches = Cache::rows(model, rows, capacity, arguments.of.stored(model.dtype()))?;
    let mut step = Step::new(model, &caches, SampleTables { chances: true, ..SampleTables::default() })?;
    let mut logits = Vec::new();
    for (row, cache) in caches.iter_mut().enumerate() {
        let seed = arguments.of.seed.wrapping_add(row as u64);
        let prompt = models::random_prompt(sizes.before, model.config().vocabulary, seed);
        logits.push(model.prefill(&prompt, cache, sizes.before)?);
        step.state().set(row, &sampling.on_device(seed), &[])?;
    }
    decode::sample(Tensor::cat(logits, 0).into_primitive().tensor(), step.state())?;
    let readable = rows.saturating_mul(PASSES) <= LateDraws::MOST;
    let mut passes = |caches: &mut [Cache], count: usize| -> Result<f64> {
        caches.iter_mut().for_each(|cache| cache.truncate(sizes.before));
        let mut read = step.state().begin_read()?;
        model.device().synchronize()?;
        let start = Instant::now();
        let mut left = count;
        while left > 0 {
            // All ranks choose alike, because no time decides.
            let next = if readable && left >= PASSES && step.takes_several() {
                left -= PASSES;
                step.run_several(caches)?;
                step.state().begin_read_passes()?
            } else {
                left -= 1;
                step.run(caches)?;
                step.state().begin_read()?
            };
            std::mem::replace(&mut read, next).wait()?;
        }
        read.wait()?;
        Ok(milliseconds(start) / count as f64)
    };
    passes(&mut caches, WARM_UPS)?;
    let ms = median(|| passes(&mut caches, sizes.tokens))?;
    if let Some(why) = step.not_captured() {
        say(model, format_args!("not a graph: {why}"));
    }
    Ok(ms)
}
