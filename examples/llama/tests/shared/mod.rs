//! Reading the references.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use burn_rocm_llama::model::{B, Cache, Logits, Model};
use burn_rocm_llama::text::Tokens;
use safetensors::SafeTensors;
use serde::Deserialize;

/// The most that a logit in f32 may differ.
const WITHIN: f32 = 1e-4;

/// What `transformers` computes for a model.
pub(crate) struct Expected {
    pub(crate) prompt: Vec<u32>,
    /// `[tokens, vocabulary]`, row by row.
    pub(crate) logits: Vec<f32>,
    pub(crate) greedy: Vec<u32>,
}

/// The models of `tests/llama/references.py`: their names and folders.
pub(crate) fn models() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let entries = folder.read_dir().expect("the references").map(|entry| entry.expect("an entry"));
    let mut paths: Vec<_> =
        entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect();
    paths.sort();
    assert_eq!(paths.len(), 9, "the models of tests/llama/references.py");
    paths
}

/// The numbers of a tensor of 64-bit integers.
pub(crate) fn numbers(tensors: &SafeTensors, name: &str) -> Vec<usize> {
    let bytes = tensors.tensor(name).expect(name).data();
    let number = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("8 bytes")) as usize;
    bytes.chunks_exact(8).map(number).collect()
}

/// The numbers of a tensor in f32.
pub(crate) fn floats(tensors: &SafeTensors, name: &str) -> Vec<f32> {
    let bytes = tensors.tensor(name).expect(name).data();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
}

/// What `tokenizers` makes of a text (`tests/llama/texts.py`).
#[derive(Deserialize)]
pub(crate) struct TokenCase {
    pub(crate) tokenizer: String,
    text: String,
    pub(crate) special: Vec<u32>,
    plain: Vec<u32>,
    pub(crate) decoded: String,
}

impl TokenCase {
    pub(crate) fn all() -> Vec<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/texts/tokens.json");
        let text = std::fs::read_to_string(path).expect("the reference");
        let cases: Vec<Self> = serde_json::from_str(&text).expect("the reference");
        assert_eq!(cases.len(), 22);
        cases
    }

    /// Holds a tokenizer against this.
    pub(crate) fn hold(&self, tokens: &Tokens) {
        let Self { tokenizer, text, special, plain, decoded } = self;
        assert_eq!(&tokens.encode(text, true).expect("tokens"), special, "{tokenizer}: {text}");
        assert_eq!(&tokens.encode(text, false).expect("tokens"), plain, "{tokenizer}: {text}");
        assert_eq!(&tokens.decode(special).expect("a text"), decoded, "{tokenizer}: {text}");
    }
}

impl Expected {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the reference");
        let tensors = SafeTensors::deserialize(&bytes).expect("a file of safetensors");
        let tokens = |name| numbers(&tensors, name).into_iter().map(|token| token as u32).collect();
        Self { prompt: tokens("prompt"), logits: floats(&tensors, "logits"), greedy: tokens("greedy") }
    }

    /// Holds logits and greedy text of a model in f32 against these.
    pub(crate) fn hold(&self, name: &str, model: &Model) {
        let Self { prompt, logits, greedy } = self;
        let vocabulary = model.config().vocabulary;
        assert_eq!(logits.len(), prompt.len() * vocabulary, "{name}");
        let last = &logits[logits.len() - vocabulary..];

        let mut cache = Cache::new(model, prompt.len() + greedy.len()).expect("a cache");
        let all = model.forward(prompt, &mut cache, Logits::All).expect("logits");
        compare(name, &read(all), logits);

        // One token after the other, with the cache.
        let mut text = vec![];
        let mut next = best(last);
        while text.len() < greedy.len() {
            text.push(next);
            let row = model.forward(&[next], &mut cache, Logits::Last).expect("logits");
            next = best(&read(row));
        }
        assert_eq!(&text, greedy, "{name}: the greedy text");

        // The prompt in pieces, and token by token, over what an earlier text left in the cache.
        for piece in [7, 1] {
            cache.truncate(0);
            let found = model.prefill(prompt, &mut cache, piece).expect("logits");
            assert_eq!(cache.len(), prompt.len());
            compare(&format!("{name}, pieces of {piece}"), &read(found), last);
        }
    }
}

pub(crate) fn read(logits: Tensor<B, 2>) -> Vec<f32> {
    logits.into_data().to_vec().expect("logits in f32")
}

pub(crate) fn compare(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{what}: logits differ by at most {worst:e}");
    // Also fails for NaN.
    assert!(worst <= WITHIN && found.iter().all(|x| x.is_finite()), "{what}: a logit differs by {worst:e}");
}

fn best(logits: &[f32]) -> u32 {
    let (at, _) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("logits");
    at as u32
}
