//! Captures: the work that a captured stream is given is recorded instead of run.

use hip_provider::require;
use hip_provider::runtime::Status;
use hip_sys::*;
use std::{
    cell::{Cell, RefCell},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
};

/// A piece of work with all that it needs.
pub(super) struct Work(Box<dyn Fn() -> bool>);

// SAFETY: the callers of `enqueue` guarantee that any thread may use what the work holds.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// A stream's capture.
#[derive(Default)]
pub(super) struct Capture {
    /// Whether there is a recording. Read without the lock, so that a stream without a recording
    /// takes no lock.
    on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

struct Recording {
    work: Vec<Work>,
    /// Whether a call came that can't be captured.
    spoiled: bool,
    /// The only thread that may end the capture.
    thread: Option<ThreadId>,
}

thread_local! {
    /// The work that the current call in a captured stream has recorded so far; `None` outside such
    /// a call.
    static TAKEN_DOWN: RefCell<Option<Vec<Work>>> = const { RefCell::new(None) };
    /// Whether this work is for a stream's queue.
    static IS_LATE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread's call is in a captured stream. If so, what it enqueues does not run now.
pub(crate) fn is_captured() -> bool {
    TAKEN_DOWN.with_borrow(Option::is_some)
}

/// Whether this thread's call is in a stream whose work becomes a graph.
pub(crate) fn is_graph() -> bool {
    is_captured() && !IS_LATE.get()
}

/// Runs work while [`on_stream`](super::on_stream) holds the device for this thread. If the stream
/// is captured, records the work instead, to be run at each launch of the graph.
///
/// # Safety
/// The work holds plain values, things that any thread may use, and addresses of memory that the
/// caller of the C function keeps for as long as a graph with it is launched.
pub(crate) unsafe fn enqueue<E>(work: impl Fn() -> Result<(), E> + 'static) -> Result<(), E> {
    TAKEN_DOWN
        .with_borrow_mut(|taken| match taken {
            Some(taken) => {
                taken.push(Work(Box::new(move || work().is_ok())));
                Ok(())
            }
            None => Err(work),
        })
        // Runs outside the borrow, because the work may ask whether it is captured.
        .or_else(|work| work())
}

/// What a call enqueues, for a graph or for a stream's queue.
pub(super) fn take_down(late: bool, call: impl FnOnce() -> Status) -> Status<Vec<Work>> {
    /// Ends the recording of this call, even if the call panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            TAKEN_DOWN.take();
            IS_LATE.set(false);
        }
    }
    TAKEN_DOWN.set(Some(Vec::new()));
    IS_LATE.set(late);
    let _end = End;
    call()?;
    Ok(TAKEN_DOWN.take().unwrap_or_default())
}

impl Work {
    /// Runs the work. Returns whether it succeeded.
    pub(super) fn run(&self) -> bool {
        (self.0)()
    }
}

impl Capture {
    /// All that a mode forbids here is that another thread ends the capture, because every other
    /// call is safe during a capture.
    pub(super) fn begin(&self, mode: hipStreamCaptureMode) -> Status {
        let mut recording = self.lock();
        require(recording.is_none(), hipErrorIllegalState)?;
        let thread = (mode != hipStreamCaptureModeRelaxed).then(|| thread::current().id());
        *recording = Some(Recording { work: Vec::new(), spoiled: false, thread });
        self.on.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the capture and returns the recorded work.
    pub(super) fn end(&self) -> Status<Vec<Work>> {
        let mut recording = self.lock();
        let own = recording.as_ref().ok_or(hipErrorIllegalState)?.thread;
        require(own.is_none_or(|own| own == thread::current().id()), hipErrorStreamCaptureWrongThread)?;
        self.on.store(false, Ordering::Release);
        let ended = recording.take().filter(|recording| !recording.spoiled);
        ended.map(|recording| recording.work).ok_or(hipErrorStreamCaptureInvalidated)
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Refuses a call that can't be captured, with this status. The capture then fails.
    pub(super) fn refuse(&self, status: hipError_t) -> Status {
        match self.lock().as_mut() {
            Some(recording) => {
                recording.spoiled = true;
                Err(status)
            }
            None => Ok(()),
        }
    }

    /// Records what a call enqueues, if the call succeeds.
    pub(super) fn take_down(&self, call: impl FnOnce() -> Status) -> Status {
        let taken = take_down(false, call)?;
        if let Some(recording) = self.lock().as_mut() {
            recording.work.extend(taken);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
