//! The trace: if `BURN_ROCM_TRACE=1` is set, it logs which kernels and library calls computed each
//! op.
//!
//! The code that implements an op calls [`op`] with the op's name and dtype. Each launch and
//! library call then logs itself under that name, with the target [`TARGET`] and at the level
//! `Info`:
//!
//! ```text
//! float_matmul f32: rocblas_sgemm F32 128x10, k 784, batch 1
//! float_add f32: kernel binary_strided<Add, f32>
//! ```
//!
//! An op that gives the device no work, such as a reshape of a contiguous tensor, logs `nothing
//! launched` at the level `Debug`.

use std::cell::Cell;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::settings::settings;

/// The target of the trace's records.
pub const TARGET: &str = "burn_rocm::trace";

thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(NONE) };
}

/// How often a thread has used devices, by kind. A library call counts once, however many kernels
/// it launches.
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
    /// Launches of captured graphs.
    pub graphs: u64,
}

impl Counts {
    /// Kernels, library calls and copies: all but the transfers.
    pub const fn launches(&self) -> u64 {
        self.kernels + self.library_calls + self.copies + self.graphs
    }

    /// The work given to devices since `before`.
    pub(crate) const fn since(&self, before: &Self) -> Self {
        Self {
            kernels: self.kernels - before.kernels,
            library_calls: self.library_calls - before.library_calls,
            copies: self.copies - before.copies,
            transfers: self.transfers - before.transfers,
            graphs: self.graphs - before.graphs,
        }
    }
}

const NOTHING: Counts = Counts { kernels: 0, library_calls: 0, copies: 0, transfers: 0, graphs: 0 };

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(NOTHING) };
    /// The counts that [`captured`] leaves out.
    static LEFT_OUT: Cell<Counts> = const { Cell::new(NOTHING) };
}

/// The calling thread's counts so far, without work that ran immediately although the thread was
/// capturing.
pub(crate) fn captured() -> Counts {
    counts().since(&LEFT_OUT.get())
}

/// Excludes the thread's counts since `before` from [`captured`].
pub(crate) fn leave_out(before: &Counts) {
    let captured = before.since(&LEFT_OUT.get());
    LEFT_OUT.set(counts().since(&captured));
}

/// The calling thread's counts so far. They are kept whether ops are traced or not.
pub fn counts() -> Counts {
    COUNTS.get()
}

/// The result of `body`, and what it added to this thread's counts.
pub fn counting<T>(body: impl FnOnce() -> T) -> (T, Counts) {
    let before = counts();
    let result = body();
    (result, counts().since(&before))
}

/// The kinds of work that [`Counts`] tells apart.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Kernel,
    Library,
    Copy,
    Transfer,
    Graph,
}

/// The outermost op that the thread runs, and how many records it has logged.
#[derive(Clone, Copy)]
struct Running {
    /// Empty outside any op.
    op: &'static str,
    /// The dtype of its first tensor; empty if it takes none.
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

/// `ASK` until the first call of [`enabled`] or [`enable`], then `OFF` or `ON`.
static STATE: AtomicU8 = AtomicU8::new(ASK);
const ASK: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

/// Whether ops are traced: as the last call of [`enable`] set it, else as `BURN_ROCM_TRACE` sets
/// it.
#[inline]
pub fn enabled() -> bool {
    // Relaxed: the flag publishes no other data.
    match STATE.load(Ordering::Relaxed) {
        ASK => ask(),
        state => state == ON,
    }
}

#[cold]
fn ask() -> bool {
    let said = if settings().is_ok_and(|settings| settings.trace) { ON } else { OFF };
    // If another thread called `enable` meanwhile, its value stays.
    match STATE.compare_exchange(ASK, said, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => said == ON,
        Err(state) => state == ON,
    }
}

/// Switches the trace of all threads' ops on or off.
pub fn enable(on: bool) {
    STATE.store(if on { ON } else { OFF }, Ordering::Relaxed);
}

/// Names the op that the thread runs until the result is dropped, and its dtype. An op that is
/// called inside another op keeps the outer op's name.
#[inline]
#[must_use = "the op ends where this is dropped"]
pub fn op(name: &'static str, dtype: impl FnOnce() -> &'static str) -> Op {
    Op(enabled() && RUNNING.get().op.is_empty() && begin(name, dtype()))
}

/// Until the returned value is dropped, logs work under the name of an op that was put off, even
/// inside another op.
#[must_use = "the op ends where this is dropped"]
pub fn op_put_off(name: &'static str, dtype: &'static str) -> PutOff {
    PutOff(enabled().then(|| RUNNING.replace(Running { op: name, dtype, served: 0 })))
}

/// When dropped, ends the name that [`op_put_off`] set.
pub struct PutOff(Option<Running>);

impl Drop for PutOff {
    fn drop(&mut self) {
        if let Some(outer) = self.0 {
            RUNNING.set(outer);
        }
    }
}

#[cold]
fn begin(op: &'static str, dtype: &'static str) -> bool {
    RUNNING.set(Running { op, dtype, served: 0 });
    true
}

/// A running op; see [`op`].
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

/// Counts one piece of work.
#[inline]
pub(crate) fn count(kind: Kind) {
    // `try_with` fails only when the thread is ending and its values are gone.
    let _ = COUNTS.try_with(|counts| {
        let mut now = counts.get();
        *match kind {
            Kind::Kernel => &mut now.kernels,
            Kind::Library => &mut now.library_calls,
            Kind::Copy => &mut now.copies,
            Kind::Transfer => &mut now.transfers,
            Kind::Graph => &mut now.graphs,
        } += 1;
        counts.set(now);
    });
}

/// Logs what computes the running op, without counting it.
#[inline]
pub(crate) fn said<D: Display>(by: impl FnOnce() -> D) {
    if enabled() {
        say(&by());
    }
}

/// Counts and logs what computes the running op.
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
        // Imitates a thread that read `ASK` just before `enable` was called.
        let traced = ask();
        let still = enabled();
        enable(false);
        assert!(traced && still);
    }
}
