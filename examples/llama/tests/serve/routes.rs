//! Answers over HTTP.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use burn_rocm_llama::config::Generation;
use burn_rocm_llama::serve::Vocabulary;
use burn_rocm_llama::serve::api::Defaults;
use burn_rocm_llama::serve::engine::Limits;
use burn_rocm_llama::text::Tokens;
use serde_json::{Value, json};

use crate::client::{JSON, connect, connect_narrow, get, post, receive, request, send};
use crate::support::{LIMITS, NAME, Running, wait_until};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A context of 256 tokens, as the model has.
const LONG: Limits = Limits { context: 256, ..LIMITS };

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    choice["text"].as_str().or(choice["message"]["content"].as_str()).expect("a text")
}

/// The pieces of choice 0, and the last finish reason.
fn joined(events: &[&str]) -> (String, Value) {
    let (mut text, mut finish) = (String::new(), Value::Null);
    assert_eq!(events.last(), Some(&"[DONE]"));
    for event in &events[..events.len() - 1] {
        let piece: Value = serde_json::from_str(event).expect("JSON");
        for choice in piece["choices"].as_array().expect("choices") {
            if choice["index"] != 0 {
                continue;
            }
            assert!(finish.is_null(), "nothing follows the end");
            text += choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or("");
            finish = choice["finish_reason"].clone();
        }
    }
    (text, finish)
}

#[test]
fn pieces_joined_are_the_whole_text() {
    let server = Running::start("pieces", LONG, |_, _| {});
    let prompt = json!({"prompt": "Once upon a time", "max_tokens": 40});
    let messages = json!({"messages": [{"role": "user", "content": "Why?"}], "max_completion_tokens": 40});
    for (path, body) in [(COMPLETIONS, prompt), (CHAT, messages)] {
        for more in [json!({"temperature": 0}), json!({"temperature": 1.5, "seed": 7})] {
            let body = with(body.clone(), more);
            let whole = post(server.address, path, &body);
            assert_eq!(whole.status, 200, "{}", whole.body);
            let whole = whole.json();
            assert_eq!(whole["model"], NAME);
            assert_eq!(whole["choices"][0]["finish_reason"], "length");
            assert_eq!(whole["usage"]["completion_tokens"], 40);
            assert!(!text(&whole).is_empty());
            // The seed, or none, repeats.
            assert_eq!(text(&post(server.address, path, &body).json()), text(&whole));
            let options = json!({"stream": true, "stream_options": {"include_usage": true}});
            let pieces = post(server.address, path, &with(body, options));
            let events = pieces.events();
            assert_eq!(joined(&events), (text(&whole).to_owned(), json!("length")));
            let last: Value = serde_json::from_str(events[events.len() - 2]).expect("JSON");
            assert_eq!(last["choices"], json!([]));
            assert_eq!(last["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
            assert!(events.len() > 20, "many pieces");
            for event in &events[..events.len() - 2] {
                let piece: Value = serde_json::from_str(event).expect("JSON");
                assert_eq!(piece.get("usage"), Some(&Value::Null), "{event}");
            }
        }
    }
    // The least probability keeps the most likely token alone.
    let body = json!({"prompt": "Once", "max_tokens": 40, "temperature": 2, "top_p": 0});
    let greedy = json!({"prompt": "Once", "max_tokens": 40, "temperature": 0});
    let texts = [body, greedy].map(|body| text(&post(server.address, COMPLETIONS, &body).json()).to_owned());
    assert_eq!(texts[0], texts[1]);
    // So does what the model's authors recommend.
    let generation = Generation { sample: true, top_k: Some(0), top_p: Some(0.0), ..Generation::default() };
    let defaults = Defaults::new(&generation);
    let recommending = Running::start("recommended", LONG, |server, _| server.defaults = defaults);
    let body = json!({"prompt": "Once", "max_tokens": 40, "temperature": 2});
    let answer = post(recommending.address, COMPLETIONS, &body);
    assert_eq!((answer.status, text(&answer.json())), (200, &*texts[0]), "{}", answer.body);
    recommending.join();
    // Without a seed, two texts differ.
    let body = json!({"prompt": "Once", "max_tokens": 40, "temperature": 2});
    let texts = [(); 2].map(|()| text(&post(server.address, COMPLETIONS, &body).json()).to_owned());
    assert_ne!(texts[0], texts[1]);
    server.join();
}

#[test]
fn stop_strings_end_a_text_wherever_tokens_end() {
    let server = Running::start("stops", LONG, |_, _| {});
    let body = json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0});
    let whole = text(&post(server.address, COMPLETIONS, &body).json()).to_owned();
    let letters: Vec<(usize, char)> = whole.char_indices().collect();
    // Three letters from the middle, which lie in one token or in several.
    for middle in [letters.len() / 3, letters.len() / 2] {
        let stop = &whole[letters[middle].0..letters[middle + 3].0];
        let expected = &whole[..whole.find(stop).expect("it is there")];
        let body = with(body.clone(), json!({"stop": ["~~~", stop]}));
        let found = post(server.address, COMPLETIONS, &body).json();
        assert_eq!(text(&found), expected, "{stop:?} in {whole:?}");
        assert_eq!(found["choices"][0]["finish_reason"], "stop");
        assert!(found["usage"]["completion_tokens"].as_u64() < Some(60));
        let pieces = post(server.address, COMPLETIONS, &with(body, json!({"stream": true})));
        assert_eq!(joined(&pieces.events()), (expected.to_owned(), json!("stop")));
    }
    wait_until("no sequence runs", || server.engine.metrics().running.load(Relaxed) == 0);
    // A text that has ended is not cancelled.
    assert_eq!(server.engine.metrics().cancelled.load(Relaxed), 0);
    server.join();
}

