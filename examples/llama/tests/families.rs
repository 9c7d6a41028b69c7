//! Small random models of each family give the logits and the greedy text of `transformers`
//! (`tests/llama/references.py`).

#[path = "families/fp8.rs"]
mod fp8;
mod shared;

use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm_llama::Error;
use burn_rocm_llama::config::{Config, Generation};
use burn_rocm_llama::model::{Cache, Logits, Model};
use burn_rocm_llama::weights::Folder;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use shared::{Expected, floats, models, numbers, read};

fn load(folder: &Path, dtype: DType) -> Model {
    let config = Config::read(folder).expect("the settings");
    let source = Folder::open(folder, &config).expect("the weights");
    let mut last = (0, 1);
    let model = Model::load(config, &source, &RocmDevice::default(), dtype, |loaded| {
        assert!(loaded.bytes > last.0, "progress grows");
        last = (loaded.bytes, loaded.of);
    });
    assert_eq!(last.0, last.1, "the progress ends with all bytes");
    model.expect("the model")
}

#[test]
fn logits_and_greedy_text_are_those_of_transformers() {
    for (name, folder) in models() {
        let expected = Expected::read(&folder.join("expected.safetensors"));
        expected.hold(&name, &load(&folder, DType::F32));
    }
}

/// 120 tokens, twenty times the windows, in pieces that end within a window.
#[test]
fn long_prompts_have_the_logits_of_transformers() {
    for (name, folder) in models() {
        let bytes = std::fs::read(folder.join("long.safetensors")).expect("the reference");
        let tensors = SafeTensors::deserialize(&bytes).expect("the reference");
        let prompt: Vec<u32> = numbers(&tensors, "prompt").into_iter().map(|token| token as u32).collect();
        let (rows, expected) = (numbers(&tensors, "rows"), floats(&tensors, "logits"));
        assert_eq!((prompt.len(), rows.len()), (120, 12));
        let model = load(&folder, DType::F32);
        let vocabulary = model.config().vocabulary;
        for piece in [120, 50, 7] {
            let mut cache = Cache::new(&model, prompt.len()).expect("a cache");
            let mut found = Vec::new();
            for piece in prompt.chunks(piece) {
                found.extend(read(model.forward(piece, &mut cache, Logits::All).expect("logits")));
            }
            let mut worst = 0f32;
            for (&row, expected) in rows.iter().zip(expected.chunks(vocabulary)) {
                let found = &found[row * vocabulary..][..vocabulary];
                assert!(found.iter().all(|x| x.is_finite()), "{name}");
                worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
            }
            println!("{name}, pieces of {piece}: logits differ by at most {worst:e}");
            assert!(worst <= 1e-4, "{name}, pieces of {piece}: {worst:e}");
        }
    }
}

/// The relative error of 16-bit models, over all logits of the prompt. A rounding to bf16 is wrong
/// by up to 2^-9 of a number. A layer rounds about twenty times, three or four layers add up, and
/// errors that are independent add up as a random walk: 2^-9 * sqrt(80) = 0.017. The bound is three
/// times as much, because the scores of random models are large. f16 has three bits more.
#[test]
fn sixteen_bits_are_near() {
    for (name, folder) in models() {
        let Expected { prompt, logits, .. } = Expected::read(&folder.join("expected.safetensors"));
        for (dtype, within) in [(DType::BF16, 0.05), (DType::F16, 0.006)] {
            let model = load(&folder, dtype);
            let mut cache = Cache::new(&model, prompt.len()).expect("a cache");
            let found = read(model.forward(&prompt, &mut cache, Logits::All).expect("logits"));
            let square = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| x * x).sum::<f32>();
            let error = square(&mut found.iter().zip(&logits).map(|(a, b)| a - b));
            let error = (error / square(&mut logits.iter().copied())).sqrt();
            println!("{name} in {dtype:?}: relative error {error:.5}");
            assert!(error <= within, "{name} in {dtype:?}: relative error {error}");
            assert!(error > 1e-5, "{name}: {dtype:?} is not f32");
        }
    }
}

#[test]
fn generation_settings_have_several_stop_tokens() {
    for (name, folder) in models() {
        let generation = Generation::read(&folder).expect("the settings");
        assert_eq!(generation.stop, [2, 3], "{name}");
        assert!(generation.sample);
        assert_eq!((generation.temperature, generation.top_p), (Some(0.6), Some(0.9)));
    }
}

#[test]
fn a_call_that_is_refused_leaves_the_cache() {
    let (_, folder) = models().remove(0);
    let model = load(&folder, DType::F32);
    let mut cache = Cache::new(&model, 8).expect("a cache");
    model.forward(&[5, 6, 7], &mut cache, Logits::Last).expect("logits");
    let refused = |tokens: &[u32], cache: &mut Cache| {
        let error = model.forward(tokens, cache, Logits::Last).expect_err("refused");
        assert_eq!(cache.len(), 3);
        error
    };
    assert!(matches!(refused(&[], &mut cache), Error::Argument { .. }));
    assert!(matches!(refused(&[64], &mut cache), Error::Token { token: 64, vocabulary: 64 }));
    assert!(matches!(refused(&[5; 6], &mut cache), Error::TooLong { prompt: 3, answer: 6, limit: 8 }));
    model.forward(&[5; 5], &mut cache, Logits::Last).expect("room for 5 more");
    assert_eq!(
        Cache::new(&model, 129).expect_err("more than the model's context").to_string(),
        "context: expected 1 to 128 tokens, for which the model was made, found 129"
    );
}

