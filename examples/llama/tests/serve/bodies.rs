//! Requests that make no sense.

use burn_rocm_llama::Rng;
use serde_json::{Value, json};

use crate::client::{JSON, connect, get, post, receive, request, send};
use crate::support::{LIMITS, Running};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

#[test]
fn each_wrong_field_is_named() {
    let server = Running::start("bodies", LIMITS, |_, _| {});
    let user = json!([{"role": "user", "content": "x"}]);
    let completions = [
        (json!([]), Value::Null, "expected a JSON object, found an array"),
        (json!({}), json!("prompt"), "`prompt`: expected a string"),
        (json!({"prompt": []}), json!("prompt"), "`prompt`: expected"),
        (json!({"prompt": [[]]}), json!("prompt"), "`prompt`: expected"),
        (json!({"prompt": [1.5]}), json!("prompt"), "`prompt`: expected"),
        (json!({"prompt": [-1]}), json!("prompt"), "`prompt`: expected"),
        (json!({"prompt": [1, "a"]}), json!("prompt"), "`prompt`: expected"),
        (json!({"prompt": {"a": 1}}), json!("prompt"), "`prompt`: expected"),
        (json!({"prompt": [420]}), Value::Null, "expected token ids below 420, found 420"),
        (json!({"prompt": "x", "max_tokens": 0}), json!("max_tokens"), "a whole number from 1, found 0"),
        (json!({"prompt": "x", "max_tokens": "9"}), json!("max_tokens"), "found a string"),
        (json!({"prompt": "x", "max_tokens": -1}), json!("max_tokens"), "found -1"),
        (json!({"prompt": "x", "max_tokens": 1e30}), json!("max_tokens"), "found 1e"),
        (json!({"prompt": "x", "temperature": 2.5}), json!("temperature"), "a number from 0 to 2, found 2.5"),
        (json!({"prompt": "x", "temperature": true}), json!("temperature"), "found true"),
        (json!({"prompt": "x", "top_p": 1.5}), json!("top_p"), "from 0 to 1, found 1.5"),
        (json!({"prompt": "x", "min_p": 2}), json!("min_p"), "found 2"),
        (json!({"prompt": "x", "top_k": -1}), json!("top_k"), "found -1"),
        (json!({"prompt": "x", "presence_penalty": 3}), json!("presence_penalty"), "from -2 to 2, found 3"),
        (json!({"prompt": "x", "frequency_penalty": "a"}), json!("frequency_penalty"), "found a string"),
        (json!({"prompt": "x", "repetition_penalty": 0}), json!("repetition_penalty"), "found 0"),
        (json!({"prompt": "x", "n": 0}), json!("n"), "from 1 to 128, found 0"),
        (json!({"prompt": vec!["x"; 65], "n": 2}), json!("n"), "at most 128 answers"),
        (json!({"prompt": "x", "seed": 1.5}), json!("seed"), "found 1.5"),
        (json!({"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}), json!("stop"), "found 5 strings"),
        (json!({"prompt": "x", "stop": ""}), json!("stop"), "1 empty"),
        (json!({"prompt": "x", "stop": [1]}), json!("stop"), "found 1"),
        (json!({"prompt": "x", "stop": {}}), json!("stop"), "found an object"),
        (json!({"prompt": "x", "stream": 1}), json!("stream"), "true or false, found 1"),
        (json!({"prompt": "x", "stream_options": {}}), json!("stream_options"), "needs `stream`"),
        (
            json!({"prompt": "x", "stream": true, "stream_options": {"include_usage": 1}}),
            json!("stream_options.include_usage"),
            "found 1",
        ),
        (json!({"prompt": "x", "stream": true, "stream_options": 1}), json!("stream_options"), "an object"),
        (json!({"prompt": "x", "logprobs": 21}), json!("logprobs"), "from 0 to 20, found 21"),
        (json!({"prompt": "x", "echo": true}), json!("echo"), "not supported"),
        (json!({"prompt": "x", "suffix": "y"}), json!("suffix"), "not supported"),
        (json!({"prompt": "x", "best_of": 3}), json!("best_of"), "not supported"),
        (json!({"prompt": "x", "logit_bias": {"5": 1}}), json!("logit_bias"), "not supported"),
        (json!({"prompt": "x", "store": true}), json!("store"), "not supported"),
        (
            json!({"prompt": "x", "colour": "red"}),
            json!("colour"),
            "Unrecognized request argument supplied: colour",
        ),
        (json!({"prompt": "x", "messages": user}), json!("messages"), "Unrecognized"),
        (json!({"prompt": "x", "model": 1}), json!("model"), "a string, found 1"),
    ];
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let chats = [
        (json!({}), json!("messages"), "at least one message"),
        (json!({"messages": []}), json!("messages"), "at least one message"),
        (json!({"messages": "hi"}), json!("messages"), "an array"),
        (json!({"messages": [1]}), json!("messages[0]"), "an object, found a number"),
        (json!({"messages": [{"content": "x"}]}), json!("messages[0].role"), "found nothing"),
        (
            json!({"messages": [{"role": "pirate", "content": "x"}]}),
            json!("messages[0].role"),
            "found pirate",
        ),
        (
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            json!("messages[0].role"),
            "tool calls are not supported",
        ),
        (json!({"messages": [{"role": "user"}]}), json!("messages[0].content"), "a string"),
        (json!({"messages": [{"role": "user", "content": 5}]}), json!("messages[0].content"), "a string"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            json!("messages[0].content[0]"),
            "a part of type \"text\", found \"image_url\": images and sound are not supported",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            json!("messages[0].content[0]"),
            "found one without a text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "colour": 1}]}]}),
            json!("messages[0].content[0].colour"),
            "Unrecognized",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}),
            json!("messages[0].mood"),
            "Unrecognized",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "x", "tool_calls": tool}]}),
            json!("messages[0].tool_calls"),
            "tool calls are not supported",
        ),
        (json!({"messages": user, "tools": tool}), json!("tools"), "tool calls are not supported"),
        (
            json!({"messages": user, "tool_choice": "required"}),
            json!("tool_choice"),
            "tool calls are not supported",
        ),
        (
            json!({"messages": user, "response_format": {"type": "json_schema", "json_schema": {}}}),
            json!("response_format"),
            "JSON schemas are not supported",
        ),
        (
            json!({"messages": user, "response_format": {"type": "json_object"}}),
            json!("response_format"),
            "JSON schemas are not supported",
        ),
        (json!({"messages": user, "modalities": ["text", "audio"]}), json!("modalities"), "not supported"),
        (json!({"messages": user, "top_logprobs": 2}), json!("top_logprobs"), "needs `logprobs`"),
        (json!({"messages": user, "logprobs": true, "top_logprobs": 21}), json!("top_logprobs"), "found 21"),
        (json!({"messages": user, "logprobs": 3}), json!("logprobs"), "true or false"),
        (json!({"messages": user, "prompt": "x"}), json!("prompt"), "Unrecognized"),
    ];
    let all = completions.iter().map(|case| (COMPLETIONS, case)).chain(chats.iter().map(|case| (CHAT, case)));
    for (path, (body, param, text)) in all {
        let response = post(server.address, path, body);
        let error = &response.json()["error"];
        assert_eq!(response.status, 400, "{body}: {error}");
        assert_eq!(
            (&error["param"], &error["type"]),
            (param, &json!("invalid_request_error")),
            "{body}: {error}"
        );
        assert!(error["message"].as_str().is_some_and(|found| found.contains(text)), "{body}: {error}");
    }
    server.join();
}