#[test]
fn answers_have_choices_prompts_and_probabilities() {
    let server = Running::start("choices", LONG, |_, _| {});
    let body = json!({
        "prompt": ["Once", [5, 6, 7]], "n": 2, "max_tokens": 5, "temperature": 1, "seed": 1, "logprobs": 2,
    });
    let answer = post(server.address, COMPLETIONS, &body).json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(
        choices.iter().map(|choice| choice["index"].as_u64()).collect::<Vec<_>>(),
        [0, 1, 2, 3].map(Some)
    );
    for choice in choices {
        let list = |name: &str| choice["logprobs"][name].as_array().cloned().unwrap_or_default();
        for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(list(name).len(), 5, "{name}: {choice}");
        }
        assert!(list("token_logprobs")[0].as_f64() <= Some(0.0));
        for (best, drawn) in list("top_logprobs").iter().zip(list("token_logprobs")) {
            // Two tokens may have the same text.
            let best = best.as_object().expect("an object");
            assert!((1..=2).contains(&best.len()));
            // No token is likelier than the most likely one, which is there.
            let drawn = drawn.as_f64().expect("a number");
            let most = best.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
            assert!(drawn <= most, "{choice}");
        }
    }
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    // Other choices have their prompt from the first, which saves no token of the request's prompt.
    let details = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(details(&answer), 0);
    let again = json!({"prompt": vec![9; 40], "n": 3, "max_tokens": 2});
    for reused in [0, 32] {
        let answer = post(server.address, COMPLETIONS, &again).json();
        assert_eq!((details(&answer), &answer["usage"]["prompt_tokens"]), (json!(reused), &json!(40)));
    }

    let parts = json!([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]);
    let body = json!({
        "messages": [{"role": "developer", "content": parts},
                     {"role": "user", "content": "Why?", "name": "me"},
                     {"role": "assistant", "content": "So.", "refusal": null},
                     {"role": "user", "content": "Why?"}],
        "max_tokens": 4, "temperature": 0, "logprobs": true, "top_logprobs": 3, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "user": "x", "metadata": {"a": "b"}, "model": NAME,
    });
    let answer = post(server.address, CHAT, &body).json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(content.len(), 4);
    for token in content {
        let best = token["top_logprobs"].as_array().expect("an array");
        assert_eq!(best.len(), 3);
        // The most likely token was taken.
        assert_eq!((&token["token"], &token["logprob"]), (&best[0]["token"], &best[0]["logprob"]));
    }
    // In pieces, all tokens too.
    let pieces = post(server.address, CHAT, &with(body, json!({"stream": true})));
    let events = pieces.events();
    let pieces =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str::<Value>(event).expect("JSON"));
    let tokens: Vec<Value> = pieces
        .flat_map(|piece| piece["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    let token = |entry: &Value| entry["token"].clone();
    assert_eq!(tokens.iter().map(token).collect::<Vec<_>>(), content.iter().map(token).collect::<Vec<_>>());
    for (one, other) in tokens.iter().zip(content) {
        // The prompt was in the cache, so its last token ran alone: logits in f32 differ by up to
        // 1e-4.
        let logprob = |entry: &Value| entry["logprob"].as_f64().expect("a number");
        assert!((logprob(one) - logprob(other)).abs() < 2e-4, "{one} {other}");
    }
    server.join();
}

/// Tokens as SentencePiece's models have them, all of which but two begin a word. The decoder
/// leaves out the space at a text's start.
fn words() -> Vocabulary {
    let mut pieces: serde_json::Map<String, Value> =
        (0..418).map(|id| (format!("\u{2581}w{id}"), json!(id))).collect();
    pieces.extend([("a".to_owned(), json!(418)), ("<unk>".to_owned(), json!(419))]);
    let file = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": null, "post_processor": null,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "vocab": pieces, "merges": [], "unk_token": "<unk>"},
    });
    Vocabulary(Some(Tokens::of_json(Path::new("words"), &file.to_string()).expect("a tokenizer")))
}

