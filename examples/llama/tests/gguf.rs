//! GGUF files: elements as the package `gguf` has them, logits as `transformers` computes them from
//! the same values (`tests/llama/gguf_files.py`), and the tokens of `transformers`
//! (`tests/llama/gguf_tokens.py`).

mod shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::Model;
use burn_rocm_llama::text::Message;
use safetensors::SafeTensors;
use serde::Deserialize;
use shared::{Expected, TokenCase, floats};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

#[test]
fn elements_are_those_of_the_package_gguf() {
    let file = Gguf::open(&path("types.gguf")).expect("a file");
    let bytes = std::fs::read(path("types.safetensors")).expect("the reference");
    let tensors = SafeTensors::deserialize(&bytes).expect("the reference");
    let names = ["BF16", "F16", "F32", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q6_K", "Q8_0"];
    assert_eq!(file.tensors().into_iter().collect::<Vec<_>>(), names.map(|name| (name, vec![2, 768])));
    for name in names {
        let (found, expected) = (file.values(name).expect("elements"), floats(&tensors, name));
        assert_eq!(found.len(), 2 * 768);
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // Q4_K and Q6_K multiply three numbers, in another order.
            let within = if name.ends_with('K') { expected.abs() * 2e-6 + 1e-6 } else { 0.0 };
            assert!((found - expected).abs() <= within, "{name}[{at}]: {found}, not {expected}");
        }
    }
}

#[test]
fn logits_and_greedy_text_are_those_of_transformers() {
    for name in ["llama", "gemma3", "qwen2", "qwen3", "gemma2", "nemo", "llama3"] {
        let file = Gguf::open(&path(&format!("{name}.gguf"))).expect("a file");
        assert_eq!(file.generation().stop, [2]);
        let config = file.config().clone();
        let model = Model::load(config, &file, &RocmDevice::default(), DType::F32, |_| ()).expect("a model");
        Expected::read(&path(&format!("{name}.safetensors"))).hold(name, &model);
    }
}

#[test]
fn tokens_are_those_of_tokenizers() {
    for case in TokenCase::all() {
        let file = Gguf::open(&path(&format!("{}.gguf", case.tokenizer))).expect("a file");
        case.hold(&file.tokens().expect("a tokenizer"));
        let chat = file.chat().expect("a template").expect("a template");
        let text = chat.render(&[Message::new("user", "Hi")], true).expect("a text");
        assert_eq!(text, "<|start|>Hi<|end|>");
    }
    let without = Gguf::open(&path("types.gguf")).expect("a file");
    let error = without.tokens().expect_err("no tokens").to_string();
    assert!(error.contains("`tokenizer.ggml.tokens`: expected a list of texts, found none"), "{error}");
}

/// What `transformers` makes of texts with the tokenizer that a file was made of.
#[derive(Deserialize)]
struct Awkward {
    /// The tokens before each text.
    start: Vec<u32>,
    /// A text, its tokens, and their text.
    cases: Vec<(String, Vec<u32>, String)>,
}

/// Spaces, newlines, digits, contractions, capitals, scripts without spaces, emojis, marks, and
/// special tokens, with each way to split words.
#[test]
fn awkward_texts_have_the_tokens_of_transformers() {
    let text = std::fs::read_to_string(path("tokens.json")).expect("the reference");
    let all: BTreeMap<String, Awkward> = serde_json::from_str(&text).expect("the reference");
    assert_eq!(all.keys().collect::<Vec<_>>(), ["gemma", "llama", "llama3", "qwen2", "tekken"]);
    for (name, Awkward { start, cases }) in all {
        let file = Gguf::open(&path(&format!("{name}-tokens.gguf"))).expect("a file");
        let tokens = file.tokens().expect("a tokenizer");
        assert_eq!(cases.len(), 40);
        for (text, ids, decoded) in cases {
            assert_eq!(tokens.encode(&text, false).expect("tokens"), ids, "{name}: {text:?}");
            let whole = [&start[..], &ids].concat();
            assert_eq!(tokens.encode(&text, true).expect("tokens"), whole, "{name}: {text:?}");
            assert_eq!(tokens.decode(&whole).expect("a text"), decoded, "{name}: {text:?}");
        }
    }
}

