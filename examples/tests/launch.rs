//! The program `launch`: what its processes get, and what it does if one fails.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The program, which `cargo test` builds beside the tests.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this program's path");
    let folder = own.parent().and_then(Path::parent).expect("a folder above `deps`");
    let program = folder.join("examples").join("launch");
    assert!(program.exists(), "{} is missing: cargo test --examples builds it", program.display());
    program
}

fn launch(options: &[&str], script: &str) -> Output {
    let mut command = Command::new(program());
    command.args(options).args(["--", "sh", "-c", script]).output().expect("the program starts")
}

fn lines(output: &Output) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn each_process_gets_torchruns_variables() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT";
    let output = launch(&["-n", "3"], script);
    assert!(output.status.success(), "{output:?}");
    let found = lines(&output);
    let port = found[0].rsplit(' ').next().expect("a port");
    assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{found:?}");
    let expected: Vec<_> = (0..3).map(|rank| format!("{rank} {rank} 3 3 0 127.0.0.1 {port}")).collect();
    assert_eq!(found, expected);

    let output = launch(&["-n", "2", "--nodes", "2", "--node", "1", "--master", "n1:7000"], script);
    assert_eq!(lines(&output), ["2 0 4 2 1 n1 7000", "3 1 4 2 1 n1 7000"]);
}

/// The others are killed a second after it. The status is that of the one that failed.
#[test]
fn a_process_that_fails_ends_the_others() {
    let begun = Instant::now();
    let output = launch(&["-n", "3", "--grace", "1"], "[ $RANK != 1 ] || exit 7; exec sleep 600");
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("process 1 of this machine failed"),
        "{output:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let killed = launch(&["-n", "2", "--grace", "1"], "[ $RANK != 0 ] || kill -9 $$; exec sleep 600");
    assert_eq!(killed.status.code(), Some(1), "{killed:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    for options in [
        &["-n", "0"][..],
        &["-n", "2", "--nodes", "2"],
        &["-n", "2", "--node", "1"],
        &["-n", "2", "--master", "n1"],
        &["-n", "2", "--master", ":7000"],
    ] {
        let output = launch(options, "echo started");
        assert_eq!((output.status.code(), lines(&output).len()), (Some(2), 0), "{options:?}: {output:?}");
    }
    let absent = Command::new(program()).args(["-n", "1", "--", "/no/such/program"]).output();
    let absent = absent.expect("the program starts");
    assert!(String::from_utf8_lossy(&absent.stderr).contains("/no/such/program"), "{absent:?}");
    assert_eq!(absent.status.code(), Some(1));
}