#[test]
fn a_completion_goes_on_behind_its_prompt_and_tokens_have_their_spaces() {
    let server = Running::start("spaces", LONG, |server, _| server.vocabulary = words());
    let body = json!({"prompt": [[5, 6], [9]], "max_tokens": 8, "temperature": 1, "seed": 3, "logprobs": 4});
    let answer = post(server.address, COMPLETIONS, &body).json();
    for choice in answer["choices"].as_array().expect("choices") {
        let text = choice["text"].as_str().expect("a text");
        assert!(text.starts_with(" w"), "{text:?}");
        let logprobs = &choice["logprobs"];
        let tokens = logprobs["tokens"].as_array().expect("tokens");
        assert_eq!(tokens.iter().map(|token| token.as_str().expect("a text")).collect::<String>(), text);
        for (token, offset) in tokens.iter().zip(logprobs["text_offset"].as_array().expect("offsets")) {
            let offset = offset.as_u64().expect("a number") as usize;
            assert!(text[offset..].starts_with(token.as_str().expect("a text")), "{choice}");
        }
        let best = logprobs["top_logprobs"][0].as_object().expect("an object");
        assert!(best.len() == 4 && best.keys().all(|token| token.starts_with(" w")), "{best:?}");
    }
    // An answer in a conversation is a text of its own.
    let body = json!({"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4, "seed": 3});
    let answer = post(server.address, CHAT, &body).json();
    assert!(text(&answer).starts_with('w'), "{answer}");
    server.join();
}

/// Byte-level tokens, each of which ends or begins within \u{e9} (0xC3 0xA9): letters of its own and
/// the first byte, or the second byte and letters of its own.
fn halves() -> Vocabulary {
    let piece = |id: u32| if id.is_multiple_of(2) { format!("x{id}\u{c3}") } else { format!("\u{a9}y{id}") };
    let pieces: serde_json::Map<String, Value> = (0..420).map(|id| (piece(id), json!(id))).collect();
    let file = json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": pieces, "merges": []},
    });
    Vocabulary(Some(Tokens::of_json(Path::new("halves"), &file.to_string()).expect("a tokenizer")))
}

