//! Runs a test program in a new process, for settings that a process reads only once.

use std::process::Command;

/// Runs this test program again with these arguments and environment. Returns its standard output.
/// What its tests print is part of that only with the argument `--nocapture`: otherwise it could
/// stand in the middle of the lines that say how tests ended.
///
/// # Panics
/// If the program does not start, a test fails, or no test has the name. The message has all of its
/// output.
#[track_caller]
pub fn again(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().expect("the test program has a path"))
        .args(arguments)
        .env_remove("RUST_TEST_NOCAPTURE")
        .envs(environment.iter().copied())
        .output()
        .expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && !text.contains("running 0 tests"),
        "{arguments:?} with {environment:?}:\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}
