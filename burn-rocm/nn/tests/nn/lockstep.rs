//! The same tests in lockstep: full blocks of threads with real barriers and shuffles, for waves of 32 and of 64.

use std::process::Command;

fn all_in_lockstep(wave: u32) {
    if std::env::var_os("BURN_ROCM_CPU_WAVE").is_some() {
        return; // already the child
    }
    if !matches!(std::env::var("BURN_ROCM_PROVIDER").as_deref(), Err(_) | Ok("auto" | "cpu")) {
        return; // a real device's waves are what they are
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

#[test]
fn wave_32() {
    all_in_lockstep(32);
}

#[test]
fn wave_64() {
    all_in_lockstep(64);
}