#[test]
fn offsets_count_whole_characters() {
    let server = Running::start("offsets", LONG, |server, _| server.vocabulary = halves());
    // The prompts end with whole characters.
    let prompts = json!([[4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]);
    let body = json!({"prompt": prompts, "max_tokens": 32, "temperature": 2, "seed": 3, "logprobs": 0});
    let answer = post(server.address, COMPLETIONS, &body).json();
    let (mut joined, mut broken) = (0, 0);
    for choice in answer["choices"].as_array().expect("choices") {
        let text = choice["text"].as_str().expect("a text");
        let logprobs = &choice["logprobs"];
        let tokens = logprobs["tokens"].as_array().expect("tokens");
        let offsets = logprobs["text_offset"].as_array().expect("offsets");
        assert_eq!((tokens.len(), offsets.len()), (32, 32));
        for (token, offset) in tokens.iter().zip(offsets) {
            let offset = offset.as_u64().expect("a number") as usize;
            let rest: String = text.chars().skip(offset).collect();
            let token = token.as_str().expect("a text");
            let whole = token.trim_matches(char::REPLACEMENT_CHARACTER);
            // A token with the second byte has the offset of the character, whole or not.
            let rest = if token.starts_with('x') {
                &rest[..]
            } else if let Some(rest) = rest.strip_prefix('\u{e9}') {
                joined += 1;
                rest
            } else {
                broken += 1;
                rest.strip_prefix(char::REPLACEMENT_CHARACTER).expect("a byte that is no character")
            };
            assert!(rest.starts_with(whole), "{token:?} at {offset} of {text:?}");
        }
    }
    assert!(joined > 0 && broken > 0, "{joined} characters of two tokens, {broken} bytes without another");
    server.join();
}

#[test]
fn models_health_and_metrics() {
    let server = Running::start("metrics", LONG, |_, _| {});
    let models = get(server.address, "/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!(NAME)));
    assert_eq!(get(server.address, "/v1/models/small").json()["id"], NAME);
    assert_eq!(get(server.address, "/v1/models/other/name").status, 404);
    assert_eq!(get(server.address, "/health").json(), json!({"status": "ok"}));
    let prompt = "a prompt of more than one block of the cache, which the second request shares";
    let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0});
    let first = post(server.address, COMPLETIONS, &body).json();
    let second = post(server.address, COMPLETIONS, &body).json();
    let reused = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(reused(&first), 0);
    assert!(reused(&second) >= 16 && reused(&second) % 16 == 0);
    assert_eq!(post(server.address, CHAT, &json!({})).status, 400);
    let metrics = get(server.address, "/metrics");
    assert!(metrics.head.contains("text/plain; version=0.0.4"), "{}", metrics.head);
    let value = |name: &str| -> f64 {
        let line = metrics.body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {}", metrics.body)).parse().expect("a number")
    };
    assert_eq!(value("llama_requests_total{route=\"/v1/completions\",status=\"200\"}"), 2.0);
    assert_eq!(value("llama_requests_total{route=\"/v1/chat/completions\",status=\"400\"}"), 1.0);
    assert_eq!(value("llama_generated_tokens_total"), 6.0);
    assert_eq!(value("llama_reused_tokens_total"), reused(&second) as f64);
    assert_eq!(value("llama_time_to_first_token_seconds_count"), 2.0);
    assert_eq!(value("llama_time_between_tokens_seconds_count"), 4.0);
    assert_eq!(value("llama_blocks"), 96.0);
    server.join();
}

