//! Tests that need a process of their own, for settings and counters that belong to a process.

/// The tests of the whole workspace use this file too.
#[allow(unreachable_pub, reason = "public in its own crate")]
#[path = "../../tests/src/again.rs"]
mod again;

/// Set in a process that runs one test alone.
const ALONE: &str = "BENCHES_TEST_ALONE";

/// The environment in which the CPU device defers ops.
pub(crate) const DEFERS: [(&str, &str); 2] = [("BURN_ROCM_CHAIN", "16"), ("BURN_ROCM_PROVIDER", "cpu")];

/// Whether this process runs one test alone. If not, it runs `test`, the path of the calling test, in
/// a new process with this environment, and the caller has nothing left to do.
///
/// # Panics
/// If the test fails in the new process.
#[track_caller]
pub(crate) fn is_alone(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    again::again(&["--exact", test], &[environment, &[(ALONE, "1")]].concat());
    false
}
