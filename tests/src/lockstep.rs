//! A test program again in lockstep: full blocks of threads with real barriers and shuffles.

use std::process::Command;

/// Runs every test of this program but those named `lockstep`, with waves of `wave` threads, in a process of its own. Does nothing in that
/// process, nor where a real device is asked for: its waves are what they are.
///
/// # Panics
/// Where a test fails, with all that the process said.
pub fn whole_program(wave: u32) {
    if std::env::var_os("BURN_ROCM_CPU_WAVE").is_some() {
        return;
    }
    if !matches!(std::env::var("BURN_ROCM_PROVIDER").as_deref(), Err(_) | Ok("auto" | "cpu")) {
        return;
    }
    let tests = std::env::current_exe().expect("the test program has a path");
    let output = Command::new(tests)
        .args(["--skip", "lockstep"])
        .env("BURN_ROCM_CPU_WAVE", wave.to_string())
        .env("BURN_ROCM_PROVIDER", "cpu")
        .output()
        .expect("the test program starts");
    assert!(
        output.status.success(),
        "in lockstep with waves of {wave}:\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