#[test]
fn clients_that_hang_up_free_their_sequences() {
    let server = Running::start("hang-ups", LONG, |_, _| {});
    let metrics = server.engine.metrics().clone();
    for stream in [false, true] {
        let before = metrics.cancelled.load(Relaxed);
        let body = json!({"prompt": "Once", "max_tokens": 250, "n": 4, "stream": stream});
        let mut connection = connect(server.address);
        send(&mut connection, "POST", COMPLETIONS, &[JSON], body.to_string().as_bytes());
        wait_until("four that run", || metrics.running.load(Relaxed) == 4);
        drop(connection);
        wait_until("none that runs", || metrics.running.load(Relaxed) == 0);
        assert_eq!(metrics.cancelled.load(Relaxed), before + 4, "stream: {stream}");
    }
    wait_until("no block but those kept", || {
        metrics.blocks_used.load(Relaxed) == metrics.blocks_kept.load(Relaxed)
    });
    server.join();
}

#[test]
fn a_client_that_reads_nothing_stops_nobody() {
    // The answer is longer than what the connection, the server's queue of pieces and hyper's hold, so
    // the server waits for the reader.
    let server = Running::narrow("slow", Limits { rows: 2, ..LONG }, |_, serving| {
        serving.idle = Duration::from_secs(600);
    });
    let body = json!({"prompt": "Once", "max_tokens": 250, "stream": true, "logprobs": 20, "temperature": 0});
    let mut slow = connect_narrow(server.address);
    send(&mut slow, "POST", COMPLETIONS, &[JSON], body.to_string().as_bytes());
    let whole = post(server.address, COMPLETIONS, &with(body.clone(), json!({"stream": false}))).json();
    for _ in 0..3 {
        let other = json!({"prompt": "Twice", "max_tokens": 20});
        assert_eq!(post(server.address, COMPLETIONS, &other).status, 200);
    }
    // Its sequence does not wait for it either.
    wait_until("no sequence runs", || server.engine.metrics().running.load(Relaxed) == 0);
    let pieces = receive(&mut slow);
    // Two buffers of 32 KiB, and 32 pieces of less than 1 KiB.
    assert!(pieces.body.len() > 100_000, "{} bytes", pieces.body.len());
    assert_eq!(joined(&pieces.events()).0, text(&whole));
    server.join();
}

#[test]
fn a_key_is_asked_for_where_models_are() {
    let server = Running::start("key", LONG, |server, _| server.key = Some("secret".to_owned()));
    let body = json!({"prompt": "Once", "max_tokens": 2}).to_string();
    for (header, status) in [
        (None, 401),
        (Some("Authorization: Bearer wrong!"), 401),
        (Some("Authorization: Bearer secret2"), 401),
        (Some("Authorization: Bearer "), 401),
        (Some("Authorization: Bear"), 401),
        (Some("Authorization: Basic secret"), 401),
        (Some("Authorization: Bearer secret"), 200),
        (Some("authorization: bearer secret"), 200),
    ] {
        let headers: Vec<&str> = [JSON].into_iter().chain(header).collect();
        for path in [COMPLETIONS, "/v1/models", "/v1/models/small"] {
            let method = if path == COMPLETIONS { "POST" } else { "GET" };
            let response = request(server.address, method, path, &headers, body.as_bytes());
            assert_eq!(response.status, status, "{path} {header:?}");
            if status == 401 {
                assert_eq!(response.json()["error"]["code"], "invalid_api_key");
            }
        }
    }
    assert_eq!(get(server.address, "/health").status, 200);
    server.join();
}

#[test]
fn a_server_of_this_machine_refuses_other_hosts() {
    for (local, key, host, status) in [
        (true, None, "evil.example:8000", 403),
        (true, None, "localhost:8000", 200),
        (true, None, "127.0.0.1", 200),
        (true, Some("secret"), "evil.example", 200),
        (false, None, "evil.example", 200),
    ] {
        let server = Running::start("hosts", LONG, |server, _| {
            (server.local, server.key) = (local, key.map(str::to_owned));
        });
        let body = json!({"prompt": "Once", "max_tokens": 1}).to_string();
        for (method, path) in [("POST", COMPLETIONS), ("GET", "/v1/models")] {
            let mut connection = connect(server.address);
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{JSON}\r\n\
                 Authorization: Bearer secret\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            std::io::Write::write_all(&mut connection, head.as_bytes()).expect("sent");
            assert_eq!(receive(&mut connection).status, status, "{local} {key:?} {host} {path}");
        }
        server.join();
    }
}

