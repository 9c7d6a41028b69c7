//! What served each op, told through `log` where `BURN_ROCM_TRACE=1` is set.
//!
//! Whoever implements ops says which one runs by [`op`], and on what dtype; launches and library calls then say under
//! its name what they are. The records have the target [`TARGET`] and the level `Info`:
//!
//! ```text
//! float_matmul f32: rocblas_sgemm F32 128x10, k 784, batch 1
//! float_add f32: kernel binary_strided<Add, f32>
//! ```
//!
//! An op that gets by without the device, such as a reshape of a contiguous tensor, says `nothing launched` at the
//! level `Debug`.

use std::cell::Cell;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::settings::settings;

/// The target of the trace's records.
pub const TARGET: &str = "burn_rocm::trace";

thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(NONE) };
}

/// What a thread has asked of devices, by kind. A library's call counts once, however many kernels it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels of this project.
    pub kernels: u64,
    /// Calls into rocBLAS and MIOpen that compute.
    pub library_calls: u64,
    /// Copies and fills within a device's memory.
    pub copies: u64,
    /// Copies from the host or to it.
    pub transfers: u64,
}

impl Counts {
    /// What a device is asked to start: all but the transfers.
    pub const fn launches(&self) -> u64 {
        self.kernels + self.library_calls + self.copies
    }
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { kernels: 0, library_calls: 0, copies: 0, transfers: 0 }) };
}

/// What the thread has asked of devices so far; counted whether ops are traced or not.
pub fn counts() -> Counts {
    COUNTS.get()
}

/// What `body` gives, and what it asked of devices on this thread.
pub fn counting<T>(body: impl FnOnce() -> T) -> (T, Counts) {
    let before = counts();
    let result = body();
    let after = counts();
    let counts = Counts {
        kernels: after.kernels - before.kernels,
        library_calls: after.library_calls - before.library_calls,
        copies: after.copies - before.copies,
        transfers: after.transfers - before.transfers,
    };
    (result, counts)
}

/// What can serve an op.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Kernel,
    Library,
    Copy,
    Transfer,
}

/// The op that the thread is in, outermost first come, and what has served it so far.
#[derive(Clone, Copy)]
struct Running {
    /// Empty outside any op.
    op: &'static str,
    /// Of its first tensor; empty where it takes none.
    dtype: &'static str,
    served: u32,
}

const NONE: Running = Running { op: "", dtype: "", served: 0 };

impl Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { op: "", .. } => f.write_str("outside an op"),
            Self { op, dtype: "", .. } => f.write_str(op),
            Self { op, dtype, .. } => write!(f, "{op} {dtype}"),
        }
    }
}

/// `ASK` until somebody does, then `OFF` or `ON`.
static STATE: AtomicU8 = AtomicU8::new(ASK);
const ASK: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

/// Whether ops are traced: as `BURN_ROCM_TRACE` says, or the last [`enable`].
#[inline]
pub fn enabled() -> bool {
    // Relaxed: nothing else is published by it.
    match STATE.load(Ordering::Relaxed) {
        ASK => ask(),
        state => state == ON,
    }
}

#[cold]
fn ask() -> bool {
    let said = if settings().is_ok_and(|settings| settings.trace) { ON } else { OFF };
    // Whoever called `enable` meanwhile has the last word.
    match STATE.compare_exchange(ASK, said, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => said == ON,
        Err(state) => state == ON,
    }
}

/// Traces the ops of every thread from now on, or no longer.
pub fn enable(on: bool) {
    STATE.store(if on { ON } else { OFF }, Ordering::Relaxed);
}

/// Names the op that the thread runs until the result is dropped, and the dtype of what it runs on. Inside another op
/// the outer one keeps the name.
#[inline]
#[must_use = "the op ends where this is dropped"]
pub fn op(name: &'static str, dtype: impl FnOnce() -> &'static str) -> Op {
    Op(enabled() && RUNNING.get().op.is_empty() && begin(name, dtype()))
}

#[cold]
fn begin(op: &'static str, dtype: &'static str) -> bool {
    RUNNING.set(Running { op, dtype, served: 0 });
    true
}

/// An op that runs; see [`op`].
pub struct Op(bool);

impl Drop for Op {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            end();
        }
    }
}

#[cold]
fn end() {
    let running = RUNNING.replace(NONE);
    if running.served == 0 && !std::thread::panicking() {
        log::debug!(target: TARGET, "{running}: nothing launched");
    }
}

/// Counts what serves the running op.
#[inline]
pub(crate) fn count(kind: Kind) {
    // Not where the thread is ending and its values are gone.
    let _ = COUNTS.try_with(|counts| {
        let mut now = counts.get();
        *match kind {
            Kind::Kernel => &mut now.kernels,
            Kind::Library => &mut now.library_calls,
            Kind::Copy => &mut now.copies,
            Kind::Transfer => &mut now.transfers,
        } += 1;
        counts.set(now);
    });
}

/// Says what serves the running op, which is counted elsewhere.
#[inline]
pub(crate) fn said<D: Display>(by: impl FnOnce() -> D) {
    if enabled() {
        say(&by());
    }
}

/// Counts what serves the running op, and says it.
#[inline]
pub(crate) fn served<D: Display>(kind: Kind, by: impl FnOnce() -> D) {
    count(kind);
    said(by);
}

#[cold]
fn say(by: &dyn Display) {
    let running = RUNNING.get();
    RUNNING.set(Running { served: running.served + 1, ..running });
    log::info!(target: TARGET, "{running}: {by}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_does_not_undo_an_enable_that_came_first() {
        enable(true);
        // As a thread that found `ASK` a moment before.
        let traced = ask();
        let still = enabled();
        enable(false);
        assert!(traced && still);
    }
}