#[test]
fn each_wrong_request_has_its_status() {
    let server = Running::start("statuses", LIMITS, |_, _| {});
    let address = server.address;
    let code = |status: u16, response: crate::client::Response| {
        assert_eq!(response.status, status, "{}", response.body);
        response.json()["error"]["code"].clone()
    };
    assert_eq!(code(404, get(address, "/v1/nothing")), "unknown_url");
    assert_eq!(code(404, get(address, "/")), "unknown_url");
    assert_eq!(code(405, get(address, COMPLETIONS)), "method_not_supported");
    assert_eq!(code(405, request(address, "DELETE", "/v1/models", &[], b"")), "method_not_supported");
    let other = json!({"prompt": "x", "model": "gpt-9"});
    assert_eq!(code(404, post(address, COMPLETIONS, &other)), "model_not_found");
    let long = post(address, COMPLETIONS, &json!({"prompt": "x", "max_tokens": 128}));
    assert!(long.body.contains("maximum context length is 128 tokens"), "{}", long.body);
    assert_eq!(code(400, long), "context_length_exceeded");
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(200)}]});
    assert_eq!(code(400, post(address, CHAT, &long)), "context_length_exceeded");
    let body = json!({"prompt": "x".repeat(1 << 17)});
    assert_eq!(code(413, post(address, COMPLETIONS, &body)), "request_too_large");
    let body = br#"{"prompt": "x", "max_tokens": 1}"#;
    let typed = |kind: &str| request(address, "POST", COMPLETIONS, &[&format!("Content-Type: {kind}")], body);
    // What a page of another site can send without asking.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        assert_eq!(code(415, typed(kind)), Value::Null);
    }
    assert_eq!(request(address, "POST", COMPLETIONS, &[], body).status, 415);
    assert_eq!(typed("application/json; charset=utf-8").status, 200);
    assert_eq!(typed("Application/JSON").status, 200);
    for body in ["", "{", "nul", "\"text\"", "{\"prompt\": \"x\"} more", &"[".repeat(60_000)] {
        let response = request(address, "POST", COMPLETIONS, &[JSON], body.as_bytes());
        assert_eq!(response.status, 400, "{body:.20}: {}", response.body);
    }
    assert_eq!(request(address, "POST", COMPLETIONS, &[JSON], b"{\"prompt\": \"\xff\"}").status, 400);
    server.join();
}

