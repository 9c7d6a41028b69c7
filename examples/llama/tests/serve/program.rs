//! The program itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::client::{connect, get, post, request};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llama-serve"));
    command.args(["--random", "tiny", "--context", "64", "--sequences", "2"]).args(arguments);
    command.env_remove("LLAMA_API_KEY").stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn the_program_serves_until_it_is_told_to_stop() {
    let mut child = command(&["--port", "0", "--name", "tiny"])
        .env("LLAMA_API_KEY", "secret")
        .spawn()
        .expect("the program");
    let mut lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
    let address = lines.by_ref().find_map(|line| {
        let line = line.expect("UTF-8");
        Some(line.strip_prefix("tiny at http://")?.strip_suffix("/v1")?.to_owned())
    });
    let address = address.expect("the address").parse().expect("an address");
    assert_eq!(get(address, "/v1/models").status, 401);
    let headers = ["Content-Type: application/json", "Authorization: Bearer secret"];
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).to_string();
    let answer = request(address, "POST", "/v1/chat/completions", &headers, body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.body);
    // Without a tokenizer, an answer is the tokens' numbers.
    let content = answer.json()["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    assert_eq!(content.split_whitespace().filter(|id| id.parse::<u8>().is_ok()).count(), 4, "{content}");
    assert_eq!(post(address, "/v1/completions", &json!({"prompt": "x"})).status, 401);
    if cfg!(unix) {
        let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
        assert!(child.wait().expect("its end").success());
        assert!(lines.any(|line| line.expect("UTF-8").starts_with("stopping")));
    } else {
        child.kill().expect("its end");
        child.wait().expect("its end");
    }
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_the_program_at_once() {
    let mut child = command(&["--port", "0", "--name", "tiny", "--grace", "600", "--idle", "600"])
        .spawn()
        .expect("the program");
    let mut lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
    let address = lines.by_ref().find_map(|line| {
        Some(line.expect("UTF-8").strip_prefix("tiny at http://")?.strip_suffix("/v1")?.to_owned())
    });
    // A request whose body never comes, so that the grace time would pass.
    let mut connection = connect(address.expect("the address").parse().expect("an address"));
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    connection.write_all(head.as_bytes()).expect("sent");
    // The server asks for the body, so it waits for it.
    let mut asked = [0; 12];
    connection.read_exact(&mut asked).expect("an answer");
    assert_eq!(&asked, b"HTTP/1.1 100");
    let signal = || {
        let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
    };
    signal();
    assert!(lines.by_ref().any(|line| line.expect("UTF-8").starts_with("stopping: ")));
    // It may take a moment to wait for the second.
    std::thread::sleep(Duration::from_millis(500));
    signal();
    assert!(lines.by_ref().any(|line| line.expect("UTF-8") == "stopping at once"));
    assert!(child.wait().expect("its end").success());
}

#[test]
fn a_server_for_other_machines_says_that_it_asks_for_no_key() {
    for (key, notes) in [("", 1), ("secret", 0)] {
        let mut command = command(&["--host", "0.0.0.0", "--port", "0", "--name", "tiny"]);
        if !key.is_empty() {
            command.env("LLAMA_API_KEY", key);
        }
        let mut child = command.spawn().expect("the program");
        let mut lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
        let starts = |line: &String| !line.starts_with("tiny at http://0.0.0.0:");
        let before: Vec<String> =
            lines.by_ref().map(|line| line.expect("UTF-8")).take_while(starts).collect();
        child.kill().expect("its end");
        child.wait().expect("its end");
        let found = before.iter().filter(|line| line.starts_with("note: other machines can use")).count();
        assert_eq!(found, notes, "{before:?}");
    }
}

#[test]
fn numbers_beyond_all_clocks_and_memory_are_no_limit() {
    let most = usize::MAX.to_string();
    let options = ["--idle", "--timeout", "--grace", "--connections", "--waiting", "--body-limit"];
    let options = options.iter().flat_map(|option| [*option, most.as_str()]);
    let arguments: Vec<&str> = ["--port", "0", "--name", "tiny"].into_iter().chain(options).collect();
    let mut child = command(&arguments).env("LLAMA_API_KEY", "secret").spawn().expect("the program");
    let lines = BufReader::new(child.stderr.take().expect("its messages")).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.strip_prefix("tiny at http://")?.strip_suffix("/v1")?.to_owned()));
    let status = address.map(|address| {
        let address = address.parse().expect("an address");
        let headers = ["Content-Type: application/json", "Authorization: Bearer secret"];
        let body = json!({"prompt": [1, 2], "max_tokens": 2}).to_string();
        let answer = request(address, "POST", "/v1/completions", &headers, body.as_bytes());
        [get(address, "/health").status, answer.status]
    });
    child.kill().expect("its end");
    child.wait().expect("its end");
    assert_eq!(status, Some([200, 200]));
}

