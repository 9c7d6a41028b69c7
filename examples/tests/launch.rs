//! The program `launch`: what its processes get, and what it does if one fails or a signal comes.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
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

/// Process 0 ends when it is asked to, and says so. Process 1 ignores SIGTERM, so it is killed after
/// three seconds. Left alone, both would end after ten.
#[test]
fn a_signal_ends_all_processes() {
    let script = "\
        [ $RANK = 1 ] && trap '' TERM || trap 'echo asked; exit 0' TERM
        echo $$
        for i in $(seq 200); do sleep 0.05; done";
    for signal in ["TERM", "INT"] {
        let begun = Instant::now();
        // What a shell starts in the background ignores SIGINT, and so would `launch`.
        let mut launch = Command::new("env")
            .args(["--default-signal=TERM,INT", &program().to_string_lossy()])
            .args(["-n", "2", "--grace", "3", "--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut said = BufReader::new(launch.stdout.take().expect("a pipe")).lines();
        let mut next = || said.next().map(|line| line.expect("text"));
        let pids = [next().expect("a process started"), next().expect("both started")];
        let sent = Command::new("kill").args(["-s", signal, &launch.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal}");
        // The end of the output: no process has it any more.
        assert_eq!([next(), next()], [Some("asked".into()), None], "{signal}");
        let output = launch.wait_with_output().expect("the program ends");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{signal}: {text}");
        assert!(text.contains("a signal asked it to end"), "{signal}: {text}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        for pid in pids {
            assert!(!Path::new("/proc").join(&pid).exists(), "{signal}: process {pid} still runs");
        }
    }
}

/// `nohup` and shells start programs with signals that are ignored. They stay so.
#[test]
fn an_ignored_signal_ends_nothing() {
    let script = r#"trap '' HUP; "$0" -n 1 -- sh -c 'kill -s HUP $PPID; sleep 0.2; echo done'"#;
    let output = Command::new("sh").args(["-c", script]).arg(program()).output().expect("sh starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output), ["done"]);
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
