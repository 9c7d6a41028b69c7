//! A test program in a process of its own, for what a process reads once.

use std::process::Command;

/// Runs this test program again with these arguments and environment; gives what it wrote to stdout.
///
/// # Panics
/// Where it does not start or a test fails, with all that it said.
#[track_caller]
pub fn again(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("the test program has a path"))
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?} with {environment:?}:\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}
