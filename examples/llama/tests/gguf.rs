//! GGUF files: elements as the package `gguf` has them, logits as `transformers` computes them from
//! the same files (`tests/llama/gguf_files.py`).

mod shared;

use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::Model;
use burn_rocm_llama::text::Message;
use safetensors::SafeTensors;
use shared::{Expected, TokenCase, floats};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

#[test]
fn elements_are_those_of_the_package_gguf() {
    let file = Gguf::open(&path("types.gguf")).expect("a file");
    let bytes = std::fs::read(path("types.safetensors")).expect("the reference");
    let tensors = SafeTensors::deserialize(&bytes).expect("the reference");
    let names = ["BF16", "F16", "F32", "Q4_0", "Q4_K", "Q6_K", "Q8_0"];
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
    for name in ["llama", "gemma3"] {
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
