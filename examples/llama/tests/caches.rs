//! Caches that round keys and values give the logits of `transformers` with a cache that rounds them
//! in the same way (`tests/llama/caches.py`). The keys and values are the same numbers on both sides,
//! so that the logits differ by the rounding of sums, as without a cache.

mod shared;

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm::fused::decode::CacheType;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Cache, Logits, Model};
use burn_rocm_llama::weights::Folder;
use safetensors::SafeTensors;
use shared::{compare, floats, models, numbers, read};

/// The tokens of a prompt.
const TOKENS: usize = 24;
/// The first ones, whose logits the reference lacks. With `behind` they see exact keys and values.
const EXACT: usize = 20;

/// The logits after each token of a prompt that is computed in pieces.
fn logits(model: &Model, prompt: &[u32], pieces: &[usize], stored: CacheType) -> Vec<f32> {
    let mut cache = Cache::stored(model, prompt.len(), stored).expect("a cache");
    let mut rest = prompt;
    let mut found = Vec::new();
    for &tokens in pieces {
        let (piece, others) = rest.split_at(tokens);
        found.extend(read(model.forward(piece, &mut cache, Logits::All).expect("logits")));
        rest = others;
    }
    assert!(rest.is_empty(), "the pieces are the whole prompt");
    found
}

#[test]
fn rounded_keys_and_values_have_the_logits_of_transformers() {
    for (name, folder) in models() {
        let config = Config::read(&folder).expect("the settings");
        let source = Folder::open(&folder, &config).expect("the weights");
        let model = Model::load(config, &source, &RocmDevice::default(), DType::F32, |_| ());
        let model = model.expect("a model");
        let vocabulary = model.config().vocabulary;
        let bytes = std::fs::read(folder.join("caches.safetensors")).expect("the reference");
        let tensors = SafeTensors::deserialize(&bytes).expect("the reference");
        for (kind, stored) in [("int8", CacheType::I8), ("bf16", CacheType::BF16)] {
            let check = |way: &str, pieces: &[usize]| {
                let prompt = numbers(&tensors, &format!("{kind}.{way}.prompt"));
                let prompt: Vec<u32> = prompt.into_iter().map(|token| token as u32).collect();
                let expected = floats(&tensors, &format!("{kind}.{way}"));
                assert_eq!((prompt.len(), expected.len()), (TOKENS, (TOKENS - EXACT) * vocabulary), "{name}");
                let found = logits(&model, &prompt, pieces, stored);
                let what = format!("{name}, {kind}, {way}, {} pieces from {}", pieces.len(), pieces[0]);
                compare(&what, &found[EXACT * vocabulary..], &expected);
                // A cache that rounds nothing gives other logits: more than ten times what may differ.
                let exact = logits(&model, &prompt, &[TOKENS], CacheType::F32);
                let exact = exact[EXACT * vocabulary..].iter();
                let moved = exact.zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(moved > 1e-3, "{what}: the roundings move a logit by {moved:e}");
            };
            // Up to 16 tokens attend to the pages. More gather them, unless they are the first.
            for pieces in [&[1; TOKENS][..], &[7, 7, 7, 3], &[16, 8], &[5, 19]] {
                check("rounded", pieces);
            }
            // The first tokens at once attend to their own keys before these are rounded.
            check("behind", &[EXACT, 1, 1, 1, 1]);
            check("behind", &[EXACT, 4]);
        }
    }
}
