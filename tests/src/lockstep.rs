//! Runs a test program again in lockstep mode: with full blocks of threads, and real barriers and
//! shuffles.

use crate::{Random, again};

/// Runs this program's tests on the CPU device with waves of `wave` threads, in a process of its
/// own, except those with `lockstep` or `natively` in their names. With waves of 64, small
/// element-wise ops are deferred as on a GPU; with waves of 32 each op is a launch. The new process
/// uses the CPU device, whatever device this process has. This takes minutes; `--skip lockstep`
/// skips it. With a number in `BURN_ROCM_TEST_LOCKSTEP`, each wave runs one in so many tests, from a
/// random one on.
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
        Err(std::env::VarError::NotPresent) | Ok("") => drop(again(&others, &environment)),
        Ok(number) => {
            let one_in = number.parse::<usize>().expect("BURN_ROCM_TEST_LOCKSTEP is a number").max(1);
            let listed = again(&[&["--list", "--format", "terse"], &others[..]].concat(), &environment);
            let all: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
            assert!(!all.is_empty(), "no test was listed:\n{listed}");
            // Of fewer tests than that, at least one.
            let first = Random::new().below(one_in.min(all.len()));
            let some: Vec<&str> = all.into_iter().skip(first).step_by(one_in).collect();
            println!("waves of {wave}: {} tests", some.len());
            again(&[&["--exact"], &some[..]].concat(), &environment);
        }
        Err(error) => panic!("BURN_ROCM_TEST_LOCKSTEP: {error}"),
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