#[test]
fn damaged_files_are_refused() {
    let whole = std::fs::read(path("llama.gguf")).expect("a file");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("damaged.gguf");
    let load = |bytes: &[u8]| {
        std::fs::write(&copy, bytes).expect("a file");
        let file = Gguf::open(&copy)?;
        Model::load(file.config().clone(), &file, &RocmDevice::default(), DType::F32, |_| ()).map(|_| ())
    };
    let error = |bytes: &[u8]| load(bytes).expect_err("an error").to_string();
    load(&whole).expect("the whole file");
    for (bytes, text) in [
        (b"PK\x03\x04".as_slice(), "expected a GGUF file"),
        (b"GGUF", "cut off: expected 4 bytes at 4, found 0"),
        (b"GGUF\x01\0\0\0", "expected version 2 or 3 of GGUF, found 1"),
        (&whole[..30], "damaged: expected at most"),
        (&whole[..400], "damaged: expected at most"),
        (&whole[..1800], "cut off"),
        (&whole[..whole.len() - 40_000], "cut off"),
    ] {
        let found = error(bytes);
        assert!(found.contains("damaged.gguf") && found.contains(text), "expected {text}\nfound    {found}");
    }
    // Each byte of the header, damaged: an error or another model, never a crash.
    let mut refused = 0;
    for at in (0..2000).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xa5;
        std::fs::write(&copy, &bytes).expect("a file");
        refused += usize::from(Gguf::open(&copy).is_err());
    }
    assert!(refused > 100, "{refused} of 667 damaged headers were refused");
}

/// A text as GGUF has it.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A value of the metadata.
#[derive(Clone, Copy)]
enum Meta {
    Count(u32),
    Number(f32),
    Text(&'static str),
}

/// A file with more metadata, written over the file's own, and perhaps one more tensor.
fn changed(name: &str, pairs: &[(&str, Meta)], tensor: Option<&str>) -> Vec<u8> {
    let whole = std::fs::read(path(name)).expect("a file");
    let number = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("8 bytes"));
    let pair = |key: &str, value: Meta| match value {
        Meta::Count(count) => [text(key), 4u32.to_le_bytes().into(), count.to_le_bytes().into()].concat(),
        Meta::Number(number) => [text(key), 6u32.to_le_bytes().into(), number.to_le_bytes().into()].concat(),
        Meta::Text(value) => [text(key), 8u32.to_le_bytes().into(), text(value)].concat(),
    };
    let more: Vec<u8> = pairs.iter().flat_map(|&(key, value)| pair(key, value)).collect();
    // The entries of tensors begin after the metadata. The last pair of a key counts.
    let first = text("token_embd.weight");
    let tensors = (0..whole.len()).find(|&at| whole[at..].starts_with(&first)).expect("the first tensor");
    let entry = tensor.map_or(Vec::new(), |name| {
        [text(name), 1u32.to_le_bytes().into(), 8u64.to_le_bytes().into(), [0; 12].into()].concat()
    });
    // Tensors lie at multiples of 32 bytes after the header, so it grows by such a multiple.
    let grown = more.len() + entry.len() + pair("", Meta::Text("")).len();
    let padding = pair(&"p".repeat(grown.next_multiple_of(32) - grown), Meta::Text(""));
    [
        &whole[..8],
        &(number(8) + u64::from(tensor.is_some())).to_le_bytes(),
        &(number(16) + pairs.len() as u64 + 1).to_le_bytes(),
        &whole[24..tensors],
        &more,
        &padding,
        &entry,
        &whole[tensors..],
    ]
    .concat()
}