#[test]
fn a_model_without_a_template_says_so() {
    let server = Running::start("no-template", LIMITS, |server, _| server.chat = None);
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let response = post(server.address, CHAT, &body);
    assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!("messages")));
    assert!(response.body.contains("no chat template"), "{}", response.body);
    server.join();
}

/// Values of every kind, in places where others belong.
fn any(rng: &mut Rng, depth: usize) -> Value {
    let numbers =
        [json!(0), json!(-1), json!(1), json!(7), json!(0.5), json!(1e300), json!(u64::MAX), json!(i64::MIN)];
    let texts = ["", "x", "user", "text", "\u{0}", "é\u{1f600}", "auto", "~"];
    let one = |rng: &mut Rng, of: usize| (rng.bits() % of as u64) as usize;
    match rng.bits() % if depth == 0 { 5 } else { 7 } {
        0 => Value::Null,
        1 => json!(rng.bits().is_multiple_of(2)),
        2 | 3 => numbers[one(rng, numbers.len())].clone(),
        4 => json!(texts[one(rng, texts.len())]),
        5 => (0..rng.bits() % 4).map(|_| any(rng, depth - 1)).collect(),
        _ => {
            let names = ["role", "content", "type", "text", "include_usage", "5"];
            let map: serde_json::Map<_, _> = (0..rng.bits() % 4)
                .map(|_| (names[one(rng, names.len())].to_owned(), any(rng, depth - 1)))
                .collect();
            Value::Object(map)
        }
    }
}

#[test]
fn no_body_ends_the_server() {
    let server = Running::start("fuzz", LIMITS, |_, _| {});
    let seed = std::env::var("BURN_ROCM_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut rng = Rng::new(seed);
    let names = [
        "model",
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "tools",
        "response_format",
        "user",
        "suffix",
    ];
    let (mut statuses, good) = (
        std::collections::BTreeMap::new(),
        [
            (COMPLETIONS, json!({"prompt": "x", "max_tokens": 2})),
            (CHAT, json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})),
        ],
    );
    for _ in 0..400 {
        let (path, mut body) = good[(rng.bits() % 2) as usize].clone();
        for _ in 0..1 + rng.bits() % 3 {
            let name = names[(rng.bits() % names.len() as u64) as usize];
            body[name] = any(&mut rng, 3);
        }
        let mut bytes = body.to_string().into_bytes();
        // Some are no JSON any more.
        if rng.bits().is_multiple_of(4) {
            let at = (rng.bits() % bytes.len() as u64) as usize;
            bytes[at] = rng.bits() as u8;
        }
        let mut connection = connect(server.address);
        send(&mut connection, "POST", path, &[JSON], &bytes);
        let status = receive(&mut connection).status;
        assert!([200, 400, 404].contains(&status), "{status}: {}", String::from_utf8_lossy(&bytes));
        *statuses.entry(status).or_insert(0) += 1;
    }
    println!("{statuses:?}");
    assert!(statuses.get(&200).is_some_and(|&count| count > 10) && statuses[&400] > 100, "{statuses:?}");
    assert!(server.engine.is_alive());
    server.join();
}
