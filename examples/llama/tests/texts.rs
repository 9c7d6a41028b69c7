//! Tokens, chat templates and sampling are those of `tokenizers` and `transformers`
//! (`tests/llama/texts.py`).

mod shared;

use std::path::{Path, PathBuf};

use burn::tensor::{Tensor, TensorData};
use burn_rocm::fused::decode::{self, SampleState, SampleTables};
use burn_rocm_llama::Rng;
use burn_rocm_llama::sample::Sampling;
use burn_rocm_llama::text::{Chat, Message, Stream, Tokens};
use minijinja::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shared::TokenCase;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/texts").join(name)
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read_to_string(path(name)).expect("a reference");
    serde_json::from_str(&text).expect("a reference in JSON")
}

#[test]
fn tokens_are_those_of_tokenizers() {
    for case in TokenCase::all() {
        case.hold(&Tokens::read(&path(&format!("{}.json", case.tokenizer))).expect("a tokenizer"));
    }
}

/// Files that were saved after training may say that texts are cut and filled up.
#[test]
fn a_tokenizer_cuts_no_text() {
    let json = std::fs::read_to_string(path("bytes.json")).expect("a tokenizer");
    let mut json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    json["truncation"] =
        serde_json::json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    let whole = Tokens::read(&path("bytes.json")).expect("a tokenizer");
    let cut = Tokens::of_json(&path("bytes.json"), &json.to_string()).expect("a tokenizer");
    let text = "a text of more than four tokens, whatever they are";
    let expected = whole.encode(text, true).expect("tokens");
    assert!(expected.len() > 4);
    assert_eq!(cut.encode(text, true).expect("tokens"), expected);
}

#[test]
fn a_stream_has_whole_characters() {
    let mut waited = 0;
    for TokenCase { tokenizer, special, decoded, .. } in TokenCase::all() {
        let tokens = Tokens::read(&path(&format!("{tokenizer}.json"))).expect("a tokenizer");
        let mut stream = Stream::new(&tokens);
        let mut text = String::new();
        for &token in &special {
            let piece = stream.push(token).expect("a piece");
            assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{tokenizer}: {piece:?} of {decoded:?}");
            waited += usize::from(piece.is_empty());
            text += &piece;
        }
        assert_eq!(stream.finish().expect("the rest"), "", "{tokenizer}: {decoded:?}");
        assert_eq!(text, decoded, "{tokenizer}");
    }
    assert!(waited > 100, "most emojis are several tokens here: {waited}");
}

#[test]
fn a_stream_shows_what_never_becomes_a_character() {
    let tokens = Tokens::read(&path("pieces.json")).expect("a tokenizer");
    let byte = |byte: u8| tokens.id(&format!("<0x{byte:02X}>")).expect("a token for each byte");
    let a = tokens.encode("a", false).expect("a token");
    let mut stream = Stream::new(&tokens);
    // The start of a character, then something else.
    assert_eq!(stream.push(byte(0xf0)).expect("nothing"), "");
    let mut text: String = a.iter().map(|&token| stream.push(token).expect("a piece")).collect();
    assert!(text.starts_with(char::REPLACEMENT_CHARACTER) && text.ends_with('a'), "{text:?}");
    // The start of a character at the end.
    text = stream.push(byte(0xe6)).expect("nothing");
    assert_eq!(text, "");
    assert_eq!(stream.finish().expect("the rest"), "\u{fffd}");
}

#[derive(Deserialize)]
struct Chats {
    bos: String,
    eos: String,
    tools: Value,
    conversations: std::collections::BTreeMap<String, Value>,
    templates: std::collections::BTreeMap<String, String>,
    cases: Vec<ChatCase>,
}

#[derive(Deserialize)]
struct ChatCase {
    template: String,
    conversation: String,
    tools: bool,
    answer: bool,
    expected: Option<String>,
    error: Option<String>,
}

