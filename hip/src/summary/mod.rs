//! Summaries: which kernels and library calls computed each op, which ops shared a launch, and what
//! fell back and why.
//!
//! Nothing is timed, and no work waits for anything. If nobody asks for a summary, an op and a
//! launch cost what they cost without it (`watch.rs`).

pub(crate) mod ledger;
pub(crate) mod output;
mod report;

use crate::device::Device;

pub use report::{Fallback, OpSummary, Summary};

/// Runs `body`, and says how all threads computed their ops meanwhile. Summaries may overlap: each
/// has all work of its time.
///
/// ```
/// let device = hip::Device::get(0)?;
/// let (buffer, summary) = hip::optimization_summary(|| {
///     let buffer = device.alloc(1 << 20)?;
///     device.fill_bytes(&buffer, 0, 7, 1 << 20)?;
///     Ok::<_, hip::Error>(buffer)
/// });
/// assert_eq!(summary.ops[0].copies, 1);
/// println!("{summary}");
/// # Ok::<(), hip::Error>(())
/// ```
///
/// Ops that a captured graph repeats count once, in the capture; a replay counts as one graph.
pub fn optimization_summary<T>(body: impl FnOnce() -> T) -> (T, Summary) {
    launch_deferred();
    let _kept = ledger::Reader::new();
    let before = ledger::so_far();
    let result = body();
    launch_deferred();
    (result, Summary::of(&ledger::so_far().since(&before)))
}

/// Launches the deferred ops of all devices, so that no launch has ops from both sides of this
/// call.
fn launch_deferred() {
    for device in Device::opened() {
        device.compute.catch_up();
    }
}
