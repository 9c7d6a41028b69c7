//! Runs a test program again in lockstep mode: with full blocks of threads, and real barriers and
//! shuffles.

use crate::{Random, again};

/// Runs this program's tests on the CPU device with waves of `wave` threads, in a process of its
/// own, except those with `lockstep` or `natively` in their names. With waves of 64, small
/// element-wise ops are deferred as on a GPU; with waves of 32 each op is a launch. The new process
/// uses the CPU device, whatever device this process has. This takes minutes; `--skip lockstep`
/// skips it. With `BURN_ROCM_TEST_LOCKSTEP=half`, each wave runs a random half of the tests.
///
/// # Panics
/// If a test fails, with all output of the process.
#[track_caller]
pub fn whole_program(wave: u32) {
    let wave_text = wave.to_string();
    let environment = [
        ("BURN_ROCM_CPU_WAVE", wave_text.as_str()),
        ("BURN_ROCM_PROVIDER", "cpu"),
        ("BURN_ROCM_CHAIN", if wave == 64 { "16" } else { "0" }),
    ];
    let others = ["--skip", "lockstep", "--skip", "natively"];
    match std::env::var("BURN_ROCM_TEST_LOCKSTEP").as_deref() {
        Err(_) | Ok("") => drop(again(&others, &environment)),
        Ok("half") => {
            let random = Random::new();
            let listed = again(&[&["--list", "--format", "terse"], &others[..]].concat(), &environment);
            let all = listed.lines().filter_map(|line| line.strip_suffix(": test"));
            let half: Vec<&str> = all.filter(|_| random.below(2) == 0).collect();
            println!("waves of {wave}: {} tests", half.len());
            assert!(!half.is_empty(), "no test was listed:\n{listed}");
            again(&[&["--exact"], &half[..]].concat(), &environment);
        }
        Ok(other) => panic!("BURN_ROCM_TEST_LOCKSTEP: expected half or nothing, found {other}"),
    }
}

/// Whether this process runs the CPU device in lockstep, which takes some hundred times as long as
/// natively. Tests that would take minutes then choose smaller sizes, which go the same ways.
pub fn in_lockstep() -> bool {
    std::env::var_os("BURN_ROCM_CPU_WAVE").is_some_and(|wave| !wave.is_empty())
}

/// All of a test's cases natively; in lockstep every `n`-th one, from a random one of the first `n`
/// on.
pub fn fewer<T>(cases: impl IntoIterator<Item = T>, n: usize, random: &Random) -> impl Iterator<Item = T> {
    let (first, step) = if in_lockstep() { (random.below(n), n) } else { (0, 1) };
    cases.into_iter().skip(first).step_by(step)
}