#[test]
fn chat_templates_are_those_of_transformers() {
    let chats: Chats = read("chats.json");
    assert!(chats.cases.len() > 60 && chats.templates.len() == 6);
    for case in &chats.cases {
        let ChatCase { template, conversation, tools, answer, expected, error } = case;
        let special = [chats.bos.clone(), chats.eos.clone()];
        let chat = Chat::new(chats.templates[template].clone(), special).expect("a template");
        let tools = if *tools { chats.tools.clone() } else { Value::UNDEFINED };
        let found = chat.render_with(chats.conversations[conversation].clone(), *answer, tools);
        match (found, expected, error) {
            (Ok(found), Some(expected), _) => assert_eq!(&found, expected, "{template}, {conversation}"),
            (Err(found), None, Some(error)) => {
                let found = found.to_string();
                assert!(found.contains(error.as_str()), "{template}: expected {error}, found {found}");
            }
            (found, expected, error) => panic!("{template}: {found:?}, not {expected:?} {error:?}"),
        }
    }
}

#[test]
fn messages_have_roles_and_contents() {
    let template = "{% for m in messages %}{{ m.role }}: {{ m['content'] }};{% endfor %}";
    let chat = Chat::new(template.to_owned(), [String::new(), String::new()]).expect("a template");
    let messages = [Message::new("system", "a"), Message::new("user", "<b>")];
    assert_eq!(chat.render(&messages, true).expect("a text"), "system: a;user: <b>;");
    let error = Chat::new("{% if %}".to_owned(), [String::new(), String::new()]).expect_err("no template");
    assert!(error.to_string().contains("line 1"), "{error}");
}

/// The texts are those of Python 3.11: `json.dumps(x, ensure_ascii=False)`, with these arguments in
/// addition or instead.
#[test]
fn tojson_takes_the_arguments_of_transformers() {
    let set = r#"{% set x = {"b": [1, {"d": "é\"😀\u007f\n", "c": none}], "a": true, "e": [], "f": {} } %}"#;
    let text = |arguments: &str| {
        let template = format!("{set}{{{{ x | tojson({arguments}) }}}}");
        Chat::new(template, [String::new(), String::new()]).expect("a template").render(&[], true)
    };
    for (arguments, expected) in [
        ("", "{\"b\": [1, {\"d\": \"é\\\"😀\u{7f}\\n\", \"c\": null}], \"a\": true, \"e\": [], \"f\": {}}"),
        (
            "ensure_ascii=True",
            r#"{"b": [1, {"d": "\u00e9\"\ud83d\ude00\u007f\n", "c": null}], "a": true, "e": [], "f": {}}"#,
        ),
        (
            "sort_keys=True, ensure_ascii=False",
            "{\"a\": true, \"b\": [1, {\"c\": null, \"d\": \"é\\\"😀\u{7f}\\n\"}], \"e\": [], \"f\": {}}",
        ),
        (
            "separators=(',', ':'), indent=none",
            "{\"b\":[1,{\"d\":\"é\\\"😀\u{7f}\\n\",\"c\":null}],\"a\":true,\"e\":[],\"f\":{}}",
        ),
        (
            "indent=0, separators=['; ', ' = ']",
            "{\n\"b\" = [\n1; \n{\n\"d\" = \"é\\\"😀\u{7f}\\n\"; \n\"c\" = null\n}\n]; \n\
             \"a\" = true; \n\"e\" = []; \n\"f\" = {}\n}",
        ),
        (
            "ensure_ascii=True, indent=2, sort_keys=True",
            r#"{
  "a": true,
  "b": [
    1,
    {
      "c": null,
      "d": "\u00e9\"\ud83d\ude00\u007f\n"
    }
  ],
  "e": [],
  "f": {}
}"#,
        ),
    ] {
        assert_eq!(text(arguments).expect("a text"), expected, "{arguments}");
    }
    for (arguments, expected) in [
        ("separators=[',']", "tojson: expected two separators, found 1"),
        ("indent=101", "tojson: expected an indent of at most 100, found 101"),
        ("colour=1", "colour"),
    ] {
        let error = text(arguments).expect_err(arguments).to_string();
        assert!(error.contains(expected), "expected {expected}, found {error}");
    }
}

#[derive(Deserialize)]
struct SamplingCase {
    settings: Settings,
    logits: Vec<f32>,
    text: Vec<u32>,
    probabilities: Vec<f64>,
}

#[derive(Deserialize)]
struct Settings {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
}

