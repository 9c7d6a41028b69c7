//! A test program again in lockstep: full blocks of threads with real barriers and shuffles.

use crate::again;

/// Runs this program's tests on the CPU device with waves of `wave` threads, in a process of its
/// own, except those with `lockstep` or `natively` in their names. With 64 threads small
/// element-wise ops are put off as on a GPU; with 32 each one is a launch. It uses the CPU device
/// whatever device this process has; `--skip lockstep` saves the minutes.
///
/// # Panics
/// Where a test fails, with all that the process said.
pub fn whole_program(wave: u32) {
    again(
        &["--skip", "lockstep", "--skip", "natively"],
        &[
            ("BURN_ROCM_CPU_WAVE", &wave.to_string()),
            ("BURN_ROCM_PROVIDER", "cpu"),
            ("BURN_ROCM_CHAIN", if wave == 64 { "16" } else { "0" }),
        ],
    );
}