/// Clients try again after 429, and not after 400.
#[test]
fn the_help_has_the_statuses_of_too_many_sequences() {
    let output = command(&["--help"]).output().expect("its output");
    let help = String::from_utf8_lossy(&output.stdout);
    let of_waiting = help.split_once("--waiting").and_then(|(_, rest)| rest.split_once("--context"));
    let of_waiting = of_waiting.map(|(text, _)| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let expected = "gets the status 429 while others take the room, and 400 if it asks for more";
    assert!(of_waiting.is_some_and(|text| text.contains(expected)), "{help}");
}

#[test]
fn errors_are_one_line() {
    let fails = |arguments: &[&str], text: &str| {
        let output = command(arguments).output().expect("its output");
        let found = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && found.contains(text) && !found.contains("panicked"), "{found}");
    };
    fails(&["--api-key", ""], "error: api-key: expected a key, found an empty text");
    fails(&["--cache-tokens", "32"], "error: context: expected 2 to 32 tokens");
    fails(
        &["--cache-tokens", "15"],
        "error: cache-tokens: expected room for a block of 16 tokens, found 15 tokens",
    );
    // Before the model is loaded.
    let output = command(&["--cache-tokens", "32"]).output().expect("its output");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("model: "));
    let output = command(&[]).env("LLAMA_API_KEY", "").output().expect("its output");
    let found = String::from_utf8_lossy(&output.stderr);
    assert!(found.contains("error: LLAMA_API_KEY: expected a key, found an empty text"), "{found}");
    fails(
        &["--host", "192.0.2.1", "--port", "8080"],
        "error: host: expected an address of this machine, found 192.0.2.1:8080",
    );
    fails(
        &["--cache-tokens", "32"],
        "expected 2 to 32 tokens, for which the cache has room (--cache-tokens), found 64",
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = command(&["--port", &port]).output().expect("its output");
    let found = String::from_utf8_lossy(&output.stderr);
    let text = format!("error: port: expected a port that no other program uses, found 127.0.0.1:{port}");
    assert!(!output.status.success() && found.contains(&text) && !found.contains("model: "), "{found}");
    #[cfg(unix)]
    {
        let key: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"caf\xe9");
        let output = command(&[]).env("LLAMA_API_KEY", key).output().expect("its output");
        let found = String::from_utf8_lossy(&output.stderr);
        assert!(found.contains("error: LLAMA_API_KEY: expected a key, found a text that is not UTF-8"));
    }
    fails(&["--waiting", "0"], "must be at least 1");
    fails(&["--idle", "0"], "0 is not in 1..");
    fails(&["--timeout", "0"], "0 is not in 1..");
    fails(&["--bench", "requests=x"], "expected a number above 0, found x");
    // More than any memory has room for.
    let most = usize::MAX.to_string();
    fails(&["--port", "0", "--cache-tokens", &most], "error: the model needs ");
    fails(
        &["--step-tokens", &most],
        "error: cache-tokens: expected room for a block of 16 tokens, found too little free memory beside",
    );
    let too_long = "error: expected a prompt and an answer of at most 64 tokens, found 1125899906842624 of";
    fails(&["--bench", "prompt=1125899906842624"], too_long);
}

#[test]
fn recommended_numbers_that_make_no_sense_are_an_error_at_the_start() {
    let folder = crate::folder::folder("recommended-numbers", None);
    let settings = folder.join("generation_config.json");
    for (field, found, expected) in [
        ("top_p", 1.5, "a number above 0, up to 1"),
        ("min_p", -0.5, "a number from 0 to 1"),
        ("temperature", -1.5, "a number from 0"),
    ] {
        std::fs::write(&settings, json!({"do_sample": true, field: found}).to_string()).expect("a file");
        // A measurement ends by itself.
        let mut command = Command::new(env!("CARGO_BIN_EXE_llama-serve"));
        command.arg("--model").arg(&folder).args(["--bench", "requests=1,prompt=4,output=2"]);
        let output = command.env_remove("LLAMA_API_KEY").output().expect("its output");
        let said = String::from_utf8_lossy(&output.stderr);
        let text = format!("error: {}: `{field}`: expected {expected}, found {found}\n", settings.display());
        assert!(!output.status.success() && said.contains(&text) && !said.contains("model: "), "{said}");
    }
}

#[test]
fn a_measurement_prints_rates() {
    // More requests than may wait otherwise.
    let output = command(&["--bench", "requests=3,prompt=20,output=6", "--dtype", "f32", "--waiting", "1"])
        .output()
        .expect("its output");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    for text in [
        "in process: 3 requests, prompts of 20 tokens, 6 tokens each: 18 tokens in ",
        "over HTTP: 3 requests, prompts of 20 tokens, 6 tokens each: 18 tokens in ",
        " tokens/s; time to the first token median ",
        "HTTP / in process: ",
    ] {
        assert!(out.contains(text), "{text} in {out}");
    }
}
