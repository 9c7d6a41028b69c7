//! A test program again in lockstep: full blocks of threads with real barriers and shuffles.

use crate::again;

/// Runs every test of this program on the CPU device, but those named `lockstep` or `natively`, with waves of `wave` threads, in a process of its own:
/// with 64, small element-wise ops put off as on a GPU, with 32 each by a kernel of its own. Whatever device this process has; `--skip lockstep` saves the
/// minutes.
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