#[test]
fn too_many_requests_are_told_when_to_come_back() {
    let server = Running::start("busy", Limits { rows: 1, waiting: 1, ..LONG }, |_, _| {});
    let metrics = server.engine.metrics().clone();
    let long = json!({"prompt": "Once", "max_tokens": 250, "stream": true}).to_string();
    let mut connections = [connect(server.address), connect(server.address)];
    for (index, connection) in connections.iter_mut().enumerate() {
        send(connection, "POST", COMPLETIONS, &[JSON], long.as_bytes());
        wait_until("it is there", || {
            metrics.running.load(Relaxed) + metrics.waiting.load(Relaxed) == index + 1
        });
        wait_until("one runs", || metrics.running.load(Relaxed) == 1);
    }
    let refused = post(server.address, COMPLETIONS, &json!({"prompt": "Once"}));
    assert_eq!(refused.status, 429);
    assert!(refused.head.to_ascii_lowercase().contains("retry-after: 1"), "{}", refused.head);
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    // Waiting would never make room for this one, so a client must not retry it, as it would after 429.
    let too_many = post(server.address, COMPLETIONS, &json!({"prompt": "Once", "n": 2}));
    assert_eq!((too_many.status, &too_many.json()["error"]["type"]), (400, &json!("invalid_request_error")));
    server.join();
}

#[test]
fn slow_clients_and_long_answers_end() {
    let server = Running::start("timeouts", Limits { rows: 1, ..LONG }, |server, serving| {
        server.slow = Duration::from_secs(2);
        server.timeout = Duration::from_millis(600);
        serving.idle = Duration::from_secs(2);
    });
    // A head that never ends.
    let mut connection = connect(server.address);
    std::io::Write::write_all(&mut connection, b"POST /v1/completions HTTP/1.1\r\nHost: x").expect("sent");
    let mut rest = Vec::new();
    let _ = connection.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("200"), "{rest:?}");
    // A body that never comes.
    let mut connection = connect(server.address);
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{JSON}\r\nContent-Length: 9\r\n\r\n"
    );
    std::io::Write::write_all(&mut connection, head.as_bytes()).expect("sent");
    let response = receive(&mut connection);
    assert_eq!((response.status, &response.json()["error"]["code"]), (408, &json!("request_timeout")));
    // An answer that waits for another's end.
    let long = json!({"prompt": "Once", "max_tokens": 250, "n": 48});
    let response = post(server.address, COMPLETIONS, &long);
    assert_eq!(
        (response.status, &response.json()["error"]["code"]),
        (504, &json!("timeout")),
        "{}",
        response.body
    );
    let metrics = server.engine.metrics().clone();
    wait_until("its sequences are gone", || {
        metrics.running.load(Relaxed) + metrics.waiting.load(Relaxed) == 0
    });
    let response = post(server.address, COMPLETIONS, &with(long, json!({"stream": true})));
    assert_eq!(response.status, 200);
    let last: Value = serde_json::from_str(response.events().last().expect("an event")).expect("JSON");
    assert_eq!(last["error"]["code"], "timeout");
    wait_until("none that runs", || metrics.running.load(Relaxed) == 0);
    server.join();
}

#[test]
fn a_server_that_stops_finishes_its_answers() {
    let mut server = Running::start("grace", LONG, |_, _| {});
    let body = json!({"prompt": "Once", "max_tokens": 100, "stream": true, "temperature": 0});
    let mut connection = connect(server.address);
    send(&mut connection, "POST", COMPLETIONS, &[JSON], body.to_string().as_bytes());
    wait_until("it runs", || server.engine.metrics().running.load(Relaxed) == 1);
    server.stop();
    let address = server.address;
    wait_until("new connections are refused", || std::net::TcpStream::connect(address).is_err());
    assert_eq!(joined(&receive(&mut connection).events()).1, json!("length"));
    server.join();
}
