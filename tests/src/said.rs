//! Runs one ignored test in a new process, which reports lines.

use crate::again;

/// What begins a line that a test reports to [`said_by`] on its standard output.
pub const SAID: &str = "said: ";

/// Runs one ignored test of this program in a process with these variables. Returns the rest of each
/// line that begins with [`SAID`].
///
/// # Panics
/// As [`again()`], and if not exactly one test passes.
#[track_caller]
pub fn said_by(test: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let out = again(&["--ignored", "--exact", test, "--nocapture", "--test-threads", "1"], variables);
    assert!(out.contains("1 passed"), "{test} did not run:\n{out}");
    out.lines().filter_map(|line| Some(line.split_once(SAID)?.1.to_owned())).collect()
}
