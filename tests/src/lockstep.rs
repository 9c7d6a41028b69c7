//! A test program again in lockstep: full blocks of threads with real barriers and shuffles.

use crate::again;

/// Runs every test of this program but those named `lockstep`, with waves of `wave` threads, in a process of its own: with 64, small element-wise ops
/// put off as on a GPU, with 32 each by a kernel of its own. Does nothing in that process, nor where a real device is asked for: its waves are what
/// they are.
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
    again(
        &["--skip", "lockstep"],
        &[
            ("BURN_ROCM_CPU_WAVE", &wave.to_string()),
            ("BURN_ROCM_PROVIDER", "cpu"),
            ("BURN_ROCM_CHAIN", if wave == 64 { "16" } else { "0" }),
        ],
    );
}