#[test]
fn keys_of_the_rotary_embedding_are_read_or_refused() {
    use Meta::{Count, Number, Text};
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rope.gguf");
    let open = |name: &str, pairs: &[(&str, Meta)]| {
        std::fs::write(&copy, changed(name, pairs, None)).expect("a file");
        Gguf::open(&copy)
    };
    let rope =
        |name: &str, pairs: &[(&str, Meta)]| open(name, pairs).expect("a model").config().ropes.clone();
    let plain = rope("llama.gguf", &[]);
    let pairs = plain[0].frequencies.len() as u32;
    // Both ways to write linear scaling; a factor of 1 is none.
    let quarter: Vec<f32> = plain[0].frequencies.iter().map(|frequency| frequency / 4.0).collect();
    let linear = [("llama.rope.scaling.type", Text("linear")), ("llama.rope.scaling.factor", Number(4.0))];
    assert_eq!(rope("llama.gguf", &linear)[0].frequencies, quarter);
    assert_eq!(rope("llama.gguf", &[("llama.rope.scale_linear", Number(4.0))])[0].frequencies, quarter);
    assert_eq!(rope("llama.gguf", &[("llama.rope.scale_linear", Number(1.0))]), plain);
    assert_eq!(rope("llama.gguf", &[("llama.rope.scaling.type", Text("none"))]), plain);
    // YaRN's limits move frequencies, and attn_factor multiplies 1 + 0.1 ln 4.
    let yarn = |more: &[(&'static str, Meta)]| {
        let mut pairs = vec![
            ("llama.rope.scaling.type", Text("yarn")),
            ("llama.rope.scaling.factor", Number(4.0)),
            ("llama.rope.scaling.original_context_length", Count(4096)),
        ];
        pairs.extend(more);
        rope("llama.gguf", &pairs)
    };
    let [usual, other] = [yarn(&[]), yarn(&[("llama.rope.scaling.yarn_beta_fast", Number(2.0))])];
    assert_ne!(usual[0].frequencies, other[0].frequencies);
    let factor = yarn(&[("llama.rope.scaling.attn_factor", Number(0.5))])[0].factor;
    assert!((factor - 0.5 * usual[0].factor).abs() < 1e-6 && (usual[0].factor - 1.138_629_4).abs() < 1e-6);
    // Partial rotation: the first features of a head.
    let whole = rope("gemma3.gguf", &[]);
    let part = rope("gemma3.gguf", &[("gemma3.rope.dimension_count", Count(4))]);
    assert_eq!((whole[0].frequencies.len(), part[0].frequencies.len()), (8, 2));
    assert_eq!(rope("llama.gguf", &[("llama.rope.dimension_count", Count(2 * pairs))]), plain);

    let refused = |name: &str, pairs: &[(&str, Meta)], expected: &str| {
        let found = open(name, pairs).expect_err("an error").to_string();
        assert!(found.contains(expected), "expected {expected}\nfound    {found}");
    };
    refused(
        "llama.gguf",
        &[("llama.rope.dimension_count", Count(2))],
        "`llama.rope.dimension_count`: expected the",
    );
    refused("gemma3.gguf", &[("gemma3.rope.dimension_count", Count(24))], "expected at most the 16 features");
    refused("llama.gguf", &[("llama.rope.new_idea", Count(2))], "`llama.rope.new_idea`: expected a key that");
    refused(
        "llama.gguf",
        &[linear[0], linear[1], ("llama.rope.scaling.attn_factor", Number(2.0))],
        "`llama.rope.scaling.attn_factor`: expected a key that",
    );
    refused("llama.gguf", &[("llama.rope.scaling.type", Text("longrope"))], "`longrope` is not supported");
    refused(
        "gemma3.gguf",
        &[("gemma3.attention.value_length", Count(4))],
        "value_length`: expected 16, found 4",
    );
}

#[test]
fn mixtures_of_experts_are_refused() {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("experts.gguf");
    let open = |experts: u32| {
        let pairs = [("llama.expert_count", Meta::Count(experts))];
        std::fs::write(&copy, changed("llama.gguf", &pairs, None)).expect("a file");
        Gguf::open(&copy)
    };
    open(0).expect("a model without experts");
    let error = open(8).expect_err("an error").to_string();
    assert!(error.contains("a mixture of experts is not supported"), "{error}");
}

#[test]
fn tensors_that_nobody_reads_are_refused() {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unread.gguf");
    let load = |tensor| {
        std::fs::write(&copy, changed("llama.gguf", &[], tensor)).expect("a file");
        let file = Gguf::open(&copy)?;
        Model::load(file.config().clone(), &file, &RocmDevice::default(), DType::F32, |_| ()).map(|_| ())
    };
    load(None).expect("the model");
    let error = load(Some("blk.0.attn_q_norm.weight")).expect_err("an error").to_string();
    let expected = "`blk.0.attn_q_norm.weight`: expected a tensor of the model, found one that";
    assert!(error.contains(expected), "{error}");
}
