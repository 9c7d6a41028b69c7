//! The program `sharded_decoder` in small sizes on the CPU device, with threads and with processes.

use std::net::TcpListener;
use std::process::{Command, Stdio};

const SIZES: [&str; 16] = [
    "--layers",
    "3",
    "--width",
    "32",
    "--heads",
    "4",
    "--vocabulary",
    "50",
    "--tokens",
    "16",
    "--steps",
    "5",
    "--product",
    "32",
    "--global-norm",
    "1",
];

fn program(more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sharded_decoder"));
    command.args(SIZES).args(more).stdin(Stdio::null());
    command.env("BURN_ROCM_PROVIDER", "cpu").env("BURN_ROCM_CPU_DEVICES", "2");
    command.env("BURN_ROCM_COLLECTIVE_TIMEOUT", "20");
    command
}

/// The loss of each step.
fn losses(text: &str) -> Vec<String> {
    let column = |row: &str| row.split('|').nth(2).map(|loss| loss.trim().to_string());
    let rows = text.lines().filter(|row| row.starts_with("| ") && !row.contains("loss"));
    rows.filter_map(column).filter(|loss| !loss.is_empty()).collect()
}

#[test]
fn threads_and_processes_train_alike() {
    for more in [&["--f32"][..], &[]] {
        let output = program(&[more, &["--devices", "2"]].concat()).output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        let threads = losses(&text);
        assert_eq!(threads.len(), 5, "{text}");
        let value = |at: usize| threads[at].parse::<f32>().expect("a number");
        assert!(value(4) < value(0), "the same tokens in every step: {threads:?}");
        assert_eq!(text.matches(": peak ").count(), 2, "{text}");

        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.expect("a free port").port().to_string();
        let start = |rank: usize| {
            let mut command = program(more);
            command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
        };
        let processes = [0, 1].map(start);
        let outputs = processes.map(|process| process.wait_with_output().expect("the program ends"));
        for output in &outputs {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!(losses(&String::from_utf8_lossy(&outputs[0].stdout)), threads);
    }
}
