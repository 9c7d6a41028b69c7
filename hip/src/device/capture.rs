//! A device's captures: one thread's work, recorded by HIP instead of run.
//!
//! HIP records whatever a captured stream is given, by whichever thread. So a capture has a stream
//! of its own, which only the capturing thread uses. The other threads' work runs meanwhile, on the
//! compute stream. If no thread captures, this costs a launch one relaxed load.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::context::Context;
use crate::device::recording::{Recording, Template};
use crate::device::stream::Stream;
use crate::error::{Error, Result};
use crate::once::Once;
use crate::trace;

thread_local! {
    /// The thread's number, from 1; 0 if it has none yet. Without a destructor, like the count
    /// below, so that a thread that is ending has it too.
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    /// How many devices the thread captures.
    static CAPTURED: Cell<u32> = const { Cell::new(0) };
    /// Whether the thread's work runs for now instead of being captured.
    static UNCAPTURED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread captures a graph, on any device. `false` inside [`uncaptured`].
pub fn is_capturing() -> bool {
    CAPTURED.get() > 0 && !UNCAPTURED.get()
}

/// Runs `work` as if the calling thread captured nothing: what it enqueues runs, and is not part of
/// a graph.
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

/// The calling thread's number.
fn thread_number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

/// The calling thread in words.
fn this_thread() -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) => format!("the thread `{name}`"),
        None => format!("the unnamed thread {:?}", thread.id()),
    }
}

/// A device's captures, one at a time.
#[derive(Default)]
pub(crate) struct Captures {
    /// The number of the thread that captures; 0 if none does.
    owner: AtomicU32,
    /// The captured stream, which the first capture makes.
    stream: Once<Arc<Stream>>,
    /// The owner in words.
    thread: Mutex<String>,
}

impl Captures {
    /// Whether any thread captures.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        // Relaxed: a thread sees what it wrote itself, and the other threads' work does not depend
        // on the answer.
        self.owner.load(Ordering::Relaxed) != 0
    }

    /// The captured stream, if the calling thread captures.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Arc<Stream>> {
        if self.any() { self.if_own() } else { None }
    }

    #[cold]
    fn if_own(&self) -> Option<&Arc<Stream>> {
        let own = self.owner.load(Ordering::Relaxed) == thread_number() && !UNCAPTURED.get();
        own.then(|| self.stream.made()).flatten()
    }

    /// Begins a capture of the calling thread, which has none, if `begin` succeeds.
    ///
    /// # Errors
    /// `Capture` if another thread captures; what HIP reports.
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

    /// Ends the capture of the calling thread: what it recorded, and what HIP did. `last` runs before
    /// another thread may begin one.
    ///
    /// # Errors
    /// `Capture` or `Invalid` if the calling thread captures nothing.
    pub(crate) fn end(&self, last: impl FnOnce()) -> Result<(Recording, Result<Template<'_>>)> {
        let Some(stream) = self.here() else { return Err(self.others("stop_capture")) };
        let ended = stream.end_capture();
        last();
        CAPTURED.set(CAPTURED.get() - 1);
        self.owner.store(0, Ordering::Release);
        Ok(ended)
    }

    /// The error of a call that only the capturing thread may make, or none while another captures.
    pub(crate) fn others(&self, op: &'static str) -> Error {
        match self.any() {
            true => Error::Capture { op, reason: format!("{} captures the device's work", self.thread()) },
            false => Error::invalid(op, "a capture of this thread's under way", "none"),
        }
    }

    fn thread(&self) -> MutexGuard<'_, String> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
