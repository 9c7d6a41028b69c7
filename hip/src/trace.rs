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
use std::fmt::Display;

use crate::memory::last_use;
use crate::profile::work::WorkKind;
use crate::profile::{names, session, site};
use crate::ranges;
use crate::settings::settings;
use crate::spans;
use crate::summary::ledger;
use crate::watch::{self, NONE, PASS, PROFILE, RANGES, RUNNING, Running, SUMMARY, TRACE, watched};

pub use crate::watch::Shapes;

/// The target of the trace's records.
pub const TARGET: &str = "burn_rocm::trace";

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

/// Whether ops are traced: as the last call of [`enable`] set it, else as `BURN_ROCM_TRACE` sets
/// it.
#[inline]
pub fn enabled() -> bool {
    watched() & TRACE != 0
}

/// Switches the trace of all threads' ops on or off.
pub fn enable(on: bool) {
    watch::switch(TRACE, on);
}

/// Names the op that the thread runs until the result is dropped, and its dtype. An op that is
/// called inside another op keeps the outer op's name.
#[inline]
#[must_use = "the op ends where this is dropped"]
pub fn op(name: &'static str, dtype: impl FnOnce() -> &'static str) -> Op {
    op_of(name, dtype, |_| {})
}

/// As [`op`]. `shapes` adds the shapes of the op's tensors, for the profile.
#[inline]
#[must_use = "the op ends where this is dropped"]
pub fn op_of(
    name: &'static str,
    dtype: impl FnOnce() -> &'static str,
    shapes: impl Fn(&mut Shapes<'_>),
) -> Op {
    let watched = watched();
    let asked = watched != 0 || spans::enabled();
    Op(asked && RUNNING.get().op.is_empty() && begin(watched, name, dtype(), &shapes))
}

/// Says that the running op goes on as a new op of a [`Pass`](crate::Pass). So what it has computed
/// by now has an earlier last use than the rest, and the pass may have a point in between. Does nothing
/// outside an op.
#[inline]
pub fn op_goes_on() {
    if watched() & PASS != 0 && !RUNNING.get().op.is_empty() {
        watch::op_begins();
    }
}

/// Until the returned value is dropped, logs work under the name of an op that was put off, even
/// inside another op.
#[must_use = "the op ends where this is dropped"]
pub fn op_put_off(name: &'static str, dtype: &'static str) -> PutOff {
    PutOff((watched() != 0).then(|| RUNNING.replace(Running { op: name, dtype, ..NONE })))
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
fn begin(watched: u16, op: &'static str, dtype: &'static str, shapes: &dyn Fn(&mut Shapes<'_>)) -> bool {
    let mut running = Running { op, dtype, ..NONE };
    if watched & PASS != 0 {
        watch::op_begins();
    }
    if watched & PROFILE != 0 {
        running.shapes = watch::with_shapes(shapes, names::shapes);
        if call_sites() {
            running.site = site::here();
        }
        running.since = Some(watch::now());
    }
    if watched & RANGES != 0 {
        running.in_range = ranges::push(op);
    }
    if spans::enabled() {
        running.in_span = true;
        spans::begin_op(op, dtype, shapes);
    }
    RUNNING.set(running);
    true
}

/// Whether profiles tell call sites apart.
fn call_sites() -> bool {
    settings().is_ok_and(|settings| settings.profile_call_sites)
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
    // Before the op loses its name, so that the check's kernel has it.
    watch::check_results();
    let running = RUNNING.replace(NONE);
    last_use::op_ends();
    if running.in_range {
        ranges::pop();
    }
    if running.in_span {
        spans::end_op();
    }
    if let Some(since) = running.since {
        session::op_ended(&running, since);
    }
    if enabled() && running.served == 0 && !std::thread::panicking() {
        log::debug!(target: TARGET, "{running}: nothing launched");
    }
}

/// Counts one piece of work.
#[inline]
pub(crate) fn count(kind: WorkKind) {
    // `try_with` fails only when the thread is ending and its values are gone.
    let _ = COUNTS.try_with(|counts| {
        let mut now = counts.get();
        *match kind {
            WorkKind::Kernel => &mut now.kernels,
            WorkKind::Library => &mut now.library_calls,
            WorkKind::Copy => &mut now.copies,
            WorkKind::Transfer => &mut now.transfers,
            WorkKind::Graph => &mut now.graphs,
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
pub(crate) fn served<D: Display>(kind: WorkKind, by: impl FnOnce() -> D) {
    count(kind);
    let watched = watched();
    if watched & (TRACE | SUMMARY) != 0 {
        tell(watched, kind, &by());
    }
}

#[cold]
fn tell(watched: u16, kind: WorkKind, by: &dyn Display) {
    if watched & SUMMARY != 0 {
        ledger::served(kind, &by.to_string());
    }
    if watched & TRACE != 0 {
        say(by);
    }
}

/// Logs and counts a launch of a kernel, as far as `watched` asks for it.
#[cold]
pub(crate) fn launched(watched: u16, kernel: &str) {
    if watched & SUMMARY != 0 {
        ledger::launched(kernel);
    }
    if watched & TRACE != 0 {
        say(&format_args!("kernel {kernel}"));
    }
}

/// Notes for the summary that something else than the first choice computes the running op, and
/// why. `reason` is called only if there is a summary.
#[inline]
pub fn fell_back<D: Display>(reason: impl FnOnce() -> D) {
    if watched() & SUMMARY != 0 {
        ledger::fell_back(&reason().to_string());
    }
}

/// Logs what computes the running op. The caller knows that ops are traced.
#[cold]
pub(crate) fn say(by: &dyn Display) {
    let running = RUNNING.get();
    RUNNING.set(Running { served: running.served + 1, ..running });
    log::info!(target: TARGET, "{running}: {by}");
}