/// A copy of a model's folder in which a test may change files.
struct Copy(PathBuf);

impl Copy {
    fn of(model: &str, test: &str) -> Self {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("families-{test}"));
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir_all(&to).expect("a folder");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(model);
        for entry in from.read_dir().expect("the model") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
        Self(to)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The error of loading.
    fn error(&self) -> String {
        let load = || {
            let config = Config::read(&self.0)?;
            let source = Folder::open(&self.0, &config)?;
            let never = |_| panic!("nothing is loaded before all is checked");
            Model::load(config, &source, &RocmDevice::default(), DType::F32, never)
        };
        load().expect_err("an error").to_string()
    }

    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.path(name)).expect("a file");
        assert!(text.contains(from), "{text}");
        std::fs::write(self.path(name), text.replace(from, to)).expect("a file");
    }
}

/// The names in files of text models, and in two kinds of files of models with images.
#[test]
fn output_matrices_lie_beside_the_model() {
    for [prefix, output] in
        [["model.", ""], ["language_model.model.", "language_model."], ["model.language_model.", ""]]
    {
        let model = Copy::of("gemma3", "output");
        model.edit("config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
        let path = model.path("model.safetensors");
        let bytes = std::fs::read(&path).expect("a file");
        let tensors = SafeTensors::deserialize(&bytes).expect("the weights");
        let renamed = |(name, view): (String, _)| (name.replacen("model.", prefix, 1), view);
        let mut views: Vec<(String, TensorView<'_>)> = tensors.tensors().into_iter().map(renamed).collect();
        let embedding = tensors.tensor("model.embed_tokens.weight").expect("the embedding");
        views.push((format!("{output}lm_head.weight"), embedding));
        safetensors::serialize_to_file(views, None, &path).expect("a file");
        let expected = Expected::read(&model.path("expected.safetensors"));
        expected.hold(prefix, &load(&model.0, DType::F32));
    }
}

#[test]
fn missing_and_damaged_files_are_named() {
    let model = Copy::of("qwen2", "files");
    let second = "model-00002-of-00002.safetensors";
    let whole = std::fs::read(model.path(second)).expect("a file");

    std::fs::remove_file(model.path(second)).expect("a file");
    let error = model.error();
    assert!(
        error.contains(second) && error.contains("missing; 1 of the 2 files of the index are"),
        "{error}"
    );

    // Cut off within the header, within the tensors, and with other bytes in the header.
    let cut = [&whole[..4], &whole[..100], &whole[..whole.len() - 1], &[0xff; 64][..]];
    for bytes in cut {
        std::fs::write(model.path(second), bytes).expect("a file");
        let error = model.error();
        let text = format!("damaged or cut off ({} bytes)", bytes.len());
        assert!(error.contains(second) && error.contains(&text), "{error}");
    }
    std::fs::write(model.path(second), &whole).expect("a file");

    model.edit("model.safetensors.index.json", second, "../elsewhere");
    assert!(model.error().contains("expected the name of a file in this folder"), "{}", model.error());
    std::fs::write(model.path("model.safetensors.index.json"), "{").expect("a file");
    assert!(model.error().contains("model.safetensors.index.json: not valid JSON"), "{}", model.error());
    std::fs::remove_file(model.path("model.safetensors.index.json")).expect("a file");
    let text = "expected model.safetensors or model.safetensors.index.json, found neither";
    assert!(model.error().contains(text), "{}", model.error());
    std::fs::remove_file(model.path("config.json")).expect("a file");
    assert!(model.error().contains("config.json: No such file"), "{}", model.error());
}

#[test]
fn wrong_shapes_and_missing_tensors_are_named() {
    let model = Copy::of("llama3", "shapes");
    let config = std::fs::read_to_string(model.path("config.json")).expect("a file");
    for (from, to, text) in [
        (
            "\"intermediate_size\": 32",
            "\"intermediate_size\": 48",
            "`model.layers.0.mlp.gate_proj.weight`: expected [48, 24], found [32, 24]",
        ),
        (
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 4",
            "`model.layers.3.input_layernorm.weight`: expected a tensor [24], found nothing",
        ),
        (
            "\"attention_bias\": false",
            "\"attention_bias\": true",
            "`model.layers.0.self_attn.q_proj.bias`: expected a tensor [24], found nothing",
        ),
        (
            "\"tie_word_embeddings\": true",
            "\"tie_word_embeddings\": false",
            "`lm_head.weight`: expected a tensor [64, 24], found nothing",
        ),
    ] {
        model.edit("config.json", from, to);
        let error = model.error();
        assert!(error.contains(text), "expected {text}\nfound    {error}");
        std::fs::write(model.path("config.json"), &config).expect("a file");
    }
    // A bias that the settings do not mention.
    let biased = Copy::of("llama-biases", "unread");
    biased.edit("config.json", "\"mlp_bias\": true", "\"mlp_bias\": false");
    let text = "`model.layers.0.mlp.down_proj.bias`: expected a tensor of the model, found one that";
    assert!(biased.error().contains(text), "{}", biased.error());
    // A file of another kind: the reference has no model.
    std::fs::copy(model.path("expected.safetensors"), model.path("model.safetensors")).expect("a copy");
    let text = "`model.embed_tokens.weight`: expected the embedding, found 3 other tensors";
    assert!(model.error().contains(text), "{}", model.error());
}
