//! A device's captures: one thread's work, recorded by HIP instead of run.
//!
//! HIP records all work that is enqueued on a captured stream, whichever thread enqueues it. So a
//! capture has a stream of its own, which only the capturing thread uses, and the other threads'
//! work runs on the compute stream meanwhile. While no thread captures, this costs each launch one
//! relaxed load.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::context::Context;
use crate::device::recording::{Recording, Template};
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::once::Once;
use crate::trace;
use crate::watch::thread_number;

thread_local! {
    /// On how many devices the thread is capturing. A plain `Cell` without a destructor is still
    /// there while the thread ends.
    static CAPTURED: Cell<u32> = const { Cell::new(0) };
    /// Whether the thread's work currently runs instead of being captured ([`uncaptured`]).
    static UNCAPTURED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is capturing a graph, on any device. `false` inside [`uncaptured`].
pub fn is_capturing() -> bool {
    CAPTURED.get() > 0 && !UNCAPTURED.get()
}

/// Runs `work` as if the calling thread were not capturing: what it enqueues runs, and does not
/// become part of a graph.
pub fn uncaptured<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool, trace::Counts);
    impl Drop for Before {
        fn drop(&mut self) {
            UNCAPTURED.set(self.0);
            if !self.0 {
                trace::leave_out(&self.1);
            }
        }
    }
    let _before = Before(UNCAPTURED.replace(true), trace::counts());
    work()
}

/// The calling thread's name or id, for messages.
fn this_thread() -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) => format!("the thread `{name}`"),
        None => format!("the unnamed thread {:?}", thread.id()),
    }
}

/// The state of a device's captures, of which there is at most one at a time.
#[derive(Default)]
pub(crate) struct Captures {
    /// The number of the thread that captures; 0 if none does.
    owner: AtomicU32,
    /// The stream that captures use, made by the first capture.
    stream: Once<Arc<Stream>>,
    /// The capturing thread's name or id, for messages.
    thread: Mutex<String>,
}

impl Captures {
    /// Whether any thread captures.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Relaxed: a thread always sees its own write, and the work of other threads does not
        // depend on the answer.
        self.owner.load(Ordering::Relaxed) != 0
    }

    /// The captured stream, if the calling thread is capturing.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Arc<Stream>> {
        if self.any() { self.if_own() } else { None }
    }

    #[cold]
    fn if_own(&self) -> Option<&Arc<Stream>> {
        if UNCAPTURED.get() { None } else { self.own() }
    }

    /// The number of the capture that the calling thread's work is part of.
    pub(crate) fn number(&self) -> Option<u64> {
        self.here()?.capture_number()
    }

    /// The stream of the capture with this number, while it is in progress, and whether it is the
    /// calling thread's, also inside [`uncaptured`].
    pub(crate) fn in_progress(&self, number: u64) -> Option<(&Arc<Stream>, bool)> {
        let stream = self.stream.made().filter(|_| self.any())?;
        let own = self.owner.load(Ordering::Relaxed) == thread_number();
        (stream.capture_number() == Some(number)).then_some((stream, own))
    }

    /// The captured stream, if the calling thread is capturing, also inside [`uncaptured`].
    fn own(&self) -> Option<&Arc<Stream>> {
        let own = self.owner.load(Ordering::Relaxed) == thread_number();
        own.then(|| self.stream.made()).flatten()
    }

    /// Begins a capture by the calling thread if `begin` succeeds. The thread must not be capturing
    /// already.
    ///
    /// # Errors
    /// `Capture` if another thread is capturing; what HIP reports.
    pub(crate) fn begin<T>(
        &self,
        context: &Arc<Context>,
        begin: impl FnOnce(&Stream) -> Result<T>,
    ) -> Result<T> {
        let stream = self.stream.get(|| Stream::to_capture(context).map(Arc::new))?;
        let mut thread = self.thread();
        let own = self.owner.compare_exchange(0, thread_number(), Ordering::AcqRel, Ordering::Relaxed);
        if own.is_err() {
            drop(thread);
            return Err(self.others("a capture"));
        }
        *thread = this_thread();
        drop(thread);
        let begun = begin(stream);
        match begun.is_ok() {
            true => CAPTURED.set(CAPTURED.get() + 1),
            false => self.owner.store(0, Ordering::Release),
        }
        begun
    }

    /// Ends the calling thread's capture. Returns what this crate recorded, and HIP's recording.
    /// `last` runs before another thread can begin a capture.
    ///
    /// # Errors
    /// If the calling thread is not capturing: `Capture` if another thread is, else `Invalid`.
    pub(crate) fn end(&self, last: impl FnOnce()) -> Result<(Recording, Result<Template<'_>>)> {
        let Some(stream) = self.own() else { return Err(self.others("stop_capture")) };
        let ended = stream.end_capture();
        last();
        CAPTURED.set(CAPTURED.get() - 1);
        self.owner.store(0, Ordering::Release);
        Ok(ended)
    }

    /// The error for a thread that is not capturing, if it ends a capture, or if it begins one or
    /// uses captured memory while another thread is capturing.
    pub(crate) fn others(&self, op: &'static str) -> Error {
        match self.any() {
            true => Error::Capture { op, reason: format!("{} captures the device's work", self.thread()) },
            false => Error::invalid(op, "a capture in progress on this thread", "none"),
        }
    }

    fn thread(&self) -> MutexGuard<'_, String> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
