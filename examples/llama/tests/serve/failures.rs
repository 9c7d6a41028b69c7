//! Readers that take nothing, too many connections, and a device that fails.

use std::io::{ErrorKind, Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use burn_rocm_llama::serve::engine::Limits;
use serde_json::json;

use crate::client::{JSON, connect, connect_narrow, get, post, receive, send};
use crate::support::{LIMITS, Running, wait_until};

const COMPLETIONS: &str = "/v1/completions";
/// What a client sees first of an answer.
const FINE: &[u8; 12] = b"HTTP/1.1 200";

/// A context of 256 tokens, as the model has.
const LONG: Limits = Limits { context: 256, ..LIMITS };

#[test]
fn a_reader_that_takes_nothing_is_cut_off() {
    // A request's head must come within this time, too.
    let idle = Duration::from_secs(5);
    let server = Running::narrow("stalled", LONG, |_, serving| {
        (serving.idle, serving.connections) = (idle, 1);
    });
    let start = Instant::now();
    let mut stalled = connect_narrow(server.address);
    let body = json!({"prompt": "Once", "max_tokens": 250, "stream": true, "logprobs": 20, "temperature": 0});
    send(&mut stalled, "POST", COMPLETIONS, &[JSON], body.to_string().as_bytes());
    let mut first = [0; FINE.len()];
    stalled.read_exact(&mut first).expect("the answer begins");
    assert_eq!(&first, FINE);
    // The only place is free again when the server has ended the other connection.
    assert_eq!(get(server.address, "/health").status, 200);
    assert!(start.elapsed() >= idle, "{:?}", start.elapsed());
    let mut rest = Vec::new();
    // The system may drop what it holds, and report that.
    let _ = stalled.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("[DONE]"), "the whole answer in {} bytes", rest.len());
    server.join();
}

#[test]
fn more_connections_than_the_limit_wait() {
    let server = Running::start("connections", LONG, |_, serving| serving.connections = 2);
    let held = [(); 2].map(|()| {
        let mut connection = connect(server.address);
        // Stays open behind its answer.
        connection.write_all(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n").expect("sent");
        let mut first = [0; FINE.len()];
        connection.read_exact(&mut first).expect("an answer");
        assert_eq!(&first, FINE);
        connection
    });
    let mut third = connect(server.address);
    send(&mut third, "GET", "/health", &[], b"");
    third.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let early = third.read(&mut [0]).map_err(|why| why.kind());
    assert!(matches!(early, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{early:?}");
    third.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let [one, other] = held;
    drop(one);
    assert_eq!(receive(&mut third).status, 200);
    drop(other);
    server.join();
}

/// A process reads once which call fails.
#[test]
#[ignore = "run by the test below, with the call that is to fail in the environment"]
fn one_answer() {
    let launches = || hip::Device::get(0).expect("a device").counters().launches;
    let server = Running::start("failing", LONG, |_, _| {});
    assert_eq!(get(server.address, "/health").status, 200);
    let before = launches();
    let body = json!({"prompt": "Once", "max_tokens": 100, "temperature": 0});
    let answer = post(server.address, COMPLETIONS, &body);
    let after = launches();
    if std::env::var_os("BURN_ROCM_CPU_FAIL").is_some() {
        assert_eq!(answer.status, 500, "{}", answer.body);
        assert!(answer.body.contains("the model's device has failed"), "{}", answer.body);
        wait_until("the engine's end", || !server.engine.is_alive());
        // Other requests are refused at once.
        assert_eq!(post(server.address, COMPLETIONS, &body).status, 503);
    }
    let health = get(server.address, "/health");
    println!("\nlaunches {before} {after}\nhealth {} {}", health.status, health.body);
    match server.end() {
        Ok(()) => println!("no error"),
        Err(error) => println!("error {error}"),
    }
}

#[test]
fn health_says_that_the_device_has_failed() {
    let run = |fail: Option<u64>| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "failures::one_answer", "--nocapture"]);
        command.env("BURN_ROCM_PROVIDER", "cpu").env_remove("BURN_ROCM_CPU_FAIL");
        command.envs(fail.map(|call| ("BURN_ROCM_CPU_FAIL", format!("hipModuleLaunchKernel:{call}"))));
        let output = command.output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{fail:?}:\n{text}\n{errors}");
        text
    };
    let fine = run(None);
    assert!(fine.contains("health 200") && fine.contains("no error"), "{fine}");
    let numbers = fine.lines().find_map(|line| line.strip_prefix("launches ")).expect("the launches");
    let [before, after] =
        numbers.split(' ').map(|number| number.parse::<u64>().expect("a number")).collect::<Vec<_>>()[..]
    else {
        panic!("{numbers}")
    };
    // A step has several launches, so this one lies within the answer.
    assert!(after > before + 200, "{numbers}");
    let failed = run(Some((before + after) / 2));
    assert!(failed.contains("health 503 {\"status\":\"failed\"}"), "{failed}");
    assert!(failed.contains("error ") && failed.contains("hipModuleLaunchKernel"), "{failed}");
}
