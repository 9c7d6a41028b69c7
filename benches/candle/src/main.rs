//! Times a token of Llama 3.2 1B in Q4_0 on the CPU by this backend's CPU device and by candle, from
//! one file, with the same number of threads, in turn in one process. Weights are random, from a
//! fixed seed. Fails if the two disagree by more than candle's rounding of activations explains.
//!
//! ```text
//! cd benches/candle && cargo run --release -- [--threads N] [--prompt N] [--tokens N] [--rounds N] [--file PATH]
//! ```

mod agreement;
mod result;
mod sides;
mod weights;

use std::path::PathBuf;
use std::thread::available_parallelism;

use result::Result;
use sides::{Candle, Ours};
use weights::{BLOCK, BLOCK_BYTES, LLAMA_3_2_1B, Random};

const SEED: u64 = 0x5EED_0001;

/// The tokens after which logits are compared.
const COMPARED: usize = 8;

/// The most by which logits may differ, as a part of their norm. A normal number's rounding to Q8_0
/// is 0.0055 of its size: the greatest of 32 is 2.4 deviations, and 2.4 / 127 / sqrt(12). After the
/// gate, whose outputs have longer tails, it is up to 0.01. A token passes 65 products one after the
/// other, whose errors are independent: sqrt(65) * 0.01. Unlike the bound of one product, this is an
/// estimate.
const MOST_DIFFERENCE: f64 = 0.08;

struct Arguments {
    threads: usize,
    prompt: usize,
    tokens: usize,
    rounds: usize,
    file: PathBuf,
}

fn arguments() -> Result<Arguments> {
    let mut found = Arguments {
        threads: available_parallelism()?.get(),
        prompt: 64,
        tokens: 32,
        rounds: 5,
        file: std::env::temp_dir().join("beside-candle.gguf"),
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or(format!("{name}: expected a value, found nothing"))?;
        let number = || match value.parse() {
            Ok(0) | Err(_) => Err(format!("{name}: expected a whole number above 0, found `{value}`")),
            Ok(number) => Ok(number),
        };
        match name.as_str() {
            "--threads" => found.threads = number()?,
            "--prompt" => found.prompt = number()?,
            "--tokens" => found.tokens = number()?,
            "--rounds" => found.rounds = number()?,
            "--file" => found.file = value.into(),
            _ => {
                let known = "--threads, --prompt, --tokens, --rounds or --file";
                return Err(format!("expected {known}, found `{name}`").into());
            }
        }
    }
    Ok(found)
}

fn main() -> Result<()> {
    let Arguments { threads, prompt, tokens, rounds, file } = arguments()?;
    for name in ["BURN_ROCM_CPU_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(name, threads.to_string()) };
    }
    // SAFETY: as above.
    unsafe { std::env::set_var("BURN_ROCM_PROVIDER", "cpu") };
    let shapes = LLAMA_3_2_1B;
    let mut random = Random(SEED);
    for shape in [[2048, 2048], [3072, 8192], [777, 32]] {
        let part = agreement::product(&mut random, shape)?;
        println!("a product with {shape:?}: differs by at most {part:.2} of the bound");
        if part.is_nan() || part > 1.0 {
            return Err("the products differ by more than the bound".into());
        }
    }

    if !file.exists() {
        println!("writing {}", file.display());
        weights::write(&file, shapes, SEED)?;
    }
    let model = sides::ours(&file)?;
    let mut ours = Ours::new(&model, prompt + tokens.max(COMPARED) + 1)?;
    let mut candle = Candle::new(&file)?;
    let mut token = || random.below(shapes.vocabulary) as u32;
    let text: Vec<u32> = (0..prompt).map(|_| token()).collect();
    let more: Vec<u32> = (0..COMPARED).map(|_| token()).collect();

    let (mine, theirs) = (ours.logits(&text, &more)?, candle.logits(&text, &more)?);
    let differences = mine.iter().zip(&theirs).map(|(a, b)| agreement::difference(a, b));
    let most = differences.fold(0.0, |most: f64, one| if one.is_nan() { f64::NAN } else { most.max(one) });
    println!(
        "logits after {prompt} to {} tokens: differ by at most {most:.4} of their norm",
        prompt + COMPARED
    );
    if most.is_nan() || most > MOST_DIFFERENCE {
        return Err(format!("the logits differ by more than {MOST_DIFFERENCE} of their norm").into());
    }

    // The first steps compile and capture.
    ours.prompt(&text)?;
    ours.generate(3)?;
    let mut best = [[f64::INFINITY; 2]; 2];
    println!("\n| round | prompt, ms: burn-rocm | candle | a token, ms: burn-rocm | candle | ratio |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for round in 1..=rounds {
        let prompts = [ours.prompt(&text)?, candle.prompt(&text)?];
        let each = [ours.generate(tokens)?, candle.generate(tokens)?];
        let [[a, b], [c, d]] = [prompts, each];
        println!("| {round} | {a:.1} | {b:.1} | {c:.2} | {d:.2} | {:.2} |", c / d);
        for (best, found) in best.iter_mut().flatten().zip([a, b, c, d]) {
            *best = best.min(found);
        }
    }
    let [[a, b], [c, d]] = best;
    println!("| best | {a:.1} | {b:.1} | {c:.2} | {d:.2} | {:.2} |", c / d);
    let bytes = shapes.weights() / BLOCK * BLOCK_BYTES;
    println!(
        "\n{threads} threads, {prompt} tokens before, {tokens} generated. A token reads {} weights on both sides, of \
         {:.4} bytes each (16 of codes and 2 of scale for 32): {:.0} MB, {:.1} and {:.1} GB/s.",
        shapes.weights(),
        BLOCK_BYTES as f64 / BLOCK as f64,
        bytes as f64 / 1e6,
        bytes as f64 / c / 1e6,
        bytes as f64 / d / 1e6,
    );
    println!("Ratio of the best: {:.2} (below 1: burn-rocm is faster).", c / d);
    Ok(())
}
