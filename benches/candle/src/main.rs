//! Times a token of Llama 3.2 1B in Q4_0, by candle and by the program `llama`, in turns.
//!
//! `candle-beside FILE LLAMA [ROUNDS [BEFORE [TOKENS]]]` writes a GGUF file with random weights of
//! these shapes, unless FILE exists. Both read this file. In each round, candle generates TOKENS
//! (16) tokens after BEFORE (16), and then the program LLAMA does, in a process of its own. Prints
//! milliseconds a token of each round and the ratio of the medians. Set `RAYON_NUM_THREADS` for
//! candle and `BURN_ROCM_CPU_THREADS` for `llama` to the same number.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

/// https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
const LAYERS: usize = 16;
const WIDTH: usize = 2048;
const INNER: usize = 8192;
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const VOCABULARY: usize = 128_256;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Matrices in Q4_0, the tied embedding too, and norms in f32.
fn write(path: &Path) -> Outcome<()> {
    let device = Device::Cpu;
    let matrix = |outputs: usize, inputs: usize| -> Outcome<QTensor> {
        let deviation = (inputs as f32).powf(-0.5);
        let numbers = Tensor::randn(0.0, deviation, (outputs, inputs), &device)?;
        Ok(QTensor::quantize(&numbers, GgmlDType::Q4_0)?)
    };
    let norm = || -> Outcome<QTensor> {
        let ones = Tensor::ones(WIDTH, candle_core::DType::F32, &device)?;
        Ok(QTensor::quantize(&ones, GgmlDType::F32)?)
    };
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), matrix(VOCABULARY, WIDTH)?),
        ("output_norm.weight".to_owned(), norm()?),
    ];
    for layer in 0..LAYERS {
        let name = |rest: &str| format!("blk.{layer}.{rest}.weight");
        let (queries, keys) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        tensors.push((name("attn_norm"), norm()?));
        tensors.push((name("attn_q"), matrix(queries, WIDTH)?));
        tensors.push((name("attn_k"), matrix(keys, WIDTH)?));
        tensors.push((name("attn_v"), matrix(keys, WIDTH)?));
        tensors.push((name("attn_output"), matrix(WIDTH, queries)?));
        tensors.push((name("ffn_norm"), norm()?));
        tensors.push((name("ffn_gate"), matrix(INNER, WIDTH)?));
        tensors.push((name("ffn_up"), matrix(INNER, WIDTH)?));
        tensors.push((name("ffn_down"), matrix(WIDTH, INNER)?));
    }
    let number = |number: usize| Value::U32(number as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".to_owned())),
        ("llama.block_count", number(LAYERS)),
        ("llama.embedding_length", number(WIDTH)),
        ("llama.feed_forward_length", number(INNER)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.dimension_count", number(HEAD_DIM)),
        ("llama.rope.freq_base", Value::F32(500_000.0)),
        ("llama.context_length", number(4096)),
        ("llama.vocab_size", number(VOCABULARY)),
    ];
    let metadata: Vec<_> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = BufWriter::new(File::create(path)?);
    gguf_file::write(&mut file, &metadata, &tensors)?;
    Ok(())
}

/// Milliseconds a token, each the most likely one.
fn candle(model: &mut ModelWeights, before: usize, tokens: usize) -> Outcome<f64> {
    let device = Device::Cpu;
    let prompt: Vec<u32> = (0..before).map(|at| (at * 7919 % VOCABULARY) as u32).collect();
    let most_likely = |logits: Tensor| -> Outcome<u32> { Ok(logits.squeeze(0)?.argmax(0)?.to_scalar()?) };
    // A position of 0 makes candle forget the text before.
    let mut token = most_likely(model.forward(&Tensor::new(&prompt[..], &device)?.unsqueeze(0)?, 0)?)?;
    let start = Instant::now();
    for at in 0..tokens {
        let input = Tensor::new(&[token], &device)?.unsqueeze(0)?;
        token = most_likely(model.forward(&input, before + at)?)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3 / tokens as f64)
}

/// Milliseconds a token by `llama --bench`.
fn llama(program: &str, file: &str, before: usize, tokens: usize) -> Outcome<f64> {
    let (before, tokens) = (before.to_string(), tokens.to_string());
    let arguments =
        ["--model", file, "--bench", "--batch", "1", "--prompt-tokens", &before, "--tokens", &tokens];
    let output = Command::new(program).args(arguments).env("BURN_ROCM_PROVIDER", "cpu").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = text.lines().find(|line| line.starts_with("| 1 | most likely |"));
    let cell = row.and_then(|row| row.split('|').nth(3)).and_then(|cell| cell.trim().parse().ok());
    cell.ok_or_else(|| format!("{text}\n{}", String::from_utf8_lossy(&output.stderr)).into())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, program, numbers @ ..] = &arguments[..] else {
        return Err("usage: candle-beside FILE LLAMA [ROUNDS [BEFORE [TOKENS]]]".into());
    };
    let number = |at: usize, default: usize| -> Outcome<usize> {
        numbers.get(at).map_or(Ok(default), |text| Ok(text.parse()?))
    };
    let (rounds, before, tokens) = (number(0, 3)?.max(1), number(1, 16)?.max(1), number(2, 16)?.max(1));
    if !Path::new(path).exists() {
        write(Path::new(path))?;
    }
    let mut file = File::open(path)?;
    let mut model = ModelWeights::from_gguf(Content::read(&mut file)?, &mut file, &Device::Cpu)?;
    println!("Q4_0, 4.5 bits a weight on both sides; {tokens} tokens after {before}\n");
    println!("| round | candle, ms a token | llama, ms a token |\n|---:|---:|---:|");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    candle(&mut model, before, 2)?;
    for round in 1..=rounds {
        theirs.push(candle(&mut model, before, tokens)?);
        ours.push(llama(program, path, before, tokens)?);
        println!("| {round} | {:.1} | {:.1} |", theirs[round - 1], ours[round - 1]);
    }
    let (theirs, ours) = (median(theirs), median(ours));
    println!("| median | {theirs:.1} | {ours:.1} |\n\ncandle / llama: {:.2}", theirs / ours);
    Ok(())
}