/// The device draws as often, too.
fn drawn_on_the_device(sampling: &Sampling, logits: &[f32], text: &[u32], probabilities: &[f64]) {
    let (rows, vocabulary, draws) = (100, logits.len(), 200);
    let device = burn_rocm::RocmDevice::default();
    let tables = SampleTables { counts: true, ..SampleTables::default() };
    let mut counts = vec![0.0; vocabulary];
    let state = SampleState::new(&device, rows, vocabulary, tables).expect("a state");
    let all = TensorData::new(logits.repeat(rows), [rows, vocabulary]);
    let all = Tensor::<burn_rocm::Rocm, 2>::from_data(all, &device).into_primitive().tensor();
    for draw in 0..draws {
        // Set again for each draw, so that none counts for the next one's penalty.
        for row in 0..rows {
            let seed = (draw * rows + row) as u64;
            state.set(row, &sampling.on_device(seed), text).expect("settings in range");
        }
        decode::sample(all.clone(), &state).expect("a draw");
        let (tokens, _) = burn_rocm::read_with_fault(state.tokens()).expect("tokens");
        tokens.iter::<i64>().for_each(|token| counts[token as usize] += 1.0);
    }
    let draws = (draws * rows) as f64;
    for (count, expected) in counts.iter().zip(probabilities) {
        let (mean, spread) = (expected * draws, (expected * draws).sqrt());
        assert!((count - mean).abs() <= 4.0 * spread + 1.0, "{sampling:?}: {count} draws, not {mean}");
    }
}

#[test]
fn tokens_are_drawn_from_the_probabilities_of_transformers() {
    let cases: Vec<SamplingCase> = read("sampling.json");
    assert_eq!(cases.len(), 10);
    for SamplingCase { settings, logits, text, probabilities } in cases {
        let sampling = Sampling {
            temperature: settings.temperature,
            top_k: settings.top_k.unwrap_or(0),
            top_p: settings.top_p.unwrap_or(1.0),
            min_p: settings.min_p.unwrap_or(0.0),
            repetition_penalty: settings.repetition_penalty.unwrap_or(1.0),
        };
        sampling.check().expect("settings in range");
        let candidates = sampling.candidates(&logits, &text);
        let mut found = vec![0.0; logits.len()];
        for &(token, probability) in &candidates {
            found[token as usize] = probability;
        }
        for (token, (found, expected)) in found.iter().zip(&probabilities).enumerate() {
            // f32 in `transformers`.
            assert!((found - expected).abs() < 2e-6, "{sampling:?}: token {token}: {found}, not {expected}");
        }
        // Drawn as often: 4 standard deviations of the counts.
        let draws = 20_000;
        let mut counts = vec![0.0; logits.len()];
        let mut rng = Rng::new(7);
        for _ in 0..draws {
            counts[sampling.next(&logits, &text, &mut rng).expect("a token") as usize] += 1.0;
        }
        for (count, expected) in counts.iter().zip(&probabilities) {
            let (mean, spread) = (expected * draws as f64, (expected * draws as f64).sqrt());
            assert!((count - mean).abs() <= 4.0 * spread + 1.0, "{sampling:?}: {count} draws, not {mean}");
        }
        drawn_on_the_device(&sampling, &logits, &text, &probabilities);
    }
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let mut rng = Rng::new(1);
    let sampling = Sampling::default();
    assert_eq!(sampling.next(&[1.0, 3.0, 3.0, f32::NAN], &[], &mut rng), Some(1));
    assert_eq!(sampling.next(&[f32::NAN, f32::NEG_INFINITY, -1e30], &[], &mut rng), Some(2));
    assert_eq!(sampling.next(&[], &[], &mut rng), None);
    let penalty = Sampling { repetition_penalty: 2.0, ..sampling };
    assert_eq!(penalty.next(&[1.0, 3.0, 2.0], &[1], &mut rng), Some(2));
    for (wrong, text) in [
        (
            Sampling { temperature: -1.0, ..Sampling::default() },
            "temperature: expected a number from 0, found -1",
        ),
        (
            Sampling { top_p: 0.0, ..Sampling::default() },
            "top-p: expected a number above 0, up to 1, found 0",
        ),
        (Sampling { min_p: 2.0, ..Sampling::default() }, "min-p: expected a number from 0 to 1, found 2"),
        (
            Sampling { repetition_penalty: f64::NAN, ..Sampling::default() },
            "repetition-penalty: expected a number above 0, found NaN",
        ),
    ] {
        assert_eq!(wrong.check().expect_err("out of range").to_string(), text);
    }
}
